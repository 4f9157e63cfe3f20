//! Errors of a GGUF file, of reading from it, and of writing one.

use std::io;
use std::path::PathBuf;

use baton_kernels_cpu::Format;

/// Why a GGUF file was refused, or why a value or tensor cannot be returned.
///
/// Every variant names the limit and the value; keys and names from the file are shortened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened.
    #[error("open `{path}`")]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        err: io::Error,
    },
    /// The file could not be mapped into memory.
    #[error("map `{path}`")]
    Map {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        err: io::Error,
    },
    /// Bytes of a mapped file disappeared while it was in use.
    #[error(
        "`{path}` was cut short, or cannot be read any more, while it was in use: put the whole file back and start again"
    )]
    CutShort {
        /// The file.
        path: PathBuf,
    },
    /// The path is a folder, a pipe or a device.
    #[error("`{path}` is not a regular file")]
    NotAFile {
        /// The path requested.
        path: PathBuf,
    },
    /// The first four bytes are not `GGUF`.
    #[error("this is not a GGUF file: it begins with {:?}", String::from_utf8_lossy(found))]
    BadMagic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The file was written by a big-endian machine.
    #[error("file is big-endian; only little-endian files are read")]
    BigEndian,
    /// The version is not 2 or 3.
    #[error("version is {found}, want 2 or 3")]
    UnsupportedVersion {
        /// The version field.
        found: u32,
    },
    /// The file ends inside a field.
    #[error("{what} at byte {at} needs {need} bytes, file has {len}")]
    Truncated {
        /// The field being read.
        what: &'static str,
        /// The position where it begins.
        at: u64,
        /// Its length.
        need: u64,
        /// The length of the file.
        len: u64,
    },
    /// A count in the header is larger than the rest of the file could hold.
    #[error("{what} is {count}, the {left} bytes left hold at most {max}")]
    CountTooLarge {
        /// The items counted.
        what: &'static str,
        /// The count claimed.
        count: u64,
        /// The most that fit.
        max: u64,
        /// Bytes after the count.
        left: u64,
    },
    /// A key or a tensor name is empty or too long.
    #[error("{what} has {len} bytes, want 1 to {max}")]
    BadNameLength {
        /// A metadata key or a tensor name.
        what: &'static str,
        /// Its length.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A key, name or string value is not UTF-8.
    #[error("{what} at byte {at} is not utf-8")]
    NotUtf8 {
        /// What was read.
        what: &'static str,
        /// Where its bytes begin.
        at: u64,
    },
    /// Two metadata entries have one key.
    #[error("metadata key `{key}` is given twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// Two tensors have one name.
    #[error("tensor `{name}` is given twice")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// A metadata value has a type number that GGUF does not define.
    #[error("metadata key `{key}` has value type {found}, want 0 to 12")]
    BadValueType {
        /// The key.
        key: String,
        /// The type number.
        found: u32,
    },
    /// A boolean is neither 0 nor 1.
    #[error("metadata key `{key}` has boolean {found}, want 0 or 1")]
    BadBool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// Arrays are nested too deep.
    #[error("metadata key `{key}` nests arrays more than {max} deep")]
    ArrayTooDeep {
        /// The key.
        key: String,
        /// The limit.
        max: usize,
    },
    /// `general.alignment` is not a power of two.
    #[error("alignment is {found}, want a power of two up to {max}")]
    BadAlignment {
        /// The value.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A tensor has no dimension, too many, or a dimension of zero.
    #[error("tensor `{name}` has dimensions {dims:?}, want 1 to 4 of at least 1")]
    BadDims {
        /// The tensor.
        name: String,
        /// Its dimensions as far as read.
        dims: Vec<u64>,
    },
    /// The number of elements or bytes does not fit 63 bits.
    #[error("tensor `{name}` with dimensions {dims:?} is larger than any file")]
    TensorTooLarge {
        /// The tensor.
        name: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A tensor's type number is unknown.
    #[error("tensor `{name}` has type number {found}, which ggml does not define")]
    UnknownType {
        /// The tensor.
        name: String,
        /// The type number.
        found: u32,
    },
    /// ggml knows a tensor's type, but the kernels cannot compute with it.
    #[error("tensor `{name}` has type {type_name}; supported are {}", Format::ALL.map(Format::name).join(", "))]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// ggml's name of the type.
        type_name: &'static str,
    },
    /// A row is not a whole number of quantization blocks.
    #[error("tensor `{name}` has rows of {cols} elements, {type_name} wants a multiple of {block}")]
    RaggedRow {
        /// The tensor.
        name: String,
        /// Elements of a row.
        cols: u64,
        /// ggml's name of the type.
        type_name: &'static str,
        /// Elements of a block.
        block: u64,
    },
    /// A tensor begins at an offset that is not aligned.
    #[error("tensor `{name}` begins at offset {offset}, alignment is {alignment}")]
    UnalignedTensor {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor reaches past the end of the file.
    #[error("tensor `{name}` ends at byte {end}, file has {len}")]
    TensorOutOfFile {
        /// The tensor.
        name: String,
        /// One past its last byte, at most `u64::MAX`.
        end: u64,
        /// The length of the file.
        len: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    TensorsOverlap {
        /// The one that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
    },
    /// A required metadata key is absent.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value has the wrong type.
    #[error("metadata key `{key}` is {found}, want {want}")]
    WrongType {
        /// The key.
        key: String,
        /// The type found.
        found: &'static str,
        /// The type needed.
        want: &'static str,
    },
    /// A metadata number does not fit the wanted type.
    #[error("metadata key `{key}` is {value}, want a number in {want}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The number found.
        value: i128,
        /// The type needed.
        want: &'static str,
    },
    /// `split.no` or `split.count` is out of range.
    #[error(
        "split.no is {no} and split.count {count}, want a number below the count, and at most {max} parts"
    )]
    BadSplit {
        /// The part's number, from 0.
        no: u32,
        /// The number of parts.
        count: u32,
        /// The limit.
        max: u32,
    },
    /// Bytes in memory are a part of a split model; the other parts can be found only by path.
    #[error("bytes are part {part} of a model of {count} files; open the first file by its path")]
    SplitInMemory {
        /// The part, from 1.
        part: u32,
        /// The number of parts.
        count: u32,
    },
    /// The file name of a part does not have the form from which the other names follow.
    #[error("`{path}` is part {part} of {count} and must be named `{want}`")]
    SplitName {
        /// The file.
        path: PathBuf,
        /// The part, from 1.
        part: u32,
        /// The number of parts.
        count: u32,
        /// The name's form.
        want: String,
    },
    /// A later part of a split model was opened.
    #[error("file is part {part} of {count}; open part 1, `{first}`")]
    NotFirstPart {
        /// The part, from 1.
        part: u32,
        /// The number of parts.
        count: u32,
        /// The file to open instead.
        first: PathBuf,
    },
    /// A part of a split model cannot be read.
    #[error("part {part} of {count}, `{path}`")]
    Part {
        /// The part, from 1.
        part: u32,
        /// The number of parts.
        count: u32,
        /// The file.
        path: PathBuf,
        /// The fault of the part.
        #[source]
        err: Box<GgufError>,
    },
    /// A file's metadata states another part than its name does.
    #[error("`{path}` says that it is part {found_part} of {found_count}, want {part} of {count}")]
    WrongPart {
        /// The file.
        path: PathBuf,
        /// The part wanted, from 1.
        part: u32,
        /// The number of parts wanted.
        count: u32,
        /// The part that the file says it is.
        found_part: u32,
        /// The number of parts that the file says.
        found_count: u32,
    },
    /// Files named as one set are parts of different models.
    #[error("`{path}`, part {part} of {count}, has another `{key}` than part 1")]
    MixedParts {
        /// The file.
        path: PathBuf,
        /// The part, from 1.
        part: u32,
        /// The number of parts.
        count: u32,
        /// The key that differs.
        key: String,
    },
    /// The parts together do not hold as many tensors as the first part states.
    #[error("{count} parts hold {found} tensors, split.tensors.count is {want}")]
    SplitTensorCount {
        /// The number of parts.
        count: u32,
        /// Tensors of all parts.
        found: u64,
        /// Tensors that the first part states.
        want: u64,
    },
    /// A required tensor is absent.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// The name.
        name: String,
    },
}

