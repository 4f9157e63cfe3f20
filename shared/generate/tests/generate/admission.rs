//! Tests admission in virtual time: the queue's bound in seconds, deadlines, and L under load.

use std::collections::HashMap;
use std::time::Duration;

use baton_generate::scheduler::{
    BacklogBound, CloseReason, Effect, Event, JobId, JobSpec, Limits, QueueLimit, Refusal, Room,
    SchedulerCore, StepPlan, StepRow,
};
use baton_random::SplitMix64;

use crate::{LIMITS, done, plain, token};

/// A cloud whose passes take the time that `machine_ms` returns.
struct Cloud {
    core: SchedulerCore,
    kv_tokens: usize,
    now: Duration,
    next_id: u64,
    /// How every request ended; `None` if it runs or waits.
    ends: HashMap<JobId, Option<End>>,
    deadlines: HashMap<JobId, Duration>,
    /// L of every sequence that got a slot.
    lengths: Vec<usize>,
    /// Tokens of every sequence.
    written: HashMap<JobId, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Refused(Refusal),
    Closed(CloseReason),
}

/// Returns the time of a pass in milliseconds: 20 to read the weights, 0.1 for each prompt token, 1 for each
/// decoding row.
fn machine_ms(plan: &StepPlan) -> f64 {
    20.0 + 0.1 * plan.prefill_tokens() as f64 + plan.decode_rows() as f64
}

impl Cloud {
    fn new(slots: usize, queue: usize, backlog: BacklogBound) -> Cloud {
        let kv_tokens = slots * 4096;
        let limits = Limits { slots, queue, backlog, kv_tokens, kv_block: 32, ..LIMITS };
        let mut cloud = Cloud {
            core: SchedulerCore::new(limits),
            kv_tokens,
            now: Duration::ZERO,
            next_id: 0,
            ends: HashMap::new(),
            deadlines: HashMap::new(),
            lengths: Vec::new(),
            written: HashMap::new(),
        };
        // A short answer first, like a server's warm-up.
        cloud.ask(64, 4, None, 0);
        while cloud.turn() {}
        cloud.ends.clear();
        cloud.lengths.clear();
        cloud
    }

    fn room(&self) -> Room {
        Room {
            free_tokens: self.kv_tokens - self.core.stats().kv_held_tokens.min(self.kv_tokens),
            ..Room::default()
        }
    }

    fn ask(
        &mut self,
        prompt_tokens: usize,
        max_tokens: usize,
        within: Option<Duration>,
        bytes: usize,
    ) -> JobId {
        let deadline = within.map(|within| self.now + within);
        self.submit(JobSpec { bytes, deadline, ..plain(0, prompt_tokens, max_tokens, 1) })
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        let id = JobId(self.next_id);
        self.next_id += 1;
        self.deadlines.extend(spec.deadline.map(|at| (id, at)));
        let spec = JobSpec { id, ..spec };
        let refused = match self.core.step(Event::Submit(spec), self.now)[..] {
            [] => None,
            [Effect::Refuse(_, refusal)] => Some(End::Refused(refusal)),
            ref other => panic!("{other:?}"),
        };
        self.ends.insert(id, refused);
        id
    }

    fn end(&mut self, id: JobId, end: End) {
        let before = self.ends.insert(id, Some(end));
        assert!(matches!(before, None | Some(None)), "{id:?} ended as {before:?}, then as {end:?}");
    }

    /// Runs one pass; returns false if there is nothing to run.
    fn turn(&mut self) -> bool {
        let plan = loop {
            let mut effects = self.core.step(Event::Turn(self.room()), self.now);
            if effects.is_empty() {
                return false;
            }
            let mut plan = None;
            while let Some(effect) = (!effects.is_empty()).then(|| effects.remove(0)) {
                match effect {
                    Effect::Open(id) => {
                        let in_time = self.deadlines.get(&id).is_none_or(|deadline| self.now < *deadline);
                        assert!(in_time, "{id:?} got a slot after its deadline");
                        self.lengths.extend(self.core.max_tokens(id));
                        let room = self.room();
                        effects.extend(self.core.step(Event::Opened { id, cached: 0, room }, self.now));
                    }
                    Effect::Run(run) => plan = Some(run),
                    Effect::Close(closed) => self.end(closed.id, End::Closed(closed.reason)),
                    Effect::Preempt(_) | Effect::Held(_) => (),
                    Effect::Refuse(..) => panic!("refused after acceptance"),
                }
            }
            if let Some(plan) = plan {
                break plan;
            }
        };
        self.now += Duration::from_secs_f64(machine_ms(&plan) / 1e3);
        let tokens = plan.rows.iter().filter(|row| row.samples()).map(StepRow::id);
        let outcomes = tokens.map(|id| token(&self.core, &mut self.written, id)).collect();
        for effect in self.core.step(done(outcomes), self.now) {
            let Effect::Close(closed) = effect else { panic!("{effect:?}") };
            self.end(closed.id, End::Closed(closed.reason));
        }
        true
    }

