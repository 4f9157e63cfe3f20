//! Forms a ring: makes a plan for the present devices, sends each its part, opens links, and begins an
//! epoch.
//!
//! Every failure is the fault of one device or link ([`Fault`]). That device leaves the ring; if only a
//! link broke, it gets one more try. So each failed attempt leaves fewer devices or fewer tries, and
//! forming a ring always ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::StepControl;
use baton_plan::Plan;

use super::super::frame::{Configure, FailureCode, Frame, Hello, NodeAddress};
use super::super::layout::Layout;
use super::super::link::{FrameReceiver, FrameSender, Outbox, Purpose};
use super::super::stats::{DeviceStats, LostDevice};
use super::listener::FrameInbox;
use super::member::Member;
use super::pump::in_flight_max;
use super::recovery::still_wanted;
use super::{Epoch, RingError, RingHead, Route, chain, locked};
use crate::ring::frame::Heartbeat;

/// Wait between two checks of what has happened.
const SLICE: Duration = Duration::from_millis(5);
/// Broken links of a device after which it is left out.
const STRIKES_MAX: u32 = 2;
/// Bytes per second of the slowest link over which the head waits for weights: 2 Mbit/s. Without this
/// limit, a device that reports progress but is never ready would keep the ring from being formed for ever.
const FETCH_BYTES_PER_S: u64 = 256_000;
/// How often the same bytes may be moved: pieces fetched from another worker may have to be fetched again
/// from the head.
const FETCHES: u64 = 2;

/// Returns how long fetching so many bytes may take, without the time to connect.
fn fetch_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes.saturating_mul(FETCHES) / FETCH_BYTES_PER_S)
}

/// What went wrong in the ring. Places are those of the epoch; place 0 is the head, which is never lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// A device is gone.
    Lost {
        /// Its place.
        place: usize,
        /// What is known.
        words: String,
    },
    /// A device sent something invalid.
    Wrong {
        /// Its place.
        place: usize,
        /// What it was.
        words: String,
    },
    /// The link to or from a device broke.
    Link {
        /// Its place.
        place: usize,
        /// What is known.
        words: String,
    },
}

impl Fault {
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Lost { words, .. } | Self::Wrong { words, .. } | Self::Link { words, .. } => words,
        }
    }
}

impl Epoch {
    fn name(&self, place: usize) -> &str {
        self.layout.names.get(place).map_or("", String::as_str)
    }

    /// Returns the fault that the control channels report, if any.
    pub(super) fn trouble(&self, epoch: u64) -> Option<Fault> {
        trouble(&self.places, epoch)
    }

    /// Finds the fault after nothing has moved for too long: a device that did not pass a frame on, or a
    /// link that lost one.
    pub(super) fn stalled(&self, epoch: u64, limit: Duration) -> Fault {
        let beats: Vec<Heartbeat> = self.places.iter().map(|member| member.state().beat).collect();
        let holds = |beat: &Heartbeat| beat.epoch != epoch || beat.received > beat.sent;
        if let Some(at) = beats.iter().position(holds) {
            let words = format!("`{}` passed no frame on within {} ms", self.name(at + 1), limit.as_millis());
            return Fault::Lost { place: at + 1, words };
        }
        let lost = beats.windows(2).position(|pair| pair[0].sent > pair[1].received).map(|at| at + 2);
        let place = lost.unwrap_or(if beats.first().is_some_and(|beat| beat.received > 0) {
            self.places.len()
        } else {
            1
        });
        let words = format!("a frame to or from `{}` was lost", self.name(place));
        Fault::Link { place, words }
    }
}

