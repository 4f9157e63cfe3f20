//! A cloud and a device with the demo models, for runs in virtual time.

use std::{num::NonZeroUsize, path::Path, sync::Arc};

use anyhow::Context;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::ServiceOptions;
use baton_corpus::Document;
use baton_device::{
    local::{AnswerSpec, LocalOptions, PromptId},
    privacy::Restorer,
    relay::{RelayConfig, RelayCore, RelayMode, TextRules},
};
use baton_engine::{
    Engine, EngineError, EngineOptions, Model, SamplingParams, Sequences, StopStrings,
    pace_emulation::PassCost,
};
use baton_pacing::{DeviceCost, PaceMode};
use baton_protocol::{
    AssistRequest, Corrector, DeviceInfo, RefineOptions, Role, Sampling, Segment, VerifyPolicy,
};

use crate::{
    demo::emulation,
    process::models_folder,
    sim::engine::{SimEngine, Voice},
    simulation::{Line, SimulatedCloud, SimulatedDevice, Simulation, Told},
};

/// Name of the scene that the simulated cloud serves.
const SCENE: &str = "suite";
/// Tokens in the device's KV cache.
const DEVICE_KV_TOKENS: usize = 4096;

/// The speed of the virtual phone, the same as in the demo.
pub const PHONE: PassCost = emulation::PHONE.pass_cost();
/// The speed of the virtual cloud, the same as in the demo.
pub const CLOUD: PassCost = emulation::CLOUD.pass_cost();

/// A cloud and a device.
pub struct Pair {
    /// The cloud.
    pub cloud: SimulatedCloud,
    /// The device's engine.
    pub device: SimulatedDevice,
    /// The device's speed.
    pub device_cost: PassCost,
    scene: SceneSettings,
}

/// A question for the pair.
#[derive(Debug, Clone)]
pub struct Question {
    /// The prompt.
    pub segments: Vec<Segment>,
    /// How the answer is sampled.
    pub sampling: Sampling,
    /// Most tokens of the answer.
    pub tokens_max: usize,
    /// L; `None` lets the cloud choose.
    pub assist_tokens: Option<u32>,
    /// Mode of the refiner; `None` for the default.
    pub refine_mode: Option<String>,
    /// Who may write the answer.
    pub mode: RelayMode,
}

impl Question {
    /// Makes a question about a document, in the layout that the demo models know.
    #[must_use]
    pub fn about(document: &Document, question: &str, tokens_max: usize) -> Self {
        let segments = vec![
            Segment::fixed(Role::System, "You answer from the document."),
            Segment::refinable(Role::User, document.text.clone()),
            Segment::fixed(Role::User, format!("\n\nQuestion: {question}")),
        ];
        Self {
            segments,
            sampling: Sampling::default(),
            tokens_max,
            assist_tokens: None,
            refine_mode: None,
            mode: RelayMode::Relay,
        }
    }
}

impl Question {
    /// Makes the request of a device that says nothing of itself, in this scene.
    #[must_use]
    pub fn request(&self, scene: &str) -> AssistRequest {
        AssistRequest {
            protocol: baton_protocol::PROTOCOL_VERSION,
            request_id: uuid::Uuid::nil(),
            scene: scene.to_owned(),
            scene_version: None,
            model: "default".to_owned(),
            tokenizer_sha256: None,
            segments: self.segments.clone(),
            tools: None,
            format: baton_protocol::AnswerFormat::Text,
            continue_from: None,
            device: None,
            sampling: self.sampling.clone(),
            refine: RefineOptions { ratio: None, mode: self.refine_mode.clone() },
            assist_tokens: self.assist_tokens,
            resume: false,
            verify: false,
        }
    }
}

/// Returns the same prompt as the messages of a chat: neighbours of one role are one message.
#[must_use]
pub fn messages(segments: &[Segment]) -> Vec<serde_json::Value> {
    let alike = segments.chunk_by(|one, next| one.role == next.role);
    let message = |alike: &[Segment]| {
        let text: String = alike.iter().map(|segment| segment.text.as_str()).collect();
        serde_json::json!({ "role": alike[0].role.as_str(), "content": text })
    };
    alike.map(message).collect()
}

