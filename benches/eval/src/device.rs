//! The device's part: the local engine of the device program, driven by the same commands as in the relay.
//!
//! The last prefill pass verifies the cloud's tokens; then the corrector decides as in the relay. There is no
//! clock here, so only the first token counts as shown. The corrector `device` can therefore change as many
//! tokens as possible: its results are an upper bound of its effect.

use std::num::NonZeroUsize;
use std::sync::Arc;

use baton_device::local::{
    Accepted, AnswerSpec, Driven, EngineCommand, EngineEnd, EngineReport, Keep, LocalOptions, PromptId,
    Scope, Verified,
};
use baton_engine::{Engine, Model, SamplingParams, SlidingWindow, StepControl, TokenId};
use baton_generate::speculation::Speculation;
use baton_protocol::{Corrector, Segment};

use crate::cloud::{CloudRun, RunError, engine_options};
use crate::writer::text_of;

/// The settings of a device.
#[derive(Debug, Clone)]
pub struct DeviceSpec {
    /// Its name in arms.
    pub name: String,
    /// Its model.
    pub model: Arc<Model>,
    /// Sliding-window attention in every layer; `None` for the model's own attention.
    pub window: Option<SlidingWindow>,
}

/// A running device.
pub struct Device {
    model: Arc<Model>,
    /// Engine for whole prompts. Its cache is reused for questions about the same text.
    whole: Driven<Engine>,
    /// Engine for refined prompts.
    refined: Driven<Engine>,
}

/// A device's answer to a prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceAnswer {
    /// The whole answer, including the cloud's part.
    pub text: String,
    /// Number of its tokens; the cloud's part is counted with the cloud's tokenizer.
    pub tokens: usize,
    /// Number of tokens in the prompt that the device read.
    pub prompt_tokens: usize,
    /// For each of the cloud's tokens, whether the device would have written the same. Empty if the
    /// tokenizers differ.
    pub agreement: Vec<bool>,
    /// Whether the model ended the answer before the limit.
    pub ended: bool,
}

/// The cloud's part of one answer.
#[derive(Debug, Clone, Copy)]
pub struct CloudPart<'a> {
    /// The cloud's run.
    pub run: &'a CloudRun,
    /// L.
    pub assist_tokens: usize,
    /// The side whose token counts if they differ.
    pub corrector: Corrector,
    /// Whether both sides have the same tokenizer.
    pub same_tokens: bool,
}

/// Number of tokens that count as shown when the device verifies.
const SHOWN_TOKENS: usize = 1;

impl Device {
    /// Makes a device with these settings.
    ///
    /// # Errors
    /// [`RunError::Device`] if its engine cannot be set up.
    pub fn new(spec: &DeviceSpec, threads: NonZeroUsize) -> Result<Self, RunError> {
        let engine = || {
            let mut options = engine_options(&spec.model, threads);
            options.window = spec.window;
            let failed = |reason: String| RunError::Device(reason);
            let proposer = Speculation::Lookup
                .proposer(&spec.model, options.clone())
                .map_err(|err| failed(err.to_string()))?;
            let local = LocalOptions { proposer, ..LocalOptions::new(options.kv_tokens) };
            let engine = Engine::new(spec.model.clone(), options).map_err(|err| failed(err.to_string()))?;
            Ok::<_, RunError>(Driven::new(engine, local))
        };
        Ok(Self { model: spec.model.clone(), whole: engine()?, refined: engine()? })
    }

    /// Returns its model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Answers alone from the whole prompt.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn alone(
        &mut self,
        segments: Arc<[Segment]>,
        max_tokens: usize,
        control: &mut dyn StepControl,
    ) -> Result<DeviceAnswer, RunError> {
        let ask = Ask { segments, max_tokens, cloud: None };
        Conversation::new(&mut self.whole, &ask).finish(control)
    }

    /// Answers from the refined prompt, continuing after the cloud's tokens.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn relay(
        &mut self,
        segments: Arc<[Segment]>,
        max_tokens: usize,
        cloud: CloudPart<'_>,
        control: &mut dyn StepControl,
    ) -> Result<DeviceAnswer, RunError> {
        let ask = Ask { segments, max_tokens, cloud: Some(cloud) };
        Conversation::new(&mut self.refined, &ask).finish(control)
    }
}

struct Ask<'a> {
    segments: Arc<[Segment]>,
    max_tokens: usize,
    cloud: Option<CloudPart<'a>>,
}

/// One answer of a local engine.
struct Conversation<'a> {
    engine: &'a mut Driven<Engine>,
    ask: &'a Ask<'a>,
    answer: DeviceAnswer,
    ids: Vec<TokenId>,
    over: bool,
}

const PROMPT: PromptId = PromptId(0);

