//! The service without HTTP: requests in, event streams out.
//!
//! [`CloudService`] checks and prepares requests on the caller's thread; the [`Worker`] that comes with it owns the
//! engine. A server runs the worker on a thread of its own; a test may drive it by hand, in virtual time.
//! Never: logs or keeps a prompt. Always: a request is refused before its first event, or ends with exactly one
//! terminal event.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use baton_engine::pace_emulation::PassCost;
use baton_engine::prompt::PromptError;
use baton_engine::sampling::SamplingError;
use baton_engine::stop::StopError;
use baton_engine::{BLOCK_TOKENS, Engine, EngineError, EngineOptions, Model};
use baton_protocol::{AssistRequest, ErrorBody, ErrorCode, RequestError, SceneInfo};
use baton_refine::{Calibration, RefineError};

use crate::assist;
use crate::book::{SceneBook, SceneLookupError};
use crate::coefficients::Coefficients;
use crate::completion::{self, CompletionRequest};
use crate::constrain::{ConstraintError, Grammars};
use crate::cost::{Costs, Measured};
use crate::desk::{Clock, Desk, KvFigures, NotTaken, Stage};
use crate::job::Job;
use crate::metrics::{Metrics, Usage};
use crate::planning::PlanError;
use crate::recorder::{self, Recorder};
use crate::scene::Scene;
use crate::scheduler::{
    BacklogBound, Limits, QueueLimit, Refusal, SchedulerCore, SchedulerStats, Share, StepBudget,
};
use crate::store::{DeviceClass, now_ms};
use crate::stream::AssistStream;
use crate::telemetry::Telemetry;
use crate::tools::ToolForm;
use crate::trace::{TraceParent, Traces};
use crate::traffic::{TrafficKey, TrafficRow};
use crate::worker::Worker;

/// The largest KV cache that is taken unasked, where one context does not need more.
pub const KV_TOKENS_DEFAULT_MAX: usize = 65_536;

/// How a service is set up.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// Name of the model in the API.
    pub model_name: String,
    /// Calibrated heads of the refiner.
    pub calibration: Option<Calibration>,
    /// Threads of the engine; none: one for each core.
    pub threads: Option<NonZeroUsize>,
    /// KV cache in tokens; none: four whole contexts, or one where four are over [`KV_TOKENS_DEFAULT_MAX`].
    pub kv_tokens: Option<NonZeroUsize>,
    /// Sequences that run at the same time.
    pub slots: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// What they may amount to.
    pub backlog: BacklogBound,
    /// Within which a first token must come where a request does not say; none: whenever.
    pub deadline: Option<Duration>,
    /// Prompt tokens in one pass.
    pub budget: StepBudget,
    /// Percent of the KV cache that may keep prefixes of no running sequence.
    pub prefix_cache_percent: u8,
    /// Emulated speed, if any.
    pub emulation: Option<PassCost>,
    /// What was known of devices and networks before.
    pub coefficients: Coefficients,
    /// The time.
    pub clock: Clock,
    /// What is told of requests.
    pub metrics: Arc<Metrics>,
    /// Where traces go, if they go anywhere.
    pub traces: Option<Traces>,
}

impl ServiceOptions {
    /// Small defaults for a model of this name.
    pub fn named(model_name: impl Into<String>) -> ServiceOptions {
        ServiceOptions {
            model_name: model_name.into(),
            calibration: None,
            threads: None,
            kv_tokens: None,
            slots: 8,
            queue: 256,
            backlog: BacklogBound::default(),
            deadline: None,
            budget: StepBudget::default(),
            prefix_cache_percent: 100,
            emulation: None,
            coefficients: Coefficients::default(),
            clock: Clock::monotonic(),
            metrics: Arc::default(),
            traces: None,
        }
    }
}

/// Takes requests for one model.
#[derive(Debug, Clone)]
pub struct CloudService {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) model: Arc<Model>,
    pub(crate) model_name: String,
    pub(crate) calibration: Option<Arc<Calibration>>,
    pub(crate) scenes: SceneBook,
    pub(crate) desk: Arc<Desk>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Option<Traces>,
    /// The vocabulary as constrained answers need it; made when the first one is asked for.
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
    deadline: Mutex<Option<Duration>>,
}

