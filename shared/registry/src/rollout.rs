//! Which pair of base and adapter the devices of a class should have, and which ones are allowed: the cloud's
//! side of a rollout.
//!
//! Pure, with times in seconds. A [`Target`] is what is set for one scene and one class; every change makes a
//! new one. Replicas of the cloud may act on a target that is up to [`SETTLE_S`] old.
//!
//! What always holds: if a device was told that it may ask with a pair, every replica allows it at least as
//! long as told. Only a revoked pair is refused before. So a device within its lease is never refused.

use std::fmt;
use std::str::FromStr;

use baton_protocol::ModelPair;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::sync::Lease;

/// Longest time for which a device may ask with a pair after it was told, in seconds.
pub const LEASE_S: u64 = 900;
/// Longest time until a replica knows of a change and a sent request has arrived, in seconds.
pub const SETTLE_S: u64 = 10;
/// How long a pair stays allowed after it was given up, in seconds.
pub const GRACE_S: u64 = LEASE_S + 2 * SETTLE_S;
/// When a device asks again, in seconds.
pub const AGAIN_S: u64 = LEASE_S / 3;
/// Most pairs that were given up and are still allowed.
const RETIRED_MAX: usize = 32;

/// A share of devices, in hundredths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Share(u32);

/// All devices.
const WHOLE: u32 = 10_000;

/// A text or number that is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a share of devices is a number of percent from 0.01 to 100, with two decimals at most")]
pub struct BadShare;

impl Share {
    /// Every device.
    pub const ALL: Self = Self(WHOLE);

    /// Returns the share in percent.
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl TryFrom<u32> for Share {
    type Error = BadShare;

    fn try_from(hundredths: u32) -> Result<Self, BadShare> {
        (1..=WHOLE).contains(&hundredths).then_some(Self(hundredths)).ok_or(BadShare)
    }
}

impl From<Share> for u32 {
    fn from(share: Share) -> Self {
        share.0
    }
}

impl FromStr for Share {
    type Err = BadShare;

    fn from_str(text: &str) -> Result<Self, BadShare> {
        let text = text.trim().trim_end_matches('%').trim_end();
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str, max: usize| text.len() <= max && text.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole, 3) || !digits(part, 2) {
            return Err(BadShare);
        }
        let number = |text: &str| text.parse::<u32>().map_err(|_| BadShare);
        Self::try_from(number(whole)? * 100 + number(&format!("{part:0<2}"))?)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.percent())
    }
}

/// When a rollout pauses by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Largest share of the devices that have the candidate for which it may not load.
    pub failed_max: Share,
    /// Fewest devices that must have failed before it counts.
    pub failed_least: u32,
}

impl Default for Guard {
    /// A rollout pauses if 3 devices, and 2 % of those that have the candidate, cannot load it.
    fn default() -> Self {
        Self { failed_max: Share(200), failed_least: 3 }
    }
}

/// A candidate on its way to all devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// The pair that devices get.
    pub candidate: ModelPair,
    /// How many of them.
    pub share: Share,
    /// Whether no more devices get it.
    pub is_paused: bool,
    /// Whether the guard paused it.
    #[serde(default)]
    pub paused_by_guard: bool,
    /// When it began.
    pub begun_s: u64,
    /// When it pauses by itself.
    pub guard: Guard,
}

/// A pair that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retired {
    /// The pair.
    pub pair: ModelPair,
    /// When.
    pub at_s: u64,
}

/// What is set for one scene and one class of devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The pair that devices have if no rollout says otherwise.
    pub stable: ModelPair,
    /// Since when it is allowed without a break.
    pub stable_since_s: u64,
    /// The pair that was stable before: what a roll back goes to if no rollout runs.
    #[serde(default)]
    pub last_good: Option<ModelPair>,
    /// The running rollout.
    #[serde(default)]
    pub rollout: Option<Rollout>,
    /// Pairs that are allowed for a while yet.
    #[serde(default)]
    pub retired: Vec<Retired>,
}

/// A change of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Change {
    /// Begins a rollout.
    Start {
        /// The pair that devices get.
        candidate: ModelPair,
        /// How many of them.
        share: Share,
        /// When it pauses by itself.
        #[serde(default)]
        guard: Guard,
    },
    /// Gives the candidate to another share of the devices.
    Share {
        /// How many of them.
        share: Share,
    },
    /// Gives the candidate to no more devices; those that have it keep it.
    Pause,
    /// Goes on after a pause.
    Resume,
    /// Ends the rollout: all devices go back to the stable pair. If none runs, they go back to the pair that
    /// was stable before.
    RollBack,
    /// Ends the rollout: the candidate is the stable pair now.
    Finish,
    /// Refuses a pair at once that was given up.
    Revoke {
        /// The pair.
        pair: ModelPair,
    },
}

