//! How far the reader of an answer is, and whether anybody still wants the answer.
//!
//! A reader that does not read parks its answer: the answer is written no further and needs no slot until
//! half of what is unread was read. Never: blocks the host's thread. Always: whoever parks an answer says
//! so first and looks at the reader afterwards, and the reader reads first and looks for a parked answer
//! afterwards. So no answer stays parked for a reader that has read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::host::HostHandle;
use crate::job::Reading;

/// A cancel flag that both ends of an answer see, in one order with [`Unread`]. It also says that an order
/// replaces what is being computed.
///
/// The side that sets it checks afterwards whether the answer is parked. The side that parks the answer
/// checks the flag afterwards.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    is_cancelled: AtomicBool,
    is_replaced: AtomicBool,
}

impl CancelFlag {
    /// Says that nobody wants the answer any more.
    pub fn set(&self) {
        self.0.is_cancelled.store(true, Ordering::SeqCst);
    }

    /// Returns whether it was set.
    pub fn is_set(&self) -> bool {
        self.0.is_cancelled.load(Ordering::SeqCst)
    }

    /// Says that the next order replaces what is being computed: the pass that runs may end early. Set before
    /// the order is given.
    pub fn replace(&self) {
        self.0.is_replaced.store(true, Ordering::SeqCst);
    }

    /// Forgets that: the order was followed.
    pub(crate) fn replaced(&self) {
        self.0.is_replaced.store(false, Ordering::SeqCst);
    }

    /// Returns whether nobody wants the pass that runs.
    pub(crate) fn ends_pass(&self) -> bool {
        self.is_set() || self.0.is_replaced.load(Ordering::SeqCst)
    }
}

/// How many parts of an answer are written and read, and whether it waits for its reader.
#[derive(Debug)]
struct Counts {
    written: AtomicUsize,
    read: AtomicUsize,
    parked: AtomicBool,
    max: usize,
}

impl Counts {
    fn unread(&self) -> usize {
        let read = self.read.load(Ordering::SeqCst);
        self.written.load(Ordering::SeqCst).saturating_sub(read)
    }
}

/// The writing end's count of what its reader has not read.
#[derive(Debug)]
pub struct Unread {
    counts: Arc<Counts>,
    cancel: CancelFlag,
}

impl Unread {
    /// Begins a count. The answer is parked at `max` unread parts, at least 1. An answer that was cancelled
    /// is never parked.
    pub fn new(max: usize, cancel: CancelFlag) -> Unread {
        let zero = AtomicUsize::default;
        let counts = Counts { written: zero(), read: zero(), parked: AtomicBool::default(), max: max.max(1) };
        Unread { counts: Arc::new(counts), cancel }
    }

    /// Returns the writing end of another answer to the same reader, in place of this one.
    pub fn another(&self, cancel: CancelFlag) -> Unread {
        Unread { counts: Arc::clone(&self.counts), cancel }
    }

    /// Returns the reading end, which wakes this host if the answer is parked.
    pub fn mark(&self, handle: Option<HostHandle>) -> ReadMark {
        ReadMark { counts: Some(Arc::clone(&self.counts)), handle }
    }

    /// Returns the flag that cancels the answer.
    pub fn cancel(&self) -> &CancelFlag {
        &self.cancel
    }

    /// Notes that so many more parts were given out.
    pub fn written(&self, parts: usize) {
        self.counts.written.fetch_add(parts, Ordering::SeqCst);
    }

    /// Returns how many parts may be given out before the answer is parked.
    pub fn room(&self) -> usize {
        self.counts.max.saturating_sub(self.counts.unread())
    }

    /// Returns whether the answer waits for its reader.
    pub fn is_parked(&self) -> bool {
        self.counts.parked.load(Ordering::SeqCst)
    }

    /// Parks the answer if it is as far ahead of its reader as it may be; returns whether it did.
    pub fn park(&self) -> bool {
        if self.cancel.is_set() || self.counts.unread() < self.counts.max {
            return false;
        }
        self.counts.parked.store(true, Ordering::SeqCst);
        // A reader that read in between did not know that the answer waits for it.
        !self.unpark()
    }

    /// Unparks the answer if its reader has read enough; returns whether it may continue.
    pub fn unpark(&self) -> bool {
        let goes_on = self.counts.unread() <= self.counts.max / 2;
        if goes_on {
            self.counts.parked.store(false, Ordering::SeqCst);
        }
        goes_on
    }

    /// Parks or unparks the answer if it is time to; returns which of both.
    pub fn reading(&self) -> Option<Reading> {
        match self.is_parked() {
            true => self.unpark().then_some(Reading::Unpark),
            false => self.park().then_some(Reading::Park),
        }
    }
}

/// Records how far the reader of an answer is. The default one belongs to no answer.
#[derive(Debug, Clone, Default)]
pub struct ReadMark {
    counts: Option<Arc<Counts>>,
    /// The host to wake if the answer waits for this reader.
    handle: Option<HostHandle>,
}

impl ReadMark {
    /// Notes that the reader has the first `parts` parts.
    pub fn read_up_to(&self, parts: usize) {
        let Some(counts) = &self.counts else { return };
        counts.read.fetch_max(parts, Ordering::SeqCst);
        // The order matters: the side that parks the answer first sets `parked`, and then checks what was
        // read.
        self.wake();
    }

    /// Wakes the host if the answer is parked: it was read, or cancelled.
    pub fn wake(&self) {
        let parked = self.counts.as_ref().is_some_and(|counts| counts.parked.load(Ordering::SeqCst));
        if let Some(handle) = self.handle.as_ref().filter(|_| parked) {
            handle.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 8;

    #[test]
    fn an_answer_is_parked_for_a_reader_that_is_there() {
        let unread = Unread::new(MAX, CancelFlag::default());
        unread.written(MAX);
        assert_eq!(unread.room(), 0);
        assert!(unread.park() && unread.is_parked());
        let unread = Unread::new(MAX, CancelFlag::default());
        unread.written(MAX);
        unread.cancel().set();
        assert!(!unread.park() && !unread.is_parked(), "nobody would wake it");
    }

    #[test]
    fn a_parked_answer_goes_on_when_half_of_it_is_read() {
        let unread = Unread::new(MAX, CancelFlag::default());
        let mark = unread.mark(None);
        unread.written(MAX - 1);
        assert_eq!(unread.reading(), None, "there is room for one more");
        unread.written(1);
        assert_eq!(unread.room(), 0);
        assert_eq!(unread.reading(), Some(Reading::Park));
        mark.read_up_to(MAX / 2 - 1);
        assert_eq!(unread.reading(), None, "more than half is unread");
        mark.read_up_to(MAX / 2);
        assert_eq!(unread.reading(), Some(Reading::Unpark));
        assert_eq!((unread.reading(), unread.room()), (None, MAX / 2));
        mark.read_up_to(1);
        assert_eq!(unread.room(), MAX / 2, "what was read stays read");
    }

    #[test]
    fn what_is_read_between_parking_and_looking_again_is_seen() {
        let unread = Unread::new(MAX, CancelFlag::default());
        let mark = unread.mark(None);
        unread.written(MAX);
        mark.read_up_to(MAX);
        assert!(!unread.park() && !unread.is_parked());
    }
}
