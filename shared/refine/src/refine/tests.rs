//! Compares the masks of every mode with independent implementations, and checks their properties.

use proptest::prelude::*;

use super::*;
use crate::calibration::WeightedHead;
use baton_protocol::Role;

/// Splits a text into words with the space before them and single punctuation marks, roughly as a tokenizer
/// does.
fn spans(text: &str) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut in_word = false;
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        let letter = c.is_ascii_alphanumeric();
        let joins = spans.last().is_some_and(|last| letter && (in_word || text[last.clone()] == *" "));
        match spans.last_mut() {
            Some(last) if joins => last.end = end,
            _ => spans.push(at..end),
        }
        in_word = letter;
    }
    spans
}

/// A prompt of one refinable document between a prefix of 5 tokens and a question of 10.
struct Prompt {
    segments: Vec<Segment>,
    map: SentenceMap,
    spans: Vec<Range<usize>>,
}

const PREFIX: usize = 5;
const SUFFIX: usize = 10;

impl Prompt {
    fn new(text: &str) -> Self {
        let segments = vec![
            Segment::fixed(Role::System, "You answer."),
            Segment::refinable(Role::User, text),
            Segment::fixed(Role::User, "Question?"),
        ];
        let map = SentenceMap::new(&segments);
        Self { spans: spans(text), segments, map }
    }

    fn keys(&self) -> usize {
        PREFIX + self.spans.len() + SUFFIX
    }

    fn refine(
        &self,
        mode: Mode,
        ratio: f32,
        heads: &[(usize, usize)],
        mean: &[f32],
        calibration: Option<&Calibration>,
    ) -> Result<Refined, RefineError> {
        let queries = self.keys() - SUFFIX..self.keys();
        let scores = Scores { heads, keys: self.keys(), mean, queries };
        refine(RefineInput {
            segments: &self.segments,
            map: &self.map,
            content: &[ContentTokens { segment: 1, first: PREFIX, spans: &self.spans }],
            prompt_tokens: self.keys(),
            scores: (!heads.is_empty()).then_some(scores),
            calibration,
            // The default ranking is tested without words here; words have their own tests.
            question: if mode == Mode::Bm25 { "What is the colour of the crane?" } else { "" },
            ratio,
            least_value: None,
            mode,
        })
    }

    fn kept_text(&self, refined: &Refined) -> String {
        let rebuilt = crate::rebuild(&self.segments, &self.map, &refined.kept);
        rebuilt[1].text.clone()
    }

    /// Returns scores of one head: `weight` on each token of the sentences that contain `word`, and 0.001
    /// elsewhere.
    fn look_at(&self, word: &str, weight: f32) -> Vec<f32> {
        let text = &self.segments[1].text;
        let mut mean = vec![0.001; self.keys()];
        for (k, span) in self.spans.iter().enumerate() {
            let unit = self.map.units().iter().find(|u| u.bytes.contains(&(span.end - 1))).unwrap();
            if text[unit.bytes.clone()].contains(word) {
                mean[PREFIX + k] = weight;
            }
        }
        mean
    }
}

const DOCUMENT: &str = "# City report\n\n## Harbour\nThe crane is red in all of its parts. The quay is made of old \
grey stone. The gate is open most of the day.\n\n## Tower\nThe roof is green since the last repair. The bell is \
cracked. The stair is steep and has many steps.\n";

#[test]
fn a_least_value_keeps_less_than_the_ratio_allows() {
    let prompt = Prompt::new(DOCUMENT);
    let mean = prompt.look_at("quay", 0.1);
    let scores = Scores { heads: &[(1, 0)], keys: prompt.keys(), mean: &mean, queries: 0..0 };
    let with = |least_value| {
        refine(RefineInput {
            segments: &prompt.segments,
            map: &prompt.map,
            content: &[ContentTokens { segment: 1, first: PREFIX, spans: &prompt.spans }],
            prompt_tokens: prompt.keys(),
            scores: Some(scores.clone()),
            calibration: None,
            question: "",
            ratio: 0.8,
            least_value,
            mode: Mode::Attention,
        })
    };
    let few = with(Some(0.5)).unwrap();
    assert_eq!(prompt.kept_text(&few), "# City report\n\n## Harbour\nThe quay is made of old grey stone.\n");
    assert!(with(None).unwrap().kept_tokens > few.kept_tokens);
    for least in [-0.1, 1.5, f32::NAN] {
        assert!(matches!(with(Some(least)), Err(RefineError::LeastValue { .. })));
    }
}

