//! One answer while it is written: which ids the model needs, and which tokens its logits become.
//!
//! Pure: it uses no clock, thread, lock or file, and knows neither the engine nor the other answers. Never:
//! decides what runs (the scheduler does). Always: the tokens are a function of the options, the logits and
//! the decisions of a takeover; proposals only change how many come from one pass. Text that is held back
//! because it may begin a stop string is given out with the last token at the latest.

mod attended;
mod form;
mod takeover;
mod verify;

use std::ops::Range;
use std::sync::Arc;

use baton_engine::sampling::check_logits;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_engine::{Capture, HeadId, Sampler, SeqOutput, Wanted};

use self::form::AnswerForm;
use self::takeover::{Model, OwnText, sample_agreeing};
use self::verify::Verification;
pub use self::verify::{Accepted, Keep, Verified};
use crate::evidence::Evidence;
use crate::hooks::{Constraint, Fault, LogprobSink};
use crate::planted::{self, Bug};
use crate::scheduler::{Goal, PrefillEnd, StepRow};
use crate::text::{AnswerText, TextPush};

/// How an answer is written.
pub struct AnswerOptions {
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Columns of the model's logits.
    pub vocab_len: usize,
    /// Chooses the tokens.
    pub sampler: Sampler,
    /// The prompt's ids.
    pub prompt: Vec<TokenId>,
    /// The answer's tokens so far; they are at the end of `prompt` too.
    pub continued: Vec<TokenId>,
    /// Answer tokens at most, at least 1. Those that it continues from do not count; accepted ones do.
    pub max_tokens: usize,
    /// Tokens of prompt and answer together, at most.
    pub room_tokens: usize,
    /// What is given out with the tokens.
    pub text: TextMode,
    /// The form that the answer must have.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Receives the log probabilities.
    pub logprobs: Option<Box<dyn LogprobSink>>,
    /// Scores that the last prompt pass captures.
    pub window: Option<Window>,
    /// Records what the answer attends to. Passes that capture a window give no evidence.
    pub evidence: Option<Evidence>,
}

/// The scores that the last prompt pass captures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The queries, in prompt positions.
    pub tokens: Range<usize>,
    /// The heads.
    pub heads: Vec<HeadId>,
}

/// What is given out with an answer's tokens.
#[derive(Debug)]
pub enum TextMode {
    /// Ids only: the reader makes its own text.
    Ids,
    /// The text of every token.
    Text {
        /// Makes the text.
        text: AnswerText,
        /// Whether the answer is complete at its cap, because nobody goes on behind it.
        ends_at_cap: bool,
    },
}

/// One token, as its reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its index in the answer.
    pub index: usize,
    /// Its id.
    pub id: TokenId,
    /// The text that it lets show. With [`TextMode::Ids`]: none, unless the accepted part was a text.
    pub text: Option<String>,
}

/// What one row of a pass needs of the engine.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The tokens to compute.
    pub ids: Vec<TokenId>,
    /// Of which of them logits are wanted.
    pub logits: Wanted,
    /// The scores to capture.
    pub capture: Option<Capture>,
}

/// What a pass gave for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Proposed tokens that were computed.
    pub proposed: usize,
    /// Those of them, from the first on, that the model confirmed.
    pub accepted: usize,
    /// Tokens that the answer became longer.
    pub written: usize,
    /// Why the answer ends here.
    pub end: Option<AnswerEnd>,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// By itself: an end token, a stop string, or a complete form.
    Stop,
    /// It has as many tokens as allowed, or there is no more room.
    Cap,
    /// It cannot go on: see [`Answer::fault`].
    Failed,
}

/// A sequence that is being continued.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The prompt.
    pub prompt: &'a [TokenId],
    /// Tokens that follow the prompt in the sequence.
    pub own: &'a [TokenId],
    /// The answer so far; the index of the next token is its length. Of a continued answer it begins inside
    /// the prompt.
    pub answer: &'a [TokenId],
    /// Chooses the next tokens.
    pub sampler: &'a Sampler,
}

/// The answer after it was decided how much of the accepted part stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// Answer tokens that stay in the cache behind the prompt.
    pub kept: usize,
    /// Answer tokens in all.
    pub tokens: usize,
    /// The end, if the first own token ends the answer.
    pub end: Option<AnswerEnd>,
}

