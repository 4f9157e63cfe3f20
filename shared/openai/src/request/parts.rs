//! Parts of messages that a model of texts cannot read: images, sound, files, and types that nobody here
//! knows.
//!
//! Always: in the last turn of the user they are refused, because an answer without them would be wrong. In
//! earlier turns and in results of tools a short text stands for them, and the field is named.

use crate::error::FieldError;
use crate::ignored::Ignored;

/// The most characters of a type that are repeated.
const KIND_CHARS_MAX: usize = 40;

/// A part that the model cannot read.
pub(crate) struct Unreadable<'a> {
    /// Its path in the request.
    pub(crate) place: &'a str,
    /// Its type.
    pub(crate) kind: &'a str,
    /// Whether it belongs to the last turn of the user.
    pub(crate) is_last: bool,
    /// The types that may stand there.
    pub(crate) readable: &'a str,
}

impl Unreadable<'_> {
    /// Returns the text that stands for the part.
    ///
    /// # Errors
    /// [`FieldError`] if it belongs to the last turn of the user.
    pub(crate) fn text(&self, ignored: &mut Ignored) -> Result<String, FieldError> {
        let kind = self.kind.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == '-');
        let kind: String = kind.take(KIND_CHARS_MAX).collect();
        if self.is_last {
            let message = format!("only parts of type {} can be read, this is `{kind}`", self.readable);
            return Err(FieldError::new(self.place, message));
        }
        let place: String = self
            .place
            .split_inclusive('[')
            .map(|piece| match piece.split_once(']') {
                Some((_, rest)) => format!("]{rest}"),
                None => piece.to_owned(),
            })
            .collect();
        ignored.add(format!("{place}.{kind}"));
        Ok(match kind.as_str() {
            "image" | "image_url" | "input_image" => "[an image, which cannot be shown here]".to_owned(),
            kind => format!("[{kind}, which cannot be shown here]"),
        })
    }
}

/// Returns whether nothing but turns of the user stand behind a message, given the roles of those behind it.
pub(crate) fn is_last_turn<'a>(mut roles: impl Iterator<Item = &'a str>) -> bool {
    !roles.any(|role| role == "assistant")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_earlier_turn_becomes_a_text_and_is_named() {
        let mut ignored = Ignored::default();
        let part = Unreadable {
            place: "messages[3].content[0]",
            kind: "image\n",
            is_last: false,
            readable: "`text`",
        };
        assert_eq!(part.text(&mut ignored).unwrap(), "[an image, which cannot be shown here]");
        assert_eq!(ignored.header().as_deref(), Some("messages[].content[].image"));
        let err = Unreadable { is_last: true, ..part }.text(&mut ignored).unwrap_err();
        assert_eq!(err.param(), Some("messages[3].content[0]"));
    }
}
