//! Names of block contents: a hash chain over the token ids of a sequence's full blocks.
//!
//! The hash of a block covers its own ids and, through its parent's hash, every id before it, so that equal
//! hashes mean equal prefixes. SHA-256 makes that hold against chosen input as well: whoever writes a prompt
//! cannot make it name the block of another prompt.

use sha2::{Digest, Sha256};

use crate::tokenizer::TokenId;

/// The name of a full block's content and of everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChainHash([u8; 32]);

impl ChainHash {
    /// The parent of a sequence's first block.
    pub(crate) const ROOT: Self = Self([0; 32]);

    /// The hash of the block holding `ids`, after `self`.
    pub(crate) fn child(&self, ids: &[TokenId]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        for id in ids {
            hasher.update(id.to_le_bytes());
        }
        Self(hasher.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_covers_the_ids_and_everything_before_them() {
        let first = ChainHash::ROOT.child(&[1, 2]);
        assert_eq!(first, ChainHash::ROOT.child(&[1, 2]));
        assert_ne!(first, ChainHash::ROOT.child(&[2, 1]));
        assert_ne!(first.child(&[3, 4]), ChainHash::ROOT.child(&[5, 6]).child(&[3, 4]));
        assert_ne!(first.child(&[3, 4]), ChainHash::ROOT.child(&[3, 4]));
    }
}
