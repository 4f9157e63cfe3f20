//! An engine without a model: hidden states are hashes of everything that went before.
//!
//! It panics if rows reach a layer out of order, and if an operation does not fit.

use std::collections::BTreeMap;
use std::ops::Range;

use baton_engine::Wanted;
use baton_engine::engine::Hidden;
use baton_random::mix;

use crate::core::layout::Layout;
use crate::core::rows::Rows;
use crate::core::{SeqNo, States, StepNo};
use crate::wire::frame::{Operation, Span, Step};

/// Bits of a hidden state, so that f32 holds it exactly.
const MASK: u64 = (1 << 22) - 1;
/// Tokens of a block of a known prefix.
const BLOCK: usize = 4;

#[derive(Debug, Clone, Default)]
struct Seq {
    ids: Vec<u32>,
    /// By layer: one value for each token, which depends on all tokens before.
    past: BTreeMap<usize, Vec<u64>>,
}

/// A device's sequences.
#[derive(Debug, Clone, Default)]
pub(in crate::core) struct Device {
    seqs: BTreeMap<SeqNo, Seq>,
    open: Option<(StepNo, Vec<Span>)>,
    /// From this layer on it computes wrong.
    pub(in crate::core) wrong_layer: Option<usize>,
}

/// Returns the states of these values.
pub(in crate::core) fn states(values: &[u64]) -> States {
    let values: Vec<f32> = values.iter().map(|value| (value & MASK) as f32).collect();
    States::of(Hidden { rows: values.len(), width: 1, values })
}

fn values(states: &States) -> Vec<u64> {
    states.hidden().values.iter().map(|value| *value as u64).collect()
}

fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Device {
    /// Applies an operation. Returns what a look-up of a prefix gains.
    pub(in crate::core) fn apply(&mut self, operation: &Operation) -> usize {
        match operation {
            Operation::Create { seq } => {
                assert!(self.seqs.insert(*seq, Seq::default()).is_none(), "{seq:?} is there");
            }
            Operation::Fork { from, tokens, seq } => {
                let mut child = self.seqs[from].clone();
                child.cut(*tokens as usize);
                assert!(self.seqs.insert(*seq, child).is_none(), "{seq:?} is there");
            }
            Operation::Truncate { seq, tokens } => {
                let seq = self.seqs.get_mut(seq).expect("a known sequence");
                assert!(seq.ids.len() >= *tokens as usize);
                seq.cut(*tokens as usize);
            }
            Operation::Release { seq } => {
                self.seqs.remove(seq).expect("a known sequence");
            }
            Operation::Reuse { seq, ids, .. } => return self.reuse(*seq, ids),
            Operation::Open { step, spans } => self.begin(*step, spans),
            Operation::Commit { step } => self.end(*step, true),
            Operation::Cancel { step } => self.end(*step, false),
        }
        0
    }

    fn reuse(&mut self, seq: SeqNo, ids: &[u32]) -> usize {
        let own = self.seqs[&seq].ids.clone();
        let want: Vec<u32> = own.iter().chain(ids).copied().collect();
        let known = self.seqs.values().map(|other| (shared(&other.ids, &want), other));
        let Some((known, other)) = known.max_by_key(|(known, _)| *known) else { return 0 };
        let known = known.min(want.len().saturating_sub(1)) / BLOCK * BLOCK;
        if known <= own.len() {
            return 0;
        }
        let mut found = other.clone();
        found.cut(known);
        let gained = known - own.len();
        self.seqs.insert(seq, found);
        gained
    }

    pub(in crate::core) fn begin(&mut self, step: StepNo, spans: &[Span]) {
        assert!(self.open.is_none(), "a step is open");
        for span in spans {
            assert_eq!(self.seqs[&span.seq].ids.len(), span.start as usize, "{span:?}");
        }
        self.open = Some((step, spans.to_vec()));
    }

    pub(in crate::core) fn end(&mut self, step: StepNo, commit: bool) {
        let (open, spans) = self.open.take().expect("an open step");
        assert_eq!(open, step);
        for span in spans {
            let seq = self.seqs.get_mut(&span.seq).expect("a known sequence");
            if commit {
                seq.ids.extend(&span.ids);
            }
            let len = seq.ids.len();
            seq.cut(len);
        }
    }

    /// Returns the step that is open.
    pub(in crate::core) fn open(&self) -> Option<StepNo> {
        self.open.as_ref().map(|(step, _)| *step)
    }

    /// All sequences lose their tokens.
    pub(in crate::core) fn reset(&mut self) {
        self.seqs.values_mut().for_each(|seq| seq.cut(0));
        self.open = None;
    }

    /// Returns the sequences and their tokens.
    pub(in crate::core) fn ids(&self) -> BTreeMap<SeqNo, Vec<u32>> {
        self.seqs.iter().map(|(seq, entry)| (*seq, entry.ids.clone())).collect()
    }

    /// Returns sequence, position and token of each row of the open step.
    fn rows(&self) -> Vec<(SeqNo, usize, u32)> {
        let (_, spans) = self.open.as_ref().expect("an open step");
        let of = |span: &Span| {
            let (seq, start) = (span.seq, span.start as usize);
            span.ids.iter().enumerate().map(move |(at, id)| (seq, start + at, *id)).collect::<Vec<_>>()
        };
        spans.iter().flat_map(of).collect()
    }

    /// Returns which of these rows of the open step have logits.
    pub(in crate::core) fn wanted(&self, rows: &Range<usize>) -> Vec<bool> {
        let of = Rows::of(&self.open.as_ref().expect("an open step").1);
        rows.clone().map(|row| of.wanted(&(row..row + 1)) == 1).collect()
    }

    pub(in crate::core) fn embed(&self, rows: &Range<usize>) -> States {
        let all = self.rows();
        states(&all[rows.clone()].iter().map(|(_, _, id)| mix(1, u64::from(*id))).collect::<Vec<_>>())
    }

    pub(in crate::core) fn layers(
        &mut self,
        rows: &Range<usize>,
        layers: Range<usize>,
        of: &States,
    ) -> States {
        let all = self.rows();
        let mut hidden = values(of);
        assert_eq!(hidden.len(), rows.len());
        for layer in layers {
            for ((seq, position, _), value) in all[rows.clone()].iter().zip(&mut hidden) {
                let past = self.seqs.get_mut(seq).expect("a sequence").past.entry(layer).or_default();
                assert_eq!(past.len(), *position, "rows reach layer {layer} in order");
                let key = mix(*value, 1000 + layer as u64);
                past.push(mix(past.last().copied().unwrap_or(layer as u64), key));
                *value = mix(*value, past[*position]) & MASK;
                if self.wrong_layer.is_some_and(|wrong| layer >= wrong) {
                    *value ^= 1;
                }
            }
        }
        states(&hidden)
    }

    /// Returns logits of those rows that have any.
    pub(in crate::core) fn logits(&self, rows: &Range<usize>, of: &States) -> Vec<u64> {
        let wanted = self.wanted(rows);
        let all = values(of);
        // Behind the last layer of another device only the wanted rows are left.
        if all.len() == rows.len() {
            all.iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(value, _)| mix(2, *value)).collect()
        } else {
            assert_eq!(all.len(), wanted.iter().filter(|wanted| **wanted).count());
            all.iter().map(|value| mix(2, *value)).collect()
        }
    }

    /// Runs a whole step by itself and commits it. Returns its logits.
    pub(in crate::core) fn whole(&mut self, seqs: &[(SeqNo, Vec<u32>, Wanted)], n_layers: usize) -> Vec<u64> {
        let span = |(seq, ids, wanted): &(SeqNo, Vec<u32>, Wanted)| {
            let start = self.seqs[seq].ids.len() as u64;
            Span { seq: *seq, start, wanted: *wanted, ids: ids.clone() }
        };
        let spans: Vec<Span> = seqs.iter().map(span).collect();
        self.begin(StepNo(0), &spans);
        let rows = 0..self.rows().len();
        let hidden = self.layers(&rows, 0..n_layers, &self.embed(&rows));
        let logits = self.logits(&rows, &hidden);
        self.end(StepNo(0), true);
        logits
    }

    /// Does a frame's work at a place of the ring, except for its operations.
    pub(in crate::core) fn pass(&mut self, step: &mut Step, layout: &Layout, place: usize) {
        if let Some(audit) = step.audit {
            if usize::from(audit.place) == place {
                let layers = usize::from(audit.begin)..usize::from(audit.end);
                step.states = self.layers(&step.rows, layers, &step.states);
                step.layers_done = audit.end;
            }
            return;
        }
        let of_round =
            |window: &&baton_plan::Window| window.round == usize::from(step.round) && window.place == place;
        for window in layout.windows.iter().filter(of_round) {
            assert_eq!(usize::from(step.layers_done), window.begin);
            step.states = self.layers(&step.rows, window.begin..window.end, &step.states);
            step.layers_done = window.end as u16;
            if window.end == layout.n_layers {
                let wanted = self.wanted(&step.rows);
                let kept = values(&step.states).into_iter().zip(wanted);
                let kept: Vec<u64> = kept.filter(|(_, wanted)| *wanted).map(|(value, _)| value).collect();
                step.states = states(&kept);
            }
        }
    }
}

impl Seq {
    fn cut(&mut self, tokens: usize) {
        self.ids.truncate(tokens);
        self.past.values_mut().for_each(|past| past.truncate(tokens));
    }
}
