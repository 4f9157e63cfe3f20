//! The decisions, by hand and in random histories.

use std::collections::BTreeSet;

use baton_random::SplitMix64;

use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn loaded(core: &mut ResidencyCore, at: usize, waiter: u64, now: Duration) {
    assert_eq!(core.want(at, Waiter(waiter), now), [Effect::Load(at)]);
    assert_eq!(core.loaded(at, now), [Effect::Grant(Waiter(waiter))]);
}

#[test]
fn a_model_is_loaded_once_for_all_who_wait() {
    let mut core = ResidencyCore::new(Some(10), [6, 6]);
    assert_eq!(core.want(0, Waiter(1), seconds(0)), [Effect::Load(0)]);
    assert_eq!(core.want(0, Waiter(2), seconds(0)), []);
    assert_eq!(core.requests(0), (0, 2));
    assert_eq!(core.loaded(0, seconds(1)), [Effect::Grant(Waiter(1)), Effect::Grant(Waiter(2))]);
    assert_eq!(core.want(0, Waiter(3), seconds(1)), [Effect::Grant(Waiter(3))]);
    assert_eq!((core.requests(0), core.state(0)), ((3, 0), ModelState::Loaded));
}

#[test]
fn the_least_recently_used_idle_model_makes_room() {
    let mut core = ResidencyCore::new(Some(10), [4, 4, 4]);
    loaded(&mut core, 0, 1, seconds(0));
    loaded(&mut core, 1, 2, seconds(1));
    assert_eq!(core.release(1, seconds(2)), []);
    assert_eq!(core.release(0, seconds(3)), []);
    assert_eq!(core.want(2, Waiter(3), seconds(4)), [Effect::Unload(1)]);
    assert_eq!((core.state(1), core.state(2)), (ModelState::Unloading, ModelState::Waiting));
    assert_eq!(core.gone(1, seconds(5)), [Effect::Load(2)]);
    assert_eq!(core.used_bytes(), 8);
}

#[test]
fn a_held_model_is_waited_for_and_retires_after_a_while() {
    let mut core = ResidencyCore::new(Some(10), [8, 8]);
    loaded(&mut core, 0, 1, seconds(0));
    assert_eq!(core.want(1, Waiter(2), seconds(1)), []);
    assert_eq!(core.want(0, Waiter(3), seconds(2)), [Effect::Grant(Waiter(3))], "not yet");
    assert_eq!(core.tick(seconds(1) + PATIENCE), []);
    assert_eq!(core.state(0), ModelState::Retiring);
    assert_eq!(core.want(0, Waiter(4), seconds(12)), [], "waits behind the other model");
    assert_eq!(core.release(0, seconds(13)), []);
    assert_eq!(core.release(0, seconds(14)), [Effect::Unload(0)]);
    assert_eq!(core.gone(0, seconds(15)), [Effect::Load(1)]);
    assert_eq!(core.loaded(1, seconds(16)), [Effect::Grant(Waiter(2))]);
    assert_eq!(core.release(1, seconds(17)), [Effect::Unload(1)], "the first one's turn again");
    assert_eq!(core.gone(1, seconds(18)), [Effect::Load(0)]);
}

#[test]
fn whoever_leaves_lets_a_retiring_model_stay() {
    let mut core = ResidencyCore::new(Some(10), [8, 8]);
    loaded(&mut core, 0, 1, seconds(0));
    core.want(1, Waiter(2), seconds(0));
    core.tick(PATIENCE);
    assert_eq!(core.want(0, Waiter(3), PATIENCE), []);
    assert_eq!(core.withdraw(Waiter(2), PATIENCE), [Effect::Grant(Waiter(3))]);
    assert_eq!((core.state(0), core.state(1)), (ModelState::Loaded, ModelState::Unloaded));
}

