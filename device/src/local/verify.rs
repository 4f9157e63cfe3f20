//! The verification pass: the end of the prompt and the cloud's tokens together, as a step of speculative decoding.

use super::command::{Accepted, EngineReport, Verified};
use super::{Job, LocalEngine, PassOutcome, SequenceError, Stage};
use baton_engine::pace_emulation::PassContent;
use baton_engine::sampling::check_logits;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_engine::{StepControl, StepSeq, Wanted};
use std::ops::Range;

/// A verified accepted part, before it is decided how much of it stays.
pub(super) struct Verification {
    /// The accepted part in the device's tokens.
    pub(super) ids: Vec<TokenId>,
    /// Text mode: the accepted text and each token's bytes in it.
    pub(super) text: Option<(String, Vec<Range<usize>>)>,
    /// The device's own choice at every position, `ids.len() + 1` of them.
    pub(super) choices: Vec<TokenId>,
    /// `[ids.len() + 1, v]`; kept in text mode only, where the first own token may be constrained.
    pub(super) logits: Vec<f32>,
}

/// Whether writing `bytes` next would agree with the text that follows.
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
                (ids, Some((text.clone(), spans)))
            }
            Some(Accepted::Text(_)) | None => (Vec::new(), None),
        };
        let held = self.held();
        let mut batch = job.ids[held..].to_vec();
        let prompt_rows = batch.len();
        batch.extend_from_slice(&ids);
        let wanted = if batch.len() == 1 { Wanted::Last } else { Wanted::All };
        let step = StepSeq { seq: self.seq, ids: &batch, logits: wanted, capture: None };
        let mut output = self.engine.step(&[step], control)?;
        let logits = output.pop().map(|o| o.logits).unwrap_or_default();
        let vocab_len = self.engine.model().config().vocab_len;
        let logits = &logits[(prompt_rows - 1) * vocab_len..];
        check_logits(logits)?;
        let choices = logits
            .chunks_exact(vocab_len)
            .enumerate()
            .map(|(i, row)| job.sampler.sample(row, i as u64, &ids[..i]))
            .collect();
        outcome.content = PassContent {
            prompts_begun: usize::from(!job.begun),
            prefill_tokens: batch.len(),
            decode_rows: 0,
        };
        outcome.held_tokens = held;
        job.begun = true;
        let logits = if text.is_some() { logits.to_vec() } else { Vec::new() };
        let verification = Verification { ids, text, choices, logits };
        let verified = verification.compare(&tokenizer);
        let (prompt, total) = (job.prompt, job.ids.len());
        outcome.reports.push(EngineReport::Progress { prompt, done: total, total, pass_tokens: batch.len() });
        outcome.reports.push(EngineReport::Verified { prompt, verified });
        job.accepted = None;
        job.stage = Stage::Decide(verification);
        Ok(())
    }
}
