//! `baton-bench optimizer`: compares the closed form of problem P with brute force and HiGHS on random
//! requests. It also measures the time of the whole table and of one request.
//!
//! Every request is drawn from its own seed. Brute force and HiGHS implement the problem independently and
//! share no code with the closed form.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use baton_pacing::{
    BoundBy, DeviceClass, DeviceCost, NetworkClass, OptimizerInput, Plan, TableAxes, TableScene, Verdict,
    optimize, table::LENGTHS,
};

use crate::random::Random;
use crate::report::Report;

mod brute;
mod draw;
#[cfg(feature = "ilp")]
mod solver;

use brute::Best;
use draw::draw;

/// Number of scenes in the whole table.
const SCENES: usize = 20;
const CLASSES: usize = 8;
const NETWORKS: usize = 4;
const TABLE_MS_MAX: f64 = 50.0;
const TABLE_RUNS: usize = 21;
/// Maximum time for one request, in microseconds.
const ONLINE_US_MAX: f64 = 10.0;
/// Maximum difference between the chosen r and that of brute force, which uses bisection.
const RATIO_DIFFERENCE_MAX: f64 = 1e-6;

/// Options of `baton-bench optimizer`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed of all requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of requests that are also solved by brute force
    #[arg(long, default_value_t = 20_000)]
    requests: usize,
    /// Number of requests with linear prefill that are also solved by HiGHS
    #[arg(long, default_value_t = 1_000)]
    programmes: usize,
    /// Number of requests that are timed
    #[arg(long, default_value_t = 200_000)]
    calls: usize,
}

/// Runs the bench.
pub(crate) fn run(args: &Args) -> anyhow::Result<Report> {
    let mut report = Report::new("optimizer");
    against_brute_force(args, &mut report)?;
    #[cfg(feature = "ilp")]
    solver::against_programme(args.programmes, args.seed, &mut report)?;
    whole_table(args.seed, &mut report)?;
    online(args, &mut report)?;
    report.data("seed", args.seed);
    Ok(report)
}

/// The results for one kind of request.
#[derive(Debug, Default)]
struct Tally {
    requests: usize,
    solved: usize,
    /// Solved requests whose r is above xi, at a step of the upper bound.
    at_step: usize,
    infeasible: usize,
    no_interval: usize,
    wrong: Vec<String>,
    ratio_difference: f64,
}

fn against_brute_force(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let mut tallies = [("linear prefill", Tally::default()), ("quadratic prefill", Tally::default())];
    for index in 0..args.requests {
        let mut random = Random::new(args.seed, 1, index as u64);
        let quadratic = index % 2 == 1;
        let input = draw(&mut random, quadratic);
        let tally = &mut tallies[usize::from(quadratic)].1;
        tally.requests += 1;
        let (plan, best) = (optimize(&input)?, brute::solve(&input));
        if let Err(wrong) = compare(&input, &plan, best, tally) {
            tally.wrong.push(format!("{wrong}: {input:?} {plan:?}"));
        }
    }
    let rows: Vec<Vec<String>> = tallies.iter().map(|(name, tally)| tally.row(name)).collect();
    let header = [
        "requests",
        "all",
        "solved",
        "at a step of U",
        "no L fits",
        "refining loses",
        "largest r difference",
    ];
    report.table("closed form against brute force over every breakpoint of r and every L", &header, &rows);
    for (name, tally) in &tallies {
        for wrong in tally.wrong.iter().take(3) {
            report.note(wrong);
        }
        report.check_equal(format!("{name}: requests answered otherwise"), tally.wrong.len() as f64, 0.0);
        report.check_at_most(
            format!("{name}: largest difference in r"),
            tally.ratio_difference,
            RATIO_DIFFERENCE_MAX,
        );
        // Each kind of result must occur often enough, or the comparison means little.
        let rarest = tally.solved.min(tally.infeasible).min(tally.no_interval).min(tally.at_step);
        report.check_at_least(format!("{name}: requests of the rarest kind"), rarest as f64, 20.0);
    }
    report.check_at_least("requests compared with brute force", args.requests as f64, 10_000.0);
    Ok(())
}

impl Tally {
    fn row(&self, name: &str) -> Vec<String> {
        let counts = [self.requests, self.solved, self.at_step, self.infeasible, self.no_interval];
        let mut row = vec![name.to_owned()];
        row.extend(counts.map(|count| count.to_string()));
        row.push(format!("{:.1e}", self.ratio_difference));
        row
    }
}

fn compare(input: &OptimizerInput, plan: &Plan, best: Best, tally: &mut Tally) -> anyhow::Result<()> {
    match best {
        Best::NoInterval => {
            tally.no_interval += 1;
            ensure!(plan.verdict != Verdict::Relay, "refining loses, yet the plan refines");
            ensure!(plan.ratio == 1.0, "refining loses, yet r is {}", plan.ratio);
        }
        Best::Infeasible => {
            tally.infeasible += 1;
            let said = matches!(plan.bound_by, BoundBy::CloudDecode | BoundBy::DeviceTooSlow);
            ensure!(
                plan.verdict == Verdict::Relay && said,
                "no L fits anywhere, yet bound by {:?}",
                plan.bound_by
            );
        }
        Best::At { ratio, least, most, ttft_d_ms } => {
            tally.solved += 1;
            tally.at_step += usize::from(ratio > input.scene.xi);
            tally.ratio_difference = tally.ratio_difference.max((plan.ratio - ratio).abs());
            ensure!(plan.verdict == Verdict::Relay, "r {ratio} with L {least} fits, yet {:?}", plan.verdict);
            ensure!(
                plan.bounds.lower == Some(least),
                "L {least} is the smallest, not {:?}",
                plan.bounds.lower
            );
            let wanted = (u64::from(least) * 13).div_ceil(10).min(u64::from(most));
            ensure!(u64::from(plan.assist_tokens) == wanted, "L with its margin is {wanted}");
            let off = (plan.predicted.ttft_d_ms - ttft_d_ms).abs();
            ensure!(off <= 1e-4 * ttft_d_ms, "TTFT_d is {ttft_d_ms}, not {}", plan.predicted.ttft_d_ms);
        }
    }
    Ok(())
}

