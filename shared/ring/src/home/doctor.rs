//! Explains why two devices of a ring do not see each other, and what to do about it.
//!
//! [`observe()`] reads the state folder and the interfaces, listens for announcements, and calls each
//! pinned device. [`diagnose`] judges only what was observed, so that a test can produce every finding.
//! Neither changes anything. Nothing here depends on the time of day.

mod observe;

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use crate::home::discovery::{FoundDevice, InterfaceAddress};
use crate::home::identity::{DeviceName, Fingerprint, PublicKey};
use crate::home::peers::{Membership, Role};
use crate::wire::channel::PROTOCOL_VERSION;

pub use observe::{ObserveOptions, observe};

/// How a device answered at one address.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeAnswer {
    /// It proved its key and knows ours.
    Well {
        /// How long connection and handshake took, in milliseconds.
        ms: f64,
    },
    /// No answer came.
    Silent,
    /// The device answers, but nothing listens on the port.
    PortClosed,
    /// There is no route to it from this device.
    NoRoute,
    /// It proved its key, but does not know ours.
    NotPinned,
    /// Something answers that does not have the pinned key.
    OtherKey,
    /// It uses another protocol version.
    Version(u16),
    /// It has a connection from another device with our key.
    Cloned,
    /// Another error, in the system's words.
    Failed(String),
}

/// What was observed of one pinned device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerSeen {
    /// Its name on this device.
    pub name: DeviceName,
    /// Its key.
    pub key: PublicKey,
    /// Its announcement, if one was heard.
    pub announced: Option<FoundDevice>,
    /// How it answered at each address.
    pub answers: Vec<(SocketAddr, ProbeAnswer)>,
}

/// What was observed of this device and its networks.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Observations {
    /// Why the state folder cannot be read.
    pub damaged: Vec<String>,
    /// This device's key and name.
    pub identity: Option<(PublicKey, DeviceName)>,
    /// Its ring.
    pub membership: Option<Membership>,
    /// Its addresses.
    pub links: Vec<InterfaceAddress>,
    /// Whether this device listened for announcements.
    pub listened: bool,
    /// Why no announcements could be received.
    pub multicast_error: Option<String>,
    /// Devices that announce themselves.
    pub heard: Vec<FoundDevice>,
    /// The pinned devices.
    pub peers: Vec<PeerSeen>,
}

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Unusual, but the ring may work.
    Odd,
    /// The ring does not work, or not with this device.
    Broken,
}

/// One finding.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// A file of the state folder cannot be used.
    Damaged(String),
    /// This device has never been in a ring.
    NoIdentity,
    /// This device belongs to no ring.
    NoRing,
    /// The ring has no other device.
    NoPeers(Role),
    /// No interface that leads to other devices is up.
    NoInterface {
        /// The interfaces that exist.
        found: Vec<String>,
    },
    /// Multicast DNS does not work here.
    MulticastFails(String),
    /// No announcement at all was heard.
    NothingHeard,
    /// Another device announces this device's key.
    Cloned {
        /// Its addresses.
        at: Vec<SocketAddr>,
    },
    /// No address of a device is known.
    NoAddress(DeviceName),
    /// A device announces nothing, though others do.
    NotAnnounced(DeviceName),
    /// A device does not answer.
    Silent(DeviceName, SocketAddr),
    /// Nothing listens at an address.
    PortClosed(DeviceName, SocketAddr),
    /// There is no route to an address.
    NoRoute(DeviceName, SocketAddr),
    /// The other device does not know this one.
    NotPinned(DeviceName),
    /// Something else answers at its address.
    OtherKey(DeviceName, SocketAddr, Fingerprint),
    /// The protocol versions differ.
    Versions {
        /// The other device.
        name: DeviceName,
        /// Its version.
        theirs: u16,
    },
    /// The other device has seen a second device with this device's key.
    ClonedThere(DeviceName),
    /// A call failed for another reason.
    Failed(DeviceName, SocketAddr, String),
    /// A device is as it should be.
    Reached {
        /// The device.
        name: DeviceName,
        /// Its address.
        at: SocketAddr,
        /// How long connection and handshake took, in milliseconds.
        ms: f64,
    },
}

impl Finding {
    /// Returns how serious it is.
    pub fn severity(&self) -> Severity {
        match self {
            Self::Reached { .. } => Severity::Fine,
            Self::NoPeers(_) | Self::MulticastFails(_) | Self::NothingHeard | Self::NotAnnounced(_) => {
                Severity::Odd
            }
            _ => Severity::Broken,
        }
    }

