//! Places for connections: so many in all, so many for one address.
//!
//! A connection that asks for nothing gives way to a new one if there is no other place, the oldest first: those that
//! never completed a request's head before those that rest between two requests. So connections that are only held open
//! cost other clients nothing, however many there are.
//! Always: a place is given back when it is dropped, an address without connections takes no memory, and a connection
//! with a request under way never gives way.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::flight::Traffic;
use super::network;

/// A connection that rested for this long has sent its last reply, so that closing it cuts nothing off.
const REST_MIN: Duration = Duration::from_secs(1);
/// How often a server without a free place looks again for a connection that rests.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Counts connections.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
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
    /// What passes on the connection.
    pub(super) traffic: Arc<Traffic>,
    leave: Arc<Notify>,
    id: u64,
    book: Arc<Mutex<Book>>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(all: usize) -> Places {
        Places { all: Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS))), book: Arc::default() }
    }

    /// Waits until there is room for the connection that has come; one that asks for nothing is closed for it.
    pub(super) async fn wait(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = self.all.clone().try_acquire_owned() {
                return permit;
            }
            lock(&self.book).send_away(|_| true);
            let permit = self.all.clone().acquire_owned();
            if let Ok(permit) = tokio::time::timeout(LOOK_AGAIN, permit).await {
                return permit.expect("the semaphore is never closed");
            }
        }
    }

    /// A place for `ip`, which may hold at most `limit`: `None` if each of these has a request under way or rested too
    /// shortly; else the oldest of them that asks for nothing is closed.
    pub(super) fn claim(&self, permit: OwnedSemaphorePermit, ip: IpAddr, limit: usize) -> Option<Place> {
        let address = network(ip);
        let mut book = lock(&self.book);
        let held = book.by_address.get(&address).copied().unwrap_or_default();
        if held >= limit.max(1) && !book.send_away(|open| open.address == address) {
            return None;
        }
        *book.by_address.entry(address).or_default() += 1;
        let id = book.next;
        book.next += 1;
        let (traffic, leave) = (Arc::new(Traffic::default()), Arc::new(Notify::new()));
        book.open.insert(id, Open { address, traffic: traffic.clone(), leave: leave.clone() });
        Some(Place { traffic, leave, id, book: self.book.clone(), _permit: permit })
    }
}

impl Book {
    /// Tells the oldest connection that asks for nothing, of those wanted, to leave; returns whether there was one.
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
    /// Ready when the connection must leave.
    pub(super) async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // One that was told to leave is gone from the book already.
        let _removed = lock(&self.book).remove(self.id);
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::Flight;

    /// A place with a request under way, so that it does not give way.
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
        let book = lock(&places.book);
        assert!(book.by_address.is_empty() && book.open.is_empty());
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
        // The address is at its limit: its silent connection leaves, not the one with a request.
        let next = claim().await.unwrap();
        silent.must_leave().await;
        // All places are taken: the oldest silent one leaves, whoever's it is, and its place is the newcomer's.
        let leaves = async {
            next.must_leave().await;
            drop(next);
        };
        let (permit, ()) = tokio::join!(places.wait(), leaves);
        let other = places.claim(permit, "10.0.0.9".parse().unwrap(), 2);
        assert!(other.is_some() && asks.0.traffic.is_busy());
        drop((asks, silent, other));
        assert!(lock(&places.book).by_address.is_empty());
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
