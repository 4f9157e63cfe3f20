//! Finding the texts of whole tokens (control or user-defined) in text.

use regex::{Regex, RegexBuilder};
use std::collections::HashMap;

use super::TokenId;
use super::error::TokenizerError;

/// Largest compiled search; far above the few hundred control tokens of real models.
const SEARCH_BYTES_MAX: usize = 64 << 20;

/// A search for token texts: leftmost first, the longest of those that begin at one place.
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

    /// Cuts text at the tokens found: calls `part` with each token or piece between, in order.
    pub(super) fn cut<'t>(&self, text: &'t str, mut part: impl FnMut(Part<'t>)) {
        let mut at = 0;
        for found in self.regex.iter().flat_map(|r| r.find_iter(text)) {
            if found.start() > at {
                part(Part::Text(&text[at..found.start()]));
            }
            part(Part::Token(self.ids[found.as_str()], found.len()));
            at = found.end();
        }
        if at < text.len() {
            part(Part::Text(&text[at..]));
        }
    }
}

/// A piece of text between tokens, or a token and its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'t> {
    /// Text that is not one of the tokens.
    Text(&'t str),
    /// A token found whole.
    Token(TokenId, usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_at_the_leftmost_place_is_found() {
        let search = TokenSearch::new([("<a>", 1), ("<a>b", 2), ("", 3), ("*", 4)].into_iter()).unwrap();
        let mut parts = Vec::new();
        search.cut("x<a>b<a>*y", |p| parts.push(p));
        use Part::{Text, Token};
        assert_eq!(parts, [Text("x"), Token(2, 4), Token(1, 3), Token(4, 1), Text("y")]);
        let mut none = 0;
        TokenSearch::new(std::iter::empty()).unwrap().cut("", |_| none += 1);
        assert_eq!(none, 0);
    }
}
