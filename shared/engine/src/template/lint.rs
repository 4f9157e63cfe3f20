//! Checks of a template's tokens, before it is parsed.
//!
//! The parser and the compiler walk expressions recursively, and the compiler computes products of constants.
//! Limiting tokens here limits both. The limits are ten times those of any real template.

use minijinja::machinery::{Token, tokenize};

use super::TemplateError;
use super::rewrite::syntax;

/// The most tokens of one `{{ }}` or `{% %}`; limits the depth of an expression.
const TAG_TOKENS_MAX: usize = 2_000;
/// The most `elif` branches; each is one level deeper in the syntax tree.
const ELIFS_MAX: usize = 200;

/// Checks a source's tokens.
///
/// # Errors
/// If tokens are malformed or a limit is exceeded.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    let unsupported = |what| Err(TemplateError::Unsupported { what });
    let (mut in_tag, mut elifs) = (0, 0);
    let mut after_number_or_name = false;
    let mut after_mul = false;
    for token in tokenize(source, false, syntax()) {
        let (token, _) = token.map_err(|err| TemplateError::Parse(Box::new(err)))?;
        in_tag = match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => 0,
            _ => in_tag + 1,
        };
        elifs += usize::from(matches!(token, Token::Ident("elif")));
        if in_tag > TAG_TOKENS_MAX {
            return unsupported("an expression of thousands of tokens");
        }
        if elifs > ELIFS_MAX {
            return unsupported("hundreds of elif branches");
        }
        let is_literal_text =
            matches!(token, Token::Str(_) | Token::String(_) | Token::BracketOpen | Token::ParenOpen);
        if (after_mul && is_literal_text) || (matches!(token, Token::Mul) && !after_number_or_name) {
            // Products of constants are computed during compilation, before any budget counts.
            return unsupported("a product of literals, or `*` before an argument");
        }
        after_mul = matches!(token, Token::Mul);
        after_number_or_name = matches!(token, Token::Ident(_) | Token::Int(_) | Token::Float(_));
    }
    Ok(())
}