impl<'a> Conversation<'a> {
    fn new(engine: &'a mut Driven<Engine>, ask: &'a Ask<'a>) -> Self {
        Self { engine, ask, answer: DeviceAnswer::default(), ids: Vec::new(), over: false }
    }

    fn finish(mut self, control: &mut dyn StepControl) -> Result<DeviceAnswer, RunError> {
        let spec =
            AnswerSpec::plain(self.ask.segments.clone(), SamplingParams::default(), self.ask.max_tokens);
        self.command(EngineCommand::Open { prompt: PROMPT, spec, scope: Scope::Whole })?;
        let accepted = self.accepted();
        self.command(EngineCommand::Verify { prompt: PROMPT, accepted })?;
        while !self.over {
            let computed = self.engine.turn(control).is_some();
            self.engine.commit();
            let reports = self.engine.reports();
            // Without a pass and without a word, the answer was stopped.
            if !computed && reports.is_empty() {
                return Err(RunError::Step(baton_engine::StepError::Cancelled { done: 0, total: 0 }));
            }
            self.read(reports)?;
        }
        if !self.ids.is_empty() {
            self.answer.text = text_of(self.engine.model().tokenizer(), &self.ids);
        }
        Ok(self.answer)
    }

    fn cloud_ids(&self) -> &'a [TokenId] {
        self.ask.cloud.as_ref().map_or(&[], |cloud| cloud.run.first_tokens(cloud.assist_tokens))
    }

    fn same_tokens(&self) -> bool {
        self.ask.cloud.as_ref().is_none_or(|cloud| cloud.same_tokens)
    }

    fn accepted(&self) -> Accepted {
        match &self.ask.cloud {
            Some(cloud) if !cloud.same_tokens => Accepted::Text(cloud.run.text(cloud.assist_tokens)),
            _ => Accepted::Ids(self.cloud_ids().to_vec()),
        }
    }

    fn command(&mut self, command: EngineCommand) -> Result<(), RunError> {
        let reports = self.engine.command(command);
        self.read(reports)
    }

    fn read(&mut self, reports: Vec<EngineReport>) -> Result<(), RunError> {
        for report in reports {
            match report {
                EngineReport::Prompt { tokens, .. } => self.answer.prompt_tokens = tokens,
                EngineReport::Verified { verified, .. } => self.verified(&verified)?,
                EngineReport::Token { id, text, .. } => {
                    self.answer.tokens += 1;
                    match text {
                        Some(text) => self.answer.text.push_str(&text),
                        None => self.ids.push(id),
                    }
                }
                EngineReport::Ended { why, text, .. } => {
                    self.answer.text.push_str(&text);
                    self.answer.ended = why == EngineEnd::EndToken;
                    self.over = true;
                }
                EngineReport::TooLong { tokens, limit, .. } => {
                    let reason = format!("prompt has {tokens} tokens, this device holds {limit}");
                    return Err(RunError::Device(reason));
                }
                EngineReport::Failed { reason, .. } => return Err(RunError::Device(reason)),
                EngineReport::NotTaken { reason, .. } => return Err(RunError::Device(reason)),
                EngineReport::Opened { .. } | EngineReport::Progress { .. } | EngineReport::Ready { .. } => {}
            }
        }
        Ok(())
    }

    /// Applies the corrector's decision, and continues with the answer.
    fn verified(&mut self, verified: &Verified) -> Result<(), RunError> {
        let ids = self.cloud_ids();
        self.answer.agreement = ids.iter().zip(&verified.own).map(|(cloud, own)| cloud == own).collect();
        let (keep, len) = self.correct(verified);
        self.answer.tokens = len;
        match &self.ask.cloud {
            Some(cloud) if !self.same_tokens() => self.answer.text = cloud.run.text(len),
            _ => self.ids = ids[..len].to_vec(),
        }
        self.command(EngineCommand::Decode { prompt: PROMPT, keep, index: len })
    }

    /// Decides how much of the cloud's part stays, as the relay does.
    fn correct(&self, verified: &Verified) -> (Keep, usize) {
        let ids = self.cloud_ids();
        let all = (Keep::All, ids.len());
        let Some(cloud) = self.ask.cloud.as_ref().filter(|cloud| cloud.corrector == Corrector::Device) else {
            return all;
        };
        let unshown = SHOWN_TOKENS.min(ids.len())..ids.len();
        if cloud.same_tokens {
            let differs =
                unshown.into_iter().find(|&i| verified.own.get(i).is_some_and(|own| *own != ids[i]));
            return differs.map_or(all, |i| (Keep::Tokens(i), i));
        }
        let starts: Vec<usize> = (0..ids.len()).map(|i| cloud.run.text(i).len()).collect();
        let differs = verified.differs_at_bytes.iter().find_map(|&bytes| {
            unshown.clone().find(|&i| starts[i] == bytes).map(|i| (Keep::Bytes(bytes), i))
        });
        differs.unwrap_or(all)
    }
}
