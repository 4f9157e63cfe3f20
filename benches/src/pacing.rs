//! `baton-bench pacing`: tests the speed controller on simulated networks and devices.
//!
//! Every trace draws a request, and the real optimizer chooses `r` and `L` from the *estimates*. Then
//! arrivals are simulated, and a device whose times are 0.5 to 2 times the estimates (prefill and decoding
//! independently). The real controller shows the answer on a virtual clock. The reference is the hindsight
//! optimum: the minimum of the largest gap if all arrivals were known in advance and the first token were
//! shown at once.

use std::time::Instant;

use crate::random::Random;
use crate::report::Report;

mod formulas;
mod play;
mod printed;
#[cfg(feature = "ilp")]
mod solver;
mod trace;

use play::{Seen, play};
use trace::Trace;

/// Options of `baton-bench pacing`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed of all traces
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of answers per network class
    #[arg(long, default_value_t = 10_000)]
    traces: usize,
    /// Number of answers per class whose hindsight optimum is also computed by a linear program
    #[arg(long, default_value_t = 200)]
    programmes: usize,
    /// List this many answers per class with the largest gaps relative to the limit
    #[arg(long, default_value_t = 0)]
    worst: usize,
}

/// The parameters of all traces. Values are drawn uniformly from ranges unless stated otherwise.
struct Params {
    /// `tau`.
    tau_ms: f64,
    /// Tokens of the content, log-uniform.
    content_tokens: (f64, f64),
    /// Leading fixed tokens.
    prefix_tokens: (u32, u32),
    /// Trailing fixed tokens.
    suffix_tokens: (u32, u32),
    /// `xi`.
    xi: (f64, f64),
    /// Share of scenes that forbid refinement (`xi = 1`).
    unrefined_share: f64,
    /// `k_d`, `q_d` and `TPOT_d` as estimated.
    device_prefill_ms: (f64, f64),
    device_prefill_ms2: (f64, f64),
    device_decode_ms: (f64, f64),
    decompress_ms: f64,
    /// Ratio of real to estimated time, log-uniform, drawn once for prefill and once for decoding.
    device_factor: (f64, f64),
    /// Standard deviation of one decoding step and of one cloud step, relative to its length.
    decode_sd: f64,
    cloud_sd: f64,
    /// Number of progress reports per prefill.
    chunks: usize,
    /// A device that is ready waits this long for the next cloud token before it continues alone.
    patience_ms: f64,
    /// `k_c`, its fixed part, and `TPOT_c`.
    cloud_prefill_ms: f64,
    cloud_base_ms: f64,
    cloud_decode_ms: (f64, f64),
    /// Ratio of real to estimated TTFT_c (because of the queue).
    ttft_factor: (f64, f64),
    /// Tokens that the device writes after the takeover.
    device_tokens: (u32, u32),
    /// Delay of timers.
    timer_late_ms: (f64, f64),
    /// Length of a stall, log-uniform, and the share of stalls after which the cloud sends nothing more.
    stall_ms: (f64, f64),
    cut_share: f64,
}

const PARAMS: Params = Params {
    tau_ms: 100.0,
    content_tokens: (800.0, 12_000.0),
    prefix_tokens: (10, 300),
    suffix_tokens: (10, 60),
    xi: (0.1, 0.4),
    unrefined_share: 0.1,
    device_prefill_ms: (0.5, 3.0),
    device_prefill_ms2: (0.0, 1e-4),
    device_decode_ms: (15.0, 45.0),
    decompress_ms: 2.0,
    device_factor: (0.5, 2.0),
    decode_sd: 0.04,
    cloud_sd: 0.1,
    chunks: 16,
    patience_ms: 50.0,
    cloud_prefill_ms: 0.1,
    cloud_base_ms: 60.0,
    cloud_decode_ms: (12.0, 40.0),
    ttft_factor: (0.8, 1.5),
    device_tokens: (20, 400),
    timer_late_ms: (0.0, 2.0),
    stall_ms: (300.0, 5_000.0),
    cut_share: 0.2,
};

/// A class of networks. Packets arrive in order; each token is one packet.
struct Class {
    name: &'static str,
    rtt_ms: (f64, f64),
    /// Mean of the exponential part of a packet's extra delay.
    jitter_mean_ms: f64,
    /// Probability and size of a delay by a retransmission or a change of cell.
    spike_share: f64,
    spike_ms: (f64, f64),
    /// Maximum extra delay of a packet.
    jitter_max_ms: f64,
    /// Standard deviation of one prefill chunk, relative to its length.
    chunk_sd: f64,
    /// Maximum relative change of the device's speed from the first to the last prefill chunk (heat).
    drift: f64,
    kind: Kind,
}

/// The limit on gaps that is checked for a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Gaps are compared with the hindsight optimum.
    NoStalls,
    /// Gaps are compared with the length of the stall.
    Stalls,
    /// Nothing is checked: the class shows the behaviour beyond the limits.
    Beyond,
}

