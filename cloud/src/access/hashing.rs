//! Hashes of passwords in a running service: one at a time for strangers, one for those who are known, and few that wait.
//!
//! A hash takes 19 MiB and tens of milliseconds on purpose, so whoever can ask for one could take all memory and CPUs.
//! Never: computes on a thread of the runtime. Always: two hashes at most at the same time; strangers do not make those
//! who are known wait.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::password::Workspace;

/// Who asks for a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// Anybody.
    Stranger,
    /// Somebody on a device on which they have logged in before, or who is logged in.
    Known,
}

/// Strangers' hashes that wait: a second or two of work.
const STRANGERS_MAX: usize = 48;
/// Hashes of those who are known that wait.
const KNOWN_MAX: usize = 16;

/// Computes hashes in turn.
#[derive(Debug, Clone)]
pub struct Hashing {
    strangers: Lane,
    known: Lane,
}

#[derive(Debug, Clone)]
struct Lane {
    /// Who waits or computes.
    places: Arc<Semaphore>,
    /// Who computes.
    turn: Arc<Semaphore>,
    /// Where: free for who has the turn.
    space: Arc<Mutex<Workspace>>,
}

impl Lane {
    fn new(places: usize) -> Lane {
        Lane {
            places: Arc::new(Semaphore::new(places)),
            turn: Arc::new(Semaphore::new(1)),
            space: Arc::default(),
        }
    }
}

impl Lane {
    fn place(&self, held: OwnedSemaphorePermit) -> Place {
        Place { held, turn: self.turn.clone(), space: self.space.clone() }
    }
}

impl Default for Hashing {
    fn default() -> Hashing {
        Hashing { strangers: Lane::new(STRANGERS_MAX), known: Lane::new(KNOWN_MAX) }
    }
}

impl Hashing {
    /// A place in the queue; none if it is full.
    #[must_use]
    pub fn place(&self, asker: Asker) -> Option<Place> {
        let lane = match asker {
            Asker::Stranger => &self.strangers,
            Asker::Known => &self.known,
        };
        let held = lane.places.clone().try_acquire_owned().ok()?;
        Some(lane.place(held))
    }

    /// Waits for a place; for those who are logged in.
    pub async fn wait(&self) -> Place {
        let held = self.known.places.clone().acquire_owned().await.expect(OPEN);
        self.known.place(held)
    }
}

/// A place in the queue, given back when the hash is computed or nobody wants it any more.
#[derive(Debug)]
pub struct Place {
    held: OwnedSemaphorePermit,
    turn: Arc<Semaphore>,
    space: Arc<Mutex<Workspace>>,
}

impl Place {
    /// Computes a hash, or compares with one, when its turn comes.
    ///
    /// # Panics
    /// If `work` panics.
    pub async fn compute<T: Send + 'static>(
        self,
        work: impl FnOnce(&mut Workspace) -> T + Send + 'static,
    ) -> T {
        let turn = self.turn.acquire_owned().await.expect(OPEN);
        let (held, space) = (self.held, self.space);
        // The turn ends with the work, also if the caller has gone away meanwhile.
        let work = move || {
            // What a panic left in it does no harm: each hash overwrites it.
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
        let places: Vec<Place> = std::iter::from_fn(|| hashing.place(Asker::Stranger)).collect();
        assert_eq!(places.len(), STRANGERS_MAX);
        let known = hashing.place(Asker::Known).expect("strangers take no place of the known");
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
        assert!(hashing.place(Asker::Stranger).is_some(), "places come back");
    }

    #[tokio::test]
    async fn who_goes_away_gives_the_place_back() {
        let hashing = Hashing::default();
        let first = hashing.place(Asker::Known).unwrap();
        let turn = first.turn.clone().try_acquire_owned().unwrap();
        let waits = tokio::spawn(first.compute(|_| ()));
        tokio::task::yield_now().await;
        waits.abort();
        assert!(waits.await.unwrap_err().is_cancelled());
        drop(turn);
        assert_eq!(hashing.known.places.available_permits(), KNOWN_MAX);
        hashing.place(Asker::Known).unwrap().compute(|_| ()).await;
    }
}
