//! Decides what is tested while no answer runs: whether every device computes, and computes right. It
//! also tests the head's own file, and keeps what devices have shown for a judgement of the plan.
//!
//! A device can live, answer on its control channel, and yet compute nothing any more: only a token that does
//! not come back shows that. Weights may rot in memory or on a disk, and a processor may fail: then values
//! are finite but wrong. So from time to time a few random tokens go round the ring as a step of which
//! one device computes one layer. The head compares the bits with its own. Audits find devices that compute
//! wrong by accident. They do not find one that cheats, because it can see that it is audited.
//!
//! This room sends nothing. What it finds is carried out by the agenda.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use baton_engine::tokenizer::TokenId;
use baton_random::mix;

use super::States;
use super::form::Formed;
use super::head::{HeadSetup, Own, Shown};
use super::layout::Layout;
use super::roster::Roster;

/// Tokens of an audit: the later ones attend to the earlier.
const ROWS: usize = 4;
/// When this time is used up, the remaining layers wait for the next round of audits. Each round audits at
/// least one.
const BUDGET: Duration = Duration::from_millis(50);
/// A ring that is always busy is audited before an answer, this many times less often than an idle ring.
const UNSEEN: u32 = 6;
/// The pause between two tokens is at least this many times as long as one token takes, so that devices that
/// read weights from disks are not kept busy. It is at most this many times the usual pause.
const PAUSE: u32 = 50;
/// Least number of one-row frames that a time is averaged over.
const SINGLES_MIN: u64 = 16;

/// What an audit compares.
#[derive(Debug)]
pub(super) struct Evidence {
    /// The audit's tokens.
    pub(super) ids: Vec<TokenId>,
    /// What entered the layer.
    pub(super) begins: States,
    /// What the device made of it.
    have: States,
}

/// Audits of other devices' layers.
#[derive(Debug, Default)]
struct Audits {
    /// Number of the next audit: it selects the layer and the tokens.
    next: u64,
    /// When layers of this ring were last audited.
    last: Option<Duration>,
    began: Duration,
    /// Layers that this round has audited.
    done: usize,
    ids: Vec<TokenId>,
    evidence: Option<Evidence>,
    /// What is wrong with the head's own file.
    damaged: Option<String>,
    /// The next own layer to read again.
    next_own: usize,
}

/// What is tested, and when it was tested last.
#[derive(Debug)]
pub(super) struct Health {
    name: String,
    vocab: usize,
    pause: Duration,
    probed_at: Duration,
    probe_began: Duration,
    probe_took: Duration,
    audits: Audits,
    /// Frames of one row at the last look, and their microseconds, by device.
    looked: BTreeMap<String, (u64, u64)>,
}

impl Health {
    pub(super) fn new(setup: &HeadSetup, now: Duration) -> Self {
        Self {
            name: setup.name.clone(),
            vocab: setup.vocab,
            pause: setup.health,
            probed_at: now,
            probe_began: now,
            probe_took: Duration::ZERO,
            audits: Audits::default(),
            looked: BTreeMap::new(),
        }
    }

    /// The ring is new: nothing of it was looked at yet.
    pub(super) fn formed(&mut self) {
        self.audits.last = None;
        self.looked.clear();
    }

    /// Returns what is wrong with the head's own file, if anything is.
    pub(super) fn damaged(&self) -> Option<&str> {
        self.audits.damaged.as_deref()
    }

    /// The head's own file has changed.
    pub(super) fn rotten(&mut self, words: String) {
        self.audits.damaged = Some(words);
    }
}

/// The token for the ring's health.
impl Health {
    /// Returns whether a token should go round the ring, and notes that it begins.
    pub(super) fn begin_probe(&mut self, now: Duration) -> bool {
        let longest = self.pause.saturating_mul(PAUSE);
        let pause = self.pause.max(self.probe_took.saturating_mul(PAUSE).min(longest));
        let due = now.saturating_sub(self.probed_at) >= pause;
        if due {
            self.probe_began = now;
        }
        due
    }

    /// The token came back, or did not.
    pub(super) fn end_probe(&mut self, now: Duration) {
        self.probed_at = now;
        self.probe_took = now.saturating_sub(self.probe_began);
    }
}

/// Returns the layers of other devices in ring order, with their places.
fn others_layers(layout: &Layout) -> Vec<(usize, usize)> {
    let windows = layout.windows.iter().filter(|window| window.place != 0);
    windows.flat_map(|window| (window.begin..window.end).map(|layer| (window.place, layer))).collect()
}

