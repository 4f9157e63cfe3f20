//! `baton-bench privacy`: measures the recall and precision of the device's redactor by kind of private value
//! and by language, and its time. It also checks that no value leaves the device in conversations of several
//! turns.
//!
//! Names of people, places and organisations have lines of their own (`names.rs`), in English, German,
//! Spanish and Chinese. Real text with marked names is measured by `--real`. Strings of public texts that are
//! no names are read from the folder `BATON_NAMES`.
//!
//! Lines are made from templates and generators that share nothing with the detectors. There are two parts.
//! The first part (`seen`) may be used to improve the detectors. The templates of the second part (`unseen`)
//! were written at the same time and are only for the evaluation.

mod chats;
mod corpus;
mod ids;
mod names;
mod public;
mod real;
mod recorder;
mod score;
mod seen;
mod unseen;
mod values;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use baton_device::privacy::Redactor;
use serde_json::{Value, json};

use crate::report::Report;
use chats::Outcome;
use corpus::{Line, lines};
use names::{NameLine, NameScore};
use score::{Scene, Score};

/// Options of `baton-bench privacy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed of the private values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of conversations; half of them are over `baton serve`
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    conversations: u32,
    /// Also measure real text with marked names: a file with a word and its IOB2 tag on each line, and its
    /// language, as `FILE:en` (may be repeated)
    #[arg(long, value_name = "FILE:LANG")]
    real: Vec<String>,
    /// Print only what is replaced in a text file, outside conversations (may be repeated)
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Print the lines of the first part with wrong results
    #[arg(long)]
    wrong: bool,
    /// Print only the JSON object
    #[arg(long)]
    json: bool,
}

const RECALL_MIN: f64 = 0.99;
const PRECISION_MIN: f64 = 0.97;
/// The same for names in conversations, by language, on the part that no detector was written for.
const NAMES_RECALL_MIN: f64 = 0.85;
const NAMES_PRECISION_MIN: f64 = 0.9;
/// The least recall of places, and of names elsewhere, where words that no list has are no names by
/// themselves.
const OTHER_RECALL_MIN: f64 = 0.75;
const LINES_MIN: f64 = 2000.0;
/// Length of the timed texts in bytes.
const TIMED_BYTES: usize = 1 << 20;
/// Maximum time of redaction for a document of 1 MiB, in milliseconds.
const MS_PER_MIB_MAX: f64 = 1500.0;

/// Runs the bench.
pub(crate) fn run(args: &Args) -> anyhow::Result<Report> {
    let mut report = Report::new("privacy");
    if !args.text.is_empty() {
        args.text.iter().try_for_each(|file| public::print(&mut report, file))?;
        return Ok(report);
    }
    let seen = lines(&seen::SEEN, args.seed);
    let unseen = lines(&unseen::UNSEEN, args.seed ^ 0x5eed);
    let parts = [("seen", Score::of(&seen)?), ("unseen", Score::of(&unseen)?)];
    names::check_unlisted()?;
    let (seen_names, unseen_names) =
        (names::lines(&names::SEEN, args.seed)?, names::lines(&names::UNSEEN, args.seed ^ 0x5eed)?);
    let count = seen.len() + unseen.len() + seen_names.len() + unseen_names.len();
    report.check_at_least("lines", count as f64, LINES_MIN);
    for (part, score) in &parts {
        scored(&mut report, part, score);
    }
    if args.wrong {
        parts[0].1.wrong.iter().for_each(|line| report.note(line));
    }
    for scene in [Scene::Conversation, Scene::Other] {
        named(&mut report, "seen", scene, &seen_names, args.wrong)?;
        named(&mut report, "unseen", scene, &unseen_names, false)?;
    }
    match std::env::var_os(public::FOLDER) {
        Some(folder) => public::measure(&mut report, Path::new(&folder), args.wrong)?,
        None => report.note(format!("skipped: strings of public texts: {} is not set", public::FOLDER)),
    }
    for file in &args.real {
        real::measure(&mut report, file)?;
    }
    timed(&mut report, &seen)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let half = args.conversations as usize / 2;
    let chat = runtime.block_on(chats::chat(args.conversations as usize - half, args.seed))?;
    let api = runtime.block_on(chats::api(half, args.seed))?;
    talked(&mut report, &[("baton chat", &chat), ("baton serve", &api)]);
    report.data("seed", args.seed);
    if args.json {
        report.print_only_json();
    }
    Ok(report)
}

fn scored(report: &mut Report, part: &str, score: &Score) {
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for (kind, counts) in &score.kinds {
        let (recall, precision) = (counts.recall(), counts.precision());
        rows.push(vec![
            kind.name().to_owned(),
            counts.values.to_string(),
            format!("{recall:.3}"),
            counts.findings.to_string(),
            format!("{precision:.3}"),
        ]);
        figures.push(json!({ "kind": kind.name(), "values": counts.values, "recall": recall, "findings": counts.findings, "precision": precision }));
        report.check_at_least(format!("{part}: {}: recall", kind.name()), recall, RECALL_MIN);
        report.check_at_least(format!("{part}: {}: precision", kind.name()), precision, PRECISION_MIN);
    }
    let title = format!(
        "{part}: {} lines, {} of {} harmless ones changed, {} findings of names",
        score.lines, score.harmless_changed, score.harmless, score.names
    );
    report.table(&title, &["kind", "values", "recall", "findings", "precision"], &rows);
    let languages: Vec<String> = score
        .languages
        .iter()
        .map(|(language, values, hits)| format!("{language} {hits}/{values}"))
        .collect();
    report.note(format!("found by language: {}", languages.join(", ")));
    let languages: Vec<Value> = score
        .languages
        .iter()
        .map(|(language, values, hits)| json!({ "language": language, "values": values, "found": hits }))
        .collect();
    report.data(part, json!({ "lines": score.lines, "harmless": score.harmless, "harmless_changed": score.harmless_changed, "kinds": figures, "languages": languages }));
}

