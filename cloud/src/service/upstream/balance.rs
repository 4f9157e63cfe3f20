//! Which engine gets the next request, and which engines get none for a while.
//!
//! Pure: the caller says what happened and what time it is. Requests with the same beginning go to the same
//! engine, because it may still hold that prefix: rendezvous hashing (Thaler, Ravishankar 1998). An engine
//! that has much more to do than the others is passed over, as in consistent hashing with bounded loads
//! (Mirrokni, Thorup, Zadimoghaddam 2018). An engine that fails again and again is left alone for a time that
//! doubles; then one request tries it. An engine that is much slower than the others rests too. Always: an
//! engine never has more requests of this service than its places.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// Failures in a row after which an engine rests.
const FAILURES_MAX: u32 = 3;
/// How long it rests at first, and at most.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);
/// An engine may have this much more than the mean load before it is passed over.
const LOAD_SLACK: f64 = 1.25;
/// First tokens of an engine that are averaged before it can count as slow.
const OUTLIER_SAMPLES: u32 = 20;
/// How many times slower than the median an engine must be.
const OUTLIER_TIMES: f64 = 4.0;
/// How long a slow engine rests.
const OUTLIER_REST: Duration = Duration::from_secs(30);
/// Weight of a new value in the average.
const EWMA: f64 = 0.1;

/// What an engine's own metrics say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Requests that it computes.
    pub(crate) running: usize,
    /// Requests that wait there.
    pub(crate) waiting: usize,
}

/// How a request ended, as far as the engine is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It answered.
    Well,
    /// Nobody wanted the answer any more, which says nothing of the engine.
    Unused,
    /// It is at fault.
    Badly,
    /// It has no room for this long.
    Busy(Duration),
}

/// Why no engine can take a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEngine {
    /// All places are taken, or the engines say that they have no room.
    Full {
        /// When there may be room.
        retry_after: Duration,
    },
    /// No engine answers.
    Down {
        /// When the next one is tried again.
        retry_after: Duration,
    },
}

#[derive(Debug)]
struct Engine {
    name: String,
    in_flight: usize,
    /// What its metrics said last, and how many of the requests were this service's then.
    load: Option<(Load, usize)>,
    /// Whether its last health check went well.
    is_healthy: bool,
    failures: u32,
    rests: u32,
    /// It gets nothing before this time.
    until: Option<Duration>,
    /// Whether it rests because it failed: then one request tries it first.
    is_on_trial: bool,
    first_token_ms: f64,
    samples: u32,
}

/// The engines of one model.
#[derive(Debug)]
pub(crate) struct Balance {
    engines: Vec<Engine>,
    places: usize,
}

impl Balance {
    /// Makes a balance of engines with these names, which decide affinity. Each has so many places.
    pub(crate) fn new(names: impl IntoIterator<Item = String>, places: usize) -> Balance {
        let engine = |name| Engine {
            name,
            in_flight: 0,
            load: None,
            is_healthy: true,
            failures: 0,
            rests: 0,
            until: None,
            is_on_trial: false,
            first_token_ms: 0.0,
            samples: 0,
        };
        Balance { engines: names.into_iter().map(engine).collect(), places: places.max(1) }
    }

    /// Chooses an engine for a request with this affinity key, and takes a place there. `may` says which
    /// engines come into question.
    pub(crate) fn take(
        &mut self,
        key: u64,
        now: Duration,
        may: impl Fn(usize) -> bool,
    ) -> Result<usize, NoEngine> {
        let open: Vec<usize> =
            (0..self.engines.len()).filter(|&at| may(at) && self.is_open(at, now)).collect();
        let free = |at: &usize| self.engines[*at].in_flight < self.places;
        let total: f64 = open.iter().map(|&at| self.work(at)).sum();
        let bound = ((total + 1.0) / open.len().max(1) as f64 * LOAD_SLACK).ceil();
        let mut ranked: Vec<usize> = open.iter().copied().filter(free).collect();
        ranked.sort_by_key(|&at| std::cmp::Reverse(score(&self.engines[at].name, key)));
        let within = ranked.iter().copied().find(|&at| self.work(at) + 1.0 <= bound);
        let least = || ranked.iter().copied().min_by(|&a, &b| self.work(a).total_cmp(&self.work(b)));
        let Some(at) = within.or_else(least) else { return Err(self.refusal(now, &may, !open.is_empty())) };
        self.engines[at].in_flight += 1;
        Ok(at)
    }

