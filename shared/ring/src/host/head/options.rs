//! How the head of a ring is run, and why it may fail.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use baton_engine::weights::ResidencyError;
use baton_engine::{EngineError, EngineOptions, SequenceError, StepError};
use baton_plan::Plan;

use crate::core::DeviceId;
use crate::core::head::{Pace, PlanFor, RingFault, Shown};
use crate::core::ways::Ways;
use crate::home::state::StateFolder;
use crate::host::Machine;
use crate::weights::WeightsError;
use crate::wire::frame::Activations;

/// Makes a plan for the head and these workers, by name; the plan begins with the head. An error says why
/// there is no plan.
pub type Planner = Box<dyn FnMut(&PlanFor) -> Result<Plan, String> + Send>;

/// Drafts a plan that includes devices about to join, so that they can fetch their layers before the switch.
pub type Drafter = Box<dyn Fn(&PlanFor) -> Result<Plan, String> + Send>;

/// Decides whether to plan anew, from what devices have reported; called only between answers.
pub type Reviser = Box<dyn FnMut(&[Shown]) -> bool + Send>;

/// Predicts the times of the plan that was made last, or returns `None` if they are not known.
pub type Pacer = Box<dyn Fn() -> Option<Pace> + Send>;

/// The names that a person gave to other devices, by their keys: a device does not choose its own name here.
#[derive(Clone, Default)]
pub struct Names(Option<Arc<NameOf>>);

type NameOf = dyn Fn(&DeviceId) -> Option<String> + Send + Sync;

impl Names {
    /// Uses this function, which is called whenever a device joins.
    pub fn new(name_of: impl Fn(&DeviceId) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(name_of)))
    }

    pub(super) fn of(&self, device: &DeviceId) -> Option<String> {
        self.0.as_ref().and_then(|name_of| name_of(device))
    }
}

impl Debug for Names {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Names" } else { "no names" })
    }
}

/// How a ring is run.
#[derive(Debug, Clone)]
pub struct RingOptions {
    /// The head's name in plans.
    pub name: String,
    /// Options of the head's engine; the other devices use the same cache. The plan sets the layers.
    pub engine: EngineOptions,
    /// The format of hidden states between devices.
    pub activations: Activations,
    /// Whether the other devices read weights ahead of computing with them.
    pub reads_ahead: bool,
    /// Least and most rows of a chunk.
    pub chunk_rows: (usize, usize),
    /// Time between heartbeats; a device that misses three is lost.
    pub heartbeat: Duration,
    /// How long a frame may take to the next device.
    pub hop: Duration,
    /// How long the ring may make no progress within a step, in addition to what `token` predicts.
    pub floor: Duration,
    /// Least time that a token of one sequence counts as, whatever is predicted.
    pub token: Duration,
    /// How long devices may take to connect, without the time for fetching weights.
    pub patience: Duration,
    /// Time between two tokens that test whether every device computes, while no answer runs.
    pub health: Duration,
    /// What is known of the network paths between devices.
    pub ways: Ways,
    /// Where that is stored as it changes; nowhere if there is no folder.
    pub ways_folder: Option<StateFolder>,
    /// The names of devices; a device without an entry keeps the name that it gives itself.
    pub names: Names,
    /// The machine that the head runs on.
    pub machine: Arc<dyn Machine>,
}

impl RingOptions {
    /// Returns the usual times, with the given name, engine and machine.
    pub fn new(name: impl Into<String>, engine: EngineOptions, machine: Arc<dyn Machine>) -> Self {
        Self {
            name: name.into(),
            engine,
            activations: Activations::F32,
            reads_ahead: true,
            chunk_rows: (16, 128),
            heartbeat: Duration::from_millis(300),
            hop: Duration::from_secs(5),
            floor: Duration::from_secs(5),
            token: Duration::from_millis(500),
            patience: Duration::from_secs(10),
            health: Duration::from_secs(10),
            ways: Ways::default(),
            ways_folder: None,
            names: Names::default(),
            machine,
        }
    }
}

/// Why a ring cannot be formed, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The head's engine cannot be created.
    #[error("the head's engine")]
    Engine(#[from] EngineError),
    /// The head's weights cannot be changed to those of the plan.
    #[error("the head's weights")]
    Residency(#[from] ResidencyError),
    /// The model's file cannot be served to the other devices.
    #[error("serve the model's weights")]
    Weights(#[from] WeightsError),
    /// The model is not in a file.
    #[error("the model has no file to serve weights from")]
    NoFile,
    /// Threads cannot be started.
    #[error("start the ring's threads")]
    Threads(#[source] std::io::Error),
    /// Live sequences could not be computed again.
    #[error("compute sequences again")]
    Rebuild(#[source] StepError),
    /// Sequences of a ring share prefixes with each other, so they have one owner.
    #[error("a ring has one owner: its sequences share prefixes with each other")]
    Owners,
    /// The ring cannot do it.
    #[error(transparent)]
    Fault(#[from] RingFault),
}

impl From<RingError> for SequenceError {
    fn from(err: RingError) -> Self {
        match err {
            RingError::Rebuild(err @ StepError::Cancelled { .. }) => Self::Step(err),
            err => Self::Ring(Box::new(err)),
        }
    }
}
