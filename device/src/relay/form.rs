//! The form of the answer over the cloud's tokens: what does not fit is never shown.
//!
//! The cloud holds its tokens to the same form, but by its own vocabulary and its own library. So this device
//! checks each token as it comes, and goes on by itself from the first one that does not fit.

use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_generate::hooks::Constraint;

/// A form that looks on while the cloud writes.
pub struct FormGuard {
    form: Box<dyn Constraint>,
    /// The tokens that the form has taken.
    taken: Vec<TokenId>,
    /// Nothing may follow.
    complete: bool,
}

impl FormGuard {
    /// Makes a guard of a form that has taken nothing.
    pub fn new(form: impl Constraint + 'static) -> FormGuard {
        FormGuard { form: Box::new(form), taken: Vec::new(), complete: false }
    }

    /// Takes all tokens of the answer so far; returns whether the form allows them. Text of another
    /// vocabulary is encoded anew as it grows, so its last tokens may change.
    pub(super) fn takes(&mut self, answer: &[TokenId]) -> bool {
        let same = self.taken.iter().zip(answer).take_while(|(one, other)| one == other).count();
        let back = self.taken.len() - same;
        if back > 0 && self.form.take_back(back).is_err() {
            return false;
        }
        self.taken.truncate(same);
        self.complete &= back == 0;
        for &id in &answer[same..] {
            let Some(complete) = self.take(id) else { return false };
            self.complete = complete;
        }
        true
    }

    /// Takes a token; returns whether nothing may follow it, or `None` if the form does not allow it.
    fn take(&mut self, id: TokenId) -> Option<bool> {
        let allows = !self.complete && self.form.allowed().is_ok_and(|allowed| allowed.contains(id));
        let complete = allows.then(|| self.form.accept(id).ok()).flatten()?;
        self.taken.push(id);
        Some(complete)
    }

    /// Returns whether the answer may end here.
    pub(super) fn may_end(&mut self, tokenizer: &Tokenizer) -> bool {
        let ends = || (0..tokenizer.vocab_len() as TokenId).filter(|&id| tokenizer.is_end(id));
        self.complete || self.form.allowed().is_ok_and(|allowed| ends().any(|id| allowed.contains(id)))
    }
}
