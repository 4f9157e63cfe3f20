//! The blocks of the KV cache: which are in use, by how many sequences, and the tree of prefixes they form.
//!
//! Bookkeeping only: block contents live in the backend. A block is in one of three states: free (no
//! content), held (by one or more sequences), or cached (no sequence holds it, but the tree knows its
//! content). A node of the tree is a full block. Its place is the root, the ids of the block and all ids
//! before it. Ids are compared one by one, so nobody can write a prompt that matches another block. A node
//! also has an owner: a block is found only by sequences of its owner, even if somebody else guesses its ids.
//!
//! What always holds: every block is in exactly one state. The parent of a held node is held, so below a
//! cached node everything is cached. Below a node of one owner there are only nodes of that owner. Only
//! leaves are evicted, in the order of release, so that a prefix outlives what follows it. No more than the
//! limit are cached.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::tokenizer::TokenId;

/// The id of one block of [`super::BLOCK_TOKENS`] tokens in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) u32);

/// The computation behind a sequence's keys and values, as a number: 0 is the model alone, n its n-th
/// adapter. Sequences of different roots share no prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Root(pub(crate) u32);

/// Whose sequences may find a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// Everybody's sequences.
    All,
    /// Sequences of this owner.
    One(u128),
}

/// The place of a block in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The first block of sequences of this root.
    First(Root),
    /// The block after this one.
    Behind(BlockId),
}

/// Nodes of one owner below one node, by the ids of their blocks. Sorted, so that the most similar ids are
/// neighbours.
type Siblings = BTreeMap<Arc<[TokenId]>, BlockId>;
/// Nodes below one node; an owner without nodes has no entry.
type Children = BTreeMap<Owner, Siblings>;

/// Returned for places without nodes.
static NO_SIBLINGS: Siblings = Siblings::new();

#[derive(Debug, Clone)]
struct Node {
    place: Place,
    owner: Owner,
    ids: Arc<[TokenId]>,
    children: Children,
    /// When the last sequence released it: the key of a leaf in `leaves`. Used only while the node is cached.
    released_at: u64,
    /// Tells it from other nodes that the same block was and will be.
    serial: u64,
}

#[derive(Debug, Default, Clone)]
struct Block {
    refs: u32,
    node: Option<Node>,
}

/// All blocks of one cache.
#[derive(Debug, Clone)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// A stack, so that memory used before is used again first.
    free: Vec<BlockId>,
    /// First blocks of sequences, by root.
    roots: BTreeMap<Root, Children>,
    /// Cached nodes without children, by time of release; the first is evicted first.
    leaves: BTreeMap<u64, BlockId>,
    cached: usize,
    cached_max: usize,
    releases: u64,
    evicted: u64,
    /// Nodes so far.
    nodes: u64,
}

impl BlockPool {
    /// Returns a pool of `n_blocks` free blocks. At most `cached_max` of them keep content that no sequence
    /// holds.
    pub(crate) fn new(n_blocks: u32, cached_max: usize) -> Self {
        Self {
            blocks: vec![Block::default(); n_blocks as usize],
            free: (0..n_blocks).rev().map(BlockId).collect(),
            roots: BTreeMap::new(),
            leaves: BTreeMap::new(),
            cached: 0,
            cached_max,
            releases: 0,
            evicted: 0,
            nodes: 0,
        }
    }

    /// Returns a pool of as many blocks, all free.
    pub(crate) fn emptied(&self) -> Self {
        Self { evicted: self.evicted, ..Self::new(self.blocks.len() as u32, self.cached_max) }
    }

