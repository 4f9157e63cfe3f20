//! How frames get from one device to another: what the ring needs of a network, whatever it is.
//!
//! A [`Link`] carries whole frames both ways, in order, between two devices that know each other's keys; it may end at
//! any moment, and every call on it has a time limit. The ring runs over this alone, so that it runs the same over
//! encrypted channels and in the memory of a test.

#[cfg(test)]
pub(crate) mod memory;
mod outbox;
pub mod tcp;

use std::time::Duration;

use super::frame::NextNode;
pub use outbox::Outbox;

/// A device's public key: its name among devices.
pub type Key = [u8; 32];

/// What a link is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Between the head and a worker.
    Control,
    /// From one place of the ring to the next.
    Ring,
    /// From a worker to one that may have weights which it lacks.
    Weights,
    /// From a worker to one that the way to is measured; nothing of a ring's work goes over it.
    Edge,
}

/// Why a frame did not get through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Not within the time limit.
    #[error("nothing within the time limit")]
    TimedOut,
    /// The other side, or this one, has ended the link.
    #[error("the link is closed")]
    Closed,
    /// The other side does not want this link.
    #[error("the other device refuses")]
    Refused,
    /// What the network says.
    #[error("the network fails")]
    Network(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The sending side of a link.
pub trait FrameSender: Send {
    /// Sends a frame; returns when the network has taken it, not when it has arrived.
    ///
    /// # Errors
    /// [`LinkError`]; after any error the link is of no use.
    fn send(&mut self, frame: &[u8], timeout: Duration) -> Result<(), LinkError>;
}

/// The receiving side of a link.
pub trait FrameReceiver: Send {
    /// The next frame.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] where none begins within the time limit: the link goes on. After any other error it is
    /// of no use.
    fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError>;
}

/// A link to another device.
pub struct Link {
    /// Whose key it proved to have.
    pub peer: Key,
    /// To it.
    pub sender: Box<dyn FrameSender>,
    /// From it.
    pub receiver: Box<dyn FrameReceiver>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Links of one device that may wait to be asked for.
const OF_ONE_MAX: usize = 4;

/// Adds a link to those that wait; of one device the oldest gives way. What a link is of says its first frame alone, and
/// the one that came last may be of an older epoch than the one before.
pub(super) fn keep(waiting: &mut Vec<Link>, link: Link) {
    let of_it = waiting.iter().filter(|other| other.peer == link.peer).count();
    if of_it >= OF_ONE_MAX
        && let Some(oldest) = waiting.iter().position(|other| other.peer == link.peer)
    {
        waiting.remove(oldest);
    }
    waiting.push(link);
}

/// How this device reaches others, and is reached.
pub trait Network: Send + Sync {
    /// This device, as others reach it. The address may lack what only others know; who connected to this device by
    /// another one uses that.
    fn own(&self) -> NextNode;

    /// Lets these devices open links of the ring and for weights, besides those that were paired.
    fn allow(&self, keys: &[Key]);

    /// Opens a link to a device that has this key.
    ///
    /// # Errors
    /// [`LinkError`].
    fn connect(&self, to: &NextNode, purpose: Purpose, timeout: Duration) -> Result<Link, LinkError>;

    /// The next link that another device opened.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] where there is none yet; any other means that there will be none.
    fn accept(&self, timeout: Duration) -> Result<(Link, Purpose), LinkError>;
}
