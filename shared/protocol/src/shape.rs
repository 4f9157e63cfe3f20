//! Checks the shape of a JSON text before any of it is built in memory.
//!
//! A value of three bytes (`[],`) takes about a hundred bytes in memory, so the length of a body does not
//! bound its cost. The check is one pass over the bytes. It stores nothing and checks no syntax; the parser
//! does that.

use crate::error::{ErrorBody, ErrorCode};

/// Most commas, colons, `[` and `{` outside of strings. For comparison: a request of a thousand segments has
/// about 7,000, a hundred tools with rich schemas about 40,000.
pub const MARKS_MAX: usize = 65_536;

/// Longest name of a field, in bytes between its quotes. Field names of APIs have under a hundred; a schema
/// may use longer ones.
pub const NAME_BYTES_MAX: usize = 4096;

/// Longest text of a field that holds no part of a conversation, in bytes as written. A parser that expects a
/// number there repeats the whole text in its message.
pub const SMALL_TEXT_BYTES_MAX: usize = 1 << 20;

/// Fields whose text may be as long as the body: parts of a conversation.
const LONG_TEXTS: [&[u8]; 12] = [
    b"text",
    b"content",
    b"arguments",
    b"description",
    b"continue_from",
    b"prompt",
    b"system",
    b"data",
    b"input",
    b"output",
    b"instructions",
    b"thinking",
];

/// Most characters of a field's name in a message.
const FIELD_CHARS_MAX: usize = 100;

/// Why a JSON text would take too much memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// It has too many small values.
    #[error("the body has more than {MARKS_MAX} values and fields")]
    TooManyValues,
    /// A field has a very long name; parsers copy names, and error messages repeat them.
    #[error("a field of the body has a name of {len} bytes, at most {NAME_BYTES_MAX} are allowed")]
    LongName {
        /// Length of the name in bytes, as written.
        len: usize,
    },
    /// A field that holds no part of a conversation has a very long text.
    #[error("the text of `{field}` has {len} bytes, at most {SMALL_TEXT_BYTES_MAX} are allowed there")]
    LongText {
        /// Name of the field, or of the nearest field before it if the text stands in a list.
        field: String,
        /// Length of the text in bytes, as written.
        len: usize,
    },
}

impl ShapeError {
    /// Returns the body of the error answer.
    pub fn to_body(self) -> ErrorBody {
        ErrorBody::new(ErrorCode::InvalidRequest, self.to_string())
    }
}

/// Refuses a JSON text that has more than [`MARKS_MAX`] values and fields, or a name of more than
/// [`NAME_BYTES_MAX`] bytes. Refuses a text of more than [`SMALL_TEXT_BYTES_MAX`] bytes that is no
/// part of a conversation. Accepts any other text, also one that is not JSON.
///
/// # Errors
/// [`ShapeError`] says which limit was exceeded.
pub fn check_shape(json: &[u8]) -> Result<(), ShapeError> {
    let (mut marks, mut at) = (0, 0);
    // The last string that no mark has followed yet, and the last name.
    let (mut string, mut name): (&[u8], &[u8]) = (b"", b"");
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'"' => {
                let end = behind_string(json, at);
                string = &json[at..end.saturating_sub(1).max(at).min(json.len())];
                at = end;
            }
            b',' | b':' | b'[' | b'{' | b']' | b'}' => {
                if byte == b':' {
                    check_name(string)?;
                    name = string;
                } else {
                    check_text(name, string)?;
                }
                string = b"";
                marks += usize::from(!matches!(byte, b']' | b'}'));
                if marks > MARKS_MAX {
                    return Err(ShapeError::TooManyValues);
                }
            }
            _ => (),
        }
    }
    check_text(name, string)
}

fn check_name(name: &[u8]) -> Result<(), ShapeError> {
    if name.len() > NAME_BYTES_MAX { Err(ShapeError::LongName { len: name.len() }) } else { Ok(()) }
}

fn check_text(field: &[u8], text: &[u8]) -> Result<(), ShapeError> {
    if text.len() <= SMALL_TEXT_BYTES_MAX || LONG_TEXTS.contains(&field) {
        return Ok(());
    }
    let field = String::from_utf8_lossy(field).chars().take(FIELD_CHARS_MAX).collect();
    Err(ShapeError::LongText { field, len: text.len() })
}

/// Returns the position after the string whose text begins at `at`, or the end of `json` if the string is not
/// closed.
fn behind_string(json: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'"' => return at,
            b'\\' => at += 1,
            _ => (),
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, fits: bool) {
        let shape = check_shape(json.as_bytes());
        assert_eq!(shape.is_ok(), fits, "{}", &json[..json.len().min(60)]);
    }

    #[test]
    fn values_are_counted_and_text_is_not() {
        check("", true);
        check(r#"{"a":[1,2,{"b":"c"}]}"#, true);
        check(&format!("[{}]", "1,".repeat(MARKS_MAX - 1)), true);
        check(&format!("[{}]", "1,".repeat(MARKS_MAX)), false);
        check(&"[".repeat(MARKS_MAX + 1), false);
        check(&format!("[{}]", "[],".repeat(MARKS_MAX / 2)), false);
        check(&format!(r#"{{{}}}"#, r#""":0,"#.repeat(MARKS_MAX / 2)), false);
        check(&format!(r#"{{"text":"{}"}}"#, "[,{:".repeat(MARKS_MAX)), true);
        check(&format!(r#"{{"text":"{}"}}"#, r#"\",\\"#.repeat(MARKS_MAX)), true);
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        check(&format!(r#"{{"{long}" : 1}}"#), false);
        check(&format!(r#"{{"{}":1}}"#, &long[1..]), true);
        check(&format!(r#"{{"text":"{long}","more":["{long}"]}}"#), true);
        // An escaped quote does not end a string; an escaped backslash does not escape the next character.
        check(&format!(r#"["\\",{}"#, ",".repeat(MARKS_MAX)), false);
        check(&format!(r#"["\"{}"#, ",".repeat(MARKS_MAX + 1)), true);
        check(r#"["\"#, true);
    }

    #[test]
    fn long_texts_stand_only_in_conversations() {
        let text = "t".repeat(SMALL_TEXT_BYTES_MAX + 1);
        for field in ["text", "content", "arguments", "description", "continue_from", "prompt", "input"] {
            check(&format!(r#"{{"a":1,"{field}" : "{text}"}}"#), true);
        }
        let cases = [
            format!(r#"{{"protocol":"{text}"}}"#),
            format!(r#"{{"text":"a","protocol" : "{text}" ,"b":1}}"#),
            format!(r#"{{"stop":["a","{text}"]}}"#),
            format!(r#"{{"protocol":"{text}t"#),
        ];
        for case in &cases {
            check(case, false);
        }
        check(&format!(r#"{{"protocol":"{}"}}"#, &text[1..]), true);
        let Err(ShapeError::LongText { field, len }) = check_shape(cases[1].as_bytes()) else {
            panic!("a long text is refused");
        };
        assert_eq!((field.as_str(), len), ("protocol", text.len()));
    }
}