    /// Returns a name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Damaged(_) => "state_damaged",
            Self::NoIdentity => "no_identity",
            Self::NoRing => "no_ring",
            Self::NoPeers(_) => "no_peers",
            Self::NoInterface { .. } => "no_interface",
            Self::MulticastFails(_) => "multicast_fails",
            Self::NothingHeard => "nothing_heard",
            Self::Cloned { .. } | Self::ClonedThere(_) => "key_cloned",
            Self::NoAddress(_) => "no_address",
            Self::NotAnnounced(_) => "not_announced",
            Self::Silent(..) => "address_silent",
            Self::PortClosed(..) => "port_closed",
            Self::NoRoute(..) => "no_route",
            Self::NotPinned(_) => "key_not_pinned",
            Self::OtherKey(..) => "other_key",
            Self::Versions { .. } => "versions_differ",
            Self::Failed(..) => "call_failed",
            Self::Reached { .. } => "reached",
        }
    }

    /// Returns what to do about it; empty if nothing is wrong.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Damaged(_) => {
                "put the file back from a copy, or `baton ring leave --forget-key` and pair again"
            }
            Self::NoIdentity | Self::NoRing => {
                "`baton ring init` begins a ring here; `baton ring join CODE` joins the one that another began"
            }
            Self::NoPeers(Role::Head) => {
                "`baton ring init` shows a code; type it on the other device: `baton ring join CODE`"
            }
            Self::NoPeers(Role::Worker) => "pair again: `baton ring leave`, then `baton ring join CODE`",
            Self::NoInterface { .. } => {
                "connect this device to the home's network; `--interface NAME` uses one that is left out"
            }
            Self::MulticastFails(_) => {
                "close what else holds UDP port 5353, or name the head: `baton ring join CODE --head ADDRESS`"
            }
            Self::NothingHeard => {
                "if other devices run: let UDP port 5353 through the firewalls, turn off the access point's \
                 client isolation, leave the guest network; or name addresses"
            }
            Self::Cloned { .. } | Self::ClonedThere(_) => {
                "one state folder was copied: on the copy, `baton ring leave --forget-key`, then pair it"
            }
            Self::NoAddress(_) | Self::NotAnnounced(_) => {
                "start it there: `baton ring join` (a worker) or `baton ring init` (a head)"
            }
            Self::Silent(..) => {
                "is it on, awake and on this network? a firewall there may drop the port; a new address is learnt \
                 when it announces itself"
            }
            Self::PortClosed(..) => {
                "the device is there but the ring is not running on it, or on another port: start it there"
            }
            Self::NoRoute(..) => {
                "the devices are on different networks: connect both to one, or use a device that is on both"
            }
            Self::NotPinned(_) => {
                "it does not have this device's key (one of the two left, or its state is new): pair them again"
            }
            Self::OtherKey(..) => {
                "another device got this address, or that device has a new key: remove it \
                 (`baton ring leave --device NAME`) and pair again"
            }
            Self::Versions { .. } => "update the older program",
            Self::Failed(..) => "see the message",
            Self::Reached { .. } => "",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(what) => write!(f, "the state of this device cannot be used: {what}"),
            Self::NoIdentity => f.write_str("this device has no key yet"),
            Self::NoRing => f.write_str("this device belongs to no ring"),
            Self::NoPeers(_) => f.write_str("the ring has no other device"),
            Self::NoInterface { found } if found.is_empty() => {
                f.write_str("this device has no network interface but loopback")
            }
            Self::NoInterface { found } => {
                write!(f, "no interface to other devices is up (there are: {})", found.join(", "))
            }
            Self::MulticastFails(what) => write!(f, "multicast DNS does not work here: {what}"),
            Self::NothingHeard => {
                f.write_str("no device announces itself on these networks, or multicast does not pass")
            }
            Self::Cloned { at } => {
                let at: Vec<String> = at.iter().map(SocketAddr::to_string).collect();
                write!(f, "another device uses this device's key: {}", at.join(", "))
            }
            Self::NoAddress(name) => write!(f, "{name}: no address is known and none is announced"),
            Self::NotAnnounced(name) => write!(f, "{name} does not announce itself, though others do"),
            Self::Silent(name, at) => write!(f, "{name}: {at} does not answer"),
            Self::PortClosed(name, at) => write!(f, "{name}: nothing listens on {at}"),
            Self::NoRoute(name, at) => write!(f, "{name}: there is no route to {at} from here"),
            Self::NotPinned(name) => write!(f, "{name} does not know this device's key"),
            Self::OtherKey(name, at, key) => {
                write!(f, "{name}: what answers at {at} has not the pinned key {key}")
            }
            Self::Versions { name, theirs } => {
                write!(f, "{name} speaks ring protocol version {theirs}, this device {PROTOCOL_VERSION}")
            }
            Self::ClonedThere(name) => {
                write!(f, "{name} has a connection from another device with this device's key")
            }
            Self::Failed(name, at, what) => write!(f, "{name}: calling {at} failed: {what}"),
            Self::Reached { name, at, ms } => {
                write!(f, "{name} answers at {at} and both keys are pinned ({ms:.1} ms)")
            }
        }
    }
}

