//! The ring to which this device belongs, and the devices whose keys it has pinned.
//!
//! Both are files of the ring's state folder. A pinned key never changes by itself: a device with a new key
//! is a new device and must pair again. Addresses only say where a device was last met; they prove nothing.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::home::identity::{DeviceName, Fingerprint, PublicKey, RingId};
use crate::home::state::{StateError, StateFolder};

const PEERS_FILE: &str = "peers.json";
const RING_FILE: &str = "ring.json";
/// Version of the file formats.
const FORM: u32 = 1;
/// Most devices of a ring.
pub const PEERS_MAX: usize = 64;
/// Most addresses that are stored for a device.
const ADDRESSES_MAX: usize = 8;

/// A device whose key is pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its name on this device; no two peers have the same name.
    pub name: DeviceName,
    /// Its key.
    pub key: PublicKey,
    /// Where it was met, the latest address first.
    pub addresses: Vec<SocketAddr>,
}

/// The pinned devices, in the order of pairing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers(Vec<Peer>);

/// The content of the list's file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    form: u32,
    peers: Vec<Peer>,
}

impl Peers {
    /// Loads the peers of this folder; the list is empty if none were pinned.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Damaged`] also if two peers have one key or name.
    pub fn load(folder: &StateFolder) -> Result<Self, StateError> {
        let Some(stored) = folder.read::<Stored>(PEERS_FILE)? else { return Ok(Self::default()) };
        if stored.form != FORM {
            let reason = format!("its form is {}, {FORM} is known", stored.form);
            return Err(folder.damaged(PEERS_FILE, &reason));
        }
        let peers = stored.peers;
        if peers.len() > PEERS_MAX {
            return Err(StateError::TooManyPeers { devices: peers.len(), max: PEERS_MAX });
        }
        for (at, peer) in peers.iter().enumerate() {
            if peers[..at].iter().any(|other| other.key == peer.key || other.name == peer.name) {
                let reason = format!("`{}` is in it twice, by name or by key", peer.name);
                return Err(folder.damaged(PEERS_FILE, &reason));
            }
        }
        Ok(Self(peers))
    }

    /// Writes the list.
    ///
    /// # Errors
    /// [`StateError::Write`].
    pub fn save(&self, folder: &StateFolder) -> Result<(), StateError> {
        folder.write(PEERS_FILE, &Stored { form: FORM, peers: self.0.clone() })
    }

    /// Removes the list of this folder. Returns whether there was one.
    ///
    /// # Errors
    /// [`StateError::Write`].
    pub fn forget(folder: &StateFolder) -> Result<bool, StateError> {
        folder.remove(PEERS_FILE)
    }

