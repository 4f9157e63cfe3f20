//! What a device does about its models: asks the cloud, fetches, switches, removes. The device's side of a
//! rollout.
//!
//! Pure: [`Holding::next`] says the next step, and what came of it is told back. Times are milliseconds of a
//! clock that only goes forward; [`Kept`] is what survives a restart.
//!
//! What always holds: the active pair is whole on this device, and it loaded. The pair before it is kept
//! until another one has loaded. A pair that does not load is not tried again. The cloud is asked with the
//! active pair only within its lease.

use std::collections::{BTreeMap, BTreeSet};

use baton_protocol::{ModelPair, ModelVersion};
use serde::{Deserialize, Serialize};

use crate::sync::{LIST_MAX, SyncReply, SyncRequest};

/// Time before a failed step is tried again; doubled for each further failure.
const RETRY_MS: u64 = 30_000;
/// Longest such time.
const RETRY_MS_MAX: u64 = 1_800_000;
/// Most pairs that are remembered because they do not load.
const FAILED_MAX: usize = LIST_MAX / 4;

/// What survives a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// The pair that answers.
    pub active: Option<ModelPair>,
    /// The pair that answered before.
    pub last_good: Option<ModelPair>,
    /// The pair that the cloud wants.
    pub wanted: Option<ModelPair>,
    /// Pairs that did not load, the newest last.
    pub failed: Vec<ModelPair>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Ask the cloud what this device should have.
    Sync,
    /// Fetch a version.
    Fetch(ModelVersion),
    /// Stop fetching: the version is not wanted any more.
    StopFetch,
    /// Load a pair; if it loads, answer with it.
    Switch(ModelPair),
    /// Remove a version that nothing needs.
    Remove(ModelVersion),
    /// Nothing until this time.
    Wait {
        /// When to ask for the next step.
        until_ms: u64,
    },
}

/// Failures in a row, and when to try again.
#[derive(Debug, Clone, Copy, Default)]
struct Retry {
    failures: u32,
    at_ms: u64,
}

impl Retry {
    fn failed(&mut self, now_ms: u64) {
        let wait = RETRY_MS.saturating_mul(1 << self.failures.min(10)).min(RETRY_MS_MAX);
        self.failures += 1;
        self.at_ms = now_ms.saturating_add(wait);
    }
}

/// What a device has, and what it should have.
#[derive(Debug, Default)]
pub struct Holding {
    kept: Kept,
    whole: BTreeSet<ModelVersion>,
    leases: BTreeMap<ModelPair, u64>,
    fetching: Option<ModelVersion>,
    fetch_retry: Retry,
    sync_retry: Retry,
    /// When the cloud is to be asked next.
    sync_at_ms: u64,
}

impl Holding {
    /// Takes up what was kept. `whole`: the versions that are here, every byte of them.
    pub fn new(kept: Kept, whole: impl IntoIterator<Item = ModelVersion>) -> Self {
        let mut holding = Self { kept, whole: whole.into_iter().collect(), ..Self::default() };
        let Kept { active, last_good, .. } = &mut holding.kept;
        // Files may have been removed by hand: then the pair before answers, if it is whole.
        if active.as_ref().is_none_or(|pair| !is_whole(&holding.whole, pair)) {
            *active = last_good.take().filter(|pair| is_whole(&holding.whole, pair));
        }
        holding
    }

    /// Returns what to write down for the next start.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Returns the pair that answers.
    pub fn active(&self) -> Option<&ModelPair> {
        self.kept.active.as_ref()
    }

    /// Returns the pair that the cloud wants, if it is another one.
    pub fn coming(&self) -> Option<&ModelPair> {
        let wanted = self.kept.wanted.as_ref()?;
        (self.kept.active.as_ref() != Some(wanted) && !self.kept.failed.contains(wanted)).then_some(wanted)
    }

    /// Returns the pair with which the cloud may be asked now. Without one the device answers alone.
    pub fn pair_for_cloud(&self, now_ms: u64) -> Option<&ModelPair> {
        let active = self.kept.active.as_ref()?;
        self.leases.get(active).is_some_and(|until| now_ms < *until).then_some(active)
    }

    /// Returns what to say to the cloud.
    pub fn request(&self, device: &str, class: &str, scene: &str) -> SyncRequest {
        SyncRequest {
            device: device.to_owned(),
            class: class.to_owned(),
            scene: scene.to_owned(),
            active: self.kept.active.clone(),
            held: self.whole.iter().take(LIST_MAX).cloned().collect(),
            failed: self.kept.failed.clone(),
        }
    }