#[test]
fn a_failed_load_ends_its_requests_and_rests() {
    let mut core = ResidencyCore::new(None, [1]);
    let mut now = seconds(0);
    for rest in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(core.want(0, Waiter(1), now), [Effect::Load(0)]);
        let refused = Refused::Failed { retry_after: seconds(rest) };
        assert_eq!(core.failed(0, now), [Effect::Refuse(Waiter(1), refused)]);
        assert_eq!(core.state(0), ModelState::Failed);
        let early = Refused::Failed { retry_after: Duration::from_millis(1) };
        now += seconds(rest) - Duration::from_millis(1);
        assert_eq!(core.want(0, Waiter(2), now), [Effect::Refuse(Waiter(2), early)]);
        now += Duration::from_millis(1);
    }
    core.want(0, Waiter(3), now);
    core.loaded(0, now);
    core.dismiss(0, false, now);
    core.release(0, now);
    core.gone(0, now);
    core.want(0, Waiter(4), now);
    let again = Refused::Failed { retry_after: seconds(1) };
    assert_eq!(core.failed(0, now), [Effect::Refuse(Waiter(4), again)], "a success begins anew");
}

#[test]
fn an_operator_loads_unloads_and_drains() {
    let mut core = ResidencyCore::new(None, [1]);
    assert_eq!(core.order(0, seconds(0)), [Effect::Load(0)]);
    assert_eq!(core.loaded(0, seconds(1)), []);
    assert_eq!(core.order(0, seconds(1)), [], "it is there");
    assert_eq!(core.want(0, Waiter(1), seconds(1)), [Effect::Grant(Waiter(1))]);
    assert_eq!(core.dismiss(0, false, seconds(2)), []);
    assert_eq!(core.state(0), ModelState::Retiring);
    assert_eq!(core.release(0, seconds(3)), [Effect::Unload(0)]);
    assert_eq!(core.gone(0, seconds(4)), []);
    assert_eq!(core.want(0, Waiter(2), seconds(5)), [Effect::Load(0)], "used again");
    assert_eq!(core.dismiss(0, true, seconds(6)), [Effect::Refuse(Waiter(2), Refused::Drained)]);
    assert_eq!(core.loaded(0, seconds(7)), [Effect::Unload(0)]);
    let drained = [Effect::Refuse(Waiter(3), Refused::Drained)];
    assert_eq!((core.want(0, Waiter(3), seconds(8)), core.is_drained(0)), (drained.into(), true));
    assert_eq!(core.order(0, seconds(9)), []);
    assert_eq!(core.gone(0, seconds(9)), [Effect::Load(0)]);
    assert!(!core.is_drained(0));
}

#[test]
fn a_stop_ends_whoever_waits() {
    let mut core = ResidencyCore::new(None, [1]);
    core.want(0, Waiter(1), seconds(0));
    assert_eq!(core.stop(), [Effect::Refuse(Waiter(1), Refused::Stopping)]);
    assert_eq!(core.want(0, Waiter(2), seconds(1)), [Effect::Refuse(Waiter(2), Refused::Stopping)]);
    assert_eq!(core.loaded(0, seconds(2)), [Effect::Unload(0)]);
}

