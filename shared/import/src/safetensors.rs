//! Safetensors files: the position of each tensor, and its rows as f32.
//!
//! The header is read once and every position is checked against the file's length. Weights are read row by
//! row on demand and never kept. Files are not mapped, so nothing can change or vanish under the reader.
//! Source of the layout: the safetensors format (8 bytes of length, a JSON header, the data).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::error::ImportError;
use crate::json::JsonFile;

/// The most bytes of a header (the format's own limit).
const HEADER_BYTES_MAX: u64 = 100_000_000;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A tensor in a file.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Rows first, as Hugging Face writes shapes.
    pub(crate) shape: Vec<usize>,
    dtype: String,
    file: usize,
    at: u64,
}

/// All tensors of a model or an adapter.
#[derive(Debug)]
pub(crate) struct TensorFiles {
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, Stored>,
}

impl TensorFiles {
    /// Opens `model.safetensors`, or all files that `model.safetensors.index.json` names.
    pub(crate) fn open_model(dir: &Path) -> Result<TensorFiles, ImportError> {
        let single = dir.join(SINGLE);
        if single.is_file() {
            return TensorFiles::open(&single);
        }
        let Some(index) = JsonFile::open_if_there(dir.join(INDEX))? else {
            return Err(ImportError::NoWeights { dir: dir.to_owned(), single: SINGLE, index: INDEX });
        };
        let Some(weight_map) = index.opt_object("weight_map")? else {
            return Err(index.unsupported("weight_map", "an object of tensor names and file names"));
        };
        let mut all = TensorFiles { files: Vec::new(), tensors: BTreeMap::new() };
        let mut opened = BTreeMap::new();
        for (tensor, file) in weight_map.map() {
            // Only a bare name is accepted: an index must not lead out of its folder.
            let bare =
                file.as_str().filter(|name| Path::new(name).file_name().is_some_and(|last| last == *name));
            let Some(name) = bare else {
                return Err(weight_map.unsupported(tensor, "the name of a file in the same folder"));
            };
            if !opened.contains_key(name) {
                opened.insert(name, read_header(&dir.join(name), all.files.len())?);
                let (path, file, _) = &opened[name];
                let file = file.try_clone().map_err(|err| ImportError::Read { path: path.clone(), err })?;
                all.files.push((path.clone(), file));
            }
            let stored = opened[name].2.get(tensor);
            let stored = stored.ok_or_else(|| ImportError::MissingTensor { name: tensor.clone() })?;
            all.tensors.insert(tensor.clone(), stored.clone());
        }
        Ok(all)
    }

    /// Opens one file.
    pub(crate) fn open(path: &Path) -> Result<TensorFiles, ImportError> {
        let (path, file, tensors) = read_header(path, 0)?;
        Ok(TensorFiles { files: vec![(path, file)], tensors })
    }

    /// Returns all names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns a tensor, or `None` if there is none of that name.
    pub(crate) fn find(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// Returns rows of a tensor as f32; the tensor is read as a matrix of `cols` columns.
    ///
    /// # Errors
    /// If the tensor is absent or not F32, F16 or BF16, or the file cannot be read.
    pub(crate) fn rows(&self, name: &str, rows: Range<usize>, cols: usize) -> Result<Vec<f32>, ImportError> {
        let stored = self.find(name).ok_or_else(|| ImportError::MissingTensor { name: name.to_owned() })?;
        let dtype = stored.dtype(name)?;
        let row_bytes = cols * dtype.size_in_bytes();
        let mut bytes = vec![0; rows.len() * row_bytes];
        let (path, file) = &self.files[stored.file];
        let mut file: &File = file;
        file.seek(SeekFrom::Start(stored.at + (rows.start * row_bytes) as u64))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|err| ImportError::Read { path: path.clone(), err })?;
        let convert = |err| ImportError::Convert { name: name.to_owned(), err };
        Tensor::from_raw_buffer(&bytes, dtype, &[rows.len() * cols], &Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(DType::F32)?.to_vec1())
            .map_err(convert)
    }
}

impl Stored {
    /// Returns the type of its numbers if it is F32, F16 or BF16.
    pub(crate) fn dtype(&self, name: &str) -> Result<DType, ImportError> {
        match self.dtype.as_str() {
            "F32" => Ok(DType::F32),
            "F16" => Ok(DType::F16),
            "BF16" => Ok(DType::BF16),
            found => Err(ImportError::UnsupportedType { name: name.to_owned(), found: found.to_owned() }),
        }
    }
}

type Header = (PathBuf, File, BTreeMap<String, Stored>);

fn read_header(path: &Path, file_idx: usize) -> Result<Header, ImportError> {
    let read = |err| ImportError::Read { path: path.to_owned(), err };
    let bad = |what: String| ImportError::BadSafetensors { path: path.to_owned(), what };
    let mut file = File::open(path).map_err(read)?;
    let file_len = file.metadata().map_err(read)?.len();
    let mut len = [0; 8];
    if file_len < len.len() as u64 {
        return Err(bad(format!("it has {file_len} bytes")));
    }
    file.read_exact(&mut len).map_err(read)?;
    let header_len = u64::from_le_bytes(len);
    let max = HEADER_BYTES_MAX.min(file_len - 8);
    if header_len > max {
        return Err(bad(format!("its header has {header_len} bytes, at most {max} fit")));
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact(&mut header).map_err(read)?;
    let header = JsonFile::parse(path.to_owned(), &header)?;
    let data_len = file_len - 8 - header_len;
    let mut tensors = BTreeMap::new();
    for (name, value) in header.map().iter().filter(|(name, _)| *name != "__metadata__") {
        let (stored, end) = read_entry(value, file_idx)
            .ok_or_else(|| bad(format!("the entry of tensor `{}` is malformed", short(name))))?;
        if end > data_len {
            return Err(bad(format!("tensor `{}` ends at {end}, the data at {data_len}", short(name))));
        }
        tensors.insert(name.clone(), Stored { at: stored.at + 8 + header_len, ..stored });
    }
    Ok((path.to_owned(), file, tensors))
}

/// Returns an entry and the end of its data, or `None` if its shape, type and position do not fit together.
fn read_entry(value: &Value, file: usize) -> Option<(Stored, u64)> {
    let dtype = value.get("dtype")?.as_str()?.to_owned();
    let shape = value.get("shape")?.as_array()?;
    let shape: Vec<usize> =
        shape.iter().map(|dim| usize::try_from(dim.as_u64()?).ok()).collect::<Option<_>>()?;
    let offsets = value.get("data_offsets")?.as_array()?;
    let [start, end] = offsets.as_slice() else { return None };
    let (at, end) = (start.as_u64()?, end.as_u64()?);
    let len = end.checked_sub(at)?;
    let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim as u64))?;
    let width = match dtype.as_str() {
        "F32" => Some(4),
        "F16" | "BF16" => Some(2),
        // Another type is refused by name when the tensor is needed; its length is not checked.
        _ => None,
    };
    if width.is_some_and(|width| elements.checked_mul(width) != Some(len)) {
        return None;
    }
    Some((Stored { shape, dtype, file, at }, end))
}

fn short(name: &str) -> String {
    name.chars().take(80).collect()
}
