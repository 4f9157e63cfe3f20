//! Reads and writes the fields of a frame: fixed widths, little-endian, a length before each list.
//!
//! The reader accepts any bytes: it returns values or a [`FrameError`]. It checks every count against the
//! bytes that are left before it allocates, so its memory is bounded by its input.

use super::FrameError;

/// Appends fields.
pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn f64(&mut self, value: f64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends the length of a list, which is far below `u32::MAX` by construction.
    pub(super) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("lists of a frame are shorter than its greatest length"));
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn ids(&mut self, ids: &[u32]) {
        self.count(ids.len());
        ids.iter().for_each(|id| self.u32(*id));
    }
}

/// Takes fields from the front of a frame.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, what: &'static str, n: usize) -> Result<&'a [u8], FrameError> {
        let short = FrameError::Short { what, needed: n, left: self.0.len() };
        let (taken, rest) = self.0.split_at_checked(n).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FrameError> {
        Ok(self.take(what, N)?.try_into().expect("`take` gives as many bytes as it was asked for"))
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, FrameError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, FrameError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn f64(&mut self, what: &'static str) -> Result<f64, FrameError> {
        Ok(f64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn key(&mut self, what: &'static str) -> Result<[u8; 32], FrameError> {
        self.array(what)
    }

    /// Reads the length of a list whose elements take at least `least` bytes each.
    pub(super) fn count(&mut self, what: &'static str, least: usize) -> Result<usize, FrameError> {
        let count = self.u32(what)? as usize;
        let needed = count.saturating_mul(least);
        if needed > self.0.len() {
            return Err(FrameError::Short { what, needed, left: self.0.len() });
        }
        Ok(count)
    }

    pub(super) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], FrameError> {
        let count = self.count(what, 1)?;
        self.take(what, count)
    }

    pub(super) fn text(&mut self, what: &'static str, max: usize) -> Result<String, FrameError> {
        let bytes = self.bytes(what)?;
        if bytes.len() > max {
            return Err(FrameError::Value { what, value: bytes.len() as u64, max: max as u64 });
        }
        let text = std::str::from_utf8(bytes).map_err(|_| FrameError::Text { what })?;
        // Names and messages of other devices are shown on terminals.
        if text.chars().any(char::is_control) {
            return Err(FrameError::Text { what });
        }
        Ok(text.to_owned())
    }

    pub(super) fn ids(&mut self, what: &'static str) -> Result<Vec<u32>, FrameError> {
        let count = self.count(what, 4)?;
        (0..count).map(|_| self.u32(what)).collect()
    }

    /// Reads a boolean.
    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, FrameError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(FrameError::Value { what, value: u64::from(value), max: 1 }),
        }
    }

    /// Checks that nothing is left of the frame.
    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Trailing { bytes: self.0.len() }) }
    }
}
