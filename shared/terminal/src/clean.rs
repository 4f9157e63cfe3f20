//! The filter between untrusted text and a terminal. Pure.

use std::borrow::Cow;

/// Returns the symbol shown instead of a character that controls a terminal; `None` if the character may
/// pass.
fn symbol(c: char) -> Option<char> {
    match c {
        '\n' | '\t' => None,
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)),
        '\x7f' => Some('\u{2421}'),
        // C1 controls have no symbols of their own. Embeddings, overrides and isolates of writing direction
        // show text in another order than it has.
        '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Some('\u{fffd}'),
        _ => None,
    }
}

/// Returns `text` as it may be written to a terminal. Every control character (C0, C1, DEL, bidirectional
/// overrides) except newline and tab becomes a symbol; a carriage return before a newline is removed. Each
/// character is judged alone, so an escape sequence that comes in several pieces is filtered like a whole
/// one.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| symbol(c).is_some()) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\r' && chars.peek() == Some(&'\n') {
            continue;
        }
        out.push(symbol(c).unwrap_or(c));
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(clean(text), want, "{text:?}");
    }

    #[test]
    fn text_passes_and_control_characters_are_shown() {
        check("plain text,\ttabs\nand é, 你好, 👩‍💻, עברית", "plain text,\ttabs\nand é, 你好, 👩‍💻, עברית");
        check("one\r\ntwo", "one\ntwo");
        check("over\rwritten", "over␍written");
        check("\x1b]52;c;Y2xpcA==\x07", "␛]52;c;Y2xpcA==␇");
        check("\x1b[2J\x1b[H\x08\x7f\0", "␛[2J␛[H␈␡␀");
        check("\u{9b}2J \u{90}q\u{9c} \u{85}", "\u{fffd}2J \u{fffd}q\u{fffd} \u{fffd}");
        check("\u{202e}txt.exe\u{202c} \u{2066}x\u{2069}", "\u{fffd}txt.exe\u{fffd} \u{fffd}x\u{fffd}");
    }

    proptest! {
        #[test]
        fn nothing_that_steers_a_terminal_is_left(text in any::<String>(), cut in 0usize..64) {
            let shown = clean(&text);
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
            // An escape sequence split in two pieces must not pass the filter.
            let at = text.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(text.len());
            let pieces = format!("{}{}", clean(&text[..at]), clean(&text[at..]));
            prop_assert!(!pieces.contains(['\x1b', '\u{9b}']), "{:?}", pieces);
        }
    }
}
