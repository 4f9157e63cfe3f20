//! Threads that move blocks of units to the GPU, and keys and values both ways.
//!
//! A thread is not bound to a unit or a kind of task (PIPO, section 3.2). Each takes the next task. Who needs
//! a unit waits for its [`Ticket`].
//!
//! What always holds: nobody waits for ever. A task that panics ends with an error, and its thread goes on.
//! The loader keeps the panic as a fault of the GPU, since keys and values may be missing from then on.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use baton_kernels_gpu::{GpuError, Mark};

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
    /// [`WeightError::Read`] if bytes could not be read; [`WeightError::Gpu`] if the device failed, or a task
    /// panicked.
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
    /// The first panic of a task.
    fault: OnceLock<GpuError>,
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

    /// Checks that no task has panicked so far. Whoever ignores what [`Ticket::settle`] says relies on this.
    ///
    /// # Errors
    /// [`WeightError::Gpu`]; it stays.
    pub(super) fn intact(&self) -> Result<(), WeightError> {
        self.shared.fault.get().map_or(Ok(()), |fault| Err(fault.clone().into()))
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
            ticket.finish(if ticket.is_wanted() { self.run(task, &mut scratch) } else { Ok(Vec::new()) });
        }
    }

    /// Runs a task. A panic becomes the fault that it returns.
    fn run(&self, task: Task, scratch: &mut Scratch) -> Result<Vec<Mark>, WeightError> {
        catch_unwind(AssertUnwindSafe(|| task(scratch))).unwrap_or_else(|panic| {
            let fault =
                GpuError::Lost(format!("a thread that moves its data panicked: {}", message(&*panic)));
            Err(self.fault.get_or_init(|| fault).clone().into())
        })
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

/// Returns what a panic says.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    fn loader(threads: usize) -> Loader {
        Loader::start(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    fn done() -> Task {
        Box::new(|_| Ok(vec![Mark::passed()]))
    }

    /// Unlike `panic!`, this prints nothing.
    fn panicking() -> Task {
        Box::new(|_| resume_unwind(Box::new("no such buffer".to_owned())))
    }

    #[test]
    fn a_ticket_ends_when_its_tasks_have() {
        for threads in [1, 3] {
            let loader = loader(threads);
            let tickets = [0, 1, 7].map(|n| (n, loader.begin((0..n).map(|_| done()).collect())));
            for (n, ticket) in tickets {
                assert_eq!(ticket.settle().unwrap().len(), n, "{threads} threads");
            }
            loader.intact().unwrap();
        }
    }

    #[test]
    fn a_task_that_panics_ends_with_an_error_and_its_thread_goes_on() {
        for threads in [1, 3] {
            let loader = loader(threads);
            let ticket = loader.begin(vec![done(), panicking(), done()]);
            let WeightError::Gpu(fault) = ticket.settle().unwrap_err() else { panic!("a fault of the GPU") };
            let says = "a thread that moves its data panicked: no such buffer";
            assert_eq!(fault, GpuError::Lost(says.to_owned()), "{threads} threads");
            assert_eq!(loader.begin(vec![done(), done()]).settle().unwrap().len(), 2, "{threads} threads");
            let WeightError::Gpu(kept) = loader.intact().unwrap_err() else { panic!("a fault of the GPU") };
            assert_eq!(kept, fault, "{threads} threads");
        }
    }
}
