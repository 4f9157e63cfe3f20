//! GGUF model files, versions 2 and 3, little-endian, read in place from a mapped file. A model may be split
//! over several files (`NAME-00001-of-00003.gguf`).
//!
//! The reader is total: any bytes give a model or a typed error. Every length, count and offset is checked
//! once, when the file is opened, so later reads cannot leave the file. Memory use is proportional to the
//! file. Never copies tensor data, never changes a file. Layout: the GGUF specification of ggml
//! (docs/gguf.md).

mod cursor;
mod error;
mod fingerprint;
mod map;
mod metadata;
mod split;
mod tensor;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use error::{GgufError, GgufWriteError};
pub use metadata::Metadata;
pub use tensor::{TensorInfo, TensorPlace, TensorView};
pub use writer::{GgufStream, GgufWriter, MetaValue};

use cursor::Cursor;
use map::MappedFile;
use split::Split;

/// The data section's alignment if a file does not say.
const ALIGNMENT_DEFAULT: u64 = 32;
/// The largest alignment accepted: 1 MiB, far above any page size in use.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// The source of the file's bytes.
#[derive(Debug)]
enum Source {
    Mapped { map: MappedFile, path: PathBuf },
    Owned(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped { map, .. } => map.bytes(),
            Source::Owned(bytes) => bytes,
        }
    }

    fn map(&self) -> Option<&MappedFile> {
        match self {
            Source::Mapped { map, .. } => Some(map),
            Source::Owned(_) => None,
        }
    }
}

/// One file, checked by itself.
#[derive(Debug)]
struct Part {
    source: Source,
    metadata: Vec<metadata::Entry>,
    tensors: Vec<TensorInfo>,
}

/// An opened model: metadata and tensors, borrowed from the bytes of its file or files.
#[derive(Debug)]
pub struct Gguf {
    /// The first file holds the metadata.
    parts: Vec<Source>,
    path: Option<PathBuf>,
    metadata: Vec<metadata::Entry>,
    /// Tensors of all parts, in file order.
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<usize>,
}