    /// Takes what the cloud said to a request that was sent at `sent_ms`.
    pub fn synced(&mut self, reply: &SyncReply, sent_ms: u64) {
        self.sync_retry = Retry::default();
        self.sync_at_ms = sent_ms.saturating_add(reply.again_s.saturating_mul(1000));
        if self.kept.wanted != reply.wanted {
            self.fetch_retry = Retry::default();
        }
        self.kept.wanted.clone_from(&reply.wanted);
        let until = |lease_s: u64| sent_ms.saturating_add(lease_s.saturating_mul(1000));
        self.leases = reply.leases.iter().map(|lease| (lease.pair.clone(), until(lease.lease_s))).collect();
    }

    /// Notes that the cloud did not answer.
    pub fn sync_failed(&mut self, now_ms: u64) {
        self.sync_retry.failed(now_ms);
        self.sync_at_ms = self.sync_retry.at_ms;
    }

    /// Notes that the cloud refused the pair: what was told does not hold any more.
    pub fn refused(&mut self) {
        self.leases.clear();
        self.sync_at_ms = 0;
    }

    /// Returns when the cloud is to be asked next.
    pub fn sync_due_ms(&self) -> u64 {
        self.sync_at_ms
    }

    /// Notes that a version is here, every byte of it.
    pub fn fetched(&mut self, model: ModelVersion) {
        self.fetching = None;
        self.fetch_retry = Retry::default();
        self.whole.insert(model);
    }

    /// Notes that a version could not be fetched, or that fetching was stopped.
    pub fn fetch_failed(&mut self, now_ms: u64) {
        self.fetching = None;
        self.fetch_retry.failed(now_ms);
    }

    /// Notes that a version turned out to be damaged, and is gone.
    pub fn lost(&mut self, model: &ModelVersion) {
        self.whole.remove(model);
    }

    /// Notes that a pair loaded, and answers from now on.
    pub fn switched(&mut self, pair: ModelPair) {
        if self.kept.active.as_ref() != Some(&pair) {
            self.kept.last_good = self.kept.active.replace(pair);
            // The cloud counts who has what.
            self.sync_at_ms = 0;
        }
    }

    /// Notes that a pair did not load. What answered before goes on.
    pub fn switch_failed(&mut self, pair: ModelPair) {
        if !self.kept.failed.contains(&pair) {
            self.kept.failed.push(pair);
        }
        if self.kept.failed.len() > FAILED_MAX {
            self.kept.failed.remove(0);
        }
        // The cloud may want another one then.
        self.sync_at_ms = 0;
    }

    /// Notes that a version was removed.
    pub fn removed(&mut self, model: &ModelVersion) {
        self.whole.remove(model);
    }

    /// Returns what to do next, and takes it as begun.
    pub fn next(&mut self, now_ms: u64) -> Step {
        if now_ms >= self.sync_at_ms {
            // If no answer is told back, it is asked again later.
            self.sync_at_ms = now_ms.saturating_add(RETRY_MS);
            return Step::Sync;
        }
        let wanted = self.coming().cloned();
        let needs =
            |model: &ModelVersion| wanted.as_ref().is_some_and(|pair| pair.models().any(|m| m == model));
        if self.fetching.as_ref().is_some_and(|model| !needs(model)) {
            return Step::StopFetch;
        }
        if let Some(pair) = wanted {
            let missing = pair.models().find(|model| !self.whole.contains(*model)).cloned();
            match missing {
                None => return Step::Switch(pair),
                Some(model) if self.fetching.is_none() && now_ms >= self.fetch_retry.at_ms => {
                    self.fetching = Some(model.clone());
                    return Step::Fetch(model);
                }
                Some(_) => {}
            }
        }
        if let Some(model) = self.unneeded() {
            return Step::Remove(model);
        }
        let fetch = self.coming().filter(|_| self.fetching.is_none()).map(|_| self.fetch_retry.at_ms);
        Step::Wait { until_ms: fetch.map_or(self.sync_at_ms, |at| at.min(self.sync_at_ms)) }
    }

    /// Returns a version that is of no pair that answers, answered, or is coming.
    fn unneeded(&self) -> Option<ModelVersion> {
        let Kept { active, last_good, wanted, .. } = &self.kept;
        let needed: Vec<&ModelVersion> =
            [active, last_good, wanted].into_iter().flatten().flat_map(ModelPair::models).collect();
        self.whole.iter().find(|model| !needed.contains(model)).cloned()
    }
}

fn is_whole(whole: &BTreeSet<ModelVersion>, pair: &ModelPair) -> bool {
    pair.models().all(|model| whole.contains(model))
}

#[cfg(test)]
mod tests;
