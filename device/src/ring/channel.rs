//! Encrypted channels between two devices of a ring.
//!
//! A channel is one TCP connection under the Noise protocol (revision 34; X25519, ChaCha20-Poly1305, SHA-256). Pinned
//! peers meet by the pattern IK: the one that calls proves its key in its first message, so that a stranger is turned
//! away without a word. Strangers meet by XX, and only while somebody is pairing ([`super::pairing`]).
//!
//! Always holds: both sides have proved their static keys before the first frame; nothing of an unauthenticated peer
//! is read beyond messages of fixed sizes; frames arrive whole, once, in order, or the channel ends; every wait has a
//! deadline. A frame is opaque, at most [`FRAME_BYTES_MAX`] bytes, and no length is claimed in advance: memory grows
//! with what has arrived. It never reconnects and never retries: that is for those who know what was lost.

mod deadline;
mod handshake;
mod instances;
mod record;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadline::{Deadline, sort};
use handshake::{Established, Intent};

pub use handshake::PROTOCOL_VERSION;
pub use instances::Instances;
pub use record::{Receiver, Sender};

use super::identity::{Identity, InstanceId, PublicKey};

/// Bytes of the largest frame.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// Why a channel is not there, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side did not answer, or not fast enough.
    #[error("the other device did not answer in time")]
    TimedOut,
    /// The other side closed the connection, or this side did.
    #[error("the connection is closed")]
    Closed,
    /// A frame is over the bound: one to be sent, or one that arrives.
    #[error("a frame has {bytes} bytes or more, {max} at most")]
    TooLarge {
        /// Bytes of it, as far as it is known.
        bytes: usize,
        /// Bytes of the largest frame.
        max: usize,
    },
    /// The other side proved its key, and does not know ours; or it was called and this side does not know its key.
    #[error("the key is not pinned: the devices are not paired")]
    Refused,
    /// The other side could not prove the key that it should have, or is no ring device.
    #[error("the other side has not proved the pinned key: another device or program answers there")]
    Unproven,
    /// Something arrived that was not sent so: changed, repeated or out of order.
    #[error("a record was not sent so by the other device; the channel is cut")]
    Forged,
    /// The other side has more callers than it listens to, and ended this call for a newer one; or this side did so.
    #[error("too many callers at once: this call gave way to newer ones; try again in a moment")]
    Busy,
    /// The two programs speak different versions.
    #[error("this device speaks ring protocol version {ours}, the other {theirs}: update the older one")]
    Version {
        /// Version of this side.
        ours: u16,
        /// Version of the other side.
        theirs: u16,
    },
    /// Two devices use one key at once.
    #[error(
        "two devices use the same key at once: one has a copy of the other's state folder; remove the copy's \
         folder and pair it again"
    )]
    Cloned,
    /// So much was sent that the keys are used up; a new channel has new ones.
    #[error("the channel's keys are used up after {0} records; connect again")]
    Exhausted(u64),
    /// The network, or the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a channel is for; the one that calls says so, encrypted, within the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Head and worker: plans, weights, heartbeats.
    Control,
    /// Hidden states to the next device of the ring.
    Ring,
    /// Pieces of the model, between workers of one ring.
    Weights,
    /// Echoes that measure the way between two workers.
    Edge,
    /// Two strangers that pair.
    Pairing,
}

/// Whom a listening device lets in.
pub struct Admission<'a> {
    /// Whether a key is pinned.
    pub allowed: &'a dyn Fn(&PublicKey) -> bool,
    /// Whether strangers may come to pair; they get nothing but [`Purpose::Pairing`].
    pub strangers: bool,
    /// The processes that have channels open here: a second process of one key is refused as a clone.
    pub present: Option<&'a Instances>,
    /// Whether this caller was ended in favour of a newer one, so that it can be told; none if that never happens.
    pub gave_way: Option<&'a dyn Fn() -> bool>,
}

/// An encrypted connection to one device whose key is proved.
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
    /// Calls a device whose key is known.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] where the device does not know our key, [`ChannelError::Unproven`] where it has not
    /// the pinned one, [`ChannelError::Version`], [`ChannelError::Cloned`], [`ChannelError::TimedOut`] after
    /// `timeout` in all, [`ChannelError::Io`] where nothing listens there.
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
        // The device that was called hears that its answer was understood: only then the caller is no recording.
        channel.sender.send(&[], deadline.left()?)?;
        Ok(channel)
    }

    /// Calls a device whose key is not known, to pair with it. The key it proves is [`Channel::peer`]; whose it is, the
    /// pairing shows.
    ///
    /// # Errors
    /// As of [`Channel::connect`]; [`ChannelError::Unproven`] also where nobody is pairing there.
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

    /// Asks a device whether it is there and knows this one; returns how long connection and handshake took.
    ///
    /// # Errors
    /// As of [`Channel::connect`]. The device that is asked sees a caller that leaves at once.
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

    /// Takes a caller whose key `allowed` knows.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] where the key is not allowed, [`ChannelError::Unproven`] where the caller is no ring
    /// device, [`ChannelError::Closed`] where it only asked whether this device is there; else as of
    /// [`Channel::connect`].
    pub fn accept(
        stream: TcpStream,
        identity: &Identity,
        allowed: &dyn Fn(&PublicKey) -> bool,
        timeout: Duration,
    ) -> Result<(Self, Purpose), ChannelError> {
        let admission = Admission { allowed, strangers: false, present: None, gave_way: None };
        Self::accept_by(stream, identity, &admission, timeout)
    }

    /// Takes a caller by these rules.
    ///
    /// # Errors
    /// As of [`Channel::accept`]; [`ChannelError::Cloned`] where a second process of one key calls,
    /// [`ChannelError::Busy`] if the call gave way to a newer one.
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
        // A first message can be a recording of an old one; who writes this record has the keys of today.
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
        let address = stream.peer_addr().map_err(sort)?;
        let (sender, receiver) = record::halves(stream, made.transport)?;
        Ok(Self { peer: made.peer, instance: made.instance, hash: made.hash, address, sender, receiver })
    }

    /// The key that the other side has proved.
    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// Which process of the other device this is.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// The handshake's hash: the same on both sides of one channel and on no other.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Where the other side is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The two directions, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// Connects, within a deadline.
fn call(addr: SocketAddr, deadline: &Deadline) -> Result<TcpStream, ChannelError> {
    let stream = TcpStream::connect_timeout(&addr, deadline.left()?).map_err(sort)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Ends a connection; that it may have ended before is no matter.
fn hang_up(stream: &TcpStream) {
    let _ended_before = stream.shutdown(Shutdown::Both);
}
