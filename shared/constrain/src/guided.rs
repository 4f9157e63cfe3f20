//! Constraints by llguidance: grammars are compiled to parsers that say which tokens fit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::TokenSet;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use super::thought::{Step, Thought};
use super::{ConstraintCost, ConstraintError, GRAMMAR_BYTES_MAX, Grammar, compact};

/// Longer tokens are left out of the trie, because its nodes store their depth in ten bits.
const TOKEN_BYTES_MAX: usize = 512;
/// The most characters of a library's message in an error.
const MESSAGE_CHARS_MAX: usize = 300;

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
    /// Sorts the vocabulary into a trie over bytes. Takes about 100 ms for 128,000 tokens.
    ///
    /// # Errors
    /// [`ConstraintError::NoEnd`], or [`ConstraintError::Grammar`] if the library refuses the vocabulary.
    pub fn new(tokenizer: &Tokenizer) -> Result<Grammars, ConstraintError> {
        let vocab_len = u32::try_from(tokenizer.vocab_len()).expect("ids have 32 bits");
        let ends: Vec<TokenId> = (0..vocab_len).filter(|&id| tokenizer.is_end(id)).collect();
        let first = tokenizer.eos().filter(|id| ends.contains(id)).or(ends.first().copied());
        let first = first.ok_or(ConstraintError::NoEnd)?;
        let words: Vec<Vec<u8>> = (0..vocab_len).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab_len, first), &words).with_eos_tokens(&ends);
        // Not canonical: text that a grammar forces is still sampled token by token, as the model would write
        // it.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|err| rejected(&err))?;
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = 500_000;
        // A state takes some kB, so one answer takes at most 30 MiB.
        limits.max_lexer_states = 16_000;
        limits.max_grammar_size = 100_000;
        limits.verbose_errors = false;
        factory.quiet();
        Ok(Grammars { factory })
    }

    /// Compiles a constraint for one answer. Takes milliseconds for usual schemas, and at most a few hundred.
    /// `thought_tokens` is the most tokens of the thinking that the prompt has opened, or `None` if it has
    /// opened none.
    ///
    /// # Errors
    /// [`ConstraintError`] with what the grammar asks for.
    pub fn compile(
        &self,
        grammar: &Grammar,
        thought_tokens: Option<usize>,
    ) -> Result<Constraint, ConstraintError> {
        let started = Instant::now();
        let (matcher, thought) = match thought_tokens {
            None => (self.matcher(grammar)?, None),
            Some(0) => (self.matcher(&grammar.behind_closing_tag()?)?, None),
            Some(tokens_max) => {
                let forced = self.matcher(&grammar.behind_closing_tag()?)?;
                let thinking = Thinking { thought: Thought::new(tokens_max), forced, free: None };
                (self.matcher(&grammar.behind_thought()?)?, Some(Box::new(thinking)))
            }
        };
        let env = self.factory.tok_env().clone();
        Ok(Constraint { matcher, thought, env, compiled: started.elapsed(), spent: Duration::ZERO, steps: 0 })
    }

    fn matcher(&self, grammar: &Grammar) -> Result<Matcher, ConstraintError> {
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
        // The compiler should never panic. If it does, only this request fails.
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
        Ok(matcher)
    }
}

/// Returns a token's bytes for the trie. A marker separates control tokens from all texts.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    if bytes.is_empty() || bytes.len() > TOKEN_BYTES_MAX {
        return Vec::new();
    }
    if tokenizer.is_control(id) || tokenizer.is_end(id) {
        return [&[marker], bytes].concat();
    }
    // No text begins with the marker. A token that does is left out, because it would look like a control
    // token.
    if bytes[0] == marker && bytes.len() > 1 { Vec::new() } else { bytes.to_vec() }
}

/// Counts the bytes of the schema as JSON without storing the text, which may be as long as a body.
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

/// Returns the first line of a library's message, shortened.
fn shortened(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(MESSAGE_CHARS_MAX).collect()
}

/// The thinking before the form.
struct Thinking {
    thought: Thought,
    /// The end of a thought and the form, as a thought is closed that is too long.
    forced: Matcher,
    /// The state before that, once it has happened.
    free: Option<Matcher>,
}

/// The state of one answer in its grammar.
pub struct Constraint {
    matcher: Matcher,
    /// The thinking before the form, if some may come.
    thought: Option<Box<Thinking>>,
    env: TokEnv,
    compiled: Duration,
    spent: Duration,
    steps: u32,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl Constraint {
    /// Returns the tokens that may come next. They include end tokens if the answer may end here.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] if the grammar has become too complex to continue.
    pub fn allowed(&mut self) -> Result<TokenSet, ConstraintError> {
        let started = Instant::now();
        let mask = self.matcher.compute_mask_or_eos().map_err(|err| stuck(&err))?;
        self.spent += started.elapsed();
        self.steps += 1;
        Ok(TokenSet::from_words(mask.as_slice().to_vec()))
    }

    /// Takes the token that came; returns true if nothing may follow it.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] for a token that was not allowed.
    pub fn accept(&mut self, id: TokenId) -> Result<bool, ConstraintError> {
        let started = Instant::now();
        self.matcher.consume_token(id).map_err(|err| stuck(&err))?;
        if let Some(thinking) = &mut self.thought {
            let trie = self.env.tok_trie();
            if thinking.thought.accept(id, |id| trie.token(id)) == Step::Close {
                let forced = thinking.forced.deep_clone();
                thinking.free = Some(std::mem::replace(&mut self.matcher, forced));
            }
        }
        self.spent += started.elapsed();
        Ok(self.matcher.is_stopped())
    }

    /// Goes back to the state before the last `tokens` tokens.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] if fewer tokens came.
    pub fn take_back(&mut self, tokens: usize) -> Result<(), ConstraintError> {
        let mut back = tokens;
        if let Some(thinking) = &mut self.thought {
            let (behind, before) = thinking.thought.take_back(tokens);
            back = before;
            match thinking.free.take_if(|_| before > 0) {
                Some(free) => self.matcher = free,
                None => back += behind,
            }
        }
        self.matcher.rollback(back).map_err(|err| stuck(&err))
    }

    /// Returns the time spent so far.
    pub fn cost(&self) -> ConstraintCost {
        ConstraintCost { compiled: self.compiled, steps_elapsed: self.spent, steps: self.steps }
    }
}

/// Tells what the constraint has cost, when its answer is over.
impl Drop for Constraint {
    fn drop(&mut self) {
        let cost = self.cost();
        tracing::debug!(
            compile_us = cost.compiled.as_micros() as u64,
            steps_us = cost.steps_elapsed.as_micros() as u64,
            steps = cost.steps,
            "an answer was constrained"
        );
    }
}

fn stuck(err: &impl ToString) -> ConstraintError {
    ConstraintError::Step { message: shortened(&err.to_string()) }
}

#[cfg(test)]
mod tests;
