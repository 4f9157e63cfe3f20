//! Makes a question ready: redacts it, tokenizes it, chooses its route, and sets up the relay's core.
//!
//! What leaves is redacted, and a device that helps the cloud reads the same. A device that answers alone
//! reads the text as it was given: nothing of it leaves, and its prompt goes on from the one before.

use super::config::{relay_config, sampling_params};
use super::evidence::Citing;
use super::form::{AnswerForms, Forms};
use super::recent::Recent;
use super::route::{self, Known, RouteReport, Routes};
use super::{Agent, AgentError, PROMPTS_PER_ANSWER, Question, fit, no_cloud, unchecked};
use crate::client::{CloudClient, OutgoingRequest};
use crate::local::{AnswerSpec, CitingHeads, KvSide, PromptId, assembled, room_for};
use crate::machine::power::Power;
use crate::prefix::Kept;
use crate::privacy::{
    Memory, Origin, PlaceholderTable, PrivateNames, Quoting, RedactedRequest, Redactor, Replaced, Restorer,
};
use crate::receipt::SentRequest;
use crate::relay::{CloudFault, KvTerms, Note, RelayConfig, RelayCore, RelayMode, TextRules};
use baton_constrain::thought_tokens;
use baton_engine::prompt::Prompt;
use baton_engine::rows::ids_sha256;
use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_engine::{AdapterId, Model};
use baton_generate::thinking::begins_in_thinking;
use baton_pacing::DeviceCost;
use baton_pacing::route::Route;
use baton_protocol::{
    AnswerFormat, AssistRequest, DeviceInfo, PROTOCOL_VERSION, RefineOptions, SceneInfo, Segment, ToolUse,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use uuid::Uuid;

/// The scene of conversations, in which words that no list has may be names.
const CONVERSATION: &str = "chat";

/// A question that is ready to be answered.
pub(super) struct Prepared {
    pub(super) core: RelayCore,
    pub(super) redactor: Redactor,
    pub(super) redacted: Result<RedactedRequest, CloudFault>,
    pub(super) request: Option<OutgoingRequest>,
    /// Whether the request was sent.
    pub(super) is_sent: bool,
    /// Bytes of the prompt's texts as they may be sent, before they are compressed.
    pub(super) text_bytes: Option<usize>,
    /// The request to go on behind the device's text, if it was sent.
    pub(super) continued: Option<(RedactedRequest, OutgoingRequest)>,
    /// The drafts of the answer that were sent.
    pub(super) drafts: Vec<SentRequest>,
    pub(super) notes: Vec<Note>,
    pub(super) mode: RelayMode,
    pub(super) route: Option<RouteReport>,
    /// The tokens of the whole prompt, if this device knows them.
    pub(super) whole: Option<Arc<[TokenId]>>,
    pub(super) adapter: Option<AdapterId>,
    /// How citations lead back to the question's texts, if the answer has any.
    pub(super) citing: Option<Citing>,
    /// The prompt as it was given.
    pub(super) given: PromptText,
    /// When the answer was begun.
    pub(super) begun: Option<Instant>,
    /// What makes the question ready for this device alone, if the cloud is asked for something else.
    preparation: Option<Preparation>,
}

/// A prompt as a model reads it: as it was given, or redacted.
#[derive(Clone)]
pub(super) struct PromptText {
    pub(super) segments: Vec<Segment>,
    pub(super) tools: Option<ToolUse>,
    format: AnswerFormat,
    /// Its tokens, if this device knows them.
    tokens: Option<Arc<Prompt>>,
    /// Where its texts come from, if it was redacted.
    origins: Option<Vec<Origin>>,
    /// The values behind its placeholders.
    table: Arc<PlaceholderTable>,
}

impl PromptText {
    /// Returns whether a model reads the same in both.
    fn is_equal(&self, other: &PromptText) -> bool {
        self.segments == other.segments && self.tools == other.tools && self.format == other.format
    }

    /// Returns the ids of its tokens, if this device knows them.
    fn ids(&self) -> Option<Arc<[TokenId]>> {
        self.tokens.as_ref().map(|tokens| Arc::from(tokens.ids.as_slice()))
    }
}

/// What a question is made ready with, on a thread that may block.
struct Preparation {
    question: Question,
    mode: RelayMode,
    draft: AssistRequest,
    cost: DeviceCost,
    first_prompt: PromptId,
    tokenizer: Arc<Tokenizer>,
    model: Option<Arc<Model>>,
    memory: Memory,
    names: PrivateNames,
    /// What is shown of answers that are under way, with their tables.
    running: Vec<(Arc<PlaceholderTable>, String)>,
    stop: StopStrings,
    hedge_after_ms: f64,
    /// Tokens of prompt and answer together that the device has room for, if it has a model.
    context_tokens: Option<usize>,
    adapter: Option<AdapterId>,
    missing: Option<Note>,
    forms: Forms,
    quoting: Quoting,
    routing: Option<Routing>,
    again: Option<Again>,
    /// The heads to cite by, if the answer cites sentences.
    cites: Option<CitingHeads>,
    /// Keys and values that the device can take, in a scene that offers some, and what the line carries.
    kv: Option<(Result<KvSide, String>, Option<f64>)>,
}

/// How a turn is answered again for an audit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Again {
    /// The route.
    pub(super) route: Route,
    /// Leading tokens of the prompt that the device may know.
    pub(super) known: usize,
}

