//! `baton-bench mask`: measures the size of the mask, and the time to encode and decode it.
//!
//! Documents consist of random sentences with lengths as in English prose. The kept sentences are scattered
//! (each drawn independently) or clustered (runs of adjacent sentences). Our mask with one bit per sentence
//! is compared with the paper's (one bit per token, compressed with gzip) and with an ideal coder of the
//! sentence bits.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use baton_pacing::refit::median;
use baton_protocol::{
    MASK_OVERHEAD_MAX, Role, Segment, SentenceMap, decode_mask, decode_token_mask, encode_mask,
    encode_token_mask,
};
use baton_random::SplitMix64;
use serde_json::json;

use crate::report::Report;

/// Options of `baton-bench mask`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed of the random documents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of documents of each size
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    documents: u32,
}

const SIZES: [usize; 2] = [8 * 1024, 32 * 1024];
const RATIOS: [f64; 3] = [0.1, 0.25, 0.5];
/// Median of the sentence lengths in tokens. Lengths are log-normal with this median and the spread below,
/// within the limits below; their mean is about 22.
const SENTENCE_MEDIAN: f64 = 19.5;
const SENTENCE_SPREAD: f64 = 0.5;
const SENTENCE_LIMITS: (f64, f64) = (3.0, 64.0);
/// Mean number of sentences in a run, for clustered picks.
const RUN_MEAN: f64 = 6.0;
/// Number of times that each mask is encoded and decoded for the timing.
const TIMED_RUNS: usize = 25;
const CODEC_MICROS_MAX: f64 = 1000.0;

/// How the kept sentences are distributed in the document.
#[derive(Debug, Clone, Copy)]
enum Picks {
    Scattered,
    Clustered,
}

impl Picks {
    fn name(self) -> &'static str {
        match self {
            Self::Scattered => "scattered",
            Self::Clustered => "clustered",
        }
    }
}

/// A document for the measurement of masks.
struct Document {
    map: SentenceMap,
    /// Tokens of each sentence.
    lengths: Vec<usize>,
    map_micros: f64,
}

/// The sums and samples of one row of the table.
#[derive(Default)]
struct Row {
    sentences: f64,
    ours: f64,
    overhead_max: usize,
    paper: f64,
    ideal: f64,
    ideal_runs: f64,
    ours_micros: Vec<f64>,
    paper_micros: Vec<f64>,
}

/// Runs the bench.
pub(crate) fn run(args: &Args) -> anyhow::Result<Report> {
    let mut report = Report::new("mask");
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for tokens in SIZES {
        let mut rng = SplitMix64::new(args.seed ^ tokens as u64);
        let documents: Vec<Document> =
            (0..args.documents).map(|_| document(&mut rng, tokens)).collect::<anyhow::Result<_>>()?;
        for ratio in RATIOS {
            for picks in [Picks::Scattered, Picks::Clustered] {
                let row = measure(&mut rng, &documents, ratio, picks)?;
                let name = format!("{}k, r {ratio}, {}", tokens / 1024, picks.name());
                rows.push(row.cells(&name));
                figures.push(row.figures(tokens, ratio, picks));
                row.check(&mut report, &name);
            }
        }
        let map_micros = middle(documents.iter().map(|d| d.map_micros));
        report.note(format!(
            "{}k: splitting the text into sentences takes {map_micros:.0} us (median)",
            tokens / 1024
        ));
    }
    let header = [
        "tokens, ratio, picks",
        "sentences",
        "ours B",
        "paper B",
        "ideal B",
        "ideal runs B",
        "ours us",
        "paper us",
    ];
    report.table("mask sizes in bytes (mean) and encode + decode (median)", &header, &rows);
    report.note("ours: header and one bit a sentence. paper: a bit a token through gzip.");
    report.note(
        "ideal: entropy of independent sentence bits; ideal runs: of bits that depend on the one before.",
    );
    report.data("rows", figures);
    report.data("seed", args.seed);
    report.data("documents", args.documents);
    Ok(report)
}

