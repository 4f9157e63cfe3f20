//! Turns an assist request into a job of the host: scene, prompt, r, L, mask and sampling.

use std::time::Duration;

use baton_constrain::{Constraint, FormError, thought_tokens, tools};
use baton_engine::prompt::Prompt;
use baton_engine::rows::ids_sha256;
use baton_engine::sampling::{Sampler, SamplingParams};
use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, PrefixScope};
use baton_generate::answer::{Answer, AnswerOptions, TextMode, Window};
use baton_generate::evidence::Evidence;
use baton_generate::hooks::{Constraint as Form, LogprobSink};
use baton_generate::scheduler::{Goal, JobSpec, Share};
use baton_generate::speculation::K_MAX;
use baton_generate::text::AnswerText;
use baton_generate::thinking::begins_in_thinking;
use baton_openai::Penalties;
use baton_protocol::{
    AnswerFormat, ArmEvent, AssistRequest, FirstEvent, PROTOCOL_VERSION, RefineOptions, Role, Sampling,
    Segment, Timing, ToolChoice, ToolUse,
};
use baton_refine::{Mode, UnknownMode};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::gate::RequestName;
use crate::learn::planning::{Planned, Situation, Wish, plan};
use crate::observe::report::Observer;
use crate::observe::trace::TraceParent;
use crate::scene::Scene;
use crate::service::citations::Citations;
use crate::service::handoff::{Handoffs, Offer};
use crate::service::logprobs::Logprobs;
use crate::service::reader::{CloudReader, MaskSource, Prepared, ReaderParts};
use crate::service::refining::{Keep, RefinePlan, ScoringModel, content_tokens, plan_mask, prefix_tokens};
use crate::service::stream::AssistStream;
use crate::service::submit::ForEngine;
use crate::service::upstream::{Ask, AskPrompt};
use crate::service::verify;
use crate::service::{Served, ServiceError};

/// A checked request and its scene.
#[derive(Debug, Clone)]
pub(crate) struct Asked<'a> {
    pub(crate) request: &'a AssistRequest,
    pub(crate) scene: &'a Scene,
    /// The scene's adapter, for the model that answers.
    pub(crate) adapter: Option<AdapterId>,
    /// The arm of an experiment that the request takes part in.
    pub(crate) arm: Option<ArmEvent>,
    /// The caller's span.
    pub(crate) trace: Option<TraceParent>,
    /// Whose cached prefixes the request may use.
    pub(crate) owner: u128,
    /// Where keys and values for the device are parked, and a digest of the credentials that asked.
    pub(crate) offers: Option<(Handoffs, [u8; 32])>,
}

/// Makes the request and the stream of its answer.
pub(crate) fn prepare(served: &Served, asked: &Asked<'_>) -> Result<(Prepared, AssistStream), ServiceError> {
    let &Asked { request, scene, adapter, trace, owner, .. } = asked;
    check_upstream(served, request.tools.as_ref(), false)?;
    let schemas = schemas(request);
    let tools = request.tools.iter().flat_map(|tools| &tools.tools);
    let described = tools.flat_map(|tool| [Some(tool.name.as_str()), tool.description.as_deref()]).flatten();
    let texts = request.segments.iter().flat_map(Segment::texts).chain(described);
    check_text(
        served,
        texts.chain(schemas.iter().map(String::as_str)).chain(request.continue_from.as_deref()),
    )?;
    check_content(&request.segments)?;
    let mode = mode(request, scene)?;
    let mut prompt = assembled(served, request)?;
    let thought_tokens = opened_thought(served, served.context_tokens().saturating_sub(prompt.ids.len()));
    let mut constraint = constraint(served, request.tools.as_ref(), &request.format, thought_tokens)?;
    let shared_tokens = served.scene_prefixes.shared_tokens(served, &scene.settings, &prompt.ids);
    let continued = continue_answer(served, request, &mut prompt);
    if let Some(constraint) = &mut constraint {
        continue_form(constraint, &continued)?;
    }
    let room = room(served, prompt.ids.len())?;
    // A continued answer needs no mask, because no device prefills for it.
    let refines = continued.is_empty() && mode != Mode::None;
    let planned = planned(served, request, scene, &prompt, room, refines)?;
    let ratio = if refines { planned.ratio } else { 1.0 };
    let keep = Keep { ratio, least_value: scene.settings.least_value };
    let RefinePlan { mask, window } =
        plan_mask(scoring_model(served), &request.segments, &prompt, mode, keep)?;
    let first = FirstEvent { experiment: asked.arm.clone(), ..first_event(served, scene, &planned) };
    let max_tokens = planned.assist_tokens as usize;
    let is_fixed = |segment: &&Segment| segment.role == Role::System && segment.text == scene.settings.system;
    let fixed = request.segments.iter().take(1).filter(is_fixed).count();
    let upstream = served.upstream.as_ref().map(|_| AskParts {
        prompt: AskPrompt::of_segments(&request.segments, fixed),
        format: request.format.clone(),
        has_tools: request.tools.is_some() || request.segments.iter().any(Segment::is_about_tools),
    });
    let offer = offer(served, asked, &prompt.ids).filter(|_| continued.is_empty());
    let draft = Draft {
        upstream,
        prompt: prompt.ids,
        prefixes: PrefixScope { owner, shared_tokens },
        adapter,
        continued,
        window,
        mask,
        first,
        max_tokens,
        ends_at_cap: false,
        trace,
        scene: Some(scene.id.clone()),
        extras: Extras { constraint, offer, ..Extras::default() },
    };
    let (mut prepared, mut stream) = draft.prepared(served, &request.sampling)?;
    stream.set_ratio(ratio);
    prepared.spec.floor_tokens = planned.assist_floor as usize;
    Ok((prepared, stream))
}

