//! Loads the device's model: opens its files, and makes its engine or the ring's head.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use baton_engine::engine::KvFormat;
use baton_engine::pace_emulation::PassCost;
use baton_engine::{Adapter, AdapterId, EngineOptions, Model, Offload, Sequences};
use baton_generate::speculation::{ProposerWithLimits, Speculation};
use baton_gpu::OpenedGpu;
use baton_plan::Workload;
use baton_terminal::errln;

use super::prefix::PrefixArgs;
use super::ring::{Formed, HeadArgs, form};
use super::values::AdapterFile;
use super::{CommonArgs, gpu};
use crate::agent::DeviceModel;
use crate::api::RingView;
use crate::context::{self, Held};
use crate::local::{LocalOptions, largest_step};
use crate::machine::ThisMachine;
use crate::machine::profile::KeptProfiles;
use crate::machine::residency::{self, Layers, MemoryFor, Share};
use crate::prefix::Kept;
use crate::secrets::Keys;
use crate::settings::Settings;
use crate::worker::EngineWorker;

/// An adapter with its scene's name for it.
type Named = (String, Arc<Adapter>);

/// What the options say about the model and its engine.
pub(super) struct Loading {
    path: PathBuf,
    memory: MemoryFor,
    gpu: gpu::GpuArgs,
    offload: Option<Offload>,
    threads: Option<NonZeroUsize>,
    kv_tokens: Option<usize>,
    kv_format: KvFormat,
    repack_bytes: u64,
    speculation: Speculation,
    adapters: Vec<AdapterFile>,
    emulation: PassCost,
    answers: usize,
    ring: bool,
    head: HeadArgs,
    prefixes: PrefixArgs,
    config_dir: Option<PathBuf>,
    keys: Option<Keys>,
    settings: Settings,
}

impl Loading {
    /// Takes what the options say.
    ///
    /// # Errors
    /// Fails if they contradict each other.
    pub(super) fn new(
        common: &CommonArgs,
        (path, adapters): (PathBuf, Vec<AdapterFile>),
        answers: usize,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let offload = common.offload.offload();
        if common.ring && offload.is_some() {
            bail!(
                "--gpu-offload is for one device; with --ring the plan decides which layers a GPU computes"
            );
        }
        Ok(Self {
            path,
            memory: common.memory,
            gpu: common.gpu,
            offload,
            threads: common.threads,
            kv_tokens: common.kv_tokens,
            kv_format: common.kv,
            repack_bytes: u64::from(common.repack_mib) << 20,
            speculation: common.speculate.clone(),
            adapters,
            emulation: super::open::emulation(common)?,
            answers,
            ring: common.ring,
            head: common.head.clone(),
            prefixes: common.prefixes.clone(),
            config_dir: common.config_dir.clone(),
            keys: common.secrets.keys(settings),
            settings: settings.clone(),
        })
    }

    /// Loads the model. Blocks until that is done.
    ///
    /// # Errors
    /// Fails if a file cannot be opened, or no engine can be made.
    pub(super) fn load(self) -> anyhow::Result<(DeviceModel, Option<RingView>)> {
        let kv_tokens = match self.ring {
            // The plan decides how much room the other devices have.
            true => self.kv_tokens.unwrap_or(context::TOKENS_MIN),
            // A file that is not a model is refused below, with a better message.
            false => Held::of(&self.path, self.memory, self.kv_format, self.kv_tokens)
                .map_or(context::TOKENS_MIN, |held| held.tokens),
        };
        let profiles = KeptProfiles::of(&self.path, &self.settings);
        let share = Share {
            kv_tokens,
            kv_format: self.kv_format,
            layers: if self.ring { Layers::Planned } else { Layers::All },
            reads_ahead: !self.head.ring_no_read_ahead,
            read_bytes: profiles.read_bytes(),
        };
        let model = residency::open(&self.path, self.memory, self.repack_bytes, &share)
            .with_context(|| format!("open model `{}`", self.path.display()))?;
        note_if_untaught(&model);
        let gpu = gpu::told(&profiles, self.gpu.open_for(self.offload.clone())?, &model);
        let options = EngineOptions {
            threads: self.threads,
            kv_tokens,
            kv_format: self.kv_format,
            largest_step: largest_step(model.config().vocab_len, self.answers),
            ..EngineOptions::default()
        };
        let adapters = open_adapters(&model, &self.adapters)?;
        match self.ring {
            true => self.ring(model, options, gpu, &adapters),
            false => Ok((self.alone(model, options, gpu, adapters)?, None)),
        }
    }

