//! The only module of the engine that maps files: read-only, whole, for the life of the model.
//!
//! If a file is cut short while it is mapped, or its disk fails, the program goes on. A handler of the bus
//! error replaces the missing pages by zeros, and [`MappedFile::is_cut`] returns true from then on. The
//! caller asks after computing and discards the result. Bus errors outside of mapped model files are handled
//! as before.
//!
//! Never writes, never hands out the mapping itself, only its bytes. Advice to the system about parts of a
//! file (needed repeatedly, not needed) changes no byte; if the system refuses it, only speed is lost.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};

use memmap2::{Advice, Mmap};

/// The largest pages in which Linux usually keeps files.
const HUGE_PAGE: usize = 2 << 20;

/// Returns the huge pages wholly inside these bytes of a file. They are aligned to the file's beginning.
pub(super) fn whole_huge_pages(range: &Range<usize>) -> Range<usize> {
    let first = range.start.next_multiple_of(HUGE_PAGE);
    first..(range.end / HUGE_PAGE * HUGE_PAGE).max(first)
}

/// Files that can be watched at the same time. Beyond that, a file that is cut short ends the program.
const WATCHED_MAX: usize = 256;

/// A mapping as the handler of bus errors sees it: numbers that can be read without a lock.
#[derive(Debug)]
struct Watched {
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
    fn begin(bytes: &[u8]) -> Option<&'static Watched> {
        static HANDLED: Once = Once::new();
        HANDLED.call_once(handle_bus_errors);
        let start = bytes.as_ptr() as usize;
        let place = WATCHED.iter().find(|w| w.start.compare_exchange(0, start, SeqCst, SeqCst).is_ok())?;
        place.is_cut.store(false, SeqCst);
        place.end.store(start + bytes.len(), SeqCst);
        Some(place)
    }

    fn end(&self) {
        self.end.store(0, SeqCst);
        self.start.store(0, SeqCst);
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

/// A model file mapped into memory.
#[derive(Debug)]
pub(super) struct MappedFile {
    map: Mmap,
    watched: Option<&'static Watched>,
}

impl Drop for MappedFile {
    /// Runs before the mapping is removed: its addresses may be reused afterwards.
    fn drop(&mut self) {
        if let Some(watched) = self.watched {
            watched.end();
        }
    }
}

impl MappedFile {
    /// Maps the whole of `file` for reading.
    ///
    /// The file must not change while it is mapped. The model store writes a model under another name and
    /// renames it when it is complete, so a finished file is replaced, never changed in place. If a person
    /// truncates a model in use, zeros are read for the missing bytes, and [`Self::is_cut`] returns true.
    ///
    /// # Errors
    /// The system's error if it cannot map the file.
    pub(super) fn map(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the mapping is private and read-only. Model files are replaced by rename and never changed
        // in place (see above), so the bytes do not change. If a person breaks this rule, numbers change, but
        // no index or length is read from the file after it was opened.
        let map = unsafe { Mmap::map(file) }?;
        // Asks for huge pages, if the file system has them: with pages of 4 KiB, decoding spends a tenth of
        // its time on address translation (measured). Other file systems refuse, which changes nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        let watched = Watched::begin(&map);
        Ok(MappedFile { map, watched })
    }

    /// Whether missing bytes of the file were touched; zeros were read in their place.
    pub(super) fn is_cut(&self) -> bool {
        self.watched.is_some_and(|watched| watched.is_cut.load(SeqCst))
    }

    /// Returns the bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Asks the system to read pages one by one as they are touched, without their neighbours.
    pub(super) fn read_only_what_is_touched(&self) {
        let _ = self.map.advise(Advice::Random);
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(Advice::NoHugePage);
    }

    /// Asks the system to read pages that lie wholly inside `range` as huge pages, if the file system has
    /// them.
    pub(super) fn expect_use(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Some(whole) = self.inside(whole_huge_pages(&range)) {
            let _ = self.map.advise_range(Advice::HugePage, whole.start, whole.len());
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }

    /// Reads the pages of `range` now and maps them.
    pub(super) fn read_ahead(&self, range: Range<usize>) {
        let Some(range) = self.inside(range) else { return };
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(Advice::PopulateRead, range.start, range.len());
        #[cfg(not(target_os = "linux"))]
        let _ = self.map.advise_range(Advice::WillNeed, range.start, range.len());
    }

    /// Unmaps the pages that lie wholly inside `range`. The system may drop them and reads them again when
    /// they are touched.
    pub(super) fn let_go(&self, range: Range<usize>) {
        let page = rustix::param::page_size();
        let whole = range.start.next_multiple_of(page)..range.end / page * page;
        let Some(range) = self.inside(whole) else { return };
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(Advice::NoHugePage, range.start, range.len());
        // SAFETY: the mapping is of a file, read-only, and nothing was ever written to its pages. Dropped
        // pages come back with the same bytes, so borrowed slices stay valid.
        let dropped = unsafe {
            self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
        let _ = dropped; // If refused, the pages stay until the system needs the memory.
    }

    /// Returns the part of `range` that lies in the file, or `None` if that is empty.
    fn inside(&self, range: Range<usize>) -> Option<Range<usize>> {
        let range = range.start..range.end.min(self.map.len());
        (range.start < range.end).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn mapped(len: usize) -> (File, MappedFile) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; len]).unwrap();
        let map = MappedFile::map(&file).unwrap();
        (file, map)
    }

    #[test]
    fn a_file_that_is_cut_short_reads_as_zeros_and_says_so() {
        let len = 5 * HUGE_PAGE + 123;
        let (file, map) = mapped(len);
        let (_, other) = mapped(100);
        let sum = |map: &MappedFile| map.bytes().iter().map(|&byte| u64::from(byte)).sum::<u64>();
        assert_eq!(sum(&map), 7 * len as u64);
        file.set_len(10).unwrap();
        assert!(!map.is_cut(), "nobody has asked for what is gone");
        // From several threads at once, as in a forward pass.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(sum(&map), 70));
            }
        });
        assert_eq!((map.bytes()[9], map.bytes()[10], map.bytes()[len - 1]), (7, 0, 0));
        assert!(map.is_cut() && !other.is_cut());
        assert_eq!(sum(&other), 700);
    }

    #[test]
    fn a_place_is_free_again_once_its_file_is_closed() {
        for _ in 0..2 * WATCHED_MAX {
            let (_, map) = mapped(1);
            assert!(map.watched.is_some() && !map.is_cut());
        }
    }
}