/// What a route is chosen with.
struct Routing {
    routes: Arc<Routes>,
    kept: Option<Arc<Kept>>,
    recent: Recent,
    context_tokens: usize,
}

impl Agent {
    pub(super) async fn prepare(
        &self,
        question: Question,
        mode: RelayMode,
        again: Option<Again>,
    ) -> Result<Prepared, AgentError> {
        let cost = self.cost(mode).await?;
        let is_chat = question.own.as_ref().is_none_or(|own| own.is_chat);
        let chats = self.device.as_ref().filter(|_| is_chat);
        let turn_ends = chats.map(|device| device.model.turn_ends()).unwrap_or_default();
        let (adapter, missing) = self.adapter(&question.scene, mode);
        // Not inside the next statement: its lock would be held while others are asked for.
        let hedge_after_ms = self.recent().hedge_after_ms();
        let line = self.recent().line_bytes_per_s(route::now_s());
        let preparation = Preparation {
            draft: self.draft(&question, mode, cost),
            cost,
            first_prompt: PromptId(self.prompts.fetch_add(PROMPTS_PER_ANSWER, Ordering::Relaxed)),
            tokenizer: self.tokenizer.clone(),
            model: self.device.as_ref().map(|device| device.model.clone()),
            memory: self.memory.clone(),
            names: self.names.clone(),
            running: self.running.shown(),
            stop: StopStrings::new(&question.sampling.stop)?.with_turn_ends(turn_ends),
            hedge_after_ms,
            context_tokens: self.context_tokens(),
            adapter,
            missing,
            forms: self.forms.clone(),
            quoting: question.quoting(self.call_markup(&question.scene)),
            routing: self.routing(&question, mode).filter(|_| again.is_none()),
            cites: self.citing_heads(&question),
            again,
            kv: self.kv_side(&question, mode).map(|side| (side, line)),
            mode,
            question,
        };
        let prepare = move || preparation.prepared();
        tokio::task::spawn_blocking(prepare).await.map_err(AgentError::Prepare)?
    }

    /// Returns what a route is chosen with, if one is.
    fn routing(&self, question: &Question, mode: RelayMode) -> Option<Routing> {
        let device = self.device.as_ref().filter(|_| mode == RelayMode::Relay && question.own.is_none())?;
        Some(Routing {
            routes: self.routes.clone()?,
            kept: device.kept.clone(),
            recent: self.recent().clone(),
            context_tokens: device.worker.context_tokens(),
        })
    }

    /// Returns the scene's adapter on this device, and a note if the device has no adapter of that name.
    fn adapter(&self, scene: &SceneInfo, mode: RelayMode) -> (Option<AdapterId>, Option<Note>) {
        let device = self.device.as_ref().filter(|_| mode != RelayMode::CloudOnly);
        let (Some(device), Some(name)) = (device, &scene.settings.adapter) else { return (None, None) };
        let found = device.adapters.get(name).copied();
        let missing =
            Note::AdapterMissing { adapter: name.chars().filter(|c| !c.is_control()).take(128).collect() };
        (found, found.is_none().then_some(missing))
    }

