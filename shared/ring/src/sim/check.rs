//! What must always hold in a simulated home. The first thing that does not is kept, in words.
//!
//! The names C1 to C11 are those of the list in the simulation's documentation. Checks look at what cores
//! say and send; they ask a core only for lengths and tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::head::{Effect, RingFault};
use crate::core::worker::WorkerCore;
use crate::core::{Epoch, LinkEffect, Note, SeqNo};
use crate::wire::frame::{FailureCode, Frame, Operation};

use super::scenario::{Home, Scenario};
use super::setup::{FLOOR, PATIENCE};

/// What a worker's sequences must be, by the head's log.
#[derive(Debug, Default)]
struct Shadow {
    ready: Epoch,
    applied: usize,
    lens: BTreeMap<SeqNo, usize>,
    open: Vec<(SeqNo, usize)>,
}

/// The checks of one run.
#[derive(Debug)]
pub(super) struct Checks {
    /// The first check that is broken, and how.
    pub(super) broken: Option<String>,
    /// Devices that a fault has touched, cuts of ring links apart.
    touched: Vec<bool>,
    /// For each device, cuts of its ring links that no committed step has made good, by the epoch of each.
    cuts: Vec<Vec<Epoch>>,
    /// Such cuts of all devices.
    all_cuts: Vec<Epoch>,
    /// Devices that the head does not trust any more.
    pub(super) barred: Vec<bool>,
    /// Whether a device has brought frames into disorder.
    pub(super) disorder: bool,
    /// Whether wrong values may be in the present request's outputs.
    pub(super) spoiled: bool,
    /// Faults that have begun.
    pub(super) faults: u64,
    epoch: Epoch,
    configured: BTreeSet<usize>,
    log: Vec<Operation>,
    flying: i64,
    shadows: Vec<Shadow>,
    asked: bool,
    formed: Epoch,
    /// Devices that began anew since the present epoch was begun.
    anew: BTreeSet<usize>,
}

