//! Parts of messages: texts, and what a model of texts cannot read (images, sound, files, and types that
//! nobody here knows).
//!
//! Always: a part that cannot be read is refused in the last turn of the user, because an answer without it
//! would be wrong. In earlier turns and in results of tools a short text stands for it, and it is named.

use serde_json::Value;

use super::typed;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::wire::{Content, Part};

/// The most characters of a type that are repeated.
const KIND_CHARS_MAX: usize = 40;
/// Parts that are more than a text which stands beside them.
const MEDIA: &[&str] = &[
    "audio",
    "file",
    "image",
    "image_url",
    "input_audio",
    "input_file",
    "input_image",
    "video",
    "video_url",
];
/// Between two parts of a message.
const BETWEEN_PARTS: &str = "\n";

/// A part that the model cannot read.
pub(crate) struct Unreadable<'a> {
    /// Its path in the request.
    pub(crate) place: &'a str,
    /// Its type.
    pub(crate) kind: &'a str,
    /// Whether it belongs to the last turn of the user.
    pub(crate) is_last: bool,
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
            return Err(FieldError::new(self.place, format!("only text can be read, this is `{kind}`")));
        }
        ignored.add_at(self.place, &kind);
        Ok(match kind.as_str() {
            "image" | "image_url" | "input_image" => "[an image, which cannot be shown here]".to_owned(),
            kind => format!("[{kind}, which cannot be shown here]"),
        })
    }
}

/// Returns the type of a part, block or item; empty if it has none.
pub(crate) fn kind_of(part: &Value) -> &str {
    part["type"].as_str().unwrap_or_default()
}

/// Returns the text of a message: its text, or its parts joined by line breaks. Empty parts are left out.
///
/// # Errors
/// [`FieldError`] if a part of the last turn of the user cannot be read.
pub(crate) fn text_of(
    place: &str,
    content: Content,
    is_last: bool,
    ignored: &mut Ignored,
) -> Result<String, FieldError> {
    let parts = match content {
        Content::Text(text) => return Ok(text),
        Content::Parts(parts) => parts,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        texts.push(text_of_part(&format!("{place}[{at}]"), part, is_last, ignored)?);
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join(BETWEEN_PARTS))
}

/// Returns the text of a part, or the text that stands for it.
///
/// # Errors
/// [`FieldError`] if it is a part of the last turn of the user, and cannot be read.
pub(crate) fn text_of_part(
    place: &str,
    part: Value,
    is_last: bool,
    ignored: &mut Ignored,
) -> Result<String, FieldError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    match kind_of(&part) {
        "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" | "" => {
            let part: Part = typed(place, part, ignored)?;
            part.text.ok_or_else(|| FieldError::new(format!("{place}.text"), "is missing"))
        }
        kind if MEDIA.contains(&kind) => Unreadable { place, kind, is_last }.text(ignored),
        kind => match [&part["text"], &part["refusal"]].into_iter().find_map(Value::as_str) {
            Some(text) => {
                ignored.add_at(place, kind);
                Ok(text.to_owned())
            }
            None => Unreadable { place, kind, is_last }.text(ignored),
        },
    }
}

/// Returns whether nothing but turns of the user stand behind a message, given the roles of those behind it.
pub(crate) fn is_last_turn<'a>(mut roles: impl Iterator<Item = &'a str>) -> bool {
    !roles.any(|role| role == "assistant")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_of_an_earlier_turn_becomes_a_text_and_is_named() {
        let mut ignored = Ignored::default();
        let part = Unreadable { place: "messages[3].content[0]", kind: "image\n", is_last: false };
        assert_eq!(part.text(&mut ignored).unwrap(), "[an image, which cannot be shown here]");
        assert_eq!(ignored.header().as_deref(), Some("messages[].content[].image"));
        let err = Unreadable { is_last: true, ..part }.text(&mut ignored).unwrap_err();
        assert_eq!(err.param(), Some("messages[3].content[0]"));
    }

    #[test]
    fn a_part_of_an_unknown_type_may_have_any_fields_and_its_text_counts() {
        let read = |part: Value, is_last: bool| {
            let mut ignored = Ignored::default();
            let text = text_of("input[0].content", Content::Parts(vec![part]), is_last, &mut ignored);
            (text.map_err(|err| err.to_string()), ignored.header().unwrap_or_default())
        };
        let said = |text: &str| Ok(text.to_owned());
        for part in [json!({ "text": "a" }), json!("a")] {
            assert_eq!(read(part, true), (said("a"), String::new()));
        }
        let own = json!({ "type": "of_next_week", "text": "a", "source": [1] });
        assert_eq!(read(own, true), (said("a"), "input[].content[].of_next_week".to_owned()));
        let (text, _) = read(json!({ "type": "refusal", "refusal": "No." }), false);
        assert_eq!(text, said("No."));
        let (text, named) = read(json!({ "type": "sound", "text": { "a": 1 } }), false);
        assert_eq!(
            (text, named.as_str()),
            (said("[sound, which cannot be shown here]"), "input[].content[].sound")
        );
        let (text, _) = read(json!({ "type": "sound", "data": [1] }), true);
        assert!(text.unwrap_err().contains("`input[0].content[0]`: only text can be read, this is `sound`"));
        let (text, _) = read(json!({ "type": "image_url", "text": "a" }), true);
        assert!(text.unwrap_err().contains("only text can be read, this is `image_url`"));
        let (text, _) = read(json!({ "type": "text", "text": 5 }), true);
        assert!(text.unwrap_err().contains("input[0].content[0].text"));
    }
}
