//! Keys and values as small integers, for blocks that are kept outside of the GPU's memory.
//!
//! Each 32 dimensions of a token in a head are a group. Its integers and its scale are those of
//! [`baton_kernels_cpu::KvStore`], given the binary16 numbers that [`crate::Kernel::Append`] writes.
//! Attention sees their products as binary16 ([`crate::Kernel::RoundKv`]). So a block has the same bits
//! whether it was packed in between or not.

use baton_kernels_cpu::KvFormat;

/// Tokens of a block, and dimensions of a group.
pub(crate) const GROUP: usize = 32;

/// How keys and values are packed.
///
/// A group of one token is [`Self::words`] words: integers of the key, integers of the value, and the two
/// scales as binary16, that of the key low. A word of integers has the dimensions in order, the first in the
/// lowest bits; they are raised by half of their range. Word `w` of token `t` of a block is word
/// `((head d / 32 + group) words + w) 32 + t` of that block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PackedKv {
    /// Bytes.
    Q8,
    /// Half bytes.
    Q4,
}

impl PackedKv {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Q8, Self::Q4];

    /// Returns how keys and values of a format are packed; `None` if they are not.
    pub const fn of(format: KvFormat) -> Option<Self> {
        match format {
            KvFormat::F32 | KvFormat::F16 => None,
            KvFormat::Q8 => Some(Self::Q8),
            KvFormat::Q4 => Some(Self::Q4),
        }
    }

    /// Returns the format.
    pub const fn format(self) -> KvFormat {
        match self {
            Self::Q8 => KvFormat::Q8,
            Self::Q4 => KvFormat::Q4,
        }
    }

    /// Returns the name of the format.
    pub const fn name(self) -> &'static str {
        self.format().name()
    }

    /// Returns the bits of an integer.
    pub const fn bits(self) -> usize {
        match self {
            Self::Q8 => 8,
            Self::Q4 => 4,
        }
    }

    /// Returns the words of the keys and values of a group of one token.
    pub const fn words(self) -> usize {
        2 * self.bits() + 1
    }

    /// Whether it packs heads of `d` dimensions.
    pub const fn takes_heads_of(d: usize) -> bool {
        d.is_multiple_of(GROUP)
    }

    /// Returns the bytes of the keys and values of one block.
    pub const fn block_bytes(self, heads: usize, d: usize) -> u64 {
        (4 * heads * d * self.words()) as u64
    }

    /// Returns the places of a slot's words in one head, group by group.
    pub fn slot_words(
        self,
        (heads, d): (usize, usize),
        head: usize,
        slot: usize,
    ) -> impl Iterator<Item = usize> {
        let n = d / GROUP * self.words();
        let first = (slot / GROUP * heads + head) * n;
        (0..n).map(move |at| (first + at) * GROUP + slot % GROUP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_block_has_the_bytes_of_its_tokens_on_the_cpu() {
        for packed in PackedKv::ALL {
            assert_eq!(PackedKv::of(packed.format()), Some(packed));
            for (heads, d) in [(1, 32), (8, 128), (3, 576)] {
                let on_cpu = GROUP * heads * packed.format().token_bytes(d);
                assert_eq!(packed.block_bytes(heads, d), on_cpu as u64, "{} {d}", packed.name());
                // Every word belongs to one slot.
                let slots = (0..heads).flat_map(|head| (0..GROUP).map(move |slot| (head, slot)));
                let mut words: Vec<usize> =
                    slots.flat_map(|(head, slot)| packed.slot_words((heads, d), head, slot)).collect();
                words.sort_unstable();
                assert_eq!(words, (0..on_cpu / 4).collect::<Vec<_>>(), "{} {d}", packed.name());
            }
        }
        assert_eq!([KvFormat::F32, KvFormat::F16].map(PackedKv::of), [None; 2]);
    }
}
