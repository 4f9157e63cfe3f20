//! Decides how many tokens to propose: the number with the most tokens per second, or none.
//!
//! If one proposed token is accepted with probability `a`, a step with `k` of them writes
//! `(1 - a^(k+1)) / (1 - a)` tokens on average (Leviathan 2023, eq. 1) and takes `c(k)`. The controller keeps
//! a decaying estimate of `a` and of every `c(k)`. It takes the `k` with the most tokens per time, or none if
//! plain decoding is faster. Then it tries again after a pause that doubles while trying does not help. From
//! time to time it decodes plainly, to measure plain decoding.
//!
//! Pure: a function of its observations; reads no clock.

/// The most tokens proposed in one step.
pub const K_MAX: usize = 8;
/// The cost of one more proposed token until it is measured, as a share of a plain step. Checking is limited
/// by reading the weights.
pub(super) const LOOKUP_SLOPE: f64 = 0.1;
/// The same if a draft model of a quarter of the size proposes it.
pub(super) const DRAFT_SLOPE: f64 = 0.35;
/// About how many proposed tokens the estimate of the acceptance remembers.
const REMEMBERED: f64 = 32.0;
/// Weight of a new duration.
const NEW_SHARE: f64 = 0.2;
/// The least gain at which proposing is worth it.
const GAIN_MIN: f64 = 1.02;
/// Tokens proposed to test whether it pays off now.
const TRY_K: usize = 2;
/// Number of plain steps at the beginning, and how often a plain step follows later, to measure plain
/// decoding.
const PLAIN_FIRST: u64 = 2;
const PLAIN_EVERY: u64 = 64;
/// Bounds of the number of steps between tries.
const PAUSE_MIN: usize = 16;
const PAUSE_MAX: usize = 256;

/// When tokens are proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// While it is faster than plain decoding, with a test from time to time.
    WhenItPays,
    /// In every step: at least [`TRY_K`] tokens.
    Always,
}

/// Statistics of proposing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpeculationStats {
    /// Decoding steps.
    pub steps: u64,
    /// Steps that held proposals.
    pub speculative_steps: u64,
    /// Tokens proposed.
    pub proposed: u64,
    /// Of these, tokens that the model wrote.
    pub accepted: u64,
    /// Tokens written.
    pub written: u64,
    /// Tokens written in steps whose time is known.
    pub timed: u64,
    /// Time of these steps, in milliseconds.
    pub spent_ms: f64,
    /// Estimated milliseconds of these steps one token at a time; counted once a plain step was timed.
    pub plain_ms: f64,
}

impl SpeculationStats {
    /// Returns the share of proposed tokens that were right.
    pub fn acceptance(&self) -> Option<f64> {
        (self.proposed > 0).then(|| self.accepted as f64 / self.proposed as f64)
    }

    /// Returns the time of plain decoding for the same tokens divided by the time taken.
    pub fn speed_up(&self) -> Option<f64> {
        (self.spent_ms > 0.0 && self.plain_ms > 0.0).then(|| self.plain_ms / self.spent_ms)
    }

    /// Returns the difference to `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            steps: self.steps - before.steps,
            speculative_steps: self.speculative_steps - before.speculative_steps,
            proposed: self.proposed - before.proposed,
            accepted: self.accepted - before.accepted,
            written: self.written - before.written,
            timed: self.timed - before.timed,
            spent_ms: self.spent_ms - before.spent_ms,
            plain_ms: self.plain_ms - before.plain_ms,
        }
    }
}

/// Chooses how many tokens to propose.
#[derive(Debug, Clone)]
pub struct Controller {
    policy: Policy,
    slope: f64,
    /// Decaying counts of proposed tokens that were checked, and that were right.
    tried: f64,
    right: f64,
    /// Milliseconds by number of proposed tokens.
    took: [Option<f64>; K_MAX + 1],
    /// Steps until the next try, and the length of the next pause.
    rest: usize,
    pause: usize,
    stats: SpeculationStats,
}