#[test]
fn what_is_looked_at_is_kept_under_its_titles() {
    let prompt = Prompt::new(DOCUMENT);
    let mean = prompt.look_at("quay", 0.1);
    let refined = prompt.refine(Mode::Attention, 0.34, &[(1, 0)], &mean, None).unwrap();
    assert_eq!(
        prompt.kept_text(&refined),
        "# City report\n\n## Harbour\nThe quay is made of old grey stone.\n"
    );
    assert_eq!(refined.kept_tokens, 9 + 5 + 4);
    assert!(refined.ratio <= 0.34);
    let fixed = prompt.keys() - refined.content_tokens;
    let share = (fixed + refined.kept_tokens) as f32 / prompt.keys() as f32;
    assert_eq!(refined.prompt_ratio, share);
}

#[test]
fn bm25_needs_no_scores_and_finds_the_words_of_the_question() {
    let prompt = Prompt::new(DOCUMENT);
    let refined = prompt.refine(Mode::Bm25, 0.34, &[], &[], None).unwrap();
    assert!(prompt.kept_text(&refined).contains("The crane is red"));
}

#[test]
fn a_small_gap_is_closed_and_a_large_one_is_not() {
    let text = "The crane is red and tall. It is so. The crane is blue and small. It has been so for a very long time \
        now. The crane is old. And so on it goes for some more words. And the rest of it does not matter to anyone.";
    let prompt = Prompt::new(text);
    let mean = prompt.look_at("crane", 0.1);
    let refined = prompt.refine(Mode::Attention, 0.5, &[(0, 0)], &mean, None).unwrap();
    assert_eq!(refined.kept, [true, true, true, false, true, false, false]);
}

#[test]
fn calibrated_heads_outvote_a_loud_one() {
    let prompt = Prompt::new(DOCUMENT);
    let heads = [(0, 0), (2, 3)];
    let mean = [prompt.look_at("bell", 0.9), prompt.look_at("crane", 0.003)].concat();
    let weights =
        [(0, 0, 0.1), (2, 3, 0.9)].map(|(layer, head, weight)| WeightedHead { layer, head, weight });
    let calibration = Calibration::new(String::new(), weights.to_vec()).unwrap();
    let calibrated = prompt.refine(Mode::Attention, 0.34, &heads, &mean, Some(&calibration)).unwrap();
    assert!(prompt.kept_text(&calibrated).contains("crane"));
    let uniform = prompt.refine(Mode::Attention, 0.34, &heads, &mean, None).unwrap();
    assert!(prompt.kept_text(&uniform).contains("bell"));
    let missing =
        prompt.refine(Mode::Attention, 0.34, &heads[..1], &mean[..prompt.keys()], Some(&calibration));
    assert_eq!(missing, Err(RefineError::MissingHead { layer: 2, head: 3 }));
}

#[test]
fn the_first_positions_and_marks_do_not_count() {
    let segments = [Segment::refinable(Role::User, "Aaa bbb ccc ddd. Eee fff ggg hhh. Iii !!! kkk lll.")];
    let map = SentenceMap::new(&segments);
    let spans = spans(&segments[0].text);
    let kept = |hot: usize| {
        let mut mean = vec![0.001; spans.len()];
        mean[hot] = 0.9;
        mean[6] = 0.01;
        let scores = Scores { heads: &[(0, 0)], keys: spans.len(), mean: &mean, queries: 0..0 };
        let input = RefineInput {
            segments: &segments,
            map: &map,
            content: &[ContentTokens { segment: 0, first: 0, spans: &spans }],
            prompt_tokens: spans.len(),
            scores: Some(scores),
            calibration: None,
            question: "",
            ratio: 0.34,
            least_value: None,
            mode: Mode::Attention,
        };
        refine(input).unwrap().kept
    };
    assert_eq!(kept(0), [false, true, false], "position 0 is a sink");
    assert_eq!(kept(3), [false, true, false], "position 3 is a sink");
    assert_eq!(kept(12), [false, true, false], "token 12 is a mark");
    assert_eq!(spans[12], 38..39);
}

