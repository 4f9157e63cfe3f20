//! Experts that stay in memory because they are used most.
//!
//! Which experts a model uses depends on its text, and a few are used far more often than others. So what the
//! budget leaves for experts holds those that were used most of late ([`Uses`]). An expert that was read is
//! kept if there is room, or if it is used clearly more than those that would make room for it. Otherwise
//! experts that are used alike would push each other out, and none would be there when it is needed.
//!
//! Each piece has a mapping of its own: an allocator may keep memory that is freed, and other programs need
//! it.
//!
//! What always holds: kept bytes are at most the capacity.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use memmap2::MmapMut;

use super::queue::Extent;
use crate::weights::uses::Uses;

/// How far a rank must be above that of what it pushes out: half a doubling.
const CLEARLY: f64 = 0.5;

/// The order of pieces: by rank, and by place in the model among equals.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Order {
    rank: f64,
    part: usize,
    bytes: (usize, usize),
}

impl Order {
    fn new(extent: &Extent, rank: f64) -> Self {
        Self { rank, part: extent.part, bytes: (extent.bytes.start, extent.bytes.end) }
    }
}

impl Eq for Order {}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> Ordering {
        let places = || (self.part, self.bytes).cmp(&(other.part, other.bytes));
        self.rank.total_cmp(&other.rank).then_with(places)
    }
}

#[derive(Debug)]
struct Piece {
    rank: f64,
    bytes: Arc<MmapMut>,
}

/// Pieces of experts in memory.
#[derive(Debug, Default)]
pub(super) struct Kept {
    capacity: usize,
    bytes: usize,
    pieces: HashMap<Extent, Piece>,
    /// The same pieces, those used least first.
    order: BTreeMap<Order, Extent>,
    uses: Uses<Extent>,
}

impl Kept {
    /// Changes how many bytes may be kept, and forgets pieces that are not wanted any more.
    pub(super) fn set(&mut self, capacity: usize, is_wanted: impl Fn(&Extent) -> bool) {
        self.capacity = capacity;
        let gone: Vec<Extent> = self.pieces.keys().filter(|extent| !is_wanted(extent)).cloned().collect();
        for extent in gone {
            self.remove(&extent);
        }
        while self.bytes > self.capacity
            && let Some(extent) = self.order.values().next().cloned()
        {
            self.remove(&extent);
        }
    }

    /// Returns the bytes of all pieces.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a pass.
    pub(super) fn begin_pass(&mut self) {
        self.uses.pass(1.0);
    }

    /// Whether a piece is kept.
    pub(super) fn has(&self, extent: &Extent) -> bool {
        self.pieces.contains_key(extent)
    }

    /// Counts the use of a piece, and returns its bytes if it is kept.
    pub(super) fn take(&mut self, extent: &Extent) -> Option<Arc<MmapMut>> {
        let rank = self.uses.count(extent.clone());
        let piece = self.pieces.get_mut(extent)?;
        self.order.remove(&Order::new(extent, piece.rank));
        self.order.insert(Order::new(extent, rank), extent.clone());
        piece.rank = rank;
        Some(Arc::clone(&piece.bytes))
    }

    /// Keeps a piece that was read, if it is used enough. Returns whether it is kept.
    pub(super) fn offer(&mut self, extent: &Extent, bytes: &[u8]) -> bool {
        let rank = self.uses.rank(extent);
        let Some(goes) = self.making_room(bytes.len(), rank).filter(|_| !self.has(extent)) else {
            return false;
        };
        // Memory of the same size is used again: to get new memory takes as long as to fill it.
        let mut memory = None;
        for gone in goes {
            let gone = self.remove(&gone).and_then(Arc::into_inner);
            memory = gone.filter(|gone| gone.len() == bytes.len()).or(memory);
        }
        // If the system gives none, the piece is read again the next time.
        let new = || MmapMut::map_anon(bytes.len()).ok();
        let Some(mut memory) = memory.or_else(new) else { return false };
        memory.copy_from_slice(bytes);
        self.bytes += bytes.len();
        self.order.insert(Order::new(extent, rank), extent.clone());
        self.pieces.insert(extent.clone(), Piece { rank, bytes: Arc::new(memory) });
        true
    }

    /// Returns the pieces that must go for so many bytes more; `None` if one is used too much, or if even
    /// all of them are too few.
    fn making_room(&self, bytes: usize, rank: f64) -> Option<Vec<Extent>> {
        let mut goes = Vec::new();
        let mut left = self.bytes;
        let mut least = self.order.iter();
        while left + bytes > self.capacity {
            let (_, extent) = least.next().filter(|(order, _)| order.rank + CLEARLY < rank)?;
            left -= extent.bytes.len();
            goes.push(extent.clone());
        }
        Some(goes)
    }

