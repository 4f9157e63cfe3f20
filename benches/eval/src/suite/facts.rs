//! `facts`: generated documents that no training row held, and questions whose right answer is known word for word.
//!
//! Kinds: `short` (a value of one sentence), `long` (a section, word for word), `two_hop` (a value behind a link),
//! `paraphrase` (a value asked for in words that neither document nor training has), `distractor` (a value where all
//! sections state the same attributes).

use baton_corpus::{Document, Question, QuestionKind, crowded, document, paraphrased};
use baton_engine::Tokenizer;

use crate::case::Case;
use crate::metric::{Metric, TextMetric};
use crate::suite::{QUESTION_PREFIX, SYSTEM};

/// A kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A value of one sentence.
    Short,
    /// A section.
    Long,
    /// A value behind a link.
    TwoHop,
    /// A value, in other words.
    Paraphrase,
    /// A value among many of its like.
    Distractor,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Short, Self::Long, Self::TwoHop, Self::Paraphrase, Self::Distractor];

    /// Its name in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Distractor => "distractor",
            other => other.question().as_str(),
        }
    }

    /// The kind that its questions have in the corpus.
    fn question(self) -> QuestionKind {
        match self {
            Self::Short | Self::Distractor => QuestionKind::Short,
            Self::Long => QuestionKind::Long,
            Self::TwoHop => QuestionKind::TwoHop,
            Self::Paraphrase => QuestionKind::Paraphrase,
        }
    }

    /// The question of this kind that a document's own question gives.
    fn ask(self, question: &Question, index: usize) -> Option<Question> {
        match self.question() {
            QuestionKind::Paraphrase => paraphrased(question, index as u64),
            kind => (question.kind == kind).then(|| question.clone()),
        }
    }
}

/// What to generate.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kinds of questions.
    pub kinds: Vec<Kind>,
    /// Tokens of a document, about.
    pub lengths: Vec<usize>,
    /// Documents of each length.
    pub documents: usize,
    /// Most questions of a kind about one document.
    pub questions: usize,
    /// Seed of the first document; the next ones follow. Seeds of training have the topmost bit set.
    pub seed: u64,
}

/// Tokens that an answer may have beyond the right one.
const SPARE_TOKENS: usize = 16;

/// The cases, those about one document one after the other.
pub fn cases(options: &Options, tokenizer: &Tokenizer) -> Vec<Case> {
    let mut cases = Vec::new();
    for &length in &options.lengths {
        for index in 0..options.documents as u64 {
            let seed = options.seed.wrapping_add(index) & !baton_corpus::TRAINING_SEED_BIT;
            let (plain, dense): (Vec<Kind>, Vec<Kind>) =
                options.kinds.iter().partition(|kind| **kind != Kind::Distractor);
            for (kinds, generate) in [(plain, document as fn(u64, usize) -> Document), (dense, crowded)] {
                if kinds.is_empty() {
                    continue;
                }
                let document = generate(seed, words_for(length, seed, generate, tokenizer));
                for kind in kinds {
                    cases.extend(about(&document, kind, (length, seed), options.questions, tokenizer));
                }
            }
        }
    }
    cases
}

/// Words that give a document of about `length` tokens.
fn words_for(length: usize, seed: u64, generate: fn(u64, usize) -> Document, tokenizer: &Tokenizer) -> usize {
    let words = length / 2;
    let tokens = tokenizer.encode(&generate(seed, words).text).len();
    (words * length / tokens.max(1)).max(1)
}

fn about(
    document: &Document,
    kind: Kind,
    (length, seed): (usize, u64),
    questions: usize,
    tokenizer: &Tokenizer,
) -> Vec<Case> {
    let asked = document.questions.iter().enumerate().filter_map(|(i, question)| kind.ask(question, i));
    asked
        .take(questions)
        .enumerate()
        .map(|(index, question)| {
            // A model cannot be asked to answer in the form that it was not asked in.
            let value = question.asked.as_ref().filter(|_| kind == Kind::Paraphrase);
            let metric = if value.is_some() { TextMetric::ContainsAll } else { TextMetric::Exact };
            Case {
                id: format!("facts/{}/{length}/{seed}/{index}", kind.as_str()),
                suite: "facts",
                group: kind.as_str().to_owned(),
                length,
                cluster: seed,
                system: SYSTEM.to_owned(),
                lead: String::new(),
                content: document.text.clone(),
                question: format!("{QUESTION_PREFIX}{}", question.text),
                max_tokens: tokenizer.encode(&question.answer).len() + SPARE_TOKENS,
                answers: vec![value.map_or_else(|| question.answer.clone(), |asked| asked.value.clone())],
                gold: question.gold,
                metric: Metric::Text(metric),
                classes: Vec::new(),
            }
        })
        .collect()
}
