//! Finds the ends of sentences inside one block of prose.

use super::tables::{
    Stop, clause_rank, is_cjk, is_cjk_terminal, is_closer, is_hangul, is_hangul_label, is_lower, is_opener,
    is_quoting_particle, is_space, is_spaced_terminal, is_starter, is_wide_alphanumeric, stop_after,
};

/// Longest word, in bytes, that is read before or after a full stop.
const WORD_BYTES_MAX: usize = 24;
/// Longest bracketed reference, in bytes without its brackets, that stays with the sentence before it.
const REFERENCE_BYTES_MAX: usize = 8;

/// Returns the ends of the sentences of `block`, in order; the last one is `block.len()`. White space after a
/// sentence belongs to it. Cost: linear in the length of the block, which must not be empty.
pub(super) fn sentence_ends(block: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut inside = Inside::default();
    let mut pos = 0;
    loop {
        pos +=
            block.as_bytes()[pos..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b' ').count();
        let Some(c) = char_at(block, pos) else { break };
        if !is_terminal(block, pos, c, &inside) {
            inside.pass(c);
            pos += c.len_utf8();
            continue;
        }
        let end = terminal_end(block, pos, &mut inside);
        let next = skip_spaces(block, end.bytes);
        let is_end = match end.cjk || is_between_cjk(block, pos, end.bytes) {
            true => !quotation_goes_on(block, end.bytes),
            false => next > end.bytes && !goes_on(block, pos, &end, next),
        };
        pos = if is_end { next } else { end.bytes };
        if is_end {
            inside.brackets = 0;
        }
        if is_end && next < block.len() {
            ends.push(next);
        }
    }
    ends.push(block.len());
    ends
}

/// Quotes and brackets that are open at the current position.
#[derive(Default)]
struct Inside {
    /// A straight double quote is open.
    quotes: bool,
    /// Open round brackets of this sentence.
    brackets: usize,
}

impl Inside {
    fn pass(&mut self, c: char) {
        match c {
            '"' => self.quotes ^= true,
            '(' | '（' => self.brackets += 1,
            ')' | '）' => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
    }
}

/// Checks whether `c` at `pos` is an end mark. A semicolon in brackets is not: it separates items of a list.
/// A full-width stop after a letter or digit is not: it is part of a number or a name.
fn is_terminal(block: &str, pos: usize, c: char, inside: &Inside) -> bool {
    match c {
        '；' => inside.brackets == 0,
        '．' => !block[..pos].chars().next_back().is_some_and(is_wide_alphanumeric),
        c => is_cjk_terminal(c) || is_spaced_terminal(c),
    }
}

/// Checks whether `!` or `?` stands between two CJK characters, where no space is written.
fn is_between_cjk(block: &str, mark: usize, end: usize) -> bool {
    let starts = |c: char| is_cjk(c) && clause_rank(c, false, false) == 0;
    matches!(char_at(block, mark), Some('!' | '?'))
        && block[..mark].chars().next_back().is_some_and(is_cjk)
        && char_at(block, end).is_some_and(starts)
}

/// Checks whether a quotation with its closing mark ends at `end` and a particle follows, so that the
/// sentence around it goes on.
fn quotation_goes_on(block: &str, end: usize) -> bool {
    block[..end].chars().next_back().is_some_and(is_closer)
        && char_at(block, end).is_some_and(is_quoting_particle)
}

/// A run of end marks, with the closing quotes and brackets that stay with it.
struct TerminalEnd {
    /// Byte position of its end.
    bytes: usize,
    /// It holds a CJK end mark, which needs no space after it.
    cjk: bool,
    /// It holds exactly one end mark, a full stop.
    lone_stop: bool,
}

fn terminal_end(block: &str, start: usize, inside: &mut Inside) -> TerminalEnd {
    let mut end = TerminalEnd { bytes: start, cjk: false, lone_stop: false };
    let mut marks = 0;
    while let Some(c) = char_at(block, end.bytes) {
        if is_cjk_terminal(c) || is_spaced_terminal(c) {
            end.cjk |= is_cjk_terminal(c);
            marks += 1;
            end.lone_stop = marks == 1 && c == '.';
        } else if matches!(c, '"' | '\'') {
            // After a CJK mark, a straight quote belongs to the sentence only if it closes an open one. After
            // other marks a space must follow the run anyway.
            if c == '"' && end.cjk && !inside.quotes {
                break;
            }
            inside.pass(c);
        } else if c == '[' && !end.cjk {
            match reference_len(block, end.bytes) {
                Some(len) => {
                    end.bytes += len;
                    continue;
                }
                None => break,
            }
        } else if is_closer(c) {
            inside.pass(c);
        } else {
            break;
        }
        end.bytes += c.len_utf8();
    }
    end
}

/// Returns the length in bytes of a reference such as `[12]` or `[note 3]` at `pos`, or `None` if there is
/// none.
fn reference_len(block: &str, pos: usize) -> Option<usize> {
    let bytes = &block.as_bytes()[pos + 1..];
    let len = bytes.iter().take(REFERENCE_BYTES_MAX + 1).position(|&b| b == b']')?;
    let inside = &bytes[..len];
    let fits = inside.iter().all(|b| b.is_ascii_alphanumeric() || *b == b' ')
        && inside.iter().any(u8::is_ascii_digit);
    fits.then_some(len + 2)
}

/// Checks whether the sentence goes on after the end mark at `mark`, although a space follows; `next` is the
/// position after the space.
fn goes_on(block: &str, mark: usize, end: &TerminalEnd, next: usize) -> bool {
    let after = block[next..].trim_start_matches(is_opener);
    let Some(first) = after.chars().next() else {
        return false;
    };
    // In a spaced ellipsis (". . .") the sentence does not end before the next mark.
    if is_lower(first) || is_spaced_terminal(first) {
        return true;
    }
    if !end.lone_stop {
        return false;
    }
    let label = block[..mark].chars().next_back().filter(|&c| is_hangul_label(c));
    if label.is_some_and(|label| starts_line(block, mark - label.len_utf8())) {
        return true;
    }
    let word = word_before(block, mark);
    if is_date_part(block, mark - word.len(), word, after) {
        return true;
    }
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

/// Checks whether a number with its stop is part of a date such as `2020. 3. 5.`: either another such part
/// follows, or one stands before it and a Korean word follows.
fn is_date_part(block: &str, start: usize, word: &str, after: &str) -> bool {
    let digits = after.bytes().take(3).take_while(u8::is_ascii_digit).count();
    let part_follows = (1..=2).contains(&digits) && after.as_bytes().get(digits) == Some(&b'.');
    let part_before = matches!(block.as_bytes()[..start], [.., b'0'..=b'9', b'.', b' ']);
    (1..=4).contains(&word.len())
        && word.bytes().all(|b| b.is_ascii_digit())
        && (part_follows || (part_before && char_at(after, 0).is_some_and(is_hangul)))
}

/// Returns the ASCII word that ends at `end`, stops and digits included; empty if it is longer than any
/// abbreviation.
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

/// Checks whether only white space stands between `pos` and the start of its line; reads at most 24 bytes
/// back.
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
