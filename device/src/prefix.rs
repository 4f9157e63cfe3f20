//! Keys and values of conversations on the disk, so that a restarted device need not read them again.
//!
//! [`Remembering`] is an engine whose prefixes outlive it. Behind an answer it hands new whole blocks of
//! [`BLOCK_TOKENS`] tokens to a [`Store`]. A prompt that begins as an earlier one takes what its engine
//! does not hold from there.
//!
//! A block's name is a digest of all that decides its bits: the model, the adapter, how the engine
//! computes, and every token up to its end. So the same prefix has the same names, whoever asks. What
//! always holds: a block is whole and unchanged (it is authenticated under its name), or it counts as
//! missing. Text is the same as without the store, byte for byte. Only reading is waited for, and it is
//! faster than computing.
//!
//! Blocks are encrypted with a key that lies in the settings folder, and names are digests with that key. Who
//! has only the blocks learns how many there are, and no text.

mod engine;
mod kept;
mod store;
mod writer;

pub use self::engine::Remembering;
pub use self::kept::Kept;
pub use self::store::{Store, StoreError};

use baton_engine::BLOCK_TOKENS;
use baton_engine::tokenizer::TokenId;
use sha2::{Digest as _, Sha256};

/// The name of a block: a digest of all that decides its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name([u8; 32]);

impl Name {
    /// Returns the name before the first block of sequences of this kind.
    fn root(secret: &[u8; 32], kind: &str, model: &[u8; 32], adapter: Option<&[u8; 32]>) -> Self {
        let mut digest = Sha256::new();
        digest.update(secret);
        digest.update(model);
        digest.update(adapter.unwrap_or(&[0; 32]));
        digest.update(kind);
        Self(digest.finalize().into())
    }

    /// Returns the name of the block with these tokens behind the block of this name.
    fn next(self, ids: &[TokenId]) -> Self {
        let mut digest = Sha256::new();
        digest.update(self.0);
        ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
        Self(digest.finalize().into())
    }
}

/// Returns the names of the whole blocks of `ids` from block `first` on; `before` is the name before that
/// block.
fn names(before: Name, ids: &[TokenId], first: usize) -> impl Iterator<Item = Name> {
    let blocks = ids.chunks_exact(BLOCK_TOKENS).skip(first);
    blocks.scan(before, |name, ids| {
        *name = name.next(ids);
        Some(*name)
    })
}

#[cfg(test)]
mod tests;
