//! Typed access to a GGUF file's metadata.
//!
//! Strings and arrays stay in the file: an entry stores only their position. So reading the metadata of any
//! file takes memory in proportion to the number of its keys.

use std::ops::Range;

use super::cursor::Cursor;
use super::error::GgufError;

/// The most bytes of a metadata key (the format's own limit).
pub(super) const KEY_BYTES_MAX: u64 = 65_535;
/// Arrays in arrays are skipped, not read; real files have none.
const ARRAY_DEPTH_MAX: usize = 4;
/// The least bytes of an entry: key length, one letter, type, one byte of value.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// The value types of GGUF, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::String,
        Kind::Array,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    fn from_number(number: u32) -> Option<Kind> {
        Kind::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the type's number in a file.
    pub(super) fn number(self) -> u32 {
        self as u32
    }

    fn name(self) -> &'static str {
        match self {
            Kind::U8 => "u8",
            Kind::I8 => "i8",
            Kind::U16 => "u16",
            Kind::I16 => "i16",
            Kind::U32 => "u32",
            Kind::I32 => "i32",
            Kind::F32 => "f32",
            Kind::Bool => "bool",
            Kind::String => "string",
            Kind::Array => "array",
            Kind::U64 => "u64",
            Kind::I64 => "i64",
            Kind::F64 => "f64",
        }
    }

    /// Returns the bytes of a number; `None` for strings and arrays, whose length varies.
    fn fixed_len(self) -> Option<u64> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::String | Kind::Array => None,
        }
    }

    /// Returns the least bytes of an element.
    fn min_len(self) -> u64 {
        match self {
            Kind::String => 8,
            Kind::Array => 12,
            _ => self.fixed_len().expect("every other kind has a fixed length"),
        }
    }
}

/// The position and type of a value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    key: Range<usize>,
    kind: Kind,
    /// For an array: the type and number of its elements.
    elements: Option<(Kind, usize)>,
    /// The bytes of a number or string; the elements of an array, without type and count.
    value: Range<usize>,
}

/// Reads `count` entries, checks each, and returns them sorted by key.
pub(super) fn read(cursor: &mut Cursor<'_>, file: &[u8], count: u64) -> Result<Vec<Entry>, GgufError> {
    cursor.check_count("metadata count", count, ENTRY_BYTES_MIN)?;
    let mut entries = (0..count).map(|_| read_entry(cursor)).collect::<Result<Vec<_>, _>>()?;
    entries.sort_by(|a, b| file[a.key.clone()].cmp(&file[b.key.clone()]));
    for pair in entries.windows(2) {
        if file[pair[0].key.clone()] == file[pair[1].key.clone()] {
            let key = String::from_utf8_lossy(&file[pair[0].key.clone()]);
            return Err(GgufError::DuplicateKey { key: short(&key) });
        }
    }
    Ok(entries)
}

/// Shortens a key for a message, since keys from a file may be long.
fn short(key: &str) -> String {
    const SHOWN: usize = 80;
    if key.len() <= SHOWN {
        return key.to_owned();
    }
    key.chars().take(SHOWN).chain(['…']).collect()
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry, GgufError> {
    let key = cursor.name("metadata key", KEY_BYTES_MAX)?;
    let key_range = cursor.at() - key.len()..cursor.at();
    let kind = read_kind(cursor, key)?;
    let mut elements = None;
    let value = match kind {
        Kind::String => {
            let value = cursor.string("metadata string")?;
            cursor.at() - value.len()..cursor.at()
        }
        Kind::Array => {
            let (element, count) = read_array_header(cursor, key)?;
            elements = Some((element, count));
            let start = cursor.at();
            skip_elements(cursor, key, element, count, 1)?;
            start..cursor.at()
        }
        _ => {
            let value = cursor.take(kind.min_len(), "metadata number")?;
            check_bools(key, kind, value)?;
            cursor.at() - value.len()..cursor.at()
        }
    };
    Ok(Entry { key: key_range, kind, elements, value })
}

fn read_kind(cursor: &mut Cursor<'_>, key: &str) -> Result<Kind, GgufError> {
    let found = cursor.u32("metadata type")?;
    Kind::from_number(found).ok_or_else(|| GgufError::BadValueType { key: short(key), found })
}

fn read_array_header(cursor: &mut Cursor<'_>, key: &str) -> Result<(Kind, usize), GgufError> {
    let element = read_kind(cursor, key)?;
    let count = cursor.count("array length", element.min_len())?;
    Ok((element, count))
}

/// Skips an array's elements and checks their lengths, so that later reads need no check.
fn skip_elements(
    cursor: &mut Cursor<'_>,
    key: &str,
    element: Kind,
    count: usize,
    depth: usize,
) -> Result<(), GgufError> {
    if depth > ARRAY_DEPTH_MAX {
        return Err(GgufError::ArrayTooDeep { key: short(key), max: ARRAY_DEPTH_MAX });
    }
    match element {
        Kind::String => {
            for _ in 0..count {
                cursor.string("array string")?;
            }
        }
        Kind::Array => {
            for _ in 0..count {
                let (inner, inner_count) = read_array_header(cursor, key)?;
                skip_elements(cursor, key, inner, inner_count, depth + 1)?;
            }
        }
        _ => {
            // The count was checked against the remaining bytes, so the product cannot overflow.
            let values = cursor.take(count as u64 * element.min_len(), "array numbers")?;
            check_bools(key, element, values)?;
        }
    }
    Ok(())
}

fn check_bools(key: &str, kind: Kind, values: &[u8]) -> Result<(), GgufError> {
    match values.iter().find(|&&b| kind == Kind::Bool && b > 1) {
        Some(&found) => Err(GgufError::BadBool { key: short(key), found }),
        None => Ok(()),
    }
}

/// A GGUF file's metadata.
///
/// Each getter fails with [`GgufError::MissingKey`] if the key is absent and with [`GgufError::WrongType`] if
/// the value has another type. Its `opt_` form returns `None` if the key is absent. Integer getters accept an
/// integer of any width whose value fits, and fail with [`GgufError::OutOfRange`] if it does not.
#[derive(Debug, Clone, Copy)]
pub struct Metadata<'a> {
    file: &'a [u8],
    entries: &'a [Entry],
}

