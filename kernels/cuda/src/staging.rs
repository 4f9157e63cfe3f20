//! Pages of the host's memory that the device reads and writes by itself.
//!
//! Bytes that go to the device are copied to a page; the caller goes on while the device fetches them. A page
//! is used again after the device has passed the event behind its last bytes.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4 << 20;
/// Pages to the device.
const PAGES: usize = 4;
/// Where pieces of a page begin: at multiples of this.
const ALIGNMENT: usize = 256;

/// One page.
#[derive(Debug)]
pub(crate) struct Page {
    start: NonNull<c_void>,
    /// Passed when the device has read or written the page.
    read: CudaEvent,
    context: Arc<CudaContext>,
}

// SAFETY: the page is plain memory; only its owner touches it.
unsafe impl Send for Page {}

impl Page {
    /// Allocates a page; the flags say how its event is waited for.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(context: &Arc<CudaContext>, flags: CUevent_flags) -> Result<Self, DriverError> {
        let read = context.new_event(Some(flags))?;
        context.bind_to_thread()?;
        // SAFETY: the memory is written before it is read.
        let start = unsafe { result::malloc_host(PAGE_BYTES, 0) }?;
        let start = NonNull::new(start).expect("a driver that gives memory gives its address");
        Ok(Self { start, read, context: context.clone() })
    }

    /// Returns `n` bytes of the page.
    ///
    /// # Panics
    /// If the page has no such bytes.
    pub(crate) fn bytes(&mut self, at: usize, n: usize) -> &mut [u8] {
        assert!(at + n <= PAGE_BYTES, "bytes {at} to {} of a page of {PAGE_BYTES}", at + n);
        // SAFETY: the place lies in the page, checked above.
        let start = unsafe { self.start.cast::<u8>().add(at) };
        // SAFETY: the memory is valid for any bytes, lies in the page, and is borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), n) }
    }

    /// Puts the event behind what was called in the stream.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.read.record(stream)
    }

    /// Waits until the device has read or written the page. An event that was never recorded is passed.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        self.read.synchronize()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // If the context is gone, so is the page.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the page comes from `malloc_host`; its owner has waited for the stream.
            let _ = unsafe { result::free_host(self.start.as_ptr()) };
        }
    }
}

/// The pages of a device.
#[derive(Debug)]
pub(crate) struct Staging {
    stream: Arc<CudaStream>,
    pages: Vec<Page>,
    /// The page in use, and the bytes of it that are taken.
    current: usize,
    at: usize,
    back: Page,
}

impl Staging {
    /// Allocates the pages.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        let context = stream.context();
        let page = || Page::new(context, CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let pages = (0..PAGES).map(|_| page()).collect::<Result<_, _>>()?;
        Ok(Self { stream: stream.clone(), pages, current: 0, at: 0, back: page()? })
    }

    /// Sends bytes to memory of the device that has room for them. Waits only if all pages are full.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn send(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.stream.context().bind_to_thread()?;
        let mut to = to;
        for piece in bytes.chunks(PAGE_BYTES) {
            if self.at + piece.len() > PAGE_BYTES {
                self.turn()?;
            }
            let place = self.pages[self.current].bytes(self.at, piece.len());
            place.copy_from_slice(piece);
            // SAFETY: the caller owns the device's memory; the piece of the page is not touched again before
            // `turn` has waited for the event behind this copy.
            unsafe { result::memcpy_htod_async(to, place, self.stream.cu_stream()) }?;
            self.at = (self.at + piece.len()).next_multiple_of(ALIGNMENT);
            to += piece.len() as u64;
        }
        Ok(())
    }

    /// Goes to the next page after the device has read it.
    fn turn(&mut self) -> Result<(), DriverError> {
        self.pages[self.current].record(&self.stream)?;
        self.current = (self.current + 1) % PAGES;
        self.at = 0;
        self.pages[self.current].wait()
    }

    /// Waits for everything in the stream and copies memory of the device to `out`.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn fetch(&mut self, from: u64, out: &mut [u8]) -> Result<(), DriverError> {
        self.stream.context().bind_to_thread()?;
        let mut from = from;
        for piece in out.chunks_mut(PAGE_BYTES) {
            let place = self.back.bytes(0, piece.len());
            // SAFETY: the caller owns the device's memory; nobody touches the page before the wait below.
            unsafe { result::memcpy_dtoh_async(place, from, self.stream.cu_stream()) }?;
            self.stream.synchronize()?;
            piece.copy_from_slice(self.back.bytes(0, piece.len()));
            from += piece.len() as u64;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The device may still read the pages. If it is lost, it reads no more.
        let _ = self.stream.synchronize();
    }
}