/// Returns a digest that identifies the request: of its id and of everything that decides its answer.
///
/// The device's description of itself is left out, because it may change before the request is sent again.
pub(crate) fn name(request: &AssistRequest) -> RequestName {
    #[derive(Serialize)]
    struct Deciding<'a>(
        (Uuid, &'a str, Option<u32>, &'a str, Option<u32>),
        (&'a [Segment], Option<&'a str>, &'a Sampling, &'a RefineOptions),
        (Option<&'a ToolUse>, &'a AnswerFormat),
    );
    let deciding = Deciding(
        (request.request_id, &request.scene, request.scene_version, &request.model, request.assist_tokens),
        (&request.segments, request.continue_from.as_deref(), &request.sampling, &request.refine),
        (request.tools.as_ref(), &request.format),
    );
    let mut digest = Sha256::new();
    serde_json::to_writer(DigestWriter(&mut digest), &deciding).expect("a checked request is JSON again");
    RequestName(digest.finalize().into())
}

/// Adds the bytes written to a digest, without keeping them.
struct DigestWriter<'a>(&'a mut Sha256);

impl std::io::Write for DigestWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What an engine that writes the answer is told besides token ids.
#[derive(Debug)]
pub(crate) struct AskParts {
    pub(crate) prompt: AskPrompt,
    pub(crate) format: AnswerFormat,
    /// Whether tools may be called, or were called before.
    pub(crate) has_tools: bool,
}

/// The parts of a request, the same for both APIs.
#[derive(Debug)]
pub(crate) struct Draft {
    /// For an engine; `None` if this program's own engine writes the answer.
    pub(crate) upstream: Option<AskParts>,
    /// Prompt ids; the last ones are those of `continued`.
    pub(crate) prompt: Vec<TokenId>,
    /// Which later requests may reuse the cached prefix of this prompt.
    pub(crate) prefixes: PrefixScope,
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) continued: Vec<TokenId>,
    pub(crate) window: Option<Window>,
    pub(crate) mask: MaskSource,
    pub(crate) first: FirstEvent,
    pub(crate) max_tokens: usize,
    /// Whether the answer is complete at the cap, because no device continues it.
    pub(crate) ends_at_cap: bool,
    /// The caller's span.
    pub(crate) trace: Option<TraceParent>,
    /// The scene's id; `None` for the chat API.
    pub(crate) scene: Option<String>,
    pub(crate) extras: Extras,
}

/// Parts that only some answers have.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) penalties: Penalties,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) citations: Option<Citations>,
    pub(crate) evidence: Option<Evidence>,
    /// Offers keys and values to the device.
    pub(crate) offer: Option<Offer>,
    /// Whether the answer continues a text that no template laid out: the end of a turn does not end it.
    pub(crate) verbatim: bool,
}

