//! Constrained decoding: answers that a JSON schema or a grammar allows, and no others.
//!
//! The one place that knows llguidance. The rest sees a [`Constraint`]: which tokens may come next, and that one came.
//! Never: chooses a token (the sampler does, among those allowed), or lets a schema cost more than its limits.
//! Always: the same grammar and the same tokens give the same sets; an answer that ends by itself is a sentence of the
//! grammar. Sets are those of whole tokens over bytes, so that a token may run across the parts of a grammar.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::TokenSet;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

/// The most bytes of a schema or a grammar.
pub const GRAMMAR_BYTES_MAX: usize = 64 * 1024;
/// Longer tokens stay out of the trie, whose nodes count their depth in ten bits.
const TOKEN_BYTES_MAX: usize = 512;
/// What a library's message may add to an error.
const MESSAGE_CHARS_MAX: usize = 300;

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// JSON that this schema allows.
    Json(Value),
    /// Text of this grammar, in llguidance's Lark syntax.
    Lark(String),
}

/// Why an answer cannot be constrained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The schema is no object.
    #[error("the schema must be an object")]
    NotASchema,
    /// The schema is too long.
    #[error("the schema has {bytes} bytes, the limit is {GRAMMAR_BYTES_MAX}")]
    TooLong {
        /// Its length, as JSON.
        bytes: usize,
    },
    /// It uses what cannot be followed, contradicts itself, or is too complex.
    #[error("the schema cannot be followed: {message}")]
    Grammar {
        /// What the library says.
        message: String,
    },
    /// The vocabulary has no token that ends an answer.
    #[error("the model has no token that ends an answer")]
    NoEnd,
    /// The grammar became too complex in the middle of an answer.
    #[error("the answer cannot go on as its schema demands: {message}")]
    Step {
        /// What the library says.
        message: String,
    },
}

/// Compiles grammars for one vocabulary; made once for each model.
pub struct Grammars {
    factory: ParserFactory,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// Sorts the vocabulary into a trie over bytes; some 100 ms for 128,000 tokens.
    ///
    /// # Errors
    /// [`ConstraintError::NoEnd`], or what the library says of the vocabulary.
    pub fn new(tokenizer: &Tokenizer) -> Result<Grammars, ConstraintError> {
        let vocab_len = u32::try_from(tokenizer.vocab_len()).expect("ids have 32 bits");
        let ends: Vec<TokenId> = (0..vocab_len).filter(|&id| tokenizer.is_end(id)).collect();
        let first = tokenizer.eos().filter(|id| ends.contains(id)).or(ends.first().copied());
        let first = first.ok_or(ConstraintError::NoEnd)?;
        let words: Vec<Vec<u8>> = (0..vocab_len).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab_len, first), &words).with_eos_tokens(&ends);
        // Not canonical: what a grammar forces is still sampled token by token, as the model would write it.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|err| rejected(&err))?;
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = 500_000;
        // Some kB each: 30 MiB for one answer at most.
        limits.max_lexer_states = 16_000;
        limits.max_grammar_size = 100_000;
        limits.verbose_errors = false;
        factory.quiet();
        Ok(Grammars { factory })
    }

    /// A constraint for one answer. Bounded: milliseconds for real schemas, at most some hundred.
    ///
    /// # Errors
    /// [`ConstraintError`], naming what the grammar asks for.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, ConstraintError> {
        let started = Instant::now();
        let bytes = match grammar {
            Grammar::Json(schema) => written_bytes(schema),
            Grammar::Lark(text) => text.len(),
        };
        if bytes > GRAMMAR_BYTES_MAX {
            return Err(ConstraintError::TooLong { bytes });
        }
        let grammar = match grammar {
            Grammar::Json(schema) => TopLevelGrammar::from_json_schema(compact(schema)?),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        // The compiler is total by its own account; a panic would be its bug and must not be ours.
        let parser = catch_unwind(AssertUnwindSafe(|| self.factory.create_parser(grammar)));
        let parser =
            parser.map_err(|_| ConstraintError::Grammar { message: "the compiler failed".to_owned() })?;
        let mut matcher = Matcher::new(Ok(parser.map_err(|err| rejected(&err))?));
        if let Some(message) = matcher.get_error() {
            return Err(ConstraintError::Grammar { message: shortened(&message) });
        }
        // A grammar that allows nothing at all is refused now, not in the first pass.
        let allowed = matcher.compute_mask_or_eos().map_err(|err| rejected(&err))?;
        if allowed.is_zero() {
            return Err(ConstraintError::Grammar { message: "it allows no answer".to_owned() });
        }
        Ok(Constraint { matcher, compiled: started.elapsed(), spent: Duration::ZERO, steps: 0 })
    }
}

