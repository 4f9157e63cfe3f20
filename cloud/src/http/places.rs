//! Places for connections: so many in all, so many for one address.
//!
//! Always: a place is given back when it is dropped, and an address without connections takes no memory.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type ByAddress = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// Counts connections.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    by_address: ByAddress,
}

/// One connection's place.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    address: IpAddr,
    by_address: ByAddress,
}

impl Places {
    pub(super) fn new(all: usize) -> Places {
        Places { all: Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS))), by_address: Arc::default() }
    }

    /// Waits until there is room for one more connection, whoever's it is.
    pub(super) async fn wait(&self) -> OwnedSemaphorePermit {
        self.all.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// A place for `ip`, which may hold at most `limit`.
    pub(super) fn claim(&self, permit: OwnedSemaphorePermit, ip: IpAddr, limit: usize) -> Option<Place> {
        let address = network(ip);
        let mut by_address = self.by_address.lock().expect(POISONED);
        let held = by_address.entry(address).or_default();
        if *held >= limit.max(1) {
            return None;
        }
        *held += 1;
        Some(Place { _permit: permit, address, by_address: self.by_address.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_address = self.by_address.lock().expect(POISONED);
        if let Some(held) = by_address.get_mut(&self.address) {
            *held -= 1;
            if *held == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// What counts as one address: with IPv6 a network of 2^64, which one customer has.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    }
}

const POISONED: &str = "nothing panics while it counts";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_has_so_many_places() {
        let places = Places::new(10);
        let claim = async |ip: &str| places.claim(places.wait().await, ip.parse().unwrap(), 2);
        let one = claim("10.0.0.1").await;
        let two = claim("::ffff:10.0.0.1").await;
        assert!(one.is_some() && two.is_some());
        assert!(claim("10.0.0.1").await.is_none());
        assert!(claim("10.0.0.2").await.is_some());
        drop(one);
        assert!(claim("10.0.0.1").await.is_some());
        let held = (claim("2001:db8::1").await, claim("2001:db8::2:1").await);
        assert!(held.0.is_some() && held.1.is_some());
        assert!(claim("2001:db8::3").await.is_none(), "one network");
        assert!(claim("2001:db8:0:1::3").await.is_some());
        drop((two, held));
        assert!(places.by_address.lock().unwrap().is_empty());
    }
}
