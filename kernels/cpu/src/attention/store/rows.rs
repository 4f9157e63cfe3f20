//! Single tokens of a store as floats: the inverse of [`KvStore::write`].

use super::super::quants::half;
use super::{CHUNK, Data, HALF, KvStore, NIBBLE_BYTES, Quants, SHORT_LEN};
use crate::f16::f16_to_f32;

impl KvStore {
    /// Reads the key and the value of one token in one head. Floats that were stored exactly come back with
    /// the same bits.
    ///
    /// Shapes: `k, v: [d]`.
    ///
    /// # Panics
    /// If `head` or `slot` is outside the store, or a row is not `d` long.
    pub fn read(&self, head: usize, slot: usize, k: &mut [f32], v: &mut [f32]) {
        let d = self.d;
        assert!(slot < CHUNK, "slot {slot} of {CHUNK}");
        assert_eq!((k.len(), v.len()), (d, d), "dimensions of a key and a value");
        let (width, lines, lane) = (d.next_multiple_of(HALF), (2 * head + slot / HALF) * d, slot % HALF);
        let row = (head * CHUNK + slot) * width;
        match &self.data {
            Data::F32 { k: from_k, v: from_v } => {
                for (to, line) in k.iter_mut().zip(&from_k[lines..][..d]) {
                    *to = f32::from_ne_bytes(line.0.as_chunks().0[lane]);
                }
                v.copy_from_slice(&from_v[row..][..d]);
            }
            Data::F16 { k: from_k, v: from_v } => {
                for (to, line) in k.iter_mut().zip(&from_k[lines..][..d]) {
                    *to = f16_to_f32(line[lane]);
                }
                for (to, from) in v.iter_mut().zip(&from_v[row..][..d]) {
                    *to = f16_to_f32(*from);
                }
            }
            Data::Q8(quants) => quants.read::<SHORT_LEN>((head, slot), (k, v), |q, i| q[i] as i8),
            Data::Q4(quants) => quants.read::<NIBBLE_BYTES>((head, slot), (k, v), |q, i| {
                half(q[i % NIBBLE_BYTES], i >= NIBBLE_BYTES)
            }),
        }
    }
}

impl Quants {
    /// Reads one token; `value` returns a dimension of a group of `BYTES` bytes.
    fn read<const BYTES: usize>(
        &self,
        (head, slot): (usize, usize),
        (k, v): (&mut [f32], &mut [f32]),
        value: impl Fn(&[u8; BYTES], usize) -> i8,
    ) {
        let (groups, half, lane) = (k.len().div_ceil(SHORT_LEN), slot / HALF, slot % HALF);
        let parts = k.chunks_mut(SHORT_LEN).zip(v.chunks_mut(SHORT_LEN));
        for (g, (k, v)) in parts.enumerate() {
            let at = (2 * head + half) * groups + g;
            let mut q = [0; BYTES];
            let lines = &self.k[at * (BYTES / 4)..][..BYTES / 4];
            for (four, line) in q.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
                *four = line.0.as_chunks().0[lane];
            }
            let scale = f16_to_f32(self.k_scale[at][lane]);
            k.iter_mut().enumerate().for_each(|(i, to)| *to = scale * f32::from(value(&q, i)));
            let at = (head * CHUNK + slot) * groups + g;
            q.copy_from_slice(&self.v[at * BYTES..][..BYTES]);
            let scale = f16_to_f32(self.v_scale[at]);
            v.iter_mut().enumerate().for_each(|(i, to)| *to = scale * f32::from(value(&q, i)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::memory::KvMemory;
    use super::*;
    use crate::attention::KvFormat;

    /// Returns numbers that all formats but the quantized ones hold exactly.
    fn row(seed: usize, d: usize) -> Vec<f32> {
        (0..d).map(|i| ((seed * 31 + i * 7) % 129) as f32 / 32.0 - 2.0).collect()
    }

    #[test]
    fn what_was_written_is_read_from_its_own_slot() {
        for format in KvFormat::ALL {
            for d in [1, 16, 20, 32, 40, 64] {
                let memory = KvMemory::default();
                let mut store = KvStore::new(format, d, 3, &memory);
                for (head, slot) in [(0, 0), (1, 15), (1, 16), (2, 31)] {
                    let seed = head * 100 + slot;
                    store.write(head, slot, &row(seed, d), &row(seed + 1, d));
                }
                for (head, slot) in [(0, 0), (1, 15), (1, 16), (2, 31)] {
                    let (mut k, mut v) = (vec![0.0; d], vec![0.0; d]);
                    store.read(head, slot, &mut k, &mut v);
                    let seed = head * 100 + slot;
                    let step = match format {
                        KvFormat::F32 | KvFormat::F16 => 0.0,
                        KvFormat::Q8 => 2.0 / 127.0,
                        KvFormat::Q4 => 2.0 / 7.0,
                    };
                    for (have, want) in [(&k, row(seed, d)), (&v, row(seed + 1, d))] {
                        let far = have.iter().zip(&want).any(|(have, want)| (have - want).abs() > step);
                        assert!(!far, "{format} {d}: {have:?} {want:?}");
                    }
                    // Reading and writing again changes nothing more.
                    store.write(head, slot, &k, &v);
                    let (mut again_k, mut again_v) = (vec![0.0; d], vec![0.0; d]);
                    store.read(head, slot, &mut again_k, &mut again_v);
                    assert_eq!((again_k, again_v), (k, v), "{format} {d}");
                }
            }
        }
    }
}
