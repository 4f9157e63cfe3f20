//! One question on its way through a device: the real relay core, and what a client of the cloud does.
//!
//! Records everything that a person would see, and checks it as it comes.

use std::collections::VecDeque;
use std::sync::Arc;

use baton_device::client::Remains;
use baton_device::local::{AnswerSpec, EngineCommand, EngineReport, PromptId};
use baton_device::privacy::{PrivateNames, RedactedRequest, Redactor, Restorer};
use baton_device::relay::{
    CloudFault, Ending, KvTerms, Note, Outcome, RelayConfig, RelayCore, RelayEvent, RelayMode, Source,
    TextRules,
};
use baton_engine::rows::ids_sha256;
use baton_engine::tokenizer::TokenId;
use baton_engine::{Model, StopStrings};
use baton_pacing::{DeviceCost, PaceMode};
use baton_protocol::{
    AssistEvent, AssistRequest, DeviceInfo, EndReason, PROTOCOL_VERSION, RefineOptions, SceneSettings,
    Segment, VerifyPolicy,
};
use uuid::Uuid;

use super::check::{Plain, prompt_ids, sampling};
use super::cloud::SCENE;
use super::drafts::{DraftNo, Run};
use super::engine::Voice;
use super::handoff::Fetch;
use super::scenario::{CANARY, DeviceShape, Question};

/// Most times that a client resumes the stream of one answer, as the agent does.
const RESUMES_MAX: usize = 3;

/// Counts the connections of a simulation.
pub(super) type ConnNo = u64;

/// The client's side of a stream.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The connection that it reads, or is opening.
    pub(super) conn: Option<ConnNo>,
    seen: Option<u32>,
    ended: bool,
    cuts: usize,
    /// The stream was cut and is being resumed.
    pub(super) resuming: bool,
    /// Connections of this question so far.
    pub(super) opened: usize,
}

impl Client {
    /// Begins a new stream.
    pub(super) fn begin(&mut self, conn: ConnNo) {
        *self = Client { conn: Some(conn), opened: self.opened, ..Client::default() };
    }

    /// Notes an event that came.
    pub(super) fn heard(&mut self, event: &AssistEvent) {
        self.resuming = false;
        self.seen = event.index().or(self.seen);
        self.ended |= matches!(event, AssistEvent::End(_) | AssistEvent::Error(_));
    }

    /// Returns the token behind which a stream that was cut is asked for again, if it may be.
    pub(super) fn resume(&mut self, resumes: bool) -> Option<u32> {
        let seen = self.seen.filter(|_| resumes && !self.ended && self.cuts < RESUMES_MAX)?;
        (self.cuts, self.resuming) = (self.cuts + 1, true);
        Some(seen)
    }
}

/// A question that was asked.
pub(super) struct Answer {
    pub(super) question: Question,
    pub(super) core: RelayCore,
    pub(super) client: Client,
    /// The draft that is being checked.
    pub(super) draft: Option<DraftNo>,
    /// Keys and values that are fetched.
    pub(super) fetch: Option<Fetch>,
    /// Drafts that were sent.
    pub(super) drafts: usize,
    redactor: Redactor,
    redacted: RedactedRequest,
    /// The request of the stream that is read.
    pub(super) request: Arc<AssistRequest>,
    /// The request that the cloud was not told to end, and what remains of it there.
    pub(super) open: Option<(Arc<AssistRequest>, Remains)>,
    /// Whether the cloud was asked to go on.
    pub(super) continued: bool,
    pub(super) inbox: VecDeque<RelayEvent>,
    pub(super) paused_until: u64,
    pub(super) timer: u64,
    pub(super) begun_ns: u64,
    /// Tries that still find no cloud.
    pub(super) unreachable: usize,
    /// Whether a fault may have changed what the cloud said.
    pub(super) misled: bool,
    pub(super) seen: Seen,
}

/// What a person has seen of an answer, and what it was made of.
#[derive(Debug, Default)]
pub(super) struct Seen {
    text: String,
    shown: Vec<Source>,
    notes: Vec<Note>,
    /// Ids of the cloud's tokens as they came.
    cloud: Vec<Option<TokenId>>,
    /// Tokens after which the cloud said that it may write no more.
    capped: Option<usize>,
    /// Ids that the device wrote, by index.
    device: Vec<(usize, TokenId)>,
    /// Prompt that the device writes from.
    prompts: Vec<(PromptId, Arc<[Segment]>)>,
    decoded: Option<PromptId>,
    /// What the device wrote to be checked, by the prompts of their own.
    pub(super) runs: Vec<Run>,
    by_text: bool,
    pub(super) outcome: Option<Outcome>,
}