/// Opens a demo model by its file name in `models/`.
///
/// # Errors
/// Fails if the file is missing or damaged.
pub fn demo_model(name: &str) -> anyhow::Result<Arc<Model>> {
    let path = models_folder().join(name);
    Model::open(Path::new(&path)).with_context(|| format!("open {}", path.display()))
}

impl Pair {
    /// Makes a cloud with `cloud_model` and a device with `device_model`; `ratio` is the scene's r, 1 for no
    /// refinement.
    ///
    /// # Errors
    /// Fails if an engine cannot be set up.
    pub fn new(
        cloud_model: Arc<Model>,
        device_model: Arc<Model>,
        ratio: f32,
        corrector: Corrector,
    ) -> anyhow::Result<Self> {
        let options = EngineOptions { kv_tokens: DEVICE_KV_TOKENS, ..EngineOptions::default() };
        let device = Engine::new(device_model, options).context("set up the device's engine")?;
        Self::over(cloud_model, Box::new(device), ratio, corrector)
    }

    /// Like [`Self::new`] without a corrector, at these speeds of device and cloud.
    ///
    /// # Errors
    /// Fails if an engine cannot be set up.
    pub fn at(
        cloud_model: Arc<Model>,
        device_model: Arc<Model>,
        ratio: f32,
        (device_cost, cloud_cost): (PassCost, PassCost),
    ) -> anyhow::Result<Self> {
        let options = EngineOptions { kv_tokens: DEVICE_KV_TOKENS, ..EngineOptions::default() };
        let device = Engine::new(device_model, options).context("set up the device's engine")?;
        let scene = settings(ratio, Corrector::Cloud);
        let cloud = SimulatedCloud::new(cloud_model, vec![scene_of(&scene)], cloud_cost, |_| {})?;
        let device = SimulatedDevice::new(Box::new(device), LocalOptions::new(DEVICE_KV_TOKENS));
        Ok(Self { cloud, device, device_cost, scene })
    }

    /// Like [`Self::new`], with a device that computes by other means than its own engine.
    ///
    /// # Errors
    /// Fails if the cloud's engine cannot be set up.
    pub fn over(
        cloud_model: Arc<Model>,
        device: Box<dyn Sequences>,
        ratio: f32,
        corrector: Corrector,
    ) -> anyhow::Result<Self> {
        let scene = settings(ratio, corrector);
        let cloud = SimulatedCloud::new(cloud_model, vec![scene_of(&scene)], CLOUD, |_| {})?;
        let device = SimulatedDevice::new(device, LocalOptions::new(DEVICE_KV_TOKENS));
        Ok(Self { cloud, device, device_cost: PHONE, scene })
    }

    /// Makes a pair that computes nothing: only times and numbers of tokens are real. Prompts of up to
    /// `tokens` tokens fit; `costs` are the speeds of device and cloud.
    ///
    /// # Errors
    /// Fails if the cloud's service cannot be set up.
    pub fn of_times(
        model: &Arc<Model>,
        tokens: usize,
        (device_cost, cloud_cost): (PassCost, PassCost),
        ratio: f32,
    ) -> anyhow::Result<Self> {
        let voice = Voice { seed: 1, alike: 16, variant: 0, ends: u64::MAX };
        let scene = settings(ratio, Corrector::Cloud);
        let options = |options: &mut ServiceOptions| {
            options.kv_tokens = NonZeroUsize::new(2 * tokens);
            options.threads = NonZeroUsize::new(1);
        };
        let engine = |model: Arc<Model>, options: EngineOptions| -> Result<Box<dyn Sequences>, EngineError> {
            Ok(Box::new(SimEngine::new(&model, options.kv_tokens, voice)))
        };
        let scenes = vec![scene_of(&scene)];
        let cloud = SimulatedCloud::over(Arc::clone(model), scenes, cloud_cost, options, engine)?;
        let device: Box<dyn Sequences> = Box::new(SimEngine::new(model, tokens, voice));
        let device = SimulatedDevice::new(device, LocalOptions::new(tokens));
        Ok(Self { cloud, device, device_cost, scene })
    }

