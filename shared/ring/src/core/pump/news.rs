//! What the pump is told and what it says.

use crate::core::head::Fault;
use crate::core::{States, StepNo};
use crate::wire::frame::Span;

/// Whose step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Kind {
    /// The caller's.
    Caller,
    /// Tokens of a live sequence are computed again.
    Replay,
    /// The token that tests whether every device computes.
    Probe,
    /// A few rows of which one device computes one layer.
    Audit {
        /// The device's place.
        place: usize,
        /// The layer.
        layer: usize,
    },
}

/// Why a step ended without a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Ending {
    /// The caller does not want it any more.
    Cancelled,
    /// The ring broke.
    Faulted,
    /// The engine refused it.
    Refused,
    /// It was an audit, whose rows are back.
    Audited,
}

/// A step that all devices have now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) struct Committed {
    /// Whose it was.
    pub(in crate::core) kind: Kind,
    /// Its number.
    pub(in crate::core) step: StepNo,
    /// Its sequences; none for an empty step.
    pub(in crate::core) spans: Vec<Span>,
}

/// What has become of the step under way.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::core) enum PumpNews {
    /// It goes on, or there is none.
    Waiting,
    /// It is done.
    Committed(Committed),
    /// It has ended without a commit. No engine work is under way.
    Ended(Ending),
    /// An audit is done: what entered the layer, and what the device made of it.
    Back {
        /// What entered.
        begins: States,
        /// What came out.
        have: States,
    },
    /// The ring broke. [`super::Pump::end`] must follow.
    Fault(Fault),
}

/// Sums over steps, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::core) struct Figures {
    /// Steps since the start.
    pub(in crate::core) steps: u64,
    /// Tokens since the start, those of replays included.
    pub(in crate::core) tokens: u64,
    /// Steps of this epoch.
    pub(in crate::core) epoch_steps: u64,
    /// Microseconds of this epoch's steps.
    pub(in crate::core) step_us: u64,
    /// Microseconds of the head's own part in them.
    pub(in crate::core) own_us: u64,
    /// Frames that were refused.
    pub(in crate::core) refused: u64,
}

/// How much a ring has under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnderWay {
    /// Operations on sequences of this epoch.
    pub logged: u64,
    /// Those of them that the other devices have not been told.
    pub untold: usize,
    /// Chunks that were sent and not looked at again; at most twice the places, and one.
    pub flying: usize,
    /// Those of them that are back.
    pub returned: usize,
}
