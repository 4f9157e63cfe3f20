//! `baton-bench evidence`: whether citations name what an answer stands on, and what they cost.
//!
//! - Gold: the share of questions whose gold sentence, which holds the right answer, is among the two
//!   citations of the answer's first sentence. Beside it the share of BM25's two best sentences.
//! - Deletion: how often the answer changes without the sentence that is cited first, and without a random
//!   one that is not cited. The prompt is asked again in both cases.
//! - Cost: decoding of the same answers with and without the record, in turn, the fastest of each.
//!
//! Answers are the models' own, greedy, also if they are wrong. The questions are those of a file in SQuAD's
//! format, which is not part of the project.

mod bed;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use baton_e2e::clients::real_models;
use baton_eval::case::Case;
use baton_eval::stats::{Estimate, Sample, estimate};
use baton_eval::suite::xquad;
use baton_random::SplitMix64;
use serde_json::{Value, json};

use self::bed::{Bed, Cost, Told};
use crate::report::Report;

/// How much better than BM25 citations should be, in points.
const GOLD_POINTS: f64 = 5.0;
/// Largest cost of the record, in percent of the decoding time.
const COST_PERCENT: f64 = 2.0;
/// Seed of the random sentences.
const SEED: u64 = 7;

/// Options of `baton-bench evidence`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with xquad.en.json
    #[arg(long, env = "BATON_XQUAD_DIR", value_name = "FOLDER")]
    xquad: PathBuf,
    /// GGUF file of a model; may be given several times [default: SmolLM2-135M-Instruct and Gemma 3 270M,
    /// which are fetched once]
    #[arg(long, value_name = "GGUF")]
    model: Vec<PathBuf>,
    /// Number of paragraphs in one text
    #[arg(long, default_value_t = 10)]
    paragraphs: usize,
    /// Number of questions
    #[arg(long, default_value_t = 200)]
    cases: usize,
    /// Number of questions that are asked again without a sentence
    #[arg(long, default_value_t = 120)]
    deletions: usize,
    /// Number of answers whose decoding is timed, and how often each
    #[arg(long, default_value_t = 24)]
    timed: usize,
}

/// Runs the bench.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let begun = Instant::now();
    let mut report = Report::new("evidence");
    let models = match args.model.is_empty() {
        false => args.model.clone(),
        true => {
            let folder = real_models().map_err(anyhow::Error::msg)?;
            ["smollm2.gguf", "gemma3.gguf"].map(|name| folder.join(name)).to_vec()
        }
    };
    let path = args.xquad.join("xquad.en.json");
    let json = std::fs::read_to_string(&path).with_context(|| format!("read `{}`", path.display()))?;
    let all = xquad::cases(&json, args.paragraphs, 0)?;
    ensure!(!all.is_empty() && args.cases > 0, "there is no question");
    let cases: Vec<Case> = all.iter().step_by(all.len().div_ceil(args.cases)).cloned().collect();
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for model in &models {
        let measured = measure(args, model, &cases)?;
        measured.check(&mut report);
        rows.extend(measured.rows());
        figures.push(measured.json());
    }
    let title = format!("{} questions about texts of {} paragraphs", cases.len(), args.paragraphs);
    report.table(&title, &["model, measure", "mean", "95 % interval", "n"], &rows);
    report.data("models", figures);
    report.data("seconds", begun.elapsed().as_secs());
    Ok(report)
}

