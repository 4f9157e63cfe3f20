//! The paired devices of this one, where they were last met and where they announce themselves.
//!
//! The list is read again each time, so that a device that was paired meanwhile counts. Whether a device is there is
//! asked by a handshake that proves its key: an open port is no proof, a device that stands still answers none.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Key, Neighbourhood, NextNode};
use crate::ring::channel::Channel;
use crate::ring::discovery::{Discovery, Found};
use crate::ring::identity::{Identity, PublicKey};
use crate::ring::peers::Peers;
use crate::ring::state::StateFolder;

/// How long one address may take to answer.
const ANSWER: Duration = Duration::from_millis(1500);
/// Addresses of one device that are asked in one look.
const CALLS_MAX: usize = 4;
/// Between two searches by multicast DNS, and how long one listens.
const SEARCH_EVERY: Duration = Duration::from_secs(30);
const SEARCH: Duration = Duration::from_secs(1);

/// Paired devices of a state folder.
pub struct PairedHome {
    folder: StateFolder,
    identity: Identity,
    peers: Peers,
    discovery: Option<Discovery>,
    heard: Vec<Found>,
    searched: Option<Instant>,
}

impl PairedHome {
    /// Those of this folder; `discovery` where multicast DNS is to be asked, too.
    pub fn new(folder: StateFolder, identity: Identity, discovery: Option<Discovery>) -> Self {
        Self { folder, identity, peers: Peers::default(), discovery, heard: Vec::new(), searched: None }
    }

    /// Listens for announcements, unless that was a moment ago.
    fn search(&mut self) {
        let Some(discovery) = &self.discovery else { return };
        if self.searched.is_some_and(|searched| searched.elapsed() < SEARCH_EVERY) {
            return;
        }
        self.searched = Some(Instant::now());
        match discovery.search(SEARCH, &mut |_| false) {
            Ok(found) => self.heard = found,
            Err(err) => tracing::debug!(%err, "multicast DNS finds nothing"),
        }
    }

    fn answers(&self, key: &PublicKey, address: SocketAddr) -> bool {
        Channel::probe(address, &self.identity, key, ANSWER).is_ok()
    }
}

impl Neighbourhood for PairedHome {
    fn paired(&mut self) -> Vec<Key> {
        match Peers::load(&self.folder) {
            Ok(peers) => self.peers = peers,
            // Whatever is wrong with the file now, the devices known before may come back.
            Err(err) => tracing::debug!(%err, "the list of paired devices cannot be read"),
        }
        self.peers.iter().map(|peer| peer.key.0).collect()
    }

    fn find(&mut self, key: &Key) -> Option<NextNode> {
        let key = PublicKey(*key);
        let mut addresses = self.peers.by_key(&key)?.addresses.clone();
        addresses.truncate(CALLS_MAX);
        let known = addresses.iter().find(|address| self.answers(&key, **address));
        let found = known.copied().or_else(|| {
            self.search();
            let announced = self.heard.iter().filter(|found| found.fingerprint == key.fingerprint());
            let announced = announced.flat_map(|found| found.addresses.iter().copied());
            let mut new = announced.filter(|address| !addresses.contains(address)).take(CALLS_MAX);
            new.find(|address| self.answers(&key, *address))
        });
        found.map(|address| NextNode { address: address.to_string(), key: key.0 })
    }
}
