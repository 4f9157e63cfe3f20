//! JSON files of a model folder, with errors that name file and key.
//!
//! A key with the value `null` counts as absent: Hugging Face's libraries write it for "not set".

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::ImportError;

/// The most bytes of a JSON file: far above the largest vocabularies in use (34 MB).
const BYTES_MAX: u64 = 512 << 20;

/// A JSON object and the file that holds it.
#[derive(Debug, Clone)]
pub(crate) struct JsonFile {
    path: PathBuf,
    map: Map<String, Value>,
}

/// Reads a whole file of at most `max` bytes; returns `None` if there is none.
pub(crate) fn read_file(path: &Path, max: u64) -> Result<Option<Vec<u8>>, ImportError> {
    let read = |err| ImportError::Read { path: path.to_owned(), err };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(read(err)),
    };
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > max {
        return Err(ImportError::FileTooLong { path: path.to_owned(), max });
    }
    Ok(Some(bytes))
}

impl JsonFile {
    /// Reads a file that must exist.
    pub(crate) fn open(path: PathBuf) -> Result<JsonFile, ImportError> {
        JsonFile::open_if_there(path.clone())?.ok_or(ImportError::MissingFile { path })
    }

    /// Reads a file; returns `None` if there is none.
    pub(crate) fn open_if_there(path: PathBuf) -> Result<Option<JsonFile>, ImportError> {
        let Some(bytes) = read_file(&path, BYTES_MAX)? else { return Ok(None) };
        JsonFile::parse(path, &bytes).map(Some)
    }

    /// Parses an object from the file at `path`.
    pub(crate) fn parse(path: PathBuf, bytes: &[u8]) -> Result<JsonFile, ImportError> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => Ok(JsonFile { path, map }),
            Ok(_) => Err(ImportError::NotAnObject { path }),
            Err(err) => Err(ImportError::Json { path, err }),
        }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all keys and values.
    pub(crate) fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// Returns the value of a key; `None` if it is absent or `null`.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns an object inside the file, as if it were a file of its own.
    pub(crate) fn opt_object(&self, key: &str) -> Result<Option<JsonFile>, ImportError> {
        let inner = |value: &Value| {
            value.as_object().map(|map| JsonFile { path: self.path.clone(), map: map.clone() })
        };
        self.opt(key, "an object", inner)
    }

    /// Returns a string.
    pub(crate) fn opt_str(&self, key: &str) -> Result<Option<&str>, ImportError> {
        self.opt(key, "a string", Value::as_str)
    }

    /// Returns a boolean.
    pub(crate) fn opt_bool(&self, key: &str) -> Result<Option<bool>, ImportError> {
        self.opt(key, "true or false", Value::as_bool)
    }

    /// Returns a count of at least 1 and below 2^31.
    pub(crate) fn opt_count(&self, key: &str) -> Result<Option<u32>, ImportError> {
        self.opt(key, "a whole number of 1 to 2147483647", as_count)
    }

    /// Returns a count that must be present.
    pub(crate) fn count(&self, key: &str) -> Result<u32, ImportError> {
        self.opt_count(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a finite number.
    pub(crate) fn opt_f64(&self, key: &str) -> Result<Option<f64>, ImportError> {
        self.opt(key, "a finite number", |value| value.as_f64().filter(|value| value.is_finite()))
    }

    /// Returns a finite number that must be present.
    pub(crate) fn f64(&self, key: &str) -> Result<f64, ImportError> {
        self.opt_f64(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a list of numbers.
    pub(crate) fn opt_f64s(&self, key: &str) -> Result<Option<Vec<f64>>, ImportError> {
        self.opt(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// Returns the error for a value of this file that is not supported.
    pub(crate) fn unsupported(&self, key: &str, want: impl Into<String>) -> ImportError {
        let found = self.map.get(key).map_or_else(|| "absent".to_owned(), short);
        ImportError::Unsupported { path: self.path.clone(), key: key.to_owned(), found, want: want.into() }
    }

    fn missing(&self, key: &str) -> ImportError {
        ImportError::MissingKey { path: self.path.clone(), key: key.to_owned() }
    }

    fn opt<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.unsupported(key, want))
    }
}

/// Returns a JSON number as a count from 1 to 2^31 - 1.
pub(crate) fn as_count(value: &Value) -> Option<u32> {
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok())?;
    (1..=i32::MAX as u32).contains(&count).then_some(count)
}

/// Returns a value as text, shortened for a message.
fn short(value: &Value) -> String {
    const SHOWN: usize = 80;
    let text = value.to_string();
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN).chain(['…']).collect() }
}