pub(crate) fn sampling_params(sampling: &Sampling, penalties: Penalties) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: penalties.frequency,
        presence_penalty: penalties.presence,
        seed: sampling.seed,
    }
}

impl Draft {
    /// Returns what an engine that writes the answer needs, if one does.
    fn for_engine(&mut self, sampling: &Sampling, stop: &StopStrings) -> Option<Box<ForEngine>> {
        let AskParts { prompt, format, has_tools } = self.upstream.take()?;
        let PrefixScope { owner, .. } = self.prefixes;
        let ask = Ask {
            affinity: affinity(owner, &self.prompt),
            ids: self.prompt.clone(),
            continued: self.continued.len(),
            prompt,
            sampling: sampling.clone(),
            penalties: self.extras.penalties,
            format,
            has_tools,
            salt: format!("{owner:032x}"),
            has_tenants: false,
        };
        Some(Box::new(ForEngine { ask, stop: stop.clone(), ends_at_cap: self.ends_at_cap }))
    }

    /// Makes the request and its stream.
    pub(crate) fn prepared(
        mut self,
        served: &Served,
        sampling: &Sampling,
    ) -> Result<(Prepared, AssistStream), ServiceError> {
        let sampler = Sampler::new(sampling_params(sampling, self.extras.penalties))?;
        let mut stop = StopStrings::new(&sampling.stop)?;
        if !self.extras.verbatim {
            stop = stop.with_turn_ends(served.model.turn_ends());
        }
        let id = served.handle.new_id();
        let (sink, mut stream) = AssistStream::new(id, self.max_tokens, Some(&served.handle));
        let prompt_tokens = self.prompt.len();
        let upstream = self.for_engine(sampling, &stop);
        stream.set_prompt_tokens(prompt_tokens);
        stream.set_model(&served.name);
        let spec = JobSpec {
            id,
            prompt_tokens,
            max_tokens: self.max_tokens,
            floor_tokens: self.max_tokens,
            tail_tokens: self.window.as_ref().map_or(1, |window| prompt_tokens - window.tokens.start),
            pass_tokens: usize::MAX,
            bytes: 0,
            deadline: None,
            share: Share::default(),
            goal: Goal::Write,
        };
        let observer = Observer {
            metrics: served.metrics.clone(),
            traces: served.traces.clone(),
            parent: self.trace,
            request: String::new(),
            key: None,
            tenant: String::new(),
            scene: self.scene,
            arm: self.first.experiment.as_ref().map(|arm| format!("{}/{}", arm.id, arm.arm)),
            model: served.name.clone(),
            prompt_tokens,
            refine: Duration::ZERO,
            live: None,
        };
        let reader = CloudReader::new(ReaderParts {
            observer,
            mask: self.mask,
            first: self.first,
            prompt_tokens,
            max_tokens: self.max_tokens,
            clock: served.clock.clone(),
            figures: served.figures.clone(),
            citations: self.extras.citations,
            offer: self.extras.offer,
            sink,
        });
        let tokenizer = served.model.tokenizer();
        let answer = Answer::new(AnswerOptions {
            tokenizer: tokenizer.clone(),
            vocab_len: served.model.config().vocab_len,
            sampler,
            prompt: self.prompt,
            continued: self.continued,
            max_tokens: self.max_tokens,
            room_tokens: served.context_tokens(),
            text: TextMode::Text {
                text: AnswerText::new(tokenizer.clone(), (), stop),
                ends_at_cap: self.ends_at_cap,
            },
            constraint: self.extras.constraint.map(|constraint| Box::new(constraint) as Box<dyn Form>),
            logprobs: self.extras.logprobs.map(|logprobs| Box::new(logprobs) as Box<dyn LogprobSink>),
            window: self.window,
            evidence: self.extras.evidence,
        });
        let (prefixes, adapter) = (self.prefixes, self.adapter);
        Ok((Prepared { spec, answer, prefixes, adapter, reader, upstream }, stream))
    }
}

/// Prompt tokens that decide which engine has the prefix.
const AFFINITY_TOKENS: usize = 256;

