//! Encodes a laid-out conversation, and finds the tokens of each of its texts.

use std::ops::Range;

use super::SegmentTokens;
use crate::template::text::{Origin, Source, Text};
use crate::tokenizer::{Piece, Placed, TokenId, Tokenizer, cover};

/// A prompt's tokens, and those of each text.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) ids: Vec<TokenId>,
    /// As many as texts; `None` if the template has left the text out.
    pub(super) found: Vec<Option<SegmentTokens>>,
}

/// Bytes of the prompt that stand for bytes of a text.
#[derive(Debug, Clone)]
struct Span {
    bytes: Range<usize>,
    source: Source,
}

impl Joined {
    /// Encodes the template's output; `texts` are the texts by their index.
    pub(super) fn new(tokenizer: &Tokenizer, rendered: &Text, texts: &[&str]) -> Joined {
        let pieces: Vec<Piece<'_>> = rendered
            .runs()
            .map(|(bytes, origin)| {
                let text = &rendered.as_str()[bytes];
                Piece { text, is_template: is_template(tokenizer, text, origin) }
            })
            .collect();
        let tokens = tokenizer.encode_pieces(&pieces);
        let mut longest: Vec<Option<Vec<Span>>> = vec![None; texts.len()];
        for group in groups(rendered, &tokens, tokenizer) {
            let size = |group: &[Span]| group.iter().map(|span| span.source.len).sum::<usize>();
            let kept = &mut longest[group[0].source.index];
            if kept.as_ref().is_none_or(|kept| size(kept) < size(&group)) {
                *kept = Some(group);
            }
        }
        let mut ordered: Vec<Vec<Span>> = longest.into_iter().flatten().collect();
        ordered.sort_by_key(|group| group[0].bytes.start);
        let mut found = vec![None; texts.len()];
        let mut next = 0;
        for group in ordered {
            let index = group[0].source.index;
            found[index] = Some(tokens_of(&group, &tokens, tokenizer, &mut next, texts[index].len()));
        }
        Joined { ids: tokens.iter().map(|token| token.id).collect(), found }
    }
}

/// Whether control tokens are looked for in a piece. A tokenizer that encodes every piece by itself would cut
/// words at the ends of small pieces; what holds no control token and is no segment is the template's there.
fn is_template(tokenizer: &Tokenizer, text: &str, origin: Origin) -> bool {
    match origin {
        Origin::Template => true,
        Origin::Input(Some(_)) => false,
        Origin::Input(None) => {
            tokenizer.encodes_pieces_alone()
                && !tokenizer.encode_template(text).iter().any(|&id| tokenizer.is_control(id))
        }
    }
}

/// Returns the pieces of texts: neighbours that stand for later and later bytes of one text, without another
/// text or a control token between them.
fn groups(rendered: &Text, tokens: &[Placed], tokenizer: &Tokenizer) -> Vec<Vec<Span>> {
    let has_control = |gap: Range<usize>| {
        let from = tokens.partition_point(|token| token.bytes.start < gap.start);
        let within = tokens[from..].iter().take_while(|token| token.bytes.start < gap.end);
        within.into_iter().any(|token| tokenizer.is_control(token.id))
    };
    let mut groups: Vec<Vec<Span>> = Vec::new();
    for (bytes, origin) in rendered.runs() {
        let Origin::Input(Some(source)) = origin else { continue };
        let span = Span { bytes, source };
        match groups.last_mut() {
            Some(group) if follows(group, &span) && !has_control(end(group)..span.bytes.start) => {
                group.push(span)
            }
            _ => groups.push(vec![span]),
        }
    }
    groups
}

fn end(group: &[Span]) -> usize {
    group.last().map_or(0, |last| last.bytes.end)
}

fn follows(group: &[Span], next: &Span) -> bool {
    group.last().is_some_and(|last| {
        last.source.index == next.source.index && last.source.start + last.source.len <= next.source.start
    })
}

/// Returns the tokens of a text of `len` bytes; `next` is the first token that no text before it has taken.
fn tokens_of(
    group: &[Span],
    tokens: &[Placed],
    tokenizer: &Tokenizer,
    next: &mut usize,
    len: usize,
) -> SegmentTokens {
    let start = group[0].bytes.start;
    let end = end(group);
    // SentencePiece's space before a text stands for none of its bytes but belongs to the text. A control
    // token may remove white space of a text but belongs to the template.
    let is_before = |token: &Placed| {
        tokenizer.is_control(token.id) || token.bytes.end <= start && token.bytes != (start..start)
    };
    while tokens.get(*next).is_some_and(|token| token.bytes.start < end && is_before(token)) {
        *next += 1;
    }
    let first = *next;
    let is_inside = |token: &Placed| token.bytes.start < end && !tokenizer.is_control(token.id);
    while tokens.get(*next).is_some_and(is_inside) {
        *next += 1;
    }
    let of_text = &tokens[first..*next];
    let mut spans: Vec<Range<usize>> = of_text
        .iter()
        .map(|token| source_byte(group, token.bytes.start)..source_byte(group, token.bytes.end))
        .collect();
    cover(&mut spans, len);
    SegmentTokens { tokens: first..*next, spans }
}

/// Returns the byte of the text that a byte of the prompt stands for.
fn source_byte(group: &[Span], byte: usize) -> usize {
    let at = group.partition_point(|span| span.bytes.end < byte);
    let end = |span: &Span| span.source.start + span.source.len;
    let Some(span) = group.get(at) else { return group.last().map_or(0, end) };
    if byte == span.bytes.end {
        return end(span);
    }
    match byte.checked_sub(span.bytes.start) {
        Some(inside) if span.source.len == span.bytes.len() => span.source.start + inside,
        Some(_) => span.source.start,
        None => at.checked_sub(1).map_or(span.source.start, |before| end(&group[before])),
    }
}
