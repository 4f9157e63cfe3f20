//! Encrypted channels between two devices of a ring.
//!
//! A channel is one TCP connection under the Noise protocol (revision 34; X25519, ChaCha20-Poly1305,
//! SHA-256). Pinned peers use the pattern IK: the caller proves its key in its first message. A caller that
//! does not know the called device's key gets no answer; one whose key is not pinned is refused. Strangers
//! use the pattern XX, and only while somebody is pairing ([`crate::home::pairing`]).
//!
//! Always holds:
//!
//! - Both sides have proved their static keys before the first frame. From an unauthenticated peer only
//!   messages of fixed sizes are read.
//! - Frames arrive whole, once and in order, or the channel ends. Every wait has a deadline.
//! - A frame is opaque bytes, at most [`FRAME_BYTES_MAX`]. No length is announced in advance: memory grows
//!   with what has arrived.
//!
//! A channel never reconnects and never retries: the code that knows what was lost does that.

mod deadline;
mod handshake;
mod instances;
mod record;
#[cfg(test)]
pub(super) mod tests;

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadline::{Deadline, channel_error};
use handshake::{Established, Intent};

pub use handshake::PROTOCOL_VERSION;
pub use instances::Instances;
pub use record::{Receiver, Sender};

use crate::home::identity::{Identity, InstanceId, PublicKey};

/// Largest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// Why a channel could not be opened, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side did not answer in time.
    #[error("the other device did not answer in time")]
    TimedOut,
    /// The other side closed the connection, or this side did.
    #[error("the connection is closed")]
    Closed,
    /// A frame that was to be sent, or that arrives, is too large.
    #[error("a frame has {bytes} bytes or more, {max} at most")]
    TooLarge {
        /// Its size in bytes, as far as it is known.
        bytes: usize,
        /// The largest allowed size, in bytes.
        max: usize,
    },
    /// The other side has proved its key, but the keys are not pinned: it does not know ours, or a caller
    /// is not known here.
    #[error("the key is not pinned: the devices are not paired")]
    Refused,
    /// The other side could not prove the expected key, or is not a ring device.
    #[error("the other side has not proved the pinned key: another device or program answers there")]
    Unproven,
    /// A record arrived that the other side did not send in this form: it was changed, repeated or
    /// reordered.
    #[error("a record was not sent so by the other device; the channel is cut")]
    Forged,
    /// The called side has too many callers and ended this call in favour of a newer one.
    #[error("too many callers at once: this call gave way to newer ones; try again in a moment")]
    Busy,
    /// The two programs use different protocol versions.
    #[error("this device speaks ring protocol version {ours}, the other {theirs}: update the older one")]
    Version {
        /// Version of this side.
        ours: u16,
        /// Version of the other side.
        theirs: u16,
    },
    /// Two devices use the same key at the same time.
    #[error(
        "two devices use the same key at once: one has a copy of the other's state folder; remove the copy's \
         folder and pair it again"
    )]
    Cloned,
    /// The keys are used up after so many records; a new channel has new keys.
    #[error("the channel's keys are used up after {0} records; connect again")]
    Exhausted(u64),
    /// An error of the network or the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a channel is used for. The caller says it, encrypted, in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Between head and worker: plans, weights, heartbeats.
    Control,
    /// Hidden states to the next device of the ring.
    Ring,
    /// Pieces of the model, between workers of one ring.
    Weights,
    /// Echoes that measure the network path between two workers.
    Edge,
    /// Two strangers that are being paired.
    Pairing,
}

/// Which callers a listening device accepts.
pub struct Admission<'a> {
    /// Returns whether a key is pinned.
    pub allowed: &'a dyn Fn(&PublicKey) -> bool,
    /// Whether strangers may pair; they get nothing but [`Purpose::Pairing`].
    pub strangers: bool,
    /// Processes that have channels open here: a second process with the same key is refused as a clone.
    pub present: Option<&'a Instances>,
    /// Returns whether this caller was evicted in favour of a newer one, so that it can be told. `None` if
    /// callers are never evicted.
    pub evicted: Option<&'a dyn Fn() -> bool>,
}

/// An encrypted connection to one device that has proved its key.
#[derive(Debug)]
pub struct Channel {
    peer: PublicKey,
    instance: InstanceId,
    hash: [u8; 32],
    address: SocketAddr,
    sender: Sender,
    receiver: Receiver,
}

impl Channel {
    /// Connects to a device whose key is known.
    ///
    /// # Errors
    /// - [`ChannelError::Refused`] if the device does not know our key.
    /// - [`ChannelError::Unproven`] if it does not have the pinned key.
    /// - [`ChannelError::TimedOut`] after `timeout` in all.
    /// - [`ChannelError::Io`] if nothing listens there.
    /// - [`ChannelError::Version`] and [`ChannelError::Cloned`].
    pub fn connect(
        addr: SocketAddr,
        identity: &Identity,
        peer: &PublicKey,
        purpose: Purpose,
        timeout: Duration,
    ) -> Result<Self, ChannelError> {
        let deadline = Deadline::after(timeout);
        if peer == identity.public() {
            return Err(ChannelError::Cloned);
        }
        let stream = call(addr, &deadline)?;
        let made = handshake::call_pinned(&stream, identity, peer, Intent::Use(purpose), &deadline)?;
        let mut channel = Self::new(stream, made)?;
        // This record shows the called device that the caller is live: a replayed first message cannot
        // produce it.
        channel.sender.send(&[], deadline.left()?)?;
        Ok(channel)
    }