/// Why a GGUF file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufWriteError {
    /// A tensor's data does not have the length that its dimensions and format require.
    #[error("tensor `{name}` has {found} bytes, dimensions {dims:?} in {format} want {want}")]
    DataLength {
        /// The tensor.
        name: String,
        /// Its dimensions.
        dims: Vec<u64>,
        /// The format's name.
        format: &'static str,
        /// Bytes given.
        found: usize,
        /// Bytes wanted.
        want: usize,
    },
    /// A tensor's dimensions are empty, zero, too many, or not a whole number of blocks.
    #[error("tensor `{name}` cannot have dimensions {dims:?} in {format}")]
    BadDims {
        /// The tensor.
        name: String,
        /// Its dimensions.
        dims: Vec<u64>,
        /// The format's name.
        format: &'static str,
    },
    /// A key or tensor name is empty, too long, or used twice.
    #[error("name `{name}` is empty, longer than {max} bytes, or used twice")]
    BadName {
        /// The name.
        name: String,
        /// The limit.
        max: usize,
    },
    /// More data was given for a tensor than it has room for, or data after the last tensor (empty name).
    #[error("{found} bytes came for tensor `{name}`, which takes {left} more")]
    Surplus {
        /// The tensor.
        name: String,
        /// Bytes given.
        found: usize,
        /// Bytes for which it still has room.
        left: usize,
    },
    /// The file was ended before the data of a tensor was complete.
    #[error("tensor `{name}` got {found} of its {want} bytes")]
    Unfinished {
        /// The first tensor with missing data.
        name: String,
        /// Bytes given.
        found: usize,
        /// Bytes required.
        want: usize,
    },
    /// The file or stream could not be written.
    #[error("write gguf")]
    Io(#[from] io::Error),
}
