//! `baton-bench segmenter`: measures how many answers are cut in two by sentence boundaries, and the speed of
//! the splitting.
//!
//! The answers are those of XQuAD, which is not part of the project; the caller names its folder. An answer
//! is cut if a unit ends inside it. The speed is measured on generated text of several kinds, by the CPU time
//! of one thread.

use std::hint::black_box;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use baton_corpus::{document, stream};
use baton_protocol::sentences;
use baton_random::SplitMix64;
use serde_json::{Value, json};

use crate::clock::thread_seconds;
use crate::report::Report;

/// Options of `baton-bench segmenter`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with xquad.en.json and xquad.zh.json; without it, the part with answers is skipped
    #[arg(long, env = "BATON_XQUAD_DIR", value_name = "FOLDER")]
    xquad: Option<PathBuf>,
    /// Print every answer that is cut
    #[arg(long)]
    show: bool,
}

/// Languages of XQuAD, and the maximum number of cut answers out of 1,190, which a prototype reached.
const CUTS_MAX: [(&str, usize); 2] = [("en", 3), ("zh", 5)];
const QUESTIONS: usize = 1190;
const MB_PER_SECOND_MIN: f64 = 20.0;
/// Minimum length of each generated text in bytes.
const TEXT_BYTES: usize = 1 << 20;
/// Number of runs, of which the fastest counts, because other programs can only slow a run down.
const RUNS: usize = 9;

/// Runs the bench.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("segmenter");
    match &args.xquad {
        Some(folder) => cuts(&mut report, folder, args.show)?,
        None => report.note("skipped: XQuAD: name its folder by --xquad or BATON_XQUAD_DIR"),
    }
    let mut rows = Vec::new();
    for (name, text) in texts() {
        let mb_per_second = speed(&text);
        rows.push(vec![name.to_owned(), sentences(&text).len().to_string(), format!("{mb_per_second:.0}")]);
        report.check_at_least(format!("{name}: MB/s of one thread"), mb_per_second, MB_PER_SECOND_MIN);
    }
    report.table("speed on generated text", &["text", "units a MiB", "MB/s"], &rows);
    Ok(report)
}

/// A cut answer with the text around the boundary.
struct Cut {
    before: String,
    after: String,
    answer: String,
}

fn cuts(report: &mut Report, folder: &Path, show: bool) -> Result<()> {
    let mut rows = Vec::new();
    for (language, most) in CUTS_MAX {
        let path = folder.join(format!("xquad.{language}.json"));
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let json: Value =
            serde_json::from_slice(&bytes).with_context(|| format!("parse {}", path.display()))?;
        let (mut asked, mut units, mut paragraphs) = (0, 0, 0);
        let mut cut: Vec<Cut> = Vec::new();
        for (text, answers) in paragraphs_of(&json).with_context(|| format!("read {}", path.display()))? {
            let ends: Vec<usize> = sentences(&text).iter().map(|unit| unit.end).collect();
            asked += answers.len();
            units += ends.len();
            paragraphs += 1;
            cut.extend(answers.iter().filter_map(|answer| cut_of(&text, &ends, answer)));
        }
        ensure!(asked == QUESTIONS, "{} has {asked} answers, must be {QUESTIONS}", path.display());
        for cut in cut.iter().filter(|_| show) {
            report.note(format!("{language}: …{}|{}…  answer: {}", cut.before, cut.after, cut.answer));
        }
        rows.push(vec![
            language.to_owned(),
            paragraphs.to_string(),
            units.to_string(),
            cut.len().to_string(),
        ]);
        report.check_at_most(
            format!("xquad {language}: answers cut of {QUESTIONS}"),
            cut.len() as f64,
            most as f64,
        );
        report.data(language, json!({ "answers": asked, "cut": cut.len(), "units": units }));
    }
    report.table("XQuAD answers cut by a boundary", &["language", "paragraphs", "units", "cut"], &rows);
    Ok(())
}

/// Returns the text of each paragraph, and the byte ranges of its answers.
fn paragraphs_of(json: &Value) -> Result<Vec<(String, Vec<Range<usize>>)>> {
    let list = |value: &Value, what: &str| -> Result<Vec<Value>> {
        value.as_array().cloned().ok_or_else(|| anyhow!("`{what}` is not a list"))
    };
    let mut paragraphs = Vec::new();
    for article in list(&json["data"], "data")? {
        for paragraph in list(&article["paragraphs"], "paragraphs")? {
            let text = paragraph["context"].as_str().ok_or_else(|| anyhow!("`context` is not a text"))?;
            let mut answers = Vec::new();
            for question in list(&paragraph["qas"], "qas")? {
                let answer = &question["answers"][0];
                answers.push(
                    bytes_of(text, answer).ok_or_else(|| anyhow!("an answer is not in its paragraph"))?,
                );
            }
            paragraphs.push((text.to_owned(), answers));
        }
    }
    Ok(paragraphs)
}

