//! The service without HTTP: requests in, event streams out.
//!
//! [`CloudService`] checks and prepares requests on the caller's thread. The [`Host`] of each model owns
//! that model's engine. A server runs each host on its own thread; a test may drive it step by step, in
//! virtual time. Never: logs or keeps a prompt. Always: a request is refused before its first event, or ends
//! with exactly one terminal event.

mod assist;
mod error;
mod figures;
mod options;
mod prefixes;
mod reader;
mod recorder;
mod refining;
mod served;
mod submit;

pub mod completion;
pub mod experiments;
pub mod logprobs;
pub mod stream;
pub mod upstream;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_engine::{AdapterId, Engine, EngineError, EngineOptions, Model, Sequences};
use baton_generate::clock::Clock;
use baton_generate::host::{Host, KvFigures, Stage, Turns};
use baton_generate::scheduler::{BacklogBound, SchedulerStats, Share};
use baton_protocol::{ArmEvent, AssistRequest, SceneInfo};

use crate::access::DeviceClass;
use crate::gate::Payer;
use crate::learn::coefficients::Coefficients;
use crate::learn::cost::Measured;
use crate::learn::traffic::{RequestFigures, TrafficKey, TrafficRow};
use crate::observe::metrics::{Metrics, ModelUsage, Usage};
use crate::observe::trace::TraceParent;
use crate::scene::book::SceneBook;
use crate::scene::{Scene, SceneSettings};
use crate::service::assist::Asked;
use crate::service::completion::CompletionRequest;
use crate::service::experiments::ExperimentBook;
use crate::service::recorder::Recorder;
use crate::service::stream::AssistStream;
use crate::service::upstream::{EngineView, Upstream};
use crate::store::now_ms;

pub use self::error::ServiceError;
pub use self::options::ServiceOptions;
pub use self::served::{ModelSetup, ModelView, SetupError};

pub(crate) use self::served::Served;

/// The name by which requests may refer to the first model.
pub const DEFAULT_MODEL: &str = "default";

/// The largest default KV cache in tokens, unless one context needs more.
pub const KV_TOKENS_DEFAULT_MAX: usize = 65_536;

/// Accepts requests for one model or several.
#[derive(Debug, Clone)]
pub struct CloudService {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The first one is the default.
    models: Vec<Arc<Served>>,
    scenes: SceneBook,
    experiments: ExperimentBook,
    metrics: Arc<Metrics>,
    deadline: Mutex<Option<Duration>>,
}

/// What a caller says besides the request itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// The request's id, the same at the edge, in the log and in traces; empty if it has none.
    pub request: String,
    /// The request's tenant, for the log; empty if it has none.
    pub tenant: String,
    /// Deadline of the first token, from now on; `None` for the service's default.
    pub deadline: Option<Duration>,
    /// The caller's span.
    pub trace: Option<TraceParent>,
    /// How the request shares slots with those of other tenants.
    pub share: Share,
    /// The owner. Only requests of the same owner find the cached prefix of this prompt.
    pub owner: u128,
    /// The device's name for itself, which is the same in each of its requests; `None` if it says none. It
    /// decides the arm of an experiment.
    pub device: Option<String>,
    /// The most tokens of an assist request's answer that the caller accepts. It lowers L, never raises it;
    /// `None` for L alone.
    pub max_tokens: Option<usize>,
}

impl CloudService {
    /// Makes a service of one model, and the host that must run to write its answers.
    ///
    /// # Errors
    /// [`SetupError`] if the engine cannot be set up.
    pub fn new(
        setup: ModelSetup,
        scenes: SceneBook,
        options: ServiceOptions,
    ) -> Result<(CloudService, Host<Engine>), SetupError> {
        let (service, mut hosts) = CloudService::with_models(vec![setup], scenes, options)?;
        Ok((service, hosts.remove(0)))
    }

