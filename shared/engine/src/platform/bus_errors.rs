//! Watches mapped files: if one is cut short, or its disk fails, the program goes on.
//!
//! A handler of the bus error replaces the missing pages by zeros, and [`Watched::is_cut`] returns true from
//! then on. Bus errors outside of watched mappings are handled as before.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// Files that can be watched at the same time. Beyond that, a file that is cut short ends the program.
pub(crate) const WATCHED_MAX: usize = 256;

/// A mapping as the handler of bus errors sees it: numbers that can be read without a lock.
#[derive(Debug)]
pub(crate) struct Watched {
    /// 0 if the entry is free.
    start: AtomicUsize,
    /// 0 until the entry is complete.
    end: AtomicUsize,
    is_cut: AtomicBool,
}

static WATCHED: [Watched; WATCHED_MAX] = [const {
    Watched { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_cut: AtomicBool::new(false) }
}; WATCHED_MAX];
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The previous handler of bus errors.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

impl Watched {
    /// Takes a free entry for a mapping; returns `None` if all are taken.
    pub(crate) fn begin(bytes: &[u8]) -> Option<&'static Watched> {
        static HANDLED: Once = Once::new();
        HANDLED.call_once(handle_bus_errors);
        let start = bytes.as_ptr() as usize;
        let place = WATCHED.iter().find(|w| w.start.compare_exchange(0, start, SeqCst, SeqCst).is_ok())?;
        place.is_cut.store(false, SeqCst);
        place.end.store(start + bytes.len(), SeqCst);
        Some(place)
    }

    /// Gives the entry back. To be called before the mapping is removed: its addresses may be reused then.
    pub(crate) fn end(&self) {
        self.end.store(0, SeqCst);
        self.start.store(0, SeqCst);
    }

    /// Whether missing bytes of the file were touched; zeros were read in their place.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(SeqCst)
    }

    fn holds(&self, address: usize) -> bool {
        // A mapping ends at a page boundary.
        let end = self.end.load(SeqCst).next_multiple_of(PAGE.load(SeqCst).max(1));
        (self.start.load(SeqCst)..end).contains(&address)
    }
}

/// Installs the handler of bus errors. If the system refuses, they end the program as before.
fn handle_bus_errors() {
    PAGE.store(rustix::param::page_size(), SeqCst);
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all fields of `sigaction` are numbers and pointers, for which zero is a value.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both pointers are to `sigaction`s of this function; the handler does only what a signal handler
    // may.
    let set = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) };
    if set == 0 {
        // SAFETY: the call above has filled it.
        let before = Box::new(unsafe { before.assume_init() });
        // Leaked for the life of the program, since a handler may run at any time.
        BEFORE.store(Box::into_raw(before), SeqCst);
    }
    // SAFETY: `action` is complete, and no previous action is requested.
    let refused = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    let _ = refused; // If refused, a file that is cut short ends the program.
}

/// Runs on the thread that touched a missing page. It reads atomics and calls the system, and nothing else:
/// no lock, no heap memory, no formatting.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes a valid description of the signal to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    let by_system = info.si_code > 0;
    // SAFETY: for a bus error from the system this is the touched address; otherwise the value is not used.
    let address = unsafe { info.si_addr() } as usize;
    let file = WATCHED.iter().find(|file| by_system && file.holds(address));
    if file.is_some_and(|file| put_zeros(file, address)) {
        return;
    }
    // Not a model file: restore the previous action, which takes effect when this handler returns.
    let before = BEFORE.load(SeqCst);
    // SAFETY: `before` is null or points to a `sigaction` that is never freed.
    let restored =
        !before.is_null() && unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) } == 0;
    if !restored {
        // SAFETY: sets the default action.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    if !by_system {
        // SAFETY: sends this thread the same signal again; it is delivered after the handler has returned.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Maps zeros over the file from the page of `address` to its end: pages behind a missing page are missing
/// too.
fn put_zeros(file: &Watched, address: usize) -> bool {
    let page = PAGE.load(SeqCst);
    let first = address / page * page;
    let len = file.end.load(SeqCst).next_multiple_of(page).saturating_sub(first);
    let (access, kind) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED);
    file.is_cut.store(true, SeqCst);
    // SAFETY: the range lies in a mapping of this module, which lives as long as it is watched, and stays
    // readable.
    let zeros = unsafe { libc::mmap(first as *mut libc::c_void, len, access, kind, -1, 0) };
    zeros != libc::MAP_FAILED
}
