//! SentencePiece BPE: from the library's own `tokenizer.model`, or from a `tokenizer.json` made from one.
//!
//! If there is only the `tokenizer.json`, a token's score is the rank of the first merge that makes it.
//! SentencePiece merges by the score of the result, and the ranks were made from those scores. Source of the
//! layout: `sentencepiece_model.proto` (a ModelProto: 1 pieces, 2 trainer_spec, 3 normalizer_spec).

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::byte_level::{merges, model_flag, read_vocab};
use super::pieces::{Kind, Pieces};
use crate::error::ImportError;
use crate::json::JsonFile;

/// Reads a `tokenizer.model`; returns whether a space is added before each text.
pub(super) fn read_model(path: &Path, bytes: &[u8], pieces: &mut Pieces) -> Result<bool, ImportError> {
    let bad = |what: &str| ImportError::Tokenizer { path: path.to_owned(), what: what.to_owned() };
    let malformed = || bad("it is no SentencePiece model");
    let (mut id, mut model_type, mut normalizer) = (0, UNIGRAM, Normalizer::ABSENT);
    for field in Fields(bytes) {
        match field.ok_or_else(malformed)? {
            (1, Wire::Bytes(piece)) => {
                let (text, score, kind) = read_piece(piece).ok_or_else(malformed)?;
                pieces.set(id, text.to_owned(), kind, score)?;
                id += 1;
            }
            (2, Wire::Bytes(spec)) => {
                model_type = number(spec, 3).ok_or_else(malformed)?.unwrap_or(model_type)
            }
            (3, Wire::Bytes(spec)) => normalizer.read(spec).ok_or_else(malformed)?,
            _ => {}
        }
    }
    match (id, model_type, normalizer.unsupported()) {
        (0, ..) => Err(malformed()),
        (_, BPE, None) => Ok(normalizer.dummy_prefix),
        (_, BPE, Some(what)) => Err(bad(what)),
        _ => Err(bad("its model is not of the BPE kind")),
    }
}

/// The changes to a text before it is split: `NormalizerSpec`. Absent flags are true.
#[derive(Debug, Clone, Copy)]
struct Normalizer {
    /// Replaces characters by a table (2, `precompiled_charsmap`).
    replaces: bool,
    /// Adds a space before a text (3, `add_dummy_prefix`).
    dummy_prefix: bool,
    /// Drops spaces at both ends, and repeated ones (4, `remove_extra_whitespaces`).
    drops: bool,
    /// Writes spaces as `▁` (5, `escape_whitespaces`).
    escapes: bool,
}

impl Normalizer {
    const ABSENT: Normalizer = Normalizer { replaces: false, dummy_prefix: true, drops: true, escapes: true };

    /// Reads the fields of a message; returns `None` if it is malformed.
    fn read(&mut self, spec: &[u8]) -> Option<()> {
        for field in Fields(spec) {
            match field? {
                (2, Wire::Bytes(table)) => self.replaces = !table.is_empty(),
                (3, Wire::Number(flag)) => self.dummy_prefix = flag != 0,
                (4, Wire::Number(flag)) => self.drops = flag != 0,
                (5, Wire::Number(flag)) => self.escapes = flag != 0,
                _ => {}
            }
        }
        Some(())
    }

    /// Returns the behaviour that the engine does not have, with which ids would differ.
    fn unsupported(self) -> Option<&'static str> {
        match self {
            Normalizer { replaces: true, .. } => Some("it replaces characters (precompiled_charsmap)"),
            Normalizer { drops: true, .. } => Some("it drops spaces (remove_extra_whitespaces)"),
            Normalizer { escapes: false, .. } => Some("it does not write spaces as `▁` (escape_whitespaces)"),
            _ => None,
        }
    }
}

/// `TrainerSpec.ModelType`.
const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

fn read_piece(bytes: &[u8]) -> Option<(&str, f32, Kind)> {
    let (mut text, mut score, mut kind) = ("", 0.0, Kind::Normal);
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Bytes(bytes)) => text = std::str::from_utf8(bytes).ok()?,
            (2, Wire::Fixed32(bits)) => score = f32::from_bits(bits),
            (3, Wire::Number(number)) => {
                kind = match number {
                    1 => Kind::Normal,
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    _ => return None,
                }
            }
            _ => {}
        }
    }
    Some((text, score, kind))
}

/// Returns the number in a field of a message: inner `None` if the field is absent, outer `None` if the
/// message is malformed.
fn number(bytes: &[u8], wanted: u64) -> Option<Option<u64>> {
    let mut found = None;
    for field in Fields(bytes) {
        if let (number, Wire::Number(value)) = field?
            && number == wanted
        {
            found = Some(value);
        }
    }
    Some(found)
}

/// A field's value in the wire format of protocol buffers.
#[derive(Debug, Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'a [u8]),
}

/// The fields of a message, in order; ends with an inner `None` if the bytes are malformed.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Wire::Fixed64
            }
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(len)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Reads a `tokenizer.json` with byte tokens; returns whether a space is added before each text.
pub(super) fn read_json(json: &JsonFile, pieces: &mut Pieces) -> Result<bool, ImportError> {
    let refuse = |what: &str| ImportError::Tokenizer { path: json.path().to_owned(), what: what.to_owned() };
    if !model_flag(json, "byte_fallback") {
        return Err(refuse("it is neither byte-level BPE nor SentencePiece BPE with byte tokens"));
    }
    let space_prefix =
        space_prefix(json).ok_or_else(|| refuse("it does not write spaces as SentencePiece does"))?;
    let merges = merges(json)?;
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let unknown = json.get("model").and_then(|model| model.get("unk_token")).and_then(Value::as_str);
    read_vocab(json, |id, text| {
        let kind = match text {
            _ if Some(text) == unknown => Kind::Unknown,
            _ if is_byte(text) => Kind::Byte,
            _ => Kind::Normal,
        };
        // A token that no merge makes ranks after all that one makes.
        let score = -(ranks.get(text).copied().unwrap_or(merges.len()) as f32);
        pieces.set(id, text.to_owned(), kind, score)
    })?;
    Ok(space_prefix)
}

