//! Decides which range of a file is read next, into which buffer, and who waits for it.
//!
//! A core without threads or I/O. Readers [`Queue::start`] reads and report their results
//! ([`Queue::finish`]). A pass [claims](Queue::claim) what it needs next and [takes](Queue::take) it once it
//! is there. Reads run ahead in the fixed order in which a token uses its weights, cyclically, as far as
//! there are buffers.
//!
//! Reads that cannot be foreseen (experts, the order of another pass) are requested separately and go first.
//! Beyond the buffers, ranges may be brought into the page cache ([`Queue::start_caching`]), from which a
//! later read takes them. That memory can be reclaimed by the system. It is for devices that wait while
//! others compute.
//!
//! Always holds: a buffer is free, in one entry, with one reader or with one pass. A claimed entry stays
//! until it is taken, and gets a buffer as soon as passes return theirs, so no pass waits for ever.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;

/// A range of one of the model's files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Extent {
    pub(super) part: usize,
    pub(super) bytes: Range<usize>,
}

impl Extent {
    /// Whether the two overlap.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.part == other.part && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

/// A read that was started or claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// The state of a claimed read.
#[derive(Debug)]
pub(super) enum Taken<B> {
    /// It is not finished.
    NotYet,
    /// It is finished; the buffer holds its bytes.
    Here(B),
    /// It failed.
    Failed(io::Error),
}

#[derive(Debug)]
enum State<B> {
    /// Waits for a buffer.
    Waits,
    Reading,
    Here(B),
    Failed(io::Error),
}

#[derive(Debug)]
struct Entry<B> {
    ticket: Ticket,
    extent: Extent,
    /// Its position in the cycle, if it was read ahead.
    place: usize,
    /// Whether the page cache holds it.
    cached: bool,
    claimed: bool,
    state: State<B>,
}

/// A read to perform.
#[derive(Debug)]
pub(super) struct Read<B> {
    pub(super) ticket: Ticket,
    pub(super) extent: Extent,
    /// The buffer for its bytes.
    pub(super) buffer: B,
    /// Whether the page cache holds it, or will soon.
    pub(super) cached: bool,
}

/// The reads of one model.
#[derive(Debug)]
pub(super) struct Queue<B> {
    /// The ranges that every token needs, in order.
    cycle: Vec<Extent>,
    places: HashMap<Extent, usize>,
    /// The position in the cycle that is read next.
    next: usize,
    /// Entries read ahead along the cycle.
    ahead: VecDeque<Entry<B>>,
    /// Entries that were requested.
    asked: VecDeque<Entry<B>>,
    /// Positions whose ranges the page cache holds for later, in order; none of them is in `ahead`.
    cached: VecDeque<usize>,
    /// Bytes that the page cache may hold for later.
    cache_bytes: usize,
    /// Ranges that the page cache need not hold any more.
    outdated: Vec<Extent>,
    free: Vec<B>,
    /// Buffers that reading ahead leaves free.
    spared: usize,
    reads_ahead: bool,
    tickets: u64,
    /// Number of reads whose bytes were not used.
    in_vain: u64,
}

impl<B> Queue<B> {
    /// Creates a queue without reads. Reading ahead leaves `spared` of the buffers for requests.
    pub(super) fn new(buffers: Vec<B>, spared: usize, reads_ahead: bool) -> Self {
        Self {
            cycle: Vec::new(),
            places: HashMap::new(),
            next: 0,
            ahead: VecDeque::new(),
            asked: VecDeque::new(),
            cached: VecDeque::new(),
            cache_bytes: 0,
            outdated: Vec::new(),
            free: buffers,
            spared,
            reads_ahead,
            tickets: 0,
            in_vain: 0,
        }
    }

    /// Sets the ranges that are read for every token from now on, in order, and how many bytes the page cache
    /// may hold for later. Claimed entries stay.
    pub(super) fn set_cycle(&mut self, cycle: Vec<Extent>, cache_bytes: usize) {
        self.drop_cached(self.cached.len());
        self.places = cycle.iter().cloned().zip(0..).collect();
        self.cycle = cycle;
        self.cache_bytes = cache_bytes;
        self.seek(0);
    }

    /// Returns a range that the page cache need not hold any more.
    pub(super) fn outdated(&mut self) -> Option<Extent> {
        self.outdated.pop()
    }

