//! The frame that goes round the ring: the hidden states of a chunk, and before them the operations on
//! sequences.
//!
//! Operations are the head's log. Every device that computes applies them in order, so that all devices
//! hold the same sequences at the same lengths without further messages. They take effect before the hidden
//! states of their frame.

use std::ops::Range;

use baton_engine::Wanted;
use baton_engine::engine::Hidden;
use half::f16;

use super::bytes::{Reader, Writer};
use super::{FrameError, kind};
use crate::core::ids::{Epoch, SeqNo, StepNo};
use crate::core::states::States;

/// The format of hidden states between devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// As they are computed: the ring's answers equal those of a single device, bit for bit.
    #[default]
    F32,
    /// Half the bytes, but other values; a value too large for f16 becomes the largest of f16.
    F16,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The head's number of the sequence.
    pub seq: SeqNo,
    /// Tokens that the sequence has before the step.
    pub start: u64,
    /// For which tokens logits are wanted.
    pub wanted: Wanted,
    /// The new tokens.
    pub ids: Vec<u32>,
}

/// What the head did to its sequences; all devices of the ring do the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Creates an empty sequence.
    Create {
        /// Its number.
        seq: SeqNo,
    },
    /// Creates a sequence with the first tokens of another.
    Fork {
        /// The other one.
        from: SeqNo,
        /// How many tokens.
        tokens: u64,
        /// The new one's number.
        seq: SeqNo,
    },
    /// Shortens a sequence.
    Truncate {
        /// Its number.
        seq: SeqNo,
        /// Tokens that stay.
        tokens: u64,
    },
    /// Releases a sequence.
    Release {
        /// Its number.
        seq: SeqNo,
    },
    /// Adds a known prefix to a sequence.
    Reuse {
        /// The sequence.
        seq: SeqNo,
        /// The tokens that shall follow its present ones.
        ids: Vec<u32>,
        /// Tokens that the head found in its cache; every device must find as many.
        gained: u64,
    },
    /// Begins a step.
    Open {
        /// Its number.
        step: StepNo,
        /// Its sequences.
        spans: Vec<Span>,
    },
    /// Appends the tokens of a step.
    Commit {
        /// Its number.
        step: StepNo,
    },
    /// Drops a step.
    Cancel {
        /// Its number.
        step: StepNo,
    },
}

/// An audit: one device computes these layers on these hidden states, all others pass the frame on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audit {
    /// The place of that device.
    pub place: u16,
    /// First layer.
    pub begin: u16,
    /// One past the last layer.
    pub end: u16,
}

/// A chunk of a step that goes round the ring.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The epoch; frames of any other are refused.
    pub epoch: Epoch,
    /// Number of the step; it grows over all epochs.
    pub step: StepNo,
    /// Round of the plan, from 0.
    pub round: u16,
    /// Layers that the hidden states have passed.
    pub layers_done: u16,
    /// The audit, or `None` if it is a step that every device computes.
    pub audit: Option<Audit>,
    /// Rows of the step that the chunk holds.
    pub rows: Range<usize>,
    /// Operations that come first, in order.
    pub operations: Vec<Operation>,
    /// The format of the hidden states.
    pub activations: Activations,
    /// Hidden states of every row; after the last layer, only of the wanted rows.
    pub states: States,
}

const OP_CREATE: u8 = 0;
const OP_FORK: u8 = 1;
const OP_TRUNCATE: u8 = 2;
const OP_RELEASE: u8 = 3;
const OP_REUSE: u8 = 4;
const OP_OPEN: u8 = 5;
const OP_COMMIT: u8 = 6;
const OP_CANCEL: u8 = 7;
/// Least bytes of an operation: its kind and a number.
const OPERATION_BYTES: usize = 9;
/// Least bytes of a span: sequence, start, wanted, count.
const SPAN_BYTES: usize = 8 + 8 + 1 + 4;

pub(super) fn write(out: &mut Writer<'_>, step: &Step) {
    let value_bytes = match step.activations {
        Activations::F32 => 4,
        Activations::F16 => 2,
    };
    out.0.reserve(64 + step.states.hidden().values.len() * value_bytes);
    out.u8(kind::STEP);
    out.u64(step.epoch.0);
    out.u64(step.step.0);
    out.u16(step.round);
    out.u16(step.layers_done);
    out.u8(u8::from(step.audit.is_some()));
    if let Some(Audit { place, begin, end }) = step.audit {
        [place, begin, end].into_iter().for_each(|number| out.u16(number));
    }
    out.count(step.rows.start);
    out.count(step.rows.end);
    out.count(step.operations.len());
    step.operations.iter().for_each(|operation| write_operation(out, operation));
    out.u8(u8::from(step.activations == Activations::F16));
    out.count(step.states.rows());
    out.count(step.states.width());
    match step.activations {
        Activations::F32 => {
            step.states
                .hidden()
                .values
                .iter()
                .for_each(|value| out.0.extend_from_slice(&value.to_le_bytes()));
        }
        Activations::F16 => {
            step.states
                .hidden()
                .values
                .iter()
                .for_each(|value| out.0.extend_from_slice(&halved(*value).to_le_bytes()));
        }
    }
}

fn halved(value: f32) -> f16 {
    let max = f16::MAX.to_f32();
    f16::from_f32(value.clamp(-max, max))
}