/// Why a change is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// A rollout runs already.
    #[error("a rollout of {0} runs: finish it or roll it back first")]
    Running(ModelPair),
    /// No rollout runs.
    #[error("no rollout runs here")]
    NoRollout,
    /// The rollout is paused.
    #[error("the rollout is paused: resume it first")]
    Paused,
    /// The rollout is not paused.
    #[error("the rollout is not paused")]
    NotPaused,
    /// The candidate is what devices have.
    #[error("{0} is the stable pair already")]
    IsStable(ModelPair),
    /// There is nothing to go back to.
    #[error("no rollout runs, and no pair was stable before: there is nothing to go back to")]
    NothingBefore,
    /// A rollout is finished only when all devices should have it.
    #[error("the candidate is for {0} of the devices: give it to 100 % first")]
    NotForAll(Share),
    /// The pair is in use.
    #[error("{0} is the stable pair or the candidate: roll it back first")]
    InUse(ModelPair),
    /// Too many pairs were given up of late.
    #[error("{RETIRED_MAX} pairs were given up in the last {GRACE_S} s: wait, or revoke one")]
    TooMany,
    /// The pair is not allowed anyway.
    #[error("{0} is not allowed anyway")]
    NotAllowed(ModelPair),
}

impl Target {
    /// Makes the target of a class that had none.
    pub fn new(stable: ModelPair, now_s: u64) -> Self {
        Self { stable, stable_since_s: now_s, last_good: None, rollout: None, retired: Vec::new() }
    }

    /// Returns the target after a change.
    ///
    /// # Errors
    /// [`ChangeError`] says why it makes no sense now.
    pub fn changed(&self, change: &Change, now_s: u64) -> Result<Self, ChangeError> {
        let mut next = self.clone();
        next.retired.retain(|retired| now_s < retired.at_s.saturating_add(GRACE_S));
        match change {
            Change::Start { candidate, share, guard } => {
                next.start(candidate, *share, *guard, now_s)?;
            }
            Change::Share { share } => {
                let rollout = next.rollout.as_mut().ok_or(ChangeError::NoRollout)?;
                if rollout.is_paused {
                    return Err(ChangeError::Paused);
                }
                rollout.share = *share;
            }
            Change::Pause => {
                let rollout = next.rollout.as_mut().ok_or(ChangeError::NoRollout)?;
                if rollout.is_paused {
                    return Err(ChangeError::Paused);
                }
                rollout.is_paused = true;
            }
            Change::Resume => {
                let rollout = next.rollout.as_mut().ok_or(ChangeError::NoRollout)?;
                if !rollout.is_paused {
                    return Err(ChangeError::NotPaused);
                }
                (rollout.is_paused, rollout.paused_by_guard) = (false, false);
            }
            Change::RollBack => next.roll_back(now_s)?,
            Change::Finish => next.finish(now_s)?,
            Change::Revoke { pair } => next.revoke(pair)?,
        }
        Ok(next)
    }

    fn start(
        &mut self,
        candidate: &ModelPair,
        share: Share,
        guard: Guard,
        now_s: u64,
    ) -> Result<(), ChangeError> {
        if let Some(running) = &self.rollout {
            return Err(ChangeError::Running(running.candidate.clone()));
        }
        if *candidate == self.stable {
            return Err(ChangeError::IsStable(candidate.clone()));
        }
        self.rollout = Some(Rollout {
            candidate: candidate.clone(),
            share,
            is_paused: false,
            paused_by_guard: false,
            begun_s: now_s,
            guard,
        });
        Ok(())
    }

    fn roll_back(&mut self, now_s: u64) -> Result<(), ChangeError> {
        if let Some(rollout) = self.rollout.take() {
            return self.retire(rollout.candidate, now_s);
        }
        let before = self.last_good.take().ok_or(ChangeError::NothingBefore)?;
        let given_up = std::mem::replace(&mut self.stable, before);
        self.stable_since_s = now_s;
        self.retire(given_up, now_s)
    }

    fn finish(&mut self, now_s: u64) -> Result<(), ChangeError> {
        let rollout = self.rollout.take().ok_or(ChangeError::NoRollout)?;
        if rollout.is_paused {
            return Err(ChangeError::Paused);
        }
        if rollout.share < Share::ALL {
            return Err(ChangeError::NotForAll(rollout.share));
        }
        let before = std::mem::replace(&mut self.stable, rollout.candidate);
        // It was allowed as a candidate.
        self.stable_since_s = rollout.begun_s;
        self.last_good = Some(before.clone());
        self.retire(before, now_s)
    }

