//! Hand-made cases of each baseline's choice, the definition of the paper's votes, and properties of all
//! baselines.

use std::ops::Range;

use baton_protocol::{Role, Segment, SentenceMap};
use baton_refine::{Content, ContentTokens, RefineError, Scores};
use proptest::prelude::*;

use super::*;

/// Ten list items of four one-letter tokens each.
fn items() -> (Vec<Segment>, SentenceMap, Vec<Range<usize>>) {
    let text: String = ('a'..='j').map(|c| format!("- {}\n", c.to_string().repeat(4))).collect();
    let letters = text.char_indices().filter(|(_, c)| c.is_ascii_alphabetic());
    let spans = letters.map(|(at, _)| at..at + 1).collect();
    let segments = vec![Segment::refinable(Role::User, text)];
    let map = SentenceMap::new(&segments);
    (segments, map, spans)
}

fn run(baseline: Baseline, ratio: f32, evidence: Evidence<'_>) -> Result<Chosen, ChoiceError> {
    let (segments, map, spans) = items();
    choose(&Input {
        segments: &segments,
        map: &map,
        content: &[ContentTokens { segment: 0, first: 2, spans: &spans }],
        prompt_tokens: 50,
        evidence,
        calibration: None,
        question: "",
        ratio,
        ranking: baseline.into(),
    })
}

fn attention(hot: &[(usize, f32)]) -> Vec<f32> {
    let mut mean = vec![0.001; 50];
    for &(position, weight) in hot {
        mean[position] = weight;
    }
    mean
}

#[track_caller]
fn check(baseline: Baseline, ratio: f32, rows: &[Vec<f32>], tokens: &[usize], units: &[usize]) {
    let heads: Vec<_> = (0..rows.len()).map(|head| (0, head)).collect();
    let mean = rows.concat();
    let scores = Scores { heads: &heads, keys: 50, mean: &mean, queries: 49..50 };
    let chosen = run(baseline, ratio, Evidence::Attention(scores)).unwrap();
    let set = |flags: &[bool]| {
        flags.iter().enumerate().filter(|(_, set)| **set).map(|(i, _)| i).collect::<Vec<_>>()
    };
    assert_eq!(set(chosen.tokens.as_deref().unwrap()), tokens, "{baseline} tokens");
    assert_eq!(set(&chosen.refined.kept), units, "{baseline} units");
}

#[test]
fn tokens_are_those_with_most_votes() {
    // Two heads vote for tokens 20 to 26 (units 5 and 6), the third for others. Each head has 8 votes.
    let rows = [attention(&[(25, 0.5)]), attention(&[(25, 0.4)]), attention(&[(5, 0.9)])];
    check(Baseline::Tokens, 0.2, &rows, &[0, 20, 21, 22, 23, 24, 25, 26], &[5, 6]);
}

#[test]
fn the_filter_takes_what_its_heads_see_together() {
    let rows = [attention(&[(13, 0.3)]), attention(&[(13, 0.3), (33, 0.5)])];
    check(Baseline::GemFilter, 0.125, &rows, &[9, 10, 11, 12, 13], &[2]);
}

#[test]
fn chunks_are_kept_or_dropped_as_a_whole() {
    // 40 tokens are 4 chunks. The tokens with much attention are in the chunks 10..20 and 30..40.
    let rows = [attention(&[(2 + 12, 0.5), (2 + 31, 0.4)])];
    let tokens: Vec<usize> = (10..20).chain(30..40).collect();
    check(Baseline::Chunk, 0.5, &rows, &tokens, &[2, 3, 4, 8, 9]);
    check(Baseline::Chunk, 0.4, &rows, &(10..20).collect::<Vec<_>>(), &[0, 2, 3, 4]);
}

#[test]
fn a_stream_is_its_start_and_its_end() {
    let kept = |ratio| run(Baseline::Streaming, ratio, Evidence::Nothing).unwrap();
    let units = |chosen: &Chosen| (0..10).filter(|&u| chosen.refined.kept[u]).collect::<Vec<_>>();
    assert_eq!(units(&kept(0.3)), [0, 8, 9]);
    assert_eq!(units(&kept(0.1)), [0]);
    let least = kept(0.05);
    assert_eq!((units(&least), least.refined.kept_tokens), (vec![9], 4));
    assert_eq!(kept(0.3).tokens, None);
}

#[test]
fn a_stream_ends_where_the_next_sentence_does_not_fit() {
    let text = "- a\n- bbbbbb\n- cccccccccc\n- dd\n- ee\n";
    let segments = [Segment::refinable(Role::User, text)];
    let map = SentenceMap::new(&segments);
    let letters = text.char_indices().filter(|(_, c)| c.is_ascii_alphabetic());
    let spans: Vec<_> = letters.map(|(at, _)| at..at + 1).collect();
    let parts = [ContentTokens { segment: 0, first: 0, spans: &spans }];
    let content = Content::new(&segments, &map, &parts, 30).unwrap();
    assert_eq!(streaming::kept(&content, 13), [true, true, false, true, true]);
    assert_eq!(streaming::kept(&content, 12), [true, true, false, true, true]);
    assert_eq!(streaming::kept(&content, 5), [true, false, false, true, true]);
    assert_eq!(streaming::kept(&content, 0), [true, false, false, false, false]);
}

