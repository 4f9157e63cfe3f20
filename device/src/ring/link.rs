//! Links between devices: what the ring needs of any network.
//!
//! A [`Link`] carries whole frames in both directions, in order, between two devices that know each other's
//! keys. It may end at any moment, and every call on it has a time limit. The ring uses only this
//! interface, so it runs the same over encrypted channels and in the memory of a test.

#[cfg(test)]
pub(crate) mod memory;
mod outbox;
pub mod tcp;

use std::time::Duration;

use super::frame::NodeAddress;
pub use outbox::Outbox;

/// A device's public key, which identifies it.
pub type Key = [u8; 32];

/// What a link is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// The other side refuses this link.
    #[error("the other device refuses")]
    Refused,
    /// An error of the network.
    #[error("the network fails")]
    Network(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The sending side of a link.
pub trait FrameSender: Send {
    /// Sends a frame. Returns when the network has accepted it, not when it has arrived.
    ///
    /// # Errors
    /// [`LinkError`]; after any error the link cannot be used.
    fn send(&mut self, frame: &[u8], timeout: Duration) -> Result<(), LinkError>;
}

/// The receiving side of a link.
pub trait FrameReceiver: Send {
    /// Returns the next frame.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] if none begins within the time limit; the link can still be used. After any
    /// other error it cannot.
    fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError>;
}

/// A link to another device.
pub struct Link {
    /// The key that the other side has proved.
    pub peer: Key,
    /// Sends to it.
    pub sender: Box<dyn FrameSender>,
    /// Receives from it.
    pub receiver: Box<dyn FrameReceiver>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Most links of one device that may wait to be taken.
const OF_ONE_MAX: usize = 4;

/// Adds a link to the waiting ones; if the device has too many, its oldest is dropped. Several are kept,
/// because only the first frame says which epoch a link belongs to, and a link of an older epoch may arrive
/// last.
pub(super) fn add_waiting(waiting: &mut Vec<Link>, link: Link) {
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
    /// Returns this device's address and key for others. Its IP address may be unspecified; devices that
    /// it has connected to use the one from which it came.
    fn own(&self) -> NodeAddress;

    /// Lets these devices open links of the ring and for weights, in addition to the paired ones.
    fn allow(&self, keys: &[Key]);

    /// Opens a link to the device with this key.
    ///
    /// # Errors
    /// [`LinkError`].
    fn connect(&self, to: &NodeAddress, purpose: Purpose, timeout: Duration) -> Result<Link, LinkError>;

    /// Returns the next link that another device opened.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] if there is none yet; any other error means that no more will come.
    fn accept(&self, timeout: Duration) -> Result<(Link, Purpose), LinkError>;
}