impl Activations {
    /// Returns the hidden states as the receiver gets them in this format.
    pub fn carried(self, mut hidden: Hidden) -> Hidden {
        if self == Self::F16 {
            hidden.values.iter_mut().for_each(|value| *value = halved(*value).to_f32());
        }
        hidden
    }
}

pub(super) fn read(from: &mut Reader<'_>) -> Result<Step, FrameError> {
    let (epoch, step) = (Epoch(from.u64("epoch")?), StepNo(from.u64("step")?));
    let (round, layers_done) = (from.u16("round")?, from.u16("layers done")?);
    let audit = match from.flag("audit")? {
        true => Some(Audit {
            place: from.u16("audited place")?,
            begin: from.u16("first audited layer")?,
            end: from.u16("end of the audited layers")?,
        }),
        false => None,
    };
    let rows = from.u32("first row")? as usize..from.u32("end of the rows")? as usize;
    if rows.start > rows.end {
        return Err(FrameError::Mismatch { what: "first row and end of the rows" });
    }
    let count = from.count("operations", OPERATION_BYTES)?;
    let operations = (0..count).map(|_| read_operation(from)).collect::<Result<_, _>>()?;
    let activations = if from.flag("activations")? { Activations::F16 } else { Activations::F32 };
    let (n, width) = (from.u32("rows")? as usize, from.u32("width")? as usize);
    let values = n.checked_mul(width).ok_or(FrameError::Mismatch { what: "rows and width" })?;
    let values = match activations {
        Activations::F32 => {
            let bytes = from.take("hidden states", values.saturating_mul(4))?;
            bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
        }
        Activations::F16 => {
            let bytes = from.take("hidden states", values.saturating_mul(2))?;
            bytes.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value).to_f32()).collect()
        }
    };
    let states = States::of(Hidden { rows: n, width, values });
    Ok(Step { epoch, step, round, layers_done, audit, rows, operations, activations, states })
}

fn write_operation(out: &mut Writer<'_>, operation: &Operation) {
    match operation {
        Operation::Create { seq } => {
            out.u8(OP_CREATE);
            out.u64(seq.0);
        }
        Operation::Fork { from, tokens, seq } => {
            out.u8(OP_FORK);
            out.u64(from.0);
            out.u64(*tokens);
            out.u64(seq.0);
        }
        Operation::Truncate { seq, tokens } => {
            out.u8(OP_TRUNCATE);
            out.u64(seq.0);
            out.u64(*tokens);
        }
        Operation::Release { seq } => {
            out.u8(OP_RELEASE);
            out.u64(seq.0);
        }
        Operation::Reuse { seq, ids, gained } => {
            out.u8(OP_REUSE);
            out.u64(seq.0);
            out.ids(ids);
            out.u64(*gained);
        }
        Operation::Open { step, spans } => {
            out.u8(OP_OPEN);
            out.u64(step.0);
            out.count(spans.len());
            for span in spans {
                out.u64(span.seq.0);
                out.u64(span.start);
                out.u8(match span.wanted {
                    Wanted::None => 0,
                    // Other devices compute hidden states, whatever becomes of them.
                    Wanted::Last | Wanted::Best => 1,
                    Wanted::All => 2,
                });
                out.ids(&span.ids);
            }
        }
        Operation::Commit { step } => {
            out.u8(OP_COMMIT);
            out.u64(step.0);
        }
        Operation::Cancel { step } => {
            out.u8(OP_CANCEL);
            out.u64(step.0);
        }
    }
}

fn read_operation(from: &mut Reader<'_>) -> Result<Operation, FrameError> {
    let number = "sequence";
    Ok(match from.u8("operation")? {
        OP_CREATE => Operation::Create { seq: SeqNo(from.u64(number)?) },
        OP_FORK => Operation::Fork {
            from: SeqNo(from.u64(number)?),
            tokens: from.u64("tokens")?,
            seq: SeqNo(from.u64(number)?),
        },
        OP_TRUNCATE => Operation::Truncate { seq: SeqNo(from.u64(number)?), tokens: from.u64("tokens")? },
        OP_RELEASE => Operation::Release { seq: SeqNo(from.u64(number)?) },
        OP_REUSE => Operation::Reuse {
            seq: SeqNo(from.u64(number)?),
            ids: from.ids("tokens of a prefix")?,
            gained: from.u64("tokens gained")?,
        },
        OP_OPEN => {
            let step = StepNo(from.u64("step")?);
            let count = from.count("spans", SPAN_BYTES)?;
            let spans = (0..count).map(|_| read_span(from)).collect::<Result<_, _>>()?;
            Operation::Open { step, spans }
        }
        OP_COMMIT => Operation::Commit { step: StepNo(from.u64("step")?) },
        OP_CANCEL => Operation::Cancel { step: StepNo(from.u64("step")?) },
        value => {
            let max = u64::from(OP_CANCEL);
            return Err(FrameError::Value { what: "operation", value: u64::from(value), max });
        }
    })
}

fn read_span(from: &mut Reader<'_>) -> Result<Span, FrameError> {
    let (seq, start) = (SeqNo(from.u64("sequence")?), from.u64("tokens before")?);
    let wanted = match from.u8("wanted")? {
        0 => Wanted::None,
        1 => Wanted::Last,
        2 => Wanted::All,
        value => return Err(FrameError::Value { what: "wanted", value: u64::from(value), max: 2 }),
    };
    Ok(Span { seq, start, wanted, ids: from.ids("tokens of a span")? })
}
