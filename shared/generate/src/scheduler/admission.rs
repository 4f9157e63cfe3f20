//! Admission: how many requests may wait, which deadlines cannot be met, and how much load lowers L.
//!
//! The measure is time: the waiting prompt tokens, at the rate at which prompts were recently computed *while
//! everything else ran* ([`DrainRate`]). So slots held by long answers count as well as prompts. Counts and
//! bytes are extra limits for what time does not cover: the first requests after the start, and memory. Pure:
//! time is passed in. Always: a request is accepted if nothing waits before it, however long its prompt is.

use std::time::Duration;

use baton_pacing::under_load;

use super::fair::Standing;
use super::{JobSpec, Limits, Refusal};

/// Time constant of the measured rate, in seconds: in this time, the weight of a measurement falls to 1/e.
const MEMORY_S: f64 = 10.0;
/// Weight of the rate of prefill alone, in prompt tokens, against tokens measured under load.
const PRIOR_TOKENS: f64 = 512.0;
/// Share of the queue's bound above which L is lowered.
const LOAD_BEGINS: f64 = 0.25;
/// Share of the queue's bound above which L is the scene's floor.
const LOAD_FULL: f64 = 0.75;

/// Limits of the queue besides the number of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BacklogBound {
    /// The most prefill that may wait, as the time that it will take.
    pub wait: Duration,
    /// The most bytes of waiting requests.
    pub bytes: usize,
}

impl BacklogBound {
    /// Only the number of requests bounds the queue.
    pub const NONE: BacklogBound = BacklogBound { wait: Duration::MAX, bytes: usize::MAX };
}

impl Default for BacklogBound {
    /// 30 s of prompts, 256 MiB.
    fn default() -> BacklogBound {
        BacklogBound { wait: Duration::from_secs(30), bytes: 256 << 20 }
    }
}

/// Which bound of the queue is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueueLimit {
    /// The number of waiting requests.
    Requests(usize),
    /// The bytes of waiting requests.
    Bytes(usize),
    /// The time that waiting prompts will take.
    Wait(Duration),
}

impl std::fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QueueLimit::Requests(requests) => write!(f, "{requests} waiting requests"),
            QueueLimit::Bytes(bytes) => write!(f, "{bytes} bytes of waiting requests"),
            QueueLimit::Wait(wait) => write!(f, "{} s of waiting prompts", wait.as_secs_f64()),
        }
    }
}

/// The work before a new request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    /// Requests that wait.
    pub(super) waiting: usize,
    /// Their bytes.
    pub(super) bytes: usize,
    /// Prompt tokens that are not computed yet, of waiting and of running requests.
    pub(super) tokens: usize,
    /// Time to compute a waiting prompt token, in milliseconds; `None` before the first pass.
    pub(super) drain_ms: Option<f64>,
    /// Time to compute a prompt token if nothing else runs, in milliseconds; `None` before the first pass.
    pub(super) alone_ms: Option<f64>,
}

impl Ahead {
    /// Returns the time to compute all waiting prompt tokens; `None` before the first pass.
    pub(super) fn wait_ms(&self) -> Option<f64> {
        self.drain_ms.map(|ms| ms * self.tokens as f64)
    }

    /// Returns the refusal of a new request if it exceeds any bound.
    ///
    /// If other tenants have requests, a tenant's prompts may fill only its share of the time. A tenant with
    /// nothing waiting and nothing running is admitted even if others have filled the queue.
    pub(super) fn admit(
        &self,
        spec: &JobSpec,
        standing: Standing,
        limits: &Limits,
        now: Duration,
    ) -> Result<(), Refusal> {
        let wait_ms = self.wait_ms().unwrap_or_default();
        // Before the first measured pass the time is unknown: ask the client to retry soon, but not at once.
        let place_ms = if wait_ms > 0.0 { wait_ms / self.waiting.max(1) as f64 } else { 1000.0 };
        let full = |limit, retry_after_ms: f64| {
            Err(Refusal::Full {
                limit,
                waiting: self.waiting,
                backlog_tokens: self.tokens,
                backlog: millis(wait_ms),
                retry_after: millis(retry_after_ms),
            })
        };
        if !standing.has_room {
            return full(QueueLimit::Requests(limits.queue), place_ms);
        }
        if self.waiting > 0 && self.bytes.saturating_add(spec.bytes) > limits.backlog.bytes {
            return full(QueueLimit::Bytes(limits.backlog.bytes), place_ms);
        }
        let with_own_ms = wait_ms + self.drain_ms.unwrap_or_default() * spec.prompt_tokens as f64;
        let bound_ms = limits.backlog.wait.as_secs_f64() * 1e3;
        if self.tokens > 0 && !standing.newcomer && with_own_ms > bound_ms {
            return full(QueueLimit::Wait(limits.backlog.wait), with_own_ms - bound_ms);
        }
        let tenant_ms = self.drain_ms.unwrap_or_default() * (standing.tokens + spec.prompt_tokens) as f64;
        let share_ms = bound_ms * standing.of_all;
        if standing.tokens > 0 && tenant_ms > share_ms {
            return full(QueueLimit::Wait(limits.backlog.wait), tenant_ms - share_ms);
        }
        let Some(deadline) = spec.deadline else { return Ok(()) };
        let first_ms = wait_ms + self.alone_ms.unwrap_or_default() * spec.prompt_tokens as f64;
        let left_ms = deadline.saturating_sub(now).as_secs_f64() * 1e3;
        if first_ms <= left_ms && left_ms > 0.0 {
            return Ok(());
        }
        Err(Refusal::Late {
            first: millis(first_ms),
            left: millis(left_ms),
            // A deadline that an idle machine cannot meet will not be met later either; the client may still
            // set a longer one.
            retry_after: millis((first_ms - left_ms).min(wait_ms)),
        })
    }
}