    /// Gives a place back, and learns from how the request ended.
    pub(crate) fn give_back(&mut self, at: usize, ended: Ended, now: Duration) {
        let engine = &mut self.engines[at];
        engine.in_flight = engine.in_flight.saturating_sub(1);
        match ended {
            Ended::Well => {
                engine.failures = 0;
                engine.rests = 0;
                engine.is_on_trial = false;
            }
            Ended::Unused => {}
            Ended::Busy(rest) => engine.until = Some(now + rest.clamp(Duration::from_millis(50), REST_MAX)),
            Ended::Badly => {
                engine.failures += 1;
                if engine.failures >= FAILURES_MAX || engine.is_on_trial {
                    let rest = REST_MIN.saturating_mul(1 << engine.rests.min(6)).min(REST_MAX);
                    engine.rests += 1;
                    engine.failures = 0;
                    engine.is_on_trial = true;
                    engine.until = Some(now + rest);
                }
            }
        }
    }

    /// Takes what a health check and the engine's metrics said.
    pub(crate) fn probed(&mut self, at: usize, is_healthy: bool, load: Option<Load>) {
        let engine = &mut self.engines[at];
        engine.is_healthy = is_healthy;
        engine.load = load.map(|load| (load, engine.in_flight));
    }

    /// Takes the time to a first token, or the time that passed in vain until another engine's. If the engine
    /// is much slower than the others, it rests; at most half of the engines rest for that.
    pub(crate) fn first_token(&mut self, at: usize, elapsed: Duration, now: Duration) {
        let ms = elapsed.as_secs_f64() * 1e3;
        let engine = &mut self.engines[at];
        engine.samples = engine.samples.saturating_add(1);
        let weight = EWMA.max(1.0 / f64::from(engine.samples));
        engine.first_token_ms += (ms - engine.first_token_ms) * weight;
        let mine = engine.first_token_ms;
        let known = |engine: &&Engine| engine.samples >= OUTLIER_SAMPLES;
        let mut others: Vec<f64> =
            self.engines.iter().filter(known).map(|engine| engine.first_token_ms).collect();
        if others.len() < 2 || self.engines[at].samples < OUTLIER_SAMPLES {
            return;
        }
        others.sort_by(f64::total_cmp);
        let median = others[(others.len() - 1) / 2];
        let resting = (0..self.engines.len()).filter(|&at| !self.is_open(at, now)).count();
        if mine > OUTLIER_TIMES * median && 2 * (resting + 1) <= self.engines.len() {
            let engine = &mut self.engines[at];
            engine.until = Some(now + OUTLIER_REST);
            engine.samples = 0;
            engine.first_token_ms = 0.0;
        }
    }

    /// Returns whether an engine takes requests, if it has a place.
    pub(crate) fn is_open(&self, at: usize, now: Duration) -> bool {
        let engine = &self.engines[at];
        let tried = !engine.is_on_trial || engine.in_flight == 0;
        engine.is_healthy && tried && engine.until.is_none_or(|until| until <= now)
    }

    /// Returns the requests of this service that an engine has.
    pub(crate) fn in_flight(&self, at: usize) -> usize {
        self.engines[at].in_flight
    }

    /// Returns the requests of all engines that wait there, as their metrics said last.
    pub(crate) fn waiting(&self) -> usize {
        self.engines.iter().filter_map(|engine| engine.load).map(|(load, _)| load.waiting).sum()
    }

