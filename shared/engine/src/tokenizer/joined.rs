//! Encodes the pieces of a prompt as one text: the template's own text and user text, side by side.
//!
//! A model is trained on whole texts, in which a word may begin in the template (its space) and end in a
//! message. So words and merges cross the borders of pieces. Texts of control tokens do not: they are found
//! only inside a template's piece. User-defined tokens are found everywhere, also across borders.

use std::ops::Range;

use super::special::TokenSearch;
use super::strip::Strips;
use super::{Encoder, TokenId, Tokenizer};

/// A piece of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    /// Whether the text is the template's own, so that texts of control tokens in it become control tokens.
    pub(crate) is_template: bool,
}

/// A token and the bytes of the joined pieces that it stands for. The ranges are in order and do not overlap.
/// They leave out white space removed by a control token and bytes without a token. For SentencePiece's space
/// before a text they are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) id: TokenId,
    pub(crate) bytes: Range<usize>,
}

impl Tokenizer {
    /// Returns the tokens of the pieces, encoded as one text.
    pub(crate) fn encode_pieces(&self, pieces: &[Piece<'_>]) -> Vec<Placed> {
        self.encode_pieces_from(pieces, true)
    }

    /// As [`Self::encode_pieces`]; `space_first` says whether SentencePiece may add a space before the text.
    pub(super) fn encode_pieces_from(&self, pieces: &[Piece<'_>], space_first: bool) -> Vec<Placed> {
        let mut placed =
            Vec::with_capacity(pieces.iter().map(|piece| piece.text.len()).sum::<usize>() / 4 + 1);
        if let Encoder::Json(encoder) = &self.encoder {
            // The library finds added tokens itself, one piece at a time.
            let mut at = 0;
            for piece in pieces {
                encoder.encode(piece.text, &self.vocab, piece.is_template, &mut |id, len| {
                    placed.push(Placed { id, bytes: at..at + len });
                    at += len;
                });
            }
            return placed;
        }
        let (text, template) = join(pieces);
        let mut found = WholeTokens::new(self, &text, template);
        let (mut at, mut space) = (0, space_first);
        while let Some((id, bytes)) = found.next(at) {
            let end = self.strips.before(id, &text[at..bytes.start]) + at;
            self.encode_text(&text, at..end, space, &mut placed);
            at = bytes.end + self.strips.after(id, &text[bytes.end..]);
            placed.push(Placed { id, bytes });
            space = true;
        }
        self.encode_text(&text, at..text.len(), space, &mut placed);
        placed
    }

    fn encode_text(&self, text: &str, range: Range<usize>, space: bool, placed: &mut Vec<Placed>) {
        let mut at = range.start;
        let mut token = |id, len| {
            placed.push(Placed { id, bytes: at..at + len });
            at += len;
        };
        match &self.encoder {
            Encoder::ByteLevel(encoder) => encoder.encode(&text[range], &mut token),
            Encoder::Scored(encoder) => encoder.encode(&text[range], self.space_prefix && space, &mut token),
            Encoder::Chars(encoder) => encoder.encode(&text[range], &mut token),
            Encoder::Json(_) => unreachable!("the caller sees to it"),
        }
    }
}

/// Joins the pieces to one text; returns the ranges of the template's pieces, with neighbours merged.
fn join(pieces: &[Piece<'_>]) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(pieces.iter().map(|piece| piece.text.len()).sum());
    let mut template: Vec<Range<usize>> = Vec::new();
    for piece in pieces {
        let start = text.len();
        text.push_str(piece.text);
        match template.last_mut() {
            Some(last) if piece.is_template && last.end == start => last.end = text.len(),
            _ if piece.is_template => template.push(start..text.len()),
            _ => {}
        }
    }
    (text, template)
}

/// Finds whole tokens from left to right: user-defined ones everywhere, control tokens in the template's
/// pieces.
///
/// A result is kept until it is passed, so that all searches together read the text once.
struct WholeTokens<'a> {
    text: &'a str,
    template: Vec<Range<usize>>,
    in_templates: &'a TokenSearch,
    in_text: &'a TokenSearch,
    /// The next token of the template's pieces, and the first piece that is not searched completely.
    control: Option<(TokenId, Range<usize>)>,
    piece: usize,
    user_defined: Option<(TokenId, Range<usize>)>,
    /// Whether the text holds no more user-defined tokens.
    text_is_done: bool,
}

impl<'a> WholeTokens<'a> {
    fn new(tokenizer: &'a Tokenizer, text: &'a str, template: Vec<Range<usize>>) -> WholeTokens<'a> {
        WholeTokens {
            text,
            template,
            in_templates: &tokenizer.in_templates,
            in_text: &tokenizer.in_text,
            control: None,
            piece: 0,
            user_defined: None,
            text_is_done: false,
        }
    }

    /// Returns the first token that begins at `at` or later; of two at one position, the longer.
    fn next(&mut self, at: usize) -> Option<(TokenId, Range<usize>)> {
        let passed = |found: &Option<(TokenId, Range<usize>)>| found.as_ref().is_none_or(|f| f.1.start < at);
        while passed(&self.control) && self.piece < self.template.len() {
            let piece = &self.template[self.piece];
            let from = at.max(piece.start);
            self.control = match from < piece.end {
                true => self.in_templates.find(&self.text[..piece.end], from),
                false => None,
            };
            self.piece += usize::from(self.control.is_none());
        }
        if passed(&self.control) {
            self.control = None;
        }
        if passed(&self.user_defined) && !self.text_is_done {
            self.user_defined = self.in_text.find(self.text, at);
            self.text_is_done = self.user_defined.is_none();
        }
        let key = |found: &(TokenId, Range<usize>)| (found.1.start, std::cmp::Reverse(found.1.len()));
        let both = [self.control.clone(), self.user_defined.clone()];
        both.into_iter().flatten().min_by_key(key)
    }
}

/// Extends the ranges so that each begins where the previous one ends and they cover `len` bytes. Bytes
/// without a token belong to the token before them, or to the first.
pub(crate) fn cover(spans: &mut [Range<usize>], len: usize) {
    let mut end = len;
    for span in spans.iter_mut().rev() {
        span.end = end;
        end = span.start;
    }
    if let Some(first) = spans.first_mut() {
        first.start = 0;
    }
}

/// The tokens that remove white space next to them.
impl Strips {
    fn before(&self, id: TokenId, text: &str) -> usize {
        if self.left.contains(&id) { text.trim_end_matches(is_space).len() } else { text.len() }
    }

    fn after(&self, id: TokenId, text: &str) -> usize {
        if self.right.contains(&id) { text.len() - text.trim_start_matches(is_space).len() } else { 0 }
    }
}

/// Whether a character is white space according to C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}