/// Returns the fault that the control channels of these members report, if any.
fn trouble(places: &[Arc<Member>], epoch: u64) -> Option<Fault> {
    let lost = |(place, member): (usize, &Arc<Member>)| {
        let words = member.lost()?;
        Some(Fault::Lost { place, words })
    };
    let failed = |(place, member): (usize, &Arc<Member>)| {
        let failure = member.failure(epoch)?;
        let words = format!("`{}` says: {}", member.name(), failure.words);
        let before = place - 1;
        let next = (place + 1) % (places.len() + 1);
        // The head knows when it fails itself. So a device that blames the head is itself taken to be at
        // fault.
        let or_itself = |accused: usize| if accused == 0 { place } else { accused };
        Some(match failure.code {
            FailureCode::Before => Fault::Link { place: or_itself(before), words },
            FailureCode::Next => Fault::Link { place: or_itself(next), words },
            FailureCode::Refused => Fault::Wrong { place: or_itself(before), words },
            FailureCode::Engine | FailureCode::Weights | FailureCode::Busy => Fault::Lost { place, words },
        })
    };
    let mut failures: Vec<Fault> = (1..).zip(places).filter_map(failed).collect();
    // Faults that are certain come before faults that may only follow from them.
    let certain = failures.iter().position(|fault| !matches!(fault, Fault::Link { .. }));
    (1..).zip(places).find_map(lost).or_else(|| match certain {
        Some(at) => Some(failures.swap_remove(at)),
        None => failures.into_iter().next(),
    })
}

impl RingHead {
    /// Forms a ring of the remaining devices, unless `control` cancels it. Sequences are empty afterwards.
    pub(super) fn form(&mut self, control: &mut dyn StepControl) -> Result<(), RingError> {
        self.route = Route::Down;
        self.log.clear();
        if let Some(words) = self.audits.damaged() {
            return Err(RingError::Damaged { words: words.to_owned() });
        }
        let tries = 2 + STRIKES_MAX as usize * (self.members.len() + 1);
        let mut words = String::new();
        for _ in 0..tries {
            self.remove_lost();
            let layout = self.plan()?;
            if layout.is_alone() {
                self.begin_layers(None, 0)?;
                self.route = Route::Alone;
                self.begun(&layout);
                return Ok(());
            }
            let named = |name: &String| self.members.iter().find(|member| member.name() == name);
            let places: Vec<Arc<Member>> = layout.names[1..].iter().filter_map(named).cloned().collect();
            if places.len() + 1 != layout.names.len() {
                let words = "the plan names a device that is not there".to_owned();
                return Err(RingError::NoPlan { devices: self.names(), words });
            }
            self.epoch += 1;
            match self.enter(&layout, &places, control)? {
                Ok((sender, receiver)) => {
                    let out = Outbox::new(sender, self.options.hop).map_err(RingError::Threads)?;
                    let room = in_flight_max(places.len() + 1);
                    let inbox = FrameInbox::new(receiver, self.epoch, room, Arc::clone(&self.refused))?;
                    self.begin_layers(Some(layout.layers_of(0)), layout.prefetch_bytes[0])?;
                    self.begun(&layout);
                    let in_flight = VecDeque::new();
                    self.route = Route::Ring(Box::new(Epoch { layout, places, out, inbox, in_flight }));
                    return Ok(());
                }
                Err(fault) => {
                    words = fault.words().to_owned();
                    self.blame(&fault, &places);
                }
            }
        }
        Err(RingError::GaveUp { times: tries, words })
    }

    fn names(&self) -> String {
        let others = self.members.iter().map(|member| member.name());
        std::iter::once(self.options.name.as_str()).chain(others).collect::<Vec<_>>().join(", ")
    }

    fn plan(&mut self) -> Result<Layout, RingError> {
        let hellos = self.hellos();
        let plan = (self.planner)(&hellos);
        self.layout(plan)
    }

    /// Drafts a plan for the members that nobody runs yet.
    pub(super) fn draft(&mut self) -> Result<Layout, RingError> {
        let hellos = self.hellos();
        let plan = match &self.drafter {
            Some(drafter) => drafter(&hellos),
            None => (self.planner)(&hellos),
        };
        self.layout(plan)
    }

    fn hellos(&self) -> Vec<Hello> {
        self.members.iter().map(|member| member.hello.clone()).collect()
    }

