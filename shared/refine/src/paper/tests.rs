//! The paper's choice against cases that NumPy made: `tests/record_paper.py` says how.

use baton_protocol::{Role, Segment, SentenceMap};
use serde::Deserialize;

use super::*;
use crate::content::ContentTokens;
use crate::mode::Mode;
use crate::refine::{Evidence, RefineInput, refine};

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
    /// `[heads, keys]`, in whole parts of the scale.
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
        let budget = crate::budget::token_budget(case.ratio, content.tokens.len());
        assert_eq!(votes(&content, &scores, budget), case.votes, "votes of case {index}");
        let refined = refine(RefineInput {
            segments: &segments,
            map: &map,
            content: &parts,
            prompt_tokens: keys,
            evidence: Evidence::Attention(scores),
            calibration: None,
            question: "",
            ratio: case.ratio,
            mode: Mode::Paper,
        });
        let kept = refined.unwrap().kept;
        let kept: Vec<usize> = (0..kept.len()).filter(|&unit| kept[unit]).collect();
        assert_eq!(kept, case.kept, "sentences of case {index}");
    }
}
