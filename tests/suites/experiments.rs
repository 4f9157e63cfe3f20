//! Experiments on simulated devices, over 200 seeds each: planted effects are found, and nothing else is.
//!
//! Devices differ, their times have heavy tails, and some ask much more often than others. Every experiment
//! is looked at 20 times, and a finding at any look counts. Always: effects are found by what the service
//! itself computes; references are computed here from all answers of all devices.

use baton_cloud::experiment::assign::Unit;
use baton_cloud::experiment::metric::Metric;
use baton_cloud::experiment::plan::{Arm, Experiment, Guard, Plan, State};
use baton_cloud::experiment::report::{
    ALPHA, Finding, GUARD_ALPHA, RatioResult, Sums, harm, report, sample_ratio,
};
use baton_cloud::experiment::sums::ArmSums;
use baton_random::SplitMix64;

const SEEDS: u64 = 200;
const LOOKS: usize = 20;
const DEVICES: usize = 3_000;
/// Requests between two looks.
const REQUESTS: usize = 900;
/// Planted change of the mean time to the first token. Devices differ more from each other: by 50 %.
const EFFECT: f64 = -0.2;

/// What a simulated fleet does differently if it has the treatment.
#[derive(Debug, Clone, Copy, Default)]
struct Planted {
    /// Relative change of the mean time to the first token.
    ttft: f64,
    /// Additional share of answers that fail.
    failures: f64,
    /// Share of the treated devices that are lost before they are counted.
    lost: f64,
}

/// One device of the fleet.
#[derive(Debug, Clone, Copy)]
struct Device {
    unit: Unit,
    arm: usize,
    /// Logarithm of its speed, relative to others.
    level: f64,
    good_share: f64,
    is_lost: bool,
}

/// One answer: the device, its time in milliseconds, and whether it failed.
struct Answer {
    device: usize,
    ttft_ms: f64,
    failed: bool,
}

fn normal(rng: &mut SplitMix64) -> f64 {
    let (u, angle) = (1.0 - rng.unit(), rng.unit() * std::f64::consts::TAU);
    (-2.0 * u.ln()).sqrt() * angle.cos()
}

fn experiment(seed: u64, guards: Vec<Guard>) -> Experiment {
    let arm = |name: &str, mode: Option<&str>| Arm {
        name: name.to_owned(),
        weight: 1,
        overrides: mode.map(|mode| ("mode".to_owned(), mode.into())).into_iter().collect(),
    };
    let arms = vec![arm("control", None), arm("treatment", Some("bm25"))];
    Experiment {
        id: format!("seed-{seed}"),
        revision: 1,
        plan: Plan { scene: "doc-qa".into(), goal: Metric::TtftMs, arms, guards },
        state: State::Running,
        stopped_arms: Vec::new(),
        promoted: None,
        created_ms: 0,
        updated_ms: 0,
        updated_by: String::new(),
    }
}

/// A fleet whose requests arrive look after look.
struct World {
    rng: SplitMix64,
    experiment: Experiment,
    planted: Planted,
    devices: Vec<Device>,
    sums: Sums,
    answers: Vec<Answer>,
}

impl World {
    fn new(seed: u64, planted: Planted, guards: Vec<Guard>) -> World {
        let experiment = experiment(seed, guards);
        let mut rng = SplitMix64::new(seed);
        let device = |at: usize| {
            let unit = Unit::device(1, &format!("device {seed} {at}"));
            let arm = unit.arm(&experiment.id, &experiment.plan.arms);
            let level = 0.5 * normal(&mut rng);
            let good_share = 0.5 + 0.4 * rng.unit();
            let is_lost = arm == 1 && rng.unit() < planted.lost;
            Device { unit, arm, level, good_share, is_lost }
        };
        let devices = (0..DEVICES).map(device).collect();
        World { rng, experiment, planted, devices, sums: Sums::new(), answers: Vec::new() }
    }

    /// Draws a device. A tenth of them send half of the requests.
    fn who(&mut self) -> usize {
        let busy = DEVICES / 10;
        if self.rng.percent(50) { self.rng.below(busy) } else { self.rng.below(DEVICES) }
    }

