//! Finds a generated document of a wanted length, with a question whose answer is known word for word.

use anyhow::bail;
use baton_corpus::{Document, Question, QuestionKind, document};
use baton_engine::Tokenizer;

/// A document and a question for the demo and the suites.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The document as generated.
    pub document: Document,
    /// The question, with its only correct answer.
    pub question: Question,
    /// Length of the document's text in tokens of the cloud's tokenizer.
    pub document_tokens: usize,
    /// Length of the answer in the same tokens.
    pub answer_tokens: usize,
}

/// What the document and its question must be like.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Seed of the document.
    pub seed: u64,
    /// Least length of the document in tokens.
    pub document_tokens_min: usize,
    /// Least length of the answer in tokens.
    pub answer_tokens_min: usize,
    /// What the answer looks like.
    pub kind: QuestionKind,
}

/// Finds the shortest document of the seed, in steps of a few words, that is long enough and has such a
/// question.
///
/// # Errors
/// Fails if no length up to eight times the wanted one gives such a document.
pub fn ask(tokenizer: &Tokenizer, wanted: Wanted) -> anyhow::Result<Asked> {
    let Wanted { seed, document_tokens_min, answer_tokens_min, kind } = wanted;
    let tokens = |text: &str| tokenizer.encode(text).len();
    let mut words = document_tokens_min / 3;
    while words <= document_tokens_min * 8 {
        let document = document(seed, words);
        let document_tokens = tokens(&document.text);
        if document_tokens < document_tokens_min {
            words += ((document_tokens_min - document_tokens) / 3).max(8);
            continue;
        }
        let fits =
            |question: &&Question| question.kind == kind && tokens(&question.answer) >= answer_tokens_min;
        if let Some(question) = document.questions.iter().find(fits).cloned() {
            let answer_tokens = tokens(&question.answer);
            return Ok(Asked { document, question, document_tokens, answer_tokens });
        }
        words += 40;
    }
    bail!(
        "seed {seed} gives no document of at least {document_tokens_min} tokens with a {} answer of at least {answer_tokens_min}",
        kind.as_str()
    );
}
