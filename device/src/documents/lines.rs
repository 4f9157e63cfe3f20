//! Lines of texts: their ends, the blanks around them, and those that belong together.

/// Why bytes are no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotText {
    /// A byte that no text has.
    #[error("it is no text, PDF, DOCX or HTML: byte {at} is zero")]
    Binary {
        /// Its place.
        at: usize,
    },
    /// It is not encoded in UTF-8.
    #[error("it is not UTF-8 text: bad byte at {at}")]
    NotUtf8 {
        /// The place of the first bad byte.
        at: usize,
    },
}

/// Decodes bytes as text with `\n` at the end of each line, without a byte order mark.
///
/// # Errors
/// [`NotText`] if they are none.
pub fn plain_text(bytes: Vec<u8>) -> Result<String, NotText> {
    if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
        return Err(NotText::Binary { at });
    }
    let text =
        String::from_utf8(bytes).map_err(|err| NotText::NotUtf8 { at: err.utf8_error().valid_up_to() })?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    Ok(if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text })
}

/// Returns the text without blanks at the ends of lines, rules drawn of lines, and more than one empty line
/// in turn.
pub(super) fn tidied(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut empty = true;
    for line in text.replace('\0', "").lines() {
        let line = line.trim_end().trim_matches('\u{c}');
        let drawn = line.trim_start();
        let is_rule = drawn.len() > 3 && drawn.chars().all(|c| c == '─');
        if is_rule || line.is_empty() {
            if !std::mem::replace(&mut empty, true) {
                out.push('\n');
            }
            continue;
        }
        empty = false;
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Joins lines that were wrapped for a page: words that were cut by a hyphen, and lines that go on with a
/// small letter. Sentences are what the refiner keeps or leaves out, so they must not be cut.
pub(super) fn unwrapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let goes_on = lines.peek().is_some_and(|next| next.trim_start().starts_with(char::is_lowercase));
        let before = line.strip_suffix('-').filter(|before| before.ends_with(char::is_alphabetic));
        match before.filter(|_| goes_on) {
            Some(before) => out.push_str(before),
            None if goes_on && !line.is_empty() => {
                out.push_str(line);
                out.push(' ');
            }
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_systems_line_ends_are_the_same_text() {
        for text in ["one\n\ntwo\n", "one\r\n\r\ntwo\r\n", "one\r\rtwo\r", "\u{feff}one\r\n\ntwo\r"] {
            assert_eq!(plain_text(text.as_bytes().to_vec()).unwrap(), "one\n\ntwo\n", "{text:?}");
        }
        assert_eq!(plain_text(b"GGUF\0\0".to_vec()), Err(NotText::Binary { at: 4 }));
        assert_eq!(plain_text(b"ab\xff".to_vec()), Err(NotText::NotUtf8 { at: 2 }));
    }

    #[test]
    fn empty_lines_and_rules_are_one_empty_line() {
        assert_eq!(tidied("\n\na  \n\n ─────\n\u{c}b\n\n\n"), "a\n\nb\n\n");
    }

    #[test]
    fn only_lines_that_go_on_are_joined() {
        let page = "Abstract manip-\nulation of things\nand more.\nThe next one-\n3 Results\n\nself-ref-\nerential\n";
        let want =
            "Abstract manipulation of things and more.\nThe next one-\n3 Results\n\nself-referential\n";
        assert_eq!(unwrapped(page), want);
        assert_eq!(unwrapped(""), "");
        assert_eq!(unwrapped("Title\n\nlower"), "Title\n\nlower\n");
    }
}