#[test]
fn what_surprises_is_kept_in_whatever_tokens_it_was_read() {
    let (_, _, spans) = items();
    let mut ln_p = vec![-0.5; 40];
    ln_p[12] = -9.0;
    ln_p[30..32].fill(-3.0);
    let tokens = [ContentTokens { segment: 0, first: 7, spans: &spans }];
    let log_probs = LogProbs { tokens: &tokens, ln_p: &ln_p };
    let chosen = run(Baseline::Perplexity, 0.2, Evidence::LogProbs(log_probs.clone())).unwrap();
    let kept = &chosen.refined.kept;
    assert!(kept[3] && kept[7] && chosen.refined.kept_tokens == 8);
    // The same log-probabilities for tokens of two letters.
    let pairs: Vec<_> = spans.chunks(2).map(|pair| pair[0].start..pair[1].end).collect();
    let wide = [ContentTokens { segment: 0, first: 0, spans: &pairs }];
    let ln_p: Vec<f32> = ln_p.chunks(2).map(|pair| pair.iter().sum()).collect();
    let evidence = Evidence::LogProbs(LogProbs { tokens: &wide, ln_p: &ln_p });
    assert_eq!(run(Baseline::Perplexity, 0.2, evidence).unwrap(), chosen);

    let short = LogProbs { ln_p: &ln_p, ..log_probs };
    let refused = run(Baseline::Perplexity, 0.2, Evidence::LogProbs(short)).unwrap_err();
    assert_eq!(refused, ChoiceError::LogProbs { len: 20, tokens: 40 });
    let refused = run(Baseline::Perplexity, 0.2, Evidence::Nothing).unwrap_err();
    assert_eq!(refused.to_string(), "baseline `perplexity` needs the log-probability of every content token");
    let nan = vec![f32::NAN; 40];
    let evidence = Evidence::LogProbs(LogProbs { tokens: &tokens, ln_p: &nan });
    assert_eq!(run(Baseline::Perplexity, 0.2, evidence), Err(ChoiceError::NotFinite { index: 0 }));
}

#[test]
fn baselines_that_need_attention_say_so() {
    for baseline in [Baseline::Paper, Baseline::Tokens, Baseline::GemFilter, Baseline::Chunk] {
        assert_eq!(run(baseline, 0.2, Evidence::Nothing), Err(ChoiceError::NoScores { baseline }));
    }
    let refused = run(Baseline::Streaming, 0.0, Evidence::Nothing);
    assert_eq!(refused, Err(ChoiceError::Refine(RefineError::Ratio { ratio: 0.0 })));
}

#[test]
fn a_mode_of_the_refiner_is_the_refiners_own_choice() {
    let (segments, map, spans) = items();
    let content = [ContentTokens { segment: 0, first: 2, spans: &spans }];
    let mode = baton_refine::Mode::Bm25;
    let chosen = choose(&Input {
        segments: &segments,
        map: &map,
        content: &content,
        prompt_tokens: 50,
        evidence: Evidence::Nothing,
        calibration: None,
        question: "cccc gggg",
        ratio: 0.2,
        ranking: mode.into(),
    });
    let refined = baton_refine::refine(baton_refine::RefineInput {
        segments: &segments,
        map: &map,
        content: &content,
        prompt_tokens: 50,
        scores: None,
        calibration: None,
        question: "cccc gggg",
        ratio: 0.2,
        least_value: None,
        mode,
    });
    assert_eq!(chosen.unwrap(), Chosen { refined: refined.unwrap(), tokens: None });
}

#[test]
fn random_choices_follow_their_seed() {
    let prompt = Prompt::new(&"The crane is red and tall. ".repeat(50));
    let kept = |seed| prompt.choose(Baseline::Random { seed }, 0.25, &[]).refined.kept;
    assert_eq!(kept(1), kept(1));
    assert_ne!(kept(1), kept(2));
    assert_eq!(kept(1).iter().filter(|&&k| k).count(), 12);
}

/// Tokens before the content and after it.
const PREFIX: usize = 5;
const SUFFIX: usize = 10;

/// A prompt of one refinable document between a prefix and a question.
struct Prompt {
    segments: Vec<Segment>,
    map: SentenceMap,
    /// Words with the space before them, and single punctuation marks: roughly the split of a tokenizer.
    spans: Vec<Range<usize>>,
}

impl Prompt {
    fn new(text: &str) -> Self {
        let segments = vec![Segment::refinable(Role::User, text), Segment::fixed(Role::User, "Question?")];
        let map = SentenceMap::new(&segments);
        let mut spans: Vec<Range<usize>> = Vec::new();
        let mut in_word = false;
        for (at, c) in text.char_indices() {
            let letter = c.is_ascii_alphanumeric();
            let joins = spans.last().is_some_and(|last| letter && (in_word || text[last.clone()] == *" "));
            match spans.last_mut() {
                Some(last) if joins => last.end = at + c.len_utf8(),
                _ => spans.push(at..at + c.len_utf8()),
            }
            in_word = letter;
        }
        Self { segments, map, spans }
    }

