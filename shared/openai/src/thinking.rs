//! Finds the thinking at the beginning of an answer while it streams: `<think>…</think>`, then the answer.
//!
//! Pure. Always: the result does not depend on how the text was cut. Text after the first `</think>` is not
//! looked at again. White space around the thinking belongs to neither part.

use crate::reply::Piece;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Separates the thinking from the answer while it streams.
#[derive(Debug)]
pub struct ThinkSplitter {
    state: State,
    /// Text that was not decided yet.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first character that is no white space.
    Start,
    /// Inside the thinking; `shown` if some of it was returned.
    Thinking { shown: bool },
    /// Between the thinking and the answer.
    Gap,
    /// In the answer.
    Answer,
}

impl ThinkSplitter {
    /// Makes a splitter. `is_thinking` says that the prompt holds the opening tag already.
    pub fn new(is_thinking: bool) -> ThinkSplitter {
        let state = if is_thinking { State::Thinking { shown: false } } else { State::Start };
        ThinkSplitter { state, held: String::new() }
    }

    /// Takes the next part of an answer, and returns the parts that are certain now. A part that is no text
    /// ends the thinking.
    pub fn split(&mut self, piece: Piece) -> Vec<Piece> {
        match piece {
            Piece::Text { text, logprobs } => {
                let mut out = self.push(&text);
                if logprobs.is_some() {
                    // They are of the token, also if its text is held back or is thinking.
                    match out.iter_mut().find_map(Piece::logprobs_mut) {
                        Some(free) => *free = logprobs,
                        None => out.push(Piece::Text { text: String::new(), logprobs }),
                    }
                }
                out
            }
            other => {
                let mut out = self.finish();
                out.push(other);
                out
            }
        }
    }

    /// Takes the next piece of text.
    fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        out
    }

    /// Ends the answer, and returns the text that was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let state = std::mem::replace(&mut self.state, State::Answer);
        let piece = match state {
            State::Start | State::Answer => Piece::text(held),
            State::Thinking { shown: true } => Piece::Thinking(held.trim_end().to_owned()),
            State::Thinking { shown: false } => Piece::Thinking(held.trim().to_owned()),
            State::Gap => return Vec::new(),
        };
        if piece.is_empty() { Vec::new() } else { vec![piece] }
    }

    /// Does one step; returns false if more text is needed.
    fn advance(&mut self, out: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::Thinking { shown: false };
                    return true;
                }
                if OPEN.starts_with(text) {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Thinking { shown } => self.think(shown, out),
            State::Gap => {
                self.held = self.held.trim_start().to_owned();
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Answer => {
                let text = std::mem::take(&mut self.held);
                if !text.is_empty() {
                    out.push(Piece::text(text));
                }
                false
            }
        }
    }

    /// Returns thinking up to the closing tag. Holds back what may begin the tag, and white space before it.
    fn think(&mut self, mut shown: bool, out: &mut Vec<Piece>) -> bool {
        if !shown {
            self.held = self.held.trim_start().to_owned();
        }
        let end = self.held.find(CLOSE);
        let certain = end.unwrap_or_else(|| {
            let begins = |&len: &usize| self.held.ends_with(&CLOSE[..len]);
            self.held.len() - (1..CLOSE.len()).rev().find(begins).unwrap_or(0)
        });
        let text = self.held[..certain].trim_end().to_owned();
        let rest = match end {
            Some(at) => self.held.split_off(at + CLOSE.len()),
            None => self.held.split_off(text.len()),
        };
        self.held = rest;
        if !text.is_empty() {
            shown = true;
            out.push(Piece::Thinking(text));
        }
        self.state = if end.is_some() { State::Gap } else { State::Thinking { shown } };
        end.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the thinking and the answer of a text that comes in pieces of this many characters.
    fn split(text: &str, is_thinking: bool, chars: usize) -> (String, String) {
        let mut splitter = ThinkSplitter::new(is_thinking);
        let letters: Vec<char> = text.chars().collect();
        let pieces = letters.chunks(chars).map(|piece| Piece::text(piece.iter().collect::<String>()));
        let mut found: Vec<Piece> = pieces.flat_map(|piece| splitter.split(piece)).collect();
        found.extend(splitter.finish());
        let (mut thinking, mut answer) = (String::new(), String::new());
        for piece in found {
            match piece {
                Piece::Thinking(text) => thinking.push_str(&text),
                Piece::Text { text, .. } => answer.push_str(&text),
                other => panic!("{other:?}"),
            }
        }
        (thinking, answer)
    }

    #[track_caller]
    fn check(text: &str, is_thinking: bool, thinking: &str, answer: &str) {
        for chars in [1, 2, 3, 7, 1000] {
            let want = (thinking.to_owned(), answer.to_owned());
            assert_eq!(split(text, is_thinking, chars), want, "{text:?} in pieces of {chars}");
        }
    }

    #[test]
    fn thinking_stands_at_the_beginning_only() {
        check("<think>\nLet me see.\n</think>\n\nSeven.", false, "Let me see.", "Seven.");
        check(" \n<think>a b</think>c", false, "a b", "c");
        check("Seven.", false, "", "Seven.");
        check(" Seven <think>no</think>", false, "", " Seven <think>no</think>");
        check("<thin ice>", false, "", "<thin ice>");
        check("<think>a </thin ice> b</think>c</think>", false, "a </thin ice> b", "c</think>");
        check("<think></think>\n", false, "", "");
        check("", false, "", "");
        check("<thi", false, "", "<thi");
    }

    #[test]
    fn thinking_may_have_begun_in_the_prompt_and_may_not_end() {
        check("Let me see.\n</think>\n\nSeven.", true, "Let me see.", "Seven.");
        check("\n Let me </th", true, "Let me </th", "");
        check("<think>Let me \n", false, "Let me", "");
    }

    #[test]
    fn a_call_ends_what_is_held_back() {
        let mut splitter = ThinkSplitter::new(false);
        assert!(splitter.split(Piece::text(" <th")).is_empty());
        let call = Piece::Call { index: 0, id: "c".into(), name: "f".into() };
        let found = splitter.split(call);
        let [Piece::Text { text, .. }, Piece::Call { .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(text, " <th");
        let found = splitter.split(Piece::text(" <think>"));
        assert!(matches!(&found[..], [Piece::Text { text, .. }] if text == " <think>"), "{found:?}");
    }
}
