//! The shape of a JSON text, looked at before any of it is built in memory.
//!
//! A value of three bytes (`[],`) becomes a hundred in memory, so that a body is not bounded by its own length. The look
//! is one pass over the bytes, keeps nothing and checks no syntax: the parser does.

use crate::error::{ErrorBody, ErrorCode};

/// The most commas, colons, `[` and `{` outside of strings. A request of a thousand segments has some 7,000, a hundred
/// tools with rich schemas some 40,000.
pub const MARKS_MAX: usize = 65_536;

/// A JSON text of too many values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body has more than {MARKS_MAX} values and fields")]
pub struct TooManyValues;

impl TooManyValues {
    /// The body of the answer.
    pub fn to_body(self) -> ErrorBody {
        ErrorBody::new(ErrorCode::InvalidRequest, self.to_string())
    }
}

/// Refuses a JSON text that has more than [`MARKS_MAX`] values and fields, whatever else it is.
///
/// # Errors
/// [`TooManyValues`].
pub fn check_shape(json: &[u8]) -> Result<(), TooManyValues> {
    let (mut marks, mut at) = (0, 0);
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'"' => at = behind_string(json, at),
            b',' | b':' | b'[' | b'{' => {
                marks += 1;
                if marks > MARKS_MAX {
                    return Err(TooManyValues);
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
        // An escaped quote ends no string, an escaped backslash escapes nothing.
        check(&format!(r#"["\\",{}"#, ",".repeat(MARKS_MAX)), false);
        check(&format!(r#"["\"{}"#, ",".repeat(MARKS_MAX + 1)), true);
        check(r#"["\"#, true);
    }
}