    /// Lets the requests of one look arrive.
    fn go_on(&mut self) {
        for _ in 0..REQUESTS {
            let at = self.who();
            let Device { unit, arm, level, good_share, is_lost } = self.devices[at];
            let treated = if arm == 1 { self.planted } else { Planted::default() };
            let noise = 0.7 * normal(&mut self.rng);
            let ttft_ms = 400.0 * (level + noise).exp() * (1.0 + treated.ttft);
            let failed = self.rng.unit() < 0.01 + treated.failures;
            let rated = self.rng.percent(10).then(|| self.rng.unit() < good_share);
            if is_lost {
                continue;
            }
            let name = self.experiment.plan.arms[arm].name.clone();
            let cell = unit.cell(&self.experiment.id);
            let bucket = self.sums.entry(name).or_default().bucket(cell.bucket);
            bucket.mark(cell);
            bucket.add(Metric::TtftMs, ttft_ms);
            bucket.add(Metric::SlotMs, 300.0 * (level + noise).exp());
            bucket.add(Metric::Failures, f64::from(u8::from(failed)));
            if let Some(good) = rated {
                bucket.add(Metric::Rating, f64::from(u8::from(good)));
            }
            self.answers.push(Answer { device: at, ttft_ms, failed });
        }
    }

    /// Returns mean and variance of the time to the first token in an arm, computed from devices or answers.
    fn reference(&self, arm: usize, by_device: bool) -> (f64, f64) {
        let of_arm = self.answers.iter().filter(|answer| self.devices[answer.device].arm == arm);
        let of_arm: Vec<&Answer> = of_arm.collect();
        let count = of_arm.len() as f64;
        let mean = of_arm.iter().map(|answer| answer.ttft_ms).sum::<f64>() / count;
        let mut off = vec![0.0; if by_device { DEVICES } else { of_arm.len() }];
        for (at, answer) in of_arm.iter().enumerate() {
            off[if by_device { answer.device } else { at }] += answer.ttft_ms - mean;
        }
        (mean, off.iter().map(|off| off * off).sum::<f64>() / (count * count))
    }

    /// Returns the distance of the arms' means in standard errors, computed from devices or answers.
    fn distance(&self, by_device: bool) -> f64 {
        let [(control, of_control), (treated, of_treated)] =
            [self.reference(0, by_device), self.reference(1, by_device)];
        (treated - control).abs() / (of_control + of_treated).sqrt()
    }
}

/// Returns in how many seeds a look shows something.
fn seeds_that_show(
    planted: Planted,
    guards: &[Guard],
    shows: impl Fn(&World) -> bool + Send + Copy + Sync,
) -> usize {
    let one = |seed| {
        let mut world = World::new(seed, planted, guards.to_vec());
        (0..LOOKS).any(|_| {
            world.go_on();
            shows(&world)
        })
    };
    let halves = [0..SEEDS / 2, SEEDS / 2..SEEDS];
    std::thread::scope(|scope| {
        let count =
            |seeds: std::ops::Range<u64>| scope.spawn(move || seeds.filter(|&seed| one(seed)).count());
        let running = halves.map(count);
        running.into_iter().map(|half| half.join().expect("a half of the seeds")).sum()
    })
}

/// Fails if a share of the seeds is out of its bounds.
#[track_caller]
fn check(what: &str, seeds: usize, bounds: std::ops::RangeInclusive<f64>) {
    let share = seeds as f64 / SEEDS as f64;
    println!("{what}: {seeds} of {SEEDS} seeds ({:.1} %)", share * 100.0);
    assert!(bounds.contains(&share), "{what}: {seeds} of {SEEDS} seeds, must be {bounds:?}");
}

fn wins(world: &World) -> bool {
    report(&world.experiment, &world.sums).winner.as_deref() == Some("treatment")
}

/// Whether any metric is shown to be better or worse.
fn finds_anything(world: &World) -> bool {
    let report = report(&world.experiment, &world.sums);
    report.arms.iter().flat_map(|arm| &arm.metrics).any(|metric| metric.finding != Finding::Open)
}

fn is_blamed(world: &World) -> bool {
    sample_ratio(&world.experiment, &world.sums).result == RatioResult::Mismatch
}

fn is_stopped(world: &World) -> bool {
    harm(&world.experiment, &world.sums).iter().any(|harm| harm.arm == "treatment")
}

#[test]
fn a_planted_effect_is_found() {
    let planted = Planted { ttft: EFFECT, ..Planted::default() };
    check("a faster arm wins", seeds_that_show(planted, &[], wins), 0.8..=1.0);
}

#[test]
fn nothing_is_found_if_there_is_nothing() {
    let seeds = seeds_that_show(Planted::default(), &[], finds_anything);
    check("anything is found without an effect", seeds, 0.0..=ALPHA);
}