/// One answer.
pub struct Answer {
    tokenizer: Arc<Tokenizer>,
    vocab_len: usize,
    sampler: Sampler,
    prompt: Vec<TokenId>,
    /// Number of tokens that it continues from: the first of `tokens`, and the end of `prompt`.
    continued: usize,
    max_tokens: usize,
    room_tokens: usize,
    text: TextMode,
    form: Option<AnswerForm>,
    logprobs: Option<Box<dyn LogprobSink>>,
    window: Option<Window>,
    evidence: Option<Evidence>,
    /// All answer tokens so far.
    tokens: Vec<TokenId>,
    /// The index that the next token gets. It differs from the number of tokens after a takeover by text.
    index: usize,
    /// The accepted part, until it is decided how much of it stays.
    verification: Option<Verification>,
    /// The text behind an accepted text.
    own_text: Option<OwnText>,
    tail: String,
    fault: Option<Fault>,
}

impl Answer {
    /// Begins an answer.
    pub fn new(options: AnswerOptions) -> Answer {
        Answer {
            tokenizer: options.tokenizer,
            vocab_len: options.vocab_len,
            sampler: options.sampler,
            prompt: options.prompt,
            continued: options.continued.len(),
            max_tokens: options.max_tokens,
            room_tokens: options.room_tokens,
            text: options.text,
            form: options.constraint.map(AnswerForm::new),
            logprobs: options.logprobs,
            window: options.window,
            evidence: options.evidence,
            index: options.continued.len(),
            tokens: options.continued,
            verification: None,
            own_text: None,
            tail: String::new(),
            fault: None,
        }
    }

    /// Returns the prompt.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// Returns all answer tokens so far: continued or accepted ones, then its own.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the number of tokens to compute before the next one: the prompt, and the answer's tokens
    /// behind it.
    pub fn feed_tokens(&self) -> usize {
        self.prompt.len() + self.behind().len()
    }

    /// Returns these tokens of the sequence. Behind the first [`Self::feed_tokens`] are those of an accepted
    /// part.
    pub fn feed(&self, range: Range<usize>) -> Vec<TokenId> {
        let accepted = self.verification.as_ref().map_or(&[][..], |verification| &verification.ids);
        let mut ids = Vec::with_capacity(range.len());
        let mut before = 0;
        for part in [&self.prompt, self.behind(), accepted] {
            let within = |at: usize| at.saturating_sub(before).min(part.len());
            ids.extend_from_slice(&part[within(range.start)..within(range.end)]);
            before += part.len();
        }
        ids
    }

    /// Returns how many tokens of [`Self::feed`] may come from the prefix tree for this goal. A window is
    /// always computed, and so is the token that gives the next one.
    pub fn reusable_tokens(&self, goal: Goal) -> usize {
        let most = match goal {
            Goal::Write | Goal::Verify { .. } => self.feed_tokens().saturating_sub(1),
            Goal::Hold { upto } => upto,
        };
        // Scores are captured before the first token, never again.
        let window = self.window.as_ref().filter(|_| self.behind().is_empty());
        window.map_or(most, |window| most.min(window.tokens.start))
    }

    /// Lowers the cap, as [`AnswerOptions::max_tokens`].
    pub fn lower(&mut self, max_tokens: usize) {
        let passed = usize::from(planted::is(Bug::CapPassed));
        self.max_tokens = self.max_tokens.min(max_tokens + passed);
    }

    /// Returns the end of the text that goes with no token, after a takeover by text; empty otherwise.
    pub fn tail(&self) -> &str {
        &self.tail
    }