/// The figures of one model.
struct Measured {
    name: String,
    heads: usize,
    /// Shares of questions, and differences of them.
    shares: Vec<(&'static str, Estimate)>,
    cost: Cost,
}

/// The measures of a model, by name.
const CITED: &str = "gold sentence cited";
const ATTENTION: &str = "gold sentence cited, by attention alone";
const BM25: &str = "gold sentence, BM25 of the question";
const BM25_ANSWER: &str = "gold sentence, BM25 of the answer";
const BESIDE: &str = "cited - BM25 of the question";
const RIGHT: &str = "answers that hold the right one";
const WITHOUT_CITED: &str = "changed without the cited sentence";
const WITHOUT_RANDOM: &str = "changed without a random sentence";
const APART: &str = "difference of these two";

fn measure(args: &Args, path: &Path, cases: &[Case]) -> Result<Measured> {
    let mut bed = Bed::open(path)?;
    let told = cases.iter().map(|case| bed.ask(case)).collect::<Result<Vec<Told>>>()?;
    let share =
        |value: fn(&Told) -> bool| samples(cases, told.iter().map(|told| f64::from(u8::from(value(told)))));
    let beside = told.iter().map(|told| f64::from(u8::from(told.cited)) - f64::from(u8::from(told.bm25)));
    let mut shares = vec![
        (CITED, share(|told| told.cited)),
        (ATTENTION, share(|told| told.by_attention)),
        (BM25, share(|told| told.bm25)),
        (BM25_ANSWER, share(|told| told.bm25_answer)),
        (BESIDE, samples(cases, beside)),
        (RIGHT, share(|told| told.right)),
    ];
    let mut random = SplitMix64::new(SEED);
    let (mut without_cited, mut without_random, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    for (case, told) in cases.iter().zip(&told).take(args.deletions) {
        let Some((cited, other)) = told.to_delete(&mut random) else { continue };
        let mut changed = |unit: usize| -> Result<f64> {
            Ok(f64::from(u8::from(bed.answer_without(case, unit)? != told.answer)))
        };
        let (by_cited, by_other) = (changed(cited)?, changed(other)?);
        let cluster = case.cluster;
        without_cited.push(Sample { cluster, value: by_cited });
        without_random.push(Sample { cluster, value: by_other });
        apart.push(Sample { cluster, value: by_cited - by_other });
    }
    shares.extend([(WITHOUT_CITED, without_cited), (WITHOUT_RANDOM, without_random), (APART, apart)]);
    let cost = bed.cost(&cases[..args.timed.min(cases.len())])?;
    let shares = shares.into_iter().filter_map(|(name, samples)| Some((name, estimate(&samples)?)));
    Ok(Measured { name: bed.name().to_owned(), heads: bed.heads(), shares: shares.collect(), cost })
}

fn samples(cases: &[Case], values: impl Iterator<Item = f64>) -> Vec<Sample> {
    cases.iter().zip(values).map(|(case, value)| Sample { cluster: case.cluster, value }).collect()
}

impl Measured {
    fn share(&self, name: &str) -> Estimate {
        let none = Estimate { mean: f64::NAN, low: f64::NAN, high: f64::NAN, n: 0 };
        self.shares.iter().find(|(own, _)| *own == name).map_or(none, |(_, estimate)| *estimate)
    }

    fn check(&self, report: &mut Report) {
        let name = &self.name;
        let points = 100.0 * self.share(BESIDE).mean;
        report.check_at_least(format!("{name}: {BESIDE}, points"), points, GOLD_POINTS);
        let apart = self.share(APART);
        let holds = apart.low > 0.0;
        report.check(format!("{name}: {APART}, low end of the interval"), apart.low, "> 0", holds);
        report.check_at_most(format!("{name}: cost, %"), self.cost.percent(), COST_PERCENT);
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |(name, estimate): &(&str, Estimate)| {
            let Estimate { mean, low, high, n } = estimate;
            let interval = format!("{low:.3} to {high:.3}");
            vec![format!("{}: {name}", self.name), format!("{mean:.3}"), interval, n.to_string()]
        };
        let Cost { with, without, tokens } = &self.cost;
        let name = &self.name;
        let cost = vec![
            format!("{name}: cost of {} heads, % of decoding", self.heads),
            format!("{:.2}", self.cost.percent()),
            format!("{:.2} and {:.2} ms a token", 1e3 * with / tokens, 1e3 * without / tokens),
            format!("{tokens}"),
        ];
        self.shares.iter().map(row).chain([cost]).collect()
    }

    fn json(&self) -> Value {
        let shares: serde_json::Map<String, Value> =
            self.shares.iter().map(|(name, estimate)| ((*name).to_owned(), json!(estimate))).collect();
        let Cost { with, without, tokens } = self.cost;
        let cost = json!({ "with_s": with, "without_s": without, "tokens": tokens });
        json!({ "model": self.name, "heads": self.heads, "shares": shares, "cost": cost })
    }
}
