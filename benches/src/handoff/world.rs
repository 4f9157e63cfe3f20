//! A cloud process and a device in this one, with one model whose keys and values are as large as those of
//! a real one.
//!
//! The weights are random and few, so that two processor cores compute both sides. The heads are those of a
//! model of a billion weights (16 KiB a token in f16), and the device is as slow as such a device.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use baton_device::agent::{Agent, DeviceModel, Question};
use baton_device::client::{CloudClient, SceneReply};
use baton_device::local::LocalOptions;
use baton_device::privacy::PublicName;
use baton_device::relay::RelayMode;
use baton_device::worker::EngineWorker;
use baton_e2e::link::Link;
use baton_e2e::process::{CloudProcess, cpu_program};
use baton_engine::pace_emulation::PassCost;
use baton_engine::{Engine, EngineOptions, Model};
use baton_kernels_cpu::Format;
use baton_pacing::PaceMode;
use baton_protocol::{AnswerFormat, RefineOptions, Role, Sampling, SceneInfo, Segment};
use baton_random::SplitMix64;
use baton_synthetic::SyntheticModel;

/// Milliseconds that the device takes for a prompt token, and for a written one.
const PREFILL_MS: f64 = 1.0;
const DECODE_MS: f64 = 10.0;
/// Tokens that the cloud writes, and of an answer.
pub(super) const ASSIST_TOKENS: usize = 8;
pub(super) const ANSWER_TOKENS: usize = 12;
/// Share of the document that is kept.
const RATIO: &str = "0.25";
/// Time that a byte is on the way.
const DELAY: Duration = Duration::from_millis(2);
/// The scene that offers nothing, and those that offer keys and values.
pub(super) const PLAIN: &str = "plain";
pub(super) const FORMS: [&str; 3] = ["f16", "q8", "q4"];

/// The cloud, the line and the device.
pub(super) struct World {
    pub(super) worker: Arc<EngineWorker>,
    pub(super) model: Arc<Model>,
    link: Link,
    _cloud: CloudProcess,
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts the cloud, with room for prompts of so many tokens.
    pub(super) async fn start(longest: usize) -> Result<World> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let path = folder.path().join("shaped.gguf");
        let context_len = u32::try_from(longest + 1024).context("a prompt is shorter")?;
        let shape = SyntheticModel {
            n_layers: 8,
            n_heads: 8,
            n_kv_heads: 8,
            d_model: 64,
            d_head: 64,
            d_ff: 64,
            context_len,
            endless: true,
            ..SyntheticModel::small("llama", Format::F16, 5)
        };
        std::fs::write(&path, shape.to_gguf()?).context("write the model")?;
        let database = folder.path().join("cloud.db").display().to_string();
        publish(PLAIN, &database, "off")?;
        FORMS.iter().try_for_each(|form| publish(form, &database, form))?;
        let kv_tokens = (4 * context_len).to_string();
        let options = ["--kv-tokens", &kv_tokens].map(Into::into);
        let cloud = CloudProcess::start_on(&path, &database, &options).await?;
        let target: SocketAddr = cloud.address().parse().context("read the cloud's address")?;
        let model = Model::open(&path)?;
        // Nothing that was read may help the next run.
        let options = EngineOptions {
            threads: NonZeroUsize::new(1),
            kv_tokens: 2 * context_len as usize,
            prefix_cache_percent: 0,
            ..EngineOptions::default()
        };
        let local = LocalOptions {
            idle_sequences: 0,
            emulation: PassCost { base_ms: 0.0, prefill_ms_per_token: PREFILL_MS, decode_ms: DECODE_MS },
            ..LocalOptions::new(context_len as usize)
        };
        let worker = Arc::new(EngineWorker::start(Engine::new(Arc::clone(&model), options)?, local)?);
        Ok(World { worker, model, link: Link::open(target)?, _cloud: cloud, _folder: folder })
    }

    /// Sets the line's rate.
    pub(super) fn line(&self, megabits_per_s: u64) {
        self.link.set(DELAY, Some(megabits_per_s * 125_000));
    }

    /// Returns a client over the line.
    pub(super) fn client(&self) -> Result<CloudClient> {
        Ok(CloudClient::new(&format!("http://{}", self.link.address()), None)?)
    }

    /// Returns an agent that knows nothing of the line.
    pub(super) fn agent(&self) -> Result<Agent> {
        let device = DeviceModel::shared(Arc::clone(&self.worker), Arc::clone(&self.model));
        let tokenizer = Arc::clone(self.model.tokenizer());
        Ok(Agent::new(Some(device), tokenizer, Some(self.client()?), "laptop"))
    }

    /// Fetches a scene.
    pub(super) async fn scene(&self, name: &str) -> Result<SceneInfo> {
        let name = PublicName::new("scene", name)?;
        match self.client()?.scene(&name, None).await? {
            SceneReply::Scene { scene, .. } => Ok(*scene),
            SceneReply::NotModified => bail!("the cloud says that an unknown scene is unchanged"),
        }
    }
}

/// Publishes a scene that offers keys and values in this form.
fn publish(name: &str, database: &str, form: &str) -> Result<()> {
    let length = ASSIST_TOKENS.to_string();
    let set = cpu_program("baton-cloud")?
        .args(["scenes", "set", name, "--database", database, "--kv", form, "--ratio", RATIO])
        .args(["--assist-tokens", &length, "--assist-floor", &length])
        .output()
        .context("start baton-cloud")?;
    if !set.status.success() {
        bail!("baton-cloud scenes set failed: {}", String::from_utf8_lossy(&set.stderr).trim());
    }
    Ok(())
}

/// Returns the prompt about a document of so many bytes, which are about as many tokens.
pub(super) fn prompt(bytes: usize) -> Vec<Segment> {
    let (mut random, mut text) = (SplitMix64::new(bytes as u64), String::new());
    while text.len() < bytes {
        for _ in 0..7 {
            for _ in 0..3 + random.below(6) {
                text.push(char::from(b'a' + random.below(26) as u8));
            }
            text.push(' ');
        }
        text.pop();
        text.push_str(". ");
    }
    text.truncate(bytes);
    vec![
        Segment::fixed(Role::System, "you answer."),
        Segment::refinable(Role::User, text),
        Segment::fixed(Role::User, "\n\nquestion: which one?"),
    ]
}

/// Returns the question of a prompt in a scene; `ratio` replaces the scene's.
pub(super) fn question(scene: SceneInfo, segments: Vec<Segment>, ratio: Option<f32>) -> Question {
    Question {
        segments,
        scene,
        mode: RelayMode::Relay,
        pace: PaceMode::Instant,
        sampling: Sampling::default(),
        tokens_max: ANSWER_TOKENS,
        refine: RefineOptions { ratio, mode: None },
        assist_tokens: None,
        shorten: false,
        corrector: None,
        tools: None,
        format: AnswerFormat::Text,
        own: None,
        cites: false,
    }
}
