//! The verification pass: runs the end of the prompt and the cloud's tokens together, like a step of
//! speculative decoding.
//!
//! It is one step of the engine, or several if the logits of one would take too much memory.

use super::command::{Accepted, EngineReport, Verified};
use super::decode::stable_boundary;
use super::{Job, LocalEngine, MERGED_LOGITS_MAX, PassOutcome, SequenceError, Stage};
use baton_engine::pace_emulation::PassContent;
use baton_engine::sampling::check_logits;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_engine::{StepControl, StepSeq, Wanted};
use std::ops::Range;

/// The result of verification, before it is decided how much of the accepted part stays.
pub(super) struct Verification {
    /// The accepted part in the device's tokens.
    pub(super) ids: Vec<TokenId>,
    /// Text mode: the accepted text, and the bytes of each token in it.
    pub(super) text: Option<(String, Vec<Range<usize>>)>,
    /// The device's own choice at every position: `ids.len() + 1` choices.
    pub(super) choices: Vec<TokenId>,
    /// Text mode: the logits from the token that begins the last word on, one row for each token and one
    /// more. The device's first own token may be restricted there.
    pub(super) logits: Vec<f32>,
}

/// Checks whether writing `bytes` next would agree with the text that follows.
fn agrees(bytes: &[u8], follows: &[u8]) -> bool {
    !bytes.is_empty() && (follows.starts_with(bytes) || bytes.starts_with(follows))
}

impl Verification {
    fn compare(&self, tokenizer: &Tokenizer) -> Verified {
        let mut agreed = 0;
        let mut differs_at_bytes = Vec::new();
        for (i, &id) in self.ids.iter().enumerate() {
            let same = self.choices[i] == id
                || self.text.as_ref().is_some_and(|(text, spans)| {
                    !tokenizer.is_control(self.choices[i])
                        && agrees(tokenizer.token_bytes(self.choices[i]), &text.as_bytes()[spans[i].start..])
                });
            agreed += usize::from(same);
            if let (false, Some((_, spans))) = (same, &self.text) {
                differs_at_bytes.push(spans[i].start);
            }
        }
        let own = if self.text.is_none() { self.choices.clone() } else { Vec::new() };
        Verified { own, compared: self.ids.len(), agreed, differs_at_bytes }
    }
}

impl LocalEngine {
    pub(super) fn verify_pass(
        &mut self,
        job: &mut Job,
        control: &mut dyn StepControl,
        outcome: &mut PassOutcome,
    ) -> Result<(), SequenceError> {
        let tokenizer = self.engine.model().tokenizer().clone();
        let (ids, text) = match job.accepted.as_ref() {
            Some(Accepted::Ids(ids)) => (ids.clone(), None),
            Some(Accepted::Text(text)) if !text.is_empty() => {
                let (ids, spans) = tokenizer.encode_answer(text);
                // The vocabulary may have no token for any of the text.
                let text = (!ids.is_empty()).then(|| (text.clone(), spans));
                (ids, text)
            }
            Some(Accepted::Text(_)) | None => (Vec::new(), None),
        };
        let held = self.held();
        let mut batch = job.ids[held..].to_vec();
        let before = batch.len() - 1;
        batch.extend_from_slice(&ids);
        let kept_from = text.as_ref().map(|(text, spans)| stable_boundary(text, spans));
        let (mut choices, mut logits) = (Vec::with_capacity(ids.len() + 1), Vec::new());
        let mut at = 0;
        let computed = self.compute(&batch, control, |row| {
            if let Some(i) = usize::checked_sub(at, before) {
                check_logits(row)?;
                choices.push(job.sampler.sample(row, i as u64, &ids[..i]));
                if kept_from.is_some_and(|from| i >= from) {
                    logits.extend_from_slice(row);
                }
            }
            at += 1;
            Ok(())
        });
        if let Err(err) = computed {
            // Restores the state from before the pass.
            let undone = if self.held() > held { self.engine.truncate(self.seq, held) } else { Ok(()) };
            return Err(if err.is_cancelled() { undone.err().unwrap_or(err) } else { err });
        }
        outcome.content = PassContent {
            prompts_begun: usize::from(!job.begun),
            prefill_tokens: batch.len(),
            decode_rows: 0,
        };
        outcome.held_tokens = held;
        job.begun = true;
        let verification = Verification { ids, text, choices, logits };
        let verified = verification.compare(&tokenizer);
        let (prompt, total) = (job.prompt, job.ids.len());
        outcome.reports.push(EngineReport::Progress { prompt, done: total, total, pass_tokens: batch.len() });
        outcome.reports.push(EngineReport::Verified { prompt, verified });
        job.accepted = None;
        job.stage = Stage::Decide(verification);
        Ok(())
    }

    /// Runs ids through the model and passes every row of logits to `row`, in order; holds few rows at once.
    fn compute(
        &mut self,
        ids: &[TokenId],
        control: &mut dyn StepControl,
        mut row: impl FnMut(&[f32]) -> Result<(), SequenceError>,
    ) -> Result<(), SequenceError> {
        let vocab_len = self.engine.model().config().vocab_len;
        for ids in ids.chunks((MERGED_LOGITS_MAX / vocab_len).max(1)) {
            let wanted = if ids.len() == 1 { Wanted::Last } else { Wanted::All };
            let step = StepSeq { seq: self.seq, ids, logits: wanted, capture: None };
            let mut output = self.engine.step(&[step], control)?;
            let logits = output.pop().map(|o| o.logits).unwrap_or_default();
            logits.chunks_exact(vocab_len).try_for_each(&mut row)?;
        }
        Ok(())
    }
}