/// What a caller asks and says besides the request itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms {
    /// Within which the first token must come, from now on; none: as the service is set up.
    pub deadline: Option<Duration>,
    /// The caller's span.
    pub trace: Option<TraceParent>,
    /// How the request shares slots with those of other tenants.
    pub share: Share,
}

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A field is missing or out of its range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A field asks for something that this service does not do.
    #[error("field `{field}`: {message}")]
    Unsupported {
        /// Its path.
        field: &'static str,
        /// What is not done.
        message: String,
    },
    /// What the answer must be cannot be followed.
    #[error("field `{field}`: {err}")]
    Constraint {
        /// Path of the field that says so.
        field: String,
        /// Why not.
        #[source]
        err: ConstraintError,
    },
    /// There is no such scene or version.
    #[error(transparent)]
    Scene(#[from] SceneLookupError),
    /// There is no such model.
    #[error("model `{asked}` is not served here, `{served}` is")]
    UnknownModel {
        /// The name asked for.
        asked: String,
        /// The name of the model.
        served: String,
    },
    /// A segment that shall be refined says nothing.
    #[error("field `segments[{0}].text` has no content to refine")]
    EmptyContent(usize),
    /// r or the device's figures cannot be followed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The prompt does not fit.
    #[error("the prompt has {tokens} tokens, the limit is {limit}")]
    PromptTooLong {
        /// Its tokens.
        tokens: usize,
        /// The most that leave room for an answer.
        limit: usize,
    },
    /// Prompt and answer do not fit into the KV budget.
    #[error("prompt and answer need {need} tokens of KV cache, the limit is {limit}")]
    KvTooSmall {
        /// What they need.
        need: usize,
        /// The whole budget.
        limit: usize,
    },
    /// The model's template does not take these messages.
    #[error("the messages do not fit the model's chat template")]
    Prompt(#[from] PromptError),
    /// The sampling parameters are out of their ranges.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The stop strings are too many or too long.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The refiner cannot make a mask.
    #[error("refine the prompt")]
    Refine(#[from] RefineError),
    /// The queue is full.
    #[error("{waiting} requests wait, with {:.1} s of prompts; the limit is {limit}", backlog.as_secs_f64())]
    Overloaded {
        /// Requests that wait.
        waiting: usize,
        /// How long their prompts take.
        backlog: Duration,
        /// The bound that is reached.
        limit: QueueLimit,
        /// When a place is likely to be free.
        retry_after_ms: u64,
    },
    /// The deadline cannot be met.
    #[error("the first token would take {first_ms} ms, the deadline leaves {left_ms} ms")]
    Late {
        /// How long the first token would take at least.
        first_ms: u64,
        /// What the deadline leaves.
        left_ms: u64,
        /// When the queue is likely to be short enough.
        retry_after_ms: u64,
    },
    /// The service is going down.
    #[error("the service is stopping")]
    Stopping,
}

impl ServiceError {
    /// The body that tells a client.
    pub fn to_body(&self) -> ErrorBody {
        let (code, param) = match self {
            ServiceError::Request(err) => return err.to_body(),
            ServiceError::Unsupported { field, .. } => (ErrorCode::InvalidRequest, Some((*field).to_owned())),
            ServiceError::Constraint { field, .. } => (ErrorCode::InvalidRequest, Some(field.clone())),
            ServiceError::Scene(SceneLookupError::UnknownScene(_)) => {
                (ErrorCode::UnknownScene, Some("scene".into()))
            }
            ServiceError::Scene(SceneLookupError::UnknownVersion { .. }) => {
                (ErrorCode::SceneChanged, Some("scene_version".into()))
            }
            ServiceError::UnknownModel { .. } => (ErrorCode::UnknownModel, Some("model".into())),
            ServiceError::EmptyContent(at) => {
                (ErrorCode::InvalidRequest, Some(format!("segments[{at}].text")))
            }
            ServiceError::Plan(PlanError::RatioBelowScene { .. }) => {
                (ErrorCode::InvalidRequest, Some("refine.ratio".into()))
            }
            ServiceError::Plan(PlanError::Input(_)) => (ErrorCode::InvalidRequest, Some("device".into())),
            ServiceError::PromptTooLong { .. } | ServiceError::KvTooSmall { .. } => {
                (ErrorCode::PromptTooLong, None)
            }
            ServiceError::Prompt(_) | ServiceError::Sampling(_) | ServiceError::Stop(_) => {
                (ErrorCode::InvalidRequest, None)
            }
            ServiceError::Refine(_) => (ErrorCode::InvalidRequest, Some("refine".into())),
            ServiceError::Overloaded { .. } | ServiceError::Late { .. } => (ErrorCode::Overloaded, None),
            ServiceError::Stopping => (ErrorCode::Unavailable, None),
        };
        let mut body = ErrorBody::new(code, self.to_string());
        body.error.param = param;
        if let ServiceError::Overloaded { retry_after_ms, .. } | ServiceError::Late { retry_after_ms, .. } =
            self
        {
            body.error.retry_after_ms = Some(*retry_after_ms);
        }
        body
    }
}

impl CloudService {
    /// A service over `model`, and the worker that must run for its answers to be written.
    ///
    /// # Errors
    /// [`EngineError`] where the engine cannot be set up.
    pub fn new(
        model: Arc<Model>,
        scenes: SceneBook,
        options: ServiceOptions,
    ) -> Result<(CloudService, Worker), EngineError> {
        let context = model.config().context_len;
        let default = context.saturating_mul(4).min(context.max(KV_TOKENS_DEFAULT_MAX));
        let kv_tokens = options.kv_tokens.map_or(default, NonZeroUsize::get).next_multiple_of(BLOCK_TOKENS);
        let engine_options = EngineOptions {
            threads: options.threads,
            kv_tokens,
            prefix_cache_percent: options.prefix_cache_percent,
            ..EngineOptions::default()
        };
        let engine = Engine::new(model.clone(), engine_options)?;
        let core = SchedulerCore::new(Limits {
            slots: options.slots,
            queue: options.queue,
            backlog: options.backlog,
            kv_tokens,
            kv_block: BLOCK_TOKENS,
            budget: options.budget,
        });
        let telemetry = Telemetry::new(options.coefficients);
        let desk = Arc::new(Desk::new(core, Costs::new(options.emulation), telemetry, options.clock));
        let inner = Inner {
            model,
            model_name: options.model_name,
            calibration: options.calibration.map(Arc::new),
            scenes,
            desk: desk.clone(),
            deadline: Mutex::new(options.deadline),
            metrics: options.metrics,
            traces: options.traces,
            grammars: OnceLock::new(),
        };
        Ok((CloudService { inner: Arc::new(inner) }, Worker::new(engine, desk, options.emulation)))
    }

    /// Accepts an assist request. Tokenizes on the caller's thread: milliseconds for a long prompt.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn assist(&self, request: &AssistRequest) -> Result<AssistStream, ServiceError> {
        self.assist_on(request, Terms::default())
    }

    /// The same, on the caller's terms.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn assist_on(&self, request: &AssistRequest, terms: Terms) -> Result<AssistStream, ServiceError> {
        let (job, mut stream) = assist::prepare(&self.inner, request, terms.trace)?;
        self.inner.submit(job, terms)?;
        if let Some(device) = &request.device {
            self.inner.desk.hear(device);
        }
        stream.watch(Recorder::new(&self.inner.desk, recorder::key(request), stream.prompt_tokens()));
        Ok(stream)
    }

    /// Accepts a chat completion: the cloud writes the whole answer.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn complete(&self, request: &CompletionRequest) -> Result<AssistStream, ServiceError> {
        self.complete_on(request, Terms::default())
    }

    /// The same, on the caller's terms.
    ///
    /// # Errors
    /// [`ServiceError`], before any event.
    pub fn complete_on(
        &self,
        request: &CompletionRequest,
        terms: Terms,
    ) -> Result<AssistStream, ServiceError> {
        let (job, mut stream) = completion::prepare(&self.inner, request, terms.trace)?;
        self.inner.submit(job, terms)?;
        stream.watch(Recorder::new(&self.inner.desk, TrafficKey::default(), stream.prompt_tokens()));
        Ok(stream)
    }

    /// Changes what may wait and for how long; what waits already stays.
    pub fn set_backlog(&self, queue: usize, backlog: BacklogBound, deadline: Option<Duration>) {
        self.inner.desk.set_backlog(queue, backlog);
        *self.inner.deadline.lock().expect("no holder of this lock panics") = deadline;
    }

    /// The current version of every scene.
    pub fn scenes(&self) -> Vec<SceneInfo> {
        self.inner.scenes.current().iter().map(|scene| self.inner.info(scene)).collect()
    }

    /// The current version of one scene.
    ///
    /// # Errors
    /// [`ServiceError::Scene`] where there is none.
    pub fn scene(&self, id: &str) -> Result<SceneInfo, ServiceError> {
        let scene = self.inner.scenes.get(id, None)?;
        Ok(self.inner.info(&scene))
    }

    /// The scenes in force, to be replaced where the database has newer ones.
    pub fn scene_book(&self) -> &SceneBook {
        &self.inner.scenes
    }

    /// Name of the model in the API.
    pub fn model_name(&self) -> &str {
        &self.inner.model_name
    }

    /// What is told of requests.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// All metrics as they are now, in Prometheus' text format.
    pub fn render_metrics(&self) -> String {
        let (stats, kv) = (self.stats(), self.kv());
        let held = stats.kv_tokens.saturating_sub(kv.free_tokens);
        self.inner.metrics.render(&Usage {
            running: stats.running,
            waiting: stats.waiting,
            backlog_tokens: stats.backlog_tokens,
            backlog_seconds: stats.backlog_ms / 1e3,
            kv_usage: held as f64 / stats.kv_tokens.max(1) as f64,
            prefix_queries: kv.prefix.query_tokens,
            prefix_hits: kv.prefix.hit_tokens,
            scenes: self
                .inner
                .scenes
                .current()
                .iter()
                .map(|scene| (scene.id.clone(), scene.version))
                .collect(),
        })
    }

    /// How the model writes calls of tools.
    pub fn tool_form(&self) -> ToolForm {
        ToolForm::of(self.inner.model.template())
    }

    /// Makes what constrained answers need, so that the first one need not wait for it.
    pub fn prepare_constraints(&self) {
        if let Err(err) = self.inner.grammars() {
            tracing::warn!(
                err = &err as &dyn std::error::Error,
                "answers of this model cannot be constrained"
            );
        }
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.inner.model
    }

    /// What is in use now.
    pub fn stats(&self) -> SchedulerStats {
        self.inner.desk.stats()
    }

    /// What the KV cache holds, as of the last pass.
    pub fn kv(&self) -> KvFigures {
        self.inner.desk.kv()
    }

    /// What this cloud costs now.
    pub fn measured(&self) -> Measured {
        self.inner.desk.measured()
    }

    /// What this cloud, the classes of devices and those of networks cost, as refitted from telemetry.
    pub fn coefficients(&self) -> Coefficients {
        self.inner.desk.coefficients()
    }

    /// The service's clock.
    pub fn clock(&self) -> Clock {
        self.inner.desk.clock.clone()
    }

    /// What devices of these classes cost, in place of what they report.
    pub fn set_classes(&self, classes: &[DeviceClass]) {
        self.inner.desk.set_classes(classes);
    }

    /// Sums of requests that the database does not have yet.
    pub fn unwritten_traffic(&self) -> Vec<TrafficRow> {
        self.inner.desk.traffic(|traffic| traffic.unwritten())
    }

    /// The database has these sums.
    pub fn traffic_written(&self, rows: &[TrafficRow]) {
        self.inner.desk.traffic(|traffic| traffic.written(rows, now_ms()));
    }

    /// Whether requests are accepted.
    pub fn is_open(&self) -> bool {
        self.inner.desk.stage() == Stage::Open
    }

    /// Whether the engine's thread has panicked: the program must be started again.
    pub fn has_failed(&self) -> bool {
        self.inner.desk.stage() == Stage::Failed
    }

    /// Accepts nothing further; running answers end by themselves, then the worker's thread does.
    pub fn drain(&self) {
        self.inner.desk.advance(Stage::Draining);
    }

    /// Cancels every answer; the worker's thread ends after the pass that runs.
    pub fn stop(&self) {
        self.inner.desk.advance(Stage::Stopping);
    }
}