    fn local(
        &self,
        kv_tokens: usize,
        proposer: Option<ProposerWithLimits>,
        idle_sequences: usize,
    ) -> LocalOptions {
        let (answers, emulation) = (self.answers, self.emulation);
        LocalOptions { answers, idle_sequences, proposer, emulation, ..LocalOptions::new(kv_tokens) }
    }

    /// Makes the head of a ring.
    fn ring(
        self,
        model: Arc<Model>,
        options: EngineOptions,
        gpu: OpenedGpu,
        adapters: &[Named],
    ) -> anyhow::Result<(DeviceModel, Option<RingView>)> {
        let (proposer, kv_tokens) = (self.speculation.proposer(&model, options.clone())?, options.kv_tokens);
        let workload = Workload { context: kv_tokens.min(model.config().context_len), sequences: 1 };
        let mut said = |what: &str| errln!("ring: {what}");
        let machine = ThisMachine { memory: self.memory, gpu };
        let Formed { mut head, handle, current_plan } =
            form(&model, options, workload, &self.head, machine, &self.settings, &mut said)?;
        let adapters = add_adapters(&mut head, adapters)?;
        // A ring computes every live sequence again when it loses a device, so it keeps few.
        let worker = Arc::new(EngineWorker::start(head, self.local(kv_tokens, proposer, 1))?);
        let device = DeviceModel { adapters, ..DeviceModel::shared(worker, model) };
        Ok((device, Some(RingView { handle, current_plan })))
    }

    /// Makes the engine of this device, which can be made again.
    fn alone(
        self,
        model: Arc<Model>,
        options: EngineOptions,
        gpu: OpenedGpu,
        files: Vec<Named>,
    ) -> anyhow::Result<DeviceModel> {
        let of_engine = Arc::clone(&model);
        let kept = Arc::new(Kept::default());
        let told = Arc::clone(&kept);
        let make = move || -> anyhow::Result<_> {
            let proposer = self.speculation.proposer(&of_engine, options.clone())?;
            let engine = gpu::engine(&gpu, Arc::clone(&of_engine), options.clone());
            let engine = engine.context("start the engine")?;
            let mut engine =
                self.prefixes.engine(engine, self.keys.as_ref(), self.config_dir.as_deref(), &told)?;
            let adapters = add_adapters(&mut engine, &files)?;
            Ok((engine, self.local(options.kv_tokens, proposer, self.answers), adapters))
        };
        let (engine, local, adapters) = make()?;
        let again = move || make().map(|(engine, local, _)| (engine, local));
        let worker = Arc::new(EngineWorker::restartable((engine, local), again)?);
        Ok(DeviceModel { adapters, kept: Some(kept), ..DeviceModel::shared(worker, model) })
    }
}

fn open_adapters(model: &Arc<Model>, files: &[AdapterFile]) -> anyhow::Result<Vec<Named>> {
    let open = |AdapterFile { name, path }: &AdapterFile| {
        let opened = Adapter::open(path, model).with_context(|| format!("open adapter `{}`", path.display()));
        Ok((name.clone(), opened?))
    };
    files.iter().map(open).collect()
}

/// Gives the adapters to the engine. Returns their numbers by name; engines that get the same adapters give
/// them the same numbers.
fn add_adapters(
    engine: &mut dyn Sequences,
    adapters: &[Named],
) -> anyhow::Result<BTreeMap<String, AdapterId>> {
    let mut numbers = BTreeMap::new();
    for (name, adapter) in adapters {
        if numbers.insert(name.clone(), engine.add_adapter(Arc::clone(adapter))?).is_some() {
            bail!("two adapters are named `{name}`");
        }
    }
    Ok(numbers)
}

/// Says that a model only continues texts, if it has no chat template.
fn note_if_untaught(model: &Model) {
    if model.template_is_missing() {
        errln!(
            "note: model `{}` has no chat template, so it was trained to continue texts and not to answer: it is \
             given the text and `Answer:`, and stops at a blank line. For better answers take the file of its \
             instruction-tuned variant (-Instruct, -Chat, -it)",
            model.name()
        );
    }
}