#[test]
fn sentences_under_the_window_are_kept() {
    let prompt = Prompt::new(DOCUMENT);
    let mean = prompt.look_at("crane", 0.1);
    let content_end = PREFIX + prompt.spans.len();
    let scores = |queries| Scores { heads: &[(0, 0)], keys: prompt.keys(), mean: &mean, queries };
    let kept = |queries| {
        let input = RefineInput {
            segments: &prompt.segments,
            map: &prompt.map,
            content: &[ContentTokens { segment: 1, first: PREFIX, spans: &prompt.spans }],
            prompt_tokens: prompt.keys(),
            scores: Some(scores(queries)),
            calibration: None,
            question: "",
            ratio: 0.35,
            least_value: None,
            mode: Mode::Attention,
        };
        let refined = refine(input).unwrap();
        assert!(refined.ratio <= 0.35);
        *refined.kept.last().unwrap()
    };
    assert!(!kept(content_end..content_end + SUFFIX));
    assert!(kept(content_end - 4..content_end + 6));
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let prompt = Prompt::new(DOCUMENT);
    let mean = prompt.look_at("crane", 0.1);
    let run = |ratio, heads: &[(usize, usize)], mean: &[f32]| {
        prompt.refine(Mode::Attention, ratio, heads, mean, None)
    };
    for ratio in [0.0, -0.1, 1.001, f32::NAN, f32::INFINITY] {
        assert!(matches!(run(ratio, &[(0, 0)], &mean), Err(RefineError::Ratio { .. })), "{ratio}");
    }
    assert_eq!(run(0.25, &[], &[]), Err(RefineError::NoScores { mode: Mode::Attention }));
    assert!(matches!(run(0.25, &[(0, 0)], &mean[1..]), Err(RefineError::Shape { .. })));
    assert!(matches!(run(0.25, &[(0, 0), (0, 1)], &mean), Err(RefineError::Shape { .. })));
    let mut bad = mean.clone();
    bad[7] = f32::NAN;
    assert_eq!(run(0.25, &[(0, 0)], &bad), Err(RefineError::NotFinite { index: 7 }));
    for text in ["", "\n\n"] {
        let mut empty = Prompt::new(text);
        empty.spans.clear();
        assert_eq!(empty.refine(Mode::Bm25, 0.25, &[], &[], None), Err(RefineError::EmptyContent));
    }
}

#[test]
fn ratio_one_and_no_refiner_keep_everything() {
    let prompt = Prompt::new(DOCUMENT);
    for (mode, ratio) in [(Mode::Attention, 1.0), (Mode::None, 0.1), (Mode::Bm25, 1.0)] {
        let refined = prompt.refine(mode, ratio, &[], &[], None).unwrap();
        assert!(refined.kept.iter().all(|&kept| kept));
        assert_eq!((refined.ratio, refined.prompt_ratio), (1.0, 1.0));
    }
}

/// Computes the values from the definition, token by token and in another order of summation.
fn values_by_definition(prompt: &Prompt, rows: &[(f64, &[f32])], normalize: bool) -> Vec<f64> {
    let text = &prompt.segments[1].text;
    let unit_of = |span: &Range<usize>| {
        let trimmed = text[span.clone()].trim_start_matches([' ', '\n']).len();
        let key = if trimmed == 0 { span.start } else { span.end - trimmed };
        prompt.map.units().iter().position(|u| u.bytes.contains(&key)).unwrap()
    };
    let m = |row: &[f32], k: usize| {
        let wordy = text[prompt.spans[k].clone()].chars().any(char::is_alphanumeric);
        if wordy { f64::from(row[PREFIX + k]) } else { 0.0 }
    };
    let x: Vec<f64> = (0..prompt.spans.len())
        .map(|k| {
            rows.iter()
                .map(|(weight, row)| {
                    let mass: f64 = (0..prompt.spans.len()).map(|j| m(row, j)).sum();
                    weight * m(row, k) / if normalize { mass } else { 1.0 }
                })
                .sum()
        })
        .collect();
    let own: Vec<f64> = (0..prompt.map.len())
        .map(|unit| {
            let mut tokens: Vec<f64> =
                (0..x.len()).filter(|&k| unit_of(&prompt.spans[k]) == unit).map(|k| x[k]).collect();
            let len = tokens.len();
            tokens.sort_by(|a, b| b.partial_cmp(a).unwrap());
            tokens.truncate(usize::max(4, len.div_ceil(2)));
            tokens.iter().sum::<f64>() / usize::max(len, 8) as f64
        })
        .collect();
    let paragraph = |unit: usize| prompt.map.unit(unit).paragraph;
    (0..own.len())
        .map(|unit| {
            let left = if unit > 0 && paragraph(unit - 1) == paragraph(unit) { own[unit - 1] } else { 0.0 };
            let right = if unit + 1 < own.len() && paragraph(unit + 1) == paragraph(unit) {
                own[unit + 1]
            } else {
                0.0
            };
            own[unit] + 0.25 * left.max(right)
        })
        .collect()
}

