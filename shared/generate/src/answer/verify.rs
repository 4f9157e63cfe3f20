//! Verification of a part that another model wrote.
//!
//! Pure. The accepted part goes through the model behind the prompt, like the proposals of speculative
//! decoding. Every position then has the model's own choice. Always: the choices do not depend on how many
//! passes computed them.

use std::ops::Range;

use baton_engine::Sampler;
use baton_engine::sampling::check_logits;
use baton_engine::tokenizer::{TokenId, Tokenizer};

use super::form::AnswerForm;
use super::takeover::stable_boundary;
use crate::hooks::Fault;
use crate::planted::{self, Bug};

/// The other side's part of the answer, in the form that this model can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// Token ids, if both sides have the same tokenizer.
    Ids(Vec<TokenId>),
    /// Text, if the tokenizers differ.
    Text(String),
}

impl Accepted {
    /// Returns whether the other side wrote nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Ids(ids) => ids.is_empty(),
            Self::Text(text) => text.is_empty(),
        }
    }
}

/// How much of the accepted part is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All of it.
    All,
    /// The first `n` ids; the model's own choice follows.
    Tokens(usize),
    /// The first `n` bytes of the text (a boundary reported in [`Verified::differs_at_bytes`]).
    Bytes(usize),
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Ids: the model's own choice at every position, one more than there are accepted ids. Text: empty.
    pub own: Vec<TokenId>,
    /// Number of positions compared.
    pub compared: usize,
    /// Number of positions at which the model would have written the same.
    pub agreed: usize,
    /// Text: byte offsets in the accepted text at which the model would have written something else.
    pub differs_at_bytes: Vec<usize>,
}

/// A verification, before it is decided how much of the accepted part stays.
#[derive(Debug)]
pub(super) struct Verification {
    /// Index in the sequence of the token whose row gives the first choice.
    pub(super) first_row: usize,
    /// The accepted part in this model's tokens.
    pub(super) ids: Vec<TokenId>,
    /// Text: the accepted text, and the bytes of each token in it.
    pub(super) text: Option<(String, Vec<Range<usize>>)>,
    /// The model's own choices so far: `ids.len() + 1` when all rows were taken.
    pub(super) choices: Vec<TokenId>,
    /// Text: the logits from position `kept_from` on, one row for each token and one more. The first own
    /// token may be restricted there.
    pub(super) logits: Vec<f32>,
    /// Text: index of the token that begins the last word.
    pub(super) kept_from: Option<usize>,
}

/// Returns whether writing `bytes` next would agree with the text that follows.
pub(super) fn agrees(bytes: &[u8], follows: &[u8]) -> bool {
    !bytes.is_empty() && (follows.starts_with(bytes) || bytes.starts_with(follows))
}

impl Verification {
    /// Begins the verification of `accepted`.
    pub(super) fn new(accepted: Accepted, first_row: usize, tokenizer: &Tokenizer) -> Verification {
        let (ids, text) = match accepted {
            Accepted::Ids(ids) => (ids, None),
            Accepted::Text(text) => {
                let (ids, spans) = tokenizer.encode_answer(&text);
                // The vocabulary may have no token for any of the text.
                let text = (!ids.is_empty()).then_some((text, spans));
                (ids, text)
            }
        };
        let kept_from = text.as_ref().map(|(text, spans)| stable_boundary(text, spans));
        Verification { first_row, ids, text, choices: Vec::new(), logits: Vec::new(), kept_from }
    }

    /// Takes the rows of logits of the sequence's tokens from `start` on. Rows before the first choice, and
    /// rows that were taken before, change nothing. `before` are the answer's tokens before the accepted
    /// part. A form takes the accepted part on the way.
    ///
    /// # Errors
    /// [`Fault::Logits`] if a row is damaged; [`Fault::Constraint`] if the accepted part has not the form.
    pub(super) fn take<'a>(
        &mut self,
        start: usize,
        rows: impl Iterator<Item = &'a [f32]>,
        sampler: &Sampler,
        before: &[TokenId],
        mut form: Option<&mut AnswerForm>,
    ) -> Result<(), Fault> {
        let answer = [before, &self.ids].concat();
        for (at, row) in (start..).zip(rows) {
            let i = self.choices.len();
            let at = at - usize::from(planted::is(Bug::VerifySkipped) && i > 0);
            if self.is_complete() || at.checked_sub(self.first_row) != Some(i) {
                continue;
            }
            check_logits(row)?;
            let answered = &answer[..before.len() + i];
            let choice = match &mut form {
                Some(form) => form.choose(sampler, row, answered)?,
                None => sampler.sample(row, answered.len() as u64, answered),
            };
            if let (Some(form), Some(&id)) = (&mut form, self.ids.get(i)) {
                form.take(id)?;
            }
            self.choices.push(choice);
            if self.kept_from.is_some_and(|from| i >= from) {
                self.logits.extend_from_slice(row);
            }
        }
        Ok(())
    }

    /// Returns the number of accepted tokens that stay.
    pub(super) fn kept(&self, keep: Keep) -> usize {
        let all = self.ids.len();
        match (&self.text, keep) {
            (None, Keep::Tokens(n)) => n.min(all),
            (Some((_, spans)), Keep::Bytes(bytes)) => {
                spans.iter().position(|span| span.start == bytes).unwrap_or(all)
            }
            _ => all,
        }
    }

    /// Returns how many of the accepted ids the model would have written too, from the first on.
    pub(super) fn agreed(&self) -> usize {
        let same = self.ids.iter().zip(&self.choices).take_while(|(id, choice)| id == choice).count();
        let more = usize::from(planted::is(Bug::DraftAccepted));
        (same + more).min(self.ids.len())
    }

    /// Returns whether every row was taken.
    pub(super) fn is_complete(&self) -> bool {
        self.choices.len() == self.ids.len() + 1
    }

    /// Compares the choices with the accepted part. Every row must have been taken.
    pub(super) fn compare(&self, tokenizer: &Tokenizer) -> Verified {
        let mut agreed = 0;
        let mut differs_at_bytes = Vec::new();
        for (i, (&id, &choice)) in self.ids.iter().zip(&self.choices).enumerate() {
            let same = choice == id
                || self.text.as_ref().is_some_and(|(text, spans)| {
                    !tokenizer.is_control(choice)
                        && agrees(tokenizer.token_bytes(choice), &text.as_bytes()[spans[i].start..])
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
