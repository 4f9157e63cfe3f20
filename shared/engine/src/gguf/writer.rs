//! Writes GGUF files: imported models, and random models for tests and benches.
//!
//! Metadata and tensors are written in the order in which they were given, so equal calls make equal files,
//! byte for byte. Never holds a second copy of borrowed tensor data. A file larger than memory is written
//! with [`GgufWriter::declare`] and [`GgufWriter::begin`]; its data then passes through once.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use baton_kernels_cpu::Format;

use super::ALIGNMENT_DEFAULT;
use super::error::GgufWriteError;
use super::metadata::{KEY_BYTES_MAX, Kind};
use super::tensor::{DIMS_MAX, NAME_BYTES_MAX};

/// A metadata value to be written.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum MetaValue {
    /// An unsigned 32-bit integer.
    U32(u32),
    /// An unsigned 64-bit integer.
    U64(u64),
    /// A signed 32-bit integer.
    I32(i32),
    /// A float.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A string.
    Str(String),
    /// An array of unsigned integers.
    U32s(Vec<u32>),
    /// An array of signed integers.
    I32s(Vec<i32>),
    /// An array of floats.
    F32s(Vec<f32>),
    /// An array of booleans.
    Bools(Vec<bool>),
    /// An array of strings.
    Strs(Vec<String>),
}

macro_rules! meta_from {
    ($($ty:ty => $variant:ident),* $(,)?) => {$(
        impl From<$ty> for MetaValue {
            fn from(value: $ty) -> MetaValue {
                MetaValue::$variant(value.into())
            }
        }
    )*};
}

meta_from! {
    u32 => U32, u64 => U64, i32 => I32, f32 => F32, bool => Bool, &str => Str, String => Str,
    Vec<u32> => U32s, Vec<i32> => I32s, Vec<f32> => F32s, Vec<bool> => Bools,
    Vec<String> => Strs,
}

impl From<Vec<&str>> for MetaValue {
    fn from(value: Vec<&str>) -> MetaValue {
        MetaValue::Strs(value.into_iter().map(str::to_owned).collect())
    }
}

/// A tensor to be written.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) format: Format,
    /// Bytes of its data, without padding.
    len: usize,
    /// `None` if the data is given later, with [`GgufStream::put`].
    pub(super) data: Option<Cow<'a, [u8]>>,
}

/// Collects metadata and tensors, then writes a GGUF file of version 3.
#[derive(Debug, Default)]
pub struct GgufWriter<'a> {
    pub(super) metadata: Vec<(String, MetaValue)>,
    pub(super) tensors: Vec<Tensor<'a>>,
}

