//! Groups of keys or values as small integers, by the definition.

use baton_kernels_cpu::f16::{f16_to_f32, f32_to_f16};

use crate::packed::{GROUP, PackedKv};

/// A NaN of binary16.
const NAN: u16 = 0x7e00;
/// Adding it to a number rounds to the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// A group as it is packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Raised integers, in words.
    pub(super) words: Vec<u32>,
    /// Bits of binary16.
    pub(super) scale: u16,
}

/// What an integer is raised by.
fn raised(how: PackedKv) -> i32 {
    1 << (how.bits() - 1)
}

impl Group {
    /// Rounds a group of binary16 numbers.
    pub(super) fn new(how: PackedKv, halves: &[u16; GROUP]) -> Self {
        let x = halves.map(f16_to_f32);
        // The first one of the largest magnitude; a fault is larger than all.
        let size = |half: u16| half & 0x7fff;
        let extreme = halves.iter().fold(0, |most, half| if size(*half) > size(most) { *half } else { most });
        let scale = match how {
            _ if size(extreme) >= 0x7c00 => NAN,
            PackedKv::Q8 => f32_to_f16(f16_to_f32(extreme).abs() / 127.0),
            PackedKv::Q4 => f32_to_f16(f16_to_f32(extreme) / -8.0),
        };
        let inverse = 1.0 / f16_to_f32(scale);
        let raise = raised(how);
        let lowest = if how == PackedKv::Q8 { 1 - raise } else { -raise };
        let near = |x: f32| (x * inverse).clamp(lowest as f32, (raise - 1) as f32) + ROUND;
        let integer = |x: f32| if inverse.is_finite() { near(x).to_bits() as i32 } else { 0 };
        let mask = 2 * raise as u32 - 1;
        let each = GROUP / how.bits();
        let word = |x: &[f32]| {
            let bits = x.iter().enumerate();
            bits.map(|(i, x)| ((integer(*x) + raise) as u32 & mask) << (i * how.bits())).sum()
        };
        Self { words: x.chunks(each).map(word).collect(), scale }
    }

    /// Returns the numbers that are left, as binary16.
    pub(super) fn open(&self, how: PackedKv) -> [u16; GROUP] {
        let (each, raise) = (GROUP / how.bits(), raised(how));
        std::array::from_fn(|c| {
            let raw = self.words[c / each] >> (c % each * how.bits()) & (2 * raise as u32 - 1);
            match raw as i32 - raise {
                _ if self.scale & 0x7c00 == 0x7c00 => NAN,
                0 => 0,
                integer => f32_to_f16(f16_to_f32(self.scale) * integer as f32),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_kernels_cpu::{KvMemory, KvStore};
    use baton_random::SplitMix64;

    #[test]
    fn groups_have_the_numbers_of_the_cpu_s_store() {
        let (mut random, memory) = (SplitMix64::new(3), KvMemory::default());
        for how in PackedKv::ALL {
            let mut store = KvStore::new(how.format(), GROUP, 1, &memory);
            for turn in 0..4000 {
                let mut halves = [0; GROUP].map(|_: u16| random.below(0x7c00) as u16);
                // Numbers of about one size, of all sizes, and with signs; zeros; small ones; a fault.
                for half in &mut halves {
                    let size = if turn % 3 == 0 { *half & 0x0bff | 0x3000 } else { *half };
                    *half = size | (random.below(2) as u16) << 15;
                }
                match turn {
                    0 => halves = [0; GROUP],
                    1 => halves = halves.map(|half| half & 0x8007),
                    2 => halves[9] = 0x7c00,
                    3 => halves[31] = 0xfe01,
                    _ => {}
                }
                let x = halves.map(f16_to_f32);
                store.write(0, 5, &x, &x);
                let (mut k, mut v) = ([0.0; GROUP], [0.0; GROUP]);
                store.read(0, 5, &mut k, &mut v);
                let left = Group::new(how, &halves).open(how);
                for (c, (left, v)) in left.into_iter().zip(v).enumerate() {
                    // A zero has no sign.
                    let want = if v == 0.0 { 0 } else { f32_to_f16(v) };
                    assert_eq!(left, want, "{} turn {turn}, number {c}: {v}", how.name());
                }
            }
        }
    }
}