    /// Returns what keys and values this device can take, or why it takes none, in a scene that offers some.
    fn kv_side(&self, question: &Question, mode: RelayMode) -> Option<Result<KvSide, String>> {
        let settings = &question.scene.settings;
        settings.kv.filter(|_| mode == RelayMode::Relay && question.own.is_none())?;
        let device = self.device.as_ref()?;
        Some(match settings.adapter {
            Some(_) => Err("the scene has an adapter".to_owned()),
            None => device.worker.kv(),
        })
    }

    /// Makes the request as the user asked it, not redacted. [`Redactor::redact_request`] turns it into what
    /// may be sent.
    fn draft(&self, question: &Question, mode: RelayMode, cost: DeviceCost) -> AssistRequest {
        let alone = mode == RelayMode::CloudOnly;
        let device = self.device.as_ref().map(|device| DeviceInfo {
            class: self.device_class.clone(),
            kv: self.kv_side(question, mode).and_then(Result::ok).map(|side| side.identity.to_string()),
            model: device.model.name().chars().filter(|c| !c.is_control()).take(100).collect(),
            pair: self.pair(),
            prefill_ms_per_token: Some(cost.prefill_ms_per_token),
            prefill_ms_per_token2: cost.prefill_ms_per_token2,
            decode_ms: Some(cost.decode_ms),
            network: self.network.clone(),
            network_ms: self.recent().network_ms(),
        });
        let none = RefineOptions { ratio: Some(1.0), mode: Some("none".into()) };
        AssistRequest {
            protocol: PROTOCOL_VERSION,
            request_id: Uuid::new_v4(),
            segments: question.segments.clone(),
            tools: question.tools.clone(),
            format: question.format.clone(),
            continue_from: None,
            scene: question.scene.id.clone(),
            scene_version: (question.scene.version > 0).then_some(question.scene.version),
            model: "default".into(),
            tokenizer_sha256: self.device.is_some().then(|| self.tokenizer.digest_hex().to_owned()),
            device: device.filter(|_| !alone),
            sampling: question.sampling.clone(),
            refine: if alone { none } else { question.refine.clone() },
            assist_tokens: if alone {
                u32::try_from(question.tokens_max).ok()
            } else {
                question.assist_tokens
            },
            // L is small, so a cloud that keeps writing for a lost device wastes little. A whole answer would
            // waste more.
            resume: !alone && self.cloud.as_ref().is_some_and(CloudClient::resumes),
            verify: !alone && question.is_verified(),
        }
    }
}

/// Returns the bytes of the prompt's texts. Forecasts and measured times of the network are both by these.
fn text_bytes(sent: &RedactedRequest) -> usize {
    sent.segments().iter().map(|segment| segment.text.len()).sum()
}

impl Preparation {
    /// Returns the most tokens of the thinking that the prompt opens, or `None` if it opens none.
    fn thought_tokens(&self, model: &Model, whole: Option<&Prompt>) -> Option<usize> {
        let opens = self.question.own.is_none() && begins_in_thinking(model.template());
        let prompt_tokens = whole.map_or(0, |whole| whole.ids.len());
        let room = self.context_tokens.unwrap_or_default().saturating_sub(prompt_tokens);
        opens.then(|| thought_tokens(room.min(self.question.tokens_max)))
    }

