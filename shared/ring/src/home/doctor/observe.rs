//! Observes this device, its networks and its peers, for [`super::diagnose`].

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use super::{Observations, PeerSeen, ProbeAnswer};
use crate::home::discovery::{Discovery, DiscoveryError, FoundDevice, Interfaces, interface_addresses};
use crate::home::identity::Identity;
use crate::home::peers::{Membership, Peer, Peers};
use crate::home::state::{StateError, StateFolder};
use crate::wire::channel::{Channel, ChannelError};

/// Most addresses of one device that are called.
const CALLS_MAX: usize = 8;

/// How to observe.
#[derive(Debug, Clone)]
pub struct ObserveOptions {
    /// The interfaces to use.
    pub interfaces: Interfaces,
    /// How long to listen for announcements; 0 means not at all.
    pub listen: Duration,
    /// How long a device may take to answer.
    pub answer: Duration,
}

/// Observes this device. An error is part of the result, so that there is always something to judge.
pub fn observe(folder: &StateFolder, look: &ObserveOptions) -> Observations {
    let mut seen = Observations::default();
    let identity = kept(Identity::load(folder), &mut seen.damaged).flatten();
    seen.identity = identity.as_ref().map(|identity| (*identity.public(), identity.name().clone()));
    seen.membership = kept(Membership::load(folder), &mut seen.damaged).flatten();
    let peers = kept(Peers::load(folder), &mut seen.damaged).unwrap_or_default();
    seen.links = interface_addresses(&look.interfaces).unwrap_or_default();
    seen.listened = !look.listen.is_zero();
    if seen.listened {
        match listen(look) {
            Ok((heard, error)) => (seen.heard, seen.multicast_error) = (heard, error),
            Err(err) => seen.multicast_error = Some(err.to_string()),
        }
    }
    let Some(identity) = identity else { return seen };
    let heard = &seen.heard;
    seen.peers = std::thread::scope(|scope| {
        // All at once, because a device that is off would otherwise delay the others.
        let calls: Vec<_> =
            peers.iter().map(|peer| scope.spawn(|| look_at(peer, heard, &identity, look))).collect();
        calls.into_iter().map(|call| call.join().expect("a call panics on nothing from outside")).collect()
    });
    seen
}

fn kept<T>(read: Result<T, StateError>, damaged: &mut Vec<String>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(err) => {
            let cause =
                std::error::Error::source(&err).map_or_else(String::new, |cause| format!(": {cause}"));
            damaged.push(format!("{err}{cause}"));
            None
        }
    }
}

/// Returns the devices that announce themselves. If there is none, also returns the responder's first
/// error.
fn listen(look: &ObserveOptions) -> Result<(Vec<FoundDevice>, Option<String>), DiscoveryError> {
    let discovery = Discovery::open(look.interfaces.clone())?;
    let responder_errors = discovery.responder_errors()?;
    let heard = discovery.search(look.listen, &mut |_| false)?;
    let error = if heard.is_empty() { responder_errors.take().into_iter().next() } else { None };
    Ok((heard, error))
}

fn look_at(peer: &Peer, heard: &[FoundDevice], identity: &Identity, look: &ObserveOptions) -> PeerSeen {
    let announced = heard.iter().find(|found| found.fingerprint == peer.key.fingerprint()).cloned();
    let mut addresses = announced.as_ref().map_or_else(Vec::new, |found| found.addresses.clone());
    addresses.extend(
        peer.addresses.iter().filter(|known| !addresses.contains(known)).copied().collect::<Vec<_>>(),
    );
    addresses.truncate(CALLS_MAX);
    let mut answers = Vec::new();
    for address in addresses {
        let answer = ask(address, peer, identity, look.answer);
        let well = matches!(answer, ProbeAnswer::Well { .. });
        answers.push((address, answer));
        if well {
            break;
        }
    }
    PeerSeen { name: peer.name.clone(), key: peer.key, announced, answers }
}

fn ask(address: SocketAddr, peer: &Peer, identity: &Identity, timeout: Duration) -> ProbeAnswer {
    match Channel::probe(address, identity, &peer.key, timeout) {
        Ok(took) => ProbeAnswer::Well { ms: took.as_secs_f64() * 1e3 },
        Err(err) => of_error(&err),
    }
}

/// Maps the error of a call to an answer of the device that was called.
pub(super) fn of_error(err: &ChannelError) -> ProbeAnswer {
    match err {
        ChannelError::TimedOut => ProbeAnswer::Silent,
        ChannelError::Refused => ProbeAnswer::NotPinned,
        ChannelError::Unproven | ChannelError::Closed | ChannelError::Forged => ProbeAnswer::OtherKey,
        ChannelError::Version { theirs, .. } => ProbeAnswer::Version(*theirs),
        ChannelError::Cloned => ProbeAnswer::Cloned,
        ChannelError::Io(err) => match err.kind() {
            ErrorKind::ConnectionRefused => ProbeAnswer::PortClosed,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
                ProbeAnswer::NoRoute
            }
            _ => ProbeAnswer::Failed(err.to_string()),
        },
        other => ProbeAnswer::Failed(other.to_string()),
    }
}
