//! Copies to the host beside the device's commands.
//!
//! Saves have a stream of their own, so that neither commands nor loads are behind the mark that a save waits
//! for. They pass through one page, one after the other.

use std::sync::{Arc, Mutex};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

use crate::device::lock;
use crate::staging::{PAGE_BYTES, Page};

/// The saves of a device.
#[derive(Debug)]
pub(crate) struct Saves {
    stream: Arc<CudaStream>,
    /// `None` before the first save.
    page: Mutex<Option<Page>>,
}

impl Saves {
    /// Makes saves in a stream. The page is allocated by the first one.
    pub(crate) fn new(stream: Arc<CudaStream>) -> Self {
        Self { stream, page: Mutex::default() }
    }

    /// Copies memory of the device to `out` after an event, and returns when it is there. The caller keeps
    /// the memory until then.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn fetch(
        &self,
        from: u64,
        out: &mut [u8],
        after: Option<&CudaEvent>,
    ) -> Result<(), DriverError> {
        let mut page = lock(&self.page);
        let page = match &mut *page {
            Some(page) => page,
            // A thread that waits for the page sleeps: others have work for the processor.
            none => none.insert(Page::new(self.stream.context(), CUevent_flags::CU_EVENT_BLOCKING_SYNC)?),
        };
        if let Some(after) = after {
            self.stream.wait(after)?;
        }
        self.stream.context().bind_to_thread()?;
        let mut from = from;
        for piece in out.chunks_mut(PAGE_BYTES) {
            let place = page.bytes(0, piece.len());
            // SAFETY: the caller keeps the device's memory; nobody touches the page before the wait below.
            unsafe { result::memcpy_dtoh_async(place, from, self.stream.cu_stream()) }?;
            page.record(&self.stream)?;
            page.wait()?;
            piece.copy_from_slice(page.bytes(0, piece.len()));
            from += piece.len() as u64;
        }
        Ok(())
    }
}

impl Drop for Saves {
    fn drop(&mut self) {
        // The device may still write the page. If it is lost, it writes no more.
        let _ = self.stream.synchronize();
    }
}
