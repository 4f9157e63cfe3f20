//! Typed access to a GGUF file's metadata.
//!
//! Strings and arrays stay in the file: an entry only remembers where they lie, so reading the
//! metadata of any file takes memory in proportion to the number of its keys.

use std::ops::Range;

use super::cursor::Cursor;
use super::error::GgufError;

/// Most bytes of a metadata key (the format's own limit).
pub(super) const KEY_BYTES_MAX: u64 = 65_535;
/// Arrays in arrays are walked over, not read; real files have none.
const ARRAY_DEPTH_MAX: usize = 4;
/// Least bytes of an entry: key length, one letter, type, one byte of value.
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

    /// The type's number in a file.
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

    /// Bytes of a number; `None` for strings and arrays, whose length varies.
    fn fixed_len(self) -> Option<u64> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::String | Kind::Array => None,
        }
    }

    /// Least bytes an element takes.
    fn min_len(self) -> u64 {
        match self {
            Kind::String => 8,
            Kind::Array => 12,
            _ => self.fixed_len().expect("every other kind has a fixed length"),
        }
    }
}

/// Where a value lies and what it is.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    key: Range<usize>,
    kind: Kind,
    /// Of an array: what it holds and how many.
    elements: Option<(Kind, usize)>,
    /// A number's or string's own bytes; an array's elements, without kind and count.
    value: Range<usize>,
}

/// Reads `count` entries in file order and checks every one; sorted by key when done.
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

/// Keys come from the file and may be long; messages show their beginning.
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

/// Walks over an array's elements, so that later reads need no length check of their own.
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
            // The count was checked against the bytes left, so the product cannot overflow.
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
/// Each getter answers [`GgufError::MissingKey`] where the key is absent and [`GgufError::WrongType`]
/// where the value has another type; its `opt_` form answers `None` where the key is absent. Integer
/// getters take an integer of any width that fits ([`GgufError::OutOfRange`] where it does not).
#[derive(Debug, Clone, Copy)]
pub struct Metadata<'a> {
    file: &'a [u8],
    entries: &'a [Entry],
}

/// Makes a getter that fails on an absent key of one that answers `None`.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt:ident -> $ty:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// The key is absent, or its value has another type or does not fit.
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

    /// All keys, sorted by their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        let file = self.file;
        self.entries.iter().map(move |e| key_of(file, e))
    }

    /// Whether `key` has the same type and value here and in `other`; false where either lacks it.
    pub(super) fn agrees(&self, other: Metadata<'_>, key: &str) -> bool {
        let (Some(a), Some(b)) = (self.entry(key), other.entry(key)) else { return false };
        let same_type = a.kind == b.kind && a.elements == b.elements;
        same_type && self.file[a.value.clone()] == other.file[b.value.clone()]
    }

    getters! {
        /// An integer of 32 bits without sign.
        u32, opt_u32 -> u32;
        /// An integer of 64 bits without sign.
        u64, opt_u64 -> u64;
        /// A number with a fraction; an `f64` is rounded.
        f32, opt_f32 -> f32;
        /// A truth value.
        bool, opt_bool -> bool;
        /// A string.
        str, opt_str -> &'a str;
        /// An array of strings.
        str_array, opt_str_array -> Vec<&'a str>;
        /// An array of integers without sign.
        u32_array, opt_u32_array -> Vec<u32>;
        /// An array of integers with sign.
        i32_array, opt_i32_array -> Vec<i32>;
        /// An array of numbers with a fraction.
        f32_array, opt_f32_array -> Vec<f32>;
    }

    /// Like [`Metadata::u32`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type or does not fit.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.opt_integer(key, "u32")
    }

    /// Like [`Metadata::u64`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type or does not fit.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.opt_integer(key, "u64")
    }

    /// Like [`Metadata::f32`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let value = float(entry.kind, &self.file[entry.value.clone()]);
        value.map(Some).ok_or_else(|| wrong_type(key, entry, "f32"))
    }

    /// Like [`Metadata::bool`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.kind {
            Kind::Bool => Ok(Some(self.file[entry.value.start] == 1)),
            _ => Err(wrong_type(key, entry, "bool")),
        }
    }

    /// Like [`Metadata::str`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type or is not UTF-8.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        if entry.kind != Kind::String {
            return Err(wrong_type(key, entry, "string"));
        }
        utf8("metadata string", entry.value.start, &self.file[entry.value.clone()]).map(Some)
    }

    /// Like [`Metadata::str_array`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type or a string of it is not UTF-8.
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

    /// Like [`Metadata::u32_array`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type or an element does not fit.
    pub fn opt_u32_array(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.opt_integers(key, "array of u32", "u32")
    }

    /// Like [`Metadata::i32_array`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type or an element does not fit.
    pub fn opt_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.opt_integers(key, "array of i32", "i32")
    }

    /// Like [`Metadata::f32_array`], `None` where the key is absent.
    ///
    /// # Errors
    /// The value has another type.
    pub fn opt_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let mistyped = || wrong_type(key, entry, "array of f32");
        let Some((kind @ (Kind::F32 | Kind::F64), _)) = entry.elements else { return Err(mistyped()) };
        let chunks = self.file[entry.value.clone()].chunks_exact(kind.min_len() as usize);
        Ok(Some(chunks.map(|c| float(kind, c).expect("the kind was matched above")).collect()))
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

/// The integer of an integer kind; `bytes` has exactly the kind's length.
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

/// The number of a float kind; `bytes` has exactly the kind's length.
fn float(kind: Kind, bytes: &[u8]) -> Option<f32> {
    const LEN: &str = "a value's range has its kind's length";
    match kind {
        Kind::F32 => Some(f32::from_le_bytes(bytes.try_into().expect(LEN))),
        Kind::F64 => Some(f64::from_le_bytes(bytes.try_into().expect(LEN)) as f32),
        _ => None,
    }
}