/// Audits.
impl Health {
    /// Returns whether layers should be audited; while no answer runs more often than before one.
    pub(super) fn audit_is_due(&self, idle: bool, now: Duration) -> bool {
        let pause = if idle { self.pause } else { self.pause.saturating_mul(UNSEEN) };
        self.audits.last.is_none_or(|last| now.saturating_sub(last) >= pause)
    }

    /// Begins a round of audits.
    pub(super) fn begin_audits(&mut self, now: Duration) {
        self.audits.began = now;
        self.audits.done = 0;
    }

    /// Returns place and layer of the next audit; none if other devices have no layers.
    pub(super) fn next_audit(&mut self, layout: &Layout) -> Option<(usize, usize)> {
        let layers = others_layers(layout);
        let at = self.audits.next.checked_rem(layers.len() as u64)?;
        let first = self.audits.next * ROWS as u64;
        let token = |at: u64| (mix(0, first + at) % self.vocab.max(1) as u64) as TokenId;
        self.audits.ids = (0..ROWS as u64).map(token).collect();
        self.audits.next += 1;
        self.audits.done += 1;
        self.audits.evidence = None;
        layers.get(at as usize).copied()
    }

    /// Returns the tokens of the present audit; no two audits have the same.
    pub(super) fn audit_ids(&self) -> &[TokenId] {
        &self.audits.ids
    }

    /// The rows of the present audit came back.
    pub(super) fn keep(&mut self, begins: States, have: States) {
        self.audits.evidence = Some(Evidence { ids: self.audits.ids.clone(), begins, have });
    }

    /// Returns what the present audit compares, if its rows came back.
    pub(super) fn evidence(&self) -> Option<&Evidence> {
        self.audits.evidence.as_ref()
    }

    /// Returns whether the device's rows are those that the head computed: bit for bit, or nearly if a GPU
    /// has computed them.
    pub(super) fn is_right(&mut self, want: &States, on_gpu: bool) -> bool {
        let same = |have: &States| if on_gpu { have.is_near(want) } else { have.same_bits(want) };
        self.audits.evidence.take().is_none_or(|evidence| same(&evidence.have))
    }

    /// Returns whether this round audits another layer. If not, the round is over.
    pub(super) fn goes_on(&mut self, layout: &Layout, now: Duration) -> bool {
        let more = self.audits.done < others_layers(layout).len();
        let goes_on = more && now.saturating_sub(self.audits.began) < BUDGET;
        if !goes_on {
            self.audits.last = Some(now);
        }
        goes_on
    }

    /// Returns the own layers to read again: the next one, or none if the head has no layers.
    pub(super) fn next_own_layer(&mut self, layout: &Layout) -> Vec<usize> {
        let own = layout.layers_of(0);
        let at = self.audits.next_own.checked_rem(own.len()).unwrap_or_default();
        self.audits.next_own += 1;
        own.get(at).copied().into_iter().collect()
    }
}

/// What devices have shown.
impl Health {
    /// Returns what the head and the devices of the ring report, the head first. `singles` are the head's own
    /// steps of one row in this epoch.
    pub(super) fn shown(
        &mut self,
        formed: &Formed,
        roster: &Roster,
        singles: (u64, u64),
        own: &Own,
    ) -> Vec<Shown> {
        let name = self.name.clone();
        let token_s = self.since(&name, singles);
        let mut shown = vec![Shown { name, token_s, memory_bytes: own.memory_bytes }];
        let windows = &formed.layout.windows;
        // A token passes the device as one frame per round, whether or not the device has a window in that
        // round.
        let rounds = windows.iter().map(|window| window.round + 1).max().unwrap_or(1);
        for (place, device) in (1..).zip(&formed.places) {
            let (Some(name), Some(beat)) = (roster.name(*device), roster.beat(*device)) else { continue };
            if beat.epoch != formed.epoch {
                continue;
            }
            let each = self.since(name, (beat.singles, beat.singles_us));
            let computes = windows.iter().any(|window| window.place == place);
            shown.push(Shown {
                name: name.to_owned(),
                token_s: each.filter(|_| computes).map(|each| each * rounds as f64),
                memory_bytes: (beat.memory_bytes > 0).then_some(beat.memory_bytes as f64),
            });
        }
        shown
    }

    /// Returns the seconds per step since the last look, or none if there were too few steps; these count in
    /// the next look.
    fn since(&mut self, name: &str, (count, us): (u64, u64)) -> Option<f64> {
        let last = self.looked.entry(name.to_owned()).or_default();
        let more = count.saturating_sub(last.0);
        if more < SINGLES_MIN {
            return None;
        }
        let each = us.saturating_sub(last.1) as f64 / 1e6 / more as f64;
        *last = (count, us);
        Some(each)
    }
}
