//! The table compared with a naive model: sequences are plain lists of ids, blocks hold what was written into
//! them.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// The contents of each block's slots: the root and the ids of the whole sequence up to that token, on which
/// keys and values depend.
type Contents = HashMap<BlockId, Vec<(Root, Vec<TokenId>)>>;

/// The table with a stand-in for the backend's memory, and the expected sequences.
struct World {
    table: KvTable,
    contents: Contents,
    naive: Vec<(SeqId, Vec<TokenId>)>,
    n_blocks: usize,
}

impl World {
    fn new(n_blocks: u32) -> Self {
        Self::bounded(n_blocks, n_blocks as usize)
    }

    fn bounded(n_blocks: u32, cached_max: usize) -> Self {
        Self {
            table: KvTable::new(n_blocks, cached_max),
            contents: Contents::new(),
            naive: Vec::new(),
            n_blocks: n_blocks as usize,
        }
    }

    /// Reserves, writes and commits (or cancels), as a pass does.
    fn append(&mut self, wants: &[(usize, Vec<TokenId>)], commit: bool) -> Result<(), KvError> {
        let reservation: Vec<_> = wants.iter().map(|(at, ids)| (self.naive[*at].0, ids.len())).collect();
        for BlockCopy { from, to } in self.table.reserve(&reservation)? {
            let copy = self.contents[&from].clone();
            self.contents.insert(to, copy);
        }
        for (at, ids) in wants {
            let (seq, mut whole) = self.naive[*at].clone();
            let root = self.table.root(seq)?;
            for id in ids {
                let position = whole.len();
                whole.push(*id);
                let block = self.table.blocks(seq)?[position / BLOCK_TOKENS];
                let slots = self.contents.entry(block).or_default();
                slots.resize(BLOCK_TOKENS, Default::default());
                slots[position % BLOCK_TOKENS] = (root, whole.clone());
            }
            if commit {
                self.table.commit(seq, ids)?;
                self.naive[*at].1 = whole;
            } else {
                self.table.cancel(seq);
            }
        }
        Ok(())
    }

