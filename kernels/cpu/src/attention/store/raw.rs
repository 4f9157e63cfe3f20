//! The contents of stores as bytes, to be kept elsewhere and put back bit for bit.
//!
//! The bytes are in the order of this machine's memory. Only a store of the same format and shape, on a
//! machine of the same byte order, can take them back.

use super::{CHUNK, Data, KvFormat, KvStore};

impl KvStore {
    /// Returns the bytes of a store's contents.
    pub fn content_bytes(format: KvFormat, d: usize, heads: usize) -> usize {
        CHUNK * heads * format.token_bytes(d)
    }

    /// Appends the contents to `to`: [`Self::content_bytes`] of them.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        match &self.data {
            Data::F32 { k, v } => [k.bytes(), v.bytes()].iter().for_each(|part| to.extend_from_slice(part)),
            Data::F16 { k, v } => [k.bytes(), v.bytes()].iter().for_each(|part| to.extend_from_slice(part)),
            Data::Q8(q) | Data::Q4(q) => {
                let parts = [q.k.bytes(), q.k_scale.bytes(), q.v.bytes(), q.v_scale.bytes()];
                parts.iter().for_each(|part| to.extend_from_slice(part));
            }
        }
    }

    /// Takes contents from the front of `from`.
    ///
    /// # Panics
    /// If there are fewer than [`Self::content_bytes`].
    pub fn take_from(&mut self, from: &mut &[u8]) {
        let mut take = |part: &mut [u8]| {
            let (own, rest) = from.split_at(part.len());
            part.copy_from_slice(own);
            *from = rest;
        };
        match &mut self.data {
            Data::F32 { k, v } => {
                take(k.bytes_mut());
                take(v.bytes_mut());
            }
            Data::F16 { k, v } => {
                take(k.bytes_mut());
                take(v.bytes_mut());
            }
            Data::Q8(q) | Data::Q4(q) => {
                take(q.k.bytes_mut());
                take(q.k_scale.bytes_mut());
                take(q.v.bytes_mut());
                take(q.v_scale.bytes_mut());
            }
        }
    }
}
