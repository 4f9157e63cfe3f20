//! The service without HTTP: requests in, event streams out.
//!
//! [`CloudService`] checks and prepares requests on the caller's thread. The [`Host`] of each model owns
//! that model's engine. A server runs each host on its own thread; a test may drive it step by step, in
//! virtual time. Never: logs or keeps a prompt. Always: a request is refused before its first event, or ends
//! with exactly one terminal event.

mod assist;
mod error;
mod figures;
mod handoff;
mod models;
mod options;
mod places;
mod prefixes;
mod reader;
mod recorder;
mod refining;
mod requests;
mod residency;
mod served;
mod submit;
mod trial;
mod verify;

pub mod citations;
pub mod completion;
pub mod experiments;
pub mod logprobs;
pub mod stream;
pub mod upstream;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_engine::{Engine, EngineError, EngineOptions, Model, Sequences};
use baton_generate::clock::Clock;
use baton_generate::host::{Host, Turns};
use baton_generate::scheduler::Share;
use baton_openai::Penalties;
use baton_protocol::{ArmEvent, AssistRequest};

use crate::fleet::Fleet;
use crate::gate::Payer;
use crate::learn::traffic::{RequestFigures, TrafficKey};
use crate::observe::metrics::Metrics;
use crate::observe::requests::RequestBook;
use crate::observe::trace::TraceParent;
use crate::scene::book::SceneBook;
use crate::scene::{Scene, SceneSettings};
use crate::service::assist::Asked;
use crate::service::completion::CompletionRequest;
use crate::service::experiments::ExperimentBook;
use crate::service::recorder::Recorder;
use crate::service::stream::AssistStream;
use crate::service::verify::{OpenAnswer, OpenAnswers, OpenParts};
use crate::store::now_ms;

pub use self::error::ServiceError;
pub use self::handoff::{Handoff, Unfinished};
pub use self::options::ServiceOptions;
pub use self::places::{ModelFacts, ModelView};
pub use self::residency::start;
pub use self::residency::{Lease, LoadError, ModelLoader, ModelResidency, ModelState};
pub use self::served::{ModelSetup, SetupError};
pub use self::trial::CONSOLE;
pub use self::verify::DraftCheck;

pub(crate) use self::served::Served;

