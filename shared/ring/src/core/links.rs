//! What a core hears of its links, and what it does to them.

use std::time::Duration;

use super::{DeviceId, LinkId, Node};
use crate::wire::frame::Frame;

/// What a link is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Between the head and a worker.
    Control,
    /// From one place of the ring to the next.
    Ring,
    /// From a worker to another that may have weights which it lacks.
    Weights,
    /// From a worker to another, to measure the path between them; it carries none of the ring's work.
    Edge,
}

/// What happened to a link.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "most events are frames; a box would be one more allocation for each"
)]
pub enum LinkEvent {
    /// The answer to [`LinkEffect::Connect`]. A link that failed is gone; no [`LinkEvent::Gone`] follows.
    /// The error is a message for people.
    Opened(LinkId, Result<(), String>),
    /// Another device opened a link; its key is proved, and for control it is one that may.
    Arrived {
        /// The link.
        link: LinkId,
        /// The other device.
        from: DeviceId,
        /// What it is for.
        purpose: Purpose,
    },
    /// A frame came.
    Heard(LinkId, Frame),
    /// The link ended, or something came that is no frame. Nothing comes from it any more, and it must not be
    /// closed.
    Gone(LinkId, Gone),
}

/// Why a link is gone. Both hold a message for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gone {
    /// It ended.
    Closed(String),
    /// Bytes came that are no frame: the other device is at fault.
    NoFrame(String),
}

impl Gone {
    /// Returns the message for people.
    pub fn words(&self) -> &str {
        match self {
            Self::Closed(words) | Self::NoFrame(words) => words,
        }
    }
}

/// What a core does with links.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkEffect {
    /// Open a link. [`LinkEvent::Opened`] follows, unless it is closed before.
    Connect {
        /// Its number from now on.
        link: LinkId,
        /// The other device.
        to: Node,
        /// What it is for.
        purpose: Purpose,
        /// How long it may take.
        within: Duration,
    },
    /// Only these devices may open links of the ring, for weights and for measuring, in addition to the
    /// paired ones. Each list replaces the one before.
    Allow(Vec<DeviceId>),
    /// Send a frame, after all that were sent on this link before.
    Send(LinkId, Frame),
    /// End the link. What was sent on it before may still arrive. Nothing is heard from it any more.
    Close(LinkId),
    /// Read nothing from the link until it is released. A frame that is being read may still come.
    Hold(LinkId),
    /// Read from it again.
    Release(LinkId),
}

/// Pieces that the host reads and sends by itself over a link; it reports after each frame that it sent. If
/// it cannot, the link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Give {
    /// The list of the model's pieces.
    List,
    /// Which pieces of this model are here.
    Which {
        /// The model.
        model: super::Digest,
    },
    /// Pieces of the model that was asked for last on this link; on a head, of its own model.
    Pieces {
        /// The first piece.
        first: u32,
        /// How many.
        count: u32,
    },
}
