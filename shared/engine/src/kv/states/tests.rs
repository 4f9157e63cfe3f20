//! The table of states compared with a naive model: slots hold the ids of the tokens that were taken in.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::pool::Root;
use super::*;

/// A table, and what a pass would have written into each slot: the root, and the ids before.
struct World {
    table: KvTable,
    slots: HashMap<StateId, (Root, Vec<TokenId>)>,
    seqs: Vec<SeqId>,
}

impl World {
    fn new(n_blocks: u32, checkpoints_max: usize) -> Self {
        let table = KvTable::new(n_blocks, n_blocks as usize).with_states(checkpoints_max);
        Self { table, slots: HashMap::new(), seqs: Vec::new() }
    }

    fn create(&mut self, root: u32) -> SeqId {
        let seq = self.table.create(Root(root), PrefixScope::default());
        self.seqs.push(seq);
        seq
    }

    fn states(&self) -> &StateTable {
        self.table.states.as_ref().unwrap()
    }

    /// Fills slots as a pass over `ids` does, which ends with the sequence's new tokens.
    fn fill(&mut self, seq: SeqId, moves: &StateMoves, ids: &[TokenId]) {
        let root = self.table.root(seq).unwrap();
        let before = moves.from.map_or((root, Vec::new()), |from| self.slots[&from].clone());
        assert_eq!(before.0, root, "a state of another adapter");
        for (rows, id) in &moves.saves {
            let held = self.states().refs[id.0 as usize];
            assert_eq!(held, 1, "slot {id:?} is written while somebody holds it");
            self.slots.insert(*id, (root, [&before.1[..], &ids[..*rows]].concat()));
        }
        assert_eq!(moves.saves.last().map(|(rows, _)| *rows), Some(ids.len()));
    }

    fn step(&mut self, seq: SeqId, ids: &[TokenId], commit: bool) -> Result<(), KvError> {
        self.table.reserve(&[(seq, ids.len())])?;
        let behind = self.table.behind(seq)?;
        let known = self.table.ids(seq)?;
        let all = [&known[known.len() - behind..], ids].concat();
        let moves = self.table.open_states(&[(seq, ids.len())]).remove(0);
        self.fill(seq, &moves, &all);
        match commit {
            true => self.table.commit(seq, ids)?,
            false => self.table.cancel(seq),
        }
        Ok(())
    }

    fn catch_up(&mut self, seq: SeqId, n: usize, done: bool) {
        let behind = self.table.behind(seq).unwrap();
        let known = self.table.ids(seq).unwrap();
        let ids = known[known.len() - behind..][..n.min(behind)].to_vec();
        if ids.is_empty() {
            return;
        }
        let moves = self.table.open_behind(seq, ids.len()).unwrap().remove(0);
        self.fill(seq, &moves, &ids);
        self.table.caught_up(seq, done);
    }