    /// Checks that every sequence has its ids and that its blocks hold what was written for exactly these
    /// ids. Sequences with equal beginnings must share full blocks of the same owner. No block may have two
    /// owners.
    fn check(&self) {
        self.table.pool.check();
        let mut held = std::collections::HashSet::new();
        let mut full: HashMap<(Root, Vec<Owner>, &[TokenId]), BlockId> = HashMap::new();
        let mut owners: HashMap<BlockId, Owner> = HashMap::new();
        for (seq, ids) in &self.naive {
            assert_eq!(self.table.ids(*seq).unwrap(), ids);
            assert_eq!(self.table.len(*seq).unwrap(), ids.len());
            let root = self.table.root(*seq).unwrap();
            let blocks = self.table.blocks(*seq).unwrap();
            assert_eq!(blocks.len(), ids.len().div_ceil(BLOCK_TOKENS));
            held.extend(blocks.iter().copied());
            for (at, block) in blocks[..ids.len() / BLOCK_TOKENS].iter().enumerate() {
                let prefix = &ids[..(at + 1) * BLOCK_TOKENS];
                // A block has one parent, so equal blocks after two blocks of different owners are two
                // blocks.
                let scope = self.table.seqs[seq].scope;
                let path: Vec<Owner> = (0..=at).map(|at| scope.owner_at(at)).collect();
                assert_eq!(
                    full.entry((root, path, prefix)).or_insert(*block),
                    block,
                    "one block for one content"
                );
            }
            for (at, block) in blocks.iter().enumerate() {
                let owner = self.table.seqs[seq].scope.owner_at(at);
                assert_eq!(*owners.entry(*block).or_insert(owner), owner, "block {block:?} has two owners");
            }
            for position in 0..ids.len() {
                let slot = &self.contents[&blocks[position / BLOCK_TOKENS]][position % BLOCK_TOKENS];
                assert_eq!(
                    (slot.0, &slot.1[..]),
                    (root, &ids[..=position]),
                    "position {position} holds another token's keys"
                );
            }
        }
        assert_eq!(self.table.free_tokens(), (self.n_blocks - held.len()) * BLOCK_TOKENS);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create { root: u32, owner: u128, shared_tokens: usize },
    Append { seqs: Vec<(usize, usize, u32)>, commit: bool },
    Fork { at: usize, part: usize },
    Truncate { at: usize, part: usize },
    Release { at: usize },
    Reuse { at: usize, from: usize },
    Wait { at: usize, tokens: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let seqs = prop::collection::vec((0..8usize, 0..70usize, 0..2u32), 1..4);
    prop_oneof![
        2 => (0..2u32, 0..2u128, prop::sample::select(vec![0, 31, 32, 70])).prop_map(|(root, owner, shared_tokens)| {
            Op::Create { root, owner, shared_tokens }
        }),
        6 => (seqs, prop::bool::weighted(0.8)).prop_map(|(seqs, commit)| Op::Append { seqs, commit }),
        3 => (0..8usize, 0..=100usize).prop_map(|(at, part)| Op::Fork { at, part }),
        2 => (0..8usize, 0..=100usize).prop_map(|(at, part)| Op::Truncate { at, part }),
        2 => (0..8usize).prop_map(|at| Op::Release { at }),
        3 => (0..8usize, 0..8usize).prop_map(|(at, from)| Op::Reuse { at, from }),
        3 => (0..8usize, 0..400usize).prop_map(|(at, tokens)| Op::Wait { at, tokens }),
    ]
}

fn apply(world: &mut World, past: &mut Vec<Vec<TokenId>>, op: Op) {
    let count = world.naive.len();
    match op {
        Op::Create { root, owner, shared_tokens } => {
            let seq = world.table.create(Root(root), PrefixScope { owner, shared_tokens });
            world.naive.push((seq, Vec::new()));
        }
        _ if count == 0 => {}
        Op::Append { seqs, commit } => {
            let mut wants: Vec<(usize, Vec<TokenId>)> = Vec::new();
            for (at, n, id) in seqs {
                if wants.iter().all(|(other, _)| *other != at % count) {
                    // Few different contents, so that equal prefixes occur.
                    wants.push((at % count, vec![id; n]));
                }
            }
            let before = world.table.free_tokens();
            match world.append(&wants, commit) {
                Ok(()) => past.extend(wants.iter().map(|(at, _)| world.naive[*at].1.clone())),
                Err(KvError::KvFull { needed, free }) => {
                    assert!(needed > free && free == before && before == world.table.free_tokens());
                }
                Err(err) => panic!("{err}"),
            }
        }
        Op::Fork { at, part } => {
            let (seq, ids) = world.naive[at % count].clone();
            let n = ids.len() * part / 100;
            let child = world.table.fork(seq, n).unwrap();
            world.naive.push((child, ids[..n].to_vec()));
        }
        Op::Truncate { at, part } => {
            let (seq, ids) = &mut world.naive[at % count];
            let n = ids.len() * part / 100;
            world.table.truncate(*seq, n).unwrap();
            ids.truncate(n);
        }
        Op::Release { at } => {
            let (seq, _) = world.naive.swap_remove(at % count);
            world.table.release(seq);
        }
        Op::Reuse { at, from } if !past.is_empty() => {
            let (seq, ids) = &mut world.naive[at % count];
            let source = &past[from % past.len()];
            let Some(rest) = source.strip_prefix(ids.as_slice()) else { return };
            let scope = world.table.seqs[seq].scope;
            let held = world.table.held_prefix(world.table.root(*seq).unwrap(), scope, source);
            let before = ids.len();
            let gained = world.table.reuse_prefix(*seq, rest);
            assert!(gained == 0 || gained < rest.len());
            let part = gained % BLOCK_TOKENS;
            assert!(part == 0 || part >= PART_TOKENS_MIN, "{gained} gained");
            let most = (source.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
            let aligned = before.is_multiple_of(BLOCK_TOKENS);
            assert!(!aligned || before + gained >= held.min(most), "what is held is found");
            ids.extend_from_slice(&rest[..gained]);
        }
        Op::Reuse { .. } => {}
        Op::Wait { at, tokens } => wait(world, at % count, tokens),
    }
}

/// Lets another sequence take room while this one waits.
fn wait(world: &mut World, at: usize, tokens: usize) {
    let (seq, ids) = world.naive[at].clone();
    world.table.unpin(seq);
    let partial = usize::from(!ids.len().is_multiple_of(BLOCK_TOKENS));
    assert!(world.table.blocks(seq).unwrap().len() <= partial, "only the last block is held");
    let other = world.table.create(Root(9), PrefixScope::default());
    let last = world.naive.len();
    world.naive.push((other, Vec::new()));
    let _full = world.append(&[(last, vec![7; tokens])], true);
    world.table.release(other);
    world.naive.pop();
    let len = world.table.pin(seq).unwrap();
    assert!(len <= ids.len() && world.table.pin(seq) == Ok(len));
    world.naive[at].1.truncate(len);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_table_equals_plain_lists(
        ops in prop::collection::vec(op(), 1..60),
        n_blocks in 2..14u32,
        cached_max in 0..14usize,
    ) {
        let mut world = World::bounded(n_blocks, cached_max);
        let mut past = Vec::new();
        for op in ops {
            apply(&mut world, &mut past, op);
            world.check();
        }
        for (seq, _) in std::mem::take(&mut world.naive) {
            world.table.release(seq);
        }
        world.check();
    }
}

fn world_with(n_blocks: u32, ids: &[TokenId]) -> World {
    let mut world = World::new(n_blocks);
    let seq = world.table.create(Root::default(), PrefixScope::default());
    world.naive.push((seq, Vec::new()));
    world.append(&[(0, ids.to_vec())], true).unwrap();
    world
}

#[test]
fn a_released_prefix_is_found_again_but_never_all_of_it() {
    let ids: Vec<TokenId> = (0..64).collect();
    let mut world = world_with(4, &ids);
    world.table.release(world.naive[0].0);
    let longer = [&ids[..], &[9]].concat();
    let (forked, early) = ([&ids[..50], &[9; 14]].concat(), [&ids[..39], &[9; 20]].concat());
    for (wanted, gained) in [
        (&ids[..], 63),
        (&longer, 64),
        (&forked, 50),
        (&early, 32),
        (&ids[..41], 40),
        (&ids[..40], 32),
        (&[7, 7], 0),
    ] {
        let seq = world.table.create(Root::default(), PrefixScope::default());
        assert_eq!(world.table.reuse_prefix(seq, wanted), gained, "{wanted:?}");
        assert_eq!(world.table.ids(seq).unwrap(), &wanted[..gained]);
        world.table.release(seq);
    }
    let stats = world.table.prefix_stats();
    assert_eq!((stats.queries, stats.hits, stats.hit_tokens), (7, 6, 32 + 64 + 32 + 32 + 32 + 32));
    assert_eq!((stats.query_tokens, stats.evicted_blocks), (64 + 65 + 64 + 59 + 41 + 40 + 2, 0));
    assert_eq!(stats.cached_blocks, 2);
}

#[test]
fn the_nearest_block_is_found_among_many() {
    let mut world = World::new(40);
    let start = |at: u32| -> Vec<TokenId> {
        // Blocks that agree with 0, 0, ... for `at` ids and go on larger or smaller.
        (0..32).map(|i| if i < at { 5 } else { (at % 2) * 9 }).collect()
    };
    for at in 0..32 {
        let seq = world.table.create(Root::default(), PrefixScope::default());
        world.naive.push((seq, Vec::new()));
        world.append(&[(world.naive.len() - 1, start(at))], true).unwrap();
    }
    for at in PART_TOKENS_MIN as u32..31 {
        let seq = world.table.create(Root::default(), PrefixScope::default());
        let wanted: Vec<TokenId> = start(at).into_iter().take(at as usize + 1).chain([77; 40]).collect();
        assert_eq!(world.table.reuse_prefix(seq, &wanted), at as usize + 1, "{wanted:?}");
        world.table.release(seq);
    }
    world.check();
}

#[test]
fn sequences_that_compute_the_same_beside_each_other_share_it_afterwards() {
    let ids: Vec<TokenId> = (0..80).collect();
    let mut world = World::new(8);
    for _ in 0..2 {
        let seq = world.table.create(Root::default(), PrefixScope::default());
        world.naive.push((seq, Vec::new()));
    }
    world.append(&[(0, ids.clone()), (1, ids.clone())], true).unwrap();
    world.check();
    assert_eq!(world.table.free_tokens(), 4 * BLOCK_TOKENS, "two shared blocks and two partial ones");
    assert_eq!(world.table.held_prefix(Root::default(), PrefixScope::default(), &ids), 64);
    for (seq, _) in std::mem::take(&mut world.naive) {
        world.table.release(seq);
    }
    assert_eq!(
        world.table.held_prefix(Root::default(), PrefixScope::default(), &ids),
        0,
        "nobody holds what is only cached"
    );
    world.check();
}

#[test]
fn owners_meet_only_in_what_is_everybody_s() {
    let ids: Vec<TokenId> = (0..130).collect();
    let scope = |owner, shared_tokens| PrefixScope { owner, shared_tokens };
    let mut world = World::new(16);
    let seq = world.table.create(Root::default(), scope(1, 40));
    world.naive.push((seq, Vec::new()));
    world.append(&[(0, ids.clone())], true).unwrap();
    let held = |world: &World, scope| world.table.held_prefix(Root::default(), scope, &ids);
    for (owner, shared_tokens, known) in
        [(1, 40, 128), (2, 40, 32), (2, 63, 32), (2, 64, 32), (2, 0, 0), (2, 31, 0), (1, 0, 0), (1, 96, 32)]
    {
        let scope = scope(owner, shared_tokens);
        assert_eq!(held(&world, scope), known, "{scope:?}");
        let seq = world.table.create(Root::default(), scope);
        assert_eq!(world.table.reuse_prefix(seq, &ids), known, "{scope:?}");
        // Nor by a guess that is right except for the last ids of a block.
        let mut guess = ids[..63].to_vec();
        guess.extend([77, 78]);
        let other = world.table.create(Root::default(), scope);
        assert_eq!(
            world.table.reuse_prefix(other, &guess),
            if known == 128 { 63 } else { known },
            "{scope:?}"
        );
        world.table.release(seq);
        world.table.release(other);
    }
    // A sequence that computes the same later gets its own blocks, and both stay.
    let other = world.table.create(Root::default(), scope(2, 40));
    let known = world.table.reuse_prefix(other, &ids);
    world.naive.push((other, ids[..known].to_vec()));
    world.append(&[(1, ids[known..].to_vec())], true).unwrap();
    world.check();
    assert_eq!((held(&world, scope(1, 40)), held(&world, scope(2, 40))), (128, 128));
    assert_eq!(
        world.table.free_tokens(),
        (16 - 5 - 4) * BLOCK_TOKENS,
        "one block is shared, the others are not"
    );
    world.table.clear();
    assert_eq!(world.table.seqs[&other].scope, scope(2, 40), "a cleared sequence keeps its owner");
}

#[test]
fn what_nobody_owns_is_found_by_all_within_what_they_share() {
    let ids: Vec<TokenId> = (0..130).collect();
    let mut world = World::new(16);
    let seq = world.table.create(Root::default(), PrefixScope::default());
    world.naive.push((seq, Vec::new()));
    world.append(&[(0, ids.clone())], true).unwrap();
    for (owner, shared_tokens, known) in [(0, 0, 128), (5, 0, 0), (5, 70, 64), (5, 130, 128)] {
        let scope = PrefixScope { owner, shared_tokens };
        let seq = world.table.create(Root::default(), scope);
        assert_eq!(world.table.reuse_prefix(seq, &ids), known, "{scope:?}");
        world.table.release(seq);
    }
}

#[test]
fn a_prefix_outlives_what_follows_it_however_it_is_shared() {
    // A trunk of two blocks, and branches of two blocks each. They are released in turn, the trunk's first
    // user first.
    let trunk: Vec<TokenId> = (0..64).collect();
    let branch = |n: u32| [&trunk[..], &[1000 + n; 64][..]].concat();
    let mut world = World::new(8);
    for n in 0..3 {
        let seq = world.table.create(Root::default(), PrefixScope::default());
        let known = world.table.reuse_prefix(seq, &branch(n));
        world.naive.push((seq, branch(n)[..known].to_vec()));
        let at = world.naive.len() - 1;
        world.append(&[(at, branch(n)[known..].to_vec())], true).unwrap();
    }
    for _ in 0..3 {
        let (seq, _) = world.naive.remove(0);
        world.table.release(seq);
        world.check();
    }
    let stats = world.table.prefix_stats();
    assert_eq!((world.table.free_tokens(), stats.cached_blocks), (8 * BLOCK_TOKENS, 8));
    // Six blocks are taken: the branches are evicted, oldest first, and the trunk stays.
    let other = world.table.create(Root::default(), PrefixScope::default());
    world.naive.push((other, Vec::new()));
    for (blocks, left) in [(2, [64, 128, 128]), (2, [64, 64, 128]), (1, [64, 64, 96]), (1, [64, 64, 64])] {
        world.append(&[(0, vec![7; blocks * BLOCK_TOKENS])], true).unwrap();
        for (n, left) in left.into_iter().enumerate() {
            let seq = world.table.create(Root::default(), PrefixScope::default());
            let wanted = [&branch(n as u32)[..], &[1]].concat();
            // A lookup must not count as a use, so the sequences are released in the order of the branches.
            assert_eq!(world.table.reuse_prefix(seq, &wanted), left, "branch {n}");
            world.table.release(seq);
        }
        world.check();
    }
    assert_eq!(world.table.prefix_stats().evicted_blocks, 6);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut world = World::bounded(8, 2);
    let ids: Vec<TokenId> = (0..160).collect();
    let seq = world.table.create(Root::default(), PrefixScope::default());
    world.naive.push((seq, Vec::new()));
    world.append(&[(0, ids.clone())], true).unwrap();
    world.table.release(world.naive.remove(0).0);
    world.check();
    let stats = world.table.prefix_stats();
    assert_eq!((stats.cached_blocks, stats.evicted_blocks), (2, 3));
    let seq = world.table.create(Root::default(), PrefixScope::default());
    assert_eq!(world.table.reuse_prefix(seq, &ids), 64, "the beginning is what stays");
}

#[test]
fn a_kept_block_is_copied_before_it_is_changed_where_there_is_room() {
    let ids: Vec<TokenId> = (0..64).collect();
    for (n_blocks, left) in [(4, 64), (2, 32)] {
        let mut world = world_with(n_blocks, &ids);
        let seq = world.naive[0].0;
        world.table.truncate(seq, 50).unwrap();
        world.naive[0].1.truncate(50);
        world.append(&[(0, vec![9])], true).unwrap();
        world.check();
        let again = world.table.create(Root::default(), PrefixScope::default());
        let wanted = [&ids[..], &[1]].concat();
        assert_eq!(world.table.reuse_prefix(again, &wanted), left, "of {n_blocks} blocks");
    }
}

#[test]
fn the_end_of_a_cached_prefix_is_evicted_first() {
    let ids: Vec<TokenId> = (0..97).collect();
    let mut world = world_with(4, &ids);
    world.table.release(world.naive.remove(0).0);
    assert_eq!(world.table.free_tokens(), 4 * BLOCK_TOKENS);
    let other = world.table.create(Root::default(), PrefixScope::default());
    world.naive.push((other, Vec::new()));
    world.append(&[(0, vec![1000; 2 * BLOCK_TOKENS])], true).unwrap();
    let seq = world.table.create(Root::default(), PrefixScope::default());
    assert_eq!(world.table.reuse_prefix(seq, &ids), 2 * BLOCK_TOKENS);
}

#[test]
fn an_unpinned_sequence_is_evicted_in_its_turn_and_goes_on_with_what_is_left() {
    let ids: Vec<TokenId> = (0..100).collect();
    let mut world = world_with(8, &ids);
    let seq = world.naive[0].0;
    world.table.unpin(seq);
    assert_eq!(world.table.free_tokens(), 7 * BLOCK_TOKENS, "all but its last block");
    assert_eq!(world.table.pin(seq), Ok(100), "nothing was taken");
    // Somebody else's prefix is released later, so it stays longer.
    world.table.unpin(seq);
    let other = world.table.create(Root(0), PrefixScope { owner: 2, shared_tokens: 0 });
    world.naive.push((other, Vec::new()));
    world.append(&[(1, vec![5; 64])], true).unwrap();
    world.table.release(other);
    let third = world.table.create(Root(1), PrefixScope::default());
    world.naive[1] = (third, Vec::new());
    world.append(&[(1, vec![6; 4 * BLOCK_TOKENS])], true).unwrap();
    let again = world.table.create(Root(0), PrefixScope { owner: 2, shared_tokens: 0 });
    assert_eq!(world.table.reuse_prefix(again, &[5; 65]), 64, "the neighbour's prefix is there");
    world.table.release(again);
    assert_eq!(world.table.pin(seq), Ok(BLOCK_TOKENS), "its own end went first");
    world.naive[0].1.truncate(BLOCK_TOKENS);
    world.check();
}

#[test]
fn a_full_cache_refuses_and_changes_nothing() {
    let mut world = world_with(2, &[1; 40]);
    let child = world.table.fork(world.naive[0].0, 40).unwrap();
    world.naive.push((child, vec![1; 40]));
    let want = KvError::KvFull { needed: BLOCK_TOKENS, free: 0 };
    assert_eq!(world.append(&[(1, vec![2])], true), Err(want));
    world.check();
    let seq = world.naive[0].0;
    assert_eq!(world.table.truncate(seq, 41), Err(KvError::PastEnd { wanted: 41, len: 40 }));
    assert_eq!(world.table.fork(seq, 41), Err(KvError::PastEnd { wanted: 41, len: 40 }));
    world.table.release(seq);
    assert_eq!(world.table.len(seq), Err(KvError::UnknownSequence(seq)));
}
