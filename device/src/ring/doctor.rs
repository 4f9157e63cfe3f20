//! Why two devices of a ring do not see each other, in words that say what to do.
//!
//! [`observe()`] looks: at the state folder, the interfaces, what is announced, and how each pinned device answers when
//! it is called. [`diagnose`] judges what was seen, and nothing else, so that every finding can be had in a test.
//! Nothing is changed by either. Clocks play no part: nothing here depends on the time of day.

mod observe;

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use super::channel::PROTOCOL_VERSION;
use super::discovery::{Found, Link};
use super::identity::{DeviceName, Fingerprint, PublicKey};
use super::peers::{Membership, Role};

pub use observe::{Look, observe};

/// How a device answered at one address.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It proved its key and knows ours.
    Well {
        /// How long connection and handshake took.
        ms: f64,
    },
    /// Nothing came back.
    Silent,
    /// The device answers, but nothing listens on the port.
    PortClosed,
    /// There is no way there from this device.
    NoRoute,
    /// It proved its key and does not know ours.
    NotPinned,
    /// What answers has not the pinned key.
    OtherKey,
    /// It speaks another version.
    Version(u16),
    /// It has seen another device with our key.
    Cloned,
    /// Something else, in the system's words.
    Failed(String),
}

/// What was seen of one pinned device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerSeen {
    /// What it is called here.
    pub name: DeviceName,
    /// Its key.
    pub key: PublicKey,
    /// Its announcement, where one was heard.
    pub announced: Option<Found>,
    /// How it answered, address by address.
    pub answers: Vec<(SocketAddr, Answer)>,
}

/// What was seen of this device and its networks.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Observations {
    /// What keeps the state folder from being read.
    pub damaged: Vec<String>,
    /// This device's key and name.
    pub identity: Option<(PublicKey, DeviceName)>,
    /// Its ring.
    pub membership: Option<Membership>,
    /// Its addresses.
    pub links: Vec<Link>,
    /// Whether announcements were listened for.
    pub listened: bool,
    /// Why nothing could be heard of announcements.
    pub deaf: Option<String>,
    /// Devices that announce themselves.
    pub heard: Vec<Found>,
    /// The pinned devices.
    pub peers: Vec<PeerSeen>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// As it should be.
    Fine,
    /// Odd; the ring may work.
    Odd,
    /// The ring does not work, or not with this device.
    Broken,
}

/// One thing found.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// A file of the state folder cannot be used.
    Damaged(String),
    /// This device never was in a ring.
    NoIdentity,
    /// This device belongs to no ring.
    NoRing,
    /// The ring has no other device.
    NoPeers(Role),
    /// No interface that leads to other devices is up.
    NoInterface {
        /// Those that there are.
        found: Vec<String>,
    },
    /// Multicast DNS does not work here.
    Deaf(String),
    /// No announcement at all was heard.
    NothingHeard,
    /// Another device announces this device's key.
    Cloned {
        /// Where it is.
        at: Vec<SocketAddr>,
    },
    /// No address of a device is known.
    NoAddress(DeviceName),
    /// A device announces nothing, though others do.
    NotAnnounced(DeviceName),
    /// A device does not answer.
    Silent(DeviceName, SocketAddr),
    /// Nothing listens.
    PortClosed(DeviceName, SocketAddr),
    /// There is no way to an address.
    NoRoute(DeviceName, SocketAddr),
    /// The other device does not know this one.
    NotPinned(DeviceName),
    /// Something else answers at its address.
    OtherKey(DeviceName, SocketAddr, Fingerprint),
    /// Versions differ.
    Versions {
        /// The other device.
        name: DeviceName,
        /// What it speaks.
        theirs: u16,
    },
    /// The other device has seen a second one with this device's key.
    ClonedThere(DeviceName),
    /// A call failed otherwise.
    Failed(DeviceName, SocketAddr, String),
    /// A device is as it should be.
    Reached {
        /// The device.
        name: DeviceName,
        /// Where.
        at: SocketAddr,
        /// How long connection and handshake took.
        ms: f64,
    },
}

impl Finding {
    /// How bad it is.
    pub fn weight(&self) -> Weight {
        match self {
            Self::Reached { .. } => Weight::Fine,
            Self::NoPeers(_) | Self::Deaf(_) | Self::NothingHeard | Self::NotAnnounced(_) => Weight::Odd,
            _ => Weight::Broken,
        }
    }

    /// A name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Damaged(_) => "state_damaged",
            Self::NoIdentity => "no_identity",
            Self::NoRing => "no_ring",
            Self::NoPeers(_) => "no_peers",
            Self::NoInterface { .. } => "no_interface",
            Self::Deaf(_) => "multicast_fails",
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

    /// What to do about it; nothing where all is well.
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
            Self::Deaf(_) => {
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
            Self::Deaf(what) => write!(f, "multicast DNS does not work here: {what}"),
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
            Self::NoRoute(name, at) => write!(f, "{name}: there is no way to {at} from here"),
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
        fields.serialize_field("weight", &self.weight())?;
        fields.serialize_field("text", &self.to_string())?;
        fields.serialize_field("advice", self.advice())?;
        fields.end()
    }
}

/// What follows from what was seen: causes before their effects.
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
    // This device's own processes announce themselves with one of its own addresses.
    let cloned = |found: &&Found| Some(found.fingerprint) == key && !found.addresses.iter().any(own);
    let others = seen.heard.iter().filter(cloned).filter(|found| !found.addresses.is_empty());
    findings.extend(others.map(|found| Finding::Cloned { at: found.addresses.clone() }));
    if let Some(what) = &seen.deaf {
        findings.push(Finding::Deaf(what.clone()));
    } else if seen.listened && seen.heard.is_empty() && !seen.peers.is_empty() {
        findings.push(Finding::NothingHeard);
    }
    findings
}

fn of_peer(peer: &PeerSeen, seen: &Observations) -> Vec<Finding> {
    let name = || peer.name.clone();
    let mut findings = Vec::new();
    let well = peer.answers.iter().find_map(|(at, answer)| match answer {
        Answer::Well { ms } => Some(Finding::Reached { name: name(), at: *at, ms: *ms }),
        _ => None,
    });
    if let Some(reached) = well {
        // Addresses of other days that no longer answer are no matter then.
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
        Answer::Well { ms } => Finding::Reached { name: name(), at: *at, ms: *ms },
        Answer::Silent => Finding::Silent(name(), *at),
        Answer::PortClosed => Finding::PortClosed(name(), *at),
        Answer::NoRoute => Finding::NoRoute(name(), *at),
        Answer::NotPinned => Finding::NotPinned(name()),
        Answer::OtherKey => Finding::OtherKey(name(), *at, peer.key.fingerprint()),
        Answer::Version(theirs) => Finding::Versions { name: name(), theirs: *theirs },
        Answer::Cloned => Finding::ClonedThere(name()),
        Answer::Failed(what) => Finding::Failed(name(), *at, what.clone()),
    }));
    findings
}

#[cfg(test)]
mod tests;