    /// Checks what each sequence and each checkpoint holds, and that references are counted.
    fn check(&self) {
        let mut refs = vec![0; self.states().refs.len()];
        for seq in &self.seqs {
            let (ids, root) = (self.table.ids(*seq).unwrap(), self.table.root(*seq).unwrap());
            let held = &self.table.seqs[seq].held;
            assert!(held.open.is_none());
            for state in held.newest.iter().chain(&held.before) {
                refs[state.id.0 as usize] += 1;
                let (of, tokens) = &self.slots[&state.id];
                assert_eq!((of, &tokens[..]), (&root, &ids[..state.tokens]), "not the sequence's own state");
            }
            let behind = ids.len() - held.tokens();
            assert_eq!(self.table.behind(*seq).unwrap(), behind);
        }
        for checkpoint in self.states().checkpoints.values() {
            refs[checkpoint.state.id.0 as usize] += 1;
            assert_eq!(checkpoint.state.tokens, self.slots[&checkpoint.state.id].1.len());
        }
        assert_eq!(refs, self.states().refs);
        let free = refs.iter().filter(|refs| **refs == 0).count();
        assert_eq!(free, self.states().free.len());
        assert!(self.states().checkpoints.len() <= self.states().checkpoints_max);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create(u32),
    Step { at: usize, n: usize, id: TokenId, commit: bool },
    CatchUp { at: usize, n: usize, done: bool },
    Fork { at: usize, percent: usize },
    Truncate { at: usize, percent: usize },
    Release { at: usize },
    Reuse { at: usize, root: u32 },
    Wait { at: usize, n: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let often = || prop::bool::weighted(0.8);
    prop_oneof![
        1 => (0..2u32).prop_map(Op::Create),
        6 => (0..8usize, 1..120usize, 0..2u32, often())
            .prop_map(|(at, n, id, commit)| Op::Step { at, n, id, commit }),
        1 => (0..8usize, 1..80usize, often()).prop_map(|(at, n, done)| Op::CatchUp { at, n, done }),
        3 => (0..8usize, 0..=100usize).prop_map(|(at, percent)| Op::Fork { at, percent }),
        3 => (0..8usize, 0..=100usize).prop_map(|(at, percent)| Op::Truncate { at, percent }),
        2 => (0..8usize).prop_map(|at| Op::Release { at }),
        3 => (0..8usize, 0..2u32).prop_map(|(at, root)| Op::Reuse { at, root }),
        3 => (0..8usize, 1..1200usize).prop_map(|(at, n)| Op::Wait { at, n }),
    ]
}

fn apply(world: &mut World, op: Op) {
    if let Op::Create(root) = op {
        world.create(root);
        return;
    }
    let Some(count) = Some(world.seqs.len()).filter(|count| *count > 0) else { return };
    match op {
        Op::Create(_) => {}
        Op::Step { at, n, id, commit } => {
            let seq = world.seqs[at % count];
            if let Err(err) = world.step(seq, &vec![id; n], commit) {
                assert!(matches!(err, KvError::KvFull { .. }), "{err}");
            }
        }
        Op::CatchUp { at, n, done } => world.catch_up(world.seqs[at % count], n, done),
        Op::Fork { at, percent } => {
            let seq = world.seqs[at % count];
            let n = world.table.len(seq).unwrap() * percent / 100;
            let child = world.table.fork(seq, n).unwrap();
            world.seqs.push(child);
        }
        Op::Truncate { at, percent } => {
            let seq = world.seqs[at % count];
            let n = world.table.len(seq).unwrap() * percent / 100;
            world.table.truncate(seq, n).unwrap();
        }
        Op::Release { at } => world.table.release(world.seqs.swap_remove(at % count)),
        Op::Reuse { at, root } => {
            let ids = [world.table.ids(world.seqs[at % count]).unwrap(), &[9]].concat();
            let scope = PrefixScope::default();
            let held = world.table.held_prefix(Root(root), scope, &ids);
            let seq = world.create(root);
            let gained = world.table.reuse_prefix(seq, &ids);
            assert!(gained >= held && gained.is_multiple_of(BLOCK_TOKENS));
            assert_eq!(world.table.behind(seq), Ok(0), "a known prefix ends at a checkpoint");
        }
        // Another sequence takes room while this one waits.
        Op::Wait { at, n } => {
            let seq = world.seqs[at % count];
            let before = world.table.len(seq).unwrap();
            world.table.unpin(seq);
            let other = world.create(9);
            let _full = world.step(other, &vec![7; n], true);
            world.table.release(other);
            world.seqs.pop();
            assert!(world.table.pin(seq).unwrap() <= before);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn states_are_those_of_the_tokens_before_them(
        ops in prop::collection::vec(op(), 1..50),
        checkpoints_max in 0..7usize,
    ) {
        let mut world = World::new(40, checkpoints_max);
        world.create(0);
        for op in ops {
            apply(&mut world, op);
            world.check();
        }
    }
}

/// Returns the numbers of tokens in checkpoints, after a prompt was taken in by steps of so many tokens.
fn kept(checkpoints_max: usize, steps: &[usize]) -> Vec<usize> {
    let mut world = World::new(400, checkpoints_max);
    let seq = world.create(0);
    for (at, n) in steps.iter().enumerate() {
        world.step(seq, &vec![at as u32; *n], true).unwrap();
        world.check();
    }
    let mut tokens: Vec<usize> = world
        .states()
        .checkpoints
        .values()
        .map(|checkpoint| checkpoint.state.tokens / BLOCK_TOKENS)
        .collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn the_newest_checkpoints_stay_and_older_ones_get_sparser() {
    assert_eq!(kept(9, &[32; 63]), [16, 32, 48, 56, 59, 60, 61, 62, 63]);
    assert_eq!(kept(2, &[32; 63]), [32, 63]);
    assert_eq!(kept(9, &[63 * 32]), kept(9, &[32; 63]), "steps of any length leave the same");
    assert_eq!(kept(4, &[70, 1, 1]), [1, 2]);
    assert!(kept(0, &[320]).is_empty());
}

#[test]
fn a_cut_goes_back_to_the_nearest_state() {
    let mut world = World::new(40, 8);
    let seq = world.create(0);
    world.step(seq, &[1; 100], true).unwrap();
    world.step(seq, &[2; 5], true).unwrap();
    for (cut, behind) in [(105, 0), (103, 3), (99, 3), (64, 0), (63, 31), (31, 31), (0, 0)] {
        world.table.truncate(seq, cut).unwrap();
        assert_eq!(world.table.behind(seq), Ok(behind), "cut to {cut}");
        world.check();
    }
}
