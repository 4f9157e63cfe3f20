//! Threads that take blocks of units to the GPU.
//!
//! A thread is not bound to a unit or a kind of task (PIPO, section 3.2). Each takes the next block, reads it
//! if it is not in memory, and hands it to the device. Who needs a unit waits for its [`Ticket`].

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use baton_kernels_gpu::{Buffer, Device, Mark, last_word};

use crate::gguf::Gguf;
use crate::weights::direct::{Buffer as ReadBuffer, DirectFile};
use crate::weights::{MatrixAt, WeightError};

/// Locks, also after a panic of another thread: each change is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where bytes of weights come from.
pub(super) enum From {
    /// The mapped file, which is in memory.
    Memory(Arc<Gguf>),
    /// Files that are read past the page cache.
    Disk(Vec<DirectFile>),
}

/// Some bytes of a matrix, and where they go.
pub(super) struct Block {
    pub(super) matrix: MatrixAt,
    /// Bytes of the matrix; they begin at a whole word.
    pub(super) bytes: Range<usize>,
    pub(super) to: Buffer,
    pub(super) to_at: u64,
}

/// How far the load of a unit is.
#[derive(Default)]
pub(super) struct Ticket {
    progress: Mutex<Progress>,
    is_done: Condvar,
}

#[derive(Default)]
struct Progress {
    left: usize,
    marks: Vec<Mark>,
    failed: Option<WeightError>,
    is_cancelled: bool,
}

impl Ticket {
    /// Lets threads pass over the blocks that none has taken.
    pub(super) fn cancel(&self) {
        lock(&self.progress).is_cancelled = true;
    }

    /// Waits until every block was handed over or passed over, and returns the ends of the copies.
    ///
    /// # Errors
    /// [`WeightError::Read`] if a block could not be read.
    pub(super) fn settle(&self) -> Result<Vec<Mark>, WeightError> {
        let mut progress = lock(&self.progress);
        while progress.left > 0 {
            progress = self.is_done.wait(progress).unwrap_or_else(PoisonError::into_inner);
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
            self.is_done.notify_all();
        }
    }
}

struct Job {
    block: Block,
    after: Mark,
    ticket: Arc<Ticket>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_over: bool,
}

struct Shared {
    device: Arc<dyn Device>,
    from: From,
    queue: Mutex<Queue>,
    has_changed: Condvar,
}

/// The threads.
pub(super) struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Loader {
    /// Starts threads.
    ///
    /// # Errors
    /// The system's, if it cannot start them.
    pub(super) fn start(device: Arc<dyn Device>, from: From, threads: NonZeroUsize) -> io::Result<Self> {
        let shared = Arc::new(Shared { device, from, queue: Mutex::default(), has_changed: Condvar::new() });
        let mut loader = Self { shared, threads: Vec::new() };
        for number in 0..threads.get() {
            let shared = Arc::clone(&loader.shared);
            let name = format!("load-{number}");
            loader.threads.push(std::thread::Builder::new().name(name).spawn(move || shared.work())?);
        }
        Ok(loader)
    }

    /// Begins to load blocks, after what the device was told before `after`.
    pub(super) fn load(&self, blocks: Vec<Block>, after: &Mark) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        lock(&ticket.progress).left = blocks.len();
        let job = |block| Job { block, after: after.clone(), ticket: Arc::clone(&ticket) };
        lock(&self.shared.queue).jobs.extend(blocks.into_iter().map(job));
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
        let mut read = None;
        while let Some(job) = self.next() {
            let done = if job.ticket.is_wanted() { self.load(&job, &mut read) } else { Ok(Vec::new()) };
            job.ticket.finish(done);
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

    /// Loads a block. Returns the ends of the copies.
    fn load(&self, job: &Job, read: &mut Option<ReadBuffer>) -> Result<Vec<Mark>, WeightError> {
        let Block { matrix, bytes, .. } = &job.block;
        match &self.from {
            From::Memory(gguf) => Ok(self.send(job, &matrix.bytes(gguf)[bytes.clone()])),
            From::Disk(files) => {
                let (part, whole) = matrix.extent();
                let (file, range) = (&files[part], whole.start + bytes.start..whole.start + bytes.end);
                let read = ReadBuffer::with_room(read, range.len());
                file.read(&range, read).map_err(|err| WeightError::Read {
                    path: file.path().to_owned(),
                    offset: range.start as u64,
                    len: range.len(),
                    err,
                })?;
                Ok(self.send(job, read.bytes()))
            }
        }
    }

    /// Hands bytes to the device, in whole words.
    fn send(&self, job: &Job, bytes: &[u8]) -> Vec<Mark> {
        let Block { to, to_at, .. } = &job.block;
        let whole = bytes.len() / 4 * 4;
        let mut marks = Vec::new();
        if whole > 0 {
            marks.push(self.device.load(to, *to_at, &bytes[..whole], &job.after));
        }
        if whole < bytes.len() {
            let word = last_word(&bytes[whole..]);
            marks.push(self.device.load(to, to_at + whole as u64, &word, &job.after));
        }
        marks
    }
}