impl Row {
    fn cells(&self, name: &str) -> Vec<String> {
        let figures = [self.sentences, self.ours, self.paper, self.ideal, self.ideal_runs];
        let mut cells = vec![name.to_owned()];
        cells.extend(figures.iter().map(|figure| format!("{figure:.0}")));
        cells.push(format!("{:.1}", middle(self.ours_micros.iter().copied())));
        cells.push(format!("{:.1}", middle(self.paper_micros.iter().copied())));
        cells
    }

    fn figures(&self, tokens: usize, ratio: f64, picks: Picks) -> serde_json::Value {
        json!({
            "tokens": tokens, "ratio": ratio, "picks": picks.name(), "sentences": self.sentences,
            "ours_bytes": self.ours, "overhead_bytes_max": self.overhead_max, "paper_bytes": self.paper,
            "ideal_bytes": self.ideal, "ideal_runs_bytes": self.ideal_runs,
            "ours_us": middle(self.ours_micros.iter().copied()),
            "paper_us": middle(self.paper_micros.iter().copied()),
        })
    }

    fn check(&self, report: &mut Report, name: &str) {
        let overhead = self.overhead_max as f64;
        report.check_at_most(format!("{name}: bytes over ceil(count/8)"), overhead, MASK_OVERHEAD_MAX as f64);
        let micros = middle(self.ours_micros.iter().copied());
        report.check_at_most(format!("{name}: encode + decode us"), micros, CODEC_MICROS_MAX);
    }
}

/// Makes a document of `tokens` tokens.
fn document(rng: &mut SplitMix64, tokens: usize) -> anyhow::Result<Document> {
    let mut text = String::new();
    let mut lengths: Vec<usize> = Vec::new();
    let mut left = tokens;
    while left > 0 {
        let (least, most) = SENTENCE_LIMITS;
        let drawn = (SENTENCE_MEDIAN * (SENTENCE_SPREAD * normal(rng)).exp()).round().clamp(least, most);
        let length = (drawn as usize).min(left);
        left -= length;
        push_sentence(rng, &mut text, length, lengths.len() % 5 == 4);
        lengths.push(length);
    }
    let segments = [Segment::refinable(Role::User, text)];
    let started = Instant::now();
    let map = SentenceMap::new(&segments);
    let map_micros = started.elapsed().as_secs_f64() * 1e6;
    ensure!(map.len() == lengths.len(), "{} sentences became {} units", lengths.len(), map.len());
    Ok(Document { map, lengths, map_micros })
}

/// Appends a sentence of `length` tokens, including its full stop. `last`: the paragraph ends with it.
fn push_sentence(rng: &mut SplitMix64, text: &mut String, length: usize, last: bool) {
    let words = length.max(2) - 1;
    for word in 1..=words {
        // The last word is longer than any abbreviation, so that its full stop ends the sentence.
        let letters = if word == words { 8 } else { 2 + rng.remainder(8) };
        for letter in 0..letters {
            let first = if word == 1 && letter == 0 { b'A' } else { b'a' };
            text.push(char::from(first + rng.remainder(26) as u8));
        }
        text.push_str(if word < words { " " } else { "." });
    }
    text.push_str(if last { "\n\n" } else { " " });
}

fn measure(rng: &mut SplitMix64, documents: &[Document], ratio: f64, picks: Picks) -> anyhow::Result<Row> {
    let mut row = Row::default();
    for document in documents {
        let kept = pick(rng, &document.lengths, ratio, picks);
        let tokens: Vec<bool> = kept
            .iter()
            .zip(&document.lengths)
            .flat_map(|(&kept, &length)| std::iter::repeat_n(kept, length))
            .collect();
        let ours = encode_mask(&document.map, &kept);
        let paper = encode_token_mask(&tokens);
        ensure!(decode_mask(&document.map, &ours)? == kept, "the mask does not read back");
        ensure!(decode_token_mask(&paper, tokens.len())? == tokens, "the token mask does not read back");
        row.sentences += kept.len() as f64;
        row.ours += ours.len() as f64;
        row.overhead_max = row.overhead_max.max(ours.len() - kept.len().div_ceil(8));
        row.paper += paper.len() as f64;
        row.ideal += entropy_bytes(&kept);
        row.ideal_runs += entropy_of_runs_bytes(&kept);
        for _ in 0..TIMED_RUNS {
            row.ours_micros
                .push(micros(|| decode_mask(&document.map, &encode_mask(&document.map, black_box(&kept)))));
            row.paper_micros
                .push(micros(|| decode_token_mask(&encode_token_mask(black_box(&tokens)), tokens.len())));
        }
    }
    let n = documents.len() as f64;
    for sum in [&mut row.sentences, &mut row.ours, &mut row.paper, &mut row.ideal, &mut row.ideal_runs] {
        *sum /= n;
    }
    Ok(row)
}

