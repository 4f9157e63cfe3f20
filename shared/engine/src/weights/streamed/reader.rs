//! The threads that read weights, and how a pass waits for them.
//!
//! There are a few threads, and any thread does any work (PIPO, section 3.2.1). Each takes the next
//! read of the [`Queue`], else a range of the resident set to read into the page cache, else a range to bring
//! there for later. A pass never reads; it waits, and the waiting time is counted. What always holds:
//! dropping the reader ends its threads after their current reads.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::direct::{Buffer, DirectFile};
use super::queue::{Extent, Queue, Read, Taken};
use crate::gguf::Gguf;
use crate::weights::WeightError;

/// Bytes of the resident set that a thread reads before it checks for more urgent work.
const WARM_BYTES: usize = 8 << 20;

/// Statistics of a reader since its start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Bytes of direct reads, including alignment.
    pub(super) bytes_read: u64,
    pub(super) reads: u64,
    pub(super) reads_in_vain: u64,
    /// Time that passes waited for a read.
    pub(super) waited: Duration,
    /// Time with at least one read in progress.
    pub(super) reading: Duration,
    /// Bytes of the resident set that are still to be read into the page cache.
    pub(super) cold_bytes: u64,
}

#[derive(Debug)]
struct State {
    queue: Queue<Buffer>,
    /// Ranges of the resident set that are still to be read into the page cache.
    warm: VecDeque<Extent>,
    /// Whether a thread brings a range into the page cache: one is enough, so that the others can do urgent
    /// work.
    caching: bool,
    counts: Counts,
    /// Number of reads in progress, and since when there is at least one.
    under_way: usize,
    since: Instant,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    gguf: Arc<Gguf>,
    files: Vec<DirectFile>,
    state: Mutex<State>,
    /// Signalled when there may be something to read.
    work: Condvar,
    /// Signalled when a read has ended or a buffer is free.
    done: Condvar,
}

/// Reads weights for the passes of one model.
#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The settings of a reader.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderOptions {
    pub(super) buffers: usize,
    pub(super) buffer_bytes: usize,
    pub(super) threads: usize,
    /// Buffers that reading ahead leaves for requests.
    pub(super) spared: usize,
    pub(super) reads_ahead: bool,
}

enum Work {
    Read(Read<Buffer>),
    Warm(Extent),
    Cache(Extent),
    Forget(Extent),
}