/// A driver with random delays and failures, which checks what always holds.
struct World {
    core: ResidencyCore,
    random: SplitMix64,
    now: Duration,
    loading: Vec<usize>,
    leaving: Vec<usize>,
    inside: BTreeSet<usize>,
    /// Requests that hold a model, and their models.
    holding: Vec<(Waiter, usize)>,
    waiting: BTreeSet<(u64, usize)>,
    asked: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = SplitMix64::new(seed);
        let models = 1 + random.next_u64() as usize % 5;
        let bytes: Vec<u64> = (0..models).map(|_| 1 + random.next_u64() % 10).collect();
        let largest = bytes.iter().max().copied().unwrap_or(1);
        let budget = largest + random.next_u64() % (2 * largest);
        let core = ResidencyCore::new(Some(budget), bytes);
        let (loading, leaving, holding) = (Vec::new(), Vec::new(), Vec::new());
        let (inside, waiting, now) = (BTreeSet::new(), BTreeSet::new(), Duration::ZERO);
        World { core, random, now, loading, leaving, inside, holding, waiting, asked: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() >> 33) as usize % bound
    }

    fn model_of(&self, waiter: Waiter) -> usize {
        self.waiting.iter().find(|(id, _)| *id == waiter.0).expect("it waits").1
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Load(at) => self.loading.push(at),
                Effect::Unload(at) => {
                    assert!(self.holding.iter().all(|(_, held)| *held != at), "a held model is unloaded");
                    assert!(self.inside.remove(&at), "what is unloaded was loaded");
                    self.leaving.push(at);
                }
                Effect::Grant(waiter) => {
                    let at = self.model_of(waiter);
                    assert!(self.inside.contains(&at), "what is given is in memory");
                    self.waiting.remove(&(waiter.0, at));
                    self.holding.push((waiter, at));
                }
                Effect::Refuse(waiter, _) => {
                    let at = self.model_of(waiter);
                    self.waiting.remove(&(waiter.0, at));
                }
            }
        }
        let bytes = |at: &usize| self.core.bytes(*at);
        let used: u64 = self.loading.iter().chain(&self.leaving).chain(&self.inside).map(bytes).sum();
        assert_eq!(used, self.core.used_bytes());
        assert!(Some(used) <= self.core.budget(), "{used} bytes");
    }

    fn end_load(&mut self, fails: bool) {
        if self.loading.is_empty() {
            return;
        }
        let index = self.below(self.loading.len());
        let at = self.loading.swap_remove(index);
        if !fails {
            self.inside.insert(at);
        }
        let now = self.now;
        let effects = if fails { self.core.failed(at, now) } else { self.core.loaded(at, now) };
        self.perform(effects);
    }

    fn end_unload(&mut self) {
        if let Some(at) = self.leaving.pop() {
            let effects = self.core.gone(at, self.now);
            self.perform(effects);
        }
    }

    fn release(&mut self) {
        if self.holding.is_empty() {
            return;
        }
        let index = self.below(self.holding.len());
        let (_, at) = self.holding.swap_remove(index);
        let effects = self.core.release(at, self.now);
        self.perform(effects);
    }

    fn act(&mut self) {
        self.now += Duration::from_millis(self.random.next_u64() % 2000);
        let at = self.below(self.core.models.len());
        match self.below(20) {
            0..8 => {
                self.asked += 1;
                self.waiting.insert((self.asked, at));
                let effects = self.core.want(at, Waiter(self.asked), self.now);
                self.perform(effects);
            }
            8..12 => self.release(),
            12..15 => {
                let fails = self.below(5) == 0;
                self.end_load(fails);
            }
            15 | 16 => self.end_unload(),
            17 => {
                let Some((id, at)) = self.waiting.first().copied() else { return };
                self.waiting.remove(&(id, at));
                let effects = self.core.withdraw(Waiter(id), self.now);
                self.perform(effects);
            }
            18 => {
                let drained = self.below(4) == 0;
                let effects = self.core.dismiss(at, drained, self.now);
                self.perform(effects);
            }
            _ => {
                let effects = self.core.order(at, self.now);
                self.perform(effects);
            }
        }
    }
}

#[test]
fn random_histories_keep_the_budget_and_end_every_request() {
    for seed in 0..400 {
        let mut world = World::new(seed);
        (0..200).for_each(|_| world.act());
        for _ in 0..2000 {
            if world.waiting.is_empty() {
                break;
            }
            world.now += Duration::from_millis(500);
            world.release();
            world.end_load(false);
            world.end_unload();
            let effects = world.core.tick(world.now);
            world.perform(effects);
        }
        assert_eq!(world.waiting, BTreeSet::new(), "seed {seed}");
    }
}
