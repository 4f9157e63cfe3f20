//! How many tokens to propose to each answer of a pass: those with the most tokens per second, or none.
//!
//! Let `a` be the probability that one proposed token of an answer is accepted. A pass with `k` of them
//! writes `(1 - a^(k+1)) / (1 - a)` of its tokens on average (Leviathan 2023, eq. 1). A pass of `b` answers
//! with `K` proposed tokens takes `c(b, K)` plain passes. [`Proposing`] keeps a decaying estimate of `a`
//! for each answer and of every `c(b, K)`. It takes the numbers with the most tokens per time, or none if
//! plain decoding is faster. Then it tries again with one answer at a time, after pauses that double while
//! trying does not help. From time to time a pass is plain, to measure plain decoding.
//!
//! Pure: a function of its observations; reads no clock. Always: as many tokens in a pass as the limits and
//! the free blocks allow, or fewer.

use crate::speculation::{K_MAX, Policy, SpeculationLimits};

/// About how many proposed tokens the estimate of the acceptance remembers.
const REMEMBERED: f64 = 32.0;
/// Weight of a new duration.
const NEW_SHARE: f64 = 0.2;
/// The least gain at which proposing is worth it.
const GAIN_MIN: f64 = 1.02;
/// The longest pass beside other answers, in plain passes.
const STALL_MAX: f64 = 2.0;
/// Tokens proposed to test whether it pays off now.
const TRY_K: usize = 2;
/// Number of plain passes at the beginning, and how often a plain pass follows later, for each number of
/// answers.
const PLAIN_FIRST: u64 = 2;
const PLAIN_EVERY: u64 = 64;
/// Bounds of the number of passes between tries of one answer.
const PAUSE_MIN: usize = 16;
const PAUSE_MAX: usize = 256;

/// How often proposals of one answer were right, and when to try again.
#[derive(Debug, Clone)]
pub(super) struct Acceptance {
    /// Decaying counts of proposed tokens that were checked, and that were right.
    tried: f64,
    right: f64,
    /// Passes until the next try, and the length of the next pause.
    rest: usize,
    pause: usize,
}

impl Acceptance {
    /// Nothing is known: every second proposal is expected to be right.
    fn new() -> Acceptance {
        Acceptance { tried: 0.0, right: 0.0, rest: 0, pause: PAUSE_MIN }
    }

    /// Returns the estimated share of proposed tokens that are right.
    fn share(&self) -> f64 {
        ((self.right + 1.0) / (self.tried + 2.0)).min(0.99)
    }

    fn count(&mut self, proposed: usize, accepted: usize) {
        // Tokens after the first wrong one carry no information.
        let tried = proposed.min(accepted + 1) as f64;
        let keep = (1.0 - tried / REMEMBERED).max(0.0);
        self.tried = self.tried * keep + tried;
        self.right = self.right * keep + accepted as f64;
    }