    fn prepared(mut self) -> Result<Prepared, AgentError> {
        // The question may hold what is shown of answers that are under way.
        for (table, shown) in std::mem::take(&mut self.running) {
            self.memory.learn_answer(&table, &shown);
        }
        // A request with tools is a program's: its texts are code and terms.
        let is_conversation = self.draft.scene == CONVERSATION && self.draft.tools.is_none();
        let names = self.names.clone().guessing(is_conversation);
        let mut redactor = Redactor::default().with_memory(self.memory.clone()).with_names(names);
        let mut redacted = match self.mode {
            RelayMode::DeviceOnly => Err(no_cloud()),
            RelayMode::Relay | RelayMode::CloudOnly => {
                redactor.redact_request(&self.draft).map_err(|err| unchecked(&err))
            }
        };
        let mut given = self.given();
        match self.tokens(&given.segments, given.tools.as_ref()) {
            Ok(tokens) => given.tokens = tokens,
            // The cloud's model has a template of its own.
            Err(_) if redacted.is_ok() && self.again.is_none() => self.mode = RelayMode::CloudOnly,
            Err(reason) => return Err(AgentError::Prompt(reason)),
        }
        let sent = redacted.as_mut().ok().map(|request| self.sent(request, &given, redactor.table()));
        let (sent, fitted) = sent.unzip();
        let (mode, route) = self.route(&given, sent.as_ref(), redacted.as_ref().ok());
        if let (RelayMode::CloudOnly, Ok(redacted)) = (mode, &mut redacted) {
            redacted.for_cloud_alone(self.question.tokens_max);
        }
        let sent = sent.filter(|_| mode != RelayMode::DeviceOnly);
        let fitted = fitted.flatten().filter(|_| sent.is_some());
        let text = sent.as_ref().unwrap_or(&given);
        let core = self.core(mode, text)?;
        let is_sent = |_: &&RedactedRequest| mode != RelayMode::DeviceOnly;
        let request = redacted.as_ref().ok().filter(is_sent).map(OutgoingRequest::new).transpose()?;
        let replaced = request.as_ref().and_then(|_| Replaced::of(&text.table));
        let notes = replaced.map(Note::Redacted).into_iter().chain(fitted).chain(self.missing.take());
        let is_other = self.model.is_some() && !text.is_equal(&given);
        Ok(Prepared {
            core,
            redactor,
            request,
            is_sent: false,
            drafts: Vec::new(),
            text_bytes: redacted.as_ref().ok().map(text_bytes),
            redacted,
            continued: None,
            notes: notes.collect(),
            mode,
            route,
            whole: text.ids(),
            adapter: self.adapter,
            citing: self.citing(text),
            given,
            begun: None,
            preparation: is_other.then_some(self),
        })
    }

    /// Returns the prompt as it was given, not yet laid out.
    fn given(&self) -> PromptText {
        let Question { segments, tools, format, .. } = &self.question;
        PromptText {
            segments: segments.clone(),
            tools: tools.clone(),
            format: format.clone(),
            tokens: None,
            origins: None,
            table: Arc::default(),
        }
    }

    /// Returns the prompt as it may be sent. Shortens it, with a note, if the cloud would refuse it.
    fn sent(
        &self,
        request: &mut RedactedRequest,
        given: &PromptText,
        table: Arc<PlaceholderTable>,
    ) -> (PromptText, Option<Note>) {
        let segments = request.segments();
        let tools = request.as_request().tools.as_ref();
        let mut tokens = match segments == given.segments && tools == given.tools.as_ref() {
            true => given.tokens.clone(),
            // A prompt that cannot be laid out is told by the engine.
            false => self.tokens(segments, tools).ok().flatten(),
        };
        let whole = self.model.as_ref().zip(tokens.as_deref());
        let fitted = whole.and_then(|(model, whole)| fit::fit(model, &self.question, request, whole));
        let note = fitted.map(|(shorter, note)| {
            tokens = Some(Arc::new(shorter));
            note
        });
        let text = PromptText {
            segments: request.segments().to_vec(),
            tools: request.as_request().tools.clone(),
            format: request.as_request().format.clone(),
            tokens,
            origins: Some(request.origins().to_vec()),
            table,
        };
        (text, note)
    }

    /// Makes the tokens of a prompt, if a model of this device lays it out.
    ///
    /// # Errors
    /// Why the model's template cannot lay out the messages.
    fn tokens(&self, segments: &[Segment], tools: Option<&ToolUse>) -> Result<Option<Arc<Prompt>>, String> {
        let Some(model) = self.model.as_ref().filter(|_| self.question.own.is_none()) else {
            return Ok(None);
        };
        let offered = tools.map_or(&[][..], |tools| &tools.tools);
        assembled(model, segments, offered).map(|prompt| Some(Arc::new(prompt)))
    }

