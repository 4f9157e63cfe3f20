//! The threads that run the loops of this crate.
//!
//! One job runs at a time. The calling thread and the workers that are awake each take a share of its tasks
//! by counters, then the tasks that are left of other shares. The caller waits only for workers that have
//! joined the job, so a worker that the operating system has descheduled costs nothing.
//!
//! Between jobs a worker first spins for some microseconds, since the next product of a pass follows at once.
//! Then it yields to other programs between looks at the state, and at last it sleeps.
//!
//! What always holds: when [`Pool::run`] returns, every task has run exactly once and no thread touches the
//! job any more. A task that panics makes the [`Pool::run`] of its own job panic, and no other.

use std::cell::UnsafeCell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, yield_now};
use std::{any::Any, hint, io};

/// Number of looks at the state after which a waiting thread stops pausing and starts yielding.
const SPINS: u32 = 2_000;
/// Number of looks with a yield between them, before the thread sleeps.
const YIELDS: u32 = 200;

/// Set while workers may join the current job.
const OPEN: u64 = 1 << 31;
/// Added for each new job. The lower bits hold [`OPEN`] and the number of workers in the job.
const JOB: u64 = 1 << 32;

type Task<'a> = dyn Fn(usize) + Sync + 'a;
type Panic = Box<dyn Any + Send>;

/// A fixed number of threads that serve one caller at a time.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
}

/// The current job; valid while workers are in it.
struct Job {
    task: *const Task<'static>,
    total: usize,
}

/// A counter on a cache line of its own.
#[repr(align(64))]
struct Next(AtomicUsize);

struct Shared {
    /// The number of jobs so far in units of [`JOB`], the [`OPEN`] bit, and the number of workers in the job.
    state: AtomicU64,
    job: UnsafeCell<Job>,
    /// For each thread, the next task of its share.
    next: Box<[Next]>,
    panic: Mutex<Option<Panic>>,
    stop: AtomicBool,
    /// Number of workers that sleep on `wake`.
    sleeping: Mutex<usize>,
    wake: Condvar,
}

