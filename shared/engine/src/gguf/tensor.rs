//! The tensor directory: names, dimensions, types and the position of each tensor's bytes.

use std::ops::Range;

use baton_kernels_cpu::Format;

use super::cursor::Cursor;
use super::error::GgufError;

/// The most bytes of a tensor's name (ggml's `GGML_MAX_NAME`).
pub(super) const NAME_BYTES_MAX: u64 = 64;
/// The most dimensions of a tensor (ggml's `GGML_MAX_DIMS`).
pub(super) const DIMS_MAX: u32 = 4;
/// The least bytes of a directory entry: name length, one letter, count, one dimension, type, offset.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// One row of ggml's table of tensor types.
struct GgmlType {
    number: u32,
    name: &'static str,
    block_len: u64,
    block_bytes: u64,
}

const fn ty(number: u32, name: &'static str, block_len: u64, block_bytes: u64) -> GgmlType {
    GgmlType { number, name, block_len, block_bytes }
}

/// ggml's tensor types (`ggml_type` and `type_traits` of ggml). With them the position of every tensor is
/// checked at open, even if this engine cannot compute with its type. Missing numbers were withdrawn.
const TYPES: &[GgmlType] = &[
    ty(0, "F32", 1, 4),
    ty(1, "F16", 1, 2),
    ty(2, "Q4_0", 32, 18),
    ty(3, "Q4_1", 32, 20),
    ty(6, "Q5_0", 32, 22),
    ty(7, "Q5_1", 32, 24),
    ty(8, "Q8_0", 32, 34),
    ty(9, "Q8_1", 32, 36),
    ty(10, "Q2_K", 256, 84),
    ty(11, "Q3_K", 256, 110),
    ty(12, "Q4_K", 256, 144),
    ty(13, "Q5_K", 256, 176),
    ty(14, "Q6_K", 256, 210),
    ty(15, "Q8_K", 256, 292),
    ty(16, "IQ2_XXS", 256, 66),
    ty(17, "IQ2_XS", 256, 74),
    ty(18, "IQ3_XXS", 256, 98),
    ty(19, "IQ1_S", 256, 50),
    ty(20, "IQ4_NL", 32, 18),
    ty(21, "IQ3_S", 256, 110),
    ty(22, "IQ2_S", 256, 82),
    ty(23, "IQ4_XS", 256, 136),
    ty(24, "I8", 1, 1),
    ty(25, "I16", 1, 2),
    ty(26, "I32", 1, 4),
    ty(27, "I64", 1, 8),
    ty(28, "F64", 1, 8),
    ty(29, "IQ1_M", 256, 56),
    ty(30, "BF16", 1, 2),
    ty(34, "TQ1_0", 256, 54),
    ty(35, "TQ2_0", 256, 66),
    ty(39, "MXFP4", 32, 17),
];

/// A tensor of the directory. Its bytes were checked to lie in the file.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    name: String,
    dims: Vec<u64>,
    type_number: u32,
    type_name: &'static str,
    place: TensorPlace,
}

/// The position of a tensor's bytes: a range of one of the model's files. Valid only for the model that
/// returned it ([`Gguf::bytes_at`](super::Gguf::bytes_at)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlace {
    /// Index of the file; 0 if the model is not split.
    pub(super) part: usize,
    start: usize,
    end: usize,
}

impl TensorPlace {
    /// Returns the index of the file; 0 if the model is not split.
    pub fn part(&self) -> usize {
        self.part
    }

    /// Returns the range of bytes in the file.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

impl TensorInfo {
    /// Returns the tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the dimensions in ggml's order: elements of a row first.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Returns ggml's name of the tensor's type, also for types that the kernels cannot compute with.
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// Returns the length of the tensor's data in bytes.
    pub fn data_len(&self) -> usize {
        self.place.range().len()
    }

    /// Returns the position of the tensor's bytes.
    pub fn place(&self) -> TensorPlace {
        self.place
    }

    /// Returns the tensor with its bytes.
    pub(super) fn view<'a>(&'a self, data: &'a [u8]) -> Result<TensorView<'a>, GgufError> {
        let format = Format::from_ggml_type(self.type_number).ok_or_else(|| GgufError::UnsupportedType {
            name: self.name.clone(),
            type_name: self.type_name,
        })?;
        Ok(TensorView { name: &self.name, dims: &self.dims, format, data, place: self.place })
    }
}

/// A tensor borrowed from the file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// Dimensions in ggml's order: elements of a row first; the product fits the data.
    pub dims: &'a [u64],
    /// The storage format of the elements.
    pub format: Format,
    /// The stored elements, row after row; exactly as many bytes as dimensions and format require.
    pub data: &'a [u8],
    /// The position of the data, for callers that borrow it again later.
    pub place: TensorPlace,
}