impl Reader {
    /// Starts threads that wait for work.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn new(gguf: Arc<Gguf>, files: Vec<DirectFile>, options: ReaderOptions) -> io::Result<Self> {
        let buffers = Buffer::several(options.buffers, options.buffer_bytes);
        let state = State {
            queue: Queue::new(buffers, options.spared, options.reads_ahead),
            warm: VecDeque::new(),
            caching: false,
            counts: Counts::default(),
            under_way: 0,
            since: Instant::now(),
            stop: false,
        };
        let (work, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { gguf, files, state: Mutex::new(state), work, done });
        let mut reader = Self { shared, threads: Vec::new() };
        for i in 0..options.threads {
            let shared = Arc::clone(&reader.shared);
            let thread = Builder::new().name(format!("weights-{i}")).spawn(move || shared.work());
            reader.threads.push(thread?);
        }
        Ok(reader)
    }

    /// Whether all files are read past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.shared.files.iter().all(DirectFile::is_direct)
    }

    /// Sets the ranges that are read for every token, and how many of their bytes the page cache may hold for
    /// later. `keep` is to be read into the resident set; `let_go` may leave it.
    pub(super) fn set(&self, cycle: Vec<Extent>, cache_bytes: usize, keep: Vec<Extent>, let_go: &[Extent]) {
        for Extent { part, bytes } in let_go {
            self.shared.gguf.let_go(*part, bytes.clone());
            self.shared.files[*part].forget(bytes.clone());
        }
        let mut warm = Vec::new();
        for Extent { part, bytes } in keep {
            // First the ends, which are not in huge pages.
            for end in self.shared.gguf.expect_use(part, bytes.clone()) {
                self.shared.files[part].read_ahead(end);
            }
            let mut first = bytes.start;
            while first < bytes.end {
                // Cut at multiples, so that no huge page is split.
                let end = bytes.end.min((first + 1).next_multiple_of(WARM_BYTES));
                warm.push(Extent { part, bytes: first..end });
                first = end;
            }
        }
        let mut state = self.shared.lock();
        state.queue.set_cycle(cycle, cache_bytes);
        // Ranges that have left the resident set must not be read into it any more.
        state.warm.retain(|cold| !let_go.iter().any(|gone| gone.meets(cold)));
        state.warm.extend(warm);
        drop(state);
        self.shared.work.notify_all();
    }

    /// Begins a pass: drops unused requests.
    pub(super) fn begin_pass(&self) {
        self.shared.lock().queue.forget_asked();
        self.shared.work.notify_all();
    }

    /// Announces ranges that a pass will wait for.
    pub(super) fn ask(&self, extents: impl IntoIterator<Item = Extent>) {
        let mut state = self.shared.lock();
        extents.into_iter().for_each(|extent| state.queue.ask(extent));
        drop(state);
        self.shared.work.notify_all();
    }

    /// Waits for a range and lends its bytes to `use_bytes`; its buffer is free again afterwards.
    ///
    /// # Errors
    /// [`WeightError::Read`] if the disk fails.
    pub(super) fn with<T>(
        &self,
        extent: &Extent,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, WeightError> {
        let mut state = self.shared.lock();
        let ticket = state.queue.claim(extent);
        self.shared.work.notify_all();
        let mut since = None;
        let taken = loop {
            match state.queue.take(ticket) {
                Taken::NotYet => {}
                Taken::Here(buffer) => break Ok(buffer),
                Taken::Failed(err) => break Err(err),
            }
            since.get_or_insert_with(Instant::now);
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.counts.waited += since.map_or(Duration::ZERO, |since| since.elapsed());
        drop(state);
        match taken {
            Ok(buffer) => {
                let held = Held { shared: &self.shared, buffer: Some(buffer) };
                Ok(use_bytes(held.bytes()))
            }
            Err(err) => {
                let path = self.shared.files[extent.part].path().to_owned();
                let (offset, len) = (extent.bytes.start as u64, extent.bytes.len());
                Err(WeightError::Read { path, offset, len, err })
            }
        }
    }

    /// Returns the statistics so far.
    pub(super) fn counts(&self) -> Counts {
        let state = self.shared.lock();
        let open = if state.under_way > 0 { state.since.elapsed() } else { Duration::ZERO };
        Counts {
            reads_in_vain: state.queue.in_vain(),
            reading: state.counts.reading + open,
            cold_bytes: state.warm.iter().map(|extent| extent.bytes.len() as u64).sum(),
            ..state.counts
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it; nothing more can be done.
            let _ = thread.join();
        }
    }
}

impl State {
    fn begin_read(&mut self) {
        if self.under_way == 0 {
            self.since = Instant::now();
        }
        self.under_way += 1;
    }

    fn end_read(&mut self) {
        self.under_way -= 1;
        if self.under_way == 0 {
            self.counts.reading += self.since.elapsed();
        }
    }
}

/// A buffer lent to a pass; returned however the pass ends.
struct Held<'a> {
    shared: &'a Shared,
    buffer: Option<Buffer>,
}

impl Held<'_> {
    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], Buffer::bytes)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.shared.lock().queue.give_back(buffer);
            self.shared.work.notify_one();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until the reader is dropped.
    fn work(&self) {
        while let Some(work) = self.next() {
            match work {
                Work::Read(read) => self.read(read),
                // Reads into the page cache, and maps.
                Work::Warm(Extent { part, bytes }) => self.gguf.read_ahead(part, bytes),
                Work::Cache(Extent { part, bytes }) => {
                    let len = bytes.len() as u64;
                    self.files[part].cache(bytes);
                    let mut state = self.lock();
                    state.end_read();
                    state.counts.bytes_read += len;
                    state.caching = false;
                }
                Work::Forget(Extent { part, bytes }) => self.files[part].forget(bytes),
            }
        }
    }

    fn read(&self, Read { ticket, extent, mut buffer, cached }: Read<Buffer>) {
        let file = &self.files[extent.part];
        let read = || match cached {
            // Counted when it was brought into the page cache.
            true => file.read_cached(&extent.bytes, &mut buffer).map(|()| 0),
            false => file.read(&extent.bytes, &mut buffer),
        };
        // A panic is a bug. It must not leave a pass waiting for ever.
        let result = catch_unwind(AssertUnwindSafe(read))
            .unwrap_or_else(|_| Err(io::Error::other("the thread that reads has panicked")));
        let mut state = self.lock();
        state.end_read();
        state.counts.reads += 1;
        state.counts.bytes_read += result.as_ref().map_or(0, |read| *read as u64);
        state.queue.finish(ticket, buffer, result.map(drop));
        drop(state);
        self.done.notify_all();
    }

    /// Waits for work and returns it, or `None` if the reader is being dropped.
    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(read) = state.queue.start() {
                state.begin_read();
                return Some(Work::Read(read));
            }
            if let Some(extent) = state.warm.pop_front() {
                return Some(Work::Warm(extent));
            }
            if let Some(extent) = state.queue.outdated() {
                return Some(Work::Forget(extent));
            }
            if !state.caching
                && let Some(extent) = state.queue.start_caching()
            {
                state.caching = true;
                state.begin_read();
                return Some(Work::Cache(extent));
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
