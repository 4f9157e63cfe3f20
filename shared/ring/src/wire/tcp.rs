//! The home's network: links are encrypted channels over TCP between devices that know each other's keys.
//!
//! One thread accepts connections; each handshake has its own thread. Their number is bounded, and callers
//! that send nothing are ended in favour of others ([`Callers`]). Bytes of a stranger never become a frame:
//! the channel ends before.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::core::{DeviceId, Node};
use crate::home::identity::{Identity, PublicKey};
use crate::locked;
use crate::wire::callers::{CallerSlot, Callers};
use crate::wire::channel::{self, Admission, Channel, ChannelError};
use crate::wire::link::{FrameReceiver, FrameSender, Link, LinkError, Network, Purpose};

/// Links that may wait to be accepted.
const QUEUE: usize = 16;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Wait between two checks of the listener.
const SLICE: Duration = Duration::from_millis(10);

/// Returns whether a key belongs to a paired device.
pub type Paired = Box<dyn Fn(&PublicKey) -> bool + Send + Sync>;

/// What the threads share.
struct Shared {
    identity: Identity,
    paired: Paired,
    /// Devices of the present ring that are not paired with this one: they may open links of the ring, and
    /// for weights.
    guests: Mutex<Vec<DeviceId>>,
    /// The addresses from which devices connected.
    seen: Mutex<BTreeMap<DeviceId, IpAddr>>,
    /// Callers whose handshake is not finished.
    callers: Callers,
    ended: AtomicBool,
}

/// This device on the home's network. Dropping it stops accepting connections; open links stay.
pub struct HomeNetwork {
    shared: Arc<Shared>,
    own: Node,
    links: Mutex<Receiver<(Link, Purpose)>>,
}

impl From<ChannelError> for LinkError {
    fn from(err: ChannelError) -> Self {
        match err {
            ChannelError::TimedOut => Self::TimedOut,
            ChannelError::Closed => Self::Closed,
            ChannelError::Refused => Self::Refused,
            err => Self::Network(Box::new(err)),
        }
    }
}

impl FrameSender for channel::Sender {
    fn send(&mut self, frame: &[u8], timeout: Duration) -> Result<(), LinkError> {
        Ok(channel::Sender::send(self, frame, timeout)?)
    }
}

impl FrameReceiver for channel::Receiver {
    fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError> {
        Ok(channel::Receiver::receive(self, timeout)?)
    }
}

/// Ends the channel together with its link, also for a thread that waits on the other half.
struct Closing<T: Close>(T);

trait Close {
    fn close(&mut self);
}

impl Close for channel::Sender {
    fn close(&mut self) {
        channel::Sender::close(self);
    }
}

impl Close for channel::Receiver {
    fn close(&mut self) {
        channel::Receiver::close(self);
    }
}

impl<T: Close> Drop for Closing<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T: Close + FrameSender> FrameSender for Closing<T> {
    fn send(&mut self, frame: &[u8], timeout: Duration) -> Result<(), LinkError> {
        self.0.send(frame, timeout)
    }
}

impl<T: Close + FrameReceiver> FrameReceiver for Closing<T> {
    fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError> {
        self.0.receive(timeout)
    }
}

/// A ring link is used in one direction: its sender drops the receiving half, and the channel must not end
/// with that.
fn link(channel: Channel, purpose: Purpose, called: bool) -> Link {
    let peer = DeviceId(channel.peer().0);
    let (sender, receiver) = channel.split();
    let (sender, receiver): (Box<dyn FrameSender>, Box<dyn FrameReceiver>) = match (purpose, called) {
        (Purpose::Control | Purpose::Weights | Purpose::Edge, _) => {
            (Box::new(Closing(sender)), Box::new(Closing(receiver)))
        }
        (Purpose::Ring, true) => (Box::new(Closing(sender)), Box::new(receiver)),
        (Purpose::Ring, false) => (Box::new(sender), Box::new(Closing(receiver))),
    };
    Link { peer, sender, receiver }
}

