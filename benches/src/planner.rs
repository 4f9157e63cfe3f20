//! `baton-bench planner`: compares the exact search with brute force, Halda and simple heuristics, measures
//! its time, and plans for the devices of prima.cpp's Table 3.
//!
//! Brute force and the search use the same cost function, which the planner's own tests check. Here, brute
//! force tries all shares, GPU layers and rounds of random clusters, in the cluster's order.

use std::time::Instant;

use anyhow::Result;
use baton_pacing::refit::median;
use baton_plan::baselines::Baseline;
use baton_plan::halda::halda;
use baton_plan::{Costs, SearchOptions, search};

use crate::engine::samples::percentile;
use crate::report::Report;

mod brute;
mod draw;
mod paper;

use draw::Problem;

/// Relative tolerance for rounding errors.
const SAME: f64 = 1e-9;
/// Layers of the model for which planning is timed, and the maximum time.
const TIMED_LAYERS: usize = 80;
const PLAN_MS_MAX: f64 = 10.0;

/// Options of `baton-bench planner`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of random clusters, each with up to 4 devices and 32 layers
    #[arg(long, default_value_t = 5000)]
    clusters: usize,
    /// Seed of all draws
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A short run: 200 clusters and fewer checks
    #[arg(long)]
    quick: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("planner");
    let clusters = if args.quick { 200 } else { args.clusters.max(1) };
    against_all(clusters, args.seed, args.quick, &mut report)?;
    speed(args.seed, &mut report)?;
    paper::table_3(&mut report)?;
    Ok(report)
}

/// The results over random clusters.
#[derive(Debug, Default)]
struct Tally {
    planned: usize,
    several_rounds: usize,
    with_gpu: usize,
    missed: usize,
    wrong: usize,
    /// Number of plans of other planners that are better than that of the search.
    beaten: usize,
    /// For each other planner, its time per token divided by that of the search, if it has a plan.
    slower: [Vec<f64>; 4],
    without: [usize; 4],
}

fn against_all(clusters: usize, seed: u64, quick: bool, report: &mut Report) -> Result<()> {
    let begun = Instant::now();
    let halves: Vec<Tally> = std::thread::scope(|scope| {
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(clusters);
        let part = move |first: usize| -> Result<Tally> {
            let mut tally = Tally::default();
            for index in (first..clusters).step_by(count) {
                one(&Problem::small(seed, index as u64), &mut tally)?;
                if first == 0 && index % 500 < count && index > 0 {
                    eprintln!("{index} of {clusters} clusters, {:.0} s", begun.elapsed().as_secs_f64());
                }
            }
            Ok(tally)
        };
        let threads: Vec<_> = (0..count).map(|first| scope.spawn(move || part(first))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread of the bench does not panic"))
            .collect::<Result<_>>()
    })?;
    let mut all = Tally::default();
    for tally in halves {
        all.add(tally);
    }
    let names = ["Halda"].into_iter().chain(Baseline::ALL.map(Baseline::name));
    let rows: Vec<Vec<String>> = names
        .zip(all.slower.iter().zip(all.without))
        .map(|(name, (slower, without))| {
            let ratio = |share: f64| {
                percentile(slower.clone(), share).map_or_else(String::new, |r| format!("{r:.2}"))
            };
            vec![
                name.to_owned(),
                slower.len().to_string(),
                without.to_string(),
                ratio(0.5),
                ratio(0.9),
                ratio(1.0),
            ]
        })
        .collect();
    report.table(
        &format!("{clusters} random clusters: the time of a token, in that of the exact search"),
        &["planner", "plans", "none", "median", "p90", "most"],
        &rows,
    );
    report.data("planned", all.planned);
    report.data("several_rounds", all.several_rounds);
    report.data("with_gpu", all.with_gpu);
    report.check_equal("clusters whose plan is not that of brute force", all.wrong as f64, 0.0);
    report.check_equal("clusters without a plan where one exists", all.missed as f64, 0.0);
    report.check_equal("plans of Halda or a rule of thumb that are better", all.beaten as f64, 0.0);
    if quick {
        return Ok(());
    }
    report.check_at_least("random clusters", clusters as f64, 5000.0);
    report.check_at_least("clusters where several rounds win", all.several_rounds as f64, 100.0);
    report.check_at_least("clusters with GPU layers in the plan", all.with_gpu as f64, 100.0);
    Ok(())
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.planned += other.planned;
        self.several_rounds += other.several_rounds;
        self.with_gpu += other.with_gpu;
        self.missed += other.missed;
        self.wrong += other.wrong;
        self.beaten += other.beaten;
        for (own, more) in self.slower.iter_mut().zip(other.slower) {
            own.extend(more);
        }
        for (own, more) in self.without.iter_mut().zip(other.without) {
            *own += more;
        }
    }
}

