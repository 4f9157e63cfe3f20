//! Keys and values of chosen tokens as rows of bytes, which leave one engine and enter another.
//!
//! Pure: says how rows are written, read and checked. [`crate::Engine::export_rows`] and
//! [`crate::Engine::import_rows`] move them. Rows come from a peer, so their sizes and values are checked
//! before anything is computed with them. Always: floats in `f32` and `f16` come out with the bits that went
//! in; `q8` and `q4` are ggml's Q8_0 and Q4_0.

use baton_kernels_cpu::{Format, KernelError, KvFormat, dequantize_row, quantize_row};
use sha2::{Digest as _, Sha256};

use crate::kv::KvError;
use crate::model::Model;

/// Counts changes of the rows' layout.
const REVISION: u32 = 1;
/// The largest magnitude of a key or a value: what binary16 holds.
const VALUE_MAX: f32 = 65_504.0;
/// Dimensions of a quantized block.
const BLOCK_LEN: usize = 32;

/// Why keys and values cannot leave or enter a sequence as rows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// What computes here cannot give or take rows.
    #[error("keys and values cannot be moved: {reason}")]
    Kind {
        /// Why not.
        reason: &'static str,
    },
    /// The cache does not hold the position, or not as it was computed.
    #[error("position {position} is to be moved, the sequence has {cached} tokens in the cache")]
    Position {
        /// The position.
        position: usize,
        /// Tokens in the cache.
        cached: usize,
    },
    /// The model has no such layer with keys and values of its own.
    #[error("layer {layer} is to be moved, the model has {layers} with keys and values")]
    Layer {
        /// The layer.
        layer: usize,
        /// Layers that have keys and values of their own.
        layers: usize,
    },
    /// A sequence cannot keep so many of its tokens.
    #[error("a sequence of {tokens} tokens cannot keep {kept}")]
    Tokens {
        /// Tokens whose keys and values come.
        kept: usize,
        /// Tokens of the sequence.
        tokens: usize,
    },
    /// There are fewer rows than a sliding window sees.
    #[error("{kept} tokens are kept, a sliding window of the model sees {seen} of them")]
    Window {
        /// Tokens whose keys and values come.
        kept: usize,
        /// Tokens that the window sees.
        seen: usize,
    },
    /// A layer has another number of bytes than its rows.
    #[error("layer {layer} has {bytes} bytes, must have {want}")]
    Bytes {
        /// The layer.
        layer: usize,
        /// Its bytes.
        bytes: usize,
        /// What its rows have.
        want: usize,
    },
    /// A value is not a number, or larger than binary16 holds.
    #[error("layer {layer} has a value that is no finite number of half precision")]
    Value {
        /// The layer.
        layer: usize,
    },
    /// There is no room, or no such sequence.
    #[error(transparent)]
    Kv(#[from] KvError),
}

/// The heads of one layer with keys and values of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvWidth {
    /// Key heads.
    pub heads: usize,
    /// Dimensions of a head.
    pub d: usize,
}

impl KvWidth {
    /// Returns the bytes of the keys and values of one token.
    pub fn token_bytes(self, format: KvFormat) -> usize {
        2 * self.heads * row_bytes(format, self.d)
    }
}

/// Returns the bytes of one row of `d` dimensions.
fn row_bytes(format: KvFormat, d: usize) -> usize {
    match format {
        KvFormat::F32 => 4 * d,
        KvFormat::F16 => 2 * d,
        KvFormat::Q8 => d.div_ceil(BLOCK_LEN) * 34,
        KvFormat::Q4 => d.div_ceil(BLOCK_LEN) * 18,
    }
}

/// Returns the format of a row, and its dimensions with those that fill up the last block.
fn stored(format: KvFormat, d: usize) -> (Format, usize) {
    match format {
        KvFormat::F32 => (Format::F32, d),
        KvFormat::F16 => (Format::F16, d),
        KvFormat::Q8 => (Format::Q8_0, d.next_multiple_of(BLOCK_LEN)),
        KvFormat::Q4 => (Format::Q4_0, d.next_multiple_of(BLOCK_LEN)),
    }
}

/// Writes and reads the rows of one width.
#[derive(Debug)]
pub(crate) struct RowCodec {
    format: Format,
    d: usize,
    /// A row with its filling.
    row: Vec<f32>,
}

impl RowCodec {
    pub(crate) fn new(format: KvFormat, d: usize) -> Self {
        let (format, filled) = stored(format, d);
        Self { format, d, row: vec![0.0; filled] }
    }

    /// Appends a row to `out`.
    ///
    /// # Errors
    /// [`KernelError::NotFinite`] if the format is quantized and a value is not a number.
    pub(crate) fn encode(&mut self, row: &[f32], out: &mut Vec<u8>) -> Result<(), KernelError> {
        self.row[..self.d].copy_from_slice(row);
        quantize_row(self.format, &self.row, out)
    }

    /// Reads a row of exactly its bytes. Returns whether all values are what half precision holds.
    pub(crate) fn decode(&mut self, bytes: &[u8], row: &mut [f32]) -> bool {
        let read = dequantize_row(self.format, bytes, &mut self.row).is_ok();
        row.copy_from_slice(&self.row[..self.d]);
        // Not a number is not below anything.
        read && row.iter().all(|value| value.abs() <= VALUE_MAX)
    }
}

