//! Turns the pieces of an engine's reply into tokens of an answer.
//!
//! Pure. Always: at most as many tokens as were promised, one index each. The end token of a turn is never
//! written. Text and stop strings are those that this service's own engine would give for the same ids.

use std::sync::Arc;

use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::Tokenizer;
use baton_generate::answer::Written;
use baton_generate::text::AnswerText;

use super::fault::Fault;
use super::reply::{Finish, Piece};

/// The state of one answer.
#[derive(Debug)]
pub(super) struct Writer {
    tokenizer: Arc<Tokenizer>,
    text: AnswerText,
    /// Index of the next token.
    index: usize,
    written: usize,
    max_tokens: usize,
    /// Whether the answer is complete at its cap, because no device continues it.
    ends_at_cap: bool,
}

impl Writer {
    /// Begins an answer whose first token has this index.
    pub(super) fn new(
        tokenizer: &Arc<Tokenizer>,
        stop: StopStrings,
        index: usize,
        ends_at_cap: bool,
    ) -> Writer {
        let text = AnswerText::new(tokenizer.clone(), (), stop);
        Writer { tokenizer: tokenizer.clone(), text, index, written: 0, max_tokens: 0, ends_at_cap }
    }

    /// Sets how many tokens were promised.
    pub(super) fn promise(&mut self, max_tokens: usize) {
        self.max_tokens = max_tokens;
    }

    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// Takes a piece; returns how the answer ends, if it ends here. With `ids`, the ids decide and the text
    /// of the piece is not used.
    pub(super) fn take(
        &mut self,
        piece: &Piece,
        ids: bool,
        out: &mut Vec<Written>,
    ) -> Result<Option<Finish>, Fault> {
        if !ids {
            if piece.text.is_empty() {
                return Ok(None);
            }
            let push = self.text.push_text(&piece.text);
            return Ok(self.put(0, push.shown, push.stopped, out));
        }
        for &id in &piece.ids {
            if id as usize >= self.tokenizer.vocab_len() {
                let reason = format!("token id {id}, the vocabulary has {}", self.tokenizer.vocab_len());
                return Err(Fault::Garbled { reason });
            }
            if self.tokenizer.is_end(id) {
                self.end(out);
                return Ok(Some(Finish::Stop));
            }
            let push = self.text.push(id);
            if let Some(finish) = self.put(id, push.shown, push.stopped, out) {
                return Ok(Some(finish));
            }
        }
        Ok(None)
    }

    /// The engine ended the answer: gives out what was held back.
    pub(super) fn end(&mut self, out: &mut Vec<Written>) {
        let held = self.text.finish("").shown;
        if !held.is_empty() && self.written < self.max_tokens {
            let id = self.tokenizer.eos().unwrap_or_default();
            self.put(id, held, false, out);
        }
    }

    fn put(&mut self, id: u32, mut shown: String, stopped: bool, out: &mut Vec<Written>) -> Option<Finish> {
        let capped = self.written + 1 >= self.max_tokens;
        if capped && self.ends_at_cap {
            shown.push_str(&self.text.finish("").shown);
        } else if capped {
            shown.push_str(&self.text.at_handover());
        }
        out.push(Written { index: self.index, id, text: Some(shown) });
        self.index += 1;
        self.written += 1;
        match (stopped, capped) {
            (true, _) => Some(Finish::Stop),
            (false, true) => Some(Finish::Length),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_engine::Model;
    use baton_kernels_cpu::Format;
    use baton_synthetic::SyntheticModel;

    fn demo_tokenizer() -> Arc<Tokenizer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.gguf");
        std::fs::write(&path, SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap()).unwrap();
        Model::open(&path).unwrap().tokenizer().clone()
    }

    fn writer(stops: &[&str], max_tokens: usize) -> Writer {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut writer = Writer::new(&demo_tokenizer(), StopStrings::new(&stops).unwrap(), 0, false);
        writer.promise(max_tokens);
        writer
    }

    fn joined(out: &[Written]) -> String {
        out.iter().filter_map(|written| written.text.as_deref()).collect()
    }

    #[test]
    fn ids_become_tokens_up_to_the_cap() {
        let tokenizer = demo_tokenizer();
        let ids = tokenizer.encode("The lease ends in June, says the letter.");
        let (mut writer, mut out) = (writer(&[], ids.len()), Vec::new());
        let half = ids.len() / 2;
        let piece = |ids: &[u32]| Piece { ids: ids.to_vec(), text: "not used".into() };
        assert_eq!(writer.take(&piece(&ids[..half]), true, &mut out).unwrap(), None);
        let more = [&ids[half..], &ids[..3]].concat();
        assert_eq!(writer.take(&piece(&more), true, &mut out).unwrap(), Some(Finish::Length));
        assert_eq!(out.iter().map(|written| written.id).collect::<Vec<_>>(), ids);
        assert_eq!(
            out.iter().map(|written| written.index).collect::<Vec<_>>(),
            (0..ids.len()).collect::<Vec<_>>()
        );
        assert_eq!(joined(&out), "The lease ends in June, says the letter.");
    }

    #[test]
    fn the_end_token_is_not_written_and_ids_out_of_range_are_a_fault() {
        let tokenizer = demo_tokenizer();
        let mut ids = tokenizer.encode("Yes.");
        let written = ids.len();
        ids.push(tokenizer.eos().unwrap());
        let (mut one, mut out) = (writer(&[], 99), Vec::new());
        assert_eq!(
            one.take(&Piece { ids, text: String::new() }, true, &mut out).unwrap(),
            Some(Finish::Stop)
        );
        assert_eq!((out.len(), joined(&out).as_str()), (written, "Yes."));
        let beyond = Piece { ids: vec![u32::MAX], text: String::new() };
        assert_eq!(writer(&[], 9).take(&beyond, true, &mut out).unwrap_err().as_str(), "garbled");
    }

    #[test]
    fn a_stop_string_ends_text_and_nothing_behind_it_is_shown() {
        let (mut one, mut out) = (writer(&["END"], 99), Vec::new());
        for text in ["It is 4", " E", "N"] {
            assert_eq!(one.take(&Piece { ids: vec![], text: text.into() }, false, &mut out).unwrap(), None);
        }
        let last = Piece { ids: vec![], text: "D of it".into() };
        assert_eq!(one.take(&last, false, &mut out).unwrap(), Some(Finish::Stop));
        assert_eq!(joined(&out), "It is 4 ");
    }

    #[test]
    fn what_was_held_back_is_shown_at_the_end() {
        let (mut one, mut out) = (writer(&["END"], 99), Vec::new());
        one.take(&Piece { ids: vec![], text: "It is 4 EN".into() }, false, &mut out).unwrap();
        one.end(&mut out);
        assert_eq!((joined(&out).as_str(), one.written()), ("It is 4 EN", 2));
    }
}
