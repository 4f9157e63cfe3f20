//! A head that admits devices: it listens, gives out codes, pairs, and pins keys.
//!
//! Every caller has a thread and a deadline. Few callers are served at once, and those that send nothing
//! are ended in favour of others ([`Callers`]). Pinned devices that call meanwhile are only answered, so
//! that `doctor` sees them.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{CODE_LIFE, Code, PairingCodes, PairingError, PairingInfo, admit};
use crate::home::identity::{DeviceName, Identity, PublicKey, RingId};
use crate::home::peers::Peers;
use crate::home::state::{StateError, StateFolder};
use crate::locked;
use crate::wire::callers::{CallerSlot, Callers};
use crate::wire::channel::{Admission, Channel, ChannelError, Purpose};

/// How long a caller may take for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most addresses for which it is reported that a caller failed before it used a code.
const REPORTED_MAX: usize = 64;
/// Wait between two checks of the listener.
const PAUSE: Duration = Duration::from_millis(25);

/// Until when devices are admitted; without limits, until the head is stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostLimits {
    /// Number of devices.
    pub devices: Option<usize>,
    /// Time.
    pub time: Option<Duration>,
}

/// What happens meanwhile.
#[derive(Debug)]
pub enum HostEvent {
    /// There is a new code, in place of the earlier one.
    Code {
        /// The code, for the person at the screen.
        code: Code,
        /// How long it can be used.
        life: Duration,
    },
    /// A device has joined.
    Joined {
        /// Its name on this device.
        name: DeviceName,
        /// Its key.
        key: PublicKey,
        /// The address on which it listens.
        address: SocketAddr,
    },
    /// A caller has not joined.
    Failed {
        /// The address that it called from.
        from: SocketAddr,
        /// The reason.
        error: PairingError,
    },
    /// There were too many wrong codes: no device is admitted any more.
    Locked,
}

/// Why no device can be admitted.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The listener does not work.
    #[error("listen for devices: {0}")]
    Listen(#[from] std::io::Error),
    /// An error of the state folder.
    #[error(transparent)]
    State(#[from] StateError),
}

/// A head that admits devices.
pub struct Host<'a> {
    /// Its identity.
    pub identity: &'a Identity,
    /// Its ring.
    pub ring: RingId,
    /// Where it stores the keys that it pins.
    pub folder: &'a StateFolder,
    /// Until when it admits devices.
    pub limits: HostLimits,
}

/// What its threads share.
struct Shared<'a> {
    host: &'a Host<'a>,
    codes: PairingCodes,
    peers: Mutex<Peers>,
    begun: Instant,
    port: u16,
    /// Connections that are open, to be ended when the head stops.
    callers: Callers,
    /// Addresses of callers that failed before they used a code, as far as that was reported.
    reported: Mutex<BTreeSet<IpAddr>>,
}

impl Host<'_> {
    /// Admits devices until the limits are reached, `stop` is set, or there were too many wrong codes.
    /// Returns how many joined.
    ///
    /// # Errors
    /// [`HostError`]; what a caller does wrong is an event.
    pub fn run(
        &self,
        listener: &TcpListener,
        stop: &AtomicBool,
        said: &mut dyn FnMut(HostEvent),
    ) -> Result<usize, HostError> {
        listener.set_nonblocking(true)?;
        let shared = Shared {
            host: self,
            codes: PairingCodes::default(),
            peers: Mutex::new(Peers::load(self.folder)?),
            begun: Instant::now(),
            port: listener.local_addr()?.port(),
            callers: Callers::default(),
            reported: Mutex::default(),
        };
        for address in locked(&shared.peers).iter().flat_map(|peer| &peer.addresses) {
            shared.callers.met(address.ip());
        }
        let (tell, events) = mpsc::channel();
        let mut joined = 0;
        let ended = std::thread::scope(|scope| {
            let ended = loop {
                joined += pass_on(&events, said);
                let over = self.limits.time.is_some_and(|time| shared.begun.elapsed() >= time);
                let full = self.limits.devices.is_some_and(|devices| joined >= devices);
                if over || full || shared.codes.locked() || stop.load(Ordering::Relaxed) {
                    break Ok(());
                }
                if let Err(err) = shared.renew_code(said) {
                    break Err(err.into());
                }
                match listener.accept() {
                    Ok((stream, from)) => match shared.callers.take_slot(&stream, from) {
                        Ok(slot) => {
                            let (shared, tell) = (&shared, tell.clone());
                            scope.spawn(move || shared.attend(&slot, stream, from, &tell));
                        }
                        Err(err) => tracing::warn!(%err, "a caller was not taken"),
                    },
                    Err(err) if err.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                    // The caller is gone again, or file handles ran out: both pass.
                    Err(err) => {
                        tracing::warn!(%err, "a caller was not taken");
                        std::thread::sleep(PAUSE);
                    }
                }
            };
            shared.callers.end_all();
            ended
        });
        joined += pass_on(&events, said);
        if shared.codes.locked() {
            said(HostEvent::Locked);
        }
        ended.map(|()| joined)
    }
}

