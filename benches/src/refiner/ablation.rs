//! Measures the share of kept gold sentences over the choice of layers and the number of queries.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use baton_corpus::{Document, Question, QuestionKind, document};
use baton_engine::prompt::{Prompt, PromptSegment, assemble};
use baton_engine::{AttentionScores, Engine, EngineOptions, Model, SeqId, StepSeq, Wanted};
use baton_protocol::{Role, Segment, SentenceMap};
use baton_refine::{Calibration, CapturePlan, ContentTokens, Mode, RefineInput, Scores, refine};
use serde_json::json;

use super::{Args, capture, plan, prefill};
use crate::report::Report;

const WINDOWS: [usize; 5] = [1, 4, 8, 16, 32];
const RATIOS: [f32; 2] = [0.1, 0.25];
const KINDS: [QuestionKind; 3] = [QuestionKind::Short, QuestionKind::Long, QuestionKind::TwoHop];
/// The first seed of the evaluation; training uses other seeds.
const SEED: u64 = 5_000_000;
/// Number of words in a document, which gives about 2,000 tokens.
const WORDS: usize = 1500;
const SYSTEM: &str = "You answer from the document.";
const QUESTION_PREFIX: &str = "\n\nQuestion: ";

/// A choice of heads.
struct Choice {
    name: String,
    heads: Vec<(usize, usize)>,
    calibration: Option<Calibration>,
}

/// Numbers of kept gold sentences and of all gold sentences, by ratio and window.
type Tally = [[(usize, usize); WINDOWS.len()]; RATIOS.len()];

pub(super) fn run(report: &mut Report, model: &Arc<Model>, args: &Args) -> Result<()> {
    let choices = choices(model, args)?;
    let options = EngineOptions {
        threads: args.threads,
        kv_tokens: 2 * model.config().context_len,
        ..Default::default()
    };
    let mut engine = Engine::new(model.clone(), options)?;
    let mut tallies = vec![Tally::default(); choices.len()];
    for seed in SEED..SEED + args.documents {
        let document = document(seed, WORDS);
        for kind in KINDS {
            if let Some(question) = document.question(kind) {
                let asked = Asked::new(model, &document, question)?;
                asked.tally(&mut engine, &choices, &mut tallies)?;
            }
        }
    }
    let header: Vec<String> = std::iter::once("heads".to_owned())
        .chain(RATIOS.iter().flat_map(|r| WINDOWS.map(|w| format!("r {r} w {w}"))))
        .collect();
    let percent = |(kept, gold): (usize, usize)| 100.0 * kept as f64 / gold.max(1) as f64;
    let cells = |tally: &Tally| {
        tally.iter().flatten().map(|&count| format!("{:.1}", percent(count))).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = choices
        .iter()
        .zip(&tallies)
        .map(|(choice, tally)| [vec![choice.name.clone()], cells(tally)].concat())
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    report.table(
        "gold sentences kept, %, by layers and window (queries at the prompt's end)",
        &header,
        &rows,
    );
    let figures = choices.iter().zip(&tallies).map(|(choice, tally)| {
        let recall: Vec<Vec<f64>> =
            tally.iter().map(|row| row.iter().map(|&count| percent(count)).collect()).collect();
        json!({ "heads": choice.name, "recall_percent": recall })
    });
    report.data(
        "ablation",
        json!({ "ratios": RATIOS, "windows": WINDOWS, "rows": figures.collect::<Vec<_>>() }),
    );
    Ok(())
}

/// Returns the choices: each layer alone, all layers, the uncalibrated default, and the calibrated heads if
/// their file exists.
fn choices(model: &Arc<Model>, args: &Args) -> Result<Vec<Choice>> {
    let config = model.config();
    let layer = |layer: usize| (0..config.n_heads).map(move |head| (layer, head));
    let uncalibrated = |name: String, heads| Choice { name, heads, calibration: None };
    let mut choices: Vec<Choice> =
        (0..config.n_layers).map(|at| uncalibrated(format!("layer {at}"), layer(at).collect())).collect();
    choices.push(uncalibrated("all layers".to_owned(), (0..config.n_layers).flat_map(layer).collect()));
    let uniform = plan(model, 32, None)?.heads;
    choices.push(uncalibrated("0.3 to 0.8 of the depth".to_owned(), uniform));
    let path = args.model.with_extension("heads.json");
    if path.is_file() {
        let json = std::fs::read_to_string(&path).with_context(|| format!("read `{}`", path.display()))?;
        let calibration = Calibration::from_json(&json)?;
        let heads = plan(model, 32, Some(&calibration))?.heads;
        choices.push(Choice { name: "calibrated".to_owned(), heads, calibration: Some(calibration) });
    }
    Ok(choices)
}

/// One question about one document, as the cloud receives it.
struct Asked<'a> {
    segments: Vec<Segment>,
    map: SentenceMap,
    prompt: Prompt,
    question: &'a Question,
}

