//! Runs the refiner: plans which scores a prompt needs, and makes the mask from them.
//!
//! Never: chooses a ratio (planning does) or ranks by itself (baton-refine does).
//! Always: the same prompt and scores give the same mask.

use std::ops::Range;
use std::sync::Arc;

use baton_engine::prompt::Prompt;
use baton_engine::{AttentionScores, HeadId, ModelConfig};
use baton_generate::answer::Window;
use baton_protocol::{MaskEvent, Segment, SentenceMap};
use baton_refine::{
    AttentionShape, Calibration, Content, ContentTokens, Mode, RefineError, RefineInput, Refined, Scores,
    capture_plan, refine,
};

use crate::service::reader::MaskSource;

/// One request's refinement, without the scores.
#[derive(Debug)]
pub(crate) struct MaskJob {
    segments: Vec<Segment>,
    map: SentenceMap,
    content: Vec<SegmentPlace>,
    prompt_tokens: usize,
    question: String,
    keep: Keep,
    mode: Mode,
    calibration: Option<Arc<Calibration>>,
    /// Prompt positions of the scoring window.
    queries: Range<usize>,
}

/// How many sentences a mask keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep {
    /// Largest share of the content's tokens (r).
    pub(crate) ratio: f32,
    /// The scene's `least_value`.
    pub(crate) least_value: Option<f32>,
}

/// Position of the tokens of one refinable segment in the prompt.
#[derive(Debug)]
struct SegmentPlace {
    segment: usize,
    first: usize,
    spans: Vec<Range<usize>>,
}

/// What is needed to make a request's mask.
#[derive(Debug)]
pub(crate) struct RefinePlan {
    pub(crate) mask: MaskSource,
    pub(crate) window: Option<Window>,
}

/// The part of the model that refinement needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScoringModel<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) calibration: Option<&'a Arc<Calibration>>,
}

/// Returns the number of prompt tokens that may be refined.
pub(crate) fn content_tokens(segments: &[Segment], prompt: &Prompt) -> usize {
    let refinable = segments.iter().zip(&prompt.segments).filter(|(segment, _)| segment.refine);
    refinable.map(|(_, place)| place.tokens.len()).sum()
}

/// Returns the number of prompt tokens before the first refinable segment.
pub(crate) fn prefix_tokens(segments: &[Segment], prompt: &Prompt) -> usize {
    let first = segments.iter().zip(&prompt.segments).find(|(segment, _)| segment.refine);
    first.map_or(prompt.ids.len(), |(_, place)| place.tokens.start)
}

/// Plans the mask of a request. Modes that need no scores make it at once.
///
/// # Errors
/// [`RefineError`] if a mode that needs no scores cannot make a mask.
pub(crate) fn plan_mask(
    model: ScoringModel<'_>,
    segments: &[Segment],
    prompt: &Prompt,
    mode: Mode,
    keep: Keep,
) -> Result<RefinePlan, RefineError> {
    let none = RefinePlan { mask: MaskSource::None, window: None };
    if keep.ratio >= 1.0 || matches!(mode, Mode::None) || !segments.iter().any(|segment| segment.refine) {
        return Ok(none);
    }
    let Some(last) = prompt.segments.iter().rfind(|place| !place.tokens.is_empty()) else { return Ok(none) };
    let places = segments.iter().zip(&prompt.segments).enumerate().filter(|(_, (segment, _))| segment.refine);
    let content = places.map(|(segment, (_, place))| SegmentPlace {
        segment,
        first: place.tokens.start,
        spans: place.spans.clone(),
    });
    let mut job = MaskJob {
        segments: segments.to_vec(),
        map: SentenceMap::new(segments),
        content: content.collect(),
        prompt_tokens: prompt.ids.len(),
        question: segments.last().map(|segment| segment.text.clone()).unwrap_or_default(),
        keep,
        mode,
        calibration: model.calibration.cloned(),
        queries: 0..0,
    };
    let calibration = model.calibration.map(Arc::as_ref);
    let suffix_tokens = last.tokens.len();
    let config = model.config;
    let shape = AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads };
    let Some(capture) = capture_plan(mode, shape, suffix_tokens, calibration) else {
        return Ok(RefinePlan { mask: MaskSource::Ready(Box::new(job.run(None)?)), window: None });
    };
    let end = last.tokens.end;
    let heads = capture.heads.iter().map(|&(layer, head)| HeadId { layer, head });
    let heads = heads.filter(|id| config.has_attention(id.layer)).collect();
    job.queries = end.saturating_sub(capture.window)..end;
    let window = Window { tokens: job.queries.clone(), heads };
    Ok(RefinePlan { mask: MaskSource::Scores(Box::new(job)), window: Some(window) })
}

impl MaskJob {
    /// Returns the bytes of the texts that are kept until the scores are there.
    pub(crate) fn held_bytes(&self) -> usize {
        let places = self.content.iter().map(|place| size_of_val(place.spans.as_slice())).sum::<usize>();
        self.segments.iter().map(|segment| segment.text.len()).sum::<usize>() + places
    }

    /// Returns the refinable tokens.
    fn content(&self) -> Vec<ContentTokens<'_>> {
        let places = self.content.iter();
        places
            .map(|place| ContentTokens { segment: place.segment, first: place.first, spans: &place.spans })
            .collect()
    }

    /// Ranks the sentences, and encodes which ones to keep.
    pub(crate) fn run(&self, scores: Option<&AttentionScores>) -> Result<MaskEvent, RefineError> {
        self.refined(scores).map(|refined| self.mask_of(&refined))
    }

    /// As [`Self::run`]; returns also the positions of the prompt tokens that are kept, all but the last one.
    pub(crate) fn run_with_positions(
        &self,
        scores: &AttentionScores,
    ) -> Result<(MaskEvent, Vec<usize>), RefineError> {
        let refined = self.refined(Some(scores))?;
        let content = Content::new(&self.segments, &self.map, &self.content(), self.prompt_tokens)?;
        let positions = content.kept_positions(&refined.kept, self.prompt_tokens);
        Ok((self.mask_of(&refined), positions))
    }

    fn mask_of(&self, refined: &Refined) -> MaskEvent {
        MaskEvent::new(&self.map, &refined.kept, refined.ratio, refined.prompt_ratio)
    }

    fn refined(&self, scores: Option<&AttentionScores>) -> Result<Refined, RefineError> {
        let content = self.content();
        let heads: Vec<(usize, usize)> = scores
            .map(|scores| scores.heads.iter().map(|id| (id.layer, id.head)).collect())
            .unwrap_or_default();
        let scores = scores.map(|scores| {
            let queries = self.queries.clone();
            Scores { heads: &heads, keys: scores.keys, mean: &scores.mean, queries }
        });
        refine(RefineInput {
            segments: &self.segments,
            map: &self.map,
            content: &content,
            prompt_tokens: self.prompt_tokens,
            scores,
            calibration: self.calibration.as_deref(),
            question: &self.question,
            ratio: self.keep.ratio,
            least_value: self.keep.least_value,
            mode: self.mode,
        })
    }
}
