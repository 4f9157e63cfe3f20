//! Finds the devices of a ring on a home's network, by multicast DNS.
//!
//! A device that listens announces itself on every real interface; a device that searches asks there. An
//! announcement is only a hint and proves nothing: the handshake of the channel does. Everything that comes
//! from the network is bounded and checked before it is shown. A person can also give addresses, for
//! networks that block multicast.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use mdns_sd::{
    DaemonEvent, IfKind, IfPredicate, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo,
};
use serde::Serialize;

use crate::home::identity::{DeviceName, Fingerprint, Identity, RingId};
use crate::wire::channel::PROTOCOL_VERSION;

const SERVICE: &str = "_baton-ring._tcp.local.";
/// Most devices that are kept in one search.
const FOUND_MAX: usize = 256;
/// Most addresses of one device.
const ADDRESSES_MAX: usize = 16;
/// How long withdrawing an announcement may take.
const GOODBYE: Duration = Duration::from_millis(500);

/// Prefixes of interfaces that lead to no other device of a home: containers, virtual machines, tunnels,
/// and Apple's own peer-to-peer links.
const NOT_REAL: &[&str] = &[
    "docker",
    "br-",
    "veth",
    "virbr",
    "vmnet",
    "vboxnet",
    "vnet",
    "lxc",
    "lxd",
    "podman",
    "cni",
    "flannel",
    "cali",
    "kube",
    "tailscale",
    "wg",
    "tun",
    "tap",
    "utun",
    "zt",
    "ifb",
    "dummy",
    "awdl",
    "llw",
    "anpi",
    "bridge",
];

/// Why nothing can be announced or found.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The responder does not work.
    #[error("multicast DNS: {0}")]
    Responder(String),
    /// The system does not list its interfaces.
    #[error("read the network interfaces: {0}")]
    Interfaces(#[from] io::Error),
}

impl From<mdns_sd::Error> for DiscoveryError {
    fn from(err: mdns_sd::Error) -> Self {
        Self::Responder(err.to_string())
    }
}

/// Which interfaces are used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Interfaces {
    /// Every interface that can lead to another device of the home.
    #[default]
    Real,
    /// These, whatever they are.
    Named(Vec<String>),
}

impl Interfaces {
    /// Returns the interfaces named on a command line, or the real ones if none is named.
    pub fn of(names: &[String]) -> Self {
        if names.is_empty() { Self::Real } else { Self::Named(names.to_vec()) }
    }

    fn uses(&self, name: &str, loopback: bool) -> bool {
        match self {
            Self::Real => !loopback && !NOT_REAL.iter().any(|begin| name.starts_with(begin)),
            Self::Named(names) => names.iter().any(|known| known == name),
        }
    }
}

/// An address of this device on one of its networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InterfaceAddress {
    /// The interface.
    pub interface: String,
    /// Its address.
    pub address: IpAddr,
    /// Whether it is up.
    pub up: bool,
    /// Whether the ring uses it.
    pub used: bool,
}

/// Returns the addresses of this device.
///
/// # Errors
/// [`DiscoveryError::Interfaces`].
pub fn interface_addresses(interfaces: &Interfaces) -> Result<Vec<InterfaceAddress>, DiscoveryError> {
    let found = if_addrs::get_if_addrs()?;
    Ok(found
        .into_iter()
        .map(|found| InterfaceAddress {
            address: found.ip(),
            up: found.is_oper_up() || found.is_loopback(),
            used: interfaces.uses(&found.name, found.is_loopback()),
            interface: found.name,
        })
        .collect())
}

/// What a device announces about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advert {
    /// Its name.
    pub name: DeviceName,
    /// The fingerprint of its key.
    pub fingerprint: Fingerprint,
    /// Which of its processes it is, as 16 hexadecimal digits.
    pub instance: String,
    /// Its ring, if it belongs to one.
    pub ring: Option<RingId>,
    /// The port on which it listens.
    pub port: u16,
    /// Whether it admits strangers right now.
    pub pairing: bool,
}