    fn remove(&mut self, extent: &Extent) -> Option<Arc<MmapMut>> {
        let piece = self.pieces.remove(extent)?;
        self.order.remove(&Order::new(extent, piece.rank));
        self.bytes -= extent.bytes.len();
        Some(piece.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_random::SplitMix64;
    use proptest::prelude::*;

    const BYTES: usize = 10;

    fn piece(number: usize) -> Extent {
        Extent { part: 0, bytes: number * BYTES..(number + 1) * BYTES }
    }

    fn bytes(extent: &Extent) -> Vec<u8> {
        extent.bytes.clone().map(|at| (at % 251) as u8).collect()
    }

    /// Uses a piece, and returns whether it was kept.
    fn used(kept: &mut Kept, extent: &Extent) -> bool {
        let have = kept.take(extent);
        if have.is_none() {
            kept.offer(extent, &bytes(extent));
        }
        have.is_some()
    }

    proptest! {
        #[test]
        fn kept_bytes_are_those_that_were_read_and_at_most_the_capacity(
            steps in prop::collection::vec((0usize..30, 1usize..4, 0usize..12), 1..300),
        ) {
            let mut kept = Kept::default();
            for (start, len, turn) in steps {
                match turn {
                    0 => kept.set(start * BYTES, |extent| extent.bytes.start % 7 != 0),
                    1 => kept.begin_pass(),
                    _ => {
                        let extent = Extent { part: 0, bytes: start * BYTES..(start + len) * BYTES };
                        match kept.take(&extent) {
                            Some(have) => prop_assert_eq!(&have[..], &bytes(&extent)),
                            None => _ = kept.offer(&extent, &bytes(&extent)),
                        }
                    }
                }
                let held: usize = kept.pieces.keys().map(|extent| extent.bytes.len()).sum();
                prop_assert_eq!(held, kept.bytes);
                prop_assert!(held <= kept.capacity);
                prop_assert_eq!(kept.order.len(), kept.pieces.len());
            }
        }
    }

    /// An allocator has to be got to keep freed memory: after a large block was freed, it takes blocks of
    /// this size from its heap.
    #[cfg(target_os = "linux")]
    #[test]
    fn memory_goes_back_to_the_system_when_the_capacity_shrinks() {
        const PIECE: usize = 1 << 20;
        drop(std::hint::black_box(vec![1_u8; 16 << 20]));
        let own_bytes = || crate::platform::own_bytes().unwrap();
        let (mut kept, read) = (Kept::default(), vec![7; PIECE]);
        kept.set(128 * PIECE, |_| true);
        for number in 0..128 {
            let extent = Extent { part: 0, bytes: number * PIECE..(number + 1) * PIECE };
            assert!(kept.offer(&extent, &read), "there is room for it");
        }
        let before = own_bytes();
        // The last piece stays.
        kept.set(PIECE, |_| true);
        assert_eq!(kept.bytes(), PIECE);
        let freed = before.saturating_sub(own_bytes());
        assert!(freed > 64 << 20, "{freed} bytes went back to the system");
    }

    /// Returns the share of uses of 64 experts that were kept, 16 of which fit. `draw` chooses an expert.
    fn hits(mut draw: impl FnMut(usize) -> usize) -> f64 {
        let mut kept = Kept::default();
        kept.set(16 * BYTES, |_| true);
        let mut hits = 0;
        for pass in 0..400 {
            kept.begin_pass();
            for turn in 0..8 {
                hits += usize::from(used(&mut kept, &piece(draw(pass * 8 + turn))) && pass >= 100);
            }
        }
        hits as f64 / (300.0 * 8.0)
    }

    #[test]
    fn experts_that_are_used_most_stay() {
        // All alike, in turn: who replaces the oldest has none when it is needed.
        let alike = hits(|turn| turn % 64);
        assert!((0.2..=0.25).contains(&alike), "a quarter fits: {alike}");
        // Sixteen of them are used for nine tokens of ten.
        let mut random = SplitMix64::new(5);
        let skewed = hits(|_| if random.below(10) < 9 { random.below(16) } else { 16 + random.below(48) });
        assert!(skewed > 0.85, "{skewed}");
        // The favourites change half-way.
        let mut random = SplitMix64::new(6);
        let moved = hits(|turn| {
            let first = if turn < 250 * 8 { 0 } else { 32 };
            if random.below(10) < 9 { first + random.below(16) } else { random.below(64) }
        });
        assert!(moved > 0.7, "{moved}");
    }
}