    fn rested(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    fn pays(&mut self) {
        (self.rest, self.pause) = (0, PAUSE_MIN);
    }

    fn pauses(&mut self) {
        self.rest = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// An answer that could get proposals.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) acceptance: &'a Acceptance,
    /// Order of arrival.
    pub(super) arrival: u64,
    /// The most tokens that may be proposed to it.
    pub(super) most: usize,
    /// Of these, how many need no further block.
    pub(super) in_block: usize,
}

/// Blocks that proposals may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spare {
    pub(super) blocks: usize,
    /// Tokens of one block.
    pub(super) block: usize,
}

impl Spare {
    fn holds(self, answers: &[Candidate<'_>], numbers: &[usize]) -> bool {
        let need =
            |(answer, &k): (&Candidate<'_>, &usize)| k.saturating_sub(answer.in_block).div_ceil(self.block);
        answers.iter().zip(numbers).map(need).sum::<usize>() <= self.blocks
    }
}

/// Chooses how many tokens to propose.
#[derive(Debug)]
pub(super) struct Proposing {
    limits: SpeculationLimits,
    /// Milliseconds of a pass, by answers (less one) and by proposed tokens.
    took: Vec<Vec<Option<f64>>>,
    /// Passes that only decode, by answers (less one).
    passes: Vec<u64>,
    /// What is known of all answers; new ones begin with it.
    shared: Acceptance,
    /// Passes until any answer may try again after a try that failed.
    quiet: usize,
    /// Arrival of the answer that tried last.
    last_tried: Option<u64>,
    /// Tokens proposed, and accepted.
    pub(super) totals: (u64, u64),
}

impl Proposing {
    /// Returns a state without observations.
    pub(super) fn new(limits: SpeculationLimits) -> Proposing {
        Proposing {
            limits,
            took: vec![vec![None; limits.proposed_max + 1]; limits.batch_max],
            passes: vec![0; limits.batch_max],
            shared: Acceptance::new(),
            quiet: 0,
            last_tried: None,
            totals: (0, 0),
        }
    }

    /// Returns what a new answer begins with.
    pub(super) fn begin(&self) -> Acceptance {
        self.shared.clone()
    }

    /// Returns how many tokens to propose at most to each answer of a pass that only decodes. `tries`:
    /// whether tokens may be proposed that are not known to pay off.
    pub(super) fn plan(&mut self, answers: &[Candidate<'_>], spare: Spare, tries: bool) -> Vec<usize> {
        let none = vec![0; answers.len()];
        let Some(passes) = answers.len().checked_sub(1).and_then(|at| self.passes.get(at)).copied() else {
            return none;
        };
        let (best, gain) = self.allot(answers, spare);
        match self.limits.policy {
            Policy::Always => self.at_least_a_try(best, answers, spare),
            Policy::WhenItPays if passes < PLAIN_FIRST || passes.is_multiple_of(PLAIN_EVERY) => none,
            Policy::WhenItPays if gain >= GAIN_MIN => best,
            Policy::WhenItPays if tries && self.quiet == 0 => self.one_try(none, answers, spare),
            Policy::WhenItPays => none,
        }
    }

    /// Records what a pass of `batch` answers showed about one of them.
    pub(super) fn observe(&mut self, batch: usize, own: &mut Acceptance, proposed: usize, accepted: usize) {
        self.totals.0 += proposed as u64;
        self.totals.1 += accepted as u64;
        if proposed == 0 {
            own.rested();
            return;
        }
        own.count(proposed, accepted);
        self.shared.count(proposed, accepted);
        let (own_pays, shared_pays) = (self.pays(own, batch), self.pays(&self.shared, batch));
        let wrong = accepted < proposed;
        match (own_pays, wrong) {
            (true, _) => own.pays(),
            (false, true) => own.pauses(),
            (false, false) => (),
        }
        match (shared_pays, wrong) {
            (true, _) => self.shared.pays(),
            (false, true) => self.shared.pauses(),
            (false, false) => (),
        }
        match (own_pays, wrong) {
            (true, _) if batch == 1 => self.quiet = 0,
            (false, true) => self.quiet = PAUSE_MIN,
            _ => (),
        }
    }

    /// Records that a pass that only decodes begins to be observed: `proposed` tokens in all.
    pub(super) fn begin_pass(&mut self, batch: usize, proposed: usize) {
        if let Some(passes) = batch.checked_sub(1).and_then(|at| self.passes.get_mut(at)) {
            *passes += 1;
        }
        self.quiet = self.quiet.saturating_sub(1);
        if proposed == 0 {
            self.shared.rested();
        }
    }

    /// Records how long the pass took in milliseconds, proposing included. Returns the time of a plain pass
    /// of as many answers, if it is known and the time is usable.
    pub(super) fn took(&mut self, batch: usize, proposed: usize, ms: f64) -> Option<f64> {
        let row = batch.checked_sub(1).and_then(|at| self.took.get_mut(at))?;
        if !(ms.is_finite() && ms > 0.0) {
            return None;
        }
        let mean = row.get_mut(proposed)?;
        *mean = Some(mean.map_or(ms, |old| old + NEW_SHARE * (ms - old)));
        row[0]
    }

    /// Returns the best numbers of proposed tokens, and their tokens per time as a multiple of plain
    /// decoding's. For a given sum the next token goes to the answer for which it is most likely right.
    fn allot(&self, answers: &[Candidate<'_>], spare: Spare) -> (Vec<usize>, f64) {
        let batch = answers.len();
        let shares: Vec<f64> = answers.iter().map(|answer| answer.acceptance.share()).collect();
        let mut numbers = vec![0; batch];
        let mut written = vec![1.0; batch];
        let mut best = (numbers.clone(), 0.0);
        for sum in 1..=self.limits.proposed_max {
            let mut next: Option<(usize, f64)> = None;
            for at in 0..batch {
                let likely = shares[at].powi(numbers[at] as i32 + 1);
                if next.is_none_or(|(_, most)| likely > most) && grows(&mut numbers, at, answers, spare) {
                    next = Some((at, likely));
                }
            }
            let Some((at, _)) = next else { break };
            numbers[at] += 1;
            written[at] = expected(shares[at], numbers[at]);
            let cost = self.cost(batch, sum);
            if batch > 1 && cost > STALL_MAX {
                continue;
            }
            let gain = written.iter().sum::<f64>() / (batch as f64 * cost);
            if gain > best.1 {
                best = (numbers.clone(), gain);
            }
        }
        best
    }

    /// Raises every number to that of a try, as far as there is room.
    fn at_least_a_try(&self, mut numbers: Vec<usize>, answers: &[Candidate<'_>], spare: Spare) -> Vec<usize> {
        for at in 0..numbers.len() {
            while numbers[at] < TRY_K
                && numbers.iter().sum::<usize>() < self.limits.proposed_max
                && grows(&mut numbers, at, answers, spare)
            {
                numbers[at] += 1;
            }
        }
        numbers
    }

    /// Lets one answer try whose pause is over, each in its turn.
    fn one_try(&mut self, mut numbers: Vec<usize>, answers: &[Candidate<'_>], spare: Spare) -> Vec<usize> {
        let batch = answers.len();
        if batch > 1 && self.cost(batch, TRY_K) > STALL_MAX {
            return numbers;
        }
        let may = |answer: &Candidate<'_>| answer.acceptance.rest == 0 && answer.most > 0;
        let behind = |answer: &Candidate<'_>| self.last_tried.is_none_or(|last| answer.arrival > last);
        let next = answers.iter().position(|answer| may(answer) && behind(answer));
        let Some(at) = next.or_else(|| answers.iter().position(may)) else { return numbers };
        self.last_tried = Some(answers[at].arrival);
        let tokens = TRY_K.min(self.limits.proposed_max);
        while numbers[at] < tokens && grows(&mut numbers, at, answers, spare) {
            numbers[at] += 1;
        }
        numbers
    }

    /// Returns whether proposing to an answer pays off beside others that get no proposals.
    fn pays(&self, acceptance: &Acceptance, batch: usize) -> bool {
        let share = acceptance.share();
        let others = batch.saturating_sub(1) as f64;
        let gain = |k: usize| (expected(share, k) + others) / (batch as f64 * self.cost(batch, k));
        (1..=K_MAX.min(self.limits.proposed_max)).any(|k| gain(k) >= GAIN_MIN)
    }

    /// Returns `c(b, K)` in plain passes: as measured, else on the line through the measured neighbours.
    fn cost(&self, batch: usize, proposed: usize) -> f64 {
        let slope = self.limits.slope;
        let row = batch.checked_sub(1).and_then(|at| self.took.get(at));
        let Some((row, plain)) = row.and_then(|row| Some((row, row.first().copied().flatten()?))) else {
            return 1.0 + slope * proposed as f64;
        };
        let ratio = |k: usize| row[k].map(|ms| (k, (ms / plain).max(1.0)));
        if let Some((_, cost)) = row.get(proposed).and_then(|_| ratio(proposed)) {
            return cost;
        }
        let below = (0..proposed.min(row.len())).rev().find_map(ratio).unwrap_or((0, 1.0));
        match (proposed + 1..row.len()).find_map(ratio) {
            Some(above) => {
                let share = (proposed - below.0) as f64 / (above.0 - below.0) as f64;
                below.1 + share * (above.1 - below.1)
            }
            None => {
                // A token costs as much as beside one answer, where a pass is shorter.
                let alone = self.took[0][0].unwrap_or(plain);
                below.1 + slope * (alone / plain) * (proposed - below.0) as f64
            }
        }
    }
}

/// Returns the tokens that an answer writes on average with `k` proposed tokens.
fn expected(share: f64, k: usize) -> f64 {
    (1.0 - share.powi(k as i32 + 1)) / (1.0 - share)
}

/// Returns whether one more token may be proposed to this answer.
fn grows(numbers: &mut [usize], at: usize, answers: &[Candidate<'_>], spare: Spare) -> bool {
    if numbers[at] >= answers[at].most {
        return false;
    }
    numbers[at] += 1;
    let fits = spare.holds(answers, numbers);
    numbers[at] -= 1;
    fits
}

#[cfg(test)]
mod tests;