impl Advert {
    /// Makes an announcement of this device.
    pub fn of(identity: &Identity, ring: Option<RingId>, port: u16) -> Self {
        Self {
            name: identity.name().clone(),
            fingerprint: identity.public().fingerprint(),
            instance: hex::encode(&identity.instance().0[..8]),
            ring,
            port,
            pairing: false,
        }
    }

    fn texts(&self) -> Vec<(&'static str, String)> {
        let mut texts = vec![
            ("v", PROTOCOL_VERSION.to_string()),
            ("name", self.name.to_string()),
            ("key", self.fingerprint.to_string()),
            ("at", self.instance.clone()),
        ];
        texts.extend(self.ring.map(|ring| ("ring", ring.to_string())));
        texts.extend(self.pairing.then(|| ("pair", "1".to_owned())));
        texts
    }
}

/// A device that announces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundDevice {
    /// The name that it gives itself.
    pub name: DeviceName,
    /// The fingerprint of the key that it claims to have.
    pub fingerprint: Fingerprint,
    /// Which of its processes it is.
    pub instance: String,
    /// Its ring.
    pub ring: Option<RingId>,
    /// Its version of the ring protocol.
    pub version: u16,
    /// Whether it admits strangers right now.
    pub pairing: bool,
    /// The addresses on which it listens; IPv4 first.
    pub addresses: Vec<SocketAddr>,
}

/// Reads a device from the texts of its announcement. Returns `None` if one of them is invalid.
fn found_of(text: &dyn Fn(&str) -> Option<String>, mut addresses: Vec<SocketAddr>) -> Option<FoundDevice> {
    let instance = text("at")?;
    if instance.len() != 16 || !instance.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    addresses.sort_by_key(|address| (address.is_ipv6(), *address));
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    Some(FoundDevice {
        name: text("name")?.parse().ok()?,
        fingerprint: text("key")?.parse().ok()?,
        instance,
        ring: text("ring").map(|ring| ring.parse()).transpose().ok()?,
        version: text("v")?.parse().ok()?,
        pairing: text("pair").is_some_and(|pair| pair == "1"),
        addresses,
    })
}

fn found_service(service: &ResolvedService) -> Option<FoundDevice> {
    let at = |ip: &ScopedIp| match ip {
        ScopedIp::V6(v6) if v6.addr().is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(*v6.addr(), service.port, 0, v6.scope_id().index))
        }
        other => SocketAddr::new(other.to_ip_addr(), service.port),
    };
    let addresses = service.addresses.iter().map(at).collect();
    found_of(&|key| service.get_property_val_str(key).map(str::to_owned), addresses)
}

/// This device's multicast DNS responder. Dropping it withdraws the announcements and stops it.
pub struct Discovery {
    daemon: ServiceDaemon,
    interfaces: Interfaces,
    announced: Vec<String>,
}

impl Discovery {
    /// Opens multicast DNS on these interfaces.
    ///
    /// # Errors
    /// [`DiscoveryError::Responder`].
    pub fn open(interfaces: Interfaces) -> Result<Self, DiscoveryError> {
        Self::open_at(interfaces, mdns_sd::MDNS_PORT)
    }

    fn open_at(interfaces: Interfaces, port: u16) -> Result<Self, DiscoveryError> {
        let daemon = ServiceDaemon::new_with_port(port)?;
        let used = interfaces.clone();
        daemon.disable_interface(IfKind::Predicate(IfPredicate::new(move |found| {
            !used.uses(&found.name, found.is_loopback())
        })))?;
        Ok(Self { daemon, interfaces, announced: Vec::new() })
    }

