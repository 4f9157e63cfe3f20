//! The one place of the engine that maps files: read-only, whole, for the life of the model.
//!
//! A file that is cut short while it is mapped, or whose disk fails, does not end the program: a handler of the bus error
//! puts zeros in place of the pages that are gone, and [`MappedFile::is_cut`] says so from then on. Whoever computed with
//! them asks afterwards, and throws the result away. Bus errors outside of mapped model files stay what they were.
//!
//! Never writes, never hands out the mapping itself, only its bytes. What is said to the system about parts of a file
//! (which are needed again and again, which are not) is advice: it changes no byte, and where it is refused nothing is
//! lost but speed.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};

use memmap2::{Advice, Mmap};

/// Pages of the largest kind that Linux keeps files in, as a rule.
const HUGE_PAGE: usize = 2 << 20;

/// The huge pages wholly inside these bytes of a file: it is by its place in the file that the system cuts it.
pub(super) fn whole_huge_pages(range: &Range<usize>) -> Range<usize> {
    let first = range.start.next_multiple_of(HUGE_PAGE);
    first..(range.end / HUGE_PAGE * HUGE_PAGE).max(first)
}

/// Files that can be watched at a time. Of more than these, the last ones end the program if they are cut short.
const WATCHED_MAX: usize = 256;

/// A mapping as the handler of bus errors sees it: numbers that it can read without a lock.
#[derive(Debug)]
struct Watched {
    /// 0 if the place is free.
    start: AtomicUsize,
    /// 0 as long as the place is not complete.
    end: AtomicUsize,
    is_cut: AtomicBool,
}

static WATCHED: [Watched; WATCHED_MAX] = [const {
    Watched { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_cut: AtomicBool::new(false) }
}; WATCHED_MAX];
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// What was done about bus errors before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

impl Watched {
    /// Takes a free place for a mapping; none if all are taken.
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
        // A mapping ends with a whole page.
        let end = self.end.load(SeqCst).next_multiple_of(PAGE.load(SeqCst).max(1));
        (self.start.load(SeqCst)..end).contains(&address)
    }
}

/// Asks the system to tell of bus errors. Refused, they end the program as before.
fn handle_bus_errors() {
    PAGE.store(rustix::param::page_size(), SeqCst);
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all fields of `sigaction` are numbers and pointers, for which zero is a value.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both point to `sigaction`s of this function; the handler does only what a signal handler may.
    let set = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) };
    if set == 0 {
        // SAFETY: the call above has filled it.
        let before = Box::new(unsafe { before.assume_init() });
        // For the life of the program: a handler may run at any time.
        BEFORE.store(Box::into_raw(before), SeqCst);
    }
    // SAFETY: `action` is complete, and nothing is asked back.
    let refused = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    let _ = refused; // Then a file that is cut short ends the program, as with every mapped loader.
}

/// Runs on the thread that touched a page that is gone. Reads atomics and calls the system, nothing else: no lock, no
/// memory of the heap, no formatting.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes a valid description of the signal to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    let by_system = info.si_code > 0;
    // SAFETY: of a bus error by the system the address is the one that was touched; of another nobody looks at it.
    let address = unsafe { info.si_addr() } as usize;
    let file = WATCHED.iter().find(|file| by_system && file.holds(address));
    if file.is_some_and(|file| put_zeros(file, address)) {
        return;
    }
    // Not ours: what would have happened without this handler happens as soon as it returns.
    let before = BEFORE.load(SeqCst);
    // SAFETY: `before` is null or points to a `sigaction` that is never freed.
    let restored =
        !before.is_null() && unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) } == 0;
    if !restored {
        // SAFETY: sets the action that a program begins with.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    if !by_system {
        // SAFETY: sends this thread the signal that somebody has sent, which waits until the handler has returned.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Maps zeros over the file from the page of `address` to its end: what lies behind a page that is gone is gone too.
fn put_zeros(file: &Watched, address: usize) -> bool {
    let page = PAGE.load(SeqCst);
    let first = address / page * page;
    let len = file.end.load(SeqCst).next_multiple_of(page).saturating_sub(first);
    let (access, kind) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED);
    file.is_cut.store(true, SeqCst);
    // SAFETY: the range lies in a mapping of this module, which lives as long as it is watched, and stays readable.
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
    /// Before the mapping goes: its addresses may be another's then.
    fn drop(&mut self) {
        if let Some(watched) = self.watched {
            watched.end();
        }
    }
}

impl MappedFile {
    /// Maps the whole of `file` for reading.
    ///
    /// The file has to keep still while it is mapped: the model store writes a model under another name
    /// and renames it when it is whole, so a finished file is replaced, never changed in place. If a person
    /// truncates a model in use, zeros are read in place of what is gone, and [`Self::is_cut`] says so.
    ///
    /// # Errors
    /// What the system says when it cannot map.
    pub(super) fn map(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the mapping is private and read-only, and model files are replaced by rename, never
        // changed in place (the model store's rule, stated above), so the bytes keep still. Where a person breaks the
        // rule, numbers become other numbers, of which no index or length is made after the file was opened.
        let map = unsafe { Mmap::map(file) }?;
        // Pages read from now on come in huge ones, where the file system has them: with pages of 4 KiB decoding
        // spends a tenth of its time on looking addresses up (measured). Elsewhere this is refused and changes nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        let watched = Watched::begin(&map);
        Ok(MappedFile { map, watched })
    }

    /// Whether bytes of the file were asked for that are not there any more; zeros were read in their place.
    pub(super) fn is_cut(&self) -> bool {
        self.watched.is_some_and(|watched| watched.is_cut.load(SeqCst))
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Pages are to be read one by one as they are touched, without their neighbours.
    pub(super) fn read_only_what_is_touched(&self) {
        let _ = self.map.advise(Advice::Random);
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(Advice::NoHugePage);
    }

    /// Pages that lie wholly inside `range` are to be read in huge ones, where the file system has them.
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

    /// Unmaps the pages that lie wholly inside `range`: the system may drop them, and reads them again when they are
    /// touched.
    pub(super) fn let_go(&self, range: Range<usize>) {
        let page = rustix::param::page_size();
        let whole = range.start.next_multiple_of(page)..range.end / page * page;
        let Some(range) = self.inside(whole) else { return };
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(Advice::NoHugePage, range.start, range.len());
        // SAFETY: the mapping is of a file, read-only, and nothing was ever written to its pages, so those that are
        // dropped come back with the same bytes; borrowed slices stay valid.
        let dropped = unsafe {
            self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
        let _ = dropped; // Refused, the pages stay until the system wants them.
    }

    /// The part of `range` that lies in the file; none where that is empty.
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
        // From several threads at once, as a forward pass reads.
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
