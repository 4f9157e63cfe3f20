//! A fake engine: a hash chain in place of a model.
//!
//! Two outputs are equal only if every earlier token of their sequence passed every layer in order, so that
//! a wrong, missing or doubled row shows in every later output. It never computes with numbers of a model.
//! Always holds: results depend on the tokens and the layers alone, not on chunks or on the device.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use baton_engine::Wanted;
use baton_engine::engine::Hidden;
use baton_random::mix;

use crate::core::{SeqNo, StepNo};
use crate::wire::frame::{Operation, Span};

/// Values of a hidden state.
pub(super) const WIDTH: usize = 6;
/// Bits of each value: whole numbers that are exact in f32 and in f16.
const BITS: u32 = 11;
/// Tokens of a block of known prefixes.
const BLOCK: usize = 4;
/// Most blocks of known prefixes.
const BLOCKS_MAX: usize = 64;

/// Returns the hidden state of a token before the first layer.
pub(super) fn begins(token: u32) -> u64 {
    mix(1, u64::from(token))
}

/// Returns the output of a hidden state behind the last layer.
pub(super) fn output(state: u64) -> u64 {
    mix(2, state)
}

/// Writes hidden states as values that every format of activations carries without loss.
pub(super) fn pack(states: &[u64]) -> Hidden {
    let mut values = Vec::with_capacity(states.len() * WIDTH);
    for state in states {
        values.extend((0..WIDTH as u32).map(|i| ((state >> (i * BITS)) & 0x7ff) as f32));
    }
    Hidden { rows: states.len(), width: WIDTH, values }
}

/// Reads hidden states; `None` if the values are not those of [`pack`].
pub(super) fn unpack(hidden: &Hidden) -> Option<Vec<u64>> {
    if hidden.width != WIDTH || hidden.values.len() != hidden.rows * WIDTH {
        return None;
    }
    hidden.values.chunks_exact(WIDTH).map(unpacked).collect()
}

fn unpacked(values: &[f32]) -> Option<u64> {
    let mut state = 0_u64;
    for (i, value) in values.iter().enumerate() {
        let max = if i + 1 == WIDTH { 0x1ff } else { 0x7ff };
        let bits = *value as u64;
        if bits as f32 != *value || bits > max {
            return None;
        }
        state |= bits << (i as u32 * BITS);
    }
    Some(state)
}

/// Why the engine does not do what it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It does not fit what the engine holds.
    Refused(String),
    /// Another number of tokens is known here.
    Gains {
        /// Tokens that the head found.
        want: u64,
        /// Tokens that were found here.
        found: u64,
    },
}

/// One sequence.
#[derive(Debug, Clone)]
struct Chain {
    ids: Vec<u32>,
    /// For each own layer, the hash of all earlier rows at each position.
    past: Vec<Vec<u64>>,
    /// For each whole block, the hash of all tokens up to its end.
    ends: Vec<u64>,
}

impl Chain {
    fn new(layers: usize) -> Self {
        Self { ids: Vec::new(), past: vec![Vec::new(); layers], ends: Vec::new() }
    }

    fn cut(&mut self, tokens: usize) {
        self.ids.truncate(tokens);
        self.past.iter_mut().for_each(|past| past.truncate(tokens));
        self.ends.truncate(tokens / BLOCK);
    }

    fn first(&self, tokens: usize) -> Self {
        Self {
            ids: self.ids[..tokens].to_vec(),
            past: self.past.iter().map(|past| past[..tokens.min(past.len())].to_vec()).collect(),
            ends: self.ends[..tokens / BLOCK].to_vec(),
        }
    }
}

fn end_of(before: Option<&u64>, ids: &[u32]) -> u64 {
    ids.iter().fold(before.copied().unwrap_or(3), |hash, id| mix(hash, u64::from(*id)))
}

/// A part of the open step.
#[derive(Debug)]
struct Part {
    seq: SeqNo,
    start: usize,
    ids: Vec<u32>,
    rows: Range<usize>,
    wanted: Range<usize>,
}

