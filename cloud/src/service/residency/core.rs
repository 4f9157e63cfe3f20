//! Decides which models are in memory under a budget. Pure: no clock, no thread, no file.
//!
//! A request holds its model from the moment it gets it until its answer is over. Always: models in memory,
//! those being loaded and those being unloaded need no more bytes than the budget. A model that a request
//! holds is never unloaded. Every waiting request gets its model or an error, if held models are given back
//! and loads end.
//!
//! Models that wait for room are served in the order in which they were first asked for. Room is made by
//! unloading models that nobody holds, the least recently used first. If these are not enough for
//! [`PATIENCE`], the least recently used held ones retire: new requests for them wait behind the others.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a model waits for others to be idle, before requests for these wait behind it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Time after the first failed load in which the model is not loaded again; it doubles with each failure.
const REST_FIRST: Duration = Duration::from_secs(1);
/// The longest such time.
const REST_MAX: Duration = Duration::from_secs(60);

/// A request that wants a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Waiter(pub(crate) u64);

/// What must be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Load this model, then call [`ResidencyCore::loaded`] or [`ResidencyCore::failed`].
    Load(usize),
    /// Unload this model, then call [`ResidencyCore::gone`].
    Unload(usize),
    /// The request holds the model now, until [`ResidencyCore::release`].
    Grant(Waiter),
    /// The request gets an error: its model could not be loaded, or takes no requests.
    Refuse(Waiter, Refused),
}

/// Why a request does not get its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It could not be loaded and is not tried again for so long.
    Failed {
        /// Time until the next try.
        retry_after: Duration,
    },
    /// An operator has drained it.
    Drained,
    /// The service is stopping.
    Stopping,
}

/// The state of a model, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelState {
    /// Not in memory.
    Unloaded,
    /// It waits for room.
    Waiting,
    /// It is being loaded.
    Loading,
    /// In memory.
    Loaded,
    /// In memory; it is unloaded as soon as no request holds it.
    Retiring,
    /// It is being unloaded.
    Unloading,
    /// The last load failed.
    Failed,
}

impl ModelState {
    /// Every state.
    pub const ALL: [ModelState; 7] = [
        ModelState::Unloaded,
        ModelState::Waiting,
        ModelState::Loading,
        ModelState::Loaded,
        ModelState::Retiring,
        ModelState::Unloading,
        ModelState::Failed,
    ];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            ModelState::Unloaded => "unloaded",
            ModelState::Waiting => "waiting",
            ModelState::Loading => "loading",
            ModelState::Loaded => "loaded",
            ModelState::Retiring => "retiring",
            ModelState::Unloading => "unloading",
            ModelState::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Out,
    Loading,
    /// Requests that hold it, and when the last one gave it back.
    In {
        held: usize,
        used_at: Duration,
    },
    Leaving,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    place: Place,
    waiters: VecDeque<Waiter>,
    /// When somebody first asked for it since it was last in memory.
    asked_at: Option<Duration>,
    /// An operator wants it in memory.
    ordered: bool,
    /// An operator wants it out of memory.
    dismissed: bool,
    /// An operator lets it take no new requests.
    drained: bool,
    failures: u32,
    rests_until: Duration,
    /// Others need its room.
    retires: bool,
}

/// The decisions about all models of a service.
#[derive(Debug)]
pub(crate) struct ResidencyCore {
    budget: Option<u64>,
    models: Vec<Entry>,
    stopped: bool,
}

impl ResidencyCore {
    /// Makes the core of models that need so many bytes each; all are out of memory. `None` is no budget.
    pub(crate) fn new(budget: Option<u64>, bytes: impl IntoIterator<Item = u64>) -> ResidencyCore {
        let entry = |bytes| Entry {
            bytes,
            place: Place::Out,
            waiters: VecDeque::new(),
            asked_at: None,
            ordered: false,
            dismissed: false,
            drained: false,
            failures: 0,
            rests_until: Duration::ZERO,
            retires: false,
        };
        ResidencyCore { budget, models: bytes.into_iter().map(entry).collect(), stopped: false }
    }