    /// Iterates over the peers in the order of pairing.
    pub fn iter(&self) -> std::slice::Iter<'_, Peer> {
        self.0.iter()
    }

    /// Returns the number of peers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no peers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a key is pinned; for [`crate::wire::channel::Channel::accept`].
    pub fn knows(&self, key: &PublicKey) -> bool {
        self.by_key(key).is_some()
    }

    /// Returns the peer with this key.
    pub fn by_key(&self, key: &PublicKey) -> Option<&Peer> {
        self.0.iter().find(|peer| peer.key == *key)
    }

    /// Returns the peer with this name.
    pub fn by_name(&self, name: &str) -> Option<&Peer> {
        self.0.iter().find(|peer| peer.name.as_str() == name)
    }

    /// Returns the peer whose key has this fingerprint.
    pub fn by_fingerprint(&self, fingerprint: Fingerprint) -> Option<&Peer> {
        self.0.iter().find(|peer| peer.key.fingerprint() == fingerprint)
    }

    /// Pins a key, or updates name and address of a pinned one. Returns the device's name on this device,
    /// with a number appended if another device has that name.
    ///
    /// # Errors
    /// [`StateError::TooManyPeers`].
    pub fn pin(
        &mut self,
        key: PublicKey,
        name: &DeviceName,
        address: SocketAddr,
    ) -> Result<DeviceName, StateError> {
        let others = |wanted: &DeviceName| self.0.iter().any(|peer| peer.name == *wanted && peer.key != key);
        let name = if others(name) { self.numbered(name, &key) } else { name.clone() };
        if let Some(peer) = self.0.iter_mut().find(|peer| peer.key == key) {
            peer.name.clone_from(&name);
        } else if self.0.len() < PEERS_MAX {
            self.0.push(Peer { name: name.clone(), key, addresses: Vec::new() });
        } else {
            return Err(StateError::TooManyPeers { devices: PEERS_MAX + 1, max: PEERS_MAX });
        }
        self.met(&key, address);
        Ok(name)
    }

    /// Appends a number to the name of a peer that is called as this device itself. Returns whether there was
    /// one.
    pub fn keep_apart(&mut self, own: &DeviceName) -> bool {
        let Some(at) = self.0.iter().position(|peer| peer.name == *own) else { return false };
        let key = self.0[at].key;
        self.0[at].name = self.numbered(own, &key);
        true
    }

    /// Returns this name with the first number that gives a name which no device but this one has.
    fn numbered(&self, name: &DeviceName, key: &PublicKey) -> DeviceName {
        let is_taken = |wanted: &DeviceName| {
            self.0.iter().any(|peer| peer.name == *wanted && peer.key != *key) || wanted == name
        };
        let free = (2..).map(|number| name.numbered(number)).find(|wanted| !is_taken(wanted));
        free.expect("of endlessly many names one is free")
    }

    /// Stores where a device was met. Returns whether that changed anything.
    pub fn met(&mut self, key: &PublicKey, address: SocketAddr) -> bool {
        let Some(peer) = self.0.iter_mut().find(|peer| peer.key == *key) else { return false };
        if peer.addresses.first() == Some(&address) {
            return false;
        }
        peer.addresses.retain(|known| *known != address);
        peer.addresses.insert(0, address);
        peer.addresses.truncate(ADDRESSES_MAX);
        true
    }

    /// Removes a device. Returns `None` if no device has this name.
    pub fn unpin(&mut self, name: &str) -> Option<Peer> {
        let at = self.0.iter().position(|peer| peer.name.as_str() == name)?;
        Some(self.0.remove(at))
    }
}

/// The role of a device in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds the text, computes embedding and output, plans, and admits devices.
    Head,
    /// Computes layers.
    Worker,
}

/// The ring to which this device belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    form: u32,
    /// The ring.
    pub ring: RingId,
    /// The role of this device.
    pub role: Role,
    /// The key of the ring's head.
    pub head: PublicKey,
}

impl Membership {
    /// Makes a membership in a ring.
    pub fn new(ring: RingId, role: Role, head: PublicKey) -> Self {
        Self { form: FORM, ring, role, head }
    }