/// Makes a getter that fails on an absent key from one that returns `None`.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt:ident -> $ty:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// If the key is absent, or its value has another type or does not fit.
        pub fn $name(&self, key: &str) -> Result<$ty, GgufError> {
            self.$opt(key)?.ok_or_else(|| GgufError::MissingKey { key: short(key) })
        }
    )*};
}

impl<'a> Metadata<'a> {
    pub(super) fn new(file: &'a [u8], entries: &'a [Entry]) -> Metadata<'a> {
        Metadata { file, entries }
    }

    /// Whether the file has this key.
    pub fn contains(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Returns all keys, sorted by their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        let file = self.file;
        self.entries.iter().map(move |e| key_of(file, e))
    }

    /// Whether `key` has the same type and value here and in `other`; false if it is absent in either.
    pub(super) fn agrees(&self, other: Metadata<'_>, key: &str) -> bool {
        let (Some(a), Some(b)) = (self.entry(key), other.entry(key)) else { return false };
        let same_type = a.kind == b.kind && a.elements == b.elements;
        same_type && self.file[a.value.clone()] == other.file[b.value.clone()]
    }

    getters! {
        /// Returns an unsigned 32-bit integer.
        u32, opt_u32 -> u32;
        /// Returns an unsigned 64-bit integer.
        u64, opt_u64 -> u64;
        /// Returns a float; an `f64` is rounded.
        f32, opt_f32 -> f32;
        /// Returns a boolean.
        bool, opt_bool -> bool;
        /// Returns a string.
        str, opt_str -> &'a str;
        /// Returns an array of strings.
        str_array, opt_str_array -> Vec<&'a str>;
        /// Returns an array of unsigned integers.
        u32_array, opt_u32_array -> Vec<u32>;
        /// Returns an array of signed integers.
        i32_array, opt_i32_array -> Vec<i32>;
        /// Returns an array of floats.
        f32_array, opt_f32_array -> Vec<f32>;
        /// Returns an array of booleans.
        bool_array, opt_bool_array -> Vec<bool>;
    }

    /// As [`Metadata::u32`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type or does not fit.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.opt_integer(key, "u32")
    }

    /// As [`Metadata::u64`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type or does not fit.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.opt_integer(key, "u64")
    }

    /// As [`Metadata::f32`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let value = float(entry.kind, &self.file[entry.value.clone()]);
        value.map(Some).ok_or_else(|| wrong_type(key, entry, "f32"))
    }

    /// As [`Metadata::bool`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.kind {
            Kind::Bool => Ok(Some(self.file[entry.value.start] == 1)),
            _ => Err(wrong_type(key, entry, "bool")),
        }
    }

    /// As [`Metadata::str`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type or is not UTF-8.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        if entry.kind != Kind::String {
            return Err(wrong_type(key, entry, "string"));
        }
        utf8("metadata string", entry.value.start, &self.file[entry.value.clone()]).map(Some)
    }

    /// As [`Metadata::str_array`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type or one of its strings is not UTF-8.
    pub fn opt_str_array(&self, key: &str) -> Result<Option<Vec<&'a str>>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let Some((Kind::String, count)) = entry.elements else {
            return Err(wrong_type(key, entry, "array of strings"));
        };
        let mut cursor = Cursor::new(&self.file[entry.value.clone()]);
        let read = |_| {
            let bytes = cursor.string("array string")?;
            utf8("array string", entry.value.start + cursor.at() - bytes.len(), bytes)
        };
        (0..count).map(read).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// As [`Metadata::u32_array`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type or an element does not fit.
    pub fn opt_u32_array(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.opt_integers(key, "array of u32", "u32")
    }

    /// As [`Metadata::i32_array`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type or an element does not fit.
    pub fn opt_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.opt_integers(key, "array of i32", "i32")
    }

    /// As [`Metadata::f32_array`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn opt_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let mistyped = || wrong_type(key, entry, "array of f32");
        let Some((kind @ (Kind::F32 | Kind::F64), _)) = entry.elements else { return Err(mistyped()) };
        let chunks = self.file[entry.value.clone()].chunks_exact(kind.min_len() as usize);
        Ok(Some(chunks.map(|c| float(kind, c).expect("the kind was matched above")).collect()))
    }

    /// As [`Metadata::bool_array`], but `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn opt_bool_array(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.elements {
            Some((Kind::Bool, _)) => {
                Ok(Some(self.file[entry.value.clone()].iter().map(|byte| *byte == 1).collect()))
            }
            _ => Err(wrong_type(key, entry, "array of bools")),
        }
    }

    /// Whether the key is there and its value is an array.
    pub fn is_array(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|entry| entry.elements.is_some())
    }

    fn entry(&self, key: &str) -> Option<&'a Entry> {
        let by_key = |e: &Entry| self.file[e.key.clone()].cmp(key.as_bytes());
        self.entries.binary_search_by(by_key).ok().map(|i| &self.entries[i])
    }

    fn opt_integer<T: TryFrom<i128>>(&self, key: &str, want: &'static str) -> Result<Option<T>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let Some(value) = integer(entry.kind, &self.file[entry.value.clone()]) else {
            return Err(wrong_type(key, entry, want));
        };
        fit(key, value, want).map(Some)
    }

    fn opt_integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        want: &'static str,
        want_each: &'static str,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let Some((kind, _)) = entry.elements else { return Err(wrong_type(key, entry, want)) };
        let Some(len) = kind.fixed_len() else { return Err(wrong_type(key, entry, want)) };
        let read = |chunk: &[u8]| match integer(kind, chunk) {
            Some(value) => fit(key, value, want_each),
            None => Err(wrong_type(key, entry, want)),
        };
        let chunks = self.file[entry.value.clone()].chunks_exact(len as usize);
        chunks.map(read).collect::<Result<Vec<T>, _>>().map(Some)
    }
}

