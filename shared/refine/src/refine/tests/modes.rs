//! The modes that are kept for comparison: hand-made cases of what each of them chooses.

use super::*;
use crate::perplexity::LogProbs;

/// Ten list items of four one-letter tokens each.
fn items() -> (Vec<Segment>, SentenceMap, Vec<Range<usize>>) {
    let text: String = ('a'..='j').map(|c| format!("- {}\n", c.to_string().repeat(4))).collect();
    let letters = text.char_indices().filter(|(_, c)| c.is_ascii_alphabetic());
    let spans = letters.map(|(at, _)| at..at + 1).collect();
    let segments = vec![Segment::refinable(Role::User, text)];
    let map = SentenceMap::new(&segments);
    (segments, map, spans)
}

fn run(mode: Mode, ratio: f32, evidence: Evidence<'_>) -> Result<Refined, RefineError> {
    let (segments, map, spans) = items();
    refine(RefineInput {
        segments: &segments,
        map: &map,
        content: &[ContentTokens { segment: 0, first: 2, spans: &spans }],
        prompt_tokens: 50,
        evidence,
        calibration: None,
        question: "",
        ratio,
        mode,
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
fn check(mode: Mode, ratio: f32, rows: &[Vec<f32>], tokens: &[usize], units: &[usize]) {
    let heads: Vec<_> = (0..rows.len()).map(|head| (0, head)).collect();
    let mean = rows.concat();
    let scores = Scores { heads: &heads, keys: 50, mean: &mean, queries: 49..50 };
    let refined = run(mode, ratio, Evidence::Attention(scores)).unwrap();
    let set = |flags: &[bool]| {
        flags.iter().enumerate().filter(|(_, set)| **set).map(|(i, _)| i).collect::<Vec<_>>()
    };
    assert_eq!(set(refined.tokens.as_deref().unwrap()), tokens, "{mode} tokens");
    assert_eq!(set(&refined.kept), units, "{mode} units");
}

#[test]
fn tokens_are_those_with_most_votes() {
    // Two heads agree on the tokens 20 to 26 (units 5 and 6), the third wants others: 8 votes each.
    let rows = [attention(&[(25, 0.5)]), attention(&[(25, 0.4)]), attention(&[(5, 0.9)])];
    check(Mode::Tokens, 0.2, &rows, &[0, 20, 21, 22, 23, 24, 25, 26], &[5, 6]);
}

#[test]
fn the_filter_takes_what_its_heads_see_together() {
    let rows = [attention(&[(13, 0.3)]), attention(&[(13, 0.3), (33, 0.5)])];
    check(Mode::GemFilter, 0.125, &rows, &[9, 10, 11, 12, 13], &[2]);
}

#[test]
fn chunks_are_kept_or_dropped_as_a_whole() {
    // 40 tokens are 4 chunks; the hot tokens stand in the chunks of tokens 10..20 and 30..40.
    let rows = [attention(&[(2 + 12, 0.5), (2 + 31, 0.4)])];
    let tokens: Vec<usize> = (10..20).chain(30..40).collect();
    check(Mode::Chunk, 0.5, &rows, &tokens, &[2, 3, 4, 8, 9]);
    check(Mode::Chunk, 0.4, &rows, &(10..20).collect::<Vec<_>>(), &[0, 2, 3, 4]);
}

#[test]
fn a_stream_is_its_start_and_its_end() {
    let kept = |ratio| run(Mode::Streaming, ratio, Evidence::Nothing).unwrap();
    let units = |refined: &Refined| (0..10).filter(|&u| refined.kept[u]).collect::<Vec<_>>();
    assert_eq!(units(&kept(0.3)), [0, 8, 9]);
    assert_eq!(units(&kept(0.1)), [0]);
    let least = kept(0.05);
    assert_eq!((units(&least), least.kept_tokens), (vec![9], 4));
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
    let refined = run(Mode::Perplexity, 0.2, Evidence::LogProbs(log_probs.clone())).unwrap();
    assert!(refined.kept[3] && refined.kept[7] && refined.kept_tokens == 8);
    // The same in tokens of two letters.
    let pairs: Vec<_> = spans.chunks(2).map(|pair| pair[0].start..pair[1].end).collect();
    let wide = [ContentTokens { segment: 0, first: 0, spans: &pairs }];
    let ln_p: Vec<f32> = ln_p.chunks(2).map(|pair| pair.iter().sum()).collect();
    let evidence = Evidence::LogProbs(LogProbs { tokens: &wide, ln_p: &ln_p });
    assert_eq!(run(Mode::Perplexity, 0.2, evidence).unwrap().kept, refined.kept);

    let short = LogProbs { ln_p: &ln_p, ..log_probs };
    let refused = run(Mode::Perplexity, 0.2, Evidence::LogProbs(short)).unwrap_err();
    assert_eq!(refused, RefineError::LogProbs { len: 20, tokens: 40 });
    let refused = run(Mode::Perplexity, 0.2, Evidence::Nothing).unwrap_err();
    assert_eq!(refused.to_string(), "mode `perplexity` needs the log-probability of every content token");
    let nan = vec![f32::NAN; 40];
    let evidence = Evidence::LogProbs(LogProbs { tokens: &tokens, ln_p: &nan });
    assert_eq!(run(Mode::Perplexity, 0.2, evidence), Err(RefineError::NotFinite { index: 0 }));
}

#[test]
fn modes_that_need_attention_say_so() {
    for mode in [Mode::Attention, Mode::Paper, Mode::Tokens, Mode::GemFilter, Mode::Chunk] {
        assert_eq!(run(mode, 0.2, Evidence::Nothing), Err(RefineError::NoScores { mode }));
    }
}
