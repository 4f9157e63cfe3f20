//! Places for connections: a limit in total, and a limit for one address.
//!
//! If there is no free place, an idle connection is closed for a new one, the oldest first. Connections that
//! never completed a request's head go before those that wait between two requests. So connections that are
//! only held open cost other clients nothing, however many there are.
//!
//! Always: a place is freed when it is dropped, an address without connections takes no memory, and a
//! connection with a request in flight is never closed for another.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::flight::Traffic;
use super::network;

/// A connection idle for this long has sent its last reply, so closing it cuts nothing off.
const REST_MIN: Duration = Duration::from_secs(1);
/// How often a server without a free place looks again for an idle connection.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Counts connections.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    registry: Arc<Mutex<Registry>>,
}

#[derive(Debug, Default)]
struct Registry {
    by_address: HashMap<IpAddr, usize>,
    /// Every connection, the oldest first.
    open: BTreeMap<u64, Open>,
    next: u64,
}

#[derive(Debug)]
struct Open {
    address: IpAddr,
    traffic: Arc<Traffic>,
    leave: Arc<Notify>,
}

/// One connection's place.
#[derive(Debug)]
pub(super) struct Place {
    /// The counters of the connection.
    pub(super) traffic: Arc<Traffic>,
    leave: Arc<Notify>,
    id: u64,
    registry: Arc<Mutex<Registry>>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(all: usize) -> Places {
        Places { all: Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS))), registry: Arc::default() }
    }

    /// Waits until there is room for the new connection; closes an idle one for it if necessary.
    pub(super) async fn wait(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = self.all.clone().try_acquire_owned() {
                return permit;
            }
            lock(&self.registry).send_away(|_| true);
            let permit = self.all.clone().acquire_owned();
            if let Ok(permit) = tokio::time::timeout(LOOK_AGAIN, permit).await {
                return permit.expect("the semaphore is never closed");
            }
        }
    }

    /// Returns a place for `ip`, which may hold at most `limit`. If it holds that many, its oldest idle
    /// connection is closed; returns `None` if each has a request in flight or has not been idle long enough.
    pub(super) fn claim(&self, permit: OwnedSemaphorePermit, ip: IpAddr, limit: usize) -> Option<Place> {
        let address = network(ip);
        let mut registry = lock(&self.registry);
        let held = registry.by_address.get(&address).copied().unwrap_or_default();
        if held >= limit.max(1) && !registry.send_away(|open| open.address == address) {
            return None;
        }
        *registry.by_address.entry(address).or_default() += 1;
        let id = registry.next;
        registry.next += 1;
        let (traffic, leave) = (Arc::new(Traffic::default()), Arc::new(Notify::new()));
        registry.open.insert(id, Open { address, traffic: traffic.clone(), leave: leave.clone() });
        Some(Place { traffic, leave, id, registry: self.registry.clone(), _permit: permit })
    }
}

impl Registry {
    /// Tells the oldest idle connection among those wanted to close; returns whether there was one.
    fn send_away(&mut self, wanted: impl Fn(&Open) -> bool) -> bool {
        let wanted = || self.open.iter().filter(|(_, open)| wanted(open));
        let silent = wanted().find(|(_, open)| open.traffic.requests() == 0);
        let resting = || wanted().find(|(_, open)| open.traffic.has_rested(REST_MIN));
        let Some(id) = silent.or_else(resting).map(|(id, _)| *id) else { return false };
        if let Some(open) = self.remove(id) {
            open.leave.notify_one();
        }
        true
    }

    fn remove(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        if let Some(held) = self.by_address.get_mut(&open.address) {
            *held -= 1;
            if *held == 0 {
                self.by_address.remove(&open.address);
            }
        }
        Some(open)
    }
}

impl Place {
    /// Completes when the connection must close.
    pub(super) async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A connection that was told to close is no longer registered.
        let _removed = lock(&self.registry).remove(self.id);
    }
}

fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::Flight;

    /// Returns a place with a request in flight, which is therefore not closed for another.
    async fn busy(places: &Places, ip: &str) -> Option<(Place, crate::flight::Passage)> {
        let place = places.claim(places.wait().await, ip.parse().unwrap(), 2)?;
        let passage = Flight::default().enter(&place.traffic);
        Some((place, passage))
    }

    #[tokio::test]
    async fn an_address_has_so_many_places() {
        let places = Places::new(10);
        let one = busy(&places, "10.0.0.1").await;
        let two = busy(&places, "::ffff:10.0.0.1").await;
        assert!(one.is_some() && two.is_some());
        assert!(busy(&places, "10.0.0.1").await.is_none());
        assert!(busy(&places, "10.0.0.2").await.is_some());
        drop(one);
        assert!(busy(&places, "10.0.0.1").await.is_some());
        let held = (busy(&places, "2001:db8::1").await, busy(&places, "2001:db8::2:1").await);
        assert!(held.0.is_some() && held.1.is_some());
        assert!(busy(&places, "2001:db8::3").await.is_none(), "one network");
        assert!(busy(&places, "2001:db8:0:1::3").await.is_some());
        drop((two, held));
        let registry = lock(&places.registry);
        assert!(registry.by_address.is_empty() && registry.open.is_empty());
    }

    #[tokio::test]
    async fn who_asks_for_nothing_gives_way() {
        let places = Places::new(3);
        let claim = async || {
            let permit = places.wait().await;
            places.claim(permit, "10.0.0.1".parse().unwrap(), 2)
        };
        let asks = busy(&places, "10.0.0.1").await.unwrap();
        let silent = claim().await.unwrap();
        // The address is at its limit: its silent connection is closed, not the one with a request.
        let next = claim().await.unwrap();
        silent.must_leave().await;
        // All places are taken: the oldest silent connection of any address is closed, and its place goes to
        // the new one.
        let leaves = async {
            next.must_leave().await;
            drop(next);
        };
        let (permit, ()) = tokio::join!(places.wait(), leaves);
        let other = places.claim(permit, "10.0.0.9".parse().unwrap(), 2);
        assert!(other.is_some() && asks.0.traffic.is_busy());
        drop((asks, silent, other));
        assert!(lock(&places.registry).by_address.is_empty());
    }

    #[tokio::test]
    async fn who_waits_for_a_place_gets_the_first_that_is_free() {
        let places = Places::new(1);
        let held = busy(&places, "10.0.0.1").await.unwrap();
        let mut waiting = std::pin::pin!(places.wait());
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("a request under way keeps its place"),
            () = tokio::task::yield_now() => (),
        }
        drop(held);
        let _permit = waiting.await;
    }
}