    /// Announces this device, in place of its earlier announcement.
    ///
    /// # Errors
    /// [`DiscoveryError::Responder`].
    pub fn announce(&mut self, advert: &Advert) -> Result<(), DiscoveryError> {
        let fingerprint = advert.fingerprint.to_string().to_lowercase();
        // No other device has this name, so there is no name conflict to resolve.
        let name = format!("{fingerprint}-{}", advert.instance);
        let texts = advert.texts();
        let host = format!("baton-{name}.local.");
        let info = ServiceInfo::new(SERVICE, &name, &host, (), advert.port, texts.as_slice())?;
        let mut info = info.enable_addr_auto();
        info.set_requires_probe(false);
        let used = self.interfaces.clone();
        info.set_interfaces(vec![IfKind::Predicate(IfPredicate::new(move |found| {
            used.uses(&found.name, found.is_loopback())
        }))]);
        let full_name = info.get_fullname().to_owned();
        self.daemon.register(info)?;
        if !self.announced.contains(&full_name) {
            self.announced.push(full_name);
        }
        Ok(())
    }

    /// Searches for devices until `time` is over, or until `enough` returns true. Each device is returned
    /// as it was last announced.
    ///
    /// # Errors
    /// [`DiscoveryError::Responder`].
    pub fn search(
        &self,
        time: Duration,
        enough: &mut dyn FnMut(&FoundDevice) -> bool,
    ) -> Result<Vec<FoundDevice>, DiscoveryError> {
        let events = self.daemon.browse(SERVICE)?;
        let end = Instant::now() + time;
        let mut found: BTreeMap<String, FoundDevice> = BTreeMap::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(event) = events.recv_timeout(left) else { break };
            match event {
                ServiceEvent::ServiceResolved(service) => {
                    let Some(device) = found_service(&service) else { continue };
                    let done = enough(&device);
                    if found.len() < FOUND_MAX || found.contains_key(&service.fullname) {
                        found.insert(service.fullname.clone(), device);
                    }
                    if done {
                        break;
                    }
                }
                ServiceEvent::ServiceRemoved(_, name) => {
                    found.remove(&name);
                }
                _ => {}
            }
        }
        self.daemon.stop_browse(SERVICE)?;
        Ok(found.into_values().collect())
    }

    /// Returns the errors that the multicast DNS responder reports from now on, for `doctor`.
    ///
    /// # Errors
    /// [`DiscoveryError::Responder`].
    pub fn responder_errors(&self) -> Result<ResponderErrors, DiscoveryError> {
        Ok(ResponderErrors(self.daemon.monitor()?))
    }
}

/// The responder's errors, as they occur.
pub struct ResponderErrors(mdns_sd::Receiver<DaemonEvent>);

