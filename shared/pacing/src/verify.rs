//! Verification of the device's drafts by the cloud: how long a draft should be, and when it must be sent so
//! that the reader sees no gap.
//!
//! A reader takes one token each `tau`. What is verified and not yet shown is a buffer; it hides the round
//! trip. With acceptance `a` for each drafted token, a draft of `g` tokens brings
//! `E(a, g) = (1 - a^(g+1)) / (1 - a)` tokens on average (Leviathan et al. 2023, equation 1).

use crate::{CloudCost, DeviceCost};

/// The acceptance before anything is known.
const ACCEPTANCE_BEFORE: f64 = 0.8;
/// How many drafted tokens that guess is worth.
const WEIGHT_BEFORE: f64 = 8.0;
/// Older tokens lose this share of their weight with each new one.
const FORGET: f64 = 0.02;
/// The fixed cost of a request besides its pass, in milliseconds: HTTP, queue, and a row of the scheduler.
const REQUEST_MS: f64 = 10.0;
/// The share of a measured round trip that the next one is expected to take at most.
const TRIP_MARGIN: f64 = 1.25;

/// The share of drafted tokens that the cloud would have written too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    accepted: f64,
    judged: f64,
}

impl Default for Acceptance {
    fn default() -> Acceptance {
        Acceptance { accepted: ACCEPTANCE_BEFORE * WEIGHT_BEFORE, judged: WEIGHT_BEFORE }
    }
}

impl Acceptance {
    /// Takes the result of one draft: `accepted` of `drafted` tokens. Tokens behind the first wrong one are
    /// not judged.
    pub fn observe(&mut self, accepted: usize, drafted: usize) {
        let judged = accepted.min(drafted) + usize::from(accepted < drafted);
        for at in 0..judged {
            self.accepted = self.accepted * (1.0 - FORGET) + f64::from(u8::from(at < accepted));
            self.judged = self.judged * (1.0 - FORGET) + 1.0;
        }
    }

    /// Takes tokens that were all judged: `agreed` of `compared`.
    pub fn observe_all(&mut self, agreed: usize, compared: usize) {
        let agreed = agreed.min(compared);
        (0..agreed).for_each(|_| self.observe(1, 1));
        (agreed..compared).for_each(|_| self.observe(0, 1));
    }

    /// Returns the estimate, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.accepted / self.judged).clamp(0.0, 1.0)
    }
}

/// What a draft costs the cloud, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassCosts {
    /// A pass with one row.
    pub pass_ms: f64,
    /// Each further row.
    pub row_ms: f64,
}

impl PassCosts {
    /// Returns the time of a pass that checks so many drafted tokens. What is no number counts as nothing.
    fn check_ms(self, drafted: usize) -> f64 {
        let sane = |ms: f64| if ms.is_finite() { ms.max(0.0) } else { 0.0 };
        sane(self.pass_ms) + drafted as f64 * sane(self.row_ms)
    }
}

/// Returns the tokens that a draft of `drafted` brings on average, with the cloud's own one.
#[must_use]
pub fn expected_tokens(acceptance: f64, drafted: usize) -> f64 {
    (0..=drafted).map(|at| acceptance.clamp(0.0, 1.0).powi(i32::try_from(at).unwrap_or(i32::MAX))).sum()
}

/// Returns the length of a draft, from 1 to `most`, that costs the cloud least for each token of the answer.
/// Of equal ones the longest. Cost: `O(most^2)`.
#[must_use]
pub fn draft_tokens(acceptance: f64, costs: PassCosts, most: usize) -> usize {
    let cost = |drafted: usize| (REQUEST_MS + costs.check_ms(drafted)) / expected_tokens(acceptance, drafted);
    (1..=most.max(1)).rev().min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(1)
}

/// Returns the time in the cloud's slots for so many tokens that a device drafts and the cloud checks, in
/// drafts of the best length up to `most`.
#[must_use]
pub fn checks_ms(tokens: f64, acceptance: f64, costs: PassCosts, most: usize) -> f64 {
    let drafted = draft_tokens(acceptance, costs, most);
    tokens.max(0.0) * costs.check_ms(drafted) / expected_tokens(acceptance, drafted)
}

/// Returns the cost of a device whose drafts of `drafted` tokens are checked: its first token comes later, by
/// the first draft and its check.
#[must_use]
pub fn with_first_check(device: DeviceCost, cloud: &CloudCost, drafted: usize) -> DeviceCost {
    let check_ms = cloud.rtt_ms + cloud.decode_ms;
    let draft_ms = drafted as f64 * device.decode_ms;
    DeviceCost { decompress_ms: device.decompress_ms + draft_ms + check_ms, ..device }
}

/// What decides when a draft must be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Buffer {
    /// Time until everything that is verified is shown, in milliseconds; negative if the reader waits.
    pub left_ms: f64,
    /// The largest tolerable gap between shown tokens, in milliseconds.
    pub tau_ms: f64,
    /// Time from a request to its reply, in milliseconds.
    pub trip_ms: f64,
    /// Time that this device needs to write one more draft, in milliseconds.
    pub draft_ms: f64,
}

impl Buffer {
    /// Returns how long the next reply may take, in milliseconds.
    fn next_trip_ms(&self) -> f64 {
        TRIP_MARGIN * self.trip_ms.max(0.0)
    }