use self::handoff::Handoffs;
use self::places::Place;
use self::residency::Residency;

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
    models: Arc<[Place]>,
    /// Loads and unloads the models; without it, all stay in memory.
    residency: Option<Arc<Residency>>,
    scenes: SceneBook,
    fleet: Fleet,
    experiments: ExperimentBook,
    metrics: Arc<Metrics>,
    /// What runs, and what ended last.
    requests: Arc<RequestBook>,
    /// Keys and values on their way to devices.
    handoffs: Handoffs,
    clock: Clock,
    /// Answers that devices go on with.
    open: OpenAnswers,
    is_stopping: AtomicBool,
    /// Whether there are several tenants, whose prompts must be kept apart in engines elsewhere, too.
    has_tenants: AtomicBool,
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
    /// Digest of the credentials that asked. Keys and values are offered only to a caller that has one.
    pub asker: Option<[u8; 32]>,
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
        // A single model needs no turns.
        let turns = (setups.len() > 1).then(Arc::<Turns>::default);
        let (mut places, mut hosts) = (Vec::<Place>::new(), Vec::new());
        for setup in setups {
            if places.iter().any(|place| place.facts.name == setup.name) {
                return Err(SetupError::DuplicateModel(setup.name));
            }
            let place = Place::new(ModelFacts::of(&setup, &options, 0), &options);
            let figures = place.figures.clone();
            let (served, host) = Served::open(setup, &options, turns.clone(), figures, &mut engine)?;
            place.put(served);
            places.push(place);
            hosts.push(host);
        }
        if places.is_empty() {
            return Err(SetupError::NoModel);
        }
        Ok((CloudService::of(places.into(), None, scenes, &options), hosts))
    }

    /// Makes a service of models that `loader` opens when they are needed. They need no more memory together
    /// than `budget` bytes, if there is one. None is in memory yet. The service runs their hosts itself.
    ///
    /// # Errors
    /// [`SetupError`] if there is no model, or one is larger than the budget.
    pub fn managed(
        facts: Vec<ModelFacts>,
        scenes: SceneBook,
        options: ServiceOptions,
        budget: Option<u64>,
        loader: Box<dyn ModelLoader>,
    ) -> Result<CloudService, SetupError> {
        if facts.is_empty() {
            return Err(SetupError::NoModel);
        }
        for facts in &facts {
            let bytes = facts.memory_bytes();
            if let Some(budget) = budget.filter(|budget| bytes > *budget) {
                return Err(SetupError::OverBudget { model: facts.name.clone(), bytes, budget });
            }
        }
        let places: Arc<[Place]> = facts.into_iter().map(|facts| Place::new(facts, &options)).collect();
        let residency = Residency::new(places.clone(), options.clone(), budget, loader);
        Ok(CloudService::of(places, Some(residency), scenes, &options))
    }

    fn of(
        models: Arc<[Place]>,
        residency: Option<Arc<Residency>>,
        scenes: SceneBook,
        options: &ServiceOptions,
    ) -> CloudService {
        let (metrics, clock) = (options.metrics.clone(), options.clock.clone());
        let (is_stopping, deadline) = (AtomicBool::new(false), Mutex::new(options.deadline));
        let (fleet, experiments) = (options.fleet.clone(), ExperimentBook::default());
        let inner = Inner {
            models,
            residency,
            scenes,
            fleet,
            experiments,
            metrics,
            requests: Arc::default(),
            handoffs: Handoffs::default(),
            clock,
            open: OpenAnswers::default(),
            is_stopping,
            has_tenants: AtomicBool::new(false),
            deadline,
        };
        CloudService { inner: Arc::new(inner) }
    }

    /// Returns the error that a request for this scene would get on this replica, or `None` if it would be
    /// served.
    pub fn unserved(&self, id: &str, settings: &SceneSettings) -> Option<ServiceError> {
        let scene = Scene { id: id.to_owned(), version: 0, settings: settings.clone() };
        self.place_of_scene(&scene, DEFAULT_MODEL).err()
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
        if let Some(device) = &request.device
            && let Some(pair) = &device.pair
        {
            let now_s = u64::try_from(now_ms() / 1000).unwrap_or(0);
            let checked = self.inner.fleet.targets.check(&request.scene, &device.class, pair, now_s);
            checked.inspect_err(|_| self.inner.metrics.pair_refused())?;
        }
        let (scene, part) = self.take_part(request, scene, &terms);
        let (participant, arm) = part.unzip();
        let owner = terms.owner;
        let accepted = self.assist_in(&scene, arm, request, terms, payer);
        if let (Err(err), Some(participant)) = (&accepted, &participant)
            && err.is_of_service()
        {
            let failed = RequestFigures { failed: true, ..RequestFigures::default() };
            participant.record(&failed, &self.inner.metrics);
        }
        let mut stream = accepted?;
        if let Some(device) = &request.device {
            // A device's report about itself is valid for every model.
            self.inner.models.iter().for_each(|place| place.figures.hear(owner, device));
        }
        let recorder = self.recorder(recorder::key(request), stream.prompt_tokens());
        let part = participant.map(|participant| (participant, self.inner.metrics.clone()));
        stream.watch(recorder.in_experiment(part));
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
        let served = &served;
        let offers = terms.asker.map(|asker| (self.inner.handoffs.clone(), asker));
        let asked = Asked { request, scene, adapter, arm, trace: terms.trace, owner: terms.owner, offers };
        let (mut prepared, stream) = assist::prepare(served, &asked)?;
        if let Some(max_tokens) = terms.max_tokens {
            prepared.limit(max_tokens);
        }
        if let Some(payer) = payer {
            prepared.reserve(payer, Some(assist::name(request)))?;
        }
        prepared.reader.observer.key = terms.asker.map(|asker| (asker, request.request_id));
        let id = (terms.owner, request.request_id);
        if verify::is_verified(served, scene, request) {
            let parts = OpenParts {
                served,
                tenant: terms.tenant.clone(),
                prompt: prepared.answer.prompt().to_vec(),
                prefixes: prepared.prefixes,
                adapter,
                sampling: assist::sampling_params(&request.sampling, Penalties::default()),
            };
            let open = Arc::new(OpenAnswer::new(parts));
            if self.inner.open.keep(id, open.clone()) {
                prepared.reader.opens(open, verify::offer(served));
            }
        }
        self.submit(served, prepared, terms).inspect_err(|_| self.inner.open.forget(id))?;
        self.inner.open.make_room(id);
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
        let (served, terms) = (self.named(&request.model)?.served()?, Terms::default());
        let (mut prepared, stream) = completion::prepare(&served, request, &terms)?;
        prepared.upstream = None;
        self.submit(&served, prepared, terms)?;
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
        let served = &self.named(&request.model)?.served()?;
        let (mut prepared, mut stream) = completion::prepare(served, request, &terms)?;
        if let Some(payer) = payer {
            prepared.reserve(payer, None)?;
        }
        self.submit(served, prepared, terms)?;
        stream.watch(self.recorder(TrafficKey::default(), stream.prompt_tokens()));
        Ok(stream)
    }

    /// Returns the keys and values that were offered for a request of the same credentials, if they are still
    /// there.
    pub fn handoff(&self, asker: [u8; 32], request: uuid::Uuid) -> Option<Arc<Handoff>> {
        self.inner.handoffs.find(&(asker, request))
    }

    /// Forgets keys and values that were read.
    pub fn handoff_read(&self, asker: [u8; 32], request: uuid::Uuid) {
        self.inner.metrics.kv_handoff("read");
        self.inner.handoffs.forget(&(asker, request));
    }

    /// Returns what is known of devices' models.
    pub fn fleet(&self) -> &Fleet {
        &self.inner.fleet
    }

    fn recorder(&self, key: TrafficKey, prompt_tokens: u64) -> Recorder {
        Recorder::new(self.first().figures.clone(), self.inner.clock.clone(), key, prompt_tokens)
    }
}
