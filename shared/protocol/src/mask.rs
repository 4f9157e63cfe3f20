//! The mask codec: encodes which units are kept, in few bytes.
//!
//! Sentence kind: 1 byte version and kind, 1 byte segmenter, the count as a varint, the CRC-32 of the
//! boundary list, then one bit a unit, lowest bit first. Token kind: 1 byte version and kind, 1 byte 0, the
//! count as a varint, then the bits through gzip. The token kind is the paper's; it serves comparison and
//! equal tokenizers.
//!
//! What always holds: one mask has one encoding. Everything else is refused: a wrong count, other boundaries,
//! a missing or surplus byte, a set bit beyond the count, no bit set at all. Decoding takes memory bounded by
//! the count that the receiver computed itself, never by the count that the sender claims.

use std::io::{Read as _, Write as _};

use flate2::bufread::GzDecoder;
use flate2::{Compression, GzBuilder};

use crate::map::SentenceMap;
use crate::segmenter::SEGMENTER_ID;

/// Most bytes of a sentence mask in addition to one bit a unit.
pub const MASK_OVERHEAD_MAX: usize = 12;

const KIND_SENTENCE: u8 = 0x11;
const KIND_TOKEN: u8 = 0x12;
const VARINT_BYTES_MAX: usize = 5;

/// Why a mask was refused. The device then uses the whole prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MaskError {
    /// There are too few bytes.
    #[error("mask has {len} bytes, needs at least {need}")]
    Truncated {
        /// Bytes present.
        len: usize,
        /// Bytes needed.
        need: usize,
    },
    /// There are too many bytes.
    #[error("mask has {extra} bytes too many")]
    Trailing {
        /// Surplus bytes.
        extra: usize,
    },
    /// The version or kind is not the one that this function reads.
    #[error("mask is of version and kind {got:#04x}, expected {want:#04x}")]
    Kind {
        /// The first byte.
        got: u8,
        /// The first byte that this function reads.
        want: u8,
    },
    /// The mask was made with another segmenter.
    #[error("mask was made with segmenter `{got}`, expected `{want}`")]
    Segmenter {
        /// The sender's.
        got: String,
        /// The receiver's.
        want: String,
    },
    /// The mask has another number of units.
    #[error("mask has {got} units, the content has {want}")]
    Count {
        /// The sender's count.
        got: u64,
        /// The receiver's.
        want: u64,
    },
    /// The count is too large, or not written in the shortest form.
    #[error("mask has a malformed count")]
    Varint,
    /// The mask was made for other boundaries.
    #[error("mask is for boundaries with crc {got:#010x}, the content has {want:#010x}")]
    Boundaries {
        /// The sender's checksum.
        got: u32,
        /// The receiver's.
        want: u32,
    },
    /// The mask was made for another text.
    #[error("mask is for content {got}, expected {want}")]
    Content {
        /// The sender's digest.
        got: String,
        /// The receiver's.
        want: String,
    },
    /// Bits beyond the count are set.
    #[error("mask has bits set beyond its {count} units")]
    Padding {
        /// Number of units.
        count: u64,
    },
    /// Nothing would be kept.
    #[error("mask keeps none of {count} units")]
    Empty {
        /// Number of units.
        count: u64,
    },
    /// The number of kept units is not the announced one.
    #[error("mask keeps {got} units, {want} were announced")]
    Kept {
        /// Bits set.
        got: u64,
        /// What was announced.
        want: u64,
    },
    /// The data is not base64.
    #[error("mask is no base64: {message}")]
    Base64 {
        /// The decoder's message.
        message: String,
    },
    /// The compressed part is damaged.
    #[error("mask does not inflate: {message}")]
    Inflate {
        /// The decoder's message.
        message: String,
    },
    /// The mask is over a kind of unit that this build does not read.
    #[error("mask is over units of kind `{got}`, expected `{want}`")]
    UnitKind {
        /// The sender's.
        got: String,
        /// The receiver's.
        want: String,
    },
}

/// Encodes which units of `map` are kept, in at most `ceil(count / 8) + 12` bytes.
///
/// # Panics
/// If `kept` does not have one flag for each unit of `map`.
pub fn encode_mask(map: &SentenceMap, kept: &[bool]) -> Vec<u8> {
    assert_eq!(kept.len(), map.len(), "one flag a unit");
    let mut bytes = Vec::with_capacity(kept.len().div_ceil(8) + MASK_OVERHEAD_MAX);
    bytes.extend([KIND_SENTENCE, SEGMENTER_ID]);
    push_varint(&mut bytes, kept.len() as u64);
    bytes.extend(map.crc32().to_le_bytes());
    bytes.extend(pack(kept));
    bytes
}