    /// Makes a service of several models, the first of which is the default, and a host for each, in the same
    /// order. Each model has its own queue, slots and KV cache; their passes take turns on the machine.
    ///
    /// # Errors
    /// [`SetupError`] if there is no model, two have the same name, or an engine cannot be set up.
    pub fn with_models(
        setups: Vec<ModelSetup>,
        scenes: SceneBook,
        options: ServiceOptions,
    ) -> Result<(CloudService, Vec<Host<Engine>>), SetupError> {
        CloudService::over(setups, scenes, options, Engine::new)
    }

    /// As [`Self::with_models`], over engines that `engine` makes.
    ///
    /// # Errors
    /// As for [`Self::with_models`].
    pub fn over<S: Sequences>(
        setups: Vec<ModelSetup>,
        scenes: SceneBook,
        options: ServiceOptions,
        mut engine: impl FnMut(Arc<Model>, EngineOptions) -> Result<S, EngineError>,
    ) -> Result<(CloudService, Vec<Host<S>>), SetupError> {
        let (metrics, deadline) = (options.metrics.clone(), Mutex::new(options.deadline));
        // A single model needs no turns.
        let turns = (setups.len() > 1).then(Arc::<Turns>::default);
        let (mut models, mut hosts) = (Vec::new(), Vec::new());
        for setup in setups {
            if models.iter().any(|served: &Arc<Served>| served.name == setup.name) {
                return Err(SetupError::DuplicateModel(setup.name));
            }
            let (served, host) = Served::open(setup, &options, turns.clone(), &mut engine)?;
            models.push(Arc::new(served));
            hosts.push(host);
        }
        if models.is_empty() {
            return Err(SetupError::NoModel);
        }
        let inner = Inner { models, scenes, experiments: ExperimentBook::default(), metrics, deadline };
        Ok((CloudService { inner: Arc::new(inner) }, hosts))
    }

    /// Returns the model that answers requests that name none.
    fn first(&self) -> &Arc<Served> {
        &self.inner.models[0]
    }

    /// Returns the model of this name, or the first one for `default`.
    fn named(&self, asked: &str) -> Result<&Arc<Served>, ServiceError> {
        let models = &self.inner.models;
        // A model may have the name `default` itself.
        let found = models.iter().find(|served| served.name == asked);
        let found = found.or_else(|| models.first().filter(|_| asked == DEFAULT_MODEL));
        found.ok_or_else(|| ServiceError::UnknownModel {
            asked: asked.chars().take(128).collect(),
            served: self.model_names().join(", "),
        })
    }

    /// Returns the model and adapter that answer a scene's requests.
    fn of_scene(
        &self,
        scene: &Scene,
        asked: &str,
    ) -> Result<(&Arc<Served>, Option<AdapterId>), ServiceError> {
        let served = match &scene.settings.model {
            None => self.named(asked)?,
            Some(name) => {
                let served = self.named(name).map_err(|_| ServiceError::SceneModel {
                    scene: scene.id.clone(),
                    model: name.clone(),
                    served: self.model_names().join(", "),
                })?;
                if asked != DEFAULT_MODEL && asked != served.name {
                    let asked = asked.chars().take(128).collect();
                    let (scene, model) = (scene.id.clone(), served.name.clone());
                    return Err(ServiceError::OtherModel { scene, model, asked });
                }
                served
            }
        };
        let adapter = scene.settings.adapter.as_deref();
        let adapter = adapter.map(|name| {
            served.adapter(name).ok_or_else(|| ServiceError::SceneAdapter {
                scene: scene.id.clone(),
                adapter: name.to_owned(),
                model: served.name.clone(),
                served: served.adapters_text(),
            })
        });
        Ok((served, adapter.transpose()?))
    }

    /// Returns the error that a request for this scene would get on this replica, or `None` if it would be
    /// served.
    pub fn unserved(&self, id: &str, settings: &SceneSettings) -> Option<ServiceError> {
        let scene = Scene { id: id.to_owned(), version: 0, settings: settings.clone() };
        self.of_scene(&scene, DEFAULT_MODEL).err()
    }

