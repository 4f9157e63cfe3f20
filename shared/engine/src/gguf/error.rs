//! What can be wrong with a GGUF file, and with what is asked of it.

use std::io;
use std::path::PathBuf;

use baton_kernels_cpu::Format;

/// Why a GGUF file was refused, or why a value or tensor of it cannot be had.
///
/// Every variant names the limit and the value; keys and names from the file are shown shortened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened.
    #[error("open `{path}`")]
    Open {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        err: io::Error,
    },
    /// The file could not be mapped into memory.
    #[error("map `{path}`")]
    Map {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        err: io::Error,
    },
    /// Bytes of a mapped file went away while it was in use.
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
        /// The path asked for.
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
    /// A version other than 2 and 3.
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
        /// Where it begins.
        at: u64,
        /// Its length.
        need: u64,
        /// The length of the file.
        len: u64,
    },
    /// A count in the header is larger than the rest of the file could hold.
    #[error("{what} is {count}, the {left} bytes left hold at most {max}")]
    CountTooLarge {
        /// The thing counted.
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
    /// Arrays lie in arrays too deep.
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
    /// A tensor has no dimension, too many, or one of zero.
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
    /// A tensor's type is known to ggml but cannot be computed with here.
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
        /// The byte after its last one, at most `u64::MAX`.
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
    /// A metadata key that is needed is absent.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value has another type than the one needed.
    #[error("metadata key `{key}` is {found}, want {want}")]
    WrongType {
        /// The key.
        key: String,
        /// The type found.
        found: &'static str,
        /// The type needed.
        want: &'static str,
    },
    /// A metadata number does not fit the type needed.
    #[error("metadata key `{key}` is {value}, want a number in {want}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The number found.
        value: i128,
        /// The type needed.
        want: &'static str,
    },
    /// `split.no` or `split.count` make no sense.
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
    /// Bytes in memory are a part of a split model, which only a path can lead to.
    #[error("bytes are part {part} of a model of {count} files; open the first file by its path")]
    SplitInMemory {
        /// The part, from 1.
        part: u32,
        /// The number of parts.
        count: u32,
    },
    /// A part of a split model has a name from which those of the others cannot be told.
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
        /// What is wrong with it.
        #[source]
        err: Box<GgufError>,
    },
    /// A file says that it is another part than its name does.
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
    /// Parts of different models have names of one set.
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
    /// The parts together do not hold as many tensors as the first says.
    #[error("{count} parts hold {found} tensors, split.tensors.count is {want}")]
    SplitTensorCount {
        /// The number of parts.
        count: u32,
        /// Tensors of all parts.
        found: u64,
        /// Tensors that the first part says.
        want: u64,
    },
    /// A tensor that is needed is absent.
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
    /// A tensor's data does not have the length that its dimensions and format ask for.
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
    /// A tensor's dimensions are empty, zero, too many, or no whole number of blocks.
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
    /// More data came for a tensor than it has room for, or data after the last tensor (no name).
    #[error("{found} bytes came for tensor `{name}`, which takes {left} more")]
    Surplus {
        /// The tensor.
        name: String,
        /// Bytes that came.
        found: usize,
        /// Bytes that it still takes.
        left: usize,
    },
    /// The file was ended before a tensor's data was complete.
    #[error("tensor `{name}` got {found} of its {want} bytes")]
    Unfinished {
        /// The first tensor without all its data.
        name: String,
        /// Bytes that came.
        found: usize,
        /// Bytes that it takes.
        want: usize,
    },
    /// The file or stream could not be written.
    #[error("write gguf")]
    Io(#[from] io::Error),
}