impl Serialize for Finding {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut fields = serializer.serialize_struct("Finding", 4)?;
        fields.serialize_field("kind", self.kind())?;
        fields.serialize_field("weight", &self.severity())?;
        fields.serialize_field("text", &self.to_string())?;
        fields.serialize_field("advice", self.advice())?;
        fields.end()
    }
}

/// Returns the findings, causes before their effects.
pub fn diagnose(seen: &Observations) -> Vec<Finding> {
    let mut findings: Vec<Finding> = seen.damaged.iter().cloned().map(Finding::Damaged).collect();
    match (&seen.identity, &seen.membership) {
        _ if !findings.is_empty() => {}
        (None, _) => findings.push(Finding::NoIdentity),
        (Some(_), None) => findings.push(Finding::NoRing),
        (Some(_), Some(place)) if seen.peers.is_empty() => findings.push(Finding::NoPeers(place.role)),
        _ => {}
    }
    findings.extend(of_network(seen));
    for peer in &seen.peers {
        findings.extend(of_peer(peer, seen));
    }
    findings
}

fn of_network(seen: &Observations) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !seen.links.iter().any(|link| link.used && link.up) {
        let outer = seen.links.iter().filter(|link| !link.address.is_loopback());
        let mut found: Vec<String> = outer.map(|link| link.interface.clone()).collect();
        found.sort();
        found.dedup();
        findings.push(Finding::NoInterface { found });
    }
    let own = |address: &SocketAddr| seen.links.iter().any(|link| link.address == address.ip());
    let key = seen.identity.as_ref().map(|(key, _)| key.fingerprint());
    // Other processes of this device also announce its key, with one of its own addresses.
    let cloned = |found: &&FoundDevice| Some(found.fingerprint) == key && !found.addresses.iter().any(own);
    let others = seen.heard.iter().filter(cloned).filter(|found| !found.addresses.is_empty());
    findings.extend(others.map(|found| Finding::Cloned { at: found.addresses.clone() }));
    if let Some(what) = &seen.multicast_error {
        findings.push(Finding::MulticastFails(what.clone()));
    } else if seen.listened && seen.heard.is_empty() && !seen.peers.is_empty() {
        findings.push(Finding::NothingHeard);
    }
    findings
}

fn of_peer(peer: &PeerSeen, seen: &Observations) -> Vec<Finding> {
    let name = || peer.name.clone();
    let mut findings = Vec::new();
    let well = peer.answers.iter().find_map(|(at, answer)| match answer {
        ProbeAnswer::Well { ms } => Some(Finding::Reached { name: name(), at: *at, ms: *ms }),
        _ => None,
    });
    if let Some(reached) = well {
        // Old addresses that no longer answer do not matter then.
        findings.insert(0, reached);
        return findings;
    }
    let announced = peer.announced.as_ref().map(|found| found.version);
    if let Some(theirs) = announced.filter(|theirs| *theirs != PROTOCOL_VERSION) {
        findings.push(Finding::Versions { name: name(), theirs });
        return findings;
    }
    if peer.answers.is_empty() {
        findings.push(Finding::NoAddress(name()));
    } else if announced.is_none() && !seen.heard.is_empty() {
        findings.push(Finding::NotAnnounced(name()));
    }
    findings.extend(peer.answers.iter().map(|(at, answer)| match answer {
        ProbeAnswer::Well { ms } => Finding::Reached { name: name(), at: *at, ms: *ms },
        ProbeAnswer::Silent => Finding::Silent(name(), *at),
        ProbeAnswer::PortClosed => Finding::PortClosed(name(), *at),
        ProbeAnswer::NoRoute => Finding::NoRoute(name(), *at),
        ProbeAnswer::NotPinned => Finding::NotPinned(name()),
        ProbeAnswer::OtherKey => Finding::OtherKey(name(), *at, peer.key.fingerprint()),
        ProbeAnswer::Version(theirs) => Finding::Versions { name: name(), theirs: *theirs },
        ProbeAnswer::Cloned => Finding::ClonedThere(name()),
        ProbeAnswer::Failed(what) => Finding::Failed(name(), *at, what.clone()),
    }));
    findings
}

#[cfg(test)]
mod tests;