/// Reads `count` directory entries; offsets are still relative to the data section.
pub(super) fn read_directory(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>, GgufError> {
    cursor.check_count("tensor count", count, ENTRY_BYTES_MIN)?;
    (0..count).map(|_| read_entry(cursor)).collect()
}

/// A directory entry as read: the type is known and the byte length computed; the position is not yet
/// checked.
#[derive(Debug)]
pub(super) struct Entry {
    name: String,
    dims: Vec<u64>,
    ggml_type: &'static GgmlType,
    data_len: u64,
    offset: u64,
}

impl std::fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry, GgufError> {
    let name = cursor.name("tensor name", NAME_BYTES_MAX)?.to_owned();
    let n_dims = cursor.u32("tensor dimension count")?;
    if n_dims == 0 || n_dims > DIMS_MAX {
        return Err(GgufError::BadDims { name, dims: vec![u64::from(n_dims)] });
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        dims.push(cursor.u64("tensor dimension")?);
    }
    let number = cursor.u32("tensor type")?;
    let offset = cursor.u64("tensor offset")?;
    let Some(ggml_type) = TYPES.iter().find(|t| t.number == number) else {
        return Err(GgufError::UnknownType { name, found: number });
    };
    let data_len = data_len(&name, &dims, ggml_type)?;
    Ok(Entry { name, dims, ggml_type, data_len, offset })
}

/// Returns the bytes of a tensor's data.
fn data_len(name: &str, dims: &[u64], ggml_type: &GgmlType) -> Result<u64, GgufError> {
    if dims.contains(&0) {
        return Err(GgufError::BadDims { name: name.to_owned(), dims: dims.to_vec() });
    }
    let GgmlType { name: type_name, block_len, block_bytes, .. } = *ggml_type;
    if !dims[0].is_multiple_of(block_len) {
        let (name, cols, block) = (name.to_owned(), dims[0], block_len);
        return Err(GgufError::RaggedRow { name, cols, type_name, block });
    }
    let blocks = dims[1..].iter().try_fold(dims[0] / block_len, |n, &dim| n.checked_mul(dim));
    let elements = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    match (blocks.and_then(|n| n.checked_mul(block_bytes)), elements) {
        (Some(bytes), Some(n)) if bytes.max(n) <= i64::MAX as u64 => Ok(bytes),
        _ => Err(GgufError::TensorTooLarge { name: name.to_owned(), dims: dims.to_vec() }),
    }
}

/// Checks every tensor's position: aligned, inside the file, without overlap.
///
/// `part` is the file's index; `data_start` is where the data section begins, already rounded up to
/// `alignment`.
pub(super) fn place(
    part: usize,
    entries: Vec<Entry>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>, GgufError> {
    let mut tensors = Vec::with_capacity(entries.len());
    for Entry { name, dims, ggml_type, data_len, offset } in entries {
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::UnalignedTensor { name, offset, alignment });
        }
        let start = data_start.saturating_add(offset);
        let end = start.saturating_add(data_len);
        if end > file_len {
            return Err(GgufError::TensorOutOfFile { name, end, len: file_len });
        }
        // Both ends lie in a slice, so they fit `usize`.
        let place = TensorPlace { part, start: start as usize, end: end as usize };
        tensors.push(TensorInfo {
            name,
            dims,
            type_number: ggml_type.number,
            type_name: ggml_type.name,
            place,
        });
    }
    let mut by_place: Vec<&TensorInfo> = tensors.iter().collect();
    by_place.sort_by_key(|t| t.place.start);
    for pair in by_place.windows(2) {
        if pair[0].place.end > pair[1].place.start {
            let (first, second) = (pair[0].name.clone(), pair[1].name.clone());
            return Err(GgufError::TensorsOverlap { first, second });
        }
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_agrees_with_the_kernels() {
        let mut shared = 0;
        for t in TYPES {
            if let Some(format) = Format::from_ggml_type(t.number) {
                shared += 1;
                assert_eq!(format.block_len() as u64, t.block_len, "{}", t.name);
                assert_eq!(format.block_bytes() as u64, t.block_bytes, "{}", t.name);
                assert_eq!(format.ggml_type(), t.number, "{}", t.name);
            }
        }
        assert_eq!(shared, Format::ALL.len());
    }
}