    /// Returns the number of reads whose bytes were not used.
    pub(super) fn in_vain(&self) -> u64 {
        self.in_vain
    }

    /// Drops requests that were never claimed.
    pub(super) fn forget_asked(&mut self) {
        let left = self.asked.len();
        self.drop_asked(left);
    }

    /// Requests a range that a claim will follow for.
    pub(super) fn ask(&mut self, extent: Extent) {
        if !self.asked.iter().any(|entry| entry.extent == extent) {
            let entry = self.entry(extent, 0, State::Waits);
            self.asked.push_back(entry);
        }
    }

    /// Claims what a pass needs next. It is read if necessary, and stays until it is taken.
    pub(super) fn claim(&mut self, extent: &Extent) -> Ticket {
        let of = |entry: &Entry<B>| entry.extent == *extent && !entry.claimed;
        if let Some(at) = self.ahead.iter().position(of) {
            // The walk has passed what comes before it.
            self.drop_ahead(at);
            return self.claim_first(true, extent);
        }
        if let Some(at) = self.asked.iter().position(of) {
            self.drop_asked(at);
            return self.claim_first(false, extent);
        }
        self.forget_asked();
        let mut entry = self.entry(extent.clone(), 0, State::Waits);
        entry.claimed = true;
        if let Some(&place) = self.places.get(extent)
            && self.reads_ahead
        {
            self.keep_cached_from(place);
            entry.cached = self.cached.pop_front().is_some();
            self.seek(place + 1);
        }
        let ticket = entry.ticket;
        self.asked.push_back(entry);
        ticket
    }

    /// Takes the claimed range; afterwards its ticket is unknown.
    ///
    /// # Panics
    /// If the ticket was not claimed, or was taken before.
    pub(super) fn take(&mut self, ticket: Ticket) -> Taken<B> {
        let of = |entry: &Entry<B>| entry.ticket == ticket;
        let (entries, at) = match self.asked.iter().position(of) {
            Some(at) => (&mut self.asked, at),
            None => {
                let at = self.ahead.iter().position(of).expect("a claimed entry stays until it is taken");
                (&mut self.ahead, at)
            }
        };
        if matches!(entries[at].state, State::Waits | State::Reading) {
            return Taken::NotYet;
        }
        match entries.remove(at).map(|entry| entry.state) {
            Some(State::Here(buffer)) => Taken::Here(buffer),
            Some(State::Failed(err)) => Taken::Failed(err),
            _ => Taken::NotYet,
        }
    }

    /// Returns the next read, if there is one and a buffer for it.
    pub(super) fn start(&mut self) -> Option<Read<B>> {
        let waits =
            |claimed| move |entry: &Entry<B>| matches!(entry.state, State::Waits) && entry.claimed == claimed;
        let asked = match self.asked.iter().position(waits(true)) {
            Some(at) => Some((at, self.free.pop().or_else(|| self.steal())?)),
            None => match self.asked.iter().position(waits(false)) {
                Some(at) => Some((at, self.free.pop()?)),
                None => None,
            },
        };
        if let Some((at, buffer)) = asked {
            let entry = &mut self.asked[at];
            entry.state = State::Reading;
            let Entry { ticket, cached, .. } = *entry;
            return Some(Read { ticket, extent: entry.extent.clone(), buffer, cached });
        }
        // A cycle with fewer entries than buffers is held once.
        let ahead = self.reads_ahead && self.ahead.len() < self.cycle.len() && self.free.len() > self.spared;
        let buffer = ahead.then(|| self.free.pop())??;
        let mut entry = self.entry(self.cycle[self.next].clone(), self.next, State::Reading);
        entry.cached = self.cached.pop_front_if(|place| *place == entry.place).is_some();
        self.next = (self.next + 1) % self.cycle.len();
        let Entry { ticket, cached, .. } = entry;
        let started = Read { ticket, extent: entry.extent.clone(), buffer, cached };
        self.ahead.push_back(entry);
        Some(started)
    }

