//! Which blocks of the KV cache are in use, by how many sequences, and the tree of prefixes they form.
//!
//! Bookkeeping only: block contents live in the backend. A block is in one of three states: free (no content),
//! held (by one sequence or more), or cached (no sequence holds it, but the tree still knows its content). A node
//! of the tree is a full block: its place says the root, the ids of the block and of everything before it, compared id by
//! id, so that nobody can write a prompt that names the block of another one. Beside its place it has an owner: a
//! block is found by its own owner's sequences only, however well somebody else guesses its ids.
//!
//! What always holds: every block is in exactly one state; a held node's parent is held, so that below a cached
//! node everything is cached; below a node of one owner there are only nodes of that owner; only leaves are evicted, the
//! one released first before the others, so that a prefix outlives what follows it; no more than the bound are cached.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::tokenizer::TokenId;

/// The place of one block of [`super::BLOCK_TOKENS`] tokens in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) u32);

/// What computes a sequence's keys and values, as one number: 0 is the model alone, n its n-th adapter. Prefixes of
/// different roots never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Root(pub(crate) u32);

/// Whose sequences find a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// Everybody's.
    All,
    /// Those of this owner.
    One(u128),
}

/// Where a block stands in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the beginning of sequences of this root.
    First(Root),
    /// Behind this block.
    Behind(BlockId),
}

/// Nodes of one owner below one node, by the ids of their blocks; sorted, so that the nearest ids are neighbours.
type Siblings = BTreeMap<Arc<[TokenId]>, BlockId>;
/// Nodes below one node; no owner has none.
type Children = BTreeMap<Owner, Siblings>;

/// Where nothing was published.
static NO_SIBLINGS: Siblings = Siblings::new();

#[derive(Debug, Clone)]
struct Node {
    place: Place,
    owner: Owner,
    ids: Arc<[TokenId]>,
    children: Children,
    /// When the last sequence left it: the key of a leaf in `leaves`; meaningful only while it is cached.
    released_at: u64,
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
    /// Used as a stack, so that memory already touched is used again first.
    free: Vec<BlockId>,
    /// First blocks of sequences, by root.
    roots: BTreeMap<Root, Children>,
    /// Cached nodes without children, by time of release: the first is evicted first.
    leaves: BTreeMap<u64, BlockId>,
    cached: usize,
    cached_max: usize,
    releases: u64,
    evicted: u64,
}

impl BlockPool {
    /// A pool of `n_blocks` free blocks, of which at most `cached_max` are kept for content that no sequence holds.
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
        }
    }

    /// A pool of as many blocks, all free.
    pub(crate) fn emptied(&self) -> Self {
        Self { evicted: self.evicted, ..Self::new(self.blocks.len() as u32, self.cached_max) }
    }

    /// Blocks that [`Self::allocate`] can hand out: free ones and cached ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached
    }

    /// Blocks that no sequence holds and the tree knows.
    pub(crate) fn cached(&self) -> usize {
        self.cached
    }

    /// Cached blocks that were given up for room, since the beginning.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// How many sequences hold the block.
    pub(crate) fn refs(&self, id: BlockId) -> u32 {
        self.blocks[id.0 as usize].refs
    }

    /// Whether the tree knows the block's content.
    pub(crate) fn is_node(&self, id: BlockId) -> bool {
        self.blocks[id.0 as usize].node.is_some()
    }

    /// A block with one reference and no content; evicts a leaf where none is free. `None` where every block is
    /// held.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.evict()?,
        };
        self.blocks[id.0 as usize].refs = 1;
        Some(id)
    }

    /// One more sequence holds the block; it holds the block's parent already.
    pub(crate) fn retain(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.refs == 0 {
            let node = block.node.as_ref().expect("a block without references and content is not retained");
            self.leaves.remove(&node.released_at);
            self.cached -= 1;
        }
        block.refs += 1;
    }

    /// One sequence fewer holds the block (and it holds no node below any more); the last one makes it cached where
    /// the tree knows it, else free.
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

    /// Makes a full block, held by one sequence, findable at `place` for its owner. Where the tree knows this content
    /// already, the sequence gets the known block in place of its own, which becomes free. Returns the block to hold.
    pub(crate) fn publish(&mut self, place: Place, owner: Owner, ids: &[TokenId], id: BlockId) -> BlockId {
        if let Some(known) = self.find(place, owner, ids) {
            self.retain(known);
            self.release(id);
            return known;
        }
        let ids: Arc<[TokenId]> = ids.into();
        self.children_mut(place).entry(owner).or_default().insert(ids.clone(), id);
        let node = Node { place, owner, ids, children: Children::new(), released_at: 0 };
        let before = self.blocks[id.0 as usize].node.replace(node);
        assert!(before.is_none(), "block {} was published twice", id.0);
        id
    }

    /// Takes the block out of the tree, because the one sequence that holds it is about to change its content; what
    /// was cached below it is given up.
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

    /// The owner's block that holds `ids` at `place`, if the tree knows one.
    pub(crate) fn find(&self, place: Place, owner: Owner, ids: &[TokenId]) -> Option<BlockId> {
        self.siblings(place, owner).get(ids).copied()
    }

    /// The owner's block at `place` whose first ids agree with `ids` for longest, and for how many: at least one. Of two
    /// that agree for equally long, the one whose ids come first.
    pub(crate) fn find_part(&self, place: Place, owner: Owner, ids: &[TokenId]) -> Option<(BlockId, usize)> {
        let siblings = self.siblings(place, owner);
        // What shares the longest prefix with a key is its neighbour in sorted order.
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

    /// Takes the leaf that was released first out of the tree; the caller uses its block.
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

    /// Takes a node out of the list that it stands in.
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

    /// Checks the invariants of the module's description.
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