/// Returns the same number for prompts of one tenant that begin alike.
fn affinity(owner: u128, prompt: &[TokenId]) -> u64 {
    let mut digest = Sha256::new_with_prefix(owner.to_le_bytes());
    prompt.iter().take(AFFINITY_TOKENS).for_each(|id| digest.update(id.to_le_bytes()));
    let digest = digest.finalize();
    u64::from_le_bytes(std::array::from_fn(|at| digest[at]))
}

/// Refuses what another engine cannot be held to.
pub(crate) fn check_upstream(
    served: &Served,
    tools: Option<&ToolUse>,
    logprobs: bool,
) -> Result<(), ServiceError> {
    if served.upstream.is_none() {
        return Ok(());
    }
    if logprobs {
        let message = "the engine of this model is not asked for log probabilities";
        return Err(ServiceError::EngineCannot { field: "logprobs", message });
    }
    if tools.is_some_and(|tools| tools.choice != ToolChoice::Auto) {
        let message = "the engine of this model cannot be held to a call: leave the choice to it (`auto`)";
        return Err(ServiceError::EngineCannot { field: "tool_choice", message });
    }
    Ok(())
}

/// Texts up to this many bytes are tokenized without counting their tokens first.
const COUNTED_BYTES: usize = 256 << 10;

/// Refuses texts that are too long for any prompt, before their tokens use memory.
pub(crate) fn check_text<'t>(
    served: &Served,
    texts: impl Iterator<Item = &'t str> + Clone,
) -> Result<(), ServiceError> {
    let (bytes, limit) = (texts.clone().map(str::len).sum::<usize>(), served.text_bytes_max);
    if bytes > limit {
        return Err(ServiceError::TextTooLong { bytes, limit });
    }
    let limit = served.context_tokens().saturating_sub(1);
    if bytes > COUNTED_BYTES && served.model.tokenizer().exceeds(texts, limit) {
        return Err(ServiceError::MoreTokens { limit });
    }
    Ok(())
}

/// Returns how many tokens fit into the context and into the KV budget after the prompt.
pub(crate) fn room(served: &Served, prompt_tokens: usize) -> Result<usize, ServiceError> {
    let context = served.context_tokens();
    match context.checked_sub(prompt_tokens) {
        None | Some(0) => {
            Err(ServiceError::PromptTooLong { tokens: prompt_tokens, limit: context.saturating_sub(1) })
        }
        Some(room) => Ok(room),
    }
}

/// Makes the prompt's token ids with the model's own template.
fn assembled(served: &Served, request: &AssistRequest) -> Result<Prompt, ServiceError> {
    let offered = request.tools.as_ref().map_or(&[][..], |tools| &tools.tools);
    Ok(tools::prompt(served.model.tokenizer(), served.model.template(), &request.segments, offered)?)
}

/// Returns the most tokens of thinking in an answer of at most `answer_tokens` that has a form, or `None` if
/// prompts of this model do not open the thinking.
pub(crate) fn opened_thought(served: &Served, answer_tokens: usize) -> Option<usize> {
    begins_in_thinking(served.model.template()).then(|| thought_tokens(answer_tokens))
}

/// Compiles the form that the answer must have, in the way that the model writes calls. `thought_tokens` is
/// the most tokens of the thinking that the prompt has opened.
pub(crate) fn constraint(
    served: &Served,
    tools: Option<&ToolUse>,
    format: &AnswerFormat,
    thought_tokens: Option<usize>,
) -> Result<Option<Constraint>, ServiceError> {
    baton_constrain::constraint(|| served.grammars(), served.call_markup(), tools, format, thought_tokens)
        .map_err(|FormError { field, err }| ServiceError::Constraint { field, err })
}

/// Takes the accepted part of the answer, so that the form goes on behind it.
fn continue_form(constraint: &mut Constraint, continued: &[TokenId]) -> Result<(), ServiceError> {
    for &id in continued {
        constraint.accept(id).map_err(|err| {
            let field = "continue_from".to_owned();
            ServiceError::Constraint { field, err }
        })?;
    }
    Ok(())
}

/// Returns the schemas of a request as text.
fn schemas(request: &AssistRequest) -> Vec<String> {
    let tools = request.tools.iter().flat_map(|tools| &tools.tools);
    tools.map(|tool| tool.parameters.to_string()).collect()
}

