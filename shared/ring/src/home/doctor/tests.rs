//! Every finding from the observations that cause it, and real devices that answer, refuse or are absent.

use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use super::observe::of_error;
use super::*;
use crate::home::discovery::Interfaces;
use crate::home::identity::{Identity, RingId};
use crate::home::peers::Peers;
use crate::home::state::StateFolder;
use crate::wire::channel::{Channel, ChannelError};

const LONG: Duration = Duration::from_secs(120);

fn at(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 168, 1, host], 8018))
}

fn name(text: &str) -> DeviceName {
    text.parse().unwrap()
}

fn link(interface: &str, address: SocketAddr, up: bool, used: bool) -> InterfaceAddress {
    InterfaceAddress { interface: interface.to_owned(), address: address.ip(), up, used }
}

fn found(key: PublicKey, host: u8) -> FoundDevice {
    FoundDevice {
        name: name("phone"),
        fingerprint: key.fingerprint(),
        instance: "0123456789abcdef".to_owned(),
        ring: Some(RingId([1; 8])),
        version: PROTOCOL_VERSION,
        pairing: false,
        addresses: vec![at(host)],
    }
}

const OWN: PublicKey = PublicKey([1; 32]);
const OTHER: PublicKey = PublicKey([2; 32]);

/// A device in a ring with one other device, which answers.
fn well() -> Observations {
    let place = Membership::new(RingId([1; 8]), Role::Head, OWN);
    Observations {
        identity: Some((OWN, name("laptop"))),
        membership: Some(place),
        links: vec![link("eth0", at(1), true, true)],
        listened: true,
        heard: vec![found(OTHER, 2)],
        peers: vec![PeerSeen {
            name: name("phone"),
            key: OTHER,
            announced: Some(found(OTHER, 2)),
            answers: vec![(at(2), ProbeAnswer::Well { ms: 1.5 })],
        }],
        ..Observations::default()
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut Observations), want: &[Finding]) {
    let mut seen = well();
    change(&mut seen);
    let findings = diagnose(&seen);
    assert_eq!(findings, want);
    for finding in findings {
        let (text, advice) = (finding.to_string(), finding.advice());
        assert!(
            !text.is_empty() && (finding.severity() == Severity::Fine) == advice.is_empty(),
            "{finding:?}"
        );
        let json = serde_json::to_value(&finding).unwrap();
        assert_eq!(
            (json["kind"].as_str(), json["text"].as_str()),
            (Some(finding.kind()), Some(text.as_str()))
        );
    }
}

fn reached() -> Finding {
    Finding::Reached { name: name("phone"), at: at(2), ms: 1.5 }
}

#[test]
fn findings_of_this_device_and_its_networks() {
    check(|_| {}, &[reached()]);
    check(
        |seen| seen.damaged.push("peers.json".to_owned()),
        &[Finding::Damaged("peers.json".to_owned()), reached()],
    );
    let alone = |seen: &mut Observations| seen.peers.clear();
    check(
        |seen| {
            alone(seen);
            seen.identity = None;
        },
        &[Finding::NoIdentity],
    );
    check(
        |seen| {
            alone(seen);
            seen.membership = None;
        },
        &[Finding::NoRing],
    );
    check(alone, &[Finding::NoPeers(Role::Head)]);
    check(
        |seen| {
            alone(seen);
            seen.membership = Some(Membership::new(RingId([1; 8]), Role::Worker, OTHER));
        },
        &[Finding::NoPeers(Role::Worker)],
    );
    let none = Finding::NoInterface { found: Vec::new() };
    check(
        |seen| seen.links = vec![link("lo", SocketAddr::from(([127, 0, 0, 1], 0)), true, false)],
        &[none, reached()],
    );
    let down = Finding::NoInterface { found: vec!["docker0".to_owned(), "eth0".to_owned()] };
    check(
        |seen| seen.links = vec![link("eth0", at(1), false, true), link("docker0", at(9), true, false)],
        &[down, reached()],
    );
    check(
        |seen| seen.multicast_error = Some("port 5353".to_owned()),
        &[Finding::MulticastFails("port 5353".to_owned()), reached()],
    );
    check(|seen| seen.heard.clear(), &[Finding::NothingHeard, reached()]);
    let not_asked = |seen: &mut Observations| {
        seen.heard.clear();
        seen.listened = false;
    };
    check(not_asked, &[reached()]);
}

#[test]
fn a_copied_state_folder_is_noticed_by_its_announcement() {
    check(|seen| seen.heard.push(found(OWN, 9)), &[Finding::Cloned { at: vec![at(9)] }, reached()]);
    // This device's own announcement is not a clone.
    check(|seen| seen.heard.push(found(OWN, 1)), &[reached()]);
}

