//! Faults of a simulated home: a list from a seed, and what each does to frames.
//!
//! The world carries out faults of devices and links; those of one device's frames are carried out here. It
//! never looks at a core.

use std::time::Duration;

use baton_engine::engine::Hidden;
use baton_random::SplitMix64;

use crate::core::{Purpose, SeqNo, States, StepNo};
use crate::wire::frame::{Frame, Operation, Step};

/// When a fault begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this time.
    At(Duration),
    /// When the device sends so many frames over links of this purpose.
    Sent(Purpose, u64),
}

/// What a misbehaving device does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// A frame of the ring is not sent.
    Lost,
    /// A frame of the ring is sent twice.
    Doubled,
    /// Two frames of the ring change places.
    Swapped,
    /// A frame of an older epoch is sent once more, over the present link.
    OldFrame,
    /// A link of the ring for an older epoch is opened before that of the present one.
    OldLink,
    /// A value is no number.
    NotFinite,
    /// States have another width.
    Width,
    /// A row is missing.
    Rows,
    /// Another number of layers is said to be done.
    Layers,
    /// The frame has the number of another step.
    StepNumber,
    /// The frame has another round.
    Round,
    /// A span begins elsewhere.
    SpanStart,
    /// More sequences are created than anybody may have.
    Flood,
    /// A piece has other bytes.
    ForgedPiece,
    /// A piece has too few bytes.
    ShortPiece,
    /// Every layer is computed wrong from now on.
    WrongLayers,
    /// No frame of the ring is sent from now on.
    Mute,
    /// The device fetches for ever and is never ready.
    FedForEver,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The device is gone.
    Kill,
    /// The device stops, and goes on after this time as if nothing had happened.
    Stop(Duration),
    /// The device is gone, and begins anew after this time with the same key and disk.
    Restart(Duration),
    /// One link of this purpose is cut.
    Cut(Purpose),
    /// The device refuses so many new links.
    Refuse(u64),
    /// Every link of the device is slower by this factor from now on.
    Slow(u32),
    /// The device misbehaves once, or for good if that is in the nature of it.
    Bad(Bad),
    /// The device misbehaves whenever it can.
    Always(Bad),
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The device; 0 is the head.
    pub device: usize,
    /// When it begins.
    pub when: When,
    /// What happens.
    pub what: What,
}

const BADS: [Bad; 18] = [
    Bad::Lost,
    Bad::Doubled,
    Bad::Swapped,
    Bad::OldFrame,
    Bad::OldLink,
    Bad::NotFinite,
    Bad::Width,
    Bad::Rows,
    Bad::Layers,
    Bad::StepNumber,
    Bad::Round,
    Bad::SpanStart,
    Bad::Flood,
    Bad::ForgedPiece,
    Bad::ShortPiece,
    Bad::WrongLayers,
    Bad::Mute,
    Bad::FedForEver,
];

impl Bad {
    /// Whether the device stays as it is: it is not asked to join again.
    pub(super) fn lasts(self) -> bool {
        matches!(self, Self::WrongLayers | Self::Mute | Self::FedForEver)
    }

    /// Whether nothing of it may be taken for a fault: what is late is not wrong.
    pub(super) fn is_harmless(self) -> bool {
        matches!(self, Self::OldFrame | Self::OldLink)
    }

    /// Whether frames come in another order than they were sent, which only the head can tell, if anybody.
    pub(super) fn disorders(self) -> bool {
        matches!(self, Self::Lost | Self::Doubled | Self::Swapped | Self::Mute)
    }
}

fn time(random: &mut SplitMix64) -> When {
    When::At(Duration::from_micros(random.below(9_000_000) as u64))
}

fn when(random: &mut SplitMix64, purpose: Purpose) -> When {
    let most = if random.percent(50) { 12 } else { 80 };
    let nth = 1 + random.below(most) as u64;
    if random.percent(30) { time(random) } else { When::Sent(purpose, nth) }
}

fn stop(random: &mut SplitMix64, device: usize) -> Duration {
    // The head stops for less time than a link may take to open, and than it takes its workers to give it up.
    let max = if device == 0 { 1_700 } else { 3_000 };
    Duration::from_millis(random.below(max) as u64)
}

fn misbehaves(random: &mut SplitMix64, device: usize) -> Fault {
    let bad = BADS[random.below(BADS.len())];
    let early = When::At(Duration::from_millis(random.below(100) as u64));
    let when = match bad {
        Bad::ForgedPiece | Bad::ShortPiece | Bad::OldLink | Bad::OldFrame => early,
        Bad::FedForEver if random.percent(70) => early,
        Bad::FedForEver => time(random),
        _ => when(random, Purpose::Ring),
    };
    let always = bad.is_harmless() || random.percent(40);
    Fault { device, when, what: if always { What::Always(bad) } else { What::Bad(bad) } }
}

