//! The shape of a JSON text, looked at before any of it is built in memory.
//!
//! A value of three bytes (`[],`) becomes a hundred in memory, so that a body is not bounded by its own length. The look
//! is one pass over the bytes, keeps nothing and checks no syntax: the parser does.

use crate::error::{ErrorBody, ErrorCode};

/// The most commas, colons, `[` and `{` outside of strings. A request of a thousand segments has some 7,000, a hundred
/// tools with rich schemas some 40,000.
pub const MARKS_MAX: usize = 65_536;

/// The longest name of a field, in bytes between its quotes. No API has one of a hundred, a schema may.
pub const NAME_BYTES_MAX: usize = 4096;

/// A JSON text that costs more in memory than its length says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Many small values.
    #[error("the body has more than {MARKS_MAX} values and fields")]
    TooManyValues,
    /// A field whose name is a text: parsers copy names, and errors tell them.
    #[error("a field of the body has a name of {len} bytes, at most {NAME_BYTES_MAX} are allowed")]
    LongName {
        /// Bytes of the name as it is written.
        len: usize,
    },
}

impl ShapeError {
    /// The body of the answer.
    pub fn to_body(self) -> ErrorBody {
        ErrorBody::new(ErrorCode::InvalidRequest, self.to_string())
    }
}

/// Refuses a JSON text that has more than [`MARKS_MAX`] values and fields, or a name of more than [`NAME_BYTES_MAX`]
/// bytes, whatever else it is.
///
/// # Errors
/// [`ShapeError`].
pub fn check_shape(json: &[u8]) -> Result<(), ShapeError> {
    let (mut marks, mut at, mut string_len) = (0, 0, 0);
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'"' => {
                let end = behind_string(json, at);
                string_len = (end - at).saturating_sub(1);
                at = end;
            }
            b':' if string_len > NAME_BYTES_MAX => return Err(ShapeError::LongName { len: string_len }),
            b',' | b':' | b'[' | b'{' => {
                string_len = 0;
                marks += 1;
                if marks > MARKS_MAX {
                    return Err(ShapeError::TooManyValues);
                }
            }
            _ => (),
        }
    }
    Ok(())
}

/// Behind the string whose text begins at `at`; the end of the text, if the string has none.
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
        // An escaped quote ends no string, an escaped backslash escapes nothing.
        check(&format!(r#"["\\",{}"#, ",".repeat(MARKS_MAX)), false);
        check(&format!(r#"["\"{}"#, ",".repeat(MARKS_MAX + 1)), true);
        check(r#"["\"#, true);
    }
}