impl<'a> GgufWriter<'a> {
    /// Returns a file without metadata and tensors.
    pub fn new() -> GgufWriter<'a> {
        GgufWriter::default()
    }

    /// Sets a metadata value; a key that is set again keeps its position and takes the new value.
    pub fn set(&mut self, key: &str, value: impl Into<MetaValue>) -> &mut GgufWriter<'a> {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds a tensor; `dims` is in ggml's order (elements of a row first), `data` is already in `format`.
    ///
    /// # Errors
    /// If the name is empty, too long or taken, or the data does not have the length that dimensions and
    /// format require.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        format: Format,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut GgufWriter<'a>, GgufWriteError> {
        let data = data.into();
        let want = self.checked_len(name, dims, format)?;
        if data.len() != want {
            let (name, dims, found) = (name.to_owned(), dims.to_vec(), data.len());
            return Err(GgufWriteError::DataLength { name, dims, format: format.name(), found, want });
        }
        self.push(name, dims, format, want, Some(data));
        Ok(self)
    }

    /// Adds a tensor whose data is given later, with [`GgufStream::put`].
    ///
    /// # Errors
    /// If the name is empty, too long or taken, or the format cannot hold the dimensions.
    pub fn declare(
        &mut self,
        name: &str,
        dims: &[u64],
        format: Format,
    ) -> Result<&mut GgufWriter<'a>, GgufWriteError> {
        let len = self.checked_len(name, dims, format)?;
        self.push(name, dims, format, len, None);
        Ok(self)
    }

    fn push(&mut self, name: &str, dims: &[u64], format: Format, len: usize, data: Option<Cow<'a, [u8]>>) {
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), format, len, data });
    }

    /// Checks a new tensor; returns the bytes of its data.
    fn checked_len(&self, name: &str, dims: &[u64], format: Format) -> Result<usize, GgufWriteError> {
        let max = NAME_BYTES_MAX as usize;
        if name.is_empty() || name.len() > max || self.tensors.iter().any(|t| t.name == name) {
            return Err(GgufWriteError::BadName { name: name.to_owned(), max });
        }
        data_len(dims, format).ok_or_else(|| GgufWriteError::BadDims {
            name: name.to_owned(),
            dims: dims.to_vec(),
            format: format.name(),
        })
    }

    /// Writes everything before the data. Returns the stream that takes the tensors' data in the order in
    /// which they were added. Data given to [`Self::tensor`] must be put there as well.
    ///
    /// # Errors
    /// If a key is empty or too long, or the stream fails.
    pub fn begin<W: Write>(&self, mut out: W) -> Result<GgufStream<W>, GgufWriteError> {
        let max = KEY_BYTES_MAX as usize;
        if let Some((key, _)) = self.metadata.iter().find(|(k, _)| k.is_empty() || k.len() > max) {
            return Err(GgufWriteError::BadName { name: key.clone(), max });
        }
        let head = self.head();
        out.write_all(&head)?;
        pad(&mut out, head.len())?;
        let tensors = self.tensors.iter().map(|t| (t.name.clone(), t.len)).collect();
        Ok(GgufStream { out, tensors, at: 0, filled: 0 })
    }

    /// Writes the file to a stream: header, metadata, directory, then each tensor's data.
    ///
    /// # Errors
    /// If a key is empty or too long, a tensor was only declared, or the stream fails.
    pub fn write_to(&self, out: impl Write) -> Result<(), GgufWriteError> {
        let mut stream = self.begin(out)?;
        for data in self.tensors.iter().map_while(|tensor| tensor.data.as_deref()) {
            stream.put(data)?;
        }
        stream.finish().map(drop)
    }

    /// Returns the whole file in memory.
    ///
    /// # Errors
    /// If a key is empty or too long, or a tensor was only declared.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufWriteError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the file at `path`, replacing an existing one.
    ///
    /// # Errors
    /// As [`GgufWriter::write_to`].
    pub fn write_file(&self, path: &Path) -> Result<(), GgufWriteError> {
        self.write_to(BufWriter::new(File::create(path)?))
    }

    /// Returns everything before the data section.
    fn head(&self) -> Vec<u8> {
        let mut head = b"GGUF".to_vec();
        head.extend(3u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_str(&mut head, key);
            put_value(&mut head, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_str(&mut head, &tensor.name);
            head.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| head.extend(dim.to_le_bytes()));
            head.extend(tensor.format.ggml_type().to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset += (tensor.len as u64).next_multiple_of(ALIGNMENT_DEFAULT);
        }
        head
    }
}

/// Takes the data of a file whose header is written; returned by [`GgufWriter::begin`].
#[derive(Debug)]
pub struct GgufStream<W> {
    out: W,
    /// Names and bytes of data, in file order.
    tensors: Vec<(String, usize)>,
    /// Index of the tensor that the next byte belongs to.
    at: usize,
    /// Bytes of it given so far.
    filled: usize,
}

