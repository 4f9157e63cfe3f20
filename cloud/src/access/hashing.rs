//! Hashes passwords in a running service. Unknown and known users have a queue each, of bounded length, that
//! computes one hash at a time.
//!
//! A hash takes 19 MiB and tens of milliseconds on purpose. Without a limit, attackers could use up all
//! memory and CPUs. Never: computes on a thread of the runtime. Always: computes at most two hashes at the
//! same time; unknown users do not make known ones wait.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::password::Workspace;

/// Who needs a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// Anybody on an unknown device.
    Stranger,
    /// A user who is logged in, or who has logged in on this device before.
    Known,
}

/// The most hashes of strangers that wait or are computed: a second or two of work.
const STRANGERS_MAX: usize = 48;
/// The most hashes of known users that wait or are computed.
const KNOWN_MAX: usize = 16;

/// Computes hashes, one at a time in each queue.
#[derive(Debug, Clone)]
pub struct Hashing {
    strangers: HashQueue,
    known: HashQueue,
}

#[derive(Debug, Clone)]
struct HashQueue {
    /// A permit for each hash that waits or is computed.
    places: Arc<Semaphore>,
    /// The permit to compute.
    turn: Arc<Semaphore>,
    /// The memory for the hash that is computed.
    space: Arc<Mutex<Workspace>>,
}

impl HashQueue {
    fn new(places: usize) -> HashQueue {
        HashQueue {
            places: Arc::new(Semaphore::new(places)),
            turn: Arc::new(Semaphore::new(1)),
            space: Arc::default(),
        }
    }
}

impl HashQueue {
    fn place(&self, held: OwnedSemaphorePermit) -> HashPlace {
        HashPlace { held, turn: self.turn.clone(), space: self.space.clone() }
    }
}

impl Default for Hashing {
    fn default() -> Hashing {
        Hashing { strangers: HashQueue::new(STRANGERS_MAX), known: HashQueue::new(KNOWN_MAX) }
    }
}

impl Hashing {
    /// Takes a place in the queue; `None` if it is full.
    #[must_use]
    pub fn place(&self, requester: Requester) -> Option<HashPlace> {
        let queue = match requester {
            Requester::Stranger => &self.strangers,
            Requester::Known => &self.known,
        };
        let held = queue.places.clone().try_acquire_owned().ok()?;
        Some(queue.place(held))
    }

    /// Waits for a place in the queue of known users. For users who are logged in.
    pub async fn wait(&self) -> HashPlace {
        let held = self.known.places.clone().acquire_owned().await.expect(OPEN);
        self.known.place(held)
    }
}

/// A place in the queue. It is given back when the hash is computed, or when this is dropped.
#[derive(Debug)]
pub struct HashPlace {
    held: OwnedSemaphorePermit,
    turn: Arc<Semaphore>,
    space: Arc<Mutex<Workspace>>,
}

impl HashPlace {
    /// Waits for its turn, then computes a hash or compares a password with one.
    ///
    /// # Panics
    /// If `work` panics.
    pub async fn compute<T: Send + 'static>(
        self,
        work: impl FnOnce(&mut Workspace) -> T + Send + 'static,
    ) -> T {
        let turn = self.turn.acquire_owned().await.expect(OPEN);
        let (held, space) = (self.held, self.space);
        // The turn ends with the work, also if the caller was cancelled meanwhile.
        let work = move || {
            // The content after a panic does not matter: each hash overwrites it.
            let done = work(&mut space.lock().unwrap_or_else(PoisonError::into_inner));
            drop((turn, held));
            done
        };
        tokio::task::spawn_blocking(work).await.expect("computing a hash does not panic")
    }
}

const OPEN: &str = "the semaphores are never closed";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_stranger_at_a_time_and_few_that_wait() {
        let (hashing, running, most) = (Hashing::default(), Arc::new(AtomicUsize::new(0)), Arc::default());
        let places: Vec<HashPlace> = std::iter::from_fn(|| hashing.place(Requester::Stranger)).collect();
        assert_eq!(places.len(), STRANGERS_MAX);
        let known = hashing.place(Requester::Known).expect("strangers take no place of the known");
        let tasks = places.into_iter().chain([known]).map(|place| {
            let (running, most): (_, Arc<AtomicUsize>) = (running.clone(), Arc::clone(&most));
            tokio::spawn(place.compute(move |_| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            }))
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        assert!(hashing.place(Requester::Stranger).is_some(), "places come back");
    }

    #[tokio::test]
    async fn who_goes_away_gives_the_place_back() {
        let hashing = Hashing::default();
        let first = hashing.place(Requester::Known).unwrap();
        let turn = first.turn.clone().try_acquire_owned().unwrap();
        let waits = tokio::spawn(first.compute(|_| ()));
        tokio::task::yield_now().await;
        waits.abort();
        assert!(waits.await.unwrap_err().is_cancelled());
        drop(turn);
        assert_eq!(hashing.known.places.available_permits(), KNOWN_MAX);
        hashing.place(Requester::Known).unwrap().compute(|_| ()).await;
    }
}