    /// Loads the membership of this folder, or `None` if the device belongs to no ring.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn load(folder: &StateFolder) -> Result<Option<Self>, StateError> {
        let found = folder.read::<Self>(RING_FILE)?;
        if let Some(found) = found.filter(|found| found.form != FORM) {
            let reason = format!("its form is {}, {FORM} is known", found.form);
            return Err(folder.damaged(RING_FILE, &reason));
        }
        Ok(found)
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`StateError::Write`].
    pub fn save(&self, folder: &StateFolder) -> Result<(), StateError> {
        folder.write(RING_FILE, self)
    }

    /// Leaves the ring: this device then belongs to none. Returns whether it belonged to one.
    ///
    /// # Errors
    /// [`StateError::Write`].
    pub fn forget(folder: &StateFolder) -> Result<bool, StateError> {
        folder.remove(RING_FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::state::tests::folder;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 168, 1, 2], port))
    }

    fn name(text: &str) -> DeviceName {
        text.parse().unwrap()
    }

    #[test]
    fn pinned_keys_are_kept_and_names_stay_apart() {
        let (_dir, state) = folder();
        let mut peers = Peers::load(&state).unwrap();
        assert!(peers.is_empty() && !peers.knows(&PublicKey([1; 32])));
        assert_eq!(peers.pin(PublicKey([1; 32]), &name("phone"), at(1)).unwrap(), name("phone"));
        assert_eq!(peers.pin(PublicKey([2; 32]), &name("phone"), at(2)).unwrap(), name("phone-2"));
        assert_eq!(peers.pin(PublicKey([3; 32]), &name("phone"), at(3)).unwrap(), name("phone-3"));
        // A device that pairs again keeps its name.
        assert_eq!(peers.pin(PublicKey([1; 32]), &name("phone"), at(4)).unwrap(), name("phone"));
        assert_eq!(peers.by_name("phone").unwrap().addresses, [at(4), at(1)]);
        peers.save(&state).unwrap();
        let mut loaded = Peers::load(&state).unwrap();
        assert_eq!(loaded, peers);
        let key = PublicKey([2; 32]);
        assert_eq!(loaded.by_fingerprint(key.fingerprint()), loaded.by_key(&key));
        assert_eq!(loaded.unpin("phone-2").unwrap().key, key);
        assert!(!loaded.knows(&key) && loaded.unpin("phone-2").is_none() && loaded.len() == 2);
    }

    #[test]
    fn no_peer_is_called_as_the_device_itself() {
        let mut peers = Peers::default();
        peers.pin(PublicKey([1; 32]), &name("desk"), at(1)).unwrap();
        peers.pin(PublicKey([2; 32]), &name("desk"), at(2)).unwrap();
        assert!(peers.keep_apart(&name("desk")) && !peers.keep_apart(&name("desk")));
        let names = |peers: &Peers| peers.iter().map(|peer| peer.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&peers), ["desk-3", "desk-2"]);
        assert_eq!(peers.pin(PublicKey([2; 32]), &name("desk"), at(2)).unwrap(), name("desk"));
        assert!(peers.keep_apart(&name("desk")));
        assert_eq!(names(&peers), ["desk-3", "desk-2"], "a device that pairs again keeps its name");
    }

    #[test]
    fn few_addresses_are_remembered_the_latest_first() {
        let mut peers = Peers::default();
        let key = PublicKey([1; 32]);
        peers.pin(key, &name("a"), at(0)).unwrap();
        for port in 1..20 {
            assert!(peers.met(&key, at(port)));
        }
        assert!(!peers.met(&key, at(19)) && !peers.met(&PublicKey([9; 32]), at(1)));
        assert!(peers.met(&key, at(15)));
        let ports: Vec<u16> = peers.by_key(&key).unwrap().addresses.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [15, 19, 18, 17, 16, 14, 13, 12]);
    }

    #[test]
    fn rings_are_bounded_and_damaged_lists_are_said() {
        let (_dir, state) = folder();
        let mut peers = Peers::default();
        for device in 0..PEERS_MAX as u8 {
            peers.pin(PublicKey([device; 32]), &name("d"), at(1)).unwrap();
        }
        let error = peers.pin(PublicKey([255; 32]), &name("d"), at(1)).unwrap_err();
        assert!(matches!(error, StateError::TooManyPeers { devices: 65, max: 64 }), "{error}");
        peers.save(&state).unwrap();
        let text = std::fs::read_to_string(state.file(PEERS_FILE)).unwrap();
        for (damaged, want) in [
            (text.replace("\"d-2\"", "\"d\""), "twice"),
            (text.replace("\"form\": 1", "\"form\": 7"), "form is 7"),
            (text.replace("192.168", "x"), "damaged"),
            (text.replace("\"d-2\"", "\"\\u001b[2J\""), "no device name"),
        ] {
            std::fs::write(state.file(PEERS_FILE), damaged).unwrap();
            let error = Peers::load(&state).unwrap_err().to_string();
            assert!(error.contains("peers.json") && error.contains(want), "{want}: {error}");
        }
    }

    #[test]
    fn a_ring_is_joined_and_left() {
        let (_dir, state) = folder();
        assert_eq!(Membership::load(&state).unwrap(), None);
        let place = Membership::new(RingId([7; 8]), Role::Worker, PublicKey([1; 32]));
        place.save(&state).unwrap();
        assert_eq!(Membership::load(&state).unwrap(), Some(place));
        let text = std::fs::read_to_string(state.file(RING_FILE)).unwrap();
        std::fs::write(state.file(RING_FILE), text.replace("0707", "xx07")).unwrap();
        assert!(Membership::load(&state).unwrap_err().to_string().contains("is no ring"));
        assert!(Membership::forget(&state).unwrap() && !Membership::forget(&state).unwrap());
    }
}