    fn layout(&self, plan: Result<Plan, String>) -> Result<Layout, RingError> {
        let plan = plan.map_err(|words| RingError::NoPlan { devices: self.names(), words })?;
        Ok(Layout::of_plan(&plan, &self.options.name, self.engine.model().config().n_layers)?)
    }

    /// Removes the members whose control channel has ended.
    pub(super) fn remove_lost(&mut self) {
        let mut stats = locked(&self.shared.stats);
        self.members.retain(|member| match member.lost() {
            None => true,
            Some(words) => {
                tracing::warn!(device = member.name(), words, "a device of the ring is lost");
                stats.lose(LostDevice { name: member.name().to_owned(), words });
                false
            }
        });
        drop(stats);
        self.publish();
    }

    /// Handles a fault: the device leaves the ring, unless only a link broke and it has tries left.
    pub(super) fn blame(&mut self, fault: &Fault, places: &[Arc<Member>]) {
        let (Fault::Lost { place, words } | Fault::Wrong { place, words } | Fault::Link { place, words }) =
            fault;
        let Some(member) = place.checked_sub(1).and_then(|at| places.get(at)) else { return };
        let key = member.node.key;
        if matches!(fault, Fault::Link { .. }) {
            let strikes = self.strikes.entry(key).or_default();
            *strikes += 1;
            if *strikes < STRIKES_MAX {
                tracing::warn!(device = member.name(), words, "a link of the ring broke");
                return;
            }
        }
        self.strikes.remove(&key);
        tracing::warn!(device = member.name(), words, "a device leaves the ring");
        locked(&self.shared.stats).lose(LostDevice { name: member.name().to_owned(), words: words.clone() });
        self.members.retain(|other| other.node.key != key);
        self.publish();
    }

    /// Resets the head's engine to these layers. If its weights are streamed, it changes them too.
    fn begin_layers(&mut self, layers: Option<Vec<usize>>, prefetch_bytes: u64) -> Result<(), RingError> {
        let model = Arc::clone(self.engine.model());
        if let Some(weights) = model.streamed() {
            weights.set_prefetch(prefetch_bytes);
            weights.set_layers(layers.clone().unwrap_or_else(|| (0..model.config().n_layers).collect()))?;
            let stats = weights.stats();
            let (weight_bytes, resident_bytes) = (stats.weight_bytes, stats.resident_bytes);
            tracing::info!(weight_bytes, resident_bytes, "the head's weights");
        }
        self.engine.reset(layers)?;
        Ok(())
    }

