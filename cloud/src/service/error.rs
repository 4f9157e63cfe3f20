//! Why a request was not accepted, and the error that its client gets.

use std::time::Duration;

use baton_constrain::ConstraintError;
use baton_engine::prompt::PromptError;
use baton_engine::sampling::SamplingError;
use baton_engine::stop::StopError;
use baton_protocol::{ErrorBody, ErrorCode, RequestError};
use baton_refine::RefineError;

use crate::fleet::book::PairError;
use crate::gate::QuotaError;
use crate::learn::planning::PlanError;
use crate::scene::book::SceneLookupError;
use baton_generate::scheduler::QueueLimit;

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A field is missing or out of its range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A field asks for something that this service does not support.
    #[error("field `{field}`: {message}")]
    Unsupported {
        /// Its path.
        field: &'static str,
        /// What is not supported.
        message: String,
    },
    /// The required form of the answer cannot be followed.
    #[error("field `{field}`: {err}")]
    Constraint {
        /// Path of the field that requires it.
        field: String,
        /// Why not.
        #[source]
        err: ConstraintError,
    },
    /// There is no such scene or version.
    #[error(transparent)]
    Scene(#[from] SceneLookupError),
    /// There is no such model.
    #[error("model `{asked}` is not served here; these are: {served}")]
    UnknownModel {
        /// The requested name.
        asked: String,
        /// The names of the models.
        served: String,
    },
    /// A request names another model than its scene.
    #[error("scene `{scene}` is answered by model `{model}`, the request asks for `{asked}`")]
    OtherModel {
        /// The scene.
        scene: String,
        /// The scene's model.
        model: String,
        /// The requested model.
        asked: String,
    },
    /// A scene names a model that this replica does not have.
    #[error("scene `{scene}` needs model `{model}`, which is not served here; these are: {served}")]
    SceneModel {
        /// The scene.
        scene: String,
        /// Its model.
        model: String,
        /// The names of the models.
        served: String,
    },
    /// A scene names an adapter that this replica does not have.
    #[error(
        "scene `{scene}` needs adapter `{adapter}` of model `{model}`, which is not served here; {served}"
    )]
    SceneAdapter {
        /// The scene.
        scene: String,
        /// Its adapter.
        adapter: String,
        /// Its model.
        model: String,
        /// The adapters that are served, as text.
        served: String,
    },
    /// The registry does not allow the device's models.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// A segment to refine has no text.
    #[error("field `segments[{0}].text` has no content to refine")]
    EmptyContent(usize),
    /// r or the device's figures are not valid.
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
    /// The prompt has more text than any prompt of the model.
    #[error("the prompt has {bytes} bytes of text, no prompt of this model has more than {limit}")]
    TextTooLong {
        /// Bytes of its text.
        bytes: usize,
        /// A whole context of the model's longest tokens.
        limit: usize,
    },
    /// The prompt has too many tokens, so that tokenization stopped early.
    #[error("the prompt has more than {limit} tokens, the limit")]
    MoreTokens {
        /// The most that leave room for an answer.
        limit: usize,
    },
    /// Prompt and answer do not fit into the KV budget.
    #[error("prompt and answer need {need} tokens of KV cache, the limit is {limit}")]
    KvTooSmall {
        /// KV tokens that they need.
        need: usize,
        /// The whole budget.
        limit: usize,
    },
    /// The model's template does not take these messages; in its words.
    #[error(transparent)]
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
    /// The caller's tenant has no quota for the request.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The queue is full.
    #[error("{waiting} requests wait, with {:.1} s of prompts; the limit is {limit}", backlog.as_secs_f64())]
    Overloaded {
        /// Requests that wait.
        waiting: usize,
        /// Time that their prompts will take.
        backlog: Duration,
        /// The limit that is reached.
        limit: QueueLimit,
        /// Time after which there is likely to be room, in milliseconds.
        retry_after_ms: u64,
    },
    /// The deadline cannot be met.
    #[error("the first token would take {first_ms} ms, the deadline leaves {left_ms} ms")]
    Late {
        /// The least time to the first token, in milliseconds.
        first_ms: u64,
        /// Time left until the deadline, in milliseconds.
        left_ms: u64,
        /// Time after which the queue is likely to be short enough, in milliseconds.
        retry_after_ms: u64,
    },
    /// The engines of the model cannot be asked for this.
    #[error("field `{field}` cannot be served: {message}")]
    EngineCannot {
        /// Its path.
        field: &'static str,
        /// Why.
        message: &'static str,
    },
    /// Every engine of the model is full.
    #[error("every engine of model `{model}` is full")]
    EnginesFull {
        /// The model.
        model: String,
        /// Time after which there may be room, in milliseconds.
        retry_after_ms: u64,
    },
    /// No engine of the model answers.
    #[error("no engine of model `{model}` answers")]
    EnginesDown {
        /// The model.
        model: String,
        /// Time after which one is tried again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The model is not in memory, and this call does not load it.
    #[error("model `{model}` is not in memory")]
    ModelAway {
        /// The model.
        model: String,
    },
    /// The model could not be loaded.
    #[error("model `{model}` could not be loaded")]
    ModelFailed {
        /// The model.
        model: String,
        /// Time after which it is tried again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The model was not in memory by the deadline, or too many requests wait for it.
    #[error("model `{model}` is not in memory, and there is no room or no time to load it")]
    ModelLate {
        /// The model.
        model: String,
    },
    /// An operator has taken the model out of use.
    #[error("model `{model}` was taken out of use on this replica")]
    ModelDrained {
        /// The model.
        model: String,
    },
    /// The models of this service are not loaded and unloaded.
    #[error("model `{model}` stays in memory: this service does not load models")]
    ModelFixed {
        /// The model.
        model: String,
    },
    /// An answer whose drafts are to be checked is not kept here.
    #[error("no answer of this request is kept here; drafts are checked within {} s of its last tokens", super::verify::KEPT.as_secs())]
    NotOpen,
    /// The first part of an answer is not written yet.
    #[error("the cloud's part of the answer is not complete; send the draft after its `end`")]
    NotBegun,
    /// A draft belongs to another answer than the one that is kept.
    #[error("field `{field}` does not fit the answer that is kept for this request")]
    OtherAnswer {
        /// The field that does not fit.
        field: &'static str,
    },
    /// A draft has a token that the model does not have.
    #[error("field `draft[{at}]` is {id}, the model's tokens are 0 to {}", vocab_len - 1)]
    UnknownToken {
        /// Its index in the draft.
        at: usize,
        /// The token.
        id: u32,
        /// The model's number of tokens.
        vocab_len: usize,
    },
    /// The engine could not check a draft.
    #[error("the draft could not be checked")]
    CheckFailed,
    /// The service is stopping.
    #[error("the service is stopping")]
    Stopping,
}

/// Time after which a request for a model that is not in memory may be sent again, in milliseconds.
const MODEL_RETRY_MS: u64 = 2000;
/// The same for a draft that came before the cloud's part was complete.
const NOT_BEGUN_RETRY_MS: u64 = 50;

impl ServiceError {
    /// Returns whether the service is the reason, and not the request: for experiments it is a failure.
    pub(crate) fn is_of_service(&self) -> bool {
        matches!(
            self,
            ServiceError::SceneModel { .. }
                | ServiceError::SceneAdapter { .. }
                | ServiceError::Overloaded { .. }
                | ServiceError::Late { .. }
                | ServiceError::EnginesFull { .. }
                | ServiceError::EnginesDown { .. }
        )
    }

    /// Makes the body of the error for a client.
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
            ServiceError::UnknownModel { .. } | ServiceError::OtherModel { .. } => {
                (ErrorCode::UnknownModel, Some("model".into()))
            }
            ServiceError::SceneModel { .. } | ServiceError::SceneAdapter { .. } => {
                (ErrorCode::UnknownModel, Some("scene".into()))
            }
            ServiceError::Pair(_) => (ErrorCode::PairNotAllowed, Some("device.pair".into())),
            ServiceError::EmptyContent(at) => {
                (ErrorCode::InvalidRequest, Some(format!("segments[{at}].text")))
            }
            ServiceError::Plan(PlanError::RatioBelowScene { .. }) => {
                (ErrorCode::InvalidRequest, Some("refine.ratio".into()))
            }
            ServiceError::Plan(PlanError::Input(_)) => (ErrorCode::InvalidRequest, Some("device".into())),
            ServiceError::PromptTooLong { .. }
            | ServiceError::TextTooLong { .. }
            | ServiceError::MoreTokens { .. }
            | ServiceError::KvTooSmall { .. } => (ErrorCode::PromptTooLong, None),
            ServiceError::Prompt(_) | ServiceError::Sampling(_) | ServiceError::Stop(_) => {
                (ErrorCode::InvalidRequest, None)
            }
            ServiceError::Refine(_) => (ErrorCode::InvalidRequest, Some("refine".into())),
            ServiceError::Quota(QuotaError::Repeated) => {
                (ErrorCode::InvalidRequest, Some("request_id".into()))
            }
            ServiceError::Overloaded { .. } | ServiceError::Late { .. } | ServiceError::Quota(_) => {
                (ErrorCode::Overloaded, None)
            }
            ServiceError::EngineCannot { field, .. } => {
                (ErrorCode::InvalidRequest, Some((*field).to_owned()))
            }
            ServiceError::EnginesFull { .. } | ServiceError::ModelLate { .. } => {
                (ErrorCode::Overloaded, None)
            }
            ServiceError::Stopping
            | ServiceError::EnginesDown { .. }
            | ServiceError::ModelAway { .. }
            | ServiceError::ModelFailed { .. }
            | ServiceError::ModelDrained { .. } => (ErrorCode::Unavailable, None),
            ServiceError::ModelFixed { .. } => (ErrorCode::InvalidRequest, None),
            ServiceError::NotOpen => (ErrorCode::Gone, None),
            ServiceError::NotBegun => (ErrorCode::Unavailable, None),
            ServiceError::OtherAnswer { field } => (ErrorCode::InvalidRequest, Some((*field).to_owned())),
            ServiceError::UnknownToken { at, .. } => {
                (ErrorCode::InvalidRequest, Some(format!("draft[{at}]")))
            }
            ServiceError::CheckFailed => (ErrorCode::Internal, None),
        };
        let mut body = ErrorBody::new(code, self.to_string());
        body.error.param = param;
        body.error.retry_after_ms = self.retry_after_ms();
        body
    }

    /// Returns the time after which the request may be sent again, in milliseconds.
    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            ServiceError::Overloaded { retry_after_ms, .. }
            | ServiceError::Late { retry_after_ms, .. }
            | ServiceError::EnginesFull { retry_after_ms, .. }
            | ServiceError::EnginesDown { retry_after_ms, .. }
            | ServiceError::ModelFailed { retry_after_ms, .. } => Some(*retry_after_ms),
            ServiceError::ModelAway { .. } | ServiceError::ModelLate { .. } => Some(MODEL_RETRY_MS),
            ServiceError::NotBegun => Some(NOT_BEGUN_RETRY_MS),
            ServiceError::Quota(err) => err.retry_after_ms(),
            _ => None,
        }
    }
}