    /// Returns why the answer cannot go on.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Returns what proposals are made from; none while the next token must agree with text that is shown
    /// already, or an accepted part is undecided.
    pub fn writing(&self) -> Option<Writing<'_>> {
        let free = self.residual().is_empty() && self.verification.is_none();
        free.then(|| Writing {
            prompt: &self.prompt,
            own: self.behind(),
            answer: &self.tokens,
            sampler: &self.sampler,
        })
    }

    /// Returns what a row needs of the engine.
    pub fn rows(&self, row: &StepRow, proposed: &[TokenId]) -> Rows {
        match row {
            StepRow::Prefill { tokens, end, .. } => Rows {
                ids: self.feed(tokens.clone()),
                logits: if *end == PrefillEnd::Sampled { self.wanted() } else { Wanted::None },
                capture: self.capture_of_prompt(tokens, *end),
            },
            StepRow::Verify { tokens, .. } => {
                let logits = if tokens.len() == 1 { Wanted::Last } else { Wanted::All };
                let capture = self.capture_of_accepted(tokens);
                Rows { ids: self.feed(tokens.clone()), logits, capture }
            }
            StepRow::Decode { .. } => {
                let all = self.feed_tokens();
                let mut ids = self.feed(all.saturating_sub(1)..all);
                ids.extend_from_slice(proposed);
                let logits = if proposed.is_empty() { self.wanted() } else { Wanted::All };
                let capture = self.capture_of_own(ids.len());
                Rows { ids, logits, capture }
            }
        }
    }

    /// Returns what the next token is chosen from.
    fn wanted(&self) -> Wanted {
        let needs_logits = self.form.is_some() || self.logprobs.is_some() || !self.residual().is_empty();
        if self.sampler.takes_best() && !needs_logits { Wanted::Best } else { Wanted::Last }
    }

    /// Takes what the engine gave for a row: as [`Self::took`], or the most probable token in place of
    /// logits.
    pub fn took_output(
        &mut self,
        row: &StepRow,
        proposed: &[TokenId],
        output: &SeqOutput,
        out: &mut Vec<Written>,
    ) -> Outcome {
        let Some(best) = output.best else { return self.took(row, proposed, &output.logits, out) };
        let tokens_before = self.tokens.len();
        let end = match best {
            Ok(id) => self.write(id, false, &[], out),
            Err(err) => Some(self.fail(err.into())),
        };
        Outcome { written: self.tokens.len() - tokens_before, end, ..Outcome::default() }
    }

    /// Takes the logits of a row, and appends the tokens that they give to `out`.
    ///
    /// `proposed` are those that were given to [`Self::rows`]. Rows behind the first wrong one are not looked
    /// at. Calls the constraint and the log probabilities in the order of the tokens.
    pub fn took(
        &mut self,
        row: &StepRow,
        proposed: &[TokenId],
        logits: &[f32],
        out: &mut Vec<Written>,
    ) -> Outcome {
        let (proposed, wanted) = match row {
            StepRow::Prefill { end: PrefillEnd::Sampled, .. } => (&[][..], 1),
            StepRow::Prefill { .. } => return Outcome::default(),
            StepRow::Verify { tokens, .. } => (&[][..], tokens.len()),
            StepRow::Decode { .. } => (proposed, 1 + proposed.len()),
        };
        if logits.len() != wanted * self.vocab_len {
            let fault = format!("the engine gave {} logits in place of {wanted} rows", logits.len());
            return Outcome { end: Some(self.fail(Fault::Engine(fault))), ..Outcome::default() };
        }
        if let StepRow::Verify { tokens, .. } = row {
            return self.took_verify(tokens.start, logits);
        }
        let tokens_before = self.tokens.len();
        let mut outcome = Outcome { proposed: proposed.len(), ..Outcome::default() };
        for row in logits.chunks_exact(self.vocab_len) {
            let (id, end) = match self.choose(row) {
                Ok((id, complete)) => (Some(id), self.write(id, complete, row, out)),
                Err(fault) => (None, Some(self.fail(fault))),
            };
            outcome.end = end;
            let right = id.is_some() && id.as_ref() == proposed.get(outcome.accepted);
            outcome.accepted += usize::from(right);
            if end.is_some() || !right {
                break;
            }
        }
        outcome.written = self.tokens.len() - tokens_before;
        outcome
    }

    /// Takes another prompt of the same answer, and what records the attention to it. What was accepted or
    /// written for the one before is dropped.
    pub fn set_prompt(&mut self, prompt: Vec<TokenId>, evidence: Option<Evidence>) {
        (self.prompt, self.evidence) = (prompt, evidence);
        self.tokens.truncate(self.continued);
        self.index = self.continued;
        self.verification = None;
        self.own_text = None;
        self.tail.clear();
        if let Some(Err(fault)) = self.form.as_mut().map(AnswerForm::restart) {
            // A constraint that cannot go back cannot go on either, which ends the answer at its next token.
            self.fault = Some(fault);
        }
    }

    /// Takes the other side's part; returns its number of tokens in this vocabulary. The part can be longer
    /// than one pass: its rows are taken by [`Self::took`].
    ///
    /// # Errors
    /// [`Fault::Accepted`] if the model lacks one of the tokens, or there is no room for them.
    ///
    /// # Panics
    /// If the answer has log probabilities or a text of its own. They would have to take the accepted part
    /// too, and cannot.
    pub fn accept(&mut self, accepted: Accepted) -> Result<usize, Fault> {
        assert!(
            self.logprobs.is_none() && matches!(self.text, TextMode::Ids),
            "only plain answers take an accepted part"
        );
        let feed_tokens = self.feed_tokens();
        let first_row = feed_tokens
            .checked_sub(1)
            .ok_or_else(|| Fault::Accepted("there is no prompt before the accepted part".to_owned()))?;
        let verification = Verification::new(accepted, first_row, &self.tokenizer);
        let tokens = verification.ids.len();
        if let Some(id) = verification.ids.iter().find(|&&id| id as usize >= self.vocab_len) {
            let known = self.vocab_len;
            return Err(Fault::Accepted(format!(
                "the accepted part has token {id}, but the model has {known} tokens"
            )));
        }
        if feed_tokens + tokens > self.room_tokens {
            let room = self.room_tokens.saturating_sub(feed_tokens);
            return Err(Fault::Accepted(format!(
                "the accepted part has {tokens} tokens, but there is room for {room}"
            )));
        }
        self.verification = Some(verification);
        Ok(tokens)
    }

    /// Returns the result of the verification, once every row of the accepted part was taken.
    pub fn verified(&self) -> Option<Verified> {
        let complete = self.verification.as_ref().filter(|verification| verification.is_complete());
        complete.map(|verification| verification.compare(&self.tokenizer))
    }

    /// Goes on from the verified part: `index` is that of the first token it writes. This needs no pass,
    /// because the verification has chosen the first token.
    ///
    /// Fails if the accepted part is not verified.
    pub fn decide(&mut self, keep: Keep, index: usize, out: &mut Vec<Written>) -> Decided {
        let complete = self.verification.take().filter(Verification::is_complete);
        let Some(verification) = complete else {
            let fault = Fault::Accepted("the accepted part is not verified yet".to_owned());
            let (kept, tokens) = (self.behind().len(), self.tokens.len());
            return Decided { kept, tokens, end: Some(self.fail(fault)) };
        };
        let is_formed = self.form.is_some();
        let start = takeover::start(self.model(), &verification, keep, &self.tokens, is_formed);
        self.tokens.extend_from_slice(&verification.ids[..start.kept]);
        self.index = index;
        self.own_text = start.own_text;
        let kept = self.behind().len();
        let end = match self.form_goes_on(verification.ids.len() - start.kept, start.first) {
            Ok(complete) => self.write(start.first, complete, &[], out),
            Err(fault) => Some(self.fail(fault)),
        };
        Decided { kept, tokens: self.tokens.len(), end }
    }

    /// Goes on behind those tokens of the verified part that the model would have written too. The answer
    /// ends with the first token behind them, or later if it has fewer than `at_least` new ones then.
    ///
    /// Fails as [`Self::decide`].
    pub fn agree(&mut self, at_least: usize, out: &mut Vec<Written>) -> Decided {
        let agreed = self.verification.as_ref().map_or(0, Verification::agreed);
        self.max_tokens = at_least.max(agreed + 1);
        self.decide(Keep::Tokens(agreed), self.tokens.len() + agreed, out)
    }

    /// Takes back the end of the accepted part, then takes the first own token. Returns whether nothing may
    /// follow it.
    fn form_goes_on(&mut self, back: usize, first: TokenId) -> Result<bool, Fault> {
        let Some(form) = &mut self.form else { return Ok(false) };
        form.take_back(back)?;
        if self.tokenizer.is_end(first) { Ok(false) } else { form.take(first) }
    }

    /// Returns the answer's tokens behind the prompt.
    fn behind(&self) -> &[TokenId] {
        &self.tokens[self.continued..]
    }

    /// Returns the accepted text with which the next tokens must agree.
    fn residual(&self) -> &[u8] {
        self.own_text.as_ref().map_or(&[], OwnText::residual)
    }

    fn model(&self) -> Model<'_> {
        Model { tokenizer: &self.tokenizer, sampler: &self.sampler, vocab_len: self.vocab_len }
    }

    /// Notes why the answer cannot go on.
    pub(crate) fn fail(&mut self, fault: Fault) -> AnswerEnd {
        self.fault = Some(fault);
        AnswerEnd::Failed
    }

    fn took_verify(&mut self, start: usize, logits: &[f32]) -> Outcome {
        let rows = logits.chunks_exact(self.vocab_len);
        let taken = match &mut self.verification {
            Some(verification) => {
                verification.take(start, rows, &self.sampler, &self.tokens, self.form.as_mut())
            }
            None => Ok(()),
        };
        let end = taken.err().map(|fault| self.fail(fault));
        Outcome { end, ..Outcome::default() }
    }

    /// Chooses the next token; returns it, and whether nothing may follow it.
    fn choose(&mut self, logits: &[f32]) -> Result<(TokenId, bool), Fault> {
        check_logits(logits)?;
        let Some(form) = &mut self.form else {
            return Ok((sample_agreeing(self.model(), logits, &self.tokens, self.residual()), false));
        };
        let id = form.choose(&self.sampler, logits, &self.tokens)?;
        let complete = !self.tokenizer.is_end(id) && form.take(id)?;
        Ok((id, complete))
    }

    /// Appends a chosen token. `complete`: nothing may follow it. Returns the end, if it is one.
    fn write(
        &mut self,
        id: TokenId,
        complete: bool,
        logits: &[f32],
        out: &mut Vec<Written>,
    ) -> Option<AnswerEnd> {
        if self.tokenizer.is_end(id) {
            self.write_end(id, logits, out);
            return Some(AnswerEnd::Stop);
        }
        let inside = !self.residual().is_empty();
        let (text, stopped) = self.text_of(id, complete);
        // A token within the accepted text that shows nothing has no place in the answer of the reader.
        if inside && text.as_ref().is_some_and(String::is_empty) {
            self.tokens.push(id);
        } else {
            self.put(id, text, logits, out);
        }
        if stopped || complete {
            return Some(AnswerEnd::Stop);
        }
        self.is_full(0).then_some(AnswerEnd::Cap)
    }

    /// Ends the text. The end token is written only if it completes text that was held back.
    fn write_end(&mut self, id: TokenId, logits: &[f32], out: &mut Vec<Written>) {
        if let Some(own) = &mut self.own_text {
            self.tail = own.finish();
        }
        let TextMode::Text { text, .. } = &mut self.text else { return };
        let held = text.finish("").shown;
        if !held.is_empty() {
            self.put(id, Some(held), logits, out);
        }
    }

    /// Returns the text that a token lets show, and whether a stop string is complete.
    fn text_of(&mut self, id: TokenId, complete: bool) -> (Option<String>, bool) {
        let capped = self.is_full(1);
        let TextMode::Text { text, ends_at_cap } = &mut self.text else {
            let own = self.own_text.as_mut();
            return (own.map(|own| own.push(id, self.tokenizer.token_bytes(id))), false);
        };
        let TextPush { mut shown, stopped, .. } = text.push(id);
        if complete || (capped && *ends_at_cap) {
            shown.push_str(&text.finish("").shown);
        } else if capped {
            shown.push_str(&text.at_handover());
        }
        (Some(shown), stopped)
    }

    /// Returns whether the answer is at its cap, or fills its room, after `more` tokens.
    fn is_full(&self, more: usize) -> bool {
        self.index + more >= self.continued.saturating_add(self.max_tokens)
            || self.feed_tokens() + more >= self.room_tokens
    }

    fn put(&mut self, id: TokenId, text: Option<String>, logits: &[f32], out: &mut Vec<Written>) {
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.record(&self.sampler, logits, id);
        }
        self.tokens.push(id);
        out.push(Written { index: self.index, id, text });
        self.index += 1;
    }
}

#[cfg(test)]
pub(crate) mod tests;