/// Picks sentences until their tokens are `ratio` of all.
fn pick(rng: &mut SplitMix64, lengths: &[usize], ratio: f64, picks: Picks) -> Vec<bool> {
    let budget = ratio * lengths.iter().sum::<usize>() as f64;
    let mut kept = vec![false; lengths.len()];
    let mut used = 0.0;
    while used < budget {
        let start = rng.remainder(lengths.len());
        let run = match picks {
            Picks::Scattered => 1,
            Picks::Clustered => 1 + (-above_zero(rng).ln() * (RUN_MEAN - 1.0)).round() as usize,
        };
        for unit in start..(start + run).min(lengths.len()) {
            if !kept[unit] && used < budget {
                kept[unit] = true;
                used += lengths[unit] as f64;
            }
        }
    }
    kept
}

/// Returns the entropy in bits of a binary choice with probability `p`.
fn choice_bits(p: f64) -> f64 {
    if p <= 0.0 || p >= 1.0 { 0.0 } else { -p * p.log2() - (1.0 - p) * (1.0 - p).log2() }
}

/// Returns the bytes of an ideal coder that knows the share of kept sentences.
fn entropy_bytes(kept: &[bool]) -> f64 {
    let share = kept.iter().filter(|&&k| k).count() as f64 / kept.len() as f64;
    kept.len() as f64 * choice_bits(share) / 8.0
}

/// Returns the bytes of an ideal coder that knows the probability of each bit given the bit before.
fn entropy_of_runs_bytes(kept: &[bool]) -> f64 {
    let after = |before: bool| {
        let pairs = || kept.windows(2).filter(move |pair| pair[0] == before);
        let count = pairs().count() as f64;
        let set = pairs().filter(|pair| pair[1]).count() as f64;
        if count == 0.0 { 0.0 } else { count * choice_bits(set / count) }
    };
    (after(false) + after(true)) / 8.0
}

fn micros<T>(work: impl FnOnce() -> T) -> f64 {
    let started = Instant::now();
    black_box(work());
    started.elapsed().as_secs_f64() * 1e6
}

/// Returns the median, or NaN if there are no values.
fn middle(values: impl IntoIterator<Item = f64>) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

/// Draws a uniform number in (0, 1]; it is never 0, so that it has a logarithm.
fn above_zero(rng: &mut SplitMix64) -> f64 {
    rng.unit() + f64::EPSILON / 2.0
}

/// Draws a standard normal number by the method of Box and Muller.
fn normal(rng: &mut SplitMix64) -> f64 {
    let (radius, angle) = (above_zero(rng), above_zero(rng));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropies_of_known_masks() {
        assert_eq!(entropy_bytes(&[true, false, true, false, true, false, true, false]), 1.0);
        assert_eq!(entropy_bytes(&[true; 8]), 0.0);
        assert_eq!(entropy_of_runs_bytes(&[true, false, true, false, true, false, true, false]), 0.0);
        assert_eq!(choice_bits(0.5), 1.0);
    }

    #[test]
    fn picks_reach_the_ratio_and_clusters_have_fewer_runs() {
        let lengths = vec![20; 1000];
        let runs = |kept: &[bool]| kept.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let scattered = pick(&mut SplitMix64::new(1), &lengths, 0.25, Picks::Scattered);
        let clustered = pick(&mut SplitMix64::new(1), &lengths, 0.25, Picks::Clustered);
        for kept in [&scattered, &clustered] {
            assert_eq!(kept.iter().filter(|&&k| k).count(), 250);
        }
        assert!(2 * runs(&clustered) < runs(&scattered), "{} {}", runs(&clustered), runs(&scattered));
    }

    #[test]
    fn a_small_bench_holds() {
        let report = run(&Args { seed: 3, documents: 1 }).unwrap();
        assert!(report.render().contains("\"holds\":true"), "{}", report.render());
    }
}