    /// Returns how many blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns how many blocks [`Self::allocate`] can hand out: free ones and cached ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached
    }

    /// Returns how many blocks are known to the tree and held by no sequence.
    pub(crate) fn cached(&self) -> usize {
        self.cached
    }

    /// Returns how many cached blocks were evicted since the start.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns how many sequences hold the block.
    pub(crate) fn refs(&self, id: BlockId) -> u32 {
        self.blocks[id.0 as usize].refs
    }

    /// Whether the tree knows the block's content.
    pub(crate) fn is_node(&self, id: BlockId) -> bool {
        self.blocks[id.0 as usize].node.is_some()
    }

    /// Returns the number of the node that the block is, if the tree knows its content. No other node of this
    /// pool has it, before or after.
    pub(crate) fn serial(&self, id: BlockId) -> Option<u64> {
        self.blocks[id.0 as usize].node.as_ref().map(|node| node.serial)
    }

    /// Returns a block with one reference and no content. Evicts a leaf if none is free; returns `None` if
    /// every block is held.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.evict()?,
        };
        self.blocks[id.0 as usize].refs = 1;
        Some(id)
    }

    /// Adds a reference of a sequence, which must hold the block's parent already.
    pub(crate) fn retain(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.refs == 0 {
            let node = block.node.as_ref().expect("a block without references and content is not retained");
            self.leaves.remove(&node.released_at);
            self.cached -= 1;
        }
        block.refs += 1;
    }

    /// Removes a reference of a sequence, which must hold no node below any more. When the last one is
    /// removed, the block becomes cached if the tree knows it, else free.
    pub(crate) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.refs > 0, "released block {} that no sequence holds", id.0);
        block.refs -= 1;
        if block.refs > 0 {
            return;
        }
        let Some(node) = &mut block.node else {
            self.free.push(id);
            return;
        };
        node.released_at = self.releases;
        self.releases += 1;
        self.cached += 1;
        if node.children.is_empty() {
            self.leaves.insert(node.released_at, id);
        }
        while self.cached > self.cached_max {
            let evicted = self.evict().expect("below a cached node there is a cached leaf");
            self.free.push(evicted);
        }
    }

    /// Makes a full block, held by one sequence, findable at `place` for its owner. If the tree already knows
    /// this content, the sequence gets the known block and its own becomes free. Returns the block to hold.
    pub(crate) fn publish(&mut self, place: Place, owner: Owner, ids: &[TokenId], id: BlockId) -> BlockId {
        if let Some(known) = self.find(place, owner, ids) {
            self.retain(known);
            self.release(id);
            return known;
        }
        let ids: Arc<[TokenId]> = ids.into();
        self.children_mut(place).entry(owner).or_default().insert(ids.clone(), id);
        let node = Node { place, owner, ids, children: Children::new(), released_at: 0, serial: self.nodes };
        self.nodes += 1;
        let before = self.blocks[id.0 as usize].node.replace(node);
        assert!(before.is_none(), "block {} was published twice", id.0);
        id
    }

    /// Removes the block from the tree, because the one sequence that holds it is about to change its
    /// content. Cached nodes below it are freed.
    pub(crate) fn unpublish(&mut self, id: BlockId) {
        if let Some(node) = self.blocks[id.0 as usize].node.take() {
            self.detach(&node);
            let mut below: Vec<BlockId> = blocks_of(node.children).collect();
            while let Some(child) = below.pop() {
                let block = &mut self.blocks[child.0 as usize];
                assert_eq!(block.refs, 0, "a held block follows block {} that one sequence holds", id.0);
                let node = block.node.take().expect("children are nodes");
                self.leaves.remove(&node.released_at);
                self.cached -= 1;
                self.evicted += 1;
                self.free.push(child);
                below.extend(blocks_of(node.children));
            }
        }
    }

    /// Returns the owner's block that holds `ids` at `place`, if the tree knows one.
    pub(crate) fn find(&self, place: Place, owner: Owner, ids: &[TokenId]) -> Option<BlockId> {
        self.siblings(place, owner).get(ids).copied()
    }

    /// Returns the owner's block at `place` whose ids share the longest prefix with `ids`, and the length of
    /// that prefix, at least one. If two are equally long, the one whose ids sort first wins.
    pub(crate) fn find_part(&self, place: Place, owner: Owner, ids: &[TokenId]) -> Option<(BlockId, usize)> {
        let siblings = self.siblings(place, owner);
        // The key that shares the longest prefix is a neighbour in sorted order.
        let below = siblings.range::<[TokenId], _>((Unbounded, Excluded(ids))).next_back();
        let above = siblings.range::<[TokenId], _>((Included(ids), Unbounded)).next();
        let shared = |key: &[TokenId]| key.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let mut best: Option<(BlockId, usize)> = None;
        for (key, id) in below.into_iter().chain(above) {
            let n = shared(key);
            if n > best.map_or(0, |(_, most)| most) {
                best = Some((*id, n));
            }
        }
        best
    }

    /// Removes the leaf that was released first from the tree; the caller uses its block.
    fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.leaves.pop_first()?;
        let node = self.blocks[id.0 as usize].node.take().expect("leaves are nodes");
        self.detach(&node);
        self.cached -= 1;
        self.evicted += 1;
        if let Place::Behind(parent) = node.place {
            let block = &self.blocks[parent.0 as usize];
            if let Some(above) =
                block.node.as_ref().filter(|above| block.refs == 0 && above.children.is_empty())
            {
                self.leaves.insert(above.released_at, parent);
            }
        }
        Some(id)
    }

    /// Removes a node from its parent's list.
    fn detach(&mut self, node: &Node) {
        let children = self.children_mut(node.place);
        if let Some(siblings) = children.get_mut(&node.owner) {
            siblings.remove(&node.ids);
            if siblings.is_empty() {
                children.remove(&node.owner);
            }
        }
    }

    fn siblings(&self, place: Place, owner: Owner) -> &Siblings {
        let children = match place {
            Place::First(root) => self.roots.get(&root),
            Place::Behind(id) => {
                Some(&self.blocks[id.0 as usize].node.as_ref().expect(PARENTS_ARE_NODES).children)
            }
        };
        children.and_then(|children| children.get(&owner)).unwrap_or(&NO_SIBLINGS)
    }

    fn children_mut(&mut self, place: Place) -> &mut Children {
        match place {
            Place::First(root) => self.roots.entry(root).or_default(),
            Place::Behind(id) => {
                &mut self.blocks[id.0 as usize].node.as_mut().expect(PARENTS_ARE_NODES).children
            }
        }
    }

    /// Checks the invariants of the module's documentation.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let free: std::collections::HashSet<_> = self.free.iter().copied().collect();
        assert_eq!(free.len(), self.free.len(), "a block is free twice");
        let (mut cached, mut leaves) = (0, 0);
        for (at, block) in self.blocks.iter().enumerate() {
            let id = BlockId(at as u32);
            assert_eq!(free.contains(&id), block.refs == 0 && block.node.is_none(), "block {at}: free");
            let Some(node) = &block.node else { continue };
            let found = self.find(node.place, node.owner, &node.ids);
            assert_eq!(found, Some(id), "block {at} is not where it says");
            let parent_refs = match node.place {
                Place::First(_) => u32::MAX,
                Place::Behind(parent) => self.refs(parent),
            };
            assert!(block.refs <= parent_refs, "block {at} is held by more sequences than its parent");
            for (owner, siblings) in &node.children {
                assert!(!siblings.is_empty(), "an empty list below block {at} is forgotten");
                assert!(
                    node.owner == Owner::All || node.owner == *owner,
                    "block {at} is followed by a stranger's"
                );
                for (ids, child) in siblings {
                    let below = self.blocks[child.0 as usize].node.as_ref().expect("children are nodes");
                    let place = (below.place, below.owner, &below.ids);
                    assert_eq!(place, (Place::Behind(id), *owner, ids), "a child knows its place");
                }
            }
            cached += usize::from(block.refs == 0);
            if block.refs == 0 && node.children.is_empty() {
                leaves += 1;
                assert_eq!(self.leaves.get(&node.released_at), Some(&id), "block {at} is an evictable leaf");
            }
        }
        assert_eq!((self.cached, self.leaves.len()), (cached, leaves));
        assert!(cached <= self.cached_max, "{cached} blocks cached, bound {}", self.cached_max);
    }
}

fn blocks_of(children: Children) -> impl Iterator<Item = BlockId> {
    children.into_values().flat_map(Siblings::into_values)
}

const PARENTS_ARE_NODES: &str = "a block is published after the one before it, and outlived by it";
