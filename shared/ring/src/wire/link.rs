//! Links between devices: what the ring needs of any network.
//!
//! A [`Link`] carries whole frames in both directions, in order, between two devices that know each other's
//! keys. It may end at any moment, and every call on it has a time limit. The ring uses only this
//! interface, so it runs the same over encrypted channels and in the memory of a test.

use std::time::Duration;

pub use crate::core::Purpose;
use crate::core::{DeviceId, Node};

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
    pub peer: DeviceId,
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

/// How this device reaches others, and is reached.
pub trait Network: Send + Sync {
    /// Returns this device's address and key for others. Its IP address may be unspecified; devices that
    /// it has connected to use the one from which it came.
    fn own(&self) -> Node;

    /// Lets these devices open links of the ring and for weights, in addition to the paired ones.
    fn allow(&self, keys: &[DeviceId]);

    /// Opens a link to the device with this key.
    ///
    /// # Errors
    /// [`LinkError`].
    fn connect(&self, to: &Node, purpose: Purpose, timeout: Duration) -> Result<Link, LinkError>;

    /// Returns the next link that another device opened.
    ///
    /// # Errors
    /// [`LinkError::TimedOut`] if there is none yet; any other error means that no more will come.
    fn accept(&self, timeout: Duration) -> Result<(Link, Purpose), LinkError>;
}
