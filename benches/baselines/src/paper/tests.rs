//! Compares the paper's choice with cases computed by NumPy (`tests/record_paper.py`).

use baton_protocol::{Role, Segment, SentenceMap};
use baton_refine::ContentTokens;
use serde::Deserialize;

use super::*;
use crate::{Baseline, Evidence, Input, choose};

#[derive(Deserialize)]
struct Recorded {
    scale: f32,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// Position of the first content token.
    first: usize,
    /// Tokens of each sentence.
    lengths: Vec<usize>,
    ratio: f32,
    /// `[heads, keys]`, as integers; a score is the integer divided by `scale`.
    scores: Vec<Vec<u32>>,
    votes: Vec<u32>,
    kept: Vec<usize>,
}

#[test]
fn votes_and_sentences_are_those_of_numpy() {
    let recorded: Recorded = serde_json::from_str(include_str!("../../tests/data/paper.json")).unwrap();
    assert!(recorded.cases.len() >= 20);
    for (index, case) in recorded.cases.iter().enumerate() {
        let text: String = case.lengths.iter().map(|&len| format!("- {}\n", "a".repeat(len))).collect();
        let spans: Vec<_> = text.match_indices('a').map(|(at, _)| at..at + 1).collect();
        let segments = [Segment::refinable(Role::User, text)];
        let map = SentenceMap::new(&segments);
        let parts = [ContentTokens { segment: 0, first: case.first, spans: &spans }];
        let keys = case.scores[0].len();
        let mean: Vec<f32> = case.scores.iter().flatten().map(|&part| part as f32 / recorded.scale).collect();
        let heads: Vec<_> = (0..case.scores.len()).map(|head| (0, head)).collect();
        let scores = Scores { heads: &heads, keys, mean: &mean, queries: keys.saturating_sub(32)..keys };
        let content = Content::new(&segments, &map, &parts, keys).unwrap();
        let budget = content.budget(case.ratio).unwrap();
        assert_eq!(votes(&content, &scores, budget), case.votes, "votes of case {index}");
        let chosen = choose(&Input {
            segments: &segments,
            map: &map,
            content: &parts,
            prompt_tokens: keys,
            evidence: Evidence::Attention(scores),
            calibration: None,
            question: "",
            ratio: case.ratio,
            ranking: Baseline::Paper.into(),
        });
        let kept = chosen.unwrap().refined.kept;
        let kept: Vec<usize> = (0..kept.len()).filter(|&unit| kept[unit]).collect();
        assert_eq!(kept, case.kept, "sentences of case {index}");
    }
}
