//! GGUF model files, versions 2 and 3, little-endian, read in place from a mapped file.
//!
//! The reader is total: any bytes give a model or a typed error. Every length, count and offset is
//! checked once, when the file is opened, so later reads cannot leave the file; memory taken is in
//! proportion to the file. Never copies tensor data, never changes a file.
//! Layout: the GGUF specification of ggml (docs/gguf.md).

mod cursor;
mod error;
mod map;
mod metadata;
mod tensor;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};

pub use error::{GgufError, GgufWriteError};
pub use metadata::Metadata;
pub use tensor::{TensorInfo, TensorView};
pub use writer::{GgufStream, GgufWriter, MetaValue};

use cursor::Cursor;
use map::MappedFile;

/// The data section's alignment where a file does not say.
const ALIGNMENT_DEFAULT: u64 = 32;
/// The largest alignment read: 1 MiB, far above any page size in use.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// Where the file's bytes are.
#[derive(Debug)]
enum Source {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(map) => map.bytes(),
            Source::Owned(bytes) => bytes,
        }
    }
}

/// An opened model file: metadata and tensors, borrowed from its bytes.
#[derive(Debug)]
pub struct Gguf {
    source: Source,
    path: Option<PathBuf>,
    metadata: Vec<metadata::Entry>,
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<usize>,
}

impl Gguf {
    /// Maps the file at `path` and checks its whole structure. Cost: one pass over header, metadata and
    /// directory; tensor data is not touched.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is malformed.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        let path = path.as_ref().to_path_buf();
        let open = |err| GgufError::Open { path: path.clone(), err };
        let file = File::open(&path).map_err(open)?;
        if !file.metadata().map_err(open)?.is_file() {
            return Err(GgufError::NotAFile { path });
        }
        let map = MappedFile::map(&file).map_err(|err| GgufError::Map { path: path.clone(), err })?;
        Gguf::parse(Source::Mapped(map), Some(path))
    }

    /// Checks a file that is already in memory.
    ///
    /// # Errors
    /// The bytes are malformed.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
        Gguf::parse(Source::Owned(bytes), None)
    }

    fn parse(source: Source, path: Option<PathBuf>) -> Result<Gguf, GgufError> {
        let file = source.bytes();
        let mut cursor = Cursor::new(file);
        let found = cursor.array("magic")?;
        if &found != b"GGUF" {
            return Err(GgufError::BadMagic { found });
        }
        match cursor.u32("version")? {
            2 | 3 => {}
            found if matches!(found.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
            found => return Err(GgufError::UnsupportedVersion { found }),
        }
        let n_tensors = cursor.u64("tensor count")?;
        let n_metadata = cursor.u64("metadata count")?;
        let metadata = metadata::read(&mut cursor, file, n_metadata)?;
        let alignment = alignment(Metadata::new(file, &metadata))?;
        let entries = tensor::read_directory(&mut cursor, n_tensors)?;
        // Positions in a slice are far below the limit, so rounding up cannot overflow.
        let data_start = (cursor.at() as u64).next_multiple_of(alignment);
        let tensors = tensor::place(entries, data_start, alignment, file.len() as u64)?;
        let by_name = sorted_by_name(&tensors)?;
        Ok(Gguf { source, path, metadata, tensors, by_name })
    }

    /// The file's metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self.source.bytes(), &self.metadata)
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`]; [`GgufError::UnsupportedType`] where its type is none that the
    /// kernels compute with.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, GgufError> {
        self.find_tensor(name)?.ok_or_else(|| GgufError::MissingTensor { name: name.to_owned() })
    }

    /// A tensor by name, `None` where the file has none of that name.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedType`] where its type is none that the kernels compute with.
    pub fn find_tensor(&self, name: &str) -> Result<Option<TensorView<'_>>, GgufError> {
        self.info(name).map(|info| info.view(self.source.bytes())).transpose()
    }

    /// Whether the file has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.info(name).is_some()
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// Where the file is; `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.source.bytes().len() as u64
    }

    /// All bytes of the file (for its digest).
    pub fn bytes(&self) -> &[u8] {
        self.source.bytes()
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        let found = self.by_name.binary_search_by(|&i| self.tensors[i].name().cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[found]])
    }
}

fn alignment(metadata: Metadata<'_>) -> Result<u64, GgufError> {
    let found = metadata.opt_u64("general.alignment")?.unwrap_or(ALIGNMENT_DEFAULT);
    if !found.is_power_of_two() || found > ALIGNMENT_MAX {
        return Err(GgufError::BadAlignment { found, max: ALIGNMENT_MAX });
    }
    Ok(found)
}

fn sorted_by_name(tensors: &[TensorInfo]) -> Result<Vec<usize>, GgufError> {
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_by(|&a, &b| tensors[a].name().cmp(tensors[b].name()));
    for pair in by_name.windows(2) {
        if tensors[pair[0]].name() == tensors[pair[1]].name() {
            return Err(GgufError::DuplicateTensor { name: tensors[pair[0]].name().to_owned() });
        }
    }
    Ok(by_name)
}