    /// Returns whether a request must be sent now, however short the draft is: one that is sent later would
    /// come back after the last verified token is shown.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.slack_ms() <= 0.0
    }

    /// Returns how long a request may still wait until it is urgent, in milliseconds.
    #[must_use]
    pub fn slack_ms(&self) -> f64 {
        self.left_ms - self.next_trip_ms() - self.tau_ms
    }

    /// Returns how many tokens a request must bring that is sent now, at least 1. Then the request behind it
    /// comes back in time too, even if nothing of this draft is accepted.
    #[must_use]
    pub fn least_tokens(&self) -> usize {
        let two_trips = 2.0 * self.next_trip_ms() + self.draft_ms.max(0.0) + self.tau_ms;
        let missing = (two_trips - self.left_ms) / self.tau_ms.max(1.0);
        if missing.is_finite() { missing.ceil().max(1.0) as usize } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws drafts and counts: the average number of tokens that one brings.
    fn drawn(acceptance: f64, drafted: usize) -> f64 {
        let mut state = 7_u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let rounds = 200_000;
        let total: usize =
            (0..rounds).map(|_| 1 + (0..drafted).take_while(|_| unit() < acceptance).count()).sum();
        total as f64 / f64::from(rounds)
    }

    #[test]
    fn checked_tokens_cost_less_than_written_ones_if_most_drafts_are_right() {
        let costs = PassCosts { pass_ms: 20.0, row_ms: 1.0 };
        let written = 100.0 * costs.pass_ms;
        // A pass of 8 drafted tokens takes 28 ms and brings 9.
        assert!((checks_ms(100.0, 1.0, costs, 8) - 100.0 * 28.0 / 9.0).abs() < 1e-9);
        assert!(checks_ms(100.0, 0.8, costs, 8) < 0.5 * written);
        assert!(checks_ms(100.0, 0.0, costs, 8) >= written, "every pass brings one token");
        assert_eq!(checks_ms(0.0, 0.8, costs, 8), 0.0);
    }

    #[test]
    fn expected_tokens_are_those_of_drawn_drafts() {
        for (acceptance, drafted) in [(0.0, 4), (0.5, 1), (0.8, 8), (0.95, 8), (1.0, 5)] {
            let (want, have) = (drawn(acceptance, drafted), expected_tokens(acceptance, drafted));
            assert!((want - have).abs() < 0.02, "a {acceptance}, g {drafted}: drawn {want}, {have}");
        }
    }

    #[test]
    fn a_draft_is_as_long_as_its_acceptance_is_worth() {
        let costs = PassCosts { pass_ms: 20.0, row_ms: 1.0 };
        assert_eq!(draft_tokens(1.0, costs, 8), 8);
        assert!(draft_tokens(0.8, costs, 32) >= 7, "four tokens for each pass");
        assert_eq!(draft_tokens(0.0, costs, 8), 1);
        let dear = PassCosts { pass_ms: 20.0, row_ms: 5.0 };
        assert!(draft_tokens(0.5, dear, 8) < draft_tokens(0.9, dear, 8));
        for acceptance in [0.0, 0.3, 0.8, 1.0, f64::NAN] {
            let chosen = draft_tokens(acceptance, PassCosts { pass_ms: f64::NAN, row_ms: -1.0 }, 0);
            assert_eq!(chosen, 1);
        }
    }

    #[test]
    fn acceptance_follows_what_is_judged() {
        let mut acceptance = Acceptance::default();
        assert_eq!(acceptance.share(), ACCEPTANCE_BEFORE);
        (0..100).for_each(|_| acceptance.observe(8, 8));
        assert!(acceptance.share() > 0.97);
        (0..400).for_each(|_| acceptance.observe(0, 8));
        assert!(acceptance.share() < 0.03);
        let before = acceptance;
        acceptance.observe(0, 0);
        assert_eq!(acceptance, before, "an empty draft says nothing");
    }

    /// A reader and a line in virtual time, with the worst drafts: nothing is ever accepted.
    fn worst_gap(trip_ms: f64, first: usize, tau_ms: f64) -> f64 {
        let (draft_ms, mut now, mut verified) = (40.0, 0.0, first);
        let shown_at = |index: usize| index as f64 * tau_ms;
        let mut worst = 0.0_f64;
        for _ in 0..200 {
            let left_ms = shown_at(verified) - now;
            let buffer = Buffer { left_ms, tau_ms, trip_ms, draft_ms };
            if !buffer.is_urgent() {
                now += tau_ms / 10.0;
                continue;
            }
            let least = buffer.least_tokens();
            now += trip_ms;
            worst = worst.max(now - shown_at(verified));
            verified += least;
        }
        worst
    }

    #[test]
    fn the_reader_never_waits_if_the_first_buffer_covers_two_round_trips() {
        for trip_ms in [20.0, 100.0, 200.0, 300.0] {
            assert!(worst_gap(trip_ms, 10, 100.0) <= 0.0, "a round trip of {trip_ms} ms");
        }
    }

    #[test]
    fn no_number_from_outside_breaks_the_rule() {
        for left_ms in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -5.0] {
            let buffer = Buffer { left_ms, tau_ms: 0.0, trip_ms: f64::NAN, draft_ms: -1.0 };
            assert!(buffer.least_tokens() >= 1);
        }
    }
}