#[test]
fn a_slower_arm_never_wins() {
    let planted = Planted { ttft: 0.15, ..Planted::default() };
    check("a slower arm wins", seeds_that_show(planted, &[], wins), 0.0..=ALPHA / 2.0);
}

#[test]
fn a_usual_test_of_answers_would_find_what_is_not_there() {
    // The same worlds without an effect. What makes the difference is how often one looks, and that answers
    // of one device are alike.
    let by_answers = seeds_that_show(Planted::default(), &[], |world| world.distance(false) > 1.96);
    check("a usual test of answers, at 5 %, finds an effect at some look", by_answers, 0.25..=1.0);
    let by_devices = seeds_that_show(Planted::default(), &[], |world| world.distance(true) > 1.96);
    check("a usual test of devices, at 5 %, finds an effect at some look", by_devices, 0.1..=1.0);
}

#[test]
fn lost_devices_are_noticed() {
    let planted = Planted { lost: 0.25, ..Planted::default() };
    check("a quarter of an arm's devices is lost", seeds_that_show(planted, &[], is_blamed), 0.8..=1.0);
    let seeds = seeds_that_show(Planted::default(), &[], is_blamed);
    check("a sample ratio is blamed without a loss", seeds, 0.0..=0.01);
    let faster = Planted { ttft: EFFECT, lost: 0.3, ..Planted::default() };
    let at_the_end = |world: &World| world.answers.len() > REQUESTS * (LOOKS - 1) * 8 / 10 && wins(world);
    check("an arm with lost devices wins", seeds_that_show(faster, &[], at_the_end), 0.0..=0.05);
}

#[test]
fn a_guard_rail_stops_harm_and_nothing_else() {
    let guards =
        [Guard { metric: Metric::TtftMs, worst: 0.05 }, Guard { metric: Metric::Failures, worst: 0.01 }];
    let slow = Planted { ttft: 0.3, ..Planted::default() };
    check("an arm that is 30 % slower is stopped", seeds_that_show(slow, &guards, is_stopped), 0.8..=1.0);
    let failing = Planted { failures: 0.08, ..Planted::default() };
    check("an arm that fails more is stopped", seeds_that_show(failing, &guards, is_stopped), 0.8..=1.0);
    let harmless = seeds_that_show(Planted::default(), &guards, is_stopped);
    check("a harmless arm is stopped", harmless, 0.0..=GUARD_ALPHA);
    // As bad as allowed is not worse than allowed.
    let allowed = Planted { ttft: 0.05, failures: 0.01, ..Planted::default() };
    let allowed = seeds_that_show(allowed, &guards, is_stopped);
    check("an arm as bad as allowed is stopped", allowed, 0.0..=GUARD_ALPHA);
}

#[test]
fn intervals_hold_the_truth_at_all_looks_together() {
    let planted = Planted { ttft: EFFECT, ..Planted::default() };
    let misses = |world: &World| {
        let report = report(&world.experiment, &world.sums);
        let interval = &report.arms[1].metrics[Metric::TtftMs as usize];
        interval.low.zip(interval.high).is_some_and(|(low, high)| !(low..=high).contains(&EFFECT))
    };
    check("an interval misses the truth at some look", seeds_that_show(planted, &[], misses), 0.0..=ALPHA);
}

/// The service's variance comes from 256 buckets, the reference from every device.
#[test]
fn variances_are_those_of_devices() {
    let (mut by_device, mut by_answer) = (0.0, 0.0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Planted::default(), Vec::new());
        (0..4).for_each(|_| world.go_on());
        let sums: &ArmSums = &world.sums["control"];
        let have = sums.mean(Metric::TtftMs).expect("there are answers");
        let (mean, variance) = world.reference(0, true);
        assert!((have.mean / mean - 1.0).abs() < 1e-9, "seed {seed}: {} is not {mean}", have.mean);
        by_device += have.variance / variance / SEEDS as f64;
        by_answer += have.variance / world.reference(0, false).1 / SEEDS as f64;
    }
    println!("variance over that of devices: {by_device:.3}, over that of answers: {by_answer:.3}");
    assert!((0.95..1.05).contains(&by_device), "{by_device}");
    assert!(by_answer > 1.2, "answers of one device are not alike here: {by_answer}");
    let failed = |seed| {
        let mut world = World::new(seed, Planted { failures: 0.5, ..Planted::default() }, Vec::new());
        world.go_on();
        world.answers.iter().filter(|answer| answer.failed).count()
    };
    assert!((100..400).contains(&failed(1)), "the planted failures are there: {}", failed(1));
}
