//! Writing GGUF files: tests, benches and random-weight models of a seed.
//!
//! Metadata and tensors come out in the order in which they were given, so equal calls make equal
//! files, byte for byte. Never holds a second copy of tensor data that was lent to it.

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
    /// An integer of 32 bits without sign.
    U32(u32),
    /// An integer of 64 bits without sign.
    U64(u64),
    /// An integer of 32 bits with sign.
    I32(i32),
    /// A number with a fraction.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A string.
    Str(String),
    /// An array of integers without sign.
    U32s(Vec<u32>),
    /// An array of integers with sign.
    I32s(Vec<i32>),
    /// An array of numbers with a fraction.
    F32s(Vec<f32>),
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
    Vec<u32> => U32s, Vec<i32> => I32s, Vec<f32> => F32s, Vec<String> => Strs,
}

impl From<Vec<&str>> for MetaValue {
    fn from(value: Vec<&str>) -> MetaValue {
        MetaValue::Strs(value.into_iter().map(str::to_owned).collect())
    }
}

/// A tensor to be written.
#[derive(Debug)]
struct Tensor<'a> {
    name: String,
    dims: Vec<u64>,
    format: Format,
    data: Cow<'a, [u8]>,
}

/// Collects metadata and tensors, then writes a GGUF file of version 3.
#[derive(Debug, Default)]
pub struct GgufWriter<'a> {
    metadata: Vec<(String, MetaValue)>,
    tensors: Vec<Tensor<'a>>,
}

impl<'a> GgufWriter<'a> {
    /// A file without metadata and tensors.
    pub fn new() -> GgufWriter<'a> {
        GgufWriter::default()
    }

    /// Sets a metadata value; a key set again keeps its place and takes the new value.
    pub fn set(&mut self, key: &str, value: impl Into<MetaValue>) -> &mut GgufWriter<'a> {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds a tensor; `dims` in ggml's order (elements of a row first), `data` already in `format`.
    ///
    /// # Errors
    /// The name is empty, too long or taken, or the data does not have the length that dimensions and
    /// format ask for.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        format: Format,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut GgufWriter<'a>, GgufWriteError> {
        let (data, max) = (data.into(), NAME_BYTES_MAX as usize);
        if name.is_empty() || name.len() > max || self.tensors.iter().any(|t| t.name == name) {
            return Err(GgufWriteError::BadName { name: name.to_owned(), max });
        }
        let want = data_len(dims, format).ok_or_else(|| GgufWriteError::BadDims {
            name: name.to_owned(),
            dims: dims.to_vec(),
            format: format.name(),
        })?;
        if data.len() != want {
            let (name, dims, found) = (name.to_owned(), dims.to_vec(), data.len());
            return Err(GgufWriteError::DataLength { name, dims, format: format.name(), found, want });
        }
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), format, data });
        Ok(self)
    }

    /// Writes the file to a stream: header, metadata, directory, then each tensor's data.
    ///
    /// # Errors
    /// A key is empty or too long, or the stream fails.
    pub fn write_to(&self, mut out: impl Write) -> Result<(), GgufWriteError> {
        let max = KEY_BYTES_MAX as usize;
        if let Some((key, _)) = self.metadata.iter().find(|(k, _)| k.is_empty() || k.len() > max) {
            return Err(GgufWriteError::BadName { name: key.clone(), max });
        }
        let head = self.head();
        out.write_all(&head)?;
        pad(&mut out, head.len())?;
        for tensor in &self.tensors {
            out.write_all(&tensor.data)?;
            pad(&mut out, tensor.data.len())?;
        }
        Ok(out.flush()?)
    }

    /// The whole file in memory.
    ///
    /// # Errors
    /// A key is empty or too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufWriteError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the file at `path`, replacing what is there.
    ///
    /// # Errors
    /// A key is empty or too long, or the file cannot be written.
    pub fn write_file(&self, path: &Path) -> Result<(), GgufWriteError> {
        self.write_to(BufWriter::new(File::create(path)?))
    }

    /// Everything before the data section.
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
            offset += (tensor.data.len() as u64).next_multiple_of(ALIGNMENT_DEFAULT);
        }
        head
    }
}

/// Bytes of a tensor's data; `None` where dimensions are empty, zero, too many or no whole blocks.
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
        MetaValue::Strs(v) => put_array(out, Kind::String, v, |o, x| put_str(o, x)),
    }
}