fn breaks(random: &mut SplitMix64, device: usize) -> Fault {
    let ring = Purpose::Ring;
    let (when, what) = match random.below(14) {
        0 | 1 if device > 0 => (when(random, ring), What::Kill),
        2 | 3 if device > 0 => {
            (when(random, ring), What::Restart(Duration::from_millis(random.below(4_000) as u64)))
        }
        4..=6 => (when(random, ring), What::Stop(stop(random, device))),
        11 if device > 0 => (when(random, ring), What::Cut(Purpose::Control)),
        12 => (time(random), What::Refuse(1 + random.below(6) as u64)),
        13 => (time(random), What::Slow(2 + random.below(40) as u32)),
        _ => (when(random, ring), What::Cut(ring)),
    };
    Fault { device, when, what }
}

/// Two cuts of links of one device, with some steps between them.
fn two_cuts(random: &mut SplitMix64, device: usize) -> [Fault; 2] {
    let first = 1 + random.below(20) as u64;
    let second = first + 15 + random.below(60) as u64;
    [first, second].map(|nth| Fault {
        device,
        when: When::Sent(Purpose::Ring, nth),
        what: What::Cut(Purpose::Ring),
    })
}

/// The faults of a seed for a home of so many workers: none in a third of all seeds, one misbehaving device
/// at most.
pub(super) fn faults(random: &mut SplitMix64, workers: usize) -> Vec<Fault> {
    let count = [0, 0, 1, 1, 2, 3][random.below(6)];
    if count == 2 && random.percent(40) {
        let device = random.below(workers + 1);
        return two_cuts(random, device).to_vec();
    }
    let mut list: Vec<Fault> = Vec::with_capacity(count);
    if count > 0 && random.percent(55) {
        let device = random.below(workers) + 1;
        let fault = misbehaves(random, device);
        list.push(fault);
        // What is late needs an older epoch.
        if matches!(fault.what, What::Always(bad) if bad.is_harmless()) {
            let other = random.below(workers + 1);
            list.extend(two_cuts(random, other));
        }
    }
    let stops = |fault: &Fault| fault.device == 0 && matches!(fault.what, What::Stop(_));
    while list.len() < count {
        let device = random.below(workers + 1);
        let fault = breaks(random, device);
        if !(stops(&fault) && list.iter().any(stops)) {
            list.push(fault);
        }
    }
    list
}

/// Changes a frame of the ring as the misbehaving device does. Returns whether it could.
pub(super) fn spoil(bad: Bad, step: &mut Step) -> bool {
    let mut hidden = step.states.hidden().clone();
    match bad {
        Bad::NotFinite => match hidden.values.last_mut() {
            Some(value) => *value = f32::NAN,
            None => return false,
        },
        Bad::Width => {
            let width = hidden.width + 1;
            hidden = Hidden { rows: hidden.rows, width, values: vec![1.0; hidden.rows * width] };
        }
        Bad::Rows if hidden.rows > 1 => {
            hidden.rows -= 1;
            hidden.values.truncate(hidden.rows * hidden.width);
        }
        Bad::Layers if step.layers_done > 0 => step.layers_done -= 1,
        Bad::StepNumber => step.step = StepNo(step.step.0 + 1),
        Bad::Round => step.round += 1,
        Bad::SpanStart => return shift_span(step),
        Bad::Flood => {
            let create = |i: u64| Operation::Create { seq: SeqNo((1 << 40) + i) };
            step.operations.extend((0..5_000).map(create));
        }
        _ => return false,
    }
    step.states = States::of(hidden);
    true
}

fn shift_span(step: &mut Step) -> bool {
    for operation in &mut step.operations {
        let Operation::Open { spans, .. } = operation else { continue };
        if let Some(span) = spans.first_mut() {
            span.start += 1;
            return true;
        }
    }
    false
}

/// Changes a frame with a piece of the model. Returns whether it is one.
pub(super) fn forge(bad: Bad, frame: &mut Frame) -> bool {
    let Frame::Piece(piece) = frame else { return false };
    match bad {
        Bad::ShortPiece => piece.bytes.truncate(piece.bytes.len() / 2),
        _ => piece.bytes.iter_mut().for_each(|byte| *byte ^= 0x55),
    }
    true
}
