//! The cloud's part: it reads a prompt once, and the captured scores serve every ranking and every r.
//!
//! Scores are captured as in the cloud service: the softmax weights of the question's tokens in the last
//! prefill pass. Rankings with different windows share the cache of everything before the longest window.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use baton_baselines::{
    ChoiceError, Chosen, Evidence, Input, LogProbs, Needs, Ranking, choose, needs, rebuild_tokens,
};
use baton_engine::prompt::{Prompt, PromptError, PromptSegment, assemble};
use baton_engine::{
    AttentionScores, Capture, Engine, EngineError, EngineOptions, HeadId, MeanOver, Model, StepControl,
    StepError, StepSeq, TokenId, Tokenizer, Wanted,
};
use baton_protocol::{Segment, SentenceMap};
use baton_refine::{
    AttentionShape, Calibration, CapturePlan, Content, ContentTokens, RefineError, Scores, rebuild,
};

use crate::writer::{Begun, Written, prefill, write};

/// Why a prompt failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The prompt cannot be assembled.
    #[error("lay out the prompt")]
    Prompt(#[from] PromptError),
    /// The engine failed or was stopped.
    #[error("run the model")]
    Step(#[from] StepError),
    /// The KV cache failed.
    #[error("keep the sequence")]
    Kv(#[from] baton_engine::KvError),
    /// The prompt does not fit into the context.
    #[error("prompt has {tokens} tokens, the model's context leaves room for {limit}")]
    TooLong {
        /// Number of tokens in the prompt.
        tokens: usize,
        /// The maximum number of tokens.
        limit: usize,
    },
    /// The ranking failed.
    #[error("refine the prompt")]
    Refine(#[from] ChoiceError),
    /// The answer cannot go on.
    #[error("write the answer")]
    Answer(#[from] baton_generate::hooks::Fault),
    /// The device's engine failed; its message.
    #[error("device: {0}")]
    Device(String),
}

impl RunError {
    /// Returns whether the run was stopped on request.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Step(StepError::Cancelled { .. }))
    }
}

/// Assembles a prompt with a model's own template.
///
/// # Errors
/// As [`assemble`].
pub fn assembled(model: &Model, segments: &[Segment]) -> Result<Prompt, PromptError> {
    let parts: Vec<PromptSegment<'_>> =
        segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
    assemble(model.tokenizer(), model.template(), &parts)
}

/// The cloud's engine and calibration.
#[derive(Debug)]
pub struct Cloud {
    engine: Engine,
    calibration: Option<Arc<Calibration>>,
    /// The last prompt whose log-probabilities were computed, and these log-probabilities.
    last_log_probs: (Vec<TokenId>, Vec<f32>),
}

/// One prompt that the cloud has read, and its answer.
#[derive(Debug)]
pub struct CloudRun {
    segments: Vec<Segment>,
    map: SentenceMap,
    prompt: Prompt,
    /// Captured scores, by first query of the window.
    captured: BTreeMap<usize, AttentionScores>,
    /// The answer, up to the requested number of tokens.
    pub written: Written,
    tokenizer: Arc<Tokenizer>,
    shape: AttentionShape,
    calibration: Option<Arc<Calibration>>,
    /// Log-probability of every prompt token (0 for the first), if a ranking asked for it.
    log_probs: Option<Vec<f32>>,
}

/// Size of the KV cache as a multiple of the model's context: for the current prompt and earlier texts.
const KV_CONTEXTS: usize = 2;
/// Maximum size of the KV cache in tokens.
const KV_TOKENS_MAX: usize = 65_536;

/// Tokens per pass with logits at every position.
const LOGITS_TOKENS: usize = 128;

/// Returns the logarithm of the softmax probability of one token.
pub(crate) fn log_prob(logits: &[f32], id: TokenId) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    (f64::from(logits[id as usize] - most) - sum.ln()) as f32
}

/// Returns the engine options for one worker.
pub fn engine_options(model: &Model, threads: NonZeroUsize) -> EngineOptions {
    let kv_tokens = (KV_CONTEXTS * model.config().context_len).min(KV_TOKENS_MAX);
    EngineOptions { threads: Some(threads), kv_tokens, ..EngineOptions::default() }
}

impl Cloud {
    /// Makes a cloud with its own engine, and with the heads calibrated for its model if there are any.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn new(
        model: Arc<Model>,
        calibration: Option<Arc<Calibration>>,
        threads: NonZeroUsize,
    ) -> Result<Self, EngineError> {
        let options = engine_options(&model, threads);
        let engine = Engine::new(model, options)?;
        Ok(Self { engine, calibration, last_log_probs: Default::default() })
    }

    /// Reads the prompt, captures the scores that `rankings` need, and writes up to `max_tokens` tokens.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(
        &mut self,
        segments: Vec<Segment>,
        rankings: &[Ranking],
        max_tokens: usize,
        control: &mut dyn StepControl,
    ) -> Result<CloudRun, RunError> {
        let model = self.engine.model().clone();
        let config = model.config();
        let prompt = assembled(&model, &segments)?;
        let limit = config.context_len.saturating_sub(max_tokens + 1);
        if prompt.ids.len() > limit {
            return Err(RunError::TooLong { tokens: prompt.ids.len(), limit });
        }
        let mut run = CloudRun {
            map: SentenceMap::new(&segments),
            segments,
            prompt,
            captured: BTreeMap::new(),
            written: Written::default(),
            tokenizer: model.tokenizer().clone(),
            shape: AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads },
            calibration: self.calibration.clone(),
            log_probs: None,
        };
        // The widest window comes first. The other windows reuse the cache of the tokens before its queries.
        let mut windows: BTreeMap<usize, Vec<HeadId>> = BTreeMap::new();
        for plan in rankings.iter().filter_map(|&ranking| run.plan(ranking)) {
            let heads = windows.entry(run.queries(&plan).start).or_default();
            heads.extend(plan.heads.iter().map(|&(layer, head)| HeadId { layer, head }));
        }
        if windows.is_empty() {
            windows.insert(run.prompt.ids.len() - 1, Vec::new());
        }
        let n_windows = windows.len();
        for (at, (start, mut heads)) in windows.into_iter().enumerate() {
            heads.sort_unstable();
            heads.dedup();
            let wanted = if at + 1 == n_windows { max_tokens } else { 0 };
            self.pass(&mut run, start, heads, wanted, control)?;
        }
        if rankings.iter().any(|&ranking| run.needs(ranking) == Needs::LogProbs) {
            run.log_probs = Some(self.log_probs(&run.prompt.ids, control)?);
        }
        Ok(run)
    }

    /// Returns the log-probability of every token given those before it. The prefix shared with the prompt of
    /// the last call is not computed again.
    fn log_probs(&mut self, ids: &[TokenId], control: &mut dyn StepControl) -> Result<Vec<f32>, RunError> {
        let (engine, (last_ids, last)) = (&mut self.engine, &mut self.last_log_probs);
        let vocab_len = engine.model().config().vocab_len;
        let shared = ids.iter().zip(last_ids.iter()).take_while(|(a, b)| a == b).count();
        let seq = engine.create();
        // The first token that is not shared gets a new value, from the logits of the token before it.
        let held = engine.reuse_prefix(seq, &ids[..shared]);
        let mut log_probs = match held {
            0 => vec![0.0],
            held => last[..=held].to_vec(),
        };
        let mut result = Ok(());
        for chunk in ids[held..].chunks(LOGITS_TOKENS) {
            let step = StepSeq { seq, ids: chunk, logits: Wanted::All, capture: None };
            match engine.step(&[step], control) {
                Ok(output) => {
                    for row in output[0].logits.chunks_exact(vocab_len) {
                        let next = ids.get(log_probs.len()).map_or(0.0, |&next| log_prob(row, next));
                        log_probs.push(next);
                    }
                }
                Err(err) => {
                    result = Err(err);
                    break;
                }
            }
        }
        engine.release(seq);
        result?;
        log_probs.truncate(ids.len());
        (*last_ids, *last) = (ids.to_vec(), log_probs.clone());
        Ok(log_probs)
    }

    /// Reads the prompt and captures the scores of the queries from `start` on.
    fn pass(
        &mut self,
        run: &mut CloudRun,
        start: usize,
        heads: Vec<HeadId>,
        max_tokens: usize,
        control: &mut dyn StepControl,
    ) -> Result<(), RunError> {
        let ids = run.prompt.ids.clone();
        let engine = &mut self.engine;
        let seq = engine.create();
        let held = engine.reuse_prefix(seq, &ids[..start]);
        let window = 0..run.window_end() - start;
        let capture = (!heads.is_empty()).then_some(Capture { window, heads, over: MeanOver::Queries });
        let result = prefill(engine, seq, &ids[held..], start - held, capture.as_ref(), control)
            .map_err(RunError::from)
            .and_then(|(logits, scores)| {
                let begun = Begun { seq, prompt: &ids, logits: &logits };
                let written = if max_tokens > 0 {
                    write(engine, begun, max_tokens, control)?
                } else {
                    Written::default()
                };
                Ok((scores, written))
            });
        engine.release(seq);
        let (scores, written) = result?;
        if let Some(scores) = scores {
            run.captured.insert(start, scores);
        }
        run.written = written;
        Ok(())
    }
}