const STEADY: Class = Class {
    name: "steady",
    rtt_ms: (5.0, 30.0),
    jitter_mean_ms: 0.0,
    spike_share: 0.0,
    spike_ms: (0.0, 0.0),
    jitter_max_ms: 0.0,
    chunk_sd: 0.02,
    drift: 0.05,
    kind: Kind::NoStalls,
};
const WIFI: Class = Class {
    name: "Wi-Fi jitter",
    jitter_mean_ms: 4.0,
    spike_share: 0.02,
    spike_ms: (20.0, 60.0),
    jitter_max_ms: 80.0,
    ..STEADY
};
const LTE: Class = Class {
    name: "LTE jitter",
    rtt_ms: (30.0, 80.0),
    jitter_mean_ms: 12.0,
    spike_share: 0.03,
    spike_ms: (40.0, 100.0),
    jitter_max_ms: 120.0,
    ..STEADY
};
const STALLS: Class = Class { name: "LTE with stalls", kind: Kind::Stalls, ..LTE };
/// Chunks that vary twice as much, and a device whose speed changes twice as much. The limit of 1.1 x
/// hindsight is too strict for it.
const HOT: Class =
    Class { name: "LTE, uneven device", chunk_sd: 0.04, drift: 0.1, kind: Kind::Beyond, ..LTE };

impl Class {
    /// Draws the extra delay of one packet.
    fn jitter(&self, random: &mut Random) -> f64 {
        let spike = if random.chance(self.spike_share) { random.uniform(self.spike_ms) } else { 0.0 };
        (random.exponential(self.jitter_mean_ms) + spike).min(self.jitter_max_ms)
    }
}

/// The limit ("promise") on a gap is `max(tau, 1.1 x hindsight)`.
const HINDSIGHT_FACTOR: f64 = 1.1;
/// Maximum share of answers with a gap over the limit, if the network does not stall.
const SHARE_MAX: f64 = 0.001;

/// The results of one class.
struct Outcome {
    seen: Vec<(Trace, Seen)>,
    /// Number of drawn requests without a relay, because of the optimizer's verdict or a device that was
    /// ready first.
    not_relayed: usize,
}

/// Runs the bench.
pub(crate) fn run(args: &Args) -> anyhow::Result<Report> {
    let started = Instant::now();
    let mut report = Report::new("pacing");
    formulas::side_by_side(&mut report)?;
    let mut rows = Vec::new();
    for (stream, class) in [&STEADY, &WIFI, &LTE, &STALLS, &HOT].into_iter().enumerate() {
        let outcome = simulate(class, stream as u64, args)?;
        rows.push(row(class, &outcome));
        if args.worst > 0 {
            list_worst(class, &outcome, args.worst, &mut report);
        }
        judge(class, &outcome, args, &mut report)?;
    }
    report.table(
        &format!("{} answers per class, seed {}", args.traces, args.seed),
        &[
            "network",
            "L p50",
            "best gap p50",
            "p99",
            "largest gap p50",
            "p99",
            "max",
            "over promise",
            "gap / promise p99",
            "p99.9",
            "end lag p50 ms",
            "p99 ms",
            "not relayed",
        ],
        &rows,
    );
    report.data("seed", args.seed);
    report.data("traces_per_class", args.traces);
    report.note(format!("{:.1} s", started.elapsed().as_secs_f64()));
    Ok(report)
}

fn simulate(class: &Class, stream: u64, args: &Args) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome { seen: Vec::with_capacity(args.traces), not_relayed: 0 };
    let mut index = 0;
    while outcome.seen.len() < args.traces {
        let mut random = Random::new(args.seed, stream, index);
        index += 1;
        match Trace::draw(class, &mut random)? {
            Some(trace) => {
                let seen = play(&trace, &mut random);
                outcome.seen.push((trace, seen));
            }
            None => outcome.not_relayed += 1,
        }
        anyhow::ensure!(index < 20 * args.traces as u64 + 1_000, "too few relays in class {}", class.name);
    }
    Ok(outcome)
}

/// Returns the limit on gaps of one answer, `max(tau, 1.1 x hindsight)`.
fn promise_ms(seen: &Seen) -> f64 {
    PARAMS.tau_ms.max(HINDSIGHT_FACTOR * seen.hindsight_ms)
}

fn over_promise(outcome: &Outcome) -> usize {
    outcome.seen.iter().filter(|(_, seen)| seen.gaps.max_ms > promise_ms(seen)).count()
}

