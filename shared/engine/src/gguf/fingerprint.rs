//! A short name for a file's content that takes milliseconds, whatever the file's size.

use sha2::{Digest as _, Sha256};

use super::Gguf;

/// Bytes of each tensor that count.
const SAMPLE: usize = 4096;

impl Gguf {
    /// Returns a digest of all metadata, of the names, types and places of all tensors, and of a sample of
    /// each tensor's data. Files that were made by training or converting differ in it. A file of which
    /// somebody has changed a few bytes may not: it tells models apart, and proves nothing.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for (index, part) in self.parts().enumerate() {
            let places = || self.tensors().map(|tensor| tensor.place()).filter(|place| place.part() == index);
            let header = places().map(|place| place.range().start).min().unwrap_or(part.len());
            digest.update((part.len() as u64).to_le_bytes());
            digest.update((header as u64).to_le_bytes());
            digest.update(&part[..header]);
            for place in places() {
                let data = &part[place.range()];
                let middle = data.len() / 2;
                digest.update(&data[middle..data.len().min(middle + SAMPLE)]);
            }
        }
        digest.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn another_header_or_other_weights_have_another_fingerprint() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo-device.gguf");
        let bytes = fs::read(path).unwrap();
        let of = |bytes: Vec<u8>| Gguf::from_bytes(bytes).unwrap().fingerprint();
        let want = Gguf::open(path).unwrap().fingerprint();
        assert_eq!(of(bytes.clone()), want);
        let first = Gguf::from_bytes(bytes.clone()).unwrap().tensors().next().unwrap().place().range();
        let mut weights = bytes.clone();
        weights[first.start + first.len() / 2] ^= 1;
        let name = b"general.architecture";
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
        let mut renamed = bytes.clone();
        renamed[at] = b'h';
        for other in [weights, renamed] {
            assert_ne!(of(other), want);
        }
    }
}