fn document() -> impl Strategy<Value = String> {
    let sentence =
        prop::collection::vec("[a-z]{1,5}", 0..14).prop_map(|words| format!("The {}. ", words.join(" ")));
    let piece = prop_oneof![
        8 => sentence,
        1 => Just("\n\n".to_owned()),
        1 => "\n\n## [A-Z][a-z]{1,4}\n",
        1 => "\n\n# [A-Z][a-z]{1,4} [a-z]{1,3}\n\n",
        1 => "\n- [a-z]{2,6}\n",
    ];
    prop::collection::vec(piece, 1..25).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn attention_values_are_those_of_the_definition(
        text in document(),
        noise in prop::collection::vec(0.0001f32..1.0, 3 * 500),
        calibrated: bool,
    ) {
        let prompt = Prompt::new(&format!("The start. {text}"));
        let keys = prompt.keys();
        prop_assume!(3 * keys <= noise.len());
        let mean = &noise[..3 * keys];
        let heads = [(0, 1), (1, 0), (3, 2)];
        let betas = [0.5, 0.0, 0.5];
        let weighted = heads.iter().zip(betas).map(|(&(layer, head), weight)| WeightedHead { layer, head, weight });
        let calibration = Calibration::new(String::new(), weighted.collect()).unwrap();
        let content = Content::new(
            &prompt.segments, &prompt.map,
            &[ContentTokens { segment: 1, first: PREFIX, spans: &prompt.spans }], keys,
        ).unwrap();
        let scores = Scores { heads: &heads, keys, mean, queries: 0..0 };
        let got = attention::values(&prompt.map, &content, &scores, calibrated.then_some(&calibration)).unwrap();
        let row = |i: usize| &mean[i * keys..(i + 1) * keys];
        let rows: Vec<(f64, &[f32])> = match calibrated {
            true => (0..3).map(|i| (betas[i], row(i))).collect(),
            false => (0..3).map(|i| (1.0 / 3.0, row(i))).collect(),
        };
        let want = values_by_definition(&prompt, &rows, calibrated);
        prop_assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            prop_assert!((got - want).abs() <= 1e-12 * (1.0 + want.abs()), "{} {}", got, want);
        }
    }

    #[test]
    fn every_mode_keeps_the_budget_and_is_deterministic(
        text in document(),
        noise in prop::collection::vec(0.0f32..1.0, 2 * 500),
        ratio in 0.01f32..1.0,
    ) {
        let prompt = Prompt::new(&format!("The start. {text}"));
        let keys = prompt.keys();
        prop_assume!(2 * keys <= noise.len());
        let mean = &noise[..2 * keys];
        for mode in [Mode::Attention, Mode::Bm25] {
            let run = || prompt.refine(mode, ratio, &[(0, 0), (1, 0)], mean, None).unwrap();
            let refined = run();
            prop_assert_eq!(&refined, &run());
            prop_assert!(refined.kept.contains(&true));
            prop_assert_eq!(refined.content_tokens, prompt.spans.len());
            let budget = (f64::from(ratio) * prompt.spans.len() as f64) as usize;
            if refined.ratio > ratio {
                let content = Content::new(
                    &prompt.segments, &prompt.map,
                    &[ContentTokens { segment: 1, first: PREFIX, spans: &prompt.spans }], keys,
                ).unwrap();
                prop_assert_eq!(refined.kept.iter().filter(|&&k| k).count(), 1);
                // Allowed only if no sentence fits into the budget. Titles do not count as sentences.
                let governs = |title| prompt.map.units().iter().any(|u| u.governed_by == Some(title));
                let sentences = (0..prompt.map.len()).filter(|&u| !governs(u));
                let smallest = sentences.map(|u| content.cost(u)).filter(|&cost| cost > 0).min();
                prop_assert!(smallest.unwrap() > budget);
            }
            let rebuilt = crate::rebuild(&prompt.segments, &prompt.map, &refined.kept);
            prop_assert!(!rebuilt[1].text.trim().is_empty());
        }
    }
}