    fn count(&self, of: impl Fn(&End) -> bool) -> usize {
        self.ends.values().flatten().filter(|end| of(end)).count()
    }
}

#[test]
fn the_queue_never_exceeds_its_bound_and_everyone_ends_once() {
    let (mut by_time, mut by_bytes, mut late, mut expired, mut served) = (0, 0, 0, 0, 0);
    for seed in 0..150 {
        let mut rng = SplitMix64::new(seed);
        let bytes = 1000 + rng.remainder(20_000);
        let wait = Duration::from_millis(50 + rng.remainder(4000) as u64);
        let mut cloud = Cloud::new(1 + rng.remainder(6), rng.remainder(40), BacklogBound { wait, bytes });
        for _ in 0..300 {
            for _ in 0..rng.remainder(3) {
                let before = cloud.core.stats();
                let within =
                    (rng.remainder(2) == 0).then(|| Duration::from_millis(1 + rng.remainder(3000) as u64));
                let (prompt, answer) = (1 + rng.remainder(2000), 1 + rng.remainder(60));
                let own_bytes = rng.remainder(3000);
                let id = cloud.ask(prompt, answer, within, own_bytes);
                let after = cloud.core.stats();
                match cloud.ends[&id] {
                    None if before.backlog_tokens > 0 => {
                        assert!(
                            after.backlog_ms <= wait.as_secs_f64() * 1e3 + 1e-6,
                            "seed {seed}: {after:?}"
                        );
                        assert!(
                            before.waiting == 0 || after.waiting_bytes <= bytes,
                            "seed {seed}: {after:?}"
                        );
                    }
                    None => (),
                    Some(End::Refused(Refusal::Full { limit: QueueLimit::Wait(_), retry_after, .. })) => {
                        assert!(before.backlog_tokens > 0 && retry_after > Duration::ZERO, "seed {seed}");
                        by_time += 1;
                    }
                    Some(End::Refused(Refusal::Full { limit: QueueLimit::Bytes(_), .. })) => by_bytes += 1,
                    Some(End::Refused(Refusal::Late { first, left, .. })) => {
                        assert!(first >= left, "seed {seed}: {first:?} would be in time");
                        late += 1;
                    }
                    Some(_) => (),
                }
            }
            if !cloud.turn() {
                cloud.now += Duration::from_millis(1 + rng.remainder(300) as u64);
            }
        }
        while cloud.turn() {}
        assert!(cloud.core.is_idle() && cloud.ends.values().all(Option::is_some), "seed {seed}");
        let stats = cloud.core.stats();
        assert_eq!((stats.backlog_tokens, stats.waiting_bytes, stats.load), (0, 0, 0.0), "seed {seed}");
        let ended_late = cloud.count(|end| *end == End::Closed(CloseReason::Expired));
        assert_eq!(stats.expired_total, ended_late as u64);
        assert_eq!(stats.refused_total, cloud.count(|end| matches!(end, End::Refused(_))) as u64);
        expired += ended_late;
        served += cloud.count(|end| *end == End::Closed(CloseReason::Cap));
    }
    let all = [by_time, by_bytes, late, expired, served];
    assert!(all.iter().all(|&cases| cases > 100), "every case is met: {all:?}");
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_at_once() {
    let mut cloud = Cloud::new(1, 100, BacklogBound::NONE);
    let at = cloud.now;
    // 1,000 tokens take 100 ms and two passes.
    let soon = cloud.ask(1000, 1, Some(Duration::from_millis(20)), 0);
    let Some(End::Refused(Refusal::Late { first, left, .. })) = cloud.ends[&soon] else {
        panic!("{:?}", cloud.ends)
    };
    assert!(first > Duration::from_millis(90) && left == Duration::from_millis(20), "{first:?} {left:?}");
    let fits = cloud.ask(1000, 50, Some(Duration::from_secs(2)), 0);
    assert_eq!(cloud.ends[&fits], None);
    // The known wait behind it is only that of the prompts. The slot is held longer, so the deadline passes
    // while it waits.
    let waits = cloud.ask(100, 1, Some(Duration::from_millis(700)), 0);
    assert_eq!(cloud.ends[&waits], None);
    while cloud.turn() {}
    assert_eq!(cloud.ends[&fits], Some(End::Closed(CloseReason::Cap)));
    assert_eq!(cloud.ends[&waits], Some(End::Closed(CloseReason::Expired)));
    assert!(cloud.now - at > Duration::from_millis(1000));
}

/// L of a request whose device wants 200 tokens in a scene with a floor of 10.
const WANTED: usize = 200;
const FLOOR: usize = 10;
const PROMPT: usize = 512;
const SLOTS: usize = 8;

struct Offered {
    served_per_s: f64,
    refused: usize,
    lengths: Vec<usize>,
}

/// Offers `per_s` requests per second for four minutes; `rule` lowers L under load.
fn offer(per_s: f64, rule: bool) -> Offered {
    let wait = Duration::from_secs(10);
    let mut cloud = Cloud::new(SLOTS, 10_000, BacklogBound { wait, bytes: usize::MAX });
    let begun = cloud.now;
    let every = Duration::from_secs_f64(1.0 / per_s);
    let mut next = begun;
    let until = begun + Duration::from_secs(240);
    while cloud.now < until {
        while next <= cloud.now {
            let floor_tokens = if rule { FLOOR } else { WANTED };
            cloud.submit(JobSpec { floor_tokens, ..plain(0, PROMPT, WANTED, 1) });
            next += every;
        }
        if !cloud.turn() {
            cloud.now = next;
        }
    }
    let served = cloud.count(|end| matches!(end, End::Closed(CloseReason::Cap)));
    let refused = cloud.count(|end| matches!(end, End::Refused(_)));
    let served_per_s = served as f64 / (cloud.now - begun).as_secs_f64();
    Offered { served_per_s, refused, lengths: cloud.lengths }
}

/// Returns the most requests per second that N slots can serve: `1 / (P + L s_N / N)`.
fn bound_per_s(length: f64) -> f64 {
    let prefill_s = 0.1e-3 * PROMPT as f64;
    let step_s = (20.0 + SLOTS as f64) / 1e3;
    1.0 / (prefill_s + length * step_s / SLOTS as f64)
}

#[test]
fn a_lower_l_under_load_serves_more_and_without_load_nothing_changes() {
    let idle = offer(0.5, true);
    assert_eq!(idle.refused, 0);
    assert!(idle.lengths.iter().all(|&length| length == WANTED), "without load L stays");

    let per_s = 2.5;
    let (whole, floor) = (bound_per_s(WANTED as f64), bound_per_s(FLOOR as f64));
    assert!(whole < per_s && per_s < floor, "{whole} {floor}");
    let fixed = offer(per_s, false);
    assert!(fixed.served_per_s <= whole * 1.05, "{} of {whole}", fixed.served_per_s);
    assert!(fixed.refused > 200, "{} refused", fixed.refused);
    let lowered = offer(per_s, true);
    assert!(lowered.served_per_s > 0.93 * per_s, "{} of {per_s} a second", lowered.served_per_s);
    assert_eq!(lowered.refused, 0);
    assert!(lowered.lengths.iter().all(|length| (FLOOR..=WANTED).contains(length)));
    let mean = lowered.lengths.iter().sum::<usize>() as f64 / lowered.lengths.len() as f64;
    let bound = bound_per_s(mean);
    assert!(lowered.served_per_s <= bound * 1.05, "{} of {bound} at L {mean}", lowered.served_per_s);
    assert!(lowered.served_per_s >= 0.8 * bound, "{} of {bound} at L {mean}", lowered.served_per_s);
}