    /// Accepts an assist request. Tokenizes on the caller's thread, which takes milliseconds for a long
    /// prompt.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn assist(&self, request: &AssistRequest) -> Result<AssistStream, ServiceError> {
        self.assist_on(request, Terms::default())
    }

    /// Accepts an assist request, on the caller's terms.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn assist_on(&self, request: &AssistRequest, terms: Terms) -> Result<AssistStream, ServiceError> {
        self.assist_for(request, terms, None)
    }

    /// Accepts an assist request on the caller's terms; a tenant's quota pays for it.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn assist_for(
        &self,
        request: &AssistRequest,
        terms: Terms,
        payer: Option<&Payer>,
    ) -> Result<AssistStream, ServiceError> {
        request.check()?;
        let scene = self.inner.scenes.get(&request.scene, request.scene_version)?;
        let (scene, part) = self.take_part(request, scene, &terms);
        let (participant, arm) = part.unzip();
        let accepted = self.assist_in(&scene, arm, request, terms, payer);
        if let (Err(err), Some(participant)) = (&accepted, &participant)
            && err.is_of_service()
        {
            let failed = RequestFigures { failed: true, ..RequestFigures::default() };
            participant.record(&failed, &self.inner.metrics);
        }
        let mut stream = accepted?;
        let recorder = Recorder::new(self.first(), recorder::key(request), stream.prompt_tokens());
        stream.watch(recorder.in_experiment(participant));
        Ok(stream)
    }

    /// Accepts an assist request with these settings.
    fn assist_in(
        &self,
        scene: &Scene,
        arm: Option<ArmEvent>,
        request: &AssistRequest,
        terms: Terms,
        payer: Option<&Payer>,
    ) -> Result<AssistStream, ServiceError> {
        let (served, adapter) = self.of_scene(scene, &request.model)?;
        let asked = Asked { request, scene, adapter, arm, trace: terms.trace, owner: terms.owner };
        let (mut prepared, stream) = assist::prepare(served, &asked)?;
        if let Some(max_tokens) = terms.max_tokens {
            prepared.limit(max_tokens);
        }
        let owner = terms.owner;
        if let Some(payer) = payer {
            prepared.reserve(payer, Some(assist::name(request)))?;
        }
        self.submit(served, prepared, terms)?;
        if let Some(device) = &request.device {
            // A device's report about itself is valid for every model.
            self.inner.models.iter().for_each(|served| served.figures.hear(owner, device));
        }
        Ok(stream)
    }

    /// Accepts a chat completion: the cloud writes the whole answer.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn complete(&self, request: &CompletionRequest) -> Result<AssistStream, ServiceError> {
        self.complete_on(request, Terms::default())
    }

    /// Accepts a chat completion that this program's own engine writes, also if other engines write for the
    /// model. It warms up what makes masks.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn complete_here(&self, request: &CompletionRequest) -> Result<AssistStream, ServiceError> {
        let (served, terms) = (self.named(&request.model)?, Terms::default());
        let (mut prepared, stream) = completion::prepare(served, request, &terms)?;
        prepared.upstream = None;
        self.submit(served, prepared, terms)?;
        Ok(stream)
    }

    /// Accepts a chat completion, on the caller's terms.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn complete_on(
        &self,
        request: &CompletionRequest,
        terms: Terms,
    ) -> Result<AssistStream, ServiceError> {
        self.complete_for(request, terms, None)
    }

    /// Accepts a chat completion on the caller's terms; a tenant's quota pays for it.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn complete_for(
        &self,
        request: &CompletionRequest,
        terms: Terms,
        payer: Option<&Payer>,
    ) -> Result<AssistStream, ServiceError> {
        let served = self.named(&request.model)?;
        let (mut prepared, mut stream) = completion::prepare(served, request, &terms)?;
        if let Some(payer) = payer {
            prepared.reserve(payer, None)?;
        }
        self.submit(served, prepared, terms)?;
        stream.watch(Recorder::new(self.first(), TrafficKey::default(), stream.prompt_tokens()));
        Ok(stream)
    }

    /// Returns the most bytes of text that a prompt of any model here can have.
    pub fn prompt_bytes_max(&self) -> usize {
        self.inner.models.iter().map(|served| served.text_bytes_max).max().unwrap_or(0)
    }

    /// Changes the limits of the queue and the default deadline. Requests that wait already stay.
    pub fn set_backlog(&self, queue: usize, backlog: BacklogBound, deadline: Option<Duration>) {
        self.inner.models.iter().for_each(|served| served.handle.set_backlog(queue, backlog));
        *self.inner.deadline.lock().expect("no holder of this lock panics") = deadline;
    }

    /// Returns the current version of every scene.
    pub fn scenes(&self) -> Vec<SceneInfo> {
        self.inner.scenes.current().iter().map(|scene| self.info(scene)).collect()
    }

    /// Returns the current version of one scene.
    ///
    /// # Errors
    /// [`ServiceError::Scene`] if there is no such scene.
    pub fn scene(&self, id: &str) -> Result<SceneInfo, ServiceError> {
        let scene = self.inner.scenes.get(id, None)?;
        Ok(self.info(&scene))
    }

    /// Returns the current scenes, which are replaced if the database has newer ones.
    pub fn scene_book(&self) -> &SceneBook {
        &self.inner.scenes
    }

    /// Returns the name of the default model in the API.
    pub fn model_name(&self) -> &str {
        &self.first().name
    }

    /// Returns the names of the models, the default first.
    pub fn model_names(&self) -> Vec<&str> {
        self.inner.models.iter().map(|served| served.name.as_str()).collect()
    }

    /// Returns every model with the names of its adapters, the default first.
    pub fn models(&self) -> impl Iterator<Item = ModelView<'_>> {
        self.inner.models.iter().map(|served| served.view())
    }

    /// Returns the model of this name, or the first one for `default`.
    ///
    /// # Errors
    /// [`ServiceError::UnknownModel`].
    pub fn model_named(&self, name: &str) -> Result<ModelView<'_>, ServiceError> {
        Ok(self.named(name)?.view())
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Returns all current metrics in Prometheus' text format.
    pub fn render_metrics(&self) -> String {
        let scenes = self.inner.scenes.current();
        self.inner.metrics.render(&Usage {
            engines: self.upstreams().flat_map(|upstream| upstream.in_use()).collect(),
            models: self.models_in_use(),
            scenes: scenes.iter().map(|scene| (scene.id.clone(), scene.version)).collect(),
        })
    }

    /// Returns the current use of every model, the default first.
    pub fn models_in_use(&self) -> Vec<ModelUsage> {
        let used = |served: &Arc<Served>| {
            let (stats, kv) = (served.handle.stats(), served.handle.kv());
            let held = stats.kv_tokens.saturating_sub(kv.free_tokens);
            let running = served.upstream.as_ref().map_or(stats.running, |upstream| upstream.in_flight());
            ModelUsage {
                model: served.name.clone(),
                running,
                waiting: stats.waiting,
                backlog_tokens: stats.backlog_tokens,
                backlog_seconds: stats.backlog_ms / 1e3,
                kv_usage: held as f64 / stats.kv_tokens.max(1) as f64,
                prefix_queries: kv.prefix.query_tokens,
                prefix_hits: kv.prefix.hit_tokens,
                proposed: stats.proposed_total,
                accepted: stats.accepted_total,
            }
        };
        self.inner.models.iter().map(used).collect()
    }

    fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.inner.models.iter().filter_map(|served| served.upstream.as_ref())
    }

    /// Returns what is known of every engine that writes answers, in the order of the models.
    pub fn engines(&self) -> Vec<EngineView> {
        self.upstreams().flat_map(|upstream| upstream.views()).collect()
    }

    /// Asks all engines how they are, now and from then on until the service stops.
    pub async fn watch_engines(&self) {
        for upstream in self.upstreams() {
            upstream.clone().watch().await;
        }
    }

    /// Prepares constrained answers, so that the first one need not wait.
    pub fn prepare_constraints(&self) {
        for served in &self.inner.models {
            if let Err(err) = served.grammars() {
                let err = &err as &dyn std::error::Error;
                tracing::warn!(err, model = served.name, "answers of this model cannot be constrained");
            }
        }
    }

    /// Returns the default model.
    pub fn model(&self) -> &Arc<Model> {
        &self.first().model
    }

    /// Returns the scheduler's statistics, all models together.
    pub fn stats(&self) -> SchedulerStats {
        let all = self.inner.models.iter().map(|served| served.handle.stats());
        all.reduce(SchedulerStats::beside).unwrap_or_default()
    }

    /// Returns the content of the KV caches after the last passes, all models together.
    pub fn kv(&self) -> KvFigures {
        let all = self.inner.models.iter().map(|served| served.handle.kv());
        all.reduce(KvFigures::beside).unwrap_or_default()
    }

    /// Returns the current cost of this cloud, with its default model.
    pub fn measured(&self) -> Measured {
        self.first().figures.measured()
    }

    /// Returns the costs of this cloud (with its default model), of device classes and of network classes, as
    /// refitted from telemetry.
    pub fn coefficients(&self) -> Coefficients {
        self.first().figures.coefficients()
    }

    /// Returns the service's clock.
    pub fn clock(&self) -> Clock {
        self.first().clock.clone()
    }

    /// Sets the costs of these device classes, which replace what the devices report.
    pub fn set_classes(&self, classes: &[DeviceClass]) {
        self.inner.models.iter().for_each(|served| served.figures.set_classes(classes));
    }

    /// Returns sums of requests that the database does not have yet.
    pub fn unwritten_traffic(&self) -> Vec<TrafficRow> {
        self.first().figures.traffic(|traffic| traffic.unwritten())
    }

    /// Notes that the database has these sums.
    pub fn traffic_written(&self, rows: &[TrafficRow]) {
        self.first().figures.traffic(|traffic| traffic.written(rows, now_ms()));
    }

    /// Returns whether requests are accepted.
    pub fn is_open(&self) -> bool {
        self.inner.models.iter().all(|served| served.handle.stage() == Stage::Open)
    }

    /// Returns why the program must be restarted, if it must: an engine's thread has panicked, or a model's
    /// file was damaged.
    pub fn failure(&self) -> Option<String> {
        self.inner.models.iter().find_map(|served| match served.model.intact() {
            Err(err) => Some(err.to_string()),
            Ok(()) if served.handle.stage() == Stage::Failed => Some("the engine has failed".to_owned()),
            Ok(()) => None,
        })
    }

    /// Stops accepting requests. Running answers end by themselves, then the threads of the hosts end.
    pub fn drain(&self) {
        self.inner.models.iter().for_each(|served| served.handle.drain());
    }

    /// Cancels every answer. The threads of the hosts end after the current pass.
    pub fn stop(&self) {
        self.upstreams().for_each(|upstream| upstream.stop());
        self.inner.models.iter().for_each(|served| served.handle.stop());
    }

    fn info(&self, scene: &Scene) -> SceneInfo {
        let name = scene.settings.model.as_deref().unwrap_or(DEFAULT_MODEL);
        match self.named(name) {
            Ok(served) => SceneInfo {
                prompt_tokens_max: u32::try_from(assist::prompt_tokens_max(served)).ok(),
                call_markup: Some(served.call_markup()),
                ..scene.info(&served.name, Some(served.model.tokenizer().digest_hex()))
            },
            // Requests for it are refused, but its settings are shown anyway.
            Err(_) => scene.info(name, None),
        }
    }
}