impl Checks {
    /// Nothing has happened.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            broken: None,
            touched: vec![false; workers + 1],
            cuts: vec![Vec::new(); workers + 1],
            all_cuts: Vec::new(),
            barred: vec![false; workers + 1],
            disorder: false,
            spoiled: false,
            faults: 0,
            epoch: Epoch(0),
            configured: BTreeSet::new(),
            log: Vec::new(),
            flying: 0,
            shadows: (0..=workers).map(|_| Shadow::default()).collect(),
            asked: false,
            formed: Epoch(0),
            anew: BTreeSet::new(),
        }
    }

    /// A check is broken; the first one counts.
    pub(super) fn break_it(&mut self, words: String) {
        self.broken.get_or_insert(words);
    }

    /// A fault may touch every device.
    pub(super) fn touch_all(&mut self) {
        self.touched.fill(true);
    }

    /// A fault touches a device.
    pub(super) fn touch(&mut self, device: usize) {
        self.touched[device] = true;
    }

    /// A link of the ring to or from a device is cut.
    pub(super) fn cut(&mut self, device: usize) {
        self.cuts[device].push(self.epoch);
    }

    /// A link of the ring is cut, whosever it is.
    pub(super) fn cut_any(&mut self) {
        self.all_cuts.push(self.epoch);
    }

    /// A step of the caller is committed: every device has shown that it works. A cut in the present epoch
    /// breaks the ring all the same: the head has not heard of it yet.
    pub(super) fn committed(&mut self) {
        let epoch = self.epoch;
        self.cuts.iter_mut().chain([&mut self.all_cuts]).for_each(|cuts| cuts.retain(|cut| *cut == epoch));
    }

    /// A request begins.
    pub(super) fn begins(&mut self) {
        self.asked = true;
    }

    /// The head's core wants something.
    pub(super) fn head_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Done(_) if !std::mem::replace(&mut self.asked, false) => {
                self.break_it("C3: an answer without a request".to_owned());
            }
            Effect::Compute(..) | Effect::Plan(_) | Effect::Draft(_) | Effect::Judge(_) if !self.asked => {
                self.break_it(format!("C3: without a request: {effect:?}"));
            }
            Effect::Link(LinkEffect::Connect { .. }) if !self.asked => {
                self.break_it("C3: a link is opened without a request".to_owned());
            }
            _ => {}
        }
    }

    /// A device's host sends a frame.
    pub(super) fn sent(&mut self, device: usize, to: usize, frame: &Frame) {
        match frame {
            Frame::Configure(part) if device == 0 => {
                if part.epoch > self.epoch {
                    self.epoch = part.epoch;
                    self.configured.clear();
                    self.anew.clear();
                    self.log.clear();
                    self.flying = 0;
                }
                if part.epoch < self.epoch || !self.configured.insert(to) {
                    self.break_it(format!("C3: device {to} gets a part of epoch {} once more", part.epoch));
                }
            }
            Frame::Step(step) if device == 0 => {
                self.log.extend(step.operations.iter().cloned());
                self.flying += 1;
                let most = 2 * (self.configured.len() as i64 + 1) + 1;
                if self.flying > most && !self.disorder {
                    self.break_it(format!("C4: {} chunks are under way, at most {most}", self.flying));
                }
            }
            Frame::Failed(failure) if device == 0 && failure.code == FailureCode::Engine => {
                self.barred[to] = true;
                if !self.touched[to] {
                    self.break_it(format!("C6: device {to} is barred, and nothing was wrong with it"));
                }
            }
            _ => {}
        }
    }

    /// A frame reaches a device.
    pub(super) fn heard(&mut self, device: usize, frame: &Frame) {
        match frame {
            Frame::Step(step) if device == 0 && step.epoch == self.epoch => self.flying -= 1,
            _ => {}
        }
    }

    /// A worker serves an epoch.
    pub(super) fn ready(&mut self, device: usize, epoch: Epoch) {
        if epoch <= self.shadows[device].ready {
            self.break_it(format!("C3: device {device} is ready for epoch {epoch} once more"));
        }
        self.shadows[device] = Shadow { ready: epoch, ..Shadow::default() };
    }

    /// The head has a ring of this epoch: each of its devices must serve it.
    pub(super) fn formed(&mut self, epoch: Option<Epoch>) {
        let Some(epoch) = epoch.filter(|epoch| self.formed != *epoch) else { return };
        self.formed = epoch;
        let early = self.configured.iter().find(|device| self.shadows[**device].ready != epoch).copied();
        if let Some(device) = early.filter(|device| !self.anew.contains(device)) {
            self.break_it(format!(
                "C3: the ring of epoch {epoch} is formed, and device {device} is not ready"
            ));
        }
    }

    /// A worker's program begins anew.
    pub(super) fn begins_anew(&mut self, device: usize) {
        self.shadows[device] = Shadow::default();
        self.anew.insert(device);
    }

    /// A worker's core has taken an event.
    pub(super) fn worker(&mut self, device: usize, core: &WorkerCore) {
        let applied = core.applied() as usize;
        let (shadow, log) = (&mut self.shadows[device], &self.log);
        if shadow.ready != self.epoch || applied <= shadow.applied {
            return;
        }
        if applied > log.len() {
            let words = format!("C2: device {device} has applied {applied} operations of {}", log.len());
            self.break_it(words);
            return;
        }
        for operation in &log[shadow.applied..applied] {
            shadow.follow(operation);
        }
        shadow.applied = applied;
        let lens = core.lengths();
        if lens != shadow.lens {
            let words = format!("C2: device {device} has {lens:?}, must have {:?}", shadow.lens);
            self.break_it(words);
        }
    }

    /// Something that the head tells people.
    pub(super) fn note(&mut self, note: &Note) {
        let (Note::Lost { device, words } | Note::Left { device, words }) = note else { return };
        let at: usize = device.trim_start_matches('w').parse().unwrap_or(0);
        // One cut may be anything; two without a step between them count. All devices close their links after
        // a cut, so the head cannot always tell whose link was the first: one of the two may be another's.
        let cuts = &self.cuts[at];
        let counts = cuts.len() >= 2 || (cuts.len() == 1 && self.all_cuts.len() >= 2);
        if !self.touched[at] && !counts {
            self.break_it(format!(
                "C6: device {at} is lost, and nothing was wrong with it: {words}; cuts {cuts:?}"
            ));
        }
    }

    /// A request has failed.
    pub(super) fn failed(&mut self, fault: &RingFault, scenario: &Scenario) {
        let small = scenario.home.capacity < 1 << 20;
        if !small && matches!(fault, RingFault::Refused | RingFault::Replay | RingFault::Host) {
            self.break_it(format!("C1: the engine refuses what it can do: {fault:?}"));
        }
        if self.faults > 0 {
            return;
        }
        let fair = match fault {
            RingFault::Cancelled | RingFault::Sequence(_) => true,
            RingFault::Refused | RingFault::Replay => small,
            RingFault::NoPlan { .. } | RingFault::Missing { .. } => scenario.home.needs > 0,
            _ => false,
        };
        if !fair {
            self.break_it(format!("C8: a request fails without a fault: {fault:?}"));
        }
    }

    /// Longest time that a request may take.
    pub(super) fn bound(&self, home: &Home) -> Duration {
        let tries = 2 + 2 * (home.workers as u32 + 1);
        let settle = Duration::from_millis(200);
        let stall = FLOOR * 6;
        let once = PATIENCE * 2 + settle + stall + Duration::from_millis(200);
        // In addition devices are greeted and measured.
        once * (2 + tries) + Duration::from_secs(20) * home.workers as u32
    }

    /// At the end every worker of the ring has the live sequences, one token short of the last step.
    pub(super) fn at_rest<'a>(
        &mut self,
        epoch: Option<Epoch>,
        live: &BTreeMap<SeqNo, usize>,
        cores: impl Iterator<Item = Option<&'a WorkerCore>>,
    ) {
        for (device, core) in cores.enumerate() {
            let Some(core) = core else { continue };
            let serves = Some(self.shadows[device].ready) == epoch && self.configured.contains(&device);
            if serves && core.lengths() != *live {
                self.break_it(format!("C11: device {device} has {:?}, must have {live:?}", core.lengths()));
            }
        }
    }
}

impl Shadow {
    fn follow(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { seq } => {
                self.lens.insert(*seq, 0);
            }
            Operation::Fork { tokens, seq, .. } => {
                self.lens.insert(*seq, *tokens as usize);
            }
            Operation::Truncate { seq, tokens } => {
                self.lens.insert(*seq, *tokens as usize);
            }
            Operation::Release { seq } => {
                self.lens.remove(seq);
            }
            Operation::Reuse { seq, gained, .. } => *self.lens.entry(*seq).or_default() += *gained as usize,
            Operation::Open { spans, .. } => {
                self.open = spans.iter().map(|span| (span.seq, span.ids.len())).collect();
            }
            Operation::Commit { .. } => {
                for (seq, tokens) in self.open.drain(..) {
                    *self.lens.entry(seq).or_default() += tokens;
                }
            }
            Operation::Cancel { .. } => self.open.clear(),
        }
    }
}
