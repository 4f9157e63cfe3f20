//! Numbers in the bytes of buffers, and activations rounded to bytes by the definition.

use std::ops::Range;

/// Returns word `i`.
pub(super) fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(bytes.as_chunks().0[i])
}

/// Returns word `i` as an index.
pub(super) fn index(bytes: &[u8], i: usize) -> usize {
    word(bytes, i) as usize
}

/// Returns word `i` as a float.
pub(super) fn float(bytes: &[u8], i: usize) -> f32 {
    f32::from_bits(word(bytes, i))
}

/// Returns a range of words as floats.
pub(super) fn floats(bytes: &[u8], range: Range<usize>) -> Vec<f32> {
    bytes.as_chunks().0[range].iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Sets word `i`.
pub(super) fn put(bytes: &mut [u8], i: usize, word: u32) {
    bytes.as_chunks_mut().0[i] = word.to_le_bytes();
}

/// Sets words from `first` on.
pub(super) fn put_floats(bytes: &mut [u8], first: usize, numbers: &[f32]) {
    for (i, number) in numbers.iter().enumerate() {
        put(bytes, first + i, number.to_bits());
    }
}

/// The bytes of floats.
pub(super) fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Activations as [`crate::Kernel::Quantize`] writes them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rounded {
    /// `[n, block]`.
    pub(super) q: Vec<i8>,
    /// `[n]`.
    pub(super) scale: Vec<f32>,
    /// `[n, block / 16]`.
    pub(super) sums: Vec<i32>,
}

/// The largest number of a block below which its scale is 0.
const SPECK: f32 = 1e-30;
/// Adding it to a number rounds to the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// Rounds numbers in blocks, as `activations.rs` of `kernels/cpu` defines it.
pub(super) fn rounded(x: &[f32], block: usize) -> Rounded {
    let mut all = Rounded { q: Vec::new(), scale: Vec::new(), sums: Vec::new() };
    for x in x.chunks_exact(block) {
        let faulty = x.iter().any(|x| !x.is_finite());
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = largest / 127.0;
        let inverse = 1.0 / scale;
        let byte = |x: &f32| (x * inverse + ROUND).to_bits() as i8;
        let zero = faulty || largest < SPECK;
        let q: Vec<i8> = x.iter().map(|x| if zero { 0 } else { byte(x) }).collect();
        all.sums.extend(q.chunks(16).map(|sixteen| sixteen.iter().map(|q| i32::from(*q)).sum::<i32>()));
        all.q.extend(q);
        all.scale.push(if faulty {
            f32::NAN
        } else if zero {
            0.0
        } else {
            scale
        });
    }
    all
}

impl Rounded {
    /// Reads what [`crate::Kernel::Quantize`] has written for `n` blocks.
    pub(super) fn read((q, scale): (&[u8], &[u8]), n: usize, block: usize) -> Self {
        let q: Vec<i8> = q[..n * block].iter().map(|q| *q as i8).collect();
        let sums = q.chunks(16).map(|sixteen| sixteen.iter().map(|q| i32::from(*q)).sum()).collect();
        Self { q, scale: floats(scale, 0..n), sums }
    }

    /// Returns numbers that are rounded to just these bytes and scales.
    ///
    /// # Panics
    /// If there are none, since a block's largest byte is not 127.
    pub(super) fn restored(&self) -> Vec<f32> {
        let block = self.q.len() / self.scale.len().max(1);
        let mut x = Vec::with_capacity(self.q.len());
        for (q, scale) in self.q.chunks(block.max(1)).zip(&self.scale) {
            let largest = largest_of(*scale);
            x.extend(q.iter().map(|q| match q {
                127 => largest,
                -127 => -largest,
                q if largest.is_finite() => f32::from(*q) * scale,
                _ => f32::NAN,
            }));
        }
        let again = rounded(&x, block.max(1));
        let bits = |scale: &[f32]| scale.iter().map(|s| s.to_bits()).collect::<Vec<_>>();
        assert!(
            again.q == self.q && bits(&again.scale) == bits(&self.scale),
            "bytes of activations that no numbers are rounded to"
        );
        x
    }
}

/// Returns a largest number of a block that has this scale.
fn largest_of(scale: f32) -> f32 {
    let near = (127.0 * scale).to_bits();
    let candidates = (near.saturating_sub(2)..=near.saturating_add(2)).map(f32::from_bits);
    candidates
        .into_iter()
        .find(|largest| largest / 127.0 == scale && *largest >= SPECK)
        .unwrap_or(127.0 * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_random::SplitMix64;

    #[test]
    fn rounded_numbers_can_be_restored() {
        let mut random = SplitMix64::new(5);
        for block in [32, 256] {
            let mut x: Vec<f32> = (0..64 * block).map(|_| (random.unit() - 0.5) as f32).collect();
            x[..block].fill(0.0);
            x[block + 3] = f32::NAN;
            x[2 * block + 5] = f32::INFINITY;
            let once = rounded(&x, block);
            assert_eq!(once.scale[0].to_bits(), 0);
            assert!(once.scale[1].is_nan() && once.scale[2].is_nan());
            assert_eq!(once.q.iter().map(|q| i32::from(*q)).sum::<i32>(), once.sums.iter().sum());
            let restored = once.restored();
            assert_eq!(rounded(&restored, block).q, once.q);
        }
    }
}
