//! Fields of a request that are taken and have no effect.
//!
//! A field that cannot make the answer wrong is taken, also one that nobody here knows. What has no effect is
//! named to the client: in the header [`HEADER`], and as `ignored` in the field `baton`. Never: holds a value
//! of a field, or more than [`NAMES_MAX`] names.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::IgnoredAny;
use serde_ignored::Path;

use crate::error::FieldError;

/// The header of a reply that names the fields without effect.
pub const HEADER: &str = "x-baton-ignored";

/// The most names; further ones are left out.
const NAMES_MAX: usize = 32;
/// The most characters of one name.
const NAME_CHARS_MAX: usize = 80;

/// Last parts of names that ask for nothing: they describe the caller or an earlier answer, or ask for what
/// the prefix cache does anyway.
const DESCRIPTIONS: &[&str] = &[
    "annotations",
    "cache_control",
    "citations",
    "data",
    "description",
    "encrypted_content",
    "extra_content",
    "id",
    "include_obfuscation",
    "index",
    "logprobs",
    "media_type",
    "metadata",
    "name",
    "phase",
    "prompt_cache_key",
    "prompt_cache_retention",
    "refusal",
    "safety_identifier",
    "service_tier",
    "signature",
    "status",
    "strict",
    "summary",
    "type",
    "user",
];

/// Fields of other engines whose silent loss would give another answer than the one that was asked for, and
/// what to send in their place.
const NEVER_IGNORED: &[(&str, &str)] = &[
    ("allowed_token_ids", "is not supported"),
    ("bad_words", "is not supported"),
    ("documents", "is not supported; put the texts into the messages"),
    ("grammar", "is not supported; use `response_format`"),
    ("guided_choice", "is not supported; use `response_format` with a schema that has an `enum`"),
    ("guided_grammar", "is not supported; use `response_format`"),
    ("guided_json", "is not supported; use `response_format`"),
    ("guided_regex", "is not supported; use `response_format` with a schema that has a `pattern`"),
    ("json_schema", "is not supported here; use `response_format`"),
    ("prompt_logprobs", "is not supported"),
    ("stop_token_ids", "is not supported; use `stop`"),
    ("structured_outputs", "is not supported; use `response_format`"),
];

/// Names of fields that were taken and have no effect, as paths without the indexes of lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignored(BTreeSet<String>);

impl Ignored {
    /// Adds a name.
    pub fn add(&mut self, name: impl AsRef<str>) {
        if self.0.len() < NAMES_MAX {
            let visible = name.as_ref().chars().filter(char::is_ascii_graphic).filter(|&c| c != ',');
            self.0.insert(visible.take(NAME_CHARS_MAX).collect());
        }
    }

    /// Adds a name below a place of the request, whose indexes of lists are left out.
    pub(crate) fn add_at(&mut self, place: &str, name: &str) {
        self.add(format!("{}.{name}", without_indexes(place)));
    }

    /// Adds what a reader has passed over below a place of the request (empty for the whole), unless it only
    /// describes something.
    pub(crate) fn add_path(&mut self, place: &str, path: &Path<'_>) {
        let mut name = without_indexes(place);
        write_path(path, &mut name);
        let last = name.rsplit('.').next().unwrap_or_default();
        if !DESCRIPTIONS.contains(&last) {
            self.add(name);
        }
    }

    /// Adds the names of another list, each changed by `rename`.
    pub(crate) fn extend(&mut self, more: Ignored, rename: impl Fn(&str) -> String) {
        more.0.iter().for_each(|name| self.add(rename(name)));
    }

    /// Removes fields of the request `json` that are null, because these ask for nothing.
    ///
    /// # Errors
    /// [`FieldError`] for a field whose silent loss would give a wrong answer.
    pub(crate) fn without_null(mut self, json: &[u8]) -> Result<Ignored, FieldError> {
        if !self.0.is_empty() {
            let fields: BTreeMap<String, Option<IgnoredAny>> =
                serde_json::from_slice(json).unwrap_or_default();
            self.0.retain(|name| !matches!(fields.get(name), Some(None)));
        }
        match NEVER_IGNORED.iter().find(|(name, _)| self.0.contains(*name)) {
            Some((name, message)) => Err(FieldError::new(*name, message)),
            None => Ok(self),
        }
    }

    /// Returns the names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns the value of the header [`HEADER`], or `None` if there is nothing to name.
    pub fn header(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.names().collect::<Vec<_>>().join(", "))
    }
}

/// Returns a path without the indexes of lists, e.g. `messages[].content[]`.
fn without_indexes(place: &str) -> String {
    let piece = |piece: &str| match piece.split_once(']') {
        Some((_, rest)) => format!("]{rest}"),
        None => piece.to_owned(),
    };
    place.split_inclusive('[').map(piece).collect()
}

/// Appends a path, e.g. `tools[].eager_input_streaming`.
fn write_path(path: &Path<'_>, out: &mut String) {
    match path {
        Path::Root => (),
        Path::Seq { parent, .. } => {
            write_path(parent, out);
            out.push_str("[]");
        }
        Path::Map { parent, key } => {
            write_path(parent, out);
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(key);
        }
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            write_path(parent, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_few_short_and_fit_a_header() {
        let mut ignored = Ignored::default();
        assert_eq!(ignored.header(), None);
        ignored.add("b\r\nx: 1");
        ignored.add("a,é");
        assert_eq!(ignored.header().as_deref(), Some("a, bx:1"));
        (0..99).for_each(|at| ignored.add(format!("{}{at}", "n".repeat(200))));
        assert!(ignored.names().all(|name| name.chars().count() <= NAME_CHARS_MAX));
        (0..99).for_each(|at| ignored.add(format!("m{at}")));
        assert_eq!(ignored.names().count(), NAMES_MAX);
    }
}
