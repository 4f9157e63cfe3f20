//! Finds the texts of whole tokens (control or user-defined) in a text.

use std::collections::HashMap;
use std::ops::Range;

use regex::{Regex, RegexBuilder};

use super::TokenId;
use super::error::TokenizerError;

/// The largest compiled search; far above the few hundred control tokens of real models.
const SEARCH_BYTES_MAX: usize = 64 << 20;

/// A search for token texts: the leftmost match; of those at one position, the longest.
#[derive(Debug)]
pub(super) struct TokenSearch {
    regex: Option<Regex>,
    ids: HashMap<String, TokenId>,
}

impl TokenSearch {
    /// Builds the search; empty texts are left out.
    pub(super) fn new<'a>(
        tokens: impl Iterator<Item = (&'a str, TokenId)>,
    ) -> Result<TokenSearch, TokenizerError> {
        let ids: HashMap<String, TokenId> =
            tokens.filter(|(text, _)| !text.is_empty()).map(|(text, id)| (text.to_owned(), id)).collect();
        let mut texts: Vec<&str> = ids.keys().map(String::as_str).collect();
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        let pattern = texts.iter().map(|t| regex::escape(t)).collect::<Vec<_>>().join("|");
        let build = || RegexBuilder::new(&pattern).size_limit(SEARCH_BYTES_MAX).build();
        let regex = if texts.is_empty() { None } else { Some(build()) };
        let regex = regex.transpose().map_err(|err| TokenizerError::ControlTokens(Box::new(err)))?;
        Ok(TokenSearch { regex, ids })
    }

    /// Returns the first token of the text that begins at `at` or later, with its position.
    pub(super) fn find(&self, text: &str, at: usize) -> Option<(TokenId, Range<usize>)> {
        let found = self.regex.as_ref()?.find_at(text, at)?;
        Some((self.ids[found.as_str()], found.range()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_at_the_leftmost_place_is_found() {
        let search = TokenSearch::new([("<a>", 1), ("<a>b", 2), ("", 3), ("*", 4)].into_iter()).unwrap();
        let (mut at, mut found) = (0, Vec::new());
        while let Some((id, place)) = search.find("x<a>b<a>*y", at) {
            at = place.end;
            found.push((id, place));
        }
        assert_eq!(found, [(2, 1..5), (1, 5..8), (4, 8..9)]);
        assert_eq!(TokenSearch::new(std::iter::empty()).unwrap().find("x", 0), None);
    }
}