#[derive(Debug)]
struct Opened {
    step: StepNo,
    parts: Vec<Part>,
}

/// The engine of one device.
#[derive(Debug)]
pub(super) struct FakeEngine {
    n_layers: usize,
    layers: Vec<usize>,
    capacity: usize,
    seqs: BTreeMap<SeqNo, Chain>,
    open: Option<Opened>,
    blocks: BTreeMap<u64, Vec<u64>>,
    oldest: VecDeque<u64>,
    /// Whether every layer is computed wrong.
    pub(super) wrong: bool,
    /// The first time that rows came to a layer out of order, or a step ended before all of its rows had
    /// passed.
    pub(super) disorder: Option<String>,
}

impl FakeEngine {
    /// An engine without sequences that holds these layers, ascending, and so many tokens.
    pub(super) fn new(n_layers: usize, layers: Vec<usize>, capacity: usize) -> Self {
        Self {
            n_layers,
            layers,
            capacity,
            seqs: BTreeMap::new(),
            open: None,
            blocks: BTreeMap::new(),
            oldest: VecDeque::new(),
            wrong: false,
            disorder: None,
        }
    }

    /// Begins anew with these layers. Sequences stay, without tokens.
    pub(super) fn reset(&mut self, layers: Vec<usize>) {
        self.layers = layers;
        self.open = None;
        self.blocks.clear();
        self.oldest.clear();
        let own = self.layers.len();
        self.seqs.values_mut().for_each(|chain| *chain = Chain::new(own));
    }

    /// Tokens that there is room for.
    pub(super) fn free_tokens(&self) -> usize {
        let used: usize = self.seqs.values().map(|chain| chain.ids.len()).sum();
        self.capacity.saturating_sub(used)
    }

    /// The tokens of a sequence.
    pub(super) fn ids(&self, seq: SeqNo) -> Option<&[u32]> {
        self.seqs.get(&seq).map(|chain| chain.ids.as_slice())
    }