/// Scores the redactor on the lines with names of a part, by language.
fn named(
    report: &mut Report,
    part: &str,
    scene: Scene,
    lines: &[NameLine],
    wrong: bool,
) -> anyhow::Result<()> {
    let place = match scene {
        Scene::Conversation => "in a conversation",
        Scene::Other => "elsewhere",
    };
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for (language, _) in &names::UNSEEN {
        let score = NameScore::of(language, lines, scene)?;
        let names = score.listed.and(score.unlisted).and(score.orgs);
        let shares = [
            names,
            score.names_right,
            score.places,
            score.places_right,
            score.listed,
            score.unlisted,
            score.orgs,
            score.harmless,
        ];
        let cells = shares.map(|share| format!("{:.3} of {}", share.rate(), share.of));
        rows.push([vec![(*language).to_owned(), score.lines.to_string()], cells.to_vec()].concat());
        figures.push(json!({
            "language": language, "lines": score.lines,
            "names": { "values": names.of, "recall": names.rate(), "findings": score.names_right.of, "precision": score.names_right.rate() },
            "places": { "values": score.places.of, "recall": score.places.rate(), "findings": score.places_right.of, "precision": score.places_right.rate() },
            "recall": { "listed people": score.listed.rate(), "unlisted people": score.unlisted.rate(), "organisations": score.orgs.rate() },
            "harmless": score.harmless.of, "harmless_unchanged": score.harmless.hits,
        }));
        if part == "unseen" {
            let least = if scene == Scene::Conversation { NAMES_RECALL_MIN } else { OTHER_RECALL_MIN };
            for (name, share, least) in [
                ("names: recall", names, least),
                ("names: precision", score.names_right, NAMES_PRECISION_MIN),
                ("places: recall", score.places, OTHER_RECALL_MIN),
                ("places: precision", score.places_right, NAMES_PRECISION_MIN),
            ] {
                let claim = format!("{part}: {language}: {name}, {place}");
                report.check_at_least(claim, share.rate(), least);
            }
        }
        if wrong {
            score.wrong.iter().for_each(|line| report.note(line));
        }
    }
    let header = [
        "language",
        "lines",
        "recall of people and organisations",
        "their precision",
        "recall of places",
        "their precision",
        "people in the lists",
        "people in no list",
        "organisations",
        "harmless lines unchanged",
    ];
    report.table(&format!("{part}: names, {place}"), &header, &rows);
    report.data(&format!("{part} names, {place}"), figures);
    Ok(())
}

/// Times the redaction of long texts.
fn timed(report: &mut Report, lines: &[Line]) -> anyhow::Result<()> {
    let repeat = |text: &str| text.repeat(TIMED_BYTES.div_ceil(text.len()));
    let dense: String = lines.iter().map(|line| format!("{}\n", line.text)).collect();
    let prose =
        "The committee met on a rainy morning and, after a long debate, put the matter off until spring. ";
    let cjk = "委员会在一个下雨的早晨开会，经过长时间的辩论，把这件事推迟到了春天。";
    let digits = "Row 17: 4, 8, 15.5, 16, 23, 42; 2024-01-15 10:30, total 108.50; ";
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for (name, text) in [
        ("prose", repeat(prose)),
        ("Chinese prose", repeat(cjk)),
        ("tables of numbers", repeat(digits)),
        ("private lines", repeat(&dense)),
    ] {
        let started = Instant::now();
        let redacted = Redactor::default().redact(black_box(&text)).context("redact a long text")?;
        let ms = started.elapsed().as_secs_f64() * 1e3 * TIMED_BYTES as f64 / text.len() as f64;
        black_box(redacted);
        rows.push(vec![name.to_owned(), format!("{ms:.0}")]);
        figures.push(json!({ "text": name, "ms_per_mib": ms }));
        report.check_at_most(format!("{name}: ms per MiB"), ms, MS_PER_MIB_MAX);
    }
    report.table("time of redaction", &["text", "ms per MiB"], &rows);
    report.data("time", figures);
    Ok(())
}

fn talked(report: &mut Report, outcomes: &[(&str, &Outcome)]) {
    let mut rows = Vec::new();
    for (name, outcome) in outcomes {
        let figures = [
            outcome.conversations,
            outcome.requests,
            outcome.canaries,
            outcome.restored,
            outcome.leaks.len(),
        ];
        rows.push([vec![(*name).to_owned()], figures.map(|n| n.to_string()).to_vec()].concat());
        report.check_equal(format!("{name}: values on the wire"), outcome.leaks.len() as f64, 0.0);
        report.check_at_least(
            format!("{name}: answers that showed a value again"),
            outcome.restored as f64,
            outcome.conversations as f64,
        );
        report.data(name, json!({ "conversations": outcome.conversations, "requests": outcome.requests, "values": outcome.canaries, "restored": outcome.restored, "leaks": outcome.leaks }));
    }
    let header = [
        "conversations through",
        "count",
        "requests",
        "values given",
        "answers that showed one",
        "values on the wire",
    ];
    report.table("conversations before a cloud that repeats what it is sent", &header, &rows);
}