impl ResponderErrors {
    /// Returns the errors since the last call.
    pub fn take(&self) -> Vec<String> {
        let error = |event| match event {
            DaemonEvent::Error(err) => Some(err.to_string()),
            _ => None,
        };
        self.0.try_iter().filter_map(error).collect()
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        for name in &self.announced {
            if let Ok(done) = self.daemon.unregister(name) {
                // If this comes too late, other devices drop the announcement by its age.
                let _said = done.recv_timeout(GOODBYE);
            }
        }
        if let Ok(done) = self.daemon.shutdown() {
            let _ended = done.recv_timeout(GOODBYE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn advert() -> Advert {
        let identity = Identity::generate("Küche".parse().unwrap()).unwrap();
        let mut advert = Advert::of(&identity, Some(RingId([5; 8])), 8018);
        advert.pairing = true;
        advert
    }

    fn lookup(texts: &[(&'static str, String)]) -> impl Fn(&str) -> Option<String> {
        let texts = texts.to_vec();
        move |key| texts.iter().find(|(known, _)| *known == key).map(|(_, text)| text.clone())
    }

    #[test]
    fn what_is_announced_is_what_is_found() {
        let advert = advert();
        let address: SocketAddr = "192.168.1.2:8018".parse().unwrap();
        let six: SocketAddr = "[fd00::2]:8018".parse().unwrap();
        let found = found_of(&lookup(&advert.texts()), vec![six, address, six]).unwrap();
        assert_eq!(found.addresses, [address, six]);
        assert_eq!(
            (&found.name, found.fingerprint, &found.instance),
            (&advert.name, advert.fingerprint, &advert.instance)
        );
        assert_eq!((found.ring, found.version, found.pairing), (advert.ring, PROTOCOL_VERSION, true));
        let alone = Advert { ring: None, pairing: false, ..advert };
        let found = found_of(&lookup(&alone.texts()), Vec::new()).unwrap();
        assert_eq!((found.ring, found.pairing), (None, false));
    }

    #[test]
    fn announcements_that_are_not_ours_are_left_out() {
        let texts = advert().texts();
        for key in ["v", "name", "key", "at"] {
            let without: Vec<_> = texts.iter().filter(|(known, _)| *known != key).cloned().collect();
            assert_eq!(found_of(&lookup(&without), Vec::new()), None, "without {key}");
        }
        for (key, bad) in [
            ("v", "65536"),
            ("name", "\u{1b}[2J"),
            ("key", "abcdefgh"),
            ("at", "0123456789abcdeg"),
            ("ring", "12"),
        ] {
            let mut changed = texts.clone();
            changed.iter_mut().find(|(known, _)| *known == key).unwrap().1 = bad.to_owned();
            assert_eq!(found_of(&lookup(&changed), Vec::new()), None, "{key} = {bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_texts_give_a_device_that_can_be_shown_or_none(
            texts in proptest::collection::vec(".{0,80}", 6),
            ports in proptest::collection::vec(any::<u16>(), 0..40),
        ) {
            let keys = ["v", "name", "key", "at", "ring", "pair"];
            let texts: Vec<_> = keys.into_iter().zip(texts).collect();
            let addresses = ports.iter().map(|port| SocketAddr::from(([10, 0, 0, 1], *port))).collect();
            if let Some(found) = found_of(&lookup(&texts), addresses) {
                prop_assert!(found.addresses.len() <= ADDRESSES_MAX);
                let shown = found.name.to_string();
                prop_assert!(!shown.chars().any(char::is_control), "{:?}", shown);
            }
        }
    }

    #[test]
    fn only_real_interfaces_are_used_unless_others_are_named() {
        let real = Interfaces::of(&[]);
        for (name, used) in
            [("eth0", true), ("wlp3s0", true), ("en0", true), ("docker0", false), ("br-1f", false)]
        {
            assert_eq!(real.uses(name, false), used, "{name}");
        }
        assert!(!real.uses("lo", true));
        let named = Interfaces::of(&["lo".to_owned()]);
        assert!(named.uses("lo", true) && !named.uses("eth0", false));
        let links = interface_addresses(&named).unwrap();
        assert!(links.iter().all(|link| link.used == (link.interface == "lo")), "{links:?}");
    }

    #[test]
    fn a_device_is_found_over_a_real_socket_and_gone_when_it_ends() {
        let Some(loopback) = if_addrs::get_if_addrs().unwrap().into_iter().find(|found| found.is_loopback())
        else {
            panic!("this machine has no loopback interface")
        };
        let interfaces = Interfaces::Named(vec![loopback.name]);
        // A port of its own, so that announcements on this machine's networks do not disturb the test.
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let advert = advert();
        let mut here = Discovery::open_at(interfaces.clone(), port).unwrap();
        here.announce(&advert).unwrap();
        let there = Discovery::open_at(interfaces, port).unwrap();
        let found = there.search(Duration::from_secs(20), &mut |found| !found.addresses.is_empty()).unwrap();
        let [found] = found.as_slice() else { panic!("found {found:?}") };
        assert_eq!((found.fingerprint, found.ring), (advert.fingerprint, advert.ring));
        assert!(
            found.addresses.iter().all(|address| address.port() == 8018 && address.ip().is_loopback()),
            "{found:?}"
        );
        drop(here);
    }
}