    /// Returns who answers. What this device has read is looked for in the prompt as it was given, because it
    /// reads that one if it answers alone.
    fn route(
        &self,
        given: &PromptText,
        sent: Option<&PromptText>,
        request: Option<&RedactedRequest>,
    ) -> (RelayMode, Option<RouteReport>) {
        if let Some(again) = self.again {
            return (route::mode_of(again.route), None);
        }
        let prompt = sent.and_then(|sent| sent.tokens.as_deref());
        let (Some(routing), Some(prompt), Some(sent)) = (&self.routing, prompt, request) else {
            return (self.mode, None);
        };
        let ids = given.tokens.as_deref().map_or(&prompt.ids, |given| &given.ids);
        let cached = routing.routes.cached(ids, self.adapter, routing.kept.as_deref());
        let bytes = text_bytes(sent);
        let (power, now_s) = (Power::read(Path::new("/")), route::now_s());
        route::chosen(&Known {
            prompt,
            refinable: sent.segments().iter().map(|segment| segment.refine).collect(),
            question: &self.question,
            device: self.cost,
            cached: cached.min(prompt.ids.len().saturating_sub(1)),
            room: room_for(routing.context_tokens, self.question.tokens_max),
            bytes,
            power,
            options: routing.routes.options(),
            answer_tokens: routing.recent.answer_tokens(),
            cloud: routing.recent.cloud(bytes as f64, now_s),
        })
    }

    /// Returns how the answer's tokens become the text that is shown.
    fn rules(&self, table: &Arc<PlaceholderTable>) -> TextRules {
        let restorer = Restorer::new(Arc::clone(table)).with_quoting(self.quoting);
        TextRules { tokenizer: self.tokenizer.clone(), restorer, stop: self.stop.clone() }
    }

    /// Returns how citations lead back to the question's texts.
    fn citing(&self, text: &PromptText) -> Option<Citing> {
        self.cites.as_ref()?;
        Some(Citing::new(&text.segments, text.origins.clone(), self.rules(&text.table)))
    }

    /// Returns on which terms keys and values are taken in place of a prefill, if the scene offers some.
    fn kv_terms(&self, whole: Option<&Prompt>) -> Option<KvTerms> {
        let (side, line_bytes_per_s) = self.kv.as_ref()?;
        Some(match (side, whole) {
            (Err(reason), _) => KvTerms::refusing(reason),
            (Ok(_), None) => KvTerms::refusing("the prompt's tokens are not known"),
            (Ok(side), Some(whole)) => KvTerms {
                refused: None,
                model: side.identity.to_string(),
                prompt_sha256: ids_sha256(&whole.ids),
                prompt_tokens: whole.ids.len(),
                line_bytes_per_s: *line_bytes_per_s,
            },
        })
    }

    fn core(&self, mode: RelayMode, text: &PromptText) -> Result<RelayCore, AgentError> {
        let forms = match &self.model {
            Some(model) => {
                let thought_tokens = self.thought_tokens(model, text.tokens.as_deref());
                self.forms.compile(model, mode, text.tools.as_ref(), &text.format, thought_tokens)?
            }
            None => AnswerForms::default(),
        };
        let config = RelayConfig {
            mode,
            has_device: self.model.is_some(),
            cost: self.cost,
            hedge_after_ms: self.hedge_after_ms,
            first_prompt: self.first_prompt,
            kv: self.kv_terms(text.tokens.as_deref()),
            ..relay_config(&self.question, &text.segments)
        };
        let spec = AnswerSpec {
            segments: Arc::from(text.segments.as_slice()),
            adapter: self.adapter,
            sampling: sampling_params(&self.question.sampling),
            tokens_max: self.question.tokens_max.max(1),
            shorten: self.question.shorten,
            tools: text.tools.clone().map(Arc::new),
            form: forms.own,
            own: self.question.own.as_ref().map(|own| own.ids.clone()),
            whole: text.tokens.clone(),
            known_max: self.again.map(|again| again.known),
            cites: self.cites.clone(),
        };
        Ok(RelayCore::new(config, spec, self.rules(&text.table)).with_guard(forms.guard))
    }
}

impl Prepared {
    /// Makes this device answer alone, from the prompt as it was given. Returns false if it reads that
    /// already, or if the prompt it has is as good.
    pub(super) async fn answer_alone(&mut self) -> Result<bool, AgentError> {
        if !self.core.may_answer_alone() {
            return Ok(false);
        }
        let Some(preparation) = self.preparation.take() else { return Ok(false) };
        let given = self.given.clone();
        let prepare = move || {
            let core = preparation.core(RelayMode::DeviceOnly, &given)?;
            Ok::<_, AgentError>((core, given.ids(), preparation.citing(&given)))
        };
        let prepared = tokio::task::spawn_blocking(prepare).await.map_err(AgentError::Prepare)?;
        (self.core, self.whole, self.citing) = prepared?;
        self.mode = RelayMode::DeviceOnly;
        Ok(true)
    }
}