impl<W: Write> GgufStream<W> {
    /// Appends to the data of the current tensor; after its last byte pads and moves on to the next. Data may
    /// come in pieces of any length, but no piece may reach into the next tensor.
    ///
    /// # Errors
    /// [`GgufWriteError::Surplus`] if the tensor has less room or no tensor is left; an I/O error of the
    /// stream.
    pub fn put(&mut self, piece: &[u8]) -> Result<(), GgufWriteError> {
        let (name, len) = self.tensors.get(self.at).map_or(("", 0), |(name, len)| (name, *len));
        let left = len - self.filled;
        if piece.len() > left {
            return Err(GgufWriteError::Surplus { name: name.to_owned(), found: piece.len(), left });
        }
        self.out.write_all(piece)?;
        self.filled += piece.len();
        if self.filled == len && self.at < self.tensors.len() {
            pad(&mut self.out, len)?;
            (self.at, self.filled) = (self.at + 1, 0);
        }
        Ok(())
    }

    /// Returns the tensor whose data comes next, or `None` if the file is complete.
    pub fn next_tensor(&self) -> Option<&str> {
        self.tensors.get(self.at).map(|(name, _)| name.as_str())
    }

    /// Ends the file, flushes the output and returns it.
    ///
    /// # Errors
    /// [`GgufWriteError::Unfinished`] if data is missing; an I/O error of the stream.
    pub fn finish(mut self) -> Result<W, GgufWriteError> {
        if let Some((name, want)) = self.tensors.get(self.at) {
            let (name, found, want) = (name.clone(), self.filled, *want);
            return Err(GgufWriteError::Unfinished { name, found, want });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Returns the bytes of a tensor's data, or `None` if dimensions are empty, zero, too many or not whole
/// blocks.
fn data_len(dims: &[u64], format: Format) -> Option<usize> {
    if dims.is_empty() || dims.len() > DIMS_MAX as usize || dims.contains(&0) {
        return None;
    }
    let row_bytes = format.row_bytes(usize::try_from(dims[0]).ok()?)?;
    dims[1..].iter().try_fold(row_bytes, |n, &dim| n.checked_mul(usize::try_from(dim).ok()?))
}

fn pad(out: &mut impl Write, written: usize) -> std::io::Result<()> {
    let written = written as u64;
    let zeros = [0u8; ALIGNMENT_DEFAULT as usize];
    out.write_all(&zeros[..(written.next_multiple_of(ALIGNMENT_DEFAULT) - written) as usize])
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_array<T>(out: &mut Vec<u8>, kind: Kind, values: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.extend(Kind::Array.number().to_le_bytes());
    out.extend(kind.number().to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|value| put(out, value));
}

fn put_value(out: &mut Vec<u8>, value: &MetaValue) {
    let mut scalar = |kind: Kind, bytes: &[u8]| {
        out.extend(kind.number().to_le_bytes());
        out.extend(bytes);
    };
    match value {
        MetaValue::U32(v) => scalar(Kind::U32, &v.to_le_bytes()),
        MetaValue::U64(v) => scalar(Kind::U64, &v.to_le_bytes()),
        MetaValue::I32(v) => scalar(Kind::I32, &v.to_le_bytes()),
        MetaValue::F32(v) => scalar(Kind::F32, &v.to_le_bytes()),
        MetaValue::Bool(v) => scalar(Kind::Bool, &[u8::from(*v)]),
        MetaValue::Str(v) => {
            out.extend(Kind::String.number().to_le_bytes());
            put_str(out, v);
        }
        MetaValue::U32s(v) => put_array(out, Kind::U32, v, |o, x| o.extend(x.to_le_bytes())),
        MetaValue::I32s(v) => put_array(out, Kind::I32, v, |o, x| o.extend(x.to_le_bytes())),
        MetaValue::F32s(v) => put_array(out, Kind::F32, v, |o, x| o.extend(x.to_le_bytes())),
        MetaValue::Bools(v) => put_array(out, Kind::Bool, v, |o, x| o.push(u8::from(*x))),
        MetaValue::Strs(v) => put_array(out, Kind::String, v, |o, x| put_str(o, x)),
    }
}
