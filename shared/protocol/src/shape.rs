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

/// Why a JSON text would take too much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
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
}

impl ShapeError {
    /// Returns the body of the error answer.
    pub fn to_body(self) -> ErrorBody {
        ErrorBody::new(ErrorCode::InvalidRequest, self.to_string())
    }
}

/// Refuses a JSON text that has more than [`MARKS_MAX`] values and fields, or a name of more than
/// [`NAME_BYTES_MAX`] bytes. Accepts any other text, also one that is not JSON.
///
/// # Errors
/// [`ShapeError`] says which limit was exceeded.
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
}
