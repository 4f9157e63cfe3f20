//! The devices that are paired with this one: where they were last met, and where they announce themselves.
//!
//! The list is read each time, so that a device that was paired meanwhile counts. A handshake that proves
//! the key shows whether a device is reachable. An open port proves nothing, and a device that hangs does
//! not answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{DeviceFinder, DeviceId, Node};
use crate::home::discovery::{Discovery, FoundDevice};
use crate::home::identity::{Identity, PublicKey};
use crate::home::peers::Peers;
use crate::home::state::StateFolder;
use crate::wire::channel::Channel;

/// How long one address may take to answer.
const ANSWER: Duration = Duration::from_millis(1500);
/// Most addresses of one device that are asked in one look.
const CALLS_MAX: usize = 4;
/// Time between two searches by multicast DNS, and how long one of them listens.
const SEARCH_EVERY: Duration = Duration::from_secs(30);
const SEARCH: Duration = Duration::from_secs(1);

/// The paired devices of a state folder.
pub struct PairedDevices {
    folder: StateFolder,
    identity: Identity,
    peers: Peers,
    discovery: Option<Discovery>,
    heard: Vec<FoundDevice>,
    searched: Option<Instant>,
    /// The announced address of each device at which the next look begins.
    turns: BTreeMap<DeviceId, usize>,
}

/// Returns at most [`CALLS_MAX`] addresses of these announcements that are not `known`, beginning at
/// `turn`, which is advanced past them. An announcement proves nothing: a stranger that announces many
/// addresses only delays the others.
fn in_turn(announced: &[&[SocketAddr]], known: &[SocketAddr], turn: &mut usize) -> Vec<SocketAddr> {
    let longest = announced.iter().map(|addresses| addresses.len()).max().unwrap_or(0);
    let mut all: Vec<SocketAddr> = Vec::new();
    // One address of each announcement after the other.
    for at in 0..longest {
        for address in announced.iter().filter_map(|addresses| addresses.get(at)) {
            if !known.contains(address) && !all.contains(address) {
                all.push(*address);
            }
        }
    }
    let start = turn.checked_rem(all.len()).unwrap_or(0);
    let calls = all.len().min(CALLS_MAX);
    *turn = start + calls;
    all.iter().cycle().skip(start).take(calls).copied().collect()
}

impl PairedDevices {
    /// The paired devices of this folder. If `discovery` is given, multicast DNS is searched too.
    pub fn new(folder: StateFolder, identity: Identity, discovery: Option<Discovery>) -> Self {
        let (peers, turns) = (Peers::default(), BTreeMap::new());
        Self { folder, identity, peers, discovery, heard: Vec::new(), searched: None, turns }
    }

    /// Searches for announcements, unless the last search was a moment ago.
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

impl DeviceFinder for PairedDevices {
    fn paired(&mut self) -> Vec<DeviceId> {
        match Peers::load(&self.folder) {
            Ok(peers) => self.peers = peers,
            // Whatever is wrong with the file now, devices known before may come back.
            Err(err) => tracing::debug!(%err, "the list of paired devices cannot be read"),
        }
        self.peers.iter().map(|peer| DeviceId(peer.key.0)).collect()
    }

    fn find(&mut self, key: &DeviceId) -> Option<Node> {
        let key = PublicKey(key.0);
        let mut addresses = self.peers.by_key(&key)?.addresses.clone();
        addresses.truncate(CALLS_MAX);
        let known = addresses.iter().find(|address| self.answers(&key, **address));
        let found = known.copied().or_else(|| {
            self.search();
            let announced = self.heard.iter().filter(|found| found.fingerprint == key.fingerprint());
            let announced: Vec<&[SocketAddr]> = announced.map(|found| found.addresses.as_slice()).collect();
            let turn = self.turns.entry(DeviceId(key.0)).or_default();
            let new = in_turn(&announced, &addresses, turn);
            new.into_iter().find(|address| self.answers(&key, *address))
        });
        found.map(|address| Node { address: address.to_string(), device: DeviceId(key.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 1))
    }

    #[test]
    fn who_announces_many_addresses_keeps_nobody_out() {
        let stranger: Vec<SocketAddr> = (100..140).map(at).collect();
        let announced = [stranger.as_slice(), &[at(1), at(2)]];
        let mut turn = 0;
        let first = in_turn(&announced, &[at(2)], &mut turn);
        assert_eq!(first, [at(100), at(1), at(101), at(102)], "each announcement in its turn");
        // A stranger makes each of many announcements: a later look still reaches the device itself.
        let each: Vec<[SocketAddr; 1]> = (100..130).map(|last| [at(last)]).collect();
        let mut announced: Vec<&[SocketAddr]> = each.iter().map(|addresses| addresses.as_slice()).collect();
        let device = [at(1)];
        announced.push(&device);
        let mut turn = 0;
        let looks = (1..100).find(|_| in_turn(&announced, &[], &mut turn).contains(&at(1)));
        assert_eq!(looks, Some(31_usize.div_ceil(CALLS_MAX)));
        // And again each time that its turn comes.
        assert!((0..8).any(|_| in_turn(&announced, &[], &mut turn).contains(&at(1))));
    }

    #[test]
    fn what_is_announced_is_asked_once_and_nothing_is_no_fault() {
        let mut turn = 7;
        assert!(in_turn(&[], &[], &mut turn).is_empty());
        assert!(in_turn(&[&[at(1)]], &[at(1)], &mut turn).is_empty(), "it is known");
        assert_eq!(in_turn(&[&[at(1), at(2)], &[at(2)]], &[], &mut turn), [at(1), at(2)]);
    }
}