    /// Returns the range to bring into the page cache next, if there is room for it.
    pub(super) fn start_caching(&mut self) -> Option<Extent> {
        if !self.reads_ahead || self.ahead.len() + self.cached.len() >= self.cycle.len() {
            return None;
        }
        let place = self.cached.back().map_or(self.next, |last| (last + 1) % self.cycle.len());
        let held: usize = self.cached.iter().map(|place| self.cycle[*place].bytes.len()).sum();
        let extent = self.cycle[place].clone();
        // A reader that takes it from the cache now will drop it afterwards.
        let leaves = |entry: &Entry<B>| {
            entry.cached && entry.extent == extent && matches!(entry.state, State::Waits | State::Reading)
        };
        if held + extent.bytes.len() > self.cache_bytes || self.ahead.iter().chain(&self.asked).any(leaves) {
            return None;
        }
        self.outdated.retain(|gone| *gone != extent);
        self.cached.push_back(place);
        Some(extent)
    }

    /// Records the result of a read.
    pub(super) fn finish(&mut self, ticket: Ticket, buffer: B, result: io::Result<()>) {
        let entry = self.ahead.iter_mut().chain(&mut self.asked).find(|entry| entry.ticket == ticket);
        match (entry, result) {
            (Some(entry), Ok(())) => entry.state = State::Here(buffer),
            (Some(entry), Err(err)) => {
                entry.state = State::Failed(err);
                self.free.push(buffer);
            }
            // The entry was dropped in the meantime.
            (None, _) => self.free.push(buffer),
        }
    }

    /// Returns a buffer that a pass no longer needs.
    pub(super) fn give_back(&mut self, buffer: B) {
        self.free.push(buffer);
    }

    fn entry(&mut self, extent: Extent, place: usize, state: State<B>) -> Entry<B> {
        self.tickets += 1;
        Entry { ticket: Ticket(self.tickets), extent, place, cached: false, claimed: false, state }
    }

    /// Claims the first unclaimed entry of that range.
    fn claim_first(&mut self, ahead: bool, extent: &Extent) -> Ticket {
        let entries = if ahead { &mut self.ahead } else { &mut self.asked };
        let entry = entries.iter_mut().find(|entry| entry.extent == *extent && !entry.claimed);
        let entry = entry.expect("the entry was found by the caller, and only others were dropped");
        entry.claimed = true;
        entry.ticket
    }

    /// Continues reading ahead from another position of the cycle.
    fn seek(&mut self, place: usize) {
        let left = self.ahead.len();
        self.drop_ahead(left);
        self.next = if place < self.cycle.len() { place } else { 0 };
        self.keep_cached_from(self.next);
    }

    /// Keeps only the cached ranges from this position on.
    fn keep_cached_from(&mut self, place: usize) {
        let useless = self.cached.iter().position(|held| *held == place).unwrap_or(self.cached.len());
        self.drop_cached(useless);
    }

    fn drop_cached(&mut self, first: usize) {
        self.in_vain += first as u64;
        let gone = self.cached.drain(..first).map(|place| self.cycle[place].clone());
        self.outdated.extend(gone);
    }

    fn drop_ahead(&mut self, first: usize) {
        let Self { ahead, free, in_vain, .. } = self;
        drop_unclaimed(ahead, first, free, in_vain);
    }

    fn drop_asked(&mut self, first: usize) {
        let Self { asked, free, in_vain, .. } = self;
        drop_unclaimed(asked, first, free, in_vain);
    }

    /// Takes a buffer for a read that a pass waits for from the entry that is needed last, which will be read
    /// again.
    fn steal(&mut self) -> Option<B> {
        let stolen = |entry: &Entry<B>| !entry.claimed && matches!(entry.state, State::Here(_));
        let state = if self.ahead.back().is_some_and(stolen) {
            let entry = self.ahead.pop_back()?;
            self.next = entry.place;
            entry.state
        } else {
            let entry = self.asked.iter_mut().rev().find(|entry| stolen(entry))?;
            std::mem::replace(&mut entry.state, State::Waits)
        };
        self.in_vain += 1;
        match state {
            State::Here(buffer) => Some(buffer),
            State::Waits | State::Reading | State::Failed(_) => None,
        }
    }
}

/// Drops the unclaimed among the first `first` entries; their buffers are free, or will be when their reads
/// end.
fn drop_unclaimed<B>(entries: &mut VecDeque<Entry<B>>, first: usize, free: &mut Vec<B>, in_vain: &mut u64) {
    let mut at = 0;
    for _ in 0..first {
        if entries[at].claimed {
            at += 1;
        } else if let Some(entry) = entries.remove(at) {
            *in_vain += u64::from(matches!(entry.state, State::Here(_) | State::Reading));
            if let State::Here(buffer) = entry.state {
                free.push(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