    /// Sends each device its part and opens the head's links.
    #[expect(
        clippy::type_complexity,
        reason = "a fault is no error of this device's, and both sides are named here alone"
    )]
    fn enter(
        &mut self,
        layout: &Layout,
        places: &[Arc<Member>],
        control: &mut dyn StepControl,
    ) -> Result<Result<(Box<dyn FrameSender>, Box<dyn FrameReceiver>), Fault>, RingError> {
        for (place, member) in (1..).zip(places) {
            let configure = self.part(layout, places, place);
            if let Err(err) = member.send(&Frame::Configure(Box::new(configure))) {
                return Ok(Err(Fault::Lost { place, words: chain(&err) }));
            }
        }
        let (begun, mut sender, mut receiver) = (Instant::now(), None, None);
        let others = layout.windows.iter().filter(|window| window.place > 0);
        // All layers together, because the head's own link may be the slow one.
        let layers: usize = others.map(|window| window.end - window.begin).sum();
        let quiet_max = self.options.patience * 2;
        let total_max = self.fetch_limit(quiet_max, layers);
        loop {
            still_wanted(control, layout.n_layers).map_err(RingError::Rebuild)?;
            if let Some(fault) = trouble(places, self.epoch) {
                return Ok(Err(fault));
            }
            if sender.is_none() {
                sender = self.first_link(&places[0].node);
            }
            if let (None, Some(listener)) = (&receiver, &self.listener) {
                let last = places[places.len() - 1].node.key;
                receiver = listener.take_link(last, self.epoch, self.options.patience);
            }
            let states: Vec<_> = places.iter().map(|member| member.state()).collect();
            let waiting = states.iter().position(|state| state.ready != self.epoch);
            match (sender, receiver) {
                (Some(sender), Some(receiver)) if waiting.is_none() => return Ok(Ok((sender, receiver))),
                pair => (sender, receiver) = pair,
            }
            let moved = states.iter().map(|state| state.progressed).fold(begun, Instant::max);
            let late = [(moved.elapsed(), quiet_max), (begun.elapsed(), total_max)];
            if let Some((_, limit)) = late.into_iter().find(|(took, limit)| took > limit) {
                let place = waiting.map_or(if sender.is_none() { 1 } else { places.len() }, |at| at + 1);
                let words = format!("not ready within {} ms", limit.as_millis());
                return Ok(Err(Fault::Lost { place, words }));
            }
            std::thread::sleep(SLICE);
        }
    }

    /// Returns how long fetching so many layers may take in all, even with progress. `quiet_max` is the
    /// longest time without any.
    pub(super) fn fetch_limit(&self, quiet_max: Duration, layers: usize) -> Duration {
        let (file, header) = self.model_file.as_ref().map_or((0, 0), |model_file| {
            (model_file.manifest.file_len(), model_file.manifest.header_bytes())
        });
        let share = layers as f64 / self.engine.model().config().n_layers.max(1) as f64;
        quiet_max + fetch_time(header.saturating_add((file as f64 * share) as u64))
    }

    fn first_link(&self, to: &NodeAddress) -> Option<Box<dyn FrameSender>> {
        let mut link = self.network.connect(to, Purpose::Ring, self.options.patience).ok()?;
        let enter = Frame::Enter { epoch: self.epoch, place: 0 };
        link.sender.send(&enter.encode(), self.options.patience).ok()?;
        Some(link.sender)
    }

    /// Returns what a worker has to know.
    fn part(&self, layout: &Layout, places: &[Arc<Member>], place: usize) -> Configure {
        let own = self.network.own();
        let node = |place: usize| place.checked_sub(1).and_then(|at| places.get(at)).map(|m| m.node.clone());
        let engine = &self.options.engine;
        Configure {
            epoch: self.epoch,
            place: place as u16,
            n_layers: layout.n_layers as u16,
            width: self.engine.model().config().d_model as u32,
            prefetch_bytes: layout.prefetch_bytes[place],
            reads_ahead: self.options.reads_ahead,
            windows: layout.windows.clone(),
            model: self
                .model_file
                .as_ref()
                .map(|model_file| model_file.manifest.digest())
                .unwrap_or_default(),
            kv_tokens: engine.kv_tokens as u64,
            kv_format: engine.kv_format,
            prefix_percent: engine.prefix_cache_percent,
            window: engine.window,
            next: node(place + 1).unwrap_or_else(|| own.clone()),
            before: node(place - 1).map_or(own.key, |node| node.key),
            others: (1..=places.len()).filter(|at| *at != place).filter_map(node).collect(),
            activations: self.options.activations,
            heartbeat: self.options.heartbeat,
            hop: self.options.hop,
        }
    }

    /// Resets the statistics for a new epoch.
    fn begun(&mut self, layout: &Layout) {
        self.step_us = [0; 2];
        self.audits.begin();
        self.singles = super::drift::SingleRowTimes::default();
        let mut stats = locked(&self.shared.stats);
        stats.epoch = self.epoch;
        stats.epoch_steps = 0;
        stats.rounds = layout.windows.iter().map(|window| window.round + 1).max().unwrap_or(1);
        let device = |(place, name): (usize, &String)| {
            DeviceStats::of(name, place, layout.layers_of(place), &Heartbeat::default(), 1)
        };
        stats.devices = layout.names.iter().enumerate().map(device).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_that_fetching_may_take_follows_its_bytes() {
        assert_eq!(fetch_time(0), Duration::ZERO);
        assert_eq!(fetch_time(1_280_000), Duration::from_secs(10));
        assert!(fetch_time(u64::MAX) < Duration::MAX, "of any model there is a longest");
    }
}
