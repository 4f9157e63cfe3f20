//! `baton-bench mask`: how large the mask is, and how long it takes to encode and decode.
//!
//! Documents of made-up sentences with lengths as in English prose, from the seed; the sentences to keep are picked
//! scattered (each on its own) or clustered (runs of neighbours). Beside our sentence bits stand the paper's kind
//! (a bit a token through gzip) and what an ideal coder of the sentence bits would need.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use baton_protocol::{
    MASK_OVERHEAD_MAX, Role, Segment, SentenceMap, decode_mask, decode_token_mask, encode_mask,
    encode_token_mask,
};
use serde_json::json;

use crate::report::Report;

/// Options of `baton-bench mask`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seed of the made-up documents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Documents of each size
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    documents: u32,
}

const SIZES: [usize; 2] = [8 * 1024, 32 * 1024];
const RATIOS: [f64; 3] = [0.1, 0.25, 0.5];
/// Tokens of a sentence: log-normal of this median and spread, within these limits. The mean is about 22.
const SENTENCE_MEDIAN: f64 = 19.5;
const SENTENCE_SPREAD: f64 = 0.5;
const SENTENCE_LIMITS: (f64, f64) = (3.0, 64.0);
/// Sentences of a clustered pick's runs, on average.
const RUN_MEAN: f64 = 6.0;
/// Times each mask is encoded and decoded for the timing.
const TIMED_RUNS: usize = 25;
const CODEC_MICROS_MAX: f64 = 1000.0;

/// How the sentences to keep lie in the document.
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

/// A document as far as masks are concerned.
struct Document {
    map: SentenceMap,
    /// Tokens of each sentence.
    lengths: Vec<usize>,
    map_micros: f64,
}

/// What one row of the table adds up.
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
pub fn run(args: &Args) -> anyhow::Result<Report> {
    let mut report = Report::new("mask");
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for tokens in SIZES {
        let mut rng = Rng(args.seed ^ tokens as u64);
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
        let map_micros = median(documents.iter().map(|d| d.map_micros).collect());
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
        cells.push(format!("{:.1}", median(self.ours_micros.clone())));
        cells.push(format!("{:.1}", median(self.paper_micros.clone())));
        cells
    }

    fn figures(&self, tokens: usize, ratio: f64, picks: Picks) -> serde_json::Value {
        json!({
            "tokens": tokens, "ratio": ratio, "picks": picks.name(), "sentences": self.sentences,
            "ours_bytes": self.ours, "overhead_bytes_max": self.overhead_max, "paper_bytes": self.paper,
            "ideal_bytes": self.ideal, "ideal_runs_bytes": self.ideal_runs,
            "ours_us": median(self.ours_micros.clone()), "paper_us": median(self.paper_micros.clone()),
        })
    }

    fn check(&self, report: &mut Report, name: &str) {
        let overhead = self.overhead_max as f64;
        report.check_at_most(format!("{name}: bytes over ceil(count/8)"), overhead, MASK_OVERHEAD_MAX as f64);
        let micros = median(self.ours_micros.clone());
        report.check_at_most(format!("{name}: encode + decode us"), micros, CODEC_MICROS_MAX);
    }
}

/// A document of about `tokens` tokens.
fn document(rng: &mut Rng, tokens: usize) -> anyhow::Result<Document> {
    let mut text = String::new();
    let mut lengths: Vec<usize> = Vec::new();
    let mut left = tokens;
    while left > 0 {
        let (least, most) = SENTENCE_LIMITS;
        let drawn = (SENTENCE_MEDIAN * (SENTENCE_SPREAD * rng.normal()).exp()).round().clamp(least, most);
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

/// A sentence of `length` tokens, its full stop counted; `last`: the paragraph ends with it.
fn push_sentence(rng: &mut Rng, text: &mut String, length: usize, last: bool) {
    let words = length.max(2) - 1;
    for word in 1..=words {
        // The last word is longer than any abbreviation, or its full stop would not end the sentence.
        let letters = if word == words { 8 } else { 2 + rng.below(8) };
        for letter in 0..letters {
            let first = if word == 1 && letter == 0 { b'A' } else { b'a' };
            text.push(char::from(first + rng.below(26) as u8));
        }
        text.push_str(if word < words { " " } else { "." });
    }
    text.push_str(if last { "\n\n" } else { " " });
}

fn measure(rng: &mut Rng, documents: &[Document], ratio: f64, picks: Picks) -> anyhow::Result<Row> {
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
fn pick(rng: &mut Rng, lengths: &[usize], ratio: f64, picks: Picks) -> Vec<bool> {
    let budget = ratio * lengths.iter().sum::<usize>() as f64;
    let mut kept = vec![false; lengths.len()];
    let mut used = 0.0;
    while used < budget {
        let start = rng.below(lengths.len());
        let run = match picks {
            Picks::Scattered => 1,
            Picks::Clustered => 1 + (-rng.unit().ln() * (RUN_MEAN - 1.0)).round() as usize,
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

/// Bits of a two-way choice of this probability.
fn choice_bits(p: f64) -> f64 {
    if p <= 0.0 || p >= 1.0 { 0.0 } else { -p * p.log2() - (1.0 - p) * (1.0 - p).log2() }
}

/// What an ideal coder needs that knows how many sentences are kept.
fn entropy_bytes(kept: &[bool]) -> f64 {
    let share = kept.iter().filter(|&&k| k).count() as f64 / kept.len() as f64;
    kept.len() as f64 * choice_bits(share) / 8.0
}

/// What an ideal coder needs that knows how often a bit is followed by the other.
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// SplitMix64 (Steele, Lea, Flood 2014): same seed, same documents.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// In 0..n.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Standard normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.unit(), self.unit());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
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
        let scattered = pick(&mut Rng(1), &lengths, 0.25, Picks::Scattered);
        let clustered = pick(&mut Rng(1), &lengths, 0.25, Picks::Clustered);
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