fn is_byte(text: &str) -> bool {
    let hex = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns whether a space is added before a text, or `None` if spaces are not written as `▁`.
fn space_prefix(json: &JsonFile) -> Option<bool> {
    let parts = [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")];
    let mut steps = Vec::new();
    for (key, list) in parts {
        if let Some(part) = json.get(key) {
            match part.get(list).and_then(Value::as_array) {
                Some(parts) => steps.extend(parts),
                None => steps.push(part),
            }
        }
    }
    let kind = |step: &Value, wanted: &str| step.get("type").is_some_and(|kind| kind == wanted);
    let metaspace = steps.iter().find(|step| kind(step, "Metaspace"));
    if let Some(metaspace) = metaspace {
        let never = metaspace.get("prepend_scheme").is_some_and(|scheme| scheme == "never");
        let old_never = metaspace.get("add_prefix_space").is_some_and(|flag| flag == false);
        return Some(!never && !old_never);
    }
    let replaces = steps.iter().any(|step| {
        kind(step, "Replace")
            && step.get("content").is_some_and(|text| text == "▁")
            && step.get("pattern").and_then(|pattern| pattern.get("String")).is_some_and(|text| text == " ")
    });
    replaces.then(|| steps.iter().any(|step| kind(step, "Prepend")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a message's field with bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
        let rest = [&[2 << 3 | 5], score.to_le_bytes().as_slice(), &[3 << 3, kind]].concat();
        field(1, &[field(1, text.as_bytes()), rest].concat())
    }

    fn model(model_type: u8, dummy_prefix: u8) -> Vec<u8> {
        let normalizer = field(3, &[3 << 3, dummy_prefix, 4 << 3, 0]);
        [without_normalizer(model_type), normalizer].concat()
    }

    fn without_normalizer(model_type: u8) -> Vec<u8> {
        let pieces =
            [piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("<0x41>", 0.0, 6), piece("▁a", -1.5, 1)];
        [pieces.concat(), field(2, &[3 << 3, model_type])].concat()
    }

    #[test]
    fn a_model_is_read() {
        for dummy_prefix in [0, 1] {
            let mut pieces = Pieces::new(5, Path::new("m"));
            let got = read_model(Path::new("m"), &model(2, dummy_prefix), &mut pieces).unwrap();
            assert_eq!(got, dummy_prefix == 1);
            assert_eq!(pieces.texts, ["<unk>", "<s>", "<0x41>", "▁a", "[PAD4]"]);
            let kinds = [Kind::Unknown, Kind::Control, Kind::Byte, Kind::Normal, Kind::Unused];
            assert_eq!(pieces.types, kinds);
            assert_eq!(pieces.scores[3], -1.5);
        }
    }

    #[test]
    fn normalizers_that_change_ids_are_refused() {
        let read = |rest: Vec<u8>| {
            let bytes = [without_normalizer(2), rest].concat();
            let read = read_model(Path::new("m"), &bytes, &mut Pieces::new(5, Path::new("m")));
            read.map_err(|err| err.to_string())
        };
        let not_supported = |what: &str| -> Result<bool, String> {
            Err(format!("tokenizer in `m` is not supported: {what}"))
        };
        // As in the files of Llama 2 and Mistral.
        let identity =
            [field(1, b"identity"), field(2, b""), vec![3 << 3, 1, 4 << 3, 0], field(6, b"")].concat();
        assert_eq!(read(field(3, &identity)), Ok(true));
        assert_eq!(read(field(3, &[4 << 3, 0, 5 << 3, 1])), Ok(true));
        // Absent flags are true.
        let drops = not_supported("it drops spaces (remove_extra_whitespaces)");
        assert_eq!(read(Vec::new()), drops);
        assert_eq!(read(field(3, &[3 << 3, 1])), drops);
        assert_eq!(read(field(3, &[4 << 3, 1])), drops);
        let replaces = not_supported("it replaces characters (precompiled_charsmap)");
        assert_eq!(read(field(3, &[field(2, b"table"), vec![4 << 3, 0]].concat())), replaces);
        let leaves = not_supported("it does not write spaces as `▁` (escape_whitespaces)");
        assert_eq!(read(field(3, &[4 << 3, 0, 5 << 3, 0])), leaves);
        assert_eq!(read(field(3, &[4 << 3])), not_supported("it is no SentencePiece model"));
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let read = |bytes: &[u8], len| {
            read_model(Path::new("m"), bytes, &mut Pieces::new(len, Path::new("m"))).unwrap_err().to_string()
        };
        let not_supported = |what: &str| format!("tokenizer in `m` is not supported: {what}");
        assert_eq!(read(b"", 9), not_supported("it is no SentencePiece model"));
        assert_eq!(read(&model(1, 1), 9), not_supported("its model is not of the BPE kind"));
        let want = not_supported("token 3 is `▁a`, the embedding table has 3 rows");
        assert_eq!(read(&model(2, 1), 3), want);
        let whole = model(2, 1);
        for len in 0..whole.len() {
            // Every prefix must give an error or a shorter model, never a panic.
            let mut pieces = Pieces::new(9, Path::new("m"));
            let _ = read_model(Path::new("m"), &whole[..len], &mut pieces);
        }
    }
}
