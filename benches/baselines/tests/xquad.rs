//! Measures the recall of the gold sentence on mixes of 30 XQuAD paragraphs, of BM25 and of a random choice.
//! Attention must beat BM25.
//!
//! The data is not part of the project: `BATON_XQUAD_DIR` names the folder with `xquad.en.json` and
//! `xquad.zh.json`. Without it, the tests print that they are skipped, and pass.

use std::ops::Range;
use std::path::PathBuf;

use baton_baselines::{Baseline, Evidence, Input, Ranking, choose};
use baton_protocol::{Role, Segment, SentenceMap, is_cjk};
use baton_refine::{ContentTokens, Mode};
use serde_json::Value;

const MIX: usize = 30;

struct Paragraph {
    text: String,
    /// Questions, each with the bytes of its answer.
    questions: Vec<(String, Range<usize>)>,
}

fn paragraphs(language: &str) -> Option<Vec<Paragraph>> {
    let Some(dir) = std::env::var_os("BATON_XQUAD_DIR") else {
        println!("skipped: BATON_XQUAD_DIR is not set");
        return None;
    };
    let path = PathBuf::from(dir).join(format!("xquad.{language}.json"));
    let json: Value = serde_json::from_slice(&std::fs::read(&path).expect("the folder has both files"))
        .expect("XQuAD is JSON");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let mut all = Vec::new();
    for paragraph in list(&json["data"]).iter().flat_map(|article| list(&article["paragraphs"])) {
        let text = text_of(&paragraph["context"]).to_owned();
        let asked = list(&paragraph["qas"]);
        let questions = asked.iter().map(|qa| {
            let answer = &qa["answers"][0];
            let chars = answer["answer_start"].as_u64().expect("a number") as usize;
            let start = text.char_indices().nth(chars).expect("the answer is in the text").0;
            let end = start + text_of(&answer["text"]).len();
            (text_of(&qa["question"]).to_owned(), start..end)
        });
        let questions = questions.collect();
        all.push(Paragraph { text, questions });
    }
    Some(all)
}

fn text_of(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Splits a text into words, and CJK text into single characters.
fn spans(text: &str) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut open = false;
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        match spans.last_mut() {
            Some(last) if open && !c.is_whitespace() && !is_cjk(c) => last.end = end,
            _ => spans.push(at..end),
        }
        open = !is_cjk(c);
    }
    spans
}

/// Returns the share of questions whose answer lies completely in kept sentences.
fn recall(paragraphs: &[Paragraph], ranking: Ranking, ratio: f32) -> f64 {
    let (mut found, mut asked) = (0, 0);
    let mixes = paragraphs.len() / MIX;
    for mix in 0..mixes {
        let chosen: Vec<&Paragraph> = paragraphs.iter().skip(mix).step_by(mixes).collect();
        assert_eq!(chosen.len(), MIX);
        let text = chosen.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join("\n\n");
        let segments = [Segment::refinable(Role::User, text.clone())];
        let map = SentenceMap::new(&segments);
        let spans = spans(&text);
        let mut offset = 0;
        for paragraph in chosen {
            for (question, answer) in &paragraph.questions {
                let chosen = choose(&Input {
                    segments: &segments,
                    map: &map,
                    content: &[ContentTokens { segment: 0, first: 0, spans: &spans }],
                    prompt_tokens: spans.len(),
                    evidence: Evidence::Nothing,
                    calibration: None,
                    question,
                    ratio,
                    ranking,
                });
                let kept = chosen.expect("the parts fit").refined.kept;
                let gold = map.units().iter().enumerate().filter(|(_, unit)| {
                    unit.bytes.start < offset + answer.end && offset + answer.start < unit.bytes.end
                });
                asked += 1;
                found += usize::from(gold.into_iter().all(|(index, _)| kept[index]));
            }
            offset += paragraph.text.len() + 2;
        }
    }
    assert_eq!(asked, 1190);
    found as f64 / asked as f64
}

#[track_caller]
fn check(language: &str, ranking: impl Into<Ranking>, want: [(f32, f64, f64); 2]) {
    let Some(paragraphs) = paragraphs(language) else { return };
    let ranking = ranking.into();
    for (ratio, least, most) in want {
        let recall = recall(&paragraphs, ranking, ratio);
        println!("{language} {ranking} r {ratio}: recall {:.1} %", 100.0 * recall);
        assert!((least..=most).contains(&recall), "{language} {ranking} r {ratio}: {recall}");
    }
}

#[test]
fn bm25_english() {
    check("en", Mode::Bm25, [(0.1, 0.95, 1.0), (0.25, 0.965, 1.0)]);
}

#[test]
fn bm25_chinese() {
    check("zh", Mode::Bm25, [(0.1, 0.965, 1.0), (0.25, 0.975, 1.0)]);
}

#[test]
fn random_is_near_the_ratio() {
    check("en", Baseline::Random { seed: 1 }, [(0.1, 0.06, 0.14), (0.25, 0.20, 0.30)]);
    check("zh", Baseline::Random { seed: 1 }, [(0.1, 0.06, 0.14), (0.25, 0.20, 0.30)]);
}