/// Returns whether all values of whole rows are finite and within half precision.
///
/// Cost: every value is read once.
pub fn rows_are_sound(format: KvFormat, width: KvWidth, bytes: &[u8]) -> bool {
    let each = row_bytes(format, width.d);
    let mut codec = RowCodec::new(format, width.d);
    let mut row = vec![0.0; width.d];
    bytes.len().is_multiple_of(each) && bytes.chunks_exact(each).all(|bytes| codec.decode(bytes, &mut row))
}

/// The keys and values of the kept tokens of a sequence: for each layer that has its own, `[tokens, heads]`
/// pairs of a key and a value.
#[derive(Clone, PartialEq, Eq)]
pub struct KvRows {
    format: KvFormat,
    tokens: usize,
    layers: Vec<Vec<u8>>,
}

impl std::fmt::Debug for KvRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KvRows({} tokens, {}, {} bytes)", self.tokens, self.format, self.bytes())
    }
}

impl KvRows {
    /// Makes rows of so many tokens that have no bytes yet.
    pub fn new(format: KvFormat, tokens: usize, layers: usize) -> Self {
        Self { format, tokens, layers: vec![Vec::new(); layers] }
    }

    /// Appends the bytes of the next tokens of a layer. A layer that does not exist gets nothing, so that
    /// the import refuses what is missing.
    pub fn push(&mut self, layer: usize, bytes: &[u8]) {
        if let Some(rows) = self.layers.get_mut(layer) {
            rows.extend_from_slice(bytes);
        }
    }

    /// Returns the format.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the bytes of a layer; empty if there is none.
    pub fn layer(&self, layer: usize) -> &[u8] {
        self.layers.get(layer).map_or(&[], Vec::as_slice)
    }

    /// Returns the bytes of all layers.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }

    /// Checks sizes and values against a model.
    ///
    /// # Errors
    /// [`RowsError::Layer`], [`RowsError::Bytes`], [`RowsError::Value`].
    pub fn check(&self, widths: &[KvWidth]) -> Result<(), RowsError> {
        if self.layers.len() != widths.len() {
            return Err(RowsError::Layer { layer: self.layers.len(), layers: widths.len() });
        }
        for (layer, (rows, width)) in self.layers.iter().zip(widths).enumerate() {
            let want = self.tokens.saturating_mul(width.token_bytes(self.format));
            if rows.len() != want {
                return Err(RowsError::Bytes { layer, bytes: rows.len(), want });
            }
            if !rows_are_sound(self.format, *width, rows) {
                return Err(RowsError::Value { layer });
            }
        }
        Ok(())
    }
}

/// Returns the name of what decides the bits of a model's keys and values: 64 hex digits. Rows fit only a
/// model of the same name. It is of [`Model::fingerprint`], so it tells files apart and proves nothing.
pub fn kv_identity(model: &Model) -> String {
    let mut digest = Sha256::new_with_prefix(b"baton keys and values");
    digest.update(REVISION.to_le_bytes());
    digest.update(model.fingerprint());
    hex(&digest.finalize())
}

/// Returns the name of a sequence of ids: 64 hex digits.
pub fn ids_sha256(ids: &[crate::tokenizer::TokenId]) -> String {
    let mut digest = Sha256::new();
    ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
    hex(&digest.finalize())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all that is written");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_bits_or_are_rounded_once() {
        for format in KvFormat::ALL {
            for d in [1, 16, 32, 40] {
                let width = KvWidth { heads: 1, d };
                let row: Vec<f32> = (0..d).map(|i| (i as f32 - 9.0) / 16.0).collect();
                let (mut codec, mut bytes, mut back) = (RowCodec::new(format, d), Vec::new(), vec![0.0; d]);
                codec.encode(&row, &mut bytes).unwrap();
                codec.encode(&row, &mut bytes).unwrap();
                assert_eq!(bytes.len(), width.token_bytes(format), "{format} {d}");
                let half = bytes.len() / 2;
                assert!(codec.decode(&bytes[half..], &mut back) && rows_are_sound(format, width, &bytes));
                if matches!(format, KvFormat::F32 | KvFormat::F16) {
                    assert_eq!(back, row);
                }
                let mut again = Vec::new();
                codec.encode(&back, &mut again).unwrap();
                assert_eq!(again, bytes[..half], "{format} {d}: rounded once only");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_found_in_every_format() {
        let width = KvWidth { heads: 1, d: 32 };
        let check = |format: KvFormat, at: usize, bytes: &[u8]| {
            let mut rows = vec![0; width.token_bytes(format)];
            assert!(rows_are_sound(format, width, &rows), "{format}");
            rows[at..at + bytes.len()].copy_from_slice(bytes);
            // Quants that are not zero, so that a scale of infinity counts.
            rows[at + bytes.len()] |= 3;
            assert!(!rows_are_sound(format, width, &rows), "{format} {bytes:?}");
        };
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65_600.0, -1e30] {
            check(KvFormat::F32, 4, &value.to_le_bytes());
        }
        for half in [0x7c00u16, 0xfc00, 0x7e01] {
            check(KvFormat::F16, 2, &half.to_le_bytes());
            check(KvFormat::Q8, 34, &half.to_le_bytes());
            check(KvFormat::Q4, 18, &half.to_le_bytes());
        }
        // A finite scale whose products leave half precision.
        check(KvFormat::Q8, 34, &0x7bffu16.to_le_bytes());
        assert!(!rows_are_sound(KvFormat::F16, width, &[0; 63]), "half a row");
    }
}
