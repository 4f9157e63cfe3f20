//! `facts`: generated documents that are not in the training data, with questions whose right answers are
//! known exactly.
//!
//! Kinds:
//!
//! - `short`: a value in one sentence;
//! - `long`: a whole section, verbatim;
//! - `two_hop`: a value behind a link;
//! - `paraphrase`: a value asked for in words that are in neither document nor training data;
//! - `distractor`: a value in a document whose sections all have the same attributes.

use baton_corpus::{Document, Question, QuestionKind, crowded, document, paraphrased};
use baton_engine::Tokenizer;

use crate::case::Case;
use crate::metric::{Metric, TextMetric};
use crate::suite::{QUESTION_PREFIX, SYSTEM};

/// A kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A value in one sentence.
    Short,
    /// A whole section, verbatim.
    Long,
    /// A value behind a link.
    TwoHop,
    /// A value, asked for in other words.
    Paraphrase,
    /// A value among many similar ones.
    Distractor,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Short, Self::Long, Self::TwoHop, Self::Paraphrase, Self::Distractor];

    /// Returns its name in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Distractor => "distractor",
            other => other.question().as_str(),
        }
    }

    /// Returns the kind of its questions in the corpus.
    fn question(self) -> QuestionKind {
        match self {
            Self::Short | Self::Distractor => QuestionKind::Short,
            Self::Long => QuestionKind::Long,
            Self::TwoHop => QuestionKind::TwoHop,
            Self::Paraphrase => QuestionKind::Paraphrase,
        }
    }

    /// Makes a question of this kind from a question of the document, or returns `None` if that is not
    /// possible.
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
    /// Approximate lengths of the documents, in tokens.
    pub lengths: Vec<usize>,
    /// Number of documents of each length.
    pub documents: usize,
    /// Maximum number of questions of one kind about one document.
    pub questions: usize,
    /// Seed of the first document; the next documents have the next seeds. Training uses seeds with the
    /// highest bit set.
    pub seed: u64,
}

/// Number of tokens that an answer may be longer than the right one.
const SPARE_TOKENS: usize = 16;

/// Makes the cases; cases about one document are adjacent.
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

/// Returns the number of words that gives a document of about `length` tokens.
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
            // An answer to a paraphrased question may have another form, so it only has to contain the value.
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