impl Answer {
    /// Prepares a question as the agent does. `kv`: the name of the keys and values that the device takes.
    pub(super) fn new(
        question: &Question,
        shape: &DeviceShape,
        (model, kv): (&Arc<Model>, Option<String>),
        scene: &SceneSettings,
        begun_ns: u64,
    ) -> Result<Answer, String> {
        // The documents of the simulation are full of invented names.
        let none: [&str; 0] = [];
        let mut redactor = Redactor::default().with_names(PrivateNames::new(false, &none));
        let kv = kv.filter(|_| scene.kv.is_some());
        let mut draft = draft(question, shape, model, scene.verify);
        if let Some(device) = &mut draft.device {
            device.kv.clone_from(&kv);
        }
        let redacted = redactor.redact_request(&draft).map_err(|err| format!("I5: not redacted: {err}"))?;
        let request = Arc::new(redacted.as_request().clone());
        check_sent(&request)?;
        let segments: Arc<[Segment]> = redacted.segments().to_vec().into();
        let terms = kv_terms(model, kv, &segments, scene);
        let config = config(question, shape, scene, terms);
        let spec =
            AnswerSpec::plain(Arc::clone(&segments), sampling(&question.sampling), question.tokens_max);
        let stop = StopStrings::new(&question.sampling.stop).map_err(|err| err.to_string())?;
        let rules = TextRules {
            tokenizer: Arc::clone(model.tokenizer()),
            restorer: Restorer::new(redactor.table()),
            stop: stop.with_turn_ends(model.turn_ends()),
        };
        Ok(Answer {
            question: question.clone(),
            core: RelayCore::new(config, spec, rules),
            client: Client::default(),
            draft: None,
            fetch: None,
            drafts: 0,
            redactor,
            redacted,
            request,
            open: None,
            continued: false,
            inbox: VecDeque::new(),
            paused_until: 0,
            timer: 0,
            begun_ns,
            unreachable: 0,
            misled: false,
            seen: Seen::default(),
        })
    }

    /// Makes the request to go on behind this text.
    ///
    /// # Errors
    /// The fault that the agent would report.
    pub(super) fn continuation(
        &mut self,
        accepted: &str,
        tokens_max: usize,
    ) -> Result<Arc<AssistRequest>, CloudFault> {
        let tokens_max = u32::try_from(tokens_max).ok();
        let made = self.redactor.redact_continuation(&self.redacted, accepted, tokens_max);
        let made = made.map_err(|err| CloudFault::Privacy { reason: err.to_string() })?;
        // A random id would make two runs of a seed differ.
        let request_id = Uuid::from_u128(self.request.request_id.as_u128() + 1);
        Ok(Arc::new(AssistRequest { request_id, ..made.as_request().clone() }))
    }

    /// Returns the request that the answer began with.
    pub(super) fn first_request(&self) -> &AssistRequest {
        self.redacted.as_request()
    }

    pub(super) fn finished(&self) -> bool {
        self.seen.outcome.is_some()
    }
}

/// Returns on which terms the device takes keys and values, if the scene offers some.
fn kv_terms(
    model: &Model,
    kv: Option<String>,
    segments: &[Segment],
    scene: &SceneSettings,
) -> Option<KvTerms> {
    scene.kv.map(|_| match kv {
        Some(model_name) => {
            let ids = prompt_ids(model, segments);
            KvTerms {
                refused: None,
                model: model_name,
                prompt_sha256: ids_sha256(&ids),
                prompt_tokens: ids.len(),
                line_bytes_per_s: None,
            }
        }
        None => KvTerms::refusing("this device takes none"),
    })
}

/// Returns the settings of a question's relay.
fn config(
    question: &Question,
    shape: &DeviceShape,
    scene: &SceneSettings,
    kv: Option<KvTerms>,
) -> RelayConfig {
    let cost = DeviceCost {
        prefill_ms_per_token: shape.cost.prefill_ms_per_token,
        prefill_ms_per_token2: 0.0,
        decode_ms: shape.cost.decode_ms,
        decompress_ms: 1.0,
    };
    RelayConfig {
        mode: question.mode,
        has_device: question.mode != RelayMode::CloudOnly || question.seed.is_multiple_of(2),
        pace: if question.instant { PaceMode::Instant } else { PaceMode::Paced },
        tau_ms: f64::from(scene.tau_ms),
        refine: scene.refine,
        corrector: scene.corrector,
        corrector_override: question.corrector,
        verify: scene.verify,
        cost,
        hedge_after_ms: question.hedge_after_ms as f64,
        first_timeout_ms: 60_000.0,
        idle_timeout_ms: 20_000.0,
        may_continue: true,
        kv,
        first_prompt: PromptId(100 * question.number as u64 + 1),
    }
}

