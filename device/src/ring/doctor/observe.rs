//! Looking at this device, its networks and its peers, for [`super::diagnose`].

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use super::{Answer, Observations, PeerSeen};
use crate::ring::channel::{Channel, ChannelError};
use crate::ring::discovery::{Discovery, DiscoveryError, Found, Interfaces, links};
use crate::ring::identity::Identity;
use crate::ring::peers::{Membership, Peer, Peers};
use crate::ring::state::{StateError, StateFolder};

/// Addresses of one device that are called.
const CALLS_MAX: usize = 8;

/// How to look.
#[derive(Debug, Clone)]
pub struct Look {
    /// Where to look.
    pub interfaces: Interfaces,
    /// How long to listen for announcements; none at 0.
    pub listen: Duration,
    /// How long a device may take to answer.
    pub answer: Duration,
}

/// Looks. What cannot be seen is part of what is seen, so that there is always something to judge.
pub fn observe(folder: &StateFolder, look: &Look) -> Observations {
    let mut seen = Observations::default();
    let identity = kept(Identity::load(folder), &mut seen.damaged).flatten();
    seen.identity = identity.as_ref().map(|identity| (*identity.public(), identity.name().clone()));
    seen.membership = kept(Membership::load(folder), &mut seen.damaged).flatten();
    let peers = kept(Peers::load(folder), &mut seen.damaged).unwrap_or_default();
    seen.links = links(&look.interfaces).unwrap_or_default();
    seen.listened = !look.listen.is_zero();
    if seen.listened {
        match listen(look) {
            Ok((heard, complaint)) => (seen.heard, seen.deaf) = (heard, complaint),
            Err(err) => seen.deaf = Some(err.to_string()),
        }
    }
    let Some(identity) = identity else { return seen };
    let heard = &seen.heard;
    seen.peers = std::thread::scope(|scope| {
        // All at once: a device that is off would otherwise keep the others waiting.
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

/// Devices that announce themselves; why there may be more, where nothing was heard.
fn listen(look: &Look) -> Result<(Vec<Found>, Option<String>), DiscoveryError> {
    let discovery = Discovery::open(look.interfaces.clone())?;
    let complaints = discovery.complaints()?;
    let heard = discovery.search(look.listen, &mut |_| false)?;
    let complaint = if heard.is_empty() { complaints.take().into_iter().next() } else { None };
    Ok((heard, complaint))
}

fn look_at(peer: &Peer, heard: &[Found], identity: &Identity, look: &Look) -> PeerSeen {
    let announced = heard.iter().find(|found| found.fingerprint == peer.key.fingerprint()).cloned();
    let mut addresses = announced.as_ref().map_or_else(Vec::new, |found| found.addresses.clone());
    addresses.extend(
        peer.addresses.iter().filter(|known| !addresses.contains(known)).copied().collect::<Vec<_>>(),
    );
    addresses.truncate(CALLS_MAX);
    let mut answers = Vec::new();
    for address in addresses {
        let answer = ask(address, peer, identity, look.answer);
        let well = matches!(answer, Answer::Well { .. });
        answers.push((address, answer));
        if well {
            break;
        }
    }
    PeerSeen { name: peer.name.clone(), key: peer.key, announced, answers }
}

fn ask(address: SocketAddr, peer: &Peer, identity: &Identity, timeout: Duration) -> Answer {
    match Channel::probe(address, identity, &peer.key, timeout) {
        Ok(took) => Answer::Well { ms: took.as_secs_f64() * 1e3 },
        Err(err) => of_error(&err),
    }
}

/// What a failed call says of the device that was called.
pub(super) fn of_error(err: &ChannelError) -> Answer {
    match err {
        ChannelError::TimedOut => Answer::Silent,
        ChannelError::Refused => Answer::NotPinned,
        ChannelError::Unproven | ChannelError::Closed | ChannelError::Forged => Answer::OtherKey,
        ChannelError::Version { theirs, .. } => Answer::Version(*theirs),
        ChannelError::Cloned => Answer::Cloned,
        ChannelError::Io(err) => match err.kind() {
            ErrorKind::ConnectionRefused => Answer::PortClosed,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
                Answer::NoRoute
            }
            _ => Answer::Failed(err.to_string()),
        },
        other => Answer::Failed(other.to_string()),
    }
}
