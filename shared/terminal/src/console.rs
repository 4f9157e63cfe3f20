//! The two streams of one terminal: filtering, beginnings of lines, and the progress line. Pure: returns
//! bytes.

use crate::clean;
use std::str;

/// Removes the progress line: back to the line's start, erase to its end.
const ERASE: &[u8] = b"\r\x1b[K";
/// Columns that the progress line leaves free at the end of a terminal's line: some terminals wrap there.
const FREE_COLUMNS: usize = 2;

/// Text that arrives in pieces, which may end inside a character.
#[derive(Debug, Default)]
struct Text {
    /// The first bytes of an incomplete character, at most three.
    held: Vec<u8>,
}

impl Text {
    fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut out = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(err) => {
                    let (good, bad) = rest.split_at(err.valid_up_to());
                    out.push_str(str::from_utf8(good).unwrap_or_default());
                    rest = bad;
                    let Some(len) = err.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[len..];
                }
            }
        }
        self.held = rest.to_vec();
        out
    }
}

/// The state of standard output and standard error.
#[derive(Debug)]
pub(crate) struct Console {
    out_terminal: bool,
    err_terminal: bool,
    out_text: Text,
    err_text: Text,
    /// Standard output is inside a line on the terminal.
    mid_line: bool,
    /// The progress line is shown.
    status: bool,
}

impl Console {
    pub(crate) fn new(out_terminal: bool, err_terminal: bool) -> Self {
        let (out_text, err_text) = (Text::default(), Text::default());
        Self { out_terminal, err_terminal, out_text, err_text, mid_line: false, status: false }
    }

    pub(crate) fn out_is_terminal(&self) -> bool {
        self.out_terminal
    }

    pub(crate) fn err_is_terminal(&self) -> bool {
        self.err_terminal
    }

    /// Returns the bytes to write on standard output for `bytes`.
    pub(crate) fn out(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !self.out_terminal {
            return bytes.to_vec();
        }
        let mut shown = self.clear_status();
        let text = self.out_text.push(bytes);
        if let Some(last) = text.chars().next_back() {
            self.mid_line = last != '\n';
        }
        shown.extend_from_slice(clean(&text).as_bytes());
        shown
    }

    /// Returns the bytes to write on standard error for `bytes`, beginning on a fresh line.
    pub(crate) fn err(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !self.err_terminal {
            return bytes.to_vec();
        }
        let mut shown = self.clear_status();
        let text = self.err_text.push(bytes);
        if self.mid_line && !text.is_empty() {
            shown.push(b'\n');
            self.mid_line = false;
        }
        shown.extend_from_slice(clean(&text).as_bytes());
        shown
    }

    /// Returns the bytes to write on standard error to show a progress line, which fits a terminal of so many
    /// columns: a line that wraps cannot be removed.
    pub(crate) fn status(&mut self, text: &str, columns: usize) -> Vec<u8> {
        if !self.err_terminal || self.mid_line {
            return Vec::new();
        }
        let fits = columns.saturating_sub(FREE_COLUMNS);
        let line: String = clean(text).chars().filter(|&c| c != '\n').take(fits).collect();
        self.status = true;
        [ERASE, line.as_bytes()].concat()
    }

    /// Returns the bytes to write to remove the progress line.
    pub(crate) fn clear_status(&mut self) -> Vec<u8> {
        if std::mem::take(&mut self.status) { ERASE.to_vec() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(shown: &[u8], want: &str) {
        assert_eq!(String::from_utf8_lossy(shown), want);
    }

    #[test]
    fn only_terminals_are_filtered() {
        let mut console = Console::new(true, true);
        check(&console.out(b"a\x1b[2Jb\n"), "a␛[2Jb\n");
        check(&console.err(b"file \x1b]0;x\x07\n"), "file ␛]0;x␇\n");
        let mut piped = Console::new(false, false);
        check(&piped.out(b"a\x1b[2Jb"), "a\x1b[2Jb");
        check(&piped.err(b"\x07"), "\x07");
        check(&piped.status("40 %", 80), "");
    }

    #[test]
    fn characters_in_pieces_are_filtered_as_whole_ones() {
        let mut console = Console::new(true, true);
        // U+009B, the one-character form of ESC [, comes in two pieces; then bytes that are not valid UTF-8.
        check(&console.out(b"a\xc2"), "a");
        check(&console.out(b"\x9b2J"), "\u{fffd}2J");
        check(&console.out(b"\x9b2J\xff!"), "\u{fffd}2J\u{fffd}!");
    }

    #[test]
    fn notes_and_progress_have_lines_of_their_own() {
        let mut console = Console::new(true, true);
        check(&console.status("prompt: 10 %", 80), "\r\x1b[Kprompt: 10 %");
        check(&console.status("prompt: \x1b[20 %\n", 80), "\r\x1b[Kprompt: ␛[20 %");
        check(&console.out(b"The answer"), "\r\x1b[KThe answer");
        check(&console.status("prompt: 30 %", 80), "");
        check(&console.err(b"note: slow\n"), "\nnote: slow\n");
        check(&console.err(b"note: again\n"), "note: again\n");
        check(&console.clear_status(), "");
    }

    #[test]
    fn the_progress_line_fits_the_terminal() {
        let mut console = Console::new(true, true);
        check(&console.status("prompt: 10 of 20 tokens", 12), "\r\x1b[Kprompt: 10");
        check(&console.status("prompt: 10", 1), "\r\x1b[K");
    }
}
