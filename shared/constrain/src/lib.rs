//! Constrained decoding: answers that a JSON schema or a grammar allows, and no others. Tools as models know
//! them.
//!
//! Only `guided` uses llguidance; a build without the feature `llguidance` refuses instead. Programs use a
//! [`Constraint`], which says which tokens may come next and is told which one came.
//! Never: chooses a token (the sampler does, among the allowed ones), or lets a schema exceed its limits of
//! time and memory. Always: the same grammar and the same tokens give the same sets. An answer that ends by
//! itself is a sentence of the grammar. Sets contain whole tokens, as bytes, so one token may span several
//! parts of a grammar.

#[cfg(not(feature = "llguidance"))]
mod absent;
mod form;
#[cfg(feature = "llguidance")]
mod guided;
#[cfg(feature = "llguidance")]
mod thought;
pub mod tools;

use std::time::Duration;

use baton_engine::TokenSet;
use baton_engine::tokenizer::TokenId;
use baton_generate::hooks::{self, ConstraintFault};
use serde_json::{Map, Value, json};

#[cfg(not(feature = "llguidance"))]
pub use self::absent::{Constraint, Grammars};
pub use self::form::{FormError, constraint, thought_tokens};
#[cfg(feature = "llguidance")]
pub use self::guided::{Constraint, Grammars};

/// The most bytes of a schema or a grammar.
pub const GRAMMAR_BYTES_MAX: usize = 64 * 1024;

/// The form that an answer must have.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// JSON that matches this schema.
    Json(Value),
    /// Text of this grammar, in llguidance's Lark syntax.
    Lark(String),
}

/// Why an answer cannot be constrained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The schema is not an object.
    #[error("the schema must be an object")]
    NotASchema,
    /// The schema is too long.
    #[error("the schema has {bytes} bytes, the limit is {GRAMMAR_BYTES_MAX}")]
    TooLong {
        /// Its length, as JSON.
        bytes: usize,
    },
    /// It uses something that is not supported, contradicts itself, or is too complex.
    #[error("the schema cannot be followed: {message}")]
    Grammar {
        /// The library's message.
        message: String,
    },
    /// The program was built without the feature `constrain`.
    #[cfg(not(feature = "llguidance"))]
    #[error("this program was built without the feature `constrain`: it cannot hold answers to a form")]
    NotBuilt,
    /// The vocabulary has no token that ends an answer.
    #[error("the model has no token that ends an answer")]
    NoEnd,
    /// The grammar became too complex in the middle of an answer.
    #[error("the answer cannot go on as its schema demands: {message}")]
    Step {
        /// The library's message.
        message: String,
    },
}

/// Fixes the white space of the JSON: one space after `,` and `:` and no other, as in most JSON that models
/// have seen. If white space were free, a small model might write nothing else.
pub(crate) fn compact(schema: &Value) -> Result<Value, ConstraintError> {
    let mut fields: Map<String, Value> = schema.as_object().ok_or(ConstraintError::NotASchema)?.clone();
    let style = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    fields.insert("x-guidance".to_owned(), style);
    Ok(Value::Object(fields))
}

impl hooks::Constraint for Constraint {
    fn allowed(&mut self) -> Result<TokenSet, ConstraintFault> {
        Constraint::allowed(self).map_err(|err| ConstraintFault(err.to_string()))
    }

    fn accept(&mut self, id: TokenId) -> Result<bool, ConstraintFault> {
        Constraint::accept(self, id).map_err(|err| ConstraintFault(err.to_string()))
    }

    fn take_back(&mut self, tokens: usize) -> Result<(), ConstraintFault> {
        Constraint::take_back(self, tokens).map_err(|err| ConstraintFault(err.to_string()))
    }
}

/// Time spent on constraining one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConstraintCost {
    /// Time to compile the grammar.
    pub compiled: Duration,
    /// Time of all steps together.
    pub steps_elapsed: Duration,
    /// Number of steps.
    pub steps: u32,
}