fn judge(
    class: &Class,
    outcome: &Outcome,
    #[cfg_attr(not(feature = "ilp"), expect(unused_variables, reason = "says how many programmes to solve"))]
    args: &Args,
    report: &mut Report,
) -> anyhow::Result<()> {
    let sum = |count: fn(&Seen) -> usize| outcome.seen.iter().map(|(_, seen)| count(seen)).sum::<usize>();
    report.check_equal(format!("{}: repeats", class.name), sum(|seen| seen.repeats) as f64, 0.0);
    report.check_equal(format!("{}: skips", class.name), sum(|seen| seen.skips) as f64, 0.0);
    if class.kind == Kind::Beyond {
        return Ok(());
    }
    if class.kind == Kind::Stalls {
        let over = outcome
            .seen
            .iter()
            .filter(|(trace, seen)| seen.gaps.max_ms > PARAMS.tau_ms.max(trace.stall_ms + trace.recovery_ms));
        report.check_equal(
            format!("{}: gaps over max(tau, stall + recovery)", class.name),
            over.count() as f64,
            0.0,
        );
        return Ok(());
    }
    let share = over_promise(outcome) as f64 / outcome.seen.len() as f64;
    report.check_at_most(format!("{}: share of answers over the promise", class.name), share, SHARE_MAX);
    #[cfg(feature = "ilp")]
    check_programmes(class, outcome, args, report)?;
    Ok(())
}

/// Lists the answers with the largest gap relative to the limit, and the position of that gap.
fn list_worst(class: &Class, outcome: &Outcome, count: usize, report: &mut Report) {
    let mut order: Vec<&(Trace, Seen)> = outcome.seen.iter().collect();
    let over = |seen: &Seen| seen.gaps.max_ms / promise_ms(seen);
    order.sort_unstable_by(|a, b| over(&b.1).total_cmp(&over(&a.1)));
    let rows: Vec<Vec<String>> = order
        .into_iter()
        .take(count)
        .map(|(trace, seen)| {
            let gap = |i: usize| (seen.shown_at[i] - seen.shown_at[i - 1]).as_f64();
            let at = (1..seen.shown_at.len()).max_by(|&a, &b| gap(a).total_cmp(&gap(b))).unwrap_or(1);
            let near = (at.saturating_sub(3).max(1)..(at + 3).min(seen.shown_at.len()))
                .map(|i| format!("{:.0}", gap(i)))
                .collect::<Vec<_>>();
            vec![
                format!("{:.3}", over(seen)),
                format!("{:.1}", seen.gaps.max_ms),
                format!("{:.1}", seen.hindsight_ms),
                at.to_string(),
                format!("{} of {}", trace.cloud_tokens, trace.plan.assist_tokens),
                trace.available_at.len().to_string(),
                format!("{:.2} {:.2}", trace.factors.0, trace.factors.1),
                format!("{:.0}", trace.estimate.decode_ms),
                format!("{:?}", trace.plan.verdict),
                near.join(" "),
            ]
        })
        .collect();
    let header = [
        "gap / promise",
        "gap",
        "best",
        "at token",
        "L",
        "tokens",
        "device x prefill, decode",
        "TPOT_d",
        "verdict",
        "gaps around",
    ];
    report.table(&format!("{}: the worst answers", class.name), &header, &rows);
}

/// Compares the closed form of the hindsight optimum with the linear program, on the first answers of a
/// class.
#[cfg(feature = "ilp")]
fn check_programmes(
    class: &Class,
    outcome: &Outcome,
    args: &Args,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut difference = 0.0_f64;
    for (trace, seen) in outcome.seen.iter().take(args.programmes) {
        difference = difference.max((solver::hindsight_ms(&trace.available_at)? - seen.hindsight_ms).abs());
    }
    let name =
        format!("{}: linear programme against closed form, ms, {} answers", class.name, args.programmes);
    report.check_at_most(name, difference, 1e-3);
    Ok(())
}

fn row(class: &Class, outcome: &Outcome) -> Vec<String> {
    let sorted = |value: &dyn Fn(&(Trace, Seen)) -> f64| {
        let mut values: Vec<f64> = outcome.seen.iter().map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let at = |values: &[f64], share: f64| {
        values
            .get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    };
    let tokens = sorted(&|(trace, _)| f64::from(trace.plan.assist_tokens));
    let best = sorted(&|(_, seen)| seen.hindsight_ms);
    let gaps = sorted(&|(_, seen)| seen.gaps.max_ms);
    let ratio = sorted(&|(_, seen)| seen.gaps.max_ms / promise_ms(seen));
    let lag = sorted(&|(_, seen)| seen.lag_ms);
    vec![
        class.name.to_owned(),
        format!("{:.0}", at(&tokens, 0.5)),
        format!("{:.1}", at(&best, 0.5)),
        format!("{:.1}", at(&best, 0.99)),
        format!("{:.1}", at(&gaps, 0.5)),
        format!("{:.1}", at(&gaps, 0.99)),
        format!("{:.1}", at(&gaps, 1.0)),
        format!(
            "{} ({:.3} %)",
            over_promise(outcome),
            100.0 * over_promise(outcome) as f64 / outcome.seen.len() as f64
        ),
        format!("{:.3}", at(&ratio, 0.99)),
        format!("{:.3}", at(&ratio, 0.999)),
        format!("{:.0}", at(&lag, 0.5)),
        format!("{:.0}", at(&lag, 0.99)),
        outcome.not_relayed.to_string(),
    ]
}