impl Gguf {
    /// Maps the file at `path` and checks its whole structure; if it is the first part of a split model, the
    /// other parts too. Cost: one pass over header, metadata and directory; tensor data is not touched.
    ///
    /// # Errors
    /// If a file cannot be opened or mapped or is malformed, `path` is a later part, or the parts do not
    /// belong together.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        let path = path.as_ref().to_path_buf();
        Gguf::join(Part::open(&path, 0)?, Some(path))
    }

    /// Checks a file that is already in memory.
    ///
    /// # Errors
    /// If the bytes are malformed, or only a part of a model.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
        Gguf::join(Part::parse(Source::Owned(bytes), 0)?, None)
    }

    /// Opens the parts that belong to the first, if any, and joins them to one model.
    fn join(first: Part, path: Option<PathBuf>) -> Result<Gguf, GgufError> {
        let split = Split::of(first.metadata())?;
        let mut gguf = Gguf {
            parts: vec![first.source],
            path,
            metadata: first.metadata,
            tensors: first.tensors,
            by_name: Vec::new(),
        };
        if let Some(split) = split {
            let rest = split.rest(gguf.path())?;
            let count = rest.len() as u32 + 1;
            for (path, no) in rest.into_iter().zip(1u32..) {
                let named =
                    |err| GgufError::Part { part: no + 1, count, path: path.clone(), err: Box::new(err) };
                let part = Part::open(&path, no as usize).map_err(named)?;
                split.check_part(no, &path, part.metadata(), gguf.metadata())?;
                gguf.parts.push(part.source);
                gguf.tensors.extend(part.tensors);
            }
            split.check_tensors(gguf.tensors.len())?;
        }
        gguf.by_name = sorted_by_name(&gguf.tensors)?;
        Ok(gguf)
    }

    /// Returns the model's metadata, which is that of its first file.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self.parts[0].bytes(), &self.metadata)
    }

    /// Returns a tensor by name.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`]; [`GgufError::UnsupportedType`] if the kernels cannot compute with its
    /// type.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, GgufError> {
        self.find_tensor(name)?.ok_or_else(|| GgufError::MissingTensor { name: name.to_owned() })
    }

    /// Returns a tensor by name, or `None` if the file has none of that name.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedType`] if the kernels cannot compute with its type.
    pub fn find_tensor(&self, name: &str) -> Result<Option<TensorView<'_>>, GgufError> {
        self.info(name).map(|info| info.view(self.bytes_at(info.place()))).transpose()
    }

    /// Whether the file has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.info(name).is_some()
    }

    /// Returns all tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// Returns the path of the file (of the first one of a split model); `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the length of all files together in bytes.
    pub fn file_len(&self) -> u64 {
        self.parts().map(|part| part.len() as u64).sum()
    }

    /// Returns the bytes of each file, in order; one file if the model is not split.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(Source::bytes)
    }

    /// Returns the bytes of a tensor, given its place in this model.
    ///
    /// # Panics
    /// If the place belongs to another model and lies outside this one.
    pub fn bytes_at(&self, place: TensorPlace) -> &[u8] {
        &self.parts[place.part].bytes()[place.range()]
    }

    /// Checks that all bytes read so far existed. If a mapped file is cut short or its disk fails, zeros are
    /// read instead. Call this after the bytes were used.
    ///
    /// # Errors
    /// [`GgufError::CutShort`], from then on for the rest of the model's life.
    pub fn intact(&self) -> Result<(), GgufError> {
        let cut = self.parts.iter().find_map(|part| match part {
            Source::Mapped { map, path } if map.is_cut() => Some(path),
            Source::Mapped { .. } | Source::Owned(_) => None,
        });
        cut.map_or(Ok(()), |path| Err(GgufError::CutShort { path: path.clone() }))
    }

    /// Returns the path of each file, in order; `None` for bytes in memory.
    pub fn part_paths(&self) -> Option<Vec<&Path>> {
        fn path(part: &Source) -> Option<&Path> {
            match part {
                Source::Mapped { path, .. } => Some(path.as_path()),
                Source::Owned(_) => None,
            }
        }
        self.parts.iter().map(path).collect()
    }

    /// Advice: from now on read only pages that are touched, without their neighbours. For a model of which a
    /// part stays in memory ([`Self::read_ahead`]) and the rest is read in another way.
    pub fn read_only_what_is_touched(&self) {
        self.parts.iter().filter_map(Source::map).for_each(MappedFile::read_only_what_is_touched);
    }

    /// Advice: these bytes of file `part` will be needed repeatedly. Returns the ranges at both ends that are
    /// not in whole huge pages; reading these ahead is faster.
    pub fn expect_use(&self, part: usize, range: Range<usize>) -> [Range<usize>; 2] {
        if let Some(map) = self.parts.get(part).and_then(Source::map) {
            map.expect_use(range.clone());
        }
        let whole = map::whole_huge_pages(&range);
        if whole.is_empty() {
            [range.clone(), range.end..range.end]
        } else {
            [range.start..whole.start, whole.end..range.end]
        }
    }

    /// Advice: reads these bytes of file `part` into memory. Blocks until they are read.
    pub fn read_ahead(&self, part: usize, range: Range<usize>) {
        if let Some(map) = self.parts.get(part).and_then(Source::map) {
            map.read_ahead(range);
        }
    }

    /// Advice: the pages inside these bytes of file `part` are no longer needed.
    pub fn let_go(&self, part: usize, range: Range<usize>) {
        if let Some(map) = self.parts.get(part).and_then(Source::map) {
            map.let_go(range);
        }
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        let found = self.by_name.binary_search_by(|&i| self.tensors[i].name().cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[found]])
    }
}

impl Part {
    /// Maps and checks one file; `no` is its index among the model's files.
    fn open(path: &Path, no: usize) -> Result<Part, GgufError> {
        let open = |err| GgufError::Open { path: path.to_owned(), err };
        let file = File::open(path).map_err(open)?;
        if !file.metadata().map_err(open)?.is_file() {
            return Err(GgufError::NotAFile { path: path.to_owned() });
        }
        let map = MappedFile::map(&file).map_err(|err| GgufError::Map { path: path.to_owned(), err })?;
        Part::parse(Source::Mapped { map, path: path.to_owned() }, no)
    }

    fn parse(source: Source, no: usize) -> Result<Part, GgufError> {
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
        let tensors = tensor::place(no, entries, data_start, alignment, file.len() as u64)?;
        Ok(Part { source, metadata, tensors })
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self.source.bytes(), &self.metadata)
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