impl Inner {
    /// What compiles constraints for this model.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ConstraintError> {
        self.grammars.get_or_init(|| Grammars::new(self.model.tokenizer())).as_ref().map_err(Clone::clone)
    }

    /// Checks the name of the model that a request asks for.
    pub(crate) fn check_model(&self, asked: &str) -> Result<(), ServiceError> {
        if asked == "default" || asked == self.model_name {
            return Ok(());
        }
        Err(ServiceError::UnknownModel {
            asked: asked.chars().take(128).collect(),
            served: self.model_name.clone(),
        })
    }

    fn info(&self, scene: &Scene) -> SceneInfo {
        scene.info(&self.model_name, Some(self.model.tokenizer().digest_hex()))
    }

    fn submit(&self, mut job: Job, terms: Terms) -> Result<(), ServiceError> {
        let deadline = terms.deadline.or(*self.deadline.lock().expect("no holder of this lock panics"));
        job.spec.deadline = deadline.map(|within| job.arrived_at + within);
        job.spec.bytes = job.held_bytes();
        job.spec.share = terms.share;
        self.desk.submit(job).map_err(|refused| match refused {
            NotTaken::Draining => {
                self.metrics.rejected("stopping");
                ServiceError::Stopping
            }
            NotTaken::Refused(Refusal::TooLarge { need, limit }) => ServiceError::KvTooSmall { need, limit },
            NotTaken::Refused(Refusal::Full { limit, waiting, backlog, retry_after, .. }) => {
                self.metrics.rejected("queue_full");
                let retry_after_ms = retry_after_ms(retry_after);
                ServiceError::Overloaded { waiting, backlog, limit, retry_after_ms }
            }
            NotTaken::Refused(Refusal::Late { first, left, retry_after }) => {
                self.metrics.rejected("deadline");
                ServiceError::Late {
                    first_ms: whole_ms(first),
                    left_ms: whole_ms(left),
                    retry_after_ms: retry_after_ms(retry_after),
                }
            }
        })
    }
}

/// Not so soon that it is a storm, not so late that nobody believes it.
fn retry_after_ms(after: Duration) -> u64 {
    whole_ms(after).clamp(100, 60_000)
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