/// Makes the first event of an answer, without its token and its times.
pub(crate) fn first_event(served: &Served, scene: &Scene, planned: &Planned) -> FirstEvent {
    FirstEvent {
        protocol: PROTOCOL_VERSION,
        scene_version: scene.version,
        index: 0,
        id: 0,
        text: String::new(),
        assist_tokens: planned.assist_tokens,
        assist_bound_by: planned.bound_by.to_owned(),
        tau_ms: scene.settings.tau_ms,
        corrector: scene.settings.corrector,
        model: Some(served.name.clone()),
        adapter: scene.settings.adapter.clone(),
        tokenizer_sha256: Some(served.model.tokenizer().digest_hex().to_owned()),
        timing: Timing::default(),
        experiment: None,
        verify: None,
        kv: None,
    }
}

/// Returns how keys and values are offered, if the scene and the device want them and the device computes
/// with the same model.
fn offer(served: &Served, asked: &Asked<'_>, ids: &[TokenId]) -> Option<Offer> {
    let Asked { request, scene, adapter, owner, .. } = asked;
    let (handoffs, asker) = asked.offers.clone()?;
    let format = scene.settings.kv?;
    let wanted = request.device.as_ref()?.kv.as_ref()?;
    let model = served.kv.as_ref().filter(|model| model.identity == *wanted && adapter.is_none())?;
    Some(Offer {
        handoffs,
        name: (asker, request.request_id),
        tenant: *owner,
        format,
        model: model.clone(),
        prompt_sha256: ids_sha256(ids),
        metrics: served.metrics.clone(),
        runtime: tokio::runtime::Handle::try_current().ok(),
    })
}

fn check_content(segments: &[Segment]) -> Result<(), ServiceError> {
    let blank = |segment: &Segment| segment.text.trim().is_empty();
    if let Some(at) = segments.iter().position(|segment| segment.refine && blank(segment)) {
        return Err(ServiceError::EmptyContent(at));
    }
    if segments.iter().all(blank) {
        return Err(ServiceError::EmptyContent(0));
    }
    Ok(())
}

/// Returns the request's mode, or the scene's if the request has none.
fn mode(request: &AssistRequest, scene: &Scene) -> Result<Mode, ServiceError> {
    let name = request.refine.mode.as_ref().unwrap_or(&scene.settings.mode);
    name.parse().map_err(|err: UnknownMode| ServiceError::Unsupported {
        field: "refine.mode",
        message: err.to_string(),
    })
}

/// Appends the accepted part of the answer to the prompt, and returns its ids.
fn continue_answer(served: &Served, request: &AssistRequest, prompt: &mut Prompt) -> Vec<TokenId> {
    let accepted = request.continue_from.as_deref().unwrap_or_default();
    let ids =
        if accepted.is_empty() { Vec::new() } else { served.model.tokenizer().encode_answer(accepted).0 };
    prompt.ids.extend_from_slice(&ids);
    ids
}

fn planned(
    served: &Served,
    request: &AssistRequest,
    scene: &Scene,
    prompt: &Prompt,
    room_tokens: usize,
    refines: bool,
) -> Result<Planned, ServiceError> {
    let stats = served.handle.stats();
    let content = if refines { content_tokens(&request.segments, prompt) } else { 0 };
    let wish = Wish { ratio: request.refine.ratio, assist_tokens: request.assist_tokens };
    let known = served.figures.known();
    let cloud = served.figures.measured();
    let upstream = served.upstream.as_ref();
    let at_engines = upstream.map_or(0, |upstream| upstream.backlog_tokens(prompt.ids.len()));
    let situation = Situation {
        device: request.device.as_ref(),
        known: &known,
        cloud,
        backlog_tokens: stats.backlog_tokens + at_engines,
        backlog_ms: stats.backlog_ms + at_engines as f64 * cloud.prefill_ms_per_token,
        prompt_tokens: prompt.ids.len(),
        content_tokens: content,
        prefix_tokens: prefix_tokens(&request.segments, prompt),
        room_tokens,
        draft_tokens: verify::is_verified(served, scene, request).then_some(K_MAX),
    };
    Ok(plan(&scene.settings, wish, situation)?)
}

fn scoring_model(served: &Served) -> ScoringModel<'_> {
    ScoringModel { config: served.model.config(), calibration: served.calibration.as_ref() }
}