// SAFETY: `job` is written only by `Pool::run` while the state is closed and no worker is in a job. It is
// read only by workers that have joined an open job. Release and acquire on the state order the two. The task
// is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is followed only as said above, whichever thread owns the pool.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts a pool of `threads` threads, the caller's own included.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn new(threads: NonZeroUsize) -> io::Result<Self> {
        let idle: &Task<'static> = &|_| {};
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job { task: idle, total: 0 }),
            next: (0..threads.get()).map(|_| Next(AtomicUsize::new(0))).collect(),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleeping: Mutex::new(0),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new(), busy: AtomicBool::new(false) };
        for i in 1..threads.get() {
            let shared = Arc::clone(&pool.shared);
            pool.workers.push(Builder::new().name(format!("compute-{i}")).spawn(move || shared.work(i))?);
        }
        Ok(pool)
    }

    /// Returns a pool of the calling thread alone.
    pub fn single() -> Self {
        Self::new(NonZeroUsize::MIN).expect("a pool of one starts no thread")
    }

    /// Returns the number of threads, the caller's own included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` once for each `i` below `total`, on any thread and in any order. A call from inside a
    /// task, or while another thread runs a job, runs on the calling thread alone.
    ///
    /// # Panics
    /// If a task panics; all other tasks have ended by then.
    pub fn run(&self, total: usize, task: impl Fn(usize) + Sync) {
        if total <= 1 || self.workers.is_empty() || self.busy.swap(true, Ordering::Acquire) {
            (0..total).for_each(task);
            return;
        }
        let task: &Task<'_> = &task;
        self.shared.open(task, total);
        self.shared.take_tasks(0, task, total);
        self.shared.close();
        // Taken before another thread's job may begin, so that this is never the panic of that job.
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `f` with each of the items.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn for_each<T: Send>(&self, items: impl IntoIterator<Item = T>, f: impl Fn(T) + Sync) {
        let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
        self.run(items.len(), |i| {
            let item = items[i].lock().unwrap_or_else(PoisonError::into_inner).take();
            f(item.expect("each task runs once"));
        });
    }

    /// Returns `f(i)` for each `i` below `total`, in order.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn map<T: Send>(&self, total: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let made: Vec<Mutex<Option<T>>> = (0..total).map(|_| Mutex::new(None)).collect();
        self.run(total, |i| {
            let value = f(i);
            *made[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        let taken = made.into_iter().map(|value| value.into_inner().unwrap_or_else(PoisonError::into_inner));
        taken.map(|value| value.expect("every task has run")).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        drop(self.shared.sleeping.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks and cannot fail otherwise.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Lets workers join a job. The caller knows that the previous job has ended.
    fn open(&self, task: &Task<'_>, total: usize) {
        // SAFETY: this only lengthens the lifetime in the type; `close` returns after the last worker has
        // left the job.
        let task: *const Task<'static> = unsafe { std::mem::transmute::<&Task<'_>, &Task<'static>>(task) };
        // SAFETY: the state is closed and no worker is in a job, so nobody reads this.
        unsafe { *self.job.get() = Job { task, total } };
        for (thread, next) in self.next.iter().enumerate() {
            next.0.store(self.share(thread, total), Ordering::Relaxed);
        }
        let state = self.state.load(Ordering::Relaxed);
        self.state.store((state & !(JOB - 1)).wrapping_add(JOB) | OPEN, Ordering::SeqCst);
        if *self.sleeping.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            self.wake.notify_all();
        }
    }

    /// Lets no more workers join, and waits until those that have joined leave.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0u32;
        while self.state.load(Ordering::Acquire) & (OPEN - 1) > 0 {
            looks = looks.saturating_add(1);
            if looks < SPINS {
                hint::spin_loop();
            } else {
                yield_now();
            }
        }
    }

    /// Returns the first task of a thread's share.
    fn share(&self, thread: usize, total: usize) -> usize {
        thread * total / self.next.len()
    }

    /// Runs the tasks of a thread's own share in order, since neighbours in memory are read fastest one after
    /// the other. Then it runs tasks of other shares that are left.
    fn take_tasks(&self, own: usize, task: &Task<'_>, total: usize) {
        let threads = self.next.len();
        for thread in (own..threads).chain(0..own) {
            let (next, end) = (&self.next[thread].0, self.share(thread + 1, total));
            while next.load(Ordering::Relaxed) < end {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= end {
                    break;
                }
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(i))) {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                }
            }
        }
    }

    /// Joins job after job until the pool ends.
    fn work(&self, thread: usize) {
        let mut done = 0;
        while let Some(job) = self.join(done) {
            done = job;
            // SAFETY: this worker has joined the job, which was written before and ends only after the worker
            // leaves.
            let job = unsafe { &*self.job.get() };
            // SAFETY: the borrow of the task lasts until the job has ended (see `close`).
            let task = unsafe { &*job.task };
            self.take_tasks(thread, task, job.total);
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job other than `done` and joins it. Returns the job's number, or `None` if the pool
    /// ends.
    fn join(&self, done: u64) -> Option<u64> {
        let mut looks = 0u32;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            if state & OPEN != 0 && state / JOB != done {
                if self
                    .state
                    .compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    return Some(state / JOB);
                }
                continue;
            }
            looks += 1;
            if looks < SPINS {
                hint::spin_loop();
            } else if looks < SPINS + YIELDS {
                yield_now();
            } else {
                self.sleep(done);
                looks = 0;
            }
        }
    }

    /// Sleeps until a job other than `done` is open or the pool ends.
    fn sleep(&self, done: u64) {
        let mut sleeping = self.sleeping.lock().unwrap_or_else(PoisonError::into_inner);
        *sleeping += 1;
        // A thread that opens a job reads the number of sleepers afterwards, under the lock held here.
        while !self.stop.load(Ordering::Acquire) {
            let state = self.state.load(Ordering::SeqCst);
            if state & OPEN != 0 && state / JOB != done {
                break;
            }
            sleeping = self.wake.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
        }
        *sleeping -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn every_task_runs_once_in_every_job() {
        for threads in [1, 2, 3, 8] {
            let pool = pool(threads);
            assert_eq!(pool.threads(), threads);
            for round in 0..2_000 {
                let total = round % 37;
                let seen: Vec<AtomicUsize> = (0..total).map(|_| AtomicUsize::new(0)).collect();
                pool.run(total, |i| {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    seen.iter().all(|n| n.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {total} tasks"
                );
            }
        }
    }

    #[test]
    fn sleepers_wake() {
        let pool = pool(4);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(pool.map(100, |i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
        }
    }

    #[test]
    fn items_are_handed_out_once() {
        let pool = pool(3);
        let mut rows = vec![0u64; 1_000];
        pool.for_each(rows.chunks_mut(7).enumerate(), |(i, chunk)| chunk.fill(i as u64 + 1));
        assert!(rows.iter().enumerate().all(|(at, v)| *v == at as u64 / 7 + 1));
    }

    #[test]
    fn a_job_inside_a_job_runs_in_its_place() {
        let pool = pool(2);
        let sums = pool.map(8, |i| pool.map(5, |j| i * j).iter().sum::<usize>());
        assert_eq!(sums, (0..8).map(|i| 10 * i).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = pool(3);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(50, |i| assert!(i != 17, "task {i}"));
        }));
        let text = caught.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(*text, "task 17");
        assert_eq!(pool.map(3, |i| i), [0, 1, 2]);
    }

    #[test]
    fn a_panic_reaches_the_caller_of_its_own_job() {
        const ROUNDS: usize = 4_000;
        let pool = pool(3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let caught = catch_unwind(AssertUnwindSafe(|| pool.run(2, |_| {})));
                    assert!(caught.is_ok(), "round {round} of what is in order");
                }
            });
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    // Unlike `panic!`, this prints nothing.
                    let caught = catch_unwind(AssertUnwindSafe(|| {
                        pool.run(2, |i| resume_unwind(Box::new(i)));
                    }));
                    assert!(caught.is_err(), "round {round} of what panics");
                }
            });
        });
    }

    #[test]
    fn no_other_job_begins_before_the_panics_are_taken() {
        let (pool, done) = (pool(2), AtomicUsize::new(0));
        let panics = pool.shared.panic.lock().unwrap();
        std::thread::scope(|scope| {
            let job = scope.spawn(|| {
                pool.run(2, |_| {
                    done.fetch_add(1, Ordering::Release);
                });
                done.store(3, Ordering::Release);
            });
            while done.load(Ordering::Acquire) < 2 {
                yield_now();
            }
            // Long enough for the job to end if it did not wait for this lock.
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(done.load(Ordering::Acquire), 2);
            assert!(pool.busy.load(Ordering::Acquire));
            drop(panics);
            job.join().unwrap();
            assert!(!pool.busy.load(Ordering::Acquire));
        });
    }
}