    /// Applies an operation of the head's log.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub(super) fn apply(&mut self, operation: &Operation) -> Result<(), Refusal> {
        let refused = |words: String| Err(Refusal::Refused(words));
        match operation {
            Operation::Create { seq } => {
                let own = self.layers.len();
                if self.seqs.insert(*seq, Chain::new(own)).is_some() {
                    return refused(format!("sequence {seq:?} is there already"));
                }
            }
            Operation::Fork { from, tokens, seq } => {
                let tokens = *tokens as usize;
                let Some(chain) = self.seqs.get(from).filter(|chain| tokens <= chain.ids.len()) else {
                    return refused(format!("no {tokens} tokens of sequence {from:?} to fork"));
                };
                let forked = chain.first(tokens);
                self.seqs.insert(*seq, forked);
            }
            Operation::Truncate { seq, tokens } => {
                let tokens = *tokens as usize;
                let Some(chain) = self.seqs.get_mut(seq).filter(|chain| tokens <= chain.ids.len()) else {
                    return refused(format!("no {tokens} tokens of sequence {seq:?} to keep"));
                };
                chain.cut(tokens);
            }
            Operation::Release { seq } => {
                if self.seqs.remove(seq).is_none() {
                    return refused(format!("no sequence {seq:?} to release"));
                }
            }
            Operation::Reuse { seq, ids, gained } => {
                let found = self.reuse(*seq, ids) as u64;
                if found != *gained {
                    return Err(Refusal::Gains { want: *gained, found });
                }
            }
            Operation::Open { step, spans } => return self.open(*step, spans),
            Operation::Commit { step } => return self.close(*step, true),
            Operation::Cancel { step } => return self.close(*step, false),
        }
        Ok(())
    }

    /// Adds a known prefix of `ids` to a sequence, but never all of them. Returns how many tokens it gained.
    pub(super) fn reuse(&mut self, seq: SeqNo, ids: &[u32]) -> usize {
        let Some(chain) = self.seqs.get_mut(&seq) else { return 0 };
        if !chain.ids.len().is_multiple_of(BLOCK) {
            return 0;
        }
        let before = chain.ids.len();
        for block in ids[..ids.len().saturating_sub(1)].chunks_exact(BLOCK) {
            let end = end_of(chain.ends.last(), block);
            let Some(past) = self.blocks.get(&end) else { break };
            for (own, values) in chain.past.iter_mut().zip(past.chunks_exact(BLOCK)) {
                own.extend_from_slice(values);
            }
            chain.ids.extend_from_slice(block);
            chain.ends.push(end);
        }
        chain.ids.len() - before
    }

    /// Begins a step.
    ///
    /// # Errors
    /// [`Refusal`] if a step is open, a sequence is not there, or there is no room.
    pub(super) fn open(&mut self, step: StepNo, spans: &[Span]) -> Result<(), Refusal> {
        let refused = |words: String| Err(Refusal::Refused(words));
        if self.open.is_some() {
            return refused("a step is open".to_owned());
        }
        let rows: usize = spans.iter().map(|span| span.ids.len()).sum();
        if rows > self.free_tokens() {
            return refused(format!("no room for {rows} tokens"));
        }
        let mut parts = Vec::with_capacity(spans.len());
        let mut first = 0;
        for span in spans {
            let Some(chain) = self.seqs.get(&span.seq) else {
                return refused(format!("no sequence {:?} to compute", span.seq));
            };
            let (start, rows) = (chain.ids.len(), first..first + span.ids.len());
            if start as u64 != span.start {
                let words = format!("a span at {} of sequence {:?}, which has {start}", span.start, span.seq);
                self.disorder.get_or_insert(words);
            }
            let wanted = match span.wanted {
                Wanted::None => rows.end..rows.end,
                Wanted::Last | Wanted::Best => rows.end.saturating_sub(1).max(rows.start)..rows.end,
                Wanted::All => rows.clone(),
            };
            first = rows.end;
            parts.push(Part { seq: span.seq, start, ids: span.ids.clone(), rows, wanted });
        }
        self.open = Some(Opened { step, parts });
        Ok(())
    }

    /// Ends the open step; its tokens stay or go.
    ///
    /// # Errors
    /// [`Refusal`] if another step is open or none.
    pub(super) fn close(&mut self, step: StepNo, commit: bool) -> Result<(), Refusal> {
        let Some(open) = self.open.take_if(|open| open.step == step) else {
            return Err(Refusal::Refused(format!("step {step:?} is not open")));
        };
        for part in open.parts {
            let Some(chain) = self.seqs.get_mut(&part.seq) else { continue };
            if !commit {
                chain.past.iter_mut().for_each(|past| past.truncate(part.start));
                continue;
            }
            chain.ids.extend_from_slice(&part.ids);
            let len = chain.ids.len();
            if chain.past.iter().any(|past| past.len() != len) {
                self.disorder
                    .get_or_insert(format!("step {step:?} is committed before all rows have passed"));
            }
            self.learn(part.seq);
        }
        Ok(())
    }

    /// Remembers the blocks that a sequence has gained.
    fn learn(&mut self, seq: SeqNo) {
        let Some(chain) = self.seqs.get_mut(&seq) else { return };
        while let Some(block) = chain.ids.get(chain.ends.len() * BLOCK..(chain.ends.len() + 1) * BLOCK) {
            let end = end_of(chain.ends.last(), block);
            chain.ends.push(end);
        }
        for (at, end) in chain.ends.iter().enumerate().skip(chain.ends.len().saturating_sub(BLOCKS_MAX)) {
            if self.blocks.contains_key(end) || chain.past.iter().any(|past| past.len() < (at + 1) * BLOCK) {
                continue;
            }
            let rows = chain.past.iter().flat_map(|past| &past[at * BLOCK..(at + 1) * BLOCK]);
            self.blocks.insert(*end, rows.copied().collect());
            self.oldest.push_back(*end);
        }
        while self.oldest.len() > BLOCKS_MAX {
            let gone = self.oldest.pop_front();
            gone.map(|end| self.blocks.remove(&end));
        }
    }

    /// The states of these rows of the open step before the first layer.
    pub(super) fn embed(&self, rows: &Range<usize>) -> Option<Vec<u64>> {
        let open = self.open.as_ref()?;
        let ids = open.parts.iter().flat_map(|part| &part.ids).skip(rows.start).take(rows.len());
        let states: Vec<u64> = ids.map(|id| begins(*id)).collect();
        (states.len() == rows.len()).then_some(states)
    }

    /// Runs layers over the states of these rows; behind the last layer only the wanted rows are left.
    /// Stops after `most` layers.
    ///
    /// # Errors
    /// [`Refusal`] if no step is open, a layer is not held, or the states are not those of the rows.
    pub(super) fn run(
        &mut self,
        rows: &Range<usize>,
        layers: &Range<usize>,
        mut states: Vec<u64>,
        most: usize,
    ) -> Result<Vec<u64>, Refusal> {
        let refused = |words: String| Err(Refusal::Refused(words));
        let Some(open) = &self.open else { return refused("no step is open".to_owned()) };
        if layers.is_empty() || rows.is_empty() {
            return Ok(states);
        }
        if states.len() != rows.len() {
            return refused(format!("{} states for {} rows", states.len(), rows.len()));
        }
        for layer in layers.clone().take(most) {
            let Ok(own) = self.layers.binary_search(&layer) else {
                return refused(format!("layer {layer} is not held"));
            };
            for part in &open.parts {
                let (begin, end) = (part.rows.start.max(rows.start), part.rows.end.min(rows.end));
                let Some(chain) = self.seqs.get_mut(&part.seq).filter(|_| begin < end) else { continue };
                let past = &mut chain.past[own];
                let at = part.start + begin - part.rows.start;
                if past.len() != at {
                    let words = format!("layer {layer} of {:?}: row {at} after {}", part.seq, past.len());
                    self.disorder.get_or_insert(words);
                }
                let mut last = past.last().copied().unwrap_or(layer as u64);
                for state in &mut states[begin - rows.start..end - rows.start] {
                    last = mix(last, mix(*state, 1000 + layer as u64));
                    past.push(last);
                    *state = mix(*state, last ^ u64::from(self.wrong));
                }
            }
        }
        if layers.end == self.n_layers {
            let wanted = |row: &usize| open.parts.iter().any(|part| part.wanted.contains(row));
            let kept = rows.clone().zip(&states).filter(|(row, _)| wanted(row)).map(|(_, state)| *state);
            states = kept.collect();
        }
        Ok(states)
    }

    /// A whole step through all layers: opens, computes and commits it. Returns the wanted outputs.
    ///
    /// # Errors
    /// [`Refusal`] as [`Self::open`]; nothing has changed then.
    pub(super) fn step(&mut self, spans: &[Span]) -> Result<Vec<u64>, Refusal> {
        let step = StepNo(u64::MAX);
        self.open(step, spans)?;
        let rows = 0..spans.iter().map(|span| span.ids.len()).sum();
        let states = self.embed(&rows).unwrap_or_default();
        let states = self.run(&rows, &(0..self.n_layers), states, self.n_layers)?;
        self.close(step, true)?;
        Ok(states.into_iter().map(output).collect())
    }
}

/// Runs one layer over rows that begin a sequence, as an audit does.
pub(super) fn one_layer(layer: usize, states: &[u64]) -> Vec<u64> {
    let mut last = layer as u64;
    let row = |state: &u64| {
        last = mix(last, mix(*state, 1000 + layer as u64));
        mix(*state, last)
    };
    states.iter().map(row).collect()
}