    /// Connects to a device whose key is not known, to pair with it. [`Channel::peer`] is the key that it
    /// proves; the pairing shows whose key it is.
    ///
    /// # Errors
    /// The errors of [`Channel::connect`]; [`ChannelError::Unproven`] also if nobody is pairing there.
    pub fn connect_stranger(
        addr: SocketAddr,
        identity: &Identity,
        timeout: Duration,
    ) -> Result<Self, ChannelError> {
        let deadline = Deadline::after(timeout);
        let stream = call(addr, &deadline)?;
        let made = handshake::call_stranger(&stream, identity, &deadline)?;
        Self::new(stream, made)
    }

    /// Asks a device whether it is reachable and knows this one. Returns how long connection and handshake
    /// took.
    ///
    /// # Errors
    /// The errors of [`Channel::connect`]. The called device sees a caller that disconnects at once.
    pub fn probe(
        addr: SocketAddr,
        identity: &Identity,
        peer: &PublicKey,
        timeout: Duration,
    ) -> Result<Duration, ChannelError> {
        let begun = Instant::now();
        let deadline = Deadline::after(timeout);
        if peer == identity.public() {
            return Err(ChannelError::Cloned);
        }
        let stream = call(addr, &deadline)?;
        handshake::call_pinned(&stream, identity, peer, Intent::Probe, &deadline)?;
        Ok(begun.elapsed())
    }

    /// Accepts a caller if `allowed` returns true for its key.
    ///
    /// # Errors
    /// - [`ChannelError::Refused`] if the key is not allowed.
    /// - [`ChannelError::Unproven`] if the caller is not a ring device.
    /// - [`ChannelError::Closed`] if the caller only asked whether this device is reachable.
    /// - Otherwise the errors of [`Channel::connect`].
    pub fn accept(
        stream: TcpStream,
        identity: &Identity,
        allowed: &dyn Fn(&PublicKey) -> bool,
        timeout: Duration,
    ) -> Result<(Self, Purpose), ChannelError> {
        let admission = Admission { allowed, strangers: false, present: None, evicted: None };
        Self::accept_by(stream, identity, &admission, timeout)
    }

    /// Accepts a caller by the rules of `admission`.
    ///
    /// # Errors
    /// The errors of [`Channel::accept`]; [`ChannelError::Cloned`] if a second process with the same key
    /// calls, [`ChannelError::Busy`] if this call was ended in favour of a newer one.
    pub fn accept_by(
        stream: TcpStream,
        identity: &Identity,
        admission: &Admission<'_>,
        timeout: Duration,
    ) -> Result<(Self, Purpose), ChannelError> {
        let deadline = Deadline::after(timeout);
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let (made, intent) = handshake::answer(&stream, identity, admission, &deadline)?;
        let mut channel = Self::new(stream, made)?;
        let Intent::Use(purpose) = intent else { return Err(ChannelError::Closed) };
        if purpose == Purpose::Pairing {
            return Ok((channel, purpose));
        }
        // The first message could be a replayed old one. Only a caller that has the keys of this handshake
        // can write this record.
        let mut proof = Vec::new();
        channel.receiver.receive_into(&mut proof, deadline.left()?)?;
        if !proof.is_empty() {
            return Err(ChannelError::Forged);
        }
        if let Some(present) = admission.present {
            let presence = present.enter(channel.peer, channel.instance).ok_or(ChannelError::Cloned)?;
            let presence = Arc::new(presence);
            channel.sender._presence = Some(Arc::clone(&presence));
            channel.receiver._presence = Some(presence);
        }
        Ok((channel, purpose))
    }

    fn new(stream: TcpStream, made: Established) -> Result<Self, ChannelError> {
        let address = stream.peer_addr().map_err(channel_error)?;
        let (sender, receiver) = record::halves(stream, made.transport)?;
        Ok(Self { peer: made.peer, instance: made.instance, hash: made.hash, address, sender, receiver })
    }

    /// Returns the key that the other side has proved.
    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// Returns which process of the other device this is.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Returns the hash of the handshake: equal on both sides of one channel, and different for every
    /// channel.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Returns the address of the other side.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Splits the channel into its two directions, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// Connects within a deadline.
fn call(addr: SocketAddr, deadline: &Deadline) -> Result<TcpStream, ChannelError> {
    let stream = TcpStream::connect_timeout(&addr, deadline.left()?).map_err(channel_error)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Ends a connection. It may have ended before.
fn hang_up(stream: &TcpStream) {
    let _ended_before = stream.shutdown(Shutdown::Both);
}
