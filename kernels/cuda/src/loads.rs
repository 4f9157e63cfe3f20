//! Copies to the device beside its commands.
//!
//! Loads have a stream of their own. A thread that loads takes a page, fills it, and lets the device fetch
//! it, so several threads fill pages at the same time. A page is used again after the device has passed the
//! event behind its bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

use crate::device::lock;
use crate::staging::{PAGE_BYTES, Page};

/// Pages of all loads.
const PAGES: usize = 8;

/// The loads of a device.
#[derive(Debug)]
pub(crate) struct Loads {
    stream: Arc<CudaStream>,
    /// Pages that no thread fills, in the order in which the device fetches them; `None` before the first
    /// load.
    free: Mutex<Option<VecDeque<Page>>>,
    returned: Condvar,
}

impl Loads {
    /// Makes loads in a stream. Pages are allocated by the first one.
    pub(crate) fn new(stream: Arc<CudaStream>) -> Self {
        Self { stream, free: Mutex::default(), returned: Condvar::new() }
    }

    /// Copies bytes to memory of the device that has room for them, after an event. Waits only if the device
    /// has still to fetch all pages. Returns the event behind the copy.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn send(
        &self,
        to: u64,
        bytes: &[u8],
        after: Option<&CudaEvent>,
    ) -> Result<CudaEvent, DriverError> {
        let mut to = to;
        for piece in bytes.chunks(PAGE_BYTES) {
            let mut page = self.take()?;
            let answer = self.send_page(&mut page, to, piece, after);
            self.give_back(page);
            answer?;
            to += piece.len() as u64;
        }
        self.stream.record_event(None)
    }

    /// Fills a page after the device has fetched its last bytes, and lets the device fetch it.
    fn send_page(
        &self,
        page: &mut Page,
        to: u64,
        piece: &[u8],
        after: Option<&CudaEvent>,
    ) -> Result<(), DriverError> {
        page.wait()?;
        page.bytes(0, piece.len()).copy_from_slice(piece);
        if let Some(after) = after {
            // It is called only now: loads of other threads need not wait for it while the page is filled.
            self.stream.wait(after)?;
        }
        self.stream.context().bind_to_thread()?;
        // SAFETY: the caller owns the device's memory; the page is not touched again before the event
        // behind this copy.
        unsafe { result::memcpy_htod_async(to, page.bytes(0, piece.len()), self.stream.cu_stream()) }?;
        page.record(&self.stream)
    }

    /// Takes the page that the device has fetched, or fetches, first.
    fn take(&self) -> Result<Page, DriverError> {
        let mut free = lock(&self.free);
        loop {
            let pages = match &mut *free {
                Some(pages) => pages,
                none => none.insert(self.allocate()?),
            };
            if let Some(page) = pages.pop_front() {
                return Ok(page);
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Allocates the pages. A thread that waits for one sleeps: others have work for the processor.
    fn allocate(&self) -> Result<VecDeque<Page>, DriverError> {
        let page = |_| Page::new(self.stream.context(), CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        (0..PAGES).map(page).collect()
    }

    fn give_back(&self, page: Page) {
        lock(&self.free).get_or_insert_default().push_back(page);
        self.returned.notify_one();
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        // The device may still read the pages. If it is lost, it reads no more.
        let _ = self.stream.synchronize();
    }
}