/// Returns how much the queue lowers L, from 0 (not at all) to 1 (to every scene's floor). It rises linearly
/// while the backlog grows from a quarter of its bound to three quarters.
///
/// Under load, requests wait for slots as well as for prompts. A slot that writes fewer tokens is free
/// earlier. N slots serve `1 / (P + L s_N / N)` requests per second, so a lower L shortens every wait behind
/// it.
pub fn load(backlog_ms: f64, bound_ms: f64) -> f64 {
    let share = if bound_ms > 0.0 { backlog_ms / bound_ms } else { 0.0 };
    ((share - LOAD_BEGINS) / (LOAD_FULL - LOAD_BEGINS)).clamp(0.0, 1.0)
}

/// Returns the cap of a request that gets its slot under this load.
pub(super) fn lowered(spec: &JobSpec, load: f64) -> usize {
    let tokens = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let kept = under_load(tokens(spec.max_tokens), tokens(spec.floor_tokens), load);
    spec.max_tokens.min(kept as usize)
}

fn millis(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms.max(0.0) / 1e3).unwrap_or(Duration::MAX)
}

/// The rate at which waiting prompts are computed while everything else runs; old measurements fade within
/// seconds.
#[derive(Debug, Default)]
pub(super) struct DrainRate {
    ms: f64,
    tokens: f64,
    at: Duration,
}

impl DrainRate {
    /// Records a pass that ran while prompts waited; it may have contained none of them.
    pub(super) fn record(&mut self, took: Duration, tokens: usize, now: Duration) {
        let keep = self.kept(now);
        self.ms = self.ms * keep + took.as_secs_f64() * 1e3;
        self.tokens = self.tokens * keep + tokens as f64;
        self.at = now;
    }

    /// Returns the time that a waiting token takes, in milliseconds. `alone_ms` is its time if nothing else
    /// runs; it counts more, the longer nothing was measured.
    pub(super) fn ms_per_token(&self, alone_ms: Option<f64>, now: Duration) -> Option<f64> {
        let keep = self.kept(now);
        let (ms, tokens) = (self.ms * keep, self.tokens * keep);
        match alone_ms {
            Some(alone_ms) => Some((ms + alone_ms * PRIOR_TOKENS) / (tokens + PRIOR_TOKENS)),
            None => (self.tokens > 0.0).then(|| self.ms / self.tokens),
        }
    }

    fn kept(&self, now: Duration) -> f64 {
        (-now.saturating_sub(self.at).as_secs_f64() / MEMORY_S).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_what_else_runs_and_forgets() {
        let at = Duration::from_secs;
        let mut rate = DrainRate::default();
        assert_eq!(rate.ms_per_token(None, at(0)), None);
        assert_eq!(rate.ms_per_token(Some(2.0), at(0)), Some(2.0));
        // Half of the time is spent on answers.
        for _ in 0..1000 {
            rate.record(Duration::from_millis(256), 64, at(1));
        }
        let busy = rate.ms_per_token(Some(2.0), at(1)).unwrap();
        assert!((3.9..=4.0).contains(&busy), "{busy}");
        assert_eq!(rate.ms_per_token(None, at(1)), Some(4.0));
        let later = rate.ms_per_token(Some(2.0), at(200)).unwrap();
        assert!((2.0..2.01).contains(&later), "{later}");
    }

    #[test]
    fn load_rises_between_its_shares() {
        for (backlog_ms, want) in [(0.0, 0.0), (250.0, 0.0), (500.0, 0.5), (750.0, 1.0), (2000.0, 1.0)] {
            assert_eq!(load(backlog_ms, 1000.0), want, "{backlog_ms}");
        }
        assert_eq!(load(500.0, 0.0), 0.0);
        assert_eq!(load(500.0, f64::INFINITY), 0.0);
    }
}