#[test]
fn findings_of_a_device_that_is_not_reached() {
    let silent =
        |answer: ProbeAnswer| move |seen: &mut Observations| seen.peers[0].answers = vec![(at(2), answer)];
    check(silent(ProbeAnswer::Silent), &[Finding::Silent(name("phone"), at(2))]);
    check(silent(ProbeAnswer::PortClosed), &[Finding::PortClosed(name("phone"), at(2))]);
    check(silent(ProbeAnswer::NoRoute), &[Finding::NoRoute(name("phone"), at(2))]);
    check(silent(ProbeAnswer::NotPinned), &[Finding::NotPinned(name("phone"))]);
    check(silent(ProbeAnswer::OtherKey), &[Finding::OtherKey(name("phone"), at(2), OTHER.fingerprint())]);
    check(silent(ProbeAnswer::Version(9)), &[Finding::Versions { name: name("phone"), theirs: 9 }]);
    check(silent(ProbeAnswer::Cloned), &[Finding::ClonedThere(name("phone"))]);
    check(
        silent(ProbeAnswer::Failed("x".to_owned())),
        &[Finding::Failed(name("phone"), at(2), "x".to_owned())],
    );
    check(|seen| seen.peers[0].announced.as_mut().unwrap().version = 7, &[reached()]);
    check(
        |seen| {
            seen.peers[0].announced.as_mut().unwrap().version = 7;
            seen.peers[0].answers = vec![(at(2), ProbeAnswer::Silent)];
        },
        &[Finding::Versions { name: name("phone"), theirs: 7 }],
    );
    check(
        |seen| {
            seen.peers[0].announced = None;
            seen.peers[0].answers.clear();
        },
        &[Finding::NoAddress(name("phone"))],
    );
    check(
        |seen| {
            seen.peers[0].announced = None;
            seen.peers[0].answers = vec![(at(2), ProbeAnswer::Silent)];
        },
        &[Finding::NotAnnounced(name("phone")), Finding::Silent(name("phone"), at(2))],
    );
    // An old address does not matter if another one answers.
    check(|seen| seen.peers[0].answers.insert(0, (at(7), ProbeAnswer::Silent)), &[reached()]);
}

#[test]
fn errors_of_calls_say_what_they_mean() {
    let io = |kind| ChannelError::Io(std::io::Error::from(kind));
    for (error, want) in [
        (ChannelError::TimedOut, ProbeAnswer::Silent),
        (ChannelError::Refused, ProbeAnswer::NotPinned),
        (ChannelError::Unproven, ProbeAnswer::OtherKey),
        (ChannelError::Version { ours: 1, theirs: 3 }, ProbeAnswer::Version(3)),
        (ChannelError::Cloned, ProbeAnswer::Cloned),
        (io(std::io::ErrorKind::ConnectionRefused), ProbeAnswer::PortClosed),
        (io(std::io::ErrorKind::NetworkUnreachable), ProbeAnswer::NoRoute),
        (io(std::io::ErrorKind::HostUnreachable), ProbeAnswer::NoRoute),
    ] {
        assert_eq!(of_error(&error), want);
    }
    assert!(matches!(of_error(&ChannelError::Exhausted(1)), ProbeAnswer::Failed(_)));
}

#[test]
fn real_devices_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let folder = StateFolder::open(Some(dir.path().to_owned())).unwrap();
    let own = Identity::open(&folder, Some(name("laptop"))).unwrap();
    let others: Vec<Identity> = ["well", "stranger", "replaced", "off"]
        .into_iter()
        .map(|called| Identity::generate(name(called)).unwrap())
        .collect();
    let listeners: Vec<TcpListener> =
        others.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let mut peers = Peers::default();
    for (other, listener) in others.iter().zip(&listeners) {
        peers.pin(*other.public(), other.name(), listener.local_addr().unwrap()).unwrap();
    }
    peers.save(&folder).unwrap();
    Membership::new(RingId([1; 8]), Role::Head, *own.public()).save(&folder).unwrap();
    let mut listeners = listeners.into_iter();
    let mut next = || listeners.next().unwrap();
    let (well, stranger, replaced) = (next(), next(), next());
    // Nothing listens on this port any more.
    drop(next());
    let elsewhere = Identity::generate(name("elsewhere")).unwrap();
    let loopback =
        if_addrs::get_if_addrs().unwrap().into_iter().find(|found| found.is_loopback()).unwrap().name;
    let answer = |listener: TcpListener, identity: &Identity, knows: bool| {
        let allowed = |key: &PublicKey| knows && key == own.public();
        Channel::accept(listener.accept().unwrap().0, identity, &allowed, LONG).err().unwrap()
    };
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| assert!(matches!(answer(well, &others[0], true), ChannelError::Closed)));
        scope.spawn(|| assert!(matches!(answer(stranger, &others[1], false), ChannelError::Refused)));
        scope.spawn(|| assert!(matches!(answer(replaced, &elsewhere, true), ChannelError::Unproven)));
        let look =
            ObserveOptions { interfaces: Interfaces::of(&[loopback]), listen: Duration::ZERO, answer: LONG };
        observe(&folder, &look)
    });
    assert!(seen.links.iter().any(|link| link.used && link.address == IpAddr::from([127, 0, 0, 1])));
    let kinds: Vec<&str> = diagnose(&seen).iter().map(Finding::kind).collect();
    assert_eq!(kinds, ["reached", "key_not_pinned", "other_key", "port_closed"]);
    std::fs::write(folder.path().join("peers.json"), "{").unwrap();
    let look = ObserveOptions { interfaces: Interfaces::Real, listen: Duration::ZERO, answer: LONG };
    let findings = diagnose(&observe(&folder, &look));
    assert!(matches!(&findings[0], Finding::Damaged(what) if what.contains("peers.json")), "{findings:?}");
}