impl Controller {
    /// Returns a controller without observations. It assumes that every second proposal is right and that
    /// each costs `slope` plain steps.
    pub fn new(policy: Policy, slope: f64) -> Self {
        Self {
            policy,
            slope,
            tried: 0.0,
            right: 0.0,
            took: [None; K_MAX + 1],
            rest: 0,
            pause: PAUSE_MIN,
            stats: SpeculationStats::default(),
        }
    }

    /// Returns how many tokens to propose now; 0 means plain decoding.
    pub fn proposals(&self) -> usize {
        let (k, gain) = self.best();
        let steps = self.stats.steps;
        match self.policy {
            Policy::Always => k.max(TRY_K),
            Policy::WhenItPays if steps < PLAIN_FIRST || steps.is_multiple_of(PLAIN_EVERY) => 0,
            Policy::WhenItPays if gain >= GAIN_MIN => k,
            Policy::WhenItPays if self.rest == 0 => TRY_K,
            Policy::WhenItPays => 0,
        }
    }

    /// Records a step; see [`super::Speculator::observe`].
    pub fn observe(&mut self, proposed: usize, accepted: usize, written: usize) {
        self.stats.steps += 1;
        self.stats.written += written as u64;
        if proposed == 0 {
            self.rest = self.rest.saturating_sub(1);
            return;
        }
        self.stats.speculative_steps += 1;
        self.stats.proposed += proposed as u64;
        self.stats.accepted += accepted as u64;
        // Tokens after the first wrong one carry no information.
        let tried = proposed.min(accepted + 1) as f64;
        let keep = (1.0 - tried / REMEMBERED).max(0.0);
        self.tried = self.tried * keep + tried;
        self.right = self.right * keep + accepted as f64;
        if self.best().1 >= GAIN_MIN {
            (self.rest, self.pause) = (0, PAUSE_MIN);
        } else if accepted < proposed {
            self.rest = self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// Records the duration of a step; see [`super::Speculator::took`].
    pub fn took(&mut self, proposed: usize, written: usize, ms: f64) {
        if !(ms.is_finite() && ms > 0.0) {
            return;
        }
        let mean = &mut self.took[proposed.min(K_MAX)];
        *mean = Some(mean.map_or(ms, |old| old + NEW_SHARE * (ms - old)));
        if let Some(plain_ms) = self.took[0] {
            self.stats.timed += written as u64;
            self.stats.spent_ms += ms;
            self.stats.plain_ms += plain_ms * written as f64;
        }
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> SpeculationStats {
        self.stats
    }

    /// Returns the estimated share of proposed tokens that are right.
    fn acceptance(&self) -> f64 {
        ((self.right + 1.0) / (self.tried + 2.0)).min(0.99)
    }

    /// Returns the best number of proposed tokens, and its tokens per time as a multiple of plain decoding's.
    fn best(&self) -> (usize, f64) {
        let a = self.acceptance();
        let gain = |k: usize| (1.0 - a.powi(k as i32 + 1)) / (1.0 - a) / self.cost(k);
        (1..=K_MAX)
            .map(|k| (k, gain(k)))
            .fold((1, 0.0), |best, next| if next.1 > best.1 { next } else { best })
    }

    /// Returns `c(k)` in plain steps: as measured, else on the line through the measured neighbours.
    fn cost(&self, k: usize) -> f64 {
        let Some(plain) = self.took[0] else { return 1.0 + self.slope * k as f64 };
        let ratio = |k: usize| self.took[k].map(|ms| (k, (ms / plain).max(1.0)));
        if let Some((_, cost)) = ratio(k) {
            return cost;
        }
        let below = (0..k).rev().find_map(ratio).unwrap_or((0, 1.0));
        match (k + 1..=K_MAX).find_map(ratio) {
            Some(above) => {
                let share = (k - below.0) as f64 / (above.0 - below.0) as f64;
                below.1 + share * (above.1 - below.1)
            }
            None => below.1 + self.slope * (k - below.0) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the next proposed token is right, for a share of them spread evenly.
    fn stream(share: f64) -> impl FnMut() -> bool {
        let mut sum = 0.0;
        move || {
            sum += share;
            let right = sum >= 1.0;
            sum -= f64::from(u8::from(right));
            right
        }
    }

    /// Runs `steps` steps on a machine where each proposed token costs `slope` plain steps of 10 ms.
    fn run(controller: &mut Controller, steps: usize, share: f64, slope: f64) -> SpeculationStats {
        let before = controller.stats();
        let mut right = stream(share);
        for _ in 0..steps {
            let k = controller.proposals();
            let accepted = (0..k).take_while(|_| right()).count();
            controller.observe(k, accepted, accepted + 1);
            controller.took(k, accepted + 1, 10.0 * (1.0 + slope * k as f64));
        }
        controller.stats().since(&before)
    }

    #[test]
    fn what_is_mostly_right_is_proposed_long() {
        let mut controller = Controller::new(Policy::WhenItPays, LOOKUP_SLOPE);
        run(&mut controller, 50, 0.9, 0.1);
        let stats = run(&mut controller, 500, 0.9, 0.1);
        assert!(controller.proposals() >= 4, "{}", controller.proposals());
        assert!(stats.speed_up().unwrap() > 2.0, "{stats:?}");
        assert!((stats.acceptance().unwrap() - 0.66).abs() < 0.2, "{stats:?}");
    }

    #[test]
    fn what_is_mostly_wrong_is_switched_off() {
        for (share, slope) in [(0.05, 0.1), (0.3, 0.6), (0.6, 1.5), (0.0, 0.05)] {
            let mut controller = Controller::new(Policy::WhenItPays, LOOKUP_SLOPE);
            run(&mut controller, 300, share, slope);
            let stats = run(&mut controller, 2000, share, slope);
            let tries = stats.speculative_steps as f64 / stats.steps as f64;
            assert!(tries < 0.02, "share {share}, slope {slope}: {stats:?}");
            assert!(stats.speed_up().unwrap() > 0.98, "share {share}, slope {slope}: {stats:?}");
        }
    }

    #[test]
    fn it_comes_back_when_it_pays_again() {
        let mut controller = Controller::new(Policy::WhenItPays, LOOKUP_SLOPE);
        run(&mut controller, 2000, 0.02, 0.1);
        run(&mut controller, 2 * PAUSE_MAX, 0.95, 0.1);
        let stats = run(&mut controller, 200, 0.95, 0.1);
        assert!(stats.speed_up().unwrap() > 2.0, "{stats:?}");
    }

    #[test]
    fn one_of_the_two_always_proposes() {
        let mut controller = Controller::new(Policy::Always, DRAFT_SLOPE);
        let stats = run(&mut controller, 300, 0.0, 2.0);
        assert_eq!(stats.steps, stats.speculative_steps);
        assert_eq!((stats.accepted, stats.written), (0, 300));
    }

    #[test]
    fn measured_costs_are_believed_and_lines_drawn_between_them() {
        let mut controller = Controller::new(Policy::WhenItPays, 0.1);
        assert_eq!((controller.cost(0), controller.cost(4)), (1.0, 1.4));
        controller.took(0, 1, 10.0);
        controller.took(2, 1, 20.0);
        controller.took(6, 1, 40.0);
        for (k, want) in [(0, 1.0), (1, 1.5), (2, 2.0), (4, 3.0), (6, 4.0), (8, 4.2)] {
            assert!((controller.cost(k) - want).abs() < 1e-9, "{k}: {}", controller.cost(k));
        }
        controller.took(2, 1, f64::NAN);
        controller.took(2, 1, 0.0);
        assert_eq!(controller.cost(2), 2.0);
        assert_eq!(SpeculationStats::default().speed_up(), None);
        assert_eq!(SpeculationStats::default().acceptance(), None);
    }
}