    /// Returns what an engine has to do: this service's requests, and those of others that it knew of last.
    fn work(&self, at: usize) -> f64 {
        let engine = &self.engines[at];
        let others = engine.load.map_or(0, |(load, ours)| (load.running + load.waiting).saturating_sub(ours));
        (engine.in_flight + others) as f64
    }

    fn refusal(&self, now: Duration, may: &impl Fn(usize) -> bool, is_open: bool) -> NoEngine {
        let asked = || self.engines.iter().enumerate().filter(|(at, _)| may(*at)).map(|(_, engine)| engine);
        let rest = |engine: &Engine| engine.until.map_or(REST_MIN, |until| until.saturating_sub(now));
        let retry_after = asked().map(rest).min().unwrap_or(REST_MIN).max(Duration::from_millis(100));
        let is_busy = |engine: &Engine| engine.is_healthy && !engine.is_on_trial;
        if is_open || asked().any(is_busy) {
            return NoEngine::Full { retry_after };
        }
        NoEngine::Down { retry_after }
    }
}

/// Returns how well an engine suits a key: a hash of both, so that one engine more or less moves few keys.
fn score(name: &str, key: u64) -> u64 {
    let digest = Sha256::new().chain_update(key.to_le_bytes()).chain_update(name).finalize();
    u64::from_le_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn balance(engines: usize, places: usize) -> Balance {
        Balance::new((0..engines).map(|at| format!("http://engine-{at}")), places)
    }

    #[test]
    fn one_prefix_goes_to_one_engine_and_few_move_if_one_is_gone() {
        let (mut all, mut moved) = (balance(4, 1000), 0);
        for key in 0..400 {
            let first = all.take(key, SECOND, |_| true).unwrap();
            all.give_back(first, Ended::Well, SECOND);
            let again = all.take(key, SECOND, |_| true).unwrap();
            all.give_back(again, Ended::Well, SECOND);
            assert_eq!(first, again, "key {key}");
            let without = all.take(key, SECOND, |at| at != 3).unwrap();
            all.give_back(without, Ended::Well, SECOND);
            moved += usize::from(without != first);
            assert!(first == 3 || without == first, "only keys of the engine that is gone move");
        }
        assert!((60..140).contains(&moved), "about a quarter: {moved}");
    }

    #[test]
    fn a_popular_prefix_does_not_overload_one_engine() {
        let mut all = balance(4, 1000);
        let mut taken = [0_usize; 4];
        for _ in 0..100 {
            taken[all.take(7, SECOND, |_| true).unwrap()] += 1;
        }
        let most = *taken.iter().max().unwrap();
        assert!(most <= 33, "at most 1.25 times the mean of 25: {taken:?}");
        assert_eq!(taken.iter().sum::<usize>(), 100);
    }

    #[test]
    fn what_an_engine_does_for_others_counts() {
        let mut all = balance(2, 1000);
        let popular = all.take(7, SECOND, |_| true).unwrap();
        all.give_back(popular, Ended::Well, SECOND);
        all.probed(popular, true, Some(Load { running: 40, waiting: 10 }));
        assert_ne!(all.take(7, SECOND, |_| true).unwrap(), popular);
        assert_eq!(all.waiting(), 10);
    }

    #[test]
    fn places_are_never_exceeded() {
        let mut all = balance(2, 3);
        let taken: Vec<_> = (0..8).map(|key| all.take(key, SECOND, |_| true)).collect();
        assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 6);
        assert!(taken[6..].iter().all(|taken| matches!(taken, Err(NoEngine::Full { .. }))));
        assert_eq!((all.in_flight(0), all.in_flight(1)), (3, 3));
        all.give_back(1, Ended::Well, SECOND);
        assert_eq!(all.take(9, SECOND, |_| true), Ok(1));
    }

    #[test]
    fn an_engine_that_fails_rests_longer_each_time_and_is_tried_by_one() {
        let mut all = balance(1, 9);
        let mut now = SECOND;
        for _ in 0..FAILURES_MAX {
            let at = all.take(1, now, |_| true).unwrap();
            all.give_back(at, Ended::Badly, now);
        }
        for rest in [1_u64, 2, 4, 8] {
            let rest = Duration::from_secs(rest);
            assert_eq!(all.take(1, now, |_| true), Err(NoEngine::Down { retry_after: rest }));
            now += rest;
            let at = all.take(1, now, |_| true).unwrap();
            assert!(all.take(2, now, |_| true).is_err(), "one request tries it");
            all.give_back(at, Ended::Badly, now);
        }
        now += REST_MAX;
        let at = all.take(1, now, |_| true).unwrap();
        all.give_back(at, Ended::Well, now);
        assert!(all.take(1, now, |_| true).is_ok() && all.take(2, now, |_| true).is_ok());
    }

    #[test]
    fn an_answer_that_nobody_waited_for_says_nothing_of_the_engine() {
        let mut all = balance(1, 9);
        let end = |all: &mut Balance, ended, now| {
            let at = all.take(1, now, |_| true).unwrap();
            all.give_back(at, ended, now);
        };
        for ended in [Ended::Badly, Ended::Unused, Ended::Badly, Ended::Unused, Ended::Badly] {
            end(&mut all, ended, SECOND);
        }
        assert!(all.take(1, SECOND, |_| true).is_err(), "it failed {FAILURES_MAX} times in a row");
        end(&mut all, Ended::Unused, 2 * SECOND);
        let at = all.take(1, 2 * SECOND, |_| true).unwrap();
        assert!(all.take(2, 2 * SECOND, |_| true).is_err(), "it is still to be tried by one");
        all.give_back(at, Ended::Well, 2 * SECOND);
        assert!(all.take(1, 2 * SECOND, |_| true).is_ok() && all.take(2, 2 * SECOND, |_| true).is_ok());
    }

    #[test]
    fn a_busy_engine_is_asked_again_when_it_said() {
        let mut all = balance(2, 9);
        let busy = all.take(1, SECOND, |_| true).unwrap();
        all.give_back(busy, Ended::Busy(5 * SECOND), SECOND);
        assert_ne!(all.take(1, 2 * SECOND, |_| true), Ok(busy));
        let none = all.take(1, 2 * SECOND, |at| at == busy);
        assert_eq!(none, Err(NoEngine::Full { retry_after: 4 * SECOND }));
        assert_eq!(all.take(1, 6 * SECOND, |at| at == busy), Ok(busy));
    }

    #[test]
    fn an_unhealthy_engine_gets_nothing() {
        let mut all = balance(2, 9);
        all.probed(0, false, None);
        assert!((0..9).all(|key| all.take(key, SECOND, |_| true) == Ok(1)));
        all.probed(1, false, None);
        assert!(matches!(all.take(1, SECOND, |_| true), Err(NoEngine::Down { .. })));
        all.probed(0, true, None);
        assert_eq!(all.take(1, SECOND, |_| true), Ok(0));
    }

    #[test]
    fn a_slow_engine_rests_but_never_more_than_half() {
        let mut all = balance(3, 9);
        for _ in 0..OUTLIER_SAMPLES {
            all.first_token(0, Duration::from_millis(100), SECOND);
            all.first_token(1, Duration::from_millis(110), SECOND);
            all.first_token(2, Duration::from_millis(900), SECOND);
        }
        all.first_token(2, Duration::from_millis(900), SECOND);
        assert_eq!([0, 1, 2].map(|at| all.is_open(at, SECOND)), [true, true, false]);
        for _ in 0..=OUTLIER_SAMPLES {
            all.first_token(1, Duration::from_secs(9), SECOND);
        }
        assert!(all.is_open(1, SECOND), "one of three rests already");
        assert!(all.is_open(2, SECOND + OUTLIER_REST));
    }
}