/// Reports what has happened; returns how many devices joined.
fn pass_on(events: &mpsc::Receiver<HostEvent>, said: &mut dyn FnMut(HostEvent)) -> usize {
    let mut joined = 0;
    for event in events.try_iter() {
        joined += usize::from(matches!(event, HostEvent::Joined { .. }));
        said(event);
    }
    joined
}

impl Shared<'_> {
    fn renew_code(&self, said: &mut dyn FnMut(HostEvent)) -> Result<(), StateError> {
        let now = self.begun.elapsed();
        if self.codes.wants_code(now) {
            let code = Code::random()?;
            // A caller may have come between the check and the offer; then the next pass offers a code.
            if self.codes.offer(code.clone(), now).is_ok() {
                said(HostEvent::Code { code, life: CODE_LIFE });
            }
        }
        Ok(())
    }

    fn attend(&self, slot: &CallerSlot, stream: TcpStream, from: SocketAddr, tell: &mpsc::Sender<HostEvent>) {
        let event = match self.pair(slot, stream) {
            Ok(event) => event,
            Err(error) => self.is_news(from.ip(), &error).then_some(HostEvent::Failed { from, error }),
        };
        if let Some(event) = event {
            // Nobody listens any more after the head has stopped.
            let _stopped = tell.send(event);
        }
    }

    /// Returns whether a person should be told. A caller that connects again and again without a valid
    /// message is reported once.
    fn is_news(&self, from: IpAddr, error: &PairingError) -> bool {
        if !matches!(error, PairingError::Channel(_)) {
            return true;
        }
        let mut reported = locked(&self.reported);
        reported.len() < REPORTED_MAX && reported.insert(from)
    }

    /// Pairs with a caller. Returns `None` if the caller wants something else.
    fn pair(&self, slot: &CallerSlot, stream: TcpStream) -> Result<Option<HostEvent>, PairingError> {
        let allowed = |key: &PublicKey| locked(&self.peers).knows(key);
        let evicted = || slot.evicted();
        let admission =
            Admission { allowed: &allowed, strangers: true, present: None, evicted: Some(&evicted) };
        let (channel, purpose) = match Channel::accept_by(stream, self.host.identity, &admission, HANDSHAKE) {
            Ok(taken) => taken,
            // The caller only asked whether the device is reachable.
            Err(ChannelError::Closed) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        if purpose != Purpose::Pairing {
            return Ok(None);
        }
        let own =
            PairingInfo { name: self.host.identity.name().clone(), port: self.port, ring: self.host.ring };
        let (key, caller) = (*channel.peer(), channel.address());
        let mut kept = None;
        let mut pin = |key: &PublicKey, profile: &PairingInfo| {
            let address = SocketAddr::new(caller.ip(), profile.port);
            let mut peers = locked(&self.peers);
            let mut changed = peers.clone();
            let mut name = changed.pin(*key, &profile.name, address)?;
            if changed.keep_apart(self.host.identity.name())
                && let Some(peer) = changed.by_key(key)
            {
                name = peer.name.clone();
            }
            changed.save(self.host.folder)?;
            *peers = changed;
            kept = Some((name, address));
            Ok(())
        };
        let now = self.begun.elapsed();
        let paired = admit(channel, self.host.identity, &self.codes, now, &own, &mut pin);
        match (kept, paired) {
            // A device whose key is pinned has joined, even if the last message was lost.
            (Some((name, address)), _) => Ok(Some(HostEvent::Joined { name, key, address })),
            (None, Err(PairingError::Channel(ChannelError::Closed))) if slot.evicted() => {
                Err(ChannelError::Busy.into())
            }
            (None, Err(err)) => Err(err),
            (None, Ok(_)) => Ok(None),
        }
    }
}
