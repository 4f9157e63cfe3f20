//! Measures calibrated heads: the share of the sentences that answer a question which a mask keeps.

use std::sync::Arc;

use baton_corpus::{Document, Question, document, stream};
use baton_engine::{AttentionScores, Engine, EngineOptions, Model};
use baton_refine::{
    AttentionShape, Calibration, ContentTokens, HeadGains, Mode, RefineInput, Scores, capture_plan, refine,
};

use super::{
    Asked, CalibrateControl, CalibrateError, ProbeOptions, Progress, Run, SEED, fitting_words, host,
    questions,
};

/// The first seed of the documents that heads are measured on; calibration uses lower ones.
const RECALL_SEED: u64 = SEED + 50_000;

/// Returns the mean recall over questions about documents that no calibration has seen, with masks that keep
/// at most the share `ratio` of a document's tokens. Cost: a prefill for every 4 questions.
///
/// # Errors
/// [`CalibrateError`].
pub fn recall(
    model: &Arc<Model>,
    calibration: &Calibration,
    ratio: f32,
    options: ProbeOptions,
    control: &mut dyn CalibrateControl,
) -> Result<f64, CalibrateError> {
    let (words, kv_tokens) = fitting_words(model, options.words)?;
    let engine_options = EngineOptions { threads: options.threads, kv_tokens, ..EngineOptions::default() };
    let mut run = Run {
        host: host(Engine::new(model.clone(), engine_options)?, kv_tokens),
        gains: HeadGains::default(),
        rng: stream(RECALL_SEED),
        progress: Progress { probes: 0, of: options.probes.get(), tokens: 0 },
        control,
    };
    let (mut seed, mut sum) = (RECALL_SEED, 0.0);
    while run.progress.probes < run.progress.of {
        let document = document(seed, words);
        for question in questions(&document) {
            if run.progress.probes < run.progress.of {
                sum += run.recall_of(&document, question, calibration, ratio)?;
                run.progress.probes += 1;
                run.control.progress(run.progress);
            }
        }
        seed += 1;
    }
    Ok(sum / run.progress.of as f64)
}

impl Run<'_> {
    /// Returns the share of the question's gold sentences that a mask keeps.
    fn recall_of(
        &mut self,
        document: &Document,
        question: &Question,
        calibration: &Calibration,
        ratio: f32,
    ) -> Result<f64, CalibrateError> {
        let model = self.host.engine().model().clone();
        let asked = Asked::new(&model, document, &question.text)?;
        let config = model.config();
        let shape = AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads };
        let tokens = &asked.prompt.segments[2].tokens;
        let plan = capture_plan(Mode::Attention, shape, tokens.len(), Some(calibration));
        let plan = plan.expect("the default mode ranks by attention");
        let window = tokens.end.saturating_sub(plan.window)..tokens.end;
        let scores: AttentionScores = self.scores_of(&asked, window.clone(), &plan.heads)?;
        let heads: Vec<(usize, usize)> = scores.heads.iter().map(|id| (id.layer, id.head)).collect();
        let place = &asked.prompt.segments[1];
        let refined = refine(RefineInput {
            segments: &asked.segments,
            map: &asked.map,
            content: &[ContentTokens { segment: 1, first: place.tokens.start, spans: &place.spans }],
            prompt_tokens: asked.prompt.ids.len(),
            scores: Some(Scores { heads: &heads, keys: scores.keys, mean: &scores.mean, queries: window }),
            calibration: Some(calibration),
            question: &asked.segments[2].text,
            ratio,
            least_value: None,
            mode: Mode::Attention,
        })?;
        let gold: Vec<usize> = question.gold.iter().map(|range| asked.unit_at(range.start)).collect();
        let kept = gold.iter().filter(|unit| refined.kept.get(**unit) == Some(&true)).count();
        Ok(kept as f64 / gold.len().max(1) as f64)
    }
}