/// Returns the byte range of an answer, which is given by its text and the character at which it starts.
fn bytes_of(text: &str, answer: &Value) -> Option<Range<usize>> {
    let first = usize::try_from(answer["answer_start"].as_u64()?).ok()?;
    let words = answer["text"].as_str()?.trim_end();
    let start = text.char_indices().nth(first)?.0;
    text[start..].starts_with(words).then(|| start..start + words.len())
}

fn cut_of(text: &str, ends: &[usize], answer: &Range<usize>) -> Option<Cut> {
    const AROUND: usize = 40;
    let end = *ends.iter().find(|&&end| answer.start < end && end < answer.end)?;
    Some(Cut {
        before: text[text.floor_char_boundary(end.saturating_sub(AROUND))..end].to_owned(),
        after: text[end..text.floor_char_boundary(end + AROUND)].to_owned(),
        answer: text[answer.clone()].to_owned(),
    })
}

/// Makes the generated texts: usual kinds of text, and one that is hard to split.
fn texts() -> [(&'static str, String); 5] {
    let filled = |mut next: Box<dyn FnMut() -> String>| {
        let mut text = String::with_capacity(TEXT_BYTES + (1 << 16));
        while text.len() < TEXT_BYTES {
            text.push_str(&next());
            text.push_str("\n\n");
        }
        text
    };
    let mut seed = 0;
    let english = Box::new(move || {
        seed += 1;
        document(seed, 1000).text
    });
    let mut rng = stream(1);
    let chinese = Box::new(move || cjk_paragraph(&mut rng, 0x4e00, 3000, ["，", "、", "。", "；"]));
    let mut rng = stream(2);
    let japanese = Box::new(move || cjk_paragraph(&mut rng, 0x3041, 80, ["、", "「", "。", "」"]));
    let mut rng = stream(3);
    let korean = Box::new(move || cjk_paragraph(&mut rng, 0xac00, 8000, [" ", ", ", ". ", "? "]));
    let mut line = 0;
    let marks = [
        "- one item. Two\n",
        "| a | b |\n",
        "1. step\n",
        "```\nx = 1.5\n```\n",
        "# Head\n",
        "Dr. A. B. et al. (2001; 2002).\n",
    ];
    let hard = Box::new(move || {
        line += 1;
        marks[line % marks.len()].repeat(7)
    });
    [
        ("English documents", filled(english)),
        ("Chinese", filled(chinese)),
        ("Japanese", filled(japanese)),
        ("Korean", filled(korean)),
        ("lists, tables, code", filled(hard)),
    ]
}

/// Makes a paragraph of random characters from a Unicode block, separated by punctuation marks.
fn cjk_paragraph(rng: &mut SplitMix64, first: u32, count: usize, marks: [&str; 4]) -> String {
    let mut text = String::new();
    for _ in 0..30 {
        for _ in 0..2 + rng.below(9) {
            let code = first + u32::try_from(rng.below(count)).expect("a block has fewer than 2^32");
            text.push(char::from_u32(code).unwrap_or('字'));
        }
        text.push_str(marks[rng.below(marks.len())]);
    }
    text
}

/// Returns the speed in megabytes per second of CPU time.
fn speed(text: &str) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let started = thread_seconds();
        black_box(sentences(black_box(text)));
        best = best.min(thread_seconds() - started);
    }
    text.len() as f64 / 1e6 / best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_where_a_unit_ends_inside_it() {
        let text = "One two. Three four.";
        let ends: Vec<usize> = sentences(text).iter().map(|unit| unit.end).collect();
        let cut = |start, chars| {
            let answer = json!({ "answer_start": start, "text": &text[start..start + chars] });
            cut_of(text, &ends, &bytes_of(text, &answer).expect("it is there")).map(|cut| cut.after)
        };
        assert_eq!(cut(0, 8), None);
        assert_eq!(cut(0, 9), None, "white space at its end does not count");
        assert_eq!(cut(4, 10).as_deref(), Some("Three four."));
        assert_eq!(cut(9, 11), None);
        assert_eq!(bytes_of(text, &json!({ "answer_start": 3, "text": "One" })), None);
    }

    #[test]
    fn every_generated_text_has_sentences_in_it() {
        for (name, text) in texts() {
            assert!(text.len() >= TEXT_BYTES && sentences(&text).len() > 5_000, "{name}");
        }
    }
}
