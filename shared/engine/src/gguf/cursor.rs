//! Reads little-endian fields from a byte slice without ever running past its end.

use super::error::GgufError;

/// A position in a file's bytes; every read is checked against the end.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte.
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Returns the position of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes not yet read.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Takes `need` bytes.
    pub(super) fn take(&mut self, need: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        if need > self.left() {
            let len = self.bytes.len() as u64;
            return Err(GgufError::Truncated { what, at: self.at as u64, need, len });
        }
        // `need` is at most the length of a slice, so it fits `usize`.
        let end = self.at + need as usize;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// Takes a fixed number of bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take returns the length asked for"))
    }

    /// Reads a `u32`.
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Reads a `u64`.
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a count of items that take at least `min_bytes` each, and refuses one that cannot fit.
    pub(super) fn count(&mut self, what: &'static str, min_bytes: u64) -> Result<usize, GgufError> {
        let count = self.u64(what)?;
        self.check_count(what, count, min_bytes)?;
        Ok(count as usize)
    }

    /// Refuses a count of items of at least `min_bytes` each if the remaining bytes cannot hold them.
    pub(super) fn check_count(
        &self,
        what: &'static str,
        count: u64,
        min_bytes: u64,
    ) -> Result<(), GgufError> {
        let left = self.left();
        let max = left / min_bytes;
        if count > max {
            return Err(GgufError::CountTooLarge { what, count, max, left });
        }
        Ok(())
    }

    /// Reads a length and that many bytes.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// Reads a key or tensor name: UTF-8, 1 to `max` bytes.
    pub(super) fn name(&mut self, what: &'static str, max: u64) -> Result<&'a str, GgufError> {
        let len = self.u64(what)?;
        if len == 0 || len > max {
            return Err(GgufError::BadNameLength { what, len, max });
        }
        let at = self.at as u64;
        std::str::from_utf8(self.take(len, what)?).map_err(|_| GgufError::NotUtf8 { what, at })
    }
}