fn one(problem: &Problem, tally: &mut Tally) -> Result<()> {
    let Problem { cluster, model, workload } = problem;
    let costs = Costs::new(cluster, model, *workload)?;
    let fixed = SearchOptions { fixed_order: true, ..SearchOptions::default() };
    let least = brute::least(&costs, cluster, model);
    let Ok(plan) = search(cluster, model, *workload, &fixed) else {
        tally.missed += usize::from(least.is_finite());
        return Ok(());
    };
    let found = costs.predict(&plan)?.token_s;
    if (found - least).abs() > SAME * least || !plan.is_whole() {
        eprintln!("{found} s, brute force {least} s: {problem:?} {plan:?}");
        tally.wrong += 1;
    }
    tally.planned += 1;
    tally.several_rounds += usize::from(plan.rounds > 1);
    tally.with_gpu += usize::from(plan.shares.iter().any(|share| share.gpu_layers > 0));
    let others = [halda(&costs).map(|answer| answer.plan)]
        .into_iter()
        .chain(Baseline::ALL.map(|rule| rule.plan(&costs)));
    for (at, other) in others.enumerate() {
        match other.and_then(|plan| costs.predict(&plan)) {
            Ok(prediction) => {
                tally.beaten += usize::from(prediction.token_s < found * (1.0 - SAME));
                tally.slower[at].push(prediction.token_s / found);
            }
            Err(_) => tally.without[at] += 1,
        }
    }
    Ok(())
}

/// Measures the time of planning for more and more devices.
fn speed(seed: u64, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for devices in [4, 8, 12, 16, 24, 32] {
        let (mut exact, mut halda_ms, mut solved) = (Vec::new(), Vec::new(), 0);
        for index in 0..9 {
            let Problem { cluster, model, workload } = Problem::of(seed, 1000 + index, devices, TIMED_LAYERS);
            let begun = Instant::now();
            let plan = search(&cluster, &model, workload, &SearchOptions::default());
            exact.push(begun.elapsed().as_secs_f64() * 1e3);
            std::hint::black_box(plan).ok();
            let costs = Costs::new(&cluster, &model, workload)?;
            let begun = Instant::now();
            let answer = halda(&costs);
            halda_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            solved += usize::from(answer.is_ok());
        }
        let ms = |values: &[f64]| median(values.iter().copied()).unwrap_or(f64::NAN);
        let worst = exact.iter().copied().fold(0.0, f64::max);
        report.check_at_most(
            format!("{devices} devices, {TIMED_LAYERS} layers: ms, median of 9"),
            ms(&exact),
            PLAN_MS_MAX,
        );
        report.data(
            &format!("{devices} devices ms"),
            serde_json::json!({ "exact": ms(&exact), "halda": ms(&halda_ms) }),
        );
        rows.push(vec![
            devices.to_string(),
            format!("{:.2}", ms(&exact)),
            format!("{worst:.2}"),
            format!("{:.1}", ms(&halda_ms)),
            format!("{solved}/9"),
        ]);
    }
    let header = ["devices", "exact ms", "most", "Halda ms", "solved"];
    report.table(&format!("planning {TIMED_LAYERS} layers"), &header, &rows);
    Ok(())
}
