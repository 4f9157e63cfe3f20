//! A head that admits devices: listens, gives out codes, pairs, pins.
//!
//! Every caller has a thread and a deadline; few are listened to at once, and those that say nothing give way
//! ([`Callers`]). Pinned devices that call meanwhile are answered, so that `doctor` sees them; no more.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{CODE_LIFE, Code, Desk, PairingError, Profile, admit};
use crate::ring::callers::{Callers, Seat};
use crate::ring::channel::{Admission, Channel, ChannelError, Purpose};
use crate::ring::identity::{DeviceName, Identity, PublicKey, RingId};
use crate::ring::peers::Peers;
use crate::ring::state::{StateError, StateFolder};

/// How long a caller may take for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Addresses of which it is told that a caller there did not get as far as a code.
const TOLD_MAX: usize = 64;
/// Between two looks at the listener.
const PAUSE: Duration = Duration::from_millis(25);

/// Until when devices are admitted; without either, until it is stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostLimits {
    /// So many devices.
    pub devices: Option<usize>,
    /// So long.
    pub time: Option<Duration>,
}

/// What happens meanwhile.
#[derive(Debug)]
pub enum HostEvent {
    /// A code is out, in place of the one before.
    Code {
        /// The code, for the person at the screen.
        code: Code,
        /// How long it can be used.
        life: Duration,
    },
    /// A device has joined.
    Joined {
        /// What it is called here.
        name: DeviceName,
        /// Its key.
        key: PublicKey,
        /// Where it listens.
        address: SocketAddr,
    },
    /// A caller has not joined.
    Failed {
        /// Where it called from.
        from: SocketAddr,
        /// Why.
        error: PairingError,
    },
    /// Too many wrong codes: nobody is admitted any more.
    Locked,
}

/// Why nobody can be admitted.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The listener does not work.
    #[error("listen for devices: {0}")]
    Listen(#[from] std::io::Error),
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
}

/// A head while it admits.
pub struct Host<'a> {
    /// Who it is.
    pub identity: &'a Identity,
    /// Its ring.
    pub ring: RingId,
    /// Where it keeps what it pins.
    pub folder: &'a StateFolder,
    /// Until when.
    pub limits: HostLimits,
}

/// What its threads share.
struct Shared<'a> {
    host: &'a Host<'a>,
    desk: Desk,
    peers: Mutex<Peers>,
    begun: Instant,
    port: u16,
    /// Connections that are open, to be ended when the head stops.
    callers: Callers,
    /// Addresses of callers that did not get as far as a code, as far as that was told.
    told: Mutex<BTreeSet<IpAddr>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host<'_> {
    /// Admits devices until the limits are reached, `stop` is set, or there were too many wrong codes; returns how many
    /// joined.
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
            desk: Desk::default(),
            peers: Mutex::new(Peers::load(self.folder)?),
            begun: Instant::now(),
            port: listener.local_addr()?.port(),
            callers: Callers::default(),
            told: Mutex::default(),
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
                if over || full || shared.desk.locked() || stop.load(Ordering::Relaxed) {
                    break Ok(());
                }
                if let Err(err) = shared.renew_code(said) {
                    break Err(err.into());
                }
                match listener.accept() {
                    Ok((stream, from)) => match shared.callers.seat(&stream, from) {
                        Ok(seat) => {
                            let (shared, tell) = (&shared, tell.clone());
                            scope.spawn(move || shared.attend(&seat, stream, from, &tell));
                        }
                        Err(err) => tracing::warn!(%err, "a caller was not taken"),
                    },
                    Err(err) if err.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                    // Of a caller that is gone again, or for want of file handles: both pass.
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
        if shared.desk.locked() {
            said(HostEvent::Locked);
        }
        ended.map(|()| joined)
    }
}

/// Tells what has happened; returns how many devices joined.
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
        if self.desk.wants_code(now) {
            let code = Code::random()?;
            // Between the question and the offer a caller may have come: then the next look offers.
            if self.desk.offer(code.clone(), now).is_ok() {
                said(HostEvent::Code { code, life: CODE_LIFE });
            }
        }
        Ok(())
    }

    fn attend(&self, seat: &Seat, stream: TcpStream, from: SocketAddr, tell: &mpsc::Sender<HostEvent>) {
        let event = match self.pair(seat, stream) {
            Ok(event) => event,
            Err(error) => self.is_news(from.ip(), &error).then_some(HostEvent::Failed { from, error }),
        };
        if let Some(event) = event {
            // Nobody listens any more once the head has stopped.
            let _stopped = tell.send(event);
        }
    }

    /// Whether a person should hear of this: who connects again and again and says nothing of use is told of once.
    fn is_news(&self, from: IpAddr, error: &PairingError) -> bool {
        if !matches!(error, PairingError::Channel(_)) {
            return true;
        }
        let mut told = locked(&self.told);
        told.len() < TOLD_MAX && told.insert(from)
    }

    /// Pairs with a caller; none where it came for something else.
    fn pair(&self, seat: &Seat, stream: TcpStream) -> Result<Option<HostEvent>, PairingError> {
        let allowed = |key: &PublicKey| locked(&self.peers).knows(key);
        let gave_way = || seat.gave_way();
        let admission =
            Admission { allowed: &allowed, strangers: true, present: None, gave_way: Some(&gave_way) };
        let (channel, purpose) = match Channel::accept_by(stream, self.host.identity, &admission, HANDSHAKE) {
            Ok(taken) => taken,
            // Somebody that only looked.
            Err(ChannelError::Closed) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        if purpose != Purpose::Pairing {
            return Ok(None);
        }
        let own = Profile { name: self.host.identity.name().clone(), port: self.port, ring: self.host.ring };
        let (key, caller) = (*channel.peer(), channel.address());
        let mut kept = None;
        let mut pin = |key: &PublicKey, profile: &Profile| {
            let address = SocketAddr::new(caller.ip(), profile.port);
            let mut peers = locked(&self.peers);
            let mut changed = peers.clone();
            let name = changed.pin(*key, &profile.name, address)?;
            changed.save(self.host.folder)?;
            *peers = changed;
            kept = Some((name, address));
            Ok(())
        };
        let now = self.begun.elapsed();
        let paired = admit(channel, self.host.identity, &self.desk, now, &own, &mut pin);
        match (kept, paired) {
            // Pinned is joined, even where the last word of thanks was lost.
            (Some((name, address)), _) => Ok(Some(HostEvent::Joined { name, key, address })),
            (None, Err(PairingError::Channel(ChannelError::Closed))) if seat.gave_way() => {
                Err(ChannelError::Busy.into())
            }
            (None, Err(err)) => Err(err),
            (None, Ok(_)) => Ok(None),
        }
    }
}