    /// Lets the cloud check what the device writes.
    ///
    /// # Errors
    /// Fails if the cloud does not take the scene.
    pub fn verified(&mut self, policy: VerifyPolicy) {
        self.scene.verify = policy;
        self.cloud.service().scene_book().replace([scene_of(&self.scene)]);
    }

    /// Makes the request that a device sends.
    #[must_use]
    pub fn request(&self, question: &Question) -> AssistRequest {
        let alone = question.mode == RelayMode::CloudOnly;
        let none = RefineOptions { ratio: Some(1.0), mode: Some("none".to_owned()) };
        let device = DeviceInfo {
            class: "phone".to_owned(),
            model: "demo-device".to_owned(),
            pair: None,
            kv: None,
            prefill_ms_per_token: Some(self.device_cost.prefill_ms_per_token),
            prefill_ms_per_token2: 0.0,
            decode_ms: Some(self.device_cost.decode_ms),
            network: Some("wifi".to_owned()),
            network_ms: None,
        };
        AssistRequest {
            tokenizer_sha256: Some(self.device.model().tokenizer().digest_hex().to_owned()),
            device: Some(device).filter(|_| !alone),
            refine: match alone {
                true => none,
                false => RefineOptions { ratio: None, mode: question.refine_mode.clone() },
            },
            assist_tokens: match alone {
                true => u32::try_from(question.tokens_max).ok(),
                false => question.assist_tokens,
            },
            verify: !alone && self.scene.verify != VerifyPolicy::Off,
            ..question.request(SCENE)
        }
    }

    /// Answers the question by the relay.
    ///
    /// # Errors
    /// Fails if the answer does not end, or leaves the cloud busy.
    pub fn relay(&mut self, question: &Question, line: Line) -> anyhow::Result<Told> {
        let request = self.request(question);
        let core = self.core(question);
        Simulation::run(&mut self.cloud, &mut self.device, self.device_cost, line, core, &request)
    }

    fn core(&self, question: &Question) -> RelayCore {
        let cost = DeviceCost {
            prefill_ms_per_token: self.device_cost.prefill_ms_per_token,
            prefill_ms_per_token2: 0.0,
            decode_ms: self.device_cost.decode_ms,
            decompress_ms: 1.0,
        };
        let config = RelayConfig {
            mode: question.mode,
            has_device: true,
            pace: PaceMode::Paced,
            tau_ms: f64::from(self.scene.tau_ms),
            refine: self.scene.refine,
            corrector: self.scene.corrector,
            corrector_override: None,
            verify: self.scene.verify,
            cost,
            hedge_after_ms: 10_000.0,
            first_timeout_ms: 30_000.0,
            idle_timeout_ms: 10_000.0,
            may_continue: true,
            kv: None,
            first_prompt: PromptId(1),
        };
        let spec = AnswerSpec::plain(
            question.segments.clone().into(),
            sampling(&question.sampling),
            question.tokens_max,
        );
        let rules = TextRules {
            tokenizer: Arc::clone(self.device.model().tokenizer()),
            restorer: Restorer::new(Arc::default()),
            stop: StopStrings::new(&[]).expect("no stop string is a bad one"),
        };
        RelayCore::new(config, spec, rules)
    }
}

/// Returns the settings of the pair's scene.
fn settings(ratio: f32, corrector: Corrector) -> SceneSettings {
    SceneSettings {
        ratio: Some(ratio),
        xi: ratio,
        refine: ratio < 1.0,
        corrector,
        question_prefix: "\n\nQuestion: ".to_owned(),
        ..SceneSettings::with_system("You answer from the document.")
    }
}

fn scene_of(settings: &SceneSettings) -> Scene {
    Scene { id: SCENE.to_owned(), version: 1, settings: settings.clone() }
}

/// Converts a request's sampling to the engine's.
fn sampling(sampling: &Sampling) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        seed: sampling.seed,
        ..SamplingParams::default()
    }
}