    /// A request wants a model.
    pub(crate) fn want(&mut self, at: usize, waiter: Waiter, now: Duration) -> Vec<Effect> {
        let (stopped, model) = (self.stopped, &mut self.models[at]);
        let refused = match (stopped, model.drained, model.rests_until.checked_sub(now)) {
            (true, _, _) => Some(Refused::Stopping),
            (_, true, _) => Some(Refused::Drained),
            (_, _, Some(left)) if model.place == Place::Out && model.failures > 0 && !left.is_zero() => {
                Some(Refused::Failed { retry_after: left })
            }
            _ => None,
        };
        if let Some(refused) = refused {
            return vec![Effect::Refuse(waiter, refused)];
        }
        model.waiters.push_back(waiter);
        model.asked_at.get_or_insert(now);
        self.plan(now)
    }

    /// A waiting request has left. Does nothing if it has got its model or an error already.
    pub(crate) fn withdraw(&mut self, waiter: Waiter, now: Duration) -> Vec<Effect> {
        self.models.iter_mut().for_each(|model| model.waiters.retain(|other| *other != waiter));
        self.plan(now)
    }

    /// A request that held the model has ended.
    pub(crate) fn release(&mut self, at: usize, now: Duration) -> Vec<Effect> {
        if let Place::In { held, used_at } = &mut self.models[at].place {
            *held = held.saturating_sub(1);
            *used_at = now;
        }
        self.plan(now)
    }

    /// The model is in memory. If the service stops meanwhile, it is unloaded at once.
    pub(crate) fn loaded(&mut self, at: usize, now: Duration) -> Vec<Effect> {
        let model = &mut self.models[at];
        model.place = Place::In { held: 0, used_at: now };
        (model.failures, model.asked_at, model.ordered) = (0, None, false);
        model.dismissed |= self.stopped;
        self.plan(now)
    }

    /// The model could not be loaded. Whoever waits for it gets an error.
    pub(crate) fn failed(&mut self, at: usize, now: Duration) -> Vec<Effect> {
        let model = &mut self.models[at];
        let rest = REST_FIRST.saturating_mul(1 << model.failures.min(6)).min(REST_MAX);
        (model.place, model.failures, model.ordered) = (Place::Out, model.failures.saturating_add(1), false);
        (model.rests_until, model.asked_at) = (now + rest, None);
        let refused = Refused::Failed { retry_after: rest };
        let mut effects: Vec<Effect> =
            model.waiters.drain(..).map(|waiter| Effect::Refuse(waiter, refused)).collect();
        effects.extend(self.plan(now));
        effects
    }

    /// The model is out of memory.
    pub(crate) fn gone(&mut self, at: usize, now: Duration) -> Vec<Effect> {
        self.models[at].place = Place::Out;
        self.plan(now)
    }

    /// An operator wants the model in memory. It takes requests again, and a failed load is tried again.
    pub(crate) fn order(&mut self, at: usize, now: Duration) -> Vec<Effect> {
        let model = &mut self.models[at];
        (model.drained, model.dismissed) = (false, false);
        (model.failures, model.rests_until) = (0, Duration::ZERO);
        if matches!(model.place, Place::Out | Place::Leaving) {
            model.ordered = true;
            model.asked_at.get_or_insert(now);
        }
        self.plan(now)
    }

    /// An operator wants the model out of memory. Requests that hold it end first; later ones load it again,
    /// or are refused if it is `drained`.
    pub(crate) fn dismiss(&mut self, at: usize, drained: bool, now: Duration) -> Vec<Effect> {
        let model = &mut self.models[at];
        (model.ordered, model.drained) = (false, model.drained || drained);
        model.dismissed = matches!(model.place, Place::In { .. } | Place::Loading);
        let mut effects = Vec::new();
        if drained {
            let refuse = |waiter| Effect::Refuse(waiter, Refused::Drained);
            effects.extend(model.waiters.drain(..).map(refuse));
        }
        effects.extend(self.plan(now));
        effects
    }

    /// The service stops: whoever waits gets an error, and nothing is loaded any more.
    pub(crate) fn stop(&mut self) -> Vec<Effect> {
        self.stopped = true;
        let waiters = self.models.iter_mut().flat_map(|model| model.waiters.drain(..));
        waiters.map(|waiter| Effect::Refuse(waiter, Refused::Stopping)).collect()
    }

