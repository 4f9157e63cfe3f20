//! Threads that move blocks of units to the GPU, and keys and values both ways.
//!
//! A thread is not bound to a unit or a kind of task (PIPO, section 3.2). Each takes the next task. Who needs
//! a unit waits for its [`Ticket`].

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use baton_kernels_gpu::Mark;

use crate::weights::WeightError;
use crate::weights::direct::Buffer as ReadBuffer;

/// Locks, also after a panic of another thread: each change is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that a thread keeps from task to task.
pub(super) type Scratch = Option<ReadBuffer>;

/// A part of the transfer of a unit. Returns the ends of its copies to the device.
pub(super) type Task = Box<dyn FnOnce(&mut Scratch) -> Result<Vec<Mark>, WeightError> + Send>;

/// How far the transfer of a unit is.
#[derive(Default)]
pub(super) struct Ticket {
    progress: Mutex<Progress>,
    has_ended: Condvar,
}

#[derive(Default)]
struct Progress {
    left: usize,
    marks: Vec<Mark>,
    failed: Option<WeightError>,
    is_cancelled: bool,
}

impl Ticket {
    /// Lets threads pass over the tasks that none has taken.
    pub(super) fn cancel(&self) {
        lock(&self.progress).is_cancelled = true;
    }

    /// Waits until every task is done or passed over, and returns the ends of the copies to the device.
    ///
    /// # Errors
    /// [`WeightError::Read`] if bytes could not be read.
    pub(super) fn settle(&self) -> Result<Vec<Mark>, WeightError> {
        let mut progress = lock(&self.progress);
        while progress.left > 0 {
            progress = self.has_ended.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        match progress.failed.take() {
            Some(err) => Err(err),
            None => Ok(std::mem::take(&mut progress.marks)),
        }
    }

    fn is_wanted(&self) -> bool {
        let progress = lock(&self.progress);
        !progress.is_cancelled && progress.failed.is_none()
    }

    fn finish(&self, done: Result<Vec<Mark>, WeightError>) {
        let mut progress = lock(&self.progress);
        match done {
            Ok(marks) => progress.marks.extend(marks),
            Err(err) => progress.failed = Some(err),
        }
        progress.left -= 1;
        if progress.left == 0 {
            self.has_ended.notify_all();
        }
    }
}

struct Job {
    task: Task,
    ticket: Arc<Ticket>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    has_changed: Condvar,
}

/// The threads.
pub(crate) struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Loader {
    /// Starts threads.
    ///
    /// # Errors
    /// The system's, if it cannot start them.
    pub(crate) fn start(threads: NonZeroUsize) -> io::Result<Self> {
        let mut loader = Self { shared: Arc::default(), threads: Vec::new() };
        for number in 0..threads.get() {
            let shared = Arc::clone(&loader.shared);
            let name = format!("load-{number}");
            loader.threads.push(std::thread::Builder::new().name(name).spawn(move || shared.work())?);
        }
        Ok(loader)
    }

    /// Begins a transfer.
    pub(super) fn begin(&self, tasks: Vec<Task>) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        lock(&ticket.progress).left = tasks.len();
        let job = |task| Job { task, ticket: Arc::clone(&ticket) };
        lock(&self.shared.queue).jobs.extend(tasks.into_iter().map(job));
        self.shared.has_changed.notify_all();
        ticket
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.jobs.clear();
        queue.is_over = true;
        drop(queue);
        self.shared.has_changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut scratch = None;
        while let Some(Job { task, ticket }) = self.next() {
            ticket.finish(if ticket.is_wanted() { task(&mut scratch) } else { Ok(Vec::new()) });
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.is_over {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.has_changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
