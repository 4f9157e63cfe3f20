//! The table against a naive model: sequences as plain lists of ids, blocks as what was written into them.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// What a block's slots hold: the ids of the whole sequence up to that token, as keys and values depend on it.
type Contents = HashMap<BlockId, Vec<Vec<TokenId>>>;

/// The table with a stand-in for the backend's memory, and the sequences as they should be.
struct World {
    table: KvTable,
    contents: Contents,
    naive: Vec<(SeqId, Vec<TokenId>)>,
    n_blocks: usize,
}

impl World {
    fn new(n_blocks: u32) -> Self {
        Self {
            table: KvTable::new(n_blocks),
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
            for id in ids {
                let position = whole.len();
                whole.push(*id);
                let block = self.table.blocks(seq)?[position / BLOCK_TOKENS];
                let slots = self.contents.entry(block).or_default();
                slots.resize(BLOCK_TOKENS, Vec::new());
                slots[position % BLOCK_TOKENS] = whole.clone();
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

    /// Every sequence has its ids, and its blocks hold what was written for exactly these ids.
    fn check(&self) {
        self.table.pool.check();
        let mut held = std::collections::HashSet::new();
        for (seq, ids) in &self.naive {
            assert_eq!(self.table.ids(*seq).unwrap(), ids);
            assert_eq!(self.table.len(*seq).unwrap(), ids.len());
            let blocks = self.table.blocks(*seq).unwrap();
            assert_eq!(blocks.len(), ids.len().div_ceil(BLOCK_TOKENS));
            held.extend(blocks.iter().copied());
            for position in 0..ids.len() {
                let slot = &self.contents[&blocks[position / BLOCK_TOKENS]][position % BLOCK_TOKENS];
                assert_eq!(slot, &ids[..=position], "position {position} holds another token's keys");
            }
        }
        assert_eq!(self.table.free_tokens(), (self.n_blocks - held.len()) * BLOCK_TOKENS);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create,
    Append { seqs: Vec<(usize, usize, u32)>, commit: bool },
    Fork { at: usize, part: usize },
    Truncate { at: usize, part: usize },
    Release { at: usize },
    Reuse { at: usize, from: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let seqs = prop::collection::vec((0..8usize, 0..70usize, 0..2u32), 1..4);
    prop_oneof![
        2 => Just(Op::Create),
        6 => (seqs, prop::bool::weighted(0.8)).prop_map(|(seqs, commit)| Op::Append { seqs, commit }),
        3 => (0..8usize, 0..=100usize).prop_map(|(at, part)| Op::Fork { at, part }),
        2 => (0..8usize, 0..=100usize).prop_map(|(at, part)| Op::Truncate { at, part }),
        2 => (0..8usize).prop_map(|at| Op::Release { at }),
        3 => (0..8usize, 0..8usize).prop_map(|(at, from)| Op::Reuse { at, from }),
    ]
}

fn apply(world: &mut World, past: &mut Vec<Vec<TokenId>>, op: Op) {
    let count = world.naive.len();
    match op {
        Op::Create => {
            let seq = world.table.create();
            world.naive.push((seq, Vec::new()));
        }
        _ if count == 0 => {}
        Op::Append { seqs, commit } => {
            let mut wants: Vec<(usize, Vec<TokenId>)> = Vec::new();
            for (at, n, id) in seqs {
                if wants.iter().all(|(other, _)| *other != at % count) {
                    // Few different contents, so that prefixes meet again.
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
            let gained = world.table.reuse_prefix(*seq, rest);
            assert!(gained == 0 || gained < rest.len());
            assert!(gained.is_multiple_of(BLOCK_TOKENS));
            ids.extend_from_slice(&rest[..gained]);
        }
        Op::Reuse { .. } => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_table_equals_plain_lists(ops in prop::collection::vec(op(), 1..60), n_blocks in 2..14u32) {
        let mut world = World::new(n_blocks);
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
    let seq = world.table.create();
    world.naive.push((seq, Vec::new()));
    world.append(&[(0, ids.to_vec())], true).unwrap();
    world
}

#[test]
fn a_released_prefix_is_found_again_but_never_all_of_it() {
    let ids: Vec<TokenId> = (0..64).collect();
    let mut world = world_with(4, &ids);
    world.table.release(world.naive[0].0);
    for (wanted, gained) in [(&ids[..], 32), (&[&ids[..], &[9]].concat()[..], 64), (&[7, 7][..], 0)] {
        let seq = world.table.create();
        assert_eq!(world.table.reuse_prefix(seq, wanted), gained);
        assert_eq!(world.table.ids(seq).unwrap(), &wanted[..gained]);
        world.table.release(seq);
    }
}

#[test]
fn the_end_of_a_cached_prefix_is_evicted_first() {
    let ids: Vec<TokenId> = (0..97).collect();
    let mut world = world_with(4, &ids);
    world.table.release(world.naive.remove(0).0);
    assert_eq!(world.table.free_tokens(), 4 * BLOCK_TOKENS);
    let other = world.table.create();
    world.naive.push((other, Vec::new()));
    world.append(&[(0, vec![1000; 2 * BLOCK_TOKENS])], true).unwrap();
    let seq = world.table.create();
    assert_eq!(world.table.reuse_prefix(seq, &ids), 2 * BLOCK_TOKENS);
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