impl HomeNetwork {
    /// Accepts connections at `listener` from paired devices and from guests of the present ring.
    ///
    /// # Errors
    /// The system's error, if the listener does not work or a thread cannot be started.
    pub fn open(identity: Identity, listener: TcpListener, paired: Paired) -> std::io::Result<Self> {
        let own = Node { address: listener.local_addr()?.to_string(), device: DeviceId(identity.public().0) };
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            identity,
            paired,
            guests: Mutex::default(),
            seen: Mutex::default(),
            callers: Callers::default(),
            ended: AtomicBool::new(false),
        });
        let (sender, links) = sync_channel(QUEUE);
        let watching = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("baton-ring-listen".into())
            .spawn(move || listen(&watching, &listener, &sender))?;
        Ok(Self { shared, own, links: Mutex::new(links) })
    }

    /// Records that known devices were met at these addresses, so that strangers at other addresses cannot
    /// keep them out.
    #[must_use]
    pub fn expecting(self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        addresses.into_iter().for_each(|address| self.shared.callers.met(address));
        self
    }

    /// Gives `address` to other devices, if it differs from the one listened on.
    #[must_use]
    pub fn reached_at(mut self, address: SocketAddr) -> Self {
        self.own.address = address.to_string();
        self
    }
}

impl Drop for HomeNetwork {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
    }
}

fn listen(shared: &Arc<Shared>, listener: &TcpListener, links: &SyncSender<(Link, Purpose)>) {
    while !shared.ended.load(Ordering::Acquire) {
        let Ok((stream, from)) = listener.accept() else {
            // There is no connection, or the system lacks some resource now.
            std::thread::sleep(SLICE);
            continue;
        };
        let Ok(slot) = shared.callers.take_slot(&stream, from) else { continue };
        let (own, links) = (Arc::clone(shared), links.clone());
        let greeted = std::thread::Builder::new().name("baton-ring-greet".into()).spawn(move || {
            if let Err(err) = greet(&own, slot, stream, &links) {
                tracing::debug!(%from, %err, "a connection was not taken");
            }
        });
        if let Err(err) = greeted {
            tracing::warn!(%err, "a connection gets no thread");
        }
    }
}

fn greet(
    shared: &Shared,
    slot: CallerSlot,
    stream: TcpStream,
    links: &SyncSender<(Link, Purpose)>,
) -> Result<(), ChannelError> {
    let allowed = |key: &PublicKey| (shared.paired)(key) || locked(&shared.guests).contains(&DeviceId(key.0));
    let evicted = || slot.evicted();
    let admission = Admission { allowed: &allowed, strangers: false, present: None, evicted: Some(&evicted) };
    let (channel, purpose) = Channel::accept_by(stream, &shared.identity, &admission, HANDSHAKE)?;
    // The caller has proved its key, so its slot is free for others.
    drop(slot);
    shared.callers.met(channel.address().ip());
    let purpose = match purpose {
        channel::Purpose::Control if (shared.paired)(channel.peer()) => Purpose::Control,
        channel::Purpose::Ring => Purpose::Ring,
        channel::Purpose::Weights => Purpose::Weights,
        channel::Purpose::Edge => Purpose::Edge,
        channel::Purpose::Control | channel::Purpose::Pairing => return Err(ChannelError::Refused),
    };
    locked(&shared.seen).insert(DeviceId(channel.peer().0), channel.address().ip());
    // If too many links wait already, this one is dropped, and the device that opened it sees it close.
    let _full = links.try_send((link(channel, purpose, false), purpose));
    Ok(())
}

impl Network for HomeNetwork {
    fn own(&self) -> Node {
        self.own.clone()
    }

    fn allow(&self, keys: &[DeviceId]) {
        *locked(&self.shared.guests) = keys.to_vec();
    }

    fn connect(&self, to: &Node, purpose: Purpose, timeout: Duration) -> Result<Link, LinkError> {
        let failed = |err: std::io::Error| LinkError::Network(Box::new(err));
        let address: Option<SocketAddr> = to.address.to_socket_addrs().map_err(failed)?.next();
        let mut address = address.ok_or(LinkError::Refused)?;
        if address.ip().is_unspecified() {
            // A device that listens on all interfaces does not know which address others use.
            address.set_ip(*locked(&self.shared.seen).get(&to.device).ok_or(LinkError::Refused)?);
        }
        let meant = match purpose {
            Purpose::Control => channel::Purpose::Control,
            Purpose::Ring => channel::Purpose::Ring,
            Purpose::Weights => channel::Purpose::Weights,
            Purpose::Edge => channel::Purpose::Edge,
        };
        let channel =
            Channel::connect(address, &self.shared.identity, &PublicKey(to.device.0), meant, timeout)?;
        Ok(link(channel, purpose, true))
    }

    fn accept(&self, timeout: Duration) -> Result<(Link, Purpose), LinkError> {
        match locked(&self.links).recv_timeout(timeout) {
            Ok(link) => Ok(link),
            Err(RecvTimeoutError::Timeout) => Err(LinkError::TimedOut),
            Err(RecvTimeoutError::Disconnected) => Err(LinkError::Closed),
        }
    }
}