/// Makes scenes, classes and networks with coefficients from the same ranges as the requests.
fn axes(seed: u64) -> TableAxes {
    let mut random = Random::new(seed, 2, 0);
    let named = |kind: &str, index: usize| format!("{kind} {index}");
    let scenes = (0..SCENES).map(|index| {
        let drawn = draw(&mut random, true);
        TableScene {
            name: named("scene", index),
            policy: drawn.scene,
            fixed_tokens: drawn.prompt.fixed_tokens,
            prefix_tokens: drawn.prompt.prefix_tokens,
            draft_tokens: None,
        }
    });
    let scenes = scenes.collect();
    let devices = (0..CLASSES)
        .map(|index| DeviceClass {
            name: named("class", index),
            cost: DeviceCost { decompress_ms: 5.0, ..draw(&mut random, index % 2 == 1).device },
        })
        .collect();
    let networks = [5.0, 20.0, 30.0, 60.0][..NETWORKS]
        .iter()
        .map(|&rtt_ms| NetworkClass { name: format!("{rtt_ms} ms"), rtt_ms })
        .collect();
    let cloud = draw(&mut random, false).cloud;
    TableAxes { scenes, devices, lengths: LENGTHS.to_vec(), networks, cloud }
}

fn whole_table(seed: u64, report: &mut Report) -> anyhow::Result<()> {
    let axes = axes(seed);
    let mut times = Vec::with_capacity(TABLE_RUNS);
    let mut cells = 0;
    for _ in 0..TABLE_RUNS {
        let started = Instant::now();
        cells = black_box(axes.plans()?).len();
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_unstable_by(f64::total_cmp);
    let (median, worst) = (times[TABLE_RUNS / 2], times[TABLE_RUNS - 1]);
    report.note(format!(
        "\nwhole table: {cells} cells ({SCENES} scenes x {CLASSES} classes x {} lengths x {NETWORKS} networks) in {median:.2} ms \
         (median of {TABLE_RUNS}, worst {worst:.2})",
        LENGTHS.len()
    ));
    report.check_equal(
        "cells of the table",
        cells as f64,
        (SCENES * CLASSES * LENGTHS.len() * NETWORKS) as f64,
    );
    report.check_at_most("whole table, median ms", median, TABLE_MS_MAX);
    report.data("table_worst_ms", worst);
    Ok(())
}

/// Measures the time of single requests. The figures include the time to read the clock.
fn online(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let inputs: Vec<OptimizerInput> =
        (0..1_024).map(|index| draw(&mut Random::new(args.seed, 3, index), index % 2 == 1)).collect();
    let mut times = Vec::with_capacity(args.calls);
    for call in 0..args.calls {
        let input = black_box(&inputs[call % inputs.len()]);
        let started = Instant::now();
        let plan = optimize(input)?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        black_box(plan);
    }
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
    let (median, p99) = (at(0.5), at(0.99));
    report.note(format!(
        "one request: median {median:.3} us, p99 {p99:.3} us over {} calls, the clock included",
        args.calls
    ));
    report.check_at_most("L of one request, median us", median, ONLINE_US_MAX);
    report.check_at_most("L of one request, p99 us", p99, ONLINE_US_MAX);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_holds_but_for_its_size() {
        let args = Args { seed: 3, requests: 400, programmes: 20, calls: 100 };
        let mut tally = Tally::default();
        for index in 0..args.requests {
            let input = draw(&mut Random::new(args.seed, 1, index as u64), index % 2 == 1);
            compare(&input, &optimize(&input).unwrap(), brute::solve(&input), &mut tally).unwrap();
        }
        assert!(tally.solved > 50 && tally.infeasible > 0 && tally.no_interval > 0, "{tally:?}");
        assert_eq!(axes(3).plans().unwrap().len(), 5_120);
    }

    #[test]
    fn a_wrong_answer_is_noticed() {
        let input = (0..400)
            .map(|index| draw(&mut Random::new(3, 1, index), true))
            .find(|input| matches!(brute::solve(input), Best::At { .. }))
            .expect("some request has an answer");
        let right = optimize(&input).unwrap();
        let check = |plan: Plan| compare(&input, &plan, brute::solve(&input), &mut Tally::default());
        assert!(check(right).is_ok());
        assert!(check(Plan { assist_tokens: right.assist_tokens + 1, ..right }).is_err());
        assert!(check(Plan { verdict: Verdict::NoRefinement, ..right }).is_err());
        let mut tally = Tally::default();
        compare(&input, &Plan { ratio: right.ratio + 0.01, ..right }, brute::solve(&input), &mut tally)
            .unwrap();
        assert!(tally.ratio_difference > RATIO_DIFFERENCE_MAX);
    }
}
