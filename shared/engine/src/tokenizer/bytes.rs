//! The byte-level alphabet of GPT-2: one printable character for every byte.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68, in order, become U+0100 and the following
//! (`bytes_to_unicode` of the GPT-2 encoder).

/// Returns the character that stands for a byte.
pub(super) fn byte_to_char(byte: u8) -> char {
    if is_itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !is_itself(b)).count() as u32;
    char::from_u32(0x100 + before).expect("at most 68 letters after U+0100")
}

/// Returns the byte that a character stands for.
pub(super) fn char_to_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|&b| is_itself(b)),
        code @ 0x100..=0x143 => (0..=u8::MAX).filter(|&b| !is_itself(b)).nth((code - 0x100) as usize),
        _ => None,
    }
}

fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Tables for both directions, built once per tokenizer.
#[derive(Debug, Clone)]
pub(super) struct ByteAlphabet {
    chars: [char; 256],
    /// Indexed by code point; the alphabet ends at U+0143.
    bytes: [Option<u8>; 0x144],
}

impl ByteAlphabet {
    pub(super) fn new() -> ByteAlphabet {
        let mut chars = ['\0'; 256];
        for byte in 0..=u8::MAX {
            chars[usize::from(byte)] = byte_to_char(byte);
        }
        let byte_of = |code: usize| char::from_u32(code as u32).and_then(char_to_byte);
        ByteAlphabet { chars, bytes: std::array::from_fn(byte_of) }
    }

    /// Writes text in the alphabet.
    pub(super) fn encode_into(&self, text: &str, out: &mut String) {
        out.clear();
        out.extend(text.bytes().map(|b| self.chars[usize::from(b)]));
    }

    /// Returns the bytes of a token, or `None` if a character is not in the alphabet.
    pub(super) fn decode(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|c| self.bytes.get(c as usize).copied().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let alphabet = ByteAlphabet::new();
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=u8::MAX {
            let c = byte_to_char(byte);
            assert!(seen.insert(c), "byte {byte}");
            assert_eq!(char_to_byte(c), Some(byte));
            assert_eq!(alphabet.decode(&c.to_string()), Some(vec![byte]));
        }
        assert_eq!((byte_to_char(b' '), byte_to_char(b'\n'), byte_to_char(0xad)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(char_to_byte('\u{144}'), None);
        assert_eq!(alphabet.decode("a b"), None);
        let mut out = String::from("old");
        alphabet.encode_into(" é\n", &mut out);
        assert_eq!(out, "ĠÃ©Ċ");
    }
}
