//! Sentence ends inside one block of prose.

use super::tables::{
    Stop, is_cjk_terminal, is_closer, is_lower, is_opener, is_space, is_spaced_terminal, is_starter,
    stop_after,
};

/// Longest word, in bytes, that is looked at before a full stop or after it.
const WORD_BYTES_MAX: usize = 24;
/// Longest bracketed reference, in bytes without its brackets, that stays with the sentence before it.
const REFERENCE_BYTES_MAX: usize = 8;

/// Ends of the sentences of `block`, in order; the last one is `block.len()`. White space after a sentence
/// belongs to it. Linear in the length of the block, which must not be empty.
pub(super) fn sentence_ends(block: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut in_quotes = false;
    let mut pos = 0;
    loop {
        pos +=
            block.as_bytes()[pos..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b' ').count();
        let Some(c) = char_at(block, pos) else { break };
        if !is_cjk_terminal(c) && !is_spaced_terminal(c) {
            in_quotes ^= c == '"';
            pos += c.len_utf8();
            continue;
        }
        let end = terminal_end(block, pos, &mut in_quotes);
        let next = skip_spaces(block, end.bytes);
        let is_end = end.cjk || (next > end.bytes && !goes_on(block, pos, &end, next));
        pos = if is_end { next } else { end.bytes };
        if is_end && next < block.len() {
            ends.push(next);
        }
    }
    ends.push(block.len());
    ends
}

/// A run of end marks with the closers that stay with it.
struct TerminalEnd {
    /// Where it ends.
    bytes: usize,
    /// It holds a CJK end mark, which needs no space after it.
    cjk: bool,
    /// It holds exactly one end mark, a full stop.
    lone_stop: bool,
}

fn terminal_end(block: &str, start: usize, in_quotes: &mut bool) -> TerminalEnd {
    let mut end = TerminalEnd { bytes: start, cjk: false, lone_stop: false };
    let mut marks = 0;
    while let Some(c) = char_at(block, end.bytes) {
        if is_cjk_terminal(c) || is_spaced_terminal(c) {
            end.cjk |= is_cjk_terminal(c);
            marks += 1;
            end.lone_stop = marks == 1 && c == '.';
        } else if matches!(c, '"' | '\'') {
            // A straight quote after a CJK mark closes only what is open; after others a space must follow.
            if c == '"' && end.cjk && !*in_quotes {
                break;
            }
            *in_quotes ^= c == '"';
        } else if c == '[' && !end.cjk {
            match reference_len(block, end.bytes) {
                Some(len) => {
                    end.bytes += len;
                    continue;
                }
                None => break,
            }
        } else if !is_closer(c) {
            break;
        }
        end.bytes += c.len_utf8();
    }
    end
}

/// Bytes of a reference like `[12]` or `[note 3]` at `pos`.
fn reference_len(block: &str, pos: usize) -> Option<usize> {
    let bytes = &block.as_bytes()[pos + 1..];
    let len = bytes.iter().take(REFERENCE_BYTES_MAX + 1).position(|&b| b == b']')?;
    let inside = &bytes[..len];
    let fits = inside.iter().all(|b| b.is_ascii_alphanumeric() || *b == b' ')
        && inside.iter().any(u8::is_ascii_digit);
    fits.then_some(len + 2)
}

/// Whether the sentence goes on behind the end mark at `mark` although a space follows; `next`: what comes then.
fn goes_on(block: &str, mark: usize, end: &TerminalEnd, next: usize) -> bool {
    let after = block[next..].trim_start_matches(is_opener);
    let Some(first) = after.chars().next() else {
        return false;
    };
    // The next mark of a spaced ellipsis (". . .") ends nothing either, but may go with what ended.
    if is_lower(first) || is_spaced_terminal(first) {
        return true;
    }
    if !end.lone_stop {
        return false;
    }
    let word = word_before(block, mark);
    if starts_line(block, mark - word.len()) && is_list_number(word) {
        return true;
    }
    let unsure = || !is_starter(word_at_start(after));
    match stop_after(word) {
        Stop::Ends => false,
        Stop::Inside => true,
        Stop::Unsure => unsure(),
        Stop::InsideBeforeDigit => first.is_ascii_digit(),
        Stop::UnsureOrBeforeDigit => first.is_ascii_digit() || unsure(),
    }
}

/// The ASCII word that ends at `end`, stops and digits included; empty where it is longer than any abbreviation.
fn word_before(block: &str, end: usize) -> &str {
    let bytes = &block.as_bytes()[..end];
    let len = bytes
        .iter()
        .rev()
        .take(WORD_BYTES_MAX + 1)
        .take_while(|b| b.is_ascii_alphanumeric() || **b == b'.')
        .count();
    if len > WORD_BYTES_MAX { "" } else { &block[end - len..end] }
}

fn word_at_start(after: &str) -> &str {
    let len = after.bytes().take(WORD_BYTES_MAX).take_while(u8::is_ascii_alphabetic).count();
    &after[..len]
}

/// Whether only white space stands between `pos` and the start of its line.
fn starts_line(block: &str, pos: usize) -> bool {
    let before = &block.as_bytes()[..pos];
    match before.iter().rev().take(WORD_BYTES_MAX).find(|b| !matches!(b, b' ' | b'\t')) {
        Some(b) => matches!(b, b'\n' | b'\r'),
        None => pos <= WORD_BYTES_MAX,
    }
}

fn is_list_number(word: &str) -> bool {
    let digits = !word.is_empty() && word.len() <= 3 && word.bytes().all(|b| b.is_ascii_digit());
    digits || (word.len() == 1 && word.bytes().all(|b| b.is_ascii_lowercase()))
}

fn char_at(text: &str, pos: usize) -> Option<char> {
    text[pos..].chars().next()
}

fn skip_spaces(text: &str, pos: usize) -> usize {
    text.len() - text[pos..].trim_start_matches(is_space).len()
}