    /// Looks at what has become due. Call it at least once a second while a request waits.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Effect> {
        self.plan(now)
    }

    /// Returns the bytes of models in memory, and of those that come and go.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.models.iter().filter(|model| model.place != Place::Out).map(|model| model.bytes).sum()
    }

    /// Returns the budget.
    pub(crate) fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Returns the bytes that a model needs.
    pub(crate) fn bytes(&self, at: usize) -> u64 {
        self.models[at].bytes
    }

    /// Returns a model's state.
    pub(crate) fn state(&self, at: usize) -> ModelState {
        let model = &self.models[at];
        match model.place {
            Place::Out if model.is_wanted() => ModelState::Waiting,
            Place::Out if model.failures > 0 => ModelState::Failed,
            Place::Out => ModelState::Unloaded,
            Place::Loading => ModelState::Loading,
            Place::In { .. } if model.retires || model.dismissed => ModelState::Retiring,
            Place::In { .. } => ModelState::Loaded,
            Place::Leaving => ModelState::Unloading,
        }
    }

    /// Returns whether a model takes no requests until an operator loads it.
    pub(crate) fn is_drained(&self, at: usize) -> bool {
        self.models[at].drained
    }

    /// Returns how many requests hold a model, and how many wait for it.
    pub(crate) fn requests(&self, at: usize) -> (usize, usize) {
        let model = &self.models[at];
        let held = if let Place::In { held, .. } = model.place { held } else { 0 };
        (held, model.waiters.len())
    }

    /// Decides what to do next.
    fn plan(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.models.iter_mut().for_each(|model| model.retires = false);
        self.models.iter_mut().filter(|model| !model.is_wanted()).for_each(|model| model.asked_at = None);
        if !self.stopped {
            self.load_next(now, &mut effects);
        }
        for (at, model) in self.models.iter_mut().enumerate() {
            let Place::In { held, .. } = &mut model.place else { continue };
            if !(model.retires || model.dismissed) {
                *held += model.waiters.len();
                effects.extend(model.waiters.drain(..).map(Effect::Grant));
                model.asked_at = None;
            } else if *held == 0 {
                (model.place, model.dismissed) = (Place::Leaving, false);
                effects.push(Effect::Unload(at));
            }
        }
        effects
    }

    /// Begins to load what fits, in order, and makes room for the first model that does not.
    fn load_next(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let mut queue: Vec<(Duration, usize)> = (0..self.models.len())
            .filter(|at| self.models[*at].place == Place::Out && self.models[*at].is_wanted())
            .map(|at| (self.models[at].asked_at.unwrap_or(now), at))
            .collect();
        queue.sort_unstable();
        for (asked_at, at) in queue {
            if self.budget.is_some_and(|budget| self.used_bytes() + self.models[at].bytes > budget) {
                self.make_room(at, now.saturating_sub(asked_at) >= PATIENCE);
                return;
            }
            self.models[at].place = Place::Loading;
            effects.push(Effect::Load(at));
        }
    }

    /// Marks models to be unloaded so that this one fits: idle ones, and held ones too if it may not wait any
    /// longer. Marks none if that would not be enough.
    fn make_room(&mut self, at: usize, urgent: bool) {
        let Some(budget) = self.budget else { return };
        let leaves = |model: &Entry| model.place == Place::Leaving || model.dismissed;
        let stays = |model: &&Entry| model.place != Place::Out && !leaves(model);
        let mut left: u64 = self.models.iter().filter(stays).map(|model| model.bytes).sum();
        // Idle ones first, then the least recently used.
        let mut others: Vec<(bool, Duration, usize)> = (0..self.models.len())
            .filter(|other| !self.models[*other].dismissed)
            .filter_map(|other| match self.models[other].place {
                Place::In { held, used_at } => Some((held > 0, used_at, other)),
                _ => None,
            })
            .filter(|(is_held, _, other)| urgent || !is_held && self.models[*other].waiters.is_empty())
            .collect();
        others.sort_unstable();
        let mut chosen = Vec::new();
        for (_, _, other) in others {
            if left + self.models[at].bytes <= budget {
                break;
            }
            left -= self.models[other].bytes;
            chosen.push(other);
        }
        if left + self.models[at].bytes <= budget {
            chosen.into_iter().for_each(|other| self.models[other].retires = true);
        }
    }
}

impl Entry {
    fn is_wanted(&self) -> bool {
        self.ordered || !self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests;