/// Fails if a value that must stay on the device is in a request.
pub(super) fn check_sent(request: &AssistRequest) -> Result<(), String> {
    let name = CANARY.split('@').next().unwrap_or(CANARY);
    let mut texts = request.segments.iter().map(|segment| segment.text.as_str());
    let accepted = request.continue_from.as_deref().unwrap_or_default();
    match texts.any(|text| text.contains(name)) || accepted.contains(name) {
        true => Err("I5: a private value leaves the device".to_owned()),
        false => Ok(()),
    }
}

fn draft(question: &Question, shape: &DeviceShape, model: &Model, verify: VerifyPolicy) -> AssistRequest {
    let alone = question.mode == RelayMode::CloudOnly;
    let device = DeviceInfo {
        class: "phone".to_owned(),
        model: "sim".to_owned(),
        pair: None,
        kv: None,
        prefill_ms_per_token: Some(shape.cost.prefill_ms_per_token),
        prefill_ms_per_token2: 0.0,
        decode_ms: Some(shape.cost.decode_ms),
        network: None,
        network_ms: None,
    };
    let none = RefineOptions { ratio: Some(1.0), mode: Some("none".into()) };
    AssistRequest {
        protocol: PROTOCOL_VERSION,
        request_id: Uuid::from_u128(u128::from(question.seed) << 64 | (question.number as u128) << 8),
        segments: question.segments(),
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        continue_from: None,
        scene: SCENE.to_owned(),
        scene_version: None,
        model: "default".to_owned(),
        tokenizer_sha256: Some(model.tokenizer().digest_hex().to_owned()),
        device: (!alone).then_some(device),
        sampling: question.sampling.clone(),
        refine: if alone { none } else { RefineOptions::default() },
        assist_tokens: if alone { u32::try_from(question.tokens_max).ok() } else { question.assist_tokens },
        resume: question.resume,
        verify: verify != VerifyPolicy::Off && !alone,
    }
}

impl Seen {
    /// Notes what goes to the engine.
    pub(super) fn command(&mut self, command: &EngineCommand) {
        match command {
            EngineCommand::Open { prompt, spec, .. } => {
                self.prompts.push((*prompt, Arc::clone(&spec.segments)));
            }
            EngineCommand::Prefill { prompt, segments, .. } => {
                self.prompts.push((*prompt, Arc::clone(segments)));
            }
            EngineCommand::Draft { prompt, answer, .. } => {
                let segments = self.prompts.last().map(|(_, segments)| Arc::clone(segments));
                self.runs.push(Run { prompt: *prompt, segments, answer: answer.clone(), ids: Vec::new() });
            }
            EngineCommand::Take { prompt, .. } => {
                let whole = self.prompts.first().map(|(_, segments)| Arc::clone(segments));
                self.prompts.extend(whole.map(|segments| (*prompt, segments)));
            }
            EngineCommand::Verify { .. } | EngineCommand::Stop => {}
            EngineCommand::Decode { prompt, .. } => self.decoded = Some(*prompt),
        }
    }

    /// Notes what the engine said.
    pub(super) fn report(&mut self, report: &EngineReport) {
        if let EngineReport::Token { prompt, index, id, text } = report {
            if let Some(run) = self.runs.iter_mut().find(|run| run.prompt == *prompt) {
                return run.ids.push((*index, *id));
            }
            self.device.push((*index, *id));
            self.by_text |= text.is_some();
        }
    }

    /// Notes what the cloud said; `offset`: tokens before its stream.
    pub(super) fn cloud(&mut self, event: &AssistEvent) {
        let (index, id) = match event {
            AssistEvent::First(first) => (first.index as usize, first.id),
            AssistEvent::Token(token) => (token.index as usize, token.id),
            AssistEvent::End(end) if end.reason == EndReason::Cap => {
                self.capped = Some(end.usage.completion_tokens as usize);
                return;
            }
            _ => return,
        };
        if self.cloud.len() <= index {
            self.cloud.resize(index + 1, None);
        }
        self.cloud[index] = Some(id);
    }