impl CloudRun {
    /// Returns the prompt.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the sentences of the prompt.
    pub fn map(&self) -> &SentenceMap {
        &self.map
    }

    /// Returns the number of tokens in the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.ids.len()
    }

    /// Returns the cloud's first `n` tokens.
    pub fn first_tokens(&self, n: usize) -> &[TokenId] {
        &self.written.ids[..n.min(self.written.ids.len())]
    }

    /// Returns the text of the cloud's first `n` tokens.
    pub fn text(&self, n: usize) -> String {
        crate::writer::text_of(&self.tokenizer, self.first_tokens(n))
    }

    /// Returns the number of content tokens in these units of the map.
    pub fn content_tokens(&self, units: &[usize]) -> usize {
        let inside = |segment: usize, span: &Range<usize>| {
            units.iter().map(|&unit| self.map.unit(unit)).any(|unit| {
                unit.segment == segment && unit.bytes.start < span.end && span.end <= unit.bytes.end
            })
        };
        let refinable = self.prompt.segments.iter().enumerate().filter(|(i, _)| self.segments[*i].refine);
        refinable.map(|(i, place)| place.spans.iter().filter(|span| inside(i, span)).count()).sum()
    }

    fn window_end(&self) -> usize {
        self.prompt.segments.last().map_or(self.prompt.ids.len(), |place| place.tokens.end)
    }

    fn needs(&self, ranking: Ranking) -> Needs {
        let suffix_tokens = self.prompt.segments.last().map_or(0, |place| place.tokens.len());
        needs(ranking, self.shape, suffix_tokens, self.calibration.as_deref())
    }

    fn plan(&self, ranking: Ranking) -> Option<CapturePlan> {
        match self.needs(ranking) {
            Needs::Attention(plan) => Some(plan),
            Needs::Nothing | Needs::LogProbs => None,
        }
    }

    fn queries(&self, plan: &CapturePlan) -> Range<usize> {
        let end = self.window_end();
        end.saturating_sub(plan.window)..end
    }

    fn content(&self) -> Vec<ContentTokens<'_>> {
        let places = self.segments.iter().zip(&self.prompt.segments).enumerate();
        places
            .filter(|(_, (segment, _))| segment.refine)
            .map(|(segment, (_, place))| ContentTokens {
                segment,
                first: place.tokens.start,
                spans: &place.spans,
            })
            .collect()
    }

    fn content_log_probs(&self) -> Option<Vec<f32>> {
        let all = self.log_probs.as_ref()?;
        let content = self.content();
        Some(
            content
                .iter()
                .flat_map(|part| &all[part.first..part.first + part.spans.len()])
                .copied()
                .collect(),
        )
    }

    /// Returns the prompt's ids.
    pub fn prompt_ids(&self) -> &[TokenId] {
        &self.prompt.ids
    }

    /// Returns the positions of the prompt tokens that stay with the kept sentences, all but the last one.
    ///
    /// # Errors
    /// [`RefineError`].
    pub fn kept_positions(&self, chosen: &Chosen) -> Result<Vec<usize>, RefineError> {
        let tokens = self.prompt.ids.len();
        let content = Content::new(&self.segments, &self.map, &self.content(), tokens)?;
        Ok(content.kept_positions(&chosen.refined.kept, tokens))
    }

    /// Returns the refined prompt: the kept sentences, or the kept tokens if the ranking chooses tokens.
    pub fn refined_segments(&self, chosen: &Chosen) -> Vec<Segment> {
        match &chosen.tokens {
            Some(tokens) => rebuild_tokens(&self.segments, &self.content(), tokens),
            None => rebuild(&self.segments, &self.map, &chosen.refined.kept),
        }
    }

    /// Returns the sentences that a ranking keeps at this r. It must be one of the rankings passed to
    /// [`Cloud::run`].
    ///
    /// # Errors
    /// [`ChoiceError`].
    pub fn choose(&self, ranking: Ranking, ratio: f32) -> Result<Chosen, ChoiceError> {
        let content = self.content();
        let plan = self.plan(ranking);
        let queries = plan.as_ref().map_or(0..0, |plan| self.queries(plan));
        let captured = plan.as_ref().and_then(|plan| Some((plan, self.captured.get(&queries.start)?)));
        let mean = captured.map(|(plan, scores)| rows_of(plan, scores)).unwrap_or_default();
        let attention = captured.map(|(plan, scores)| {
            Evidence::Attention(Scores {
                heads: &plan.heads,
                keys: scores.keys,
                mean: &mean,
                queries: queries.clone(),
            })
        });
        let of_content = self.content_log_probs();
        let log_probs =
            of_content.as_deref().map(|ln_p| Evidence::LogProbs(LogProbs { tokens: &content, ln_p }));
        let evidence = match self.needs(ranking) {
            Needs::Nothing => Evidence::Nothing,
            Needs::Attention(_) => attention.unwrap_or(Evidence::Nothing),
            Needs::LogProbs => log_probs.unwrap_or(Evidence::Nothing),
        };
        choose(&Input {
            segments: &self.segments,
            map: &self.map,
            content: &content,
            prompt_tokens: self.prompt.ids.len(),
            evidence,
            calibration: self.calibration.as_deref(),
            question: self.segments.last().map_or("", |segment| &segment.text),
            ratio,
            ranking,
        })
    }
}

/// Selects the rows that a plan asks for from scores that also contain rows of other plans.
fn rows_of(plan: &CapturePlan, scores: &AttentionScores) -> Vec<f32> {
    let row = |&(layer, head): &(usize, usize)| {
        let at = scores.heads.iter().position(|id| (id.layer, id.head) == (layer, head));
        at.map_or(&[][..], |at| &scores.mean[at * scores.keys..(at + 1) * scores.keys])
    };
    plan.heads.iter().flat_map(row).copied().collect()
}