impl<'a> Asked<'a> {
    fn new(model: &Arc<Model>, document: &Document, question: &'a Question) -> Result<Self> {
        let segments = vec![
            Segment::fixed(Role::System, SYSTEM),
            Segment::refinable(Role::User, document.text.clone()),
            Segment::fixed(Role::User, format!("{QUESTION_PREFIX}{}", question.text)),
        ];
        let parts: Vec<PromptSegment<'_>> =
            segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
        let prompt = assemble(model.tokenizer(), model.template(), &parts)?;
        Ok(Self { map: SentenceMap::new(&segments), segments, prompt, question })
    }

    /// Counts gold sentences for every choice of heads and every window, with one prefill.
    fn tally(&self, engine: &mut Engine, choices: &[Choice], tallies: &mut [Tally]) -> Result<()> {
        let end = self.prompt.segments[2].tokens.end;
        let held = end - WINDOWS[WINDOWS.len() - 1];
        let seq = engine.create();
        prefill(engine, seq, &self.prompt.ids[..held])?;
        for (w, window) in WINDOWS.into_iter().enumerate() {
            let scores = self.scores(engine, seq, held, window)?;
            for (choice, tally) in choices.iter().zip(tallies.iter_mut()) {
                for (r, ratio) in RATIOS.into_iter().enumerate() {
                    let (kept, gold) = self.recall(&scores, choice, ratio)?;
                    tally[r][w].0 += kept;
                    tally[r][w].1 += gold;
                }
            }
        }
        engine.release(seq);
        Ok(())
    }

    /// Captures the scores of all heads from the last `window` tokens of the question.
    fn scores(&self, engine: &mut Engine, seq: SeqId, held: usize, window: usize) -> Result<AttentionScores> {
        let config = engine.model().config();
        let heads = (0..config.n_layers).flat_map(|l| (0..config.n_heads).map(move |h| (l, h))).collect();
        let ids = &self.prompt.ids[held..self.prompt.segments[2].tokens.end];
        let capture = capture(&CapturePlan { window, heads }, ids.len());
        let fork = engine.fork(seq, held)?;
        let step = StepSeq { seq: fork, ids, logits: Wanted::None, capture: Some(&capture) };
        let mut outputs = engine.step(&[step], &mut ())?;
        engine.release(fork);
        outputs.remove(0).scores.context("the engine gives the scores that it is asked for")
    }

    /// Returns the number of kept gold sentences, and of all gold sentences.
    fn recall(&self, scores: &AttentionScores, choice: &Choice, ratio: f32) -> Result<(usize, usize)> {
        let rows: Vec<usize> = (0..scores.heads.len())
            .filter(|&row| choice.heads.contains(&(scores.heads[row].layer, scores.heads[row].head)))
            .collect();
        let heads: Vec<_> =
            rows.iter().map(|&row| (scores.heads[row].layer, scores.heads[row].head)).collect();
        let mean: Vec<f32> = rows
            .iter()
            .flat_map(|&row| &scores.mean[row * scores.keys..(row + 1) * scores.keys])
            .copied()
            .collect();
        let place = &self.prompt.segments[1];
        let queries = self.prompt.segments[2].tokens.clone();
        let refined = refine(RefineInput {
            segments: &self.segments,
            map: &self.map,
            content: &[ContentTokens { segment: 1, first: place.tokens.start, spans: &place.spans }],
            prompt_tokens: self.prompt.ids.len(),
            scores: Some(Scores { heads: &heads, keys: scores.keys, mean: &mean, queries }),
            calibration: choice.calibration.as_ref(),
            question: &self.question.text,
            ratio,
            least_value: None,
            mode: Mode::Attention,
        })?;
        let kept = |start: usize| {
            let unit = self.map.units().iter().position(|unit| unit.bytes.contains(&start));
            unit.is_some_and(|unit| refined.kept[unit])
        };
        let gold = &self.question.gold;
        Ok((gold.iter().filter(|range| kept(range.start)).count(), gold.len()))
    }
}