    fn keys(&self) -> usize {
        PREFIX + self.spans.len() + SUFFIX
    }

    fn content(&self) -> [ContentTokens<'_>; 1] {
        [ContentTokens { segment: 0, first: PREFIX, spans: &self.spans }]
    }

    /// `mean`: two rows, or none for baselines that need no attention.
    fn choose(&self, baseline: Baseline, ratio: f32, mean: &[f32]) -> Chosen {
        let keys = self.keys();
        let scores = Scores { heads: &[(0, 0), (1, 0)], keys, mean, queries: keys - SUFFIX..keys };
        let chosen = choose(&Input {
            segments: &self.segments,
            map: &self.map,
            content: &self.content(),
            prompt_tokens: keys,
            evidence: if mean.is_empty() { Evidence::Nothing } else { Evidence::Attention(scores) },
            calibration: None,
            question: "",
            ratio,
            ranking: baseline.into(),
        });
        chosen.unwrap()
    }
}

fn document() -> impl Strategy<Value = String> {
    let sentence =
        prop::collection::vec("[a-z]{1,5}", 0..14).prop_map(|words| format!("The {}. ", words.join(" ")));
    let piece = prop_oneof![
        8 => sentence,
        1 => Just("\n\n".to_owned()),
        1 => "\n\n## [A-Z][a-z]{1,4}\n",
        1 => "\n- [a-z]{2,6}\n",
    ];
    prop::collection::vec(piece, 1..25).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn paper_votes_are_those_of_the_definition(
        text in document(),
        noise in prop::collection::vec(0u8..9, 1000),
        ratio in 0.05f32..0.9,
    ) {
        let prompt = Prompt::new(&format!("The start. {text}"));
        let keys = prompt.keys();
        prop_assume!(2 * keys <= noise.len());
        let mean: Vec<f32> = noise[..2 * keys].iter().map(|&n| f32::from(n) / 16.0).collect();
        let content = Content::new(&prompt.segments, &prompt.map, &prompt.content(), keys).unwrap();
        let budget = content.budget(ratio).unwrap();
        let scores = Scores { heads: &[(0, 0), (0, 1)], keys, mean: &mean, queries: 0..0 };
        let got = paper::sentence_values(&content, &paper::votes(&content, &scores, budget));
        let mut votes = vec![0.0; prompt.map.len()];
        for row in mean.chunks(keys) {
            let pooled = |k: usize| {
                (0..keys).filter(|j| j.abs_diff(PREFIX + k) <= 3).map(|j| row[j]).fold(0.0, f32::max)
            };
            let mut order: Vec<usize> = (0..prompt.spans.len()).collect();
            order.sort_by(|&a, &b| pooled(b).partial_cmp(&pooled(a)).unwrap());
            for &k in &order[..budget] {
                votes[content.tokens[k].unit] += 1.0;
            }
        }
        for (unit, votes) in votes.iter().enumerate() {
            let len = content.tokens.iter().filter(|t| t.unit == unit).count();
            prop_assert_eq!(got[unit], votes / f64::from(u32::try_from(len.max(1)).unwrap()));
        }
    }

    #[test]
    fn every_baseline_keeps_the_budget_and_is_deterministic(
        text in document(),
        noise in prop::collection::vec(0.0f32..1.0, 2 * 500),
        ratio in 0.01f32..1.0,
        seed: u64,
    ) {
        let prompt = Prompt::new(&format!("The start. {text}"));
        let keys = prompt.keys();
        prop_assume!(2 * keys <= noise.len());
        let mean = &noise[..2 * keys];
        let content = Content::new(&prompt.segments, &prompt.map, &prompt.content(), keys).unwrap();
        let budget = (f64::from(ratio) * prompt.spans.len() as f64) as usize;
        let all = Baseline::ALL.into_iter().chain([Baseline::Random { seed }]);
        for baseline in all.filter(|&baseline| baseline != Baseline::Perplexity) {
            let chosen = prompt.choose(baseline, ratio, mean);
            prop_assert_eq!(&chosen, &prompt.choose(baseline, ratio, mean));
            let Chosen { refined, tokens } = chosen;
            prop_assert!(refined.kept.contains(&true));
            prop_assert_eq!(refined.content_tokens, prompt.spans.len());
            if let Some(tokens) = &tokens {
                prop_assert_eq!(tokens.len(), prompt.spans.len());
                prop_assert!(tokens.iter().filter(|&&kept| kept).count() as f32 <= ratio * tokens.len() as f32);
            }
            if refined.ratio > ratio {
                prop_assert_eq!(refined.kept.iter().filter(|&&k| k).count(), 1);
                // Allowed only if no sentence fits into the budget.
                let costs = (0..prompt.map.len()).map(|u| content.cost(u)).filter(|&cost| cost > 0);
                prop_assert!(costs.min().unwrap() > budget);
            }
            let rebuilt = baton_refine::rebuild(&prompt.segments, &prompt.map, &refined.kept);
            prop_assert!(!rebuilt[0].text.trim().is_empty());
        }
    }
}