/// Decodes a mask over the units of `map`. Returns one flag a unit; at least one is set.
///
/// # Errors
/// [`MaskError`] if the bytes are not exactly one mask for this map.
pub fn decode_mask(map: &SentenceMap, bytes: &[u8]) -> Result<Vec<bool>, MaskError> {
    let rest = read_kind(bytes, KIND_SENTENCE)?;
    let (&segmenter, rest) = rest.split_first().ok_or(truncated(bytes, 2))?;
    if segmenter != SEGMENTER_ID {
        return Err(MaskError::Segmenter { got: segmenter.to_string(), want: SEGMENTER_ID.to_string() });
    }
    let rest = read_count(bytes, rest, map.len())?;
    let at = bytes.len() - rest.len();
    let (crc, bits) = rest.split_first_chunk::<4>().ok_or(truncated(bytes, at + 4))?;
    let crc = u32::from_le_bytes(*crc);
    if crc != map.crc32() {
        return Err(MaskError::Boundaries { got: crc, want: map.crc32() });
    }
    let need = map.len().div_ceil(8);
    if bits.len() < need {
        return Err(truncated(bytes, at + 4 + need));
    }
    if bits.len() > need {
        return Err(MaskError::Trailing { extra: bits.len() - need });
    }
    unpack(bits, map.len())
}

/// Encodes one flag a token in the paper's format: the bits through gzip.
pub fn encode_token_mask(bits: &[bool]) -> Vec<u8> {
    let mut bytes = vec![KIND_TOKEN, 0];
    push_varint(&mut bytes, bits.len() as u64);
    // The gzip header holds no name and no time, so that equal bits give equal bytes.
    let mut encoder = GzBuilder::new().mtime(0).write(bytes, Compression::best());
    encoder.write_all(&pack(bits)).expect("writing to a Vec cannot fail");
    encoder.finish().expect("writing to a Vec cannot fail")
}

/// Decodes one flag for each of `count` tokens; at least one is set. Inflates at most `ceil(count / 8) + 1`
/// bytes.
///
/// # Errors
/// [`MaskError`] if the bytes are not exactly one token mask of that count.
pub fn decode_token_mask(bytes: &[u8], count: usize) -> Result<Vec<bool>, MaskError> {
    let rest = read_kind(bytes, KIND_TOKEN)?;
    let (&reserved, rest) = rest.split_first().ok_or(truncated(bytes, 2))?;
    if reserved != 0 {
        return Err(MaskError::Segmenter { got: reserved.to_string(), want: "0".to_owned() });
    }
    let rest = read_count(bytes, rest, count)?;
    let need = count.div_ceil(8);
    let mut decoder = GzDecoder::new(rest);
    let mut bits = Vec::with_capacity(need + 1);
    let inflated = decoder.by_ref().take(need as u64 + 1).read_to_end(&mut bits);
    inflated.map_err(|error| MaskError::Inflate { message: error.to_string() })?;
    if bits.len() < need {
        return Err(truncated(&bits, need));
    }
    let left = decoder.into_inner().len();
    if bits.len() > need || left > 0 {
        return Err(MaskError::Trailing { extra: (bits.len() - need) + left });
    }
    unpack(&bits, count)
}

fn truncated(bytes: &[u8], need: usize) -> MaskError {
    MaskError::Truncated { len: bytes.len(), need }
}

fn read_kind(bytes: &[u8], want: u8) -> Result<&[u8], MaskError> {
    match bytes.split_first() {
        Some((&kind, rest)) if kind == want => Ok(rest),
        Some((&got, _)) => Err(MaskError::Kind { got, want }),
        None => Err(truncated(bytes, 1)),
    }
}

/// Reads the count at the start of `rest`, which is a tail of `bytes`, and returns the bytes after it.
fn read_count<'a>(bytes: &[u8], rest: &'a [u8], want: usize) -> Result<&'a [u8], MaskError> {
    let mut count = 0u64;
    for (i, &byte) in rest.iter().take(VARINT_BYTES_MAX).enumerate() {
        count |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 != 0 {
            continue;
        }
        if i > 0 && byte == 0 {
            return Err(MaskError::Varint);
        }
        if count != want as u64 {
            return Err(MaskError::Count { got: count, want: want as u64 });
        }
        return Ok(&rest[i + 1..]);
    }
    if rest.len() < VARINT_BYTES_MAX {
        Err(truncated(bytes, bytes.len() + 1))
    } else {
        Err(MaskError::Varint)
    }
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn pack(flags: &[bool]) -> Vec<u8> {
    let byte =
        |chunk: &[bool]| chunk.iter().enumerate().fold(0, |byte, (i, &flag)| byte | u8::from(flag) << i);
    flags.chunks(8).map(byte).collect()
}

/// Returns the flags of exactly `count` units; `bits` must have exactly as many bytes as these need.
fn unpack(bits: &[u8], count: usize) -> Result<Vec<bool>, MaskError> {
    let mut flags: Vec<bool> = bits.iter().flat_map(|byte| (0..8).map(move |i| byte >> i & 1 == 1)).collect();
    if flags[count..].contains(&true) {
        return Err(MaskError::Padding { count: count as u64 });
    }
    flags.truncate(count);
    if !flags.contains(&true) {
        return Err(MaskError::Empty { count: count as u64 });
    }
    Ok(flags)
}

#[cfg(test)]
mod tests;