fn key_of<'a>(file: &'a [u8], entry: &Entry) -> &'a str {
    std::str::from_utf8(&file[entry.key.clone()]).expect("keys were checked to be utf-8 when read")
}

fn utf8<'a>(what: &'static str, at: usize, bytes: &'a [u8]) -> Result<&'a str, GgufError> {
    std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what, at: at as u64 })
}

fn wrong_type(key: &str, entry: &Entry, want: &'static str) -> GgufError {
    let found = match entry.elements {
        None => entry.kind.name(),
        Some((Kind::String, _)) => "array of strings",
        Some((Kind::Array, _)) => "array of arrays",
        Some((Kind::F32 | Kind::F64, _)) => "array of floats",
        Some((Kind::Bool, _)) => "array of bools",
        Some(_) => "array of integers",
    };
    GgufError::WrongType { key: short(key), found, want }
}

fn fit<T: TryFrom<i128>>(key: &str, value: i128, want: &'static str) -> Result<T, GgufError> {
    T::try_from(value).map_err(|_| GgufError::OutOfRange { key: short(key), value, want })
}

/// Returns the value of an integer type; `bytes` must have exactly the type's length.
fn integer(kind: Kind, bytes: &[u8]) -> Option<i128> {
    const LEN: &str = "a value's range has its kind's length";
    Some(match kind {
        Kind::U8 => bytes[0].into(),
        Kind::I8 => (bytes[0] as i8).into(),
        Kind::U16 => u16::from_le_bytes(bytes.try_into().expect(LEN)).into(),
        Kind::I16 => i16::from_le_bytes(bytes.try_into().expect(LEN)).into(),
        Kind::U32 => u32::from_le_bytes(bytes.try_into().expect(LEN)).into(),
        Kind::I32 => i32::from_le_bytes(bytes.try_into().expect(LEN)).into(),
        Kind::U64 => u64::from_le_bytes(bytes.try_into().expect(LEN)).into(),
        Kind::I64 => i64::from_le_bytes(bytes.try_into().expect(LEN)).into(),
        Kind::F32 | Kind::F64 | Kind::Bool | Kind::String | Kind::Array => return None,
    })
}

/// Returns the value of a float type; `bytes` must have exactly the type's length.
fn float(kind: Kind, bytes: &[u8]) -> Option<f32> {
    const LEN: &str = "a value's range has its kind's length";
    match kind {
        Kind::F32 => Some(f32::from_le_bytes(bytes.try_into().expect(LEN))),
        Kind::F64 => Some(f64::from_le_bytes(bytes.try_into().expect(LEN)) as f32),
        _ => None,
    }
}
