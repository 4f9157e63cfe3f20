//! The thinking before the form of an answer, if the prompt has opened it: free text up to its closing tag,
//! and then the form.
//!
//! Always: a thought that is as long as it may be is closed, so that the form fits into the answer.

use baton_engine::tokenizer::TokenId;

use crate::{ConstraintError, Grammar, compact};

/// What closes a thought.
const CLOSE: &str = "</think>";

impl Grammar {
    /// Returns the grammar of a thought that ends by itself, with this form behind it.
    pub(crate) fn behind_thought(&self) -> Result<Grammar, ConstraintError> {
        // Lazy: the shortest text that ends with the tag.
        let lead = "start: thought GAP? form\nthought[lazy]: /(.|\\n)*/ \"</think>\"\nGAP: /[ \\n]{1,2}/\n";
        Ok(Grammar::Lark(format!("{lead}{}", self.form()?)))
    }

    /// Returns the grammar of the end of a thought, with this form behind it.
    pub(crate) fn behind_closing_tag(&self) -> Result<Grammar, ConstraintError> {
        Ok(Grammar::Lark(format!("start: \"\\n{CLOSE}\\n\\n\" form\n{}", self.form()?)))
    }

    /// Returns its rules in Lark, which begin at `form`.
    fn form(&self) -> Result<String, ConstraintError> {
        match self {
            Grammar::Json(schema) => Ok(format!("form: %json {}\n", compact(schema)?)),
            Grammar::Lark(text) => Ok(text.replacen("start:", "form:", 1)),
        }
    }
}

/// The tokens of a thought.
#[derive(Debug)]
pub(crate) struct Thought {
    tokens_max: usize,
    /// The tokens so far; those behind the closing tag are only counted.
    ids: Vec<TokenId>,
    is_closed: bool,
    /// Tokens behind the thought.
    behind: usize,
}

/// What is to be done with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Continue,
    /// The thought is as long as it may be, and must be closed now.
    Close,
}

impl Thought {
    /// Makes a thought of at most so many tokens.
    pub(crate) fn new(tokens_max: usize) -> Thought {
        Thought { tokens_max, ids: Vec::new(), is_closed: false, behind: 0 }
    }

    /// Takes the next token. `text` returns the bytes of a token.
    pub(crate) fn accept<'a>(&mut self, id: TokenId, text: impl Fn(TokenId) -> &'a [u8]) -> Step {
        if self.is_closed || self.ids.len() == self.tokens_max {
            self.behind += 1;
            return Step::Continue;
        }
        self.ids.push(id);
        let mut tail: Vec<u8> = Vec::new();
        for &id in self.ids.iter().rev() {
            let bytes = text(id);
            tail.splice(0..0, bytes.iter().copied());
            if tail.len() >= CLOSE.len() + text(*self.ids.last().unwrap_or(&id)).len() {
                break;
            }
        }
        self.is_closed = tail.windows(CLOSE.len()).any(|window| window == CLOSE.as_bytes());
        if !self.is_closed && self.ids.len() == self.tokens_max { Step::Close } else { Step::Continue }
    }

    /// Goes back by so many tokens. Returns how many of them were behind a tag that was forced, and how many
    /// before it.
    pub(crate) fn take_back(&mut self, tokens: usize) -> (usize, usize) {
        let behind = tokens.min(self.behind);
        let before = tokens - behind;
        self.behind -= behind;
        let was_forced = !self.is_closed && self.ids.len() == self.tokens_max;
        if before > 0 {
            self.ids.truncate(self.ids.len().saturating_sub(before));
            self.is_closed = false;
        }
        if was_forced { (behind, before) } else { (0, tokens) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thought_tokens;

    const WORDS: [&[u8]; 5] = [b"hm", b" </th", b"ink>\n", b"{}", b"</think>"];

    fn word(id: TokenId) -> &'static [u8] {
        WORDS[id as usize]
    }

    #[test]
    fn a_thought_ends_with_its_tag_however_the_tokens_lie() {
        let mut thought = Thought::new(9);
        for (id, closed) in [(0, false), (1, false), (2, true), (3, true)] {
            assert_eq!(thought.accept(id, word), Step::Continue);
            assert_eq!(thought.is_closed, closed, "{id}");
        }
        assert_eq!(thought.take_back(2), (0, 2));
        assert!(!thought.is_closed);
        assert_eq!(thought.accept(2, word), Step::Continue);
        assert!(thought.is_closed);
    }

    #[test]
    fn a_long_thought_is_closed_and_opened_again_if_it_is_taken_back() {
        let mut thought = Thought::new(2);
        assert_eq!(thought.accept(0, word), Step::Continue);
        assert_eq!(thought.accept(0, word), Step::Close);
        assert_eq!(thought.accept(4, word), Step::Continue);
        assert_eq!(thought.accept(3, word), Step::Continue);
        assert_eq!(thought.take_back(1), (1, 0));
        assert_eq!(thought.take_back(2), (1, 1));
        assert_eq!(thought.accept(0, word), Step::Close);
        assert_eq!((thought_tokens(255), thought_tokens(512)), (0, 256));
    }
}