/// A token as the trie has it: what its bytes are, control tokens apart from every text.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    if bytes.is_empty() || bytes.len() > TOKEN_BYTES_MAX {
        return Vec::new();
    }
    if tokenizer.is_control(id) || tokenizer.is_end(id) {
        return [&[marker], bytes].concat();
    }
    // Text never begins with this byte; a token that does must not pass for a control token.
    if bytes[0] == marker && bytes.len() > 1 { Vec::new() } else { bytes.to_vec() }
}

/// The schema, written in one way: no white space but one space after `,` and `:`, as most JSON that models have seen.
/// White space as they like would let a small model go on with nothing else.
pub(crate) fn compact(schema: &Value) -> Result<Value, ConstraintError> {
    let mut fields: Map<String, Value> = schema.as_object().ok_or(ConstraintError::NotASchema)?.clone();
    let style = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    fields.insert("x-guidance".to_owned(), style);
    Ok(Value::Object(fields))
}

/// Bytes of the schema as JSON, counted without writing it down: it may be as long as a body.
fn written_bytes(schema: &Value) -> usize {
    struct Count(usize);

    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    serde_json::to_writer(&mut count, schema).expect("a value is JSON, and counting cannot fail");
    count.0
}

fn rejected(err: &impl ToString) -> ConstraintError {
    ConstraintError::Grammar { message: shortened(&err.to_string()) }
}

/// The first line of a library's message, bounded.
fn shortened(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(MESSAGE_CHARS_MAX).collect()
}

/// How far one answer is in its grammar.
pub struct Constraint {
    matcher: Matcher,
    compiled: Duration,
    spent: Duration,
    steps: u32,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("steps", &self.steps).finish_non_exhaustive()
    }
}

/// What constraining an answer has cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConstraintCost {
    /// Compiling the grammar.
    pub compiled: Duration,
    /// All steps together.
    pub steps_elapsed: Duration,
    /// Their number.
    pub steps: u32,
}

impl Constraint {
    /// The tokens that may come next, those that end the answer among them where it may end here.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] where the grammar has become too complex to go on.
    pub fn allowed(&mut self) -> Result<TokenSet, ConstraintError> {
        let started = Instant::now();
        let mask = self.matcher.compute_mask_or_eos().map_err(|err| stuck(&err))?;
        self.spent += started.elapsed();
        self.steps += 1;
        Ok(TokenSet::from_words(mask.as_slice().to_vec()))
    }

    /// Takes the token that came; true where nothing may follow it.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] for a token that was not allowed.
    pub fn accept(&mut self, id: TokenId) -> Result<bool, ConstraintError> {
        let started = Instant::now();
        self.matcher.consume_token(id).map_err(|err| stuck(&err))?;
        self.spent += started.elapsed();
        Ok(self.matcher.is_stopped())
    }

    /// What it has cost so far.
    pub fn cost(&self) -> ConstraintCost {
        ConstraintCost { compiled: self.compiled, steps_elapsed: self.spent, steps: self.steps }
    }
}

fn stuck(err: &impl ToString) -> ConstraintError {
    ConstraintError::Step { message: shortened(&err.to_string()) }
}

#[cfg(test)]
mod tests;
