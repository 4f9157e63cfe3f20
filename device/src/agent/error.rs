//! Why a question was not answered.

use crate::client::OutgoingError;
use crate::worker::WorkerError;
use baton_constrain::FormError;
use baton_engine::stop::StopError;

/// Why a question was not answered at all.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is neither a cloud nor a model.
    #[error("there is neither a cloud to ask (--cloud URL) nor a model on this device (--model FILE)")]
    Nobody,
    /// This mode needs a cloud.
    #[error("mode `cloud` needs a cloud (--cloud URL)")]
    NoCloud,
    /// This mode needs a model.
    #[error("mode `device` needs a model on this device (--model FILE)")]
    NoDevice,
    /// A text, or the beginning of an answer, can be continued only by a model on this device.
    #[error(
        "a text or the beginning of an answer is continued only by a model on this device (--model FILE), and not \
         in mode `cloud`; send a chat that ends with the user's message"
    )]
    NoDeviceForText,
    /// The cloud does not take tools or forms of answers, and there is no model here that may answer alone.
    #[error(
        "the cloud takes no tools and no forms of answers that this device can go on with; a model on this \
         device is needed (--model FILE), in a mode other than `cloud`"
    )]
    NoDeviceForTools,
    /// No answer can have the form that was asked for.
    #[error(transparent)]
    Form(#[from] FormError),
    /// The model's template refuses the prompt.
    #[error("the model's template cannot lay out these messages: {0}")]
    Prompt(String),
    /// A field is out of its range.
    #[error(transparent)]
    Request(#[from] OutgoingError),
    /// The stop strings are not valid.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The device's engine could not be started again.
    #[error("start this device's model again")]
    Engine(#[source] WorkerError),
    /// A background task failed.
    #[error("prepare the question")]
    Prepare(#[source] tokio::task::JoinError),
}