    fn revoke(&mut self, pair: &ModelPair) -> Result<(), ChangeError> {
        if self.is_in_use(pair) {
            return Err(ChangeError::InUse(pair.clone()));
        }
        let before = self.retired.len();
        self.retired.retain(|retired| retired.pair != *pair);
        if self.last_good.as_ref() == Some(pair) {
            self.last_good = None;
        } else if self.retired.len() == before {
            return Err(ChangeError::NotAllowed(pair.clone()));
        }
        Ok(())
    }

    fn retire(&mut self, pair: ModelPair, at_s: u64) -> Result<(), ChangeError> {
        self.retired.retain(|retired| retired.pair != pair);
        if self.retired.len() >= RETIRED_MAX {
            return Err(ChangeError::TooMany);
        }
        self.retired.push(Retired { pair, at_s });
        Ok(())
    }

    /// Returns the pair that a device should have. `active`: what it answers with; `failed`: pairs that it
    /// could not load.
    pub fn wanted(
        &self,
        device: &str,
        active: Option<&ModelPair>,
        failed: &[ModelPair],
        now_s: u64,
    ) -> &ModelPair {
        if let Some(rollout) = &self.rollout {
            let has_it = active == Some(&rollout.candidate);
            let gets_it = rollout.is_for(device) && (!rollout.is_paused || has_it);
            if gets_it && is_known(rollout.begun_s, now_s) && !failed.contains(&rollout.candidate) {
                return &rollout.candidate;
            }
        }
        // Until all replicas know of the stable pair, a device keeps what it has.
        let kept = self.retired.iter().map(|retired| &retired.pair).find(|pair| Some(*pair) == active);
        kept.filter(|_| !is_known(self.stable_since_s, now_s)).unwrap_or(&self.stable)
    }

    /// Returns whether a request with this pair is answered.
    pub fn allows(&self, pair: &ModelPair, now_s: u64) -> bool {
        self.is_in_use(pair) || self.retired_end(pair).is_some_and(|end| now_s < end)
    }

    /// Whether a pair is the stable one or the candidate.
    fn is_in_use(&self, pair: &ModelPair) -> bool {
        *pair == self.stable || self.rollout.as_ref().is_some_and(|rollout| rollout.candidate == *pair)
    }

    /// Returns until when a pair that was given up is allowed.
    fn retired_end(&self, pair: &ModelPair) -> Option<u64> {
        let retired = self.retired.iter().find(|retired| retired.pair == *pair)?;
        Some(retired.at_s.saturating_add(GRACE_S))
    }

    /// Returns for how long a device may ask with a pair; `None` if it may not, or not yet.
    pub fn lease(&self, pair: &ModelPair, now_s: u64) -> Option<Lease> {
        let is_known_stable = *pair == self.stable && is_known(self.stable_since_s, now_s);
        let is_candidate = |rollout: &Rollout| rollout.candidate == *pair && is_known(rollout.begun_s, now_s);
        let lease_s = if is_known_stable || self.rollout.as_ref().is_some_and(is_candidate) {
            LEASE_S
        } else {
            self.retired_end(pair)?.saturating_sub(now_s).saturating_sub(SETTLE_S).min(LEASE_S)
        };
        (lease_s > 0).then(|| Lease { pair: pair.clone(), lease_s })
    }

    /// Returns the change that the guard makes, if the reports ask for one. `has`: devices that answer with
    /// the candidate; `failed`: devices that could not load it.
    pub fn guarded(&self, has: u64, failed: u64) -> Option<Self> {
        let rollout = self.rollout.as_ref().filter(|rollout| !rollout.is_paused)?;
        let share = failed as f64 * f64::from(WHOLE) / (has + failed).max(1) as f64;
        let is_over = failed >= u64::from(rollout.guard.failed_least)
            && share > f64::from(u32::from(rollout.guard.failed_max));
        is_over.then(|| {
            let rollout = Rollout { is_paused: true, paused_by_guard: true, ..rollout.clone() };
            Self { rollout: Some(rollout), ..self.clone() }
        })
    }
}

impl Rollout {
    /// Returns whether a device is among those that get the candidate. A larger share has all devices of a
    /// smaller one.
    pub fn is_for(&self, device: &str) -> bool {
        // Each rollout takes other devices first.
        let digest = Digest::of(format!("{}\0{}\0{device}", self.candidate, self.begun_s).as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest.bytes()[..8]);
        let place = (u128::from(u64::from_be_bytes(first)) * u128::from(WHOLE)) >> 64;
        place < u128::from(self.share.0)
    }
}

/// Whether every replica knows of what began at this time. One that does not would refuse it.
fn is_known(begun_s: u64, now_s: u64) -> bool {
    now_s >= begun_s.saturating_add(SETTLE_S)
}

#[cfg(test)]
mod tests;
