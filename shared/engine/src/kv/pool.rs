//! Which blocks of the KV cache are in use, by how many sequences, and which hold content worth keeping.
//!
//! Bookkeeping only: block contents live in the backend. A block is in one of three states: free (no content),
//! referenced (by one sequence or more), or cached (no sequence holds it, but the prefix index still knows its
//! content). Invariant: every block is in exactly one of them, and every index entry names a block that is
//! referenced or cached.

use std::collections::{BTreeMap, HashMap};

use super::chain::ChainHash;

/// The place of one block of [`super::BLOCK_TOKENS`] tokens in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) u32);

#[derive(Debug, Default, Clone)]
struct Block {
    refs: u32,
    name: Option<ChainHash>,
    /// The key of this block in `cached`; meaningful only while it is there.
    released_at: u64,
}

/// All blocks of one cache.
#[derive(Debug, Clone)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// Used as a stack, so that memory already touched is used again first.
    free: Vec<BlockId>,
    /// By time of release: the first is evicted first.
    cached: BTreeMap<u64, BlockId>,
    index: HashMap<ChainHash, BlockId>,
    releases: u64,
}

impl BlockPool {
    /// A pool of `n_blocks` free blocks.
    pub(crate) fn new(n_blocks: u32) -> Self {
        Self {
            blocks: vec![Block::default(); n_blocks as usize],
            free: (0..n_blocks).rev().map(BlockId).collect(),
            cached: BTreeMap::new(),
            index: HashMap::new(),
            releases: 0,
        }
    }

    /// Blocks that [`Self::allocate`] can hand out: free ones and cached ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// How many sequences hold the block.
    pub(crate) fn refs(&self, id: BlockId) -> u32 {
        self.blocks[id.0 as usize].refs
    }

    /// A block with one reference and no content; evicts the block that was released first where none is free.
    /// `None` where every block is referenced.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let (_, id) = self.cached.pop_first()?;
                self.forget(id);
                id
            }
        };
        self.blocks[id.0 as usize].refs = 1;
        Some(id)
    }

    /// One more sequence holds the block.
    pub(crate) fn retain(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.refs == 0 {
            self.cached.remove(&block.released_at);
        }
        block.refs += 1;
    }

    /// One sequence fewer holds the block; the last one makes it cached where the index knows it, else free.
    pub(crate) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.refs > 0, "released block {} that no sequence holds", id.0);
        block.refs -= 1;
        if block.refs > 0 {
            return;
        }
        if block.name.is_some() {
            block.released_at = self.releases;
            self.cached.insert(self.releases, id);
            self.releases += 1;
        } else {
            self.free.push(id);
        }
    }

    /// Makes a full block findable by its content; where another block of this content is known already, that
    /// one stays the known one.
    pub(crate) fn publish(&mut self, id: BlockId, name: ChainHash) {
        if self.blocks[id.0 as usize].name.is_none() && !self.index.contains_key(&name) {
            self.index.insert(name, id);
            self.blocks[id.0 as usize].name = Some(name);
        }
    }

    /// Takes the block out of the index, because its content is about to change or to go.
    pub(crate) fn forget(&mut self, id: BlockId) {
        if let Some(name) = self.blocks[id.0 as usize].name.take() {
            self.index.remove(&name);
        }
    }

    /// The block of this content, if one is referenced or cached.
    pub(crate) fn find(&self, name: &ChainHash) -> Option<BlockId> {
        self.index.get(name).copied()
    }

    /// Checks the invariants of the module's description.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut seen = vec![0u32; self.blocks.len()];
        for id in &self.free {
            seen[id.0 as usize] += 1;
            assert!(self.blocks[id.0 as usize].name.is_none(), "a free block has a name");
            assert_eq!(self.refs(*id), 0);
        }
        for (at, id) in &self.cached {
            seen[id.0 as usize] += 1;
            assert_eq!(self.blocks[id.0 as usize].released_at, *at);
            assert!(self.blocks[id.0 as usize].name.is_some(), "a cached block has no name");
            assert_eq!(self.refs(*id), 0);
        }
        for (block, seen) in self.blocks.iter().zip(&seen) {
            assert_eq!(u32::from(block.refs > 0) + seen, 1, "a block is in no state or in two");
        }
        let named = self.blocks.iter().filter(|block| block.name.is_some()).count();
        assert_eq!(named, self.index.len());
        for (name, id) in &self.index {
            assert_eq!(self.blocks[id.0 as usize].name, Some(*name));
        }
    }
}