    /// Notes a text that is shown.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn show(&mut self, index: usize, text: &str, source: Source) -> Result<(), String> {
        if index != self.shown.len() {
            return Err(format!("I2: token {index} is shown, {} is the next", self.shown.len()));
        }
        self.shown.push(source);
        self.text.push_str(text);
        Ok(())
    }

    /// Notes the text that was held back.
    pub(super) fn tail(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    pub(super) fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Takes the end.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn finish(&mut self, outcome: Outcome) -> Result<(), String> {
        if self.outcome.is_some() {
            return Err("I3: an answer ends twice".to_owned());
        }
        if outcome.answer != self.text {
            return Err(format!("I1: shown {:?}, told {:?}", self.text, outcome.answer));
        }
        if self.shown.len() != outcome.timeline.shown.len() {
            return Err(format!(
                "I2: {} tokens shown, {} told",
                self.shown.len(),
                outcome.timeline.shown.len()
            ));
        }
        self.outcome = Some(outcome);
        Ok(())
    }

    /// Checks every token that the device has written against its own continuation of the tokens before it.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn check_takeover(
        &self,
        question: &Question,
        shape: &DeviceShape,
        model: &Arc<Model>,
    ) -> Result<(), String> {
        let Some(prompt) = self.decoded.filter(|_| !self.by_text) else { return Ok(()) };
        let Some((_, segments)) = self.prompts.iter().rev().find(|(id, _)| *id == prompt) else {
            return Err(format!("the device writes from an unknown prompt {prompt:?}"));
        };
        let Some((first, _)) = self.device.first() else { return Ok(()) };
        // Of another vocabulary only text counts; here that has no complete character.
        let known = if shape.other_tokenizer { 0 } else { *first };
        let before: Option<Vec<TokenId>> = (0..known).map(|at| *self.cloud.get(at)?).collect();
        let before =
            before.ok_or_else(|| format!("I9: the device begins at {first}, the cloud did not get there"))?;
        let prompt = prompt_ids(model, segments);
        let mut plain = Plain::new(shape.voice, model, sampling(&question.sampling), &prompt, &before);
        for (at, (index, id)) in self.device.iter().enumerate() {
            let want = plain.next();
            if (*index, *id) != (first + at, want) {
                return Err(format!(
                    "I9: the device's token {index} is {id}; alone it writes {want} at {}",
                    first + at
                ));
            }
            plain.push(want);
        }
        Ok(())
    }

    /// Checks that a whole answer is what the model alone writes. Only if one model wrote all of it, from one
    /// prompt.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn check_whole(
        &self,
        question: &Question,
        voice: Voice,
        model: &Arc<Model>,
        segments: &[Segment],
    ) -> Result<(), String> {
        let Some(outcome) = &self.outcome else { return Ok(()) };
        let prompt = prompt_ids(model, segments);
        let mut plain = Plain::new(voice, model, sampling(&question.sampling), &prompt, &[]);
        let mut text = StopStrings::new(&question.sampling.stop).map_err(|err| err.to_string())?;
        let mut characters = baton_engine::Detokenizer::new(Arc::clone(model.tokenizer()));
        let (mut all, mut raw, mut stopped) = (String::new(), String::new(), false);
        // The cloud may say that it writes less than was asked for.
        let alone = question.mode == RelayMode::CloudOnly && self.device.is_empty();
        let most = self.capped.filter(|_| alone).unwrap_or(question.tokens_max);
        while plain.answer().len() < most.min(question.tokens_max) && !stopped {
            let id = plain.next();
            if model.tokenizer().is_end(id) {
                break;
            }
            plain.push(id);
            let piece = characters.push(id);
            raw.push_str(&piece);
            let push = text.push(&piece);
            all.push_str(&push.text);
            stopped = push.stopped;
        }
        all.push_str(&text.push(&characters.finish()).text);
        all.push_str(&text.finish());
        let whole = matches!(outcome.ending, Ending::Stop | Ending::Length);
        // An answer that broke off may end with the beginning of a stop string.
        let begins = all.starts_with(&outcome.answer) || raw.starts_with(&outcome.answer);
        let right = if whole { outcome.answer == all } else { begins };
        match right {
            true => Ok(()),
            false => Err(format!(
                "I2: the answer is {:?} ({:?}), alone it is {all:?}",
                outcome.answer, outcome.ending
            )),
        }
    }
}
