//! The accounts of a device's memory: what is in use, what can be used again, and the user's limit.
//!
//! Pure bookkeeping: it calls no driver. Memory that a buffer gives back is kept for the next buffer of about
//! its size. All commands run in one stream, so it can be handed out at once: what still reads it runs first.
//! A load to memory that was kept is in order too: it is behind a mark that is taken after the allocation.

use std::collections::BTreeMap;

/// Buffers up to this are counted in steps of an eighth to a quarter of their size, larger ones in steps of
/// [`STEP`].
const SMALL_MAX: u64 = 1 << 20;
/// The step of large buffers.
const STEP: u64 = 1 << 16;
/// The least size.
const LEAST: u64 = 256;

/// The accounts. Addresses are the device's.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Kept addresses by their size.
    kept: BTreeMap<u64, Vec<u64>>,
    kept_bytes: u64,
    used_bytes: u64,
    budget: Option<u64>,
}

/// Returns the bytes that a buffer of `bytes` takes.
pub(crate) fn size_of(bytes: u64) -> u64 {
    let step = match bytes {
        0..=LEAST => return LEAST,
        bytes if bytes > SMALL_MAX => STEP,
        bytes => (bytes.next_power_of_two() / 8).max(LEAST / 4),
    };
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

impl Pool {
    /// Starts with nothing; `budget` is the most bytes of all.
    pub(crate) fn new(budget: Option<u64>) -> Self {
        Self { kept: BTreeMap::new(), kept_bytes: 0, used_bytes: 0, budget }
    }

    /// Returns kept memory of at least `size` bytes, and its size. It is then in use.
    pub(crate) fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        let (&found, addresses) = self.kept.range_mut(size..=size.saturating_add(size / 4)).next()?;
        let address = addresses.pop().expect("a size without addresses is removed");
        if addresses.is_empty() {
            self.kept.remove(&found);
        }
        self.kept_bytes -= found;
        self.used_bytes += found;
        Some((address, found))
    }

    /// Counts new memory as in use.
    pub(crate) fn add(&mut self, size: u64) {
        self.used_bytes += size;
    }

    /// Keeps memory that was in use.
    pub(crate) fn give_back(&mut self, address: u64, size: u64) {
        self.kept.entry(size).or_default().push(address);
        self.used_bytes -= size;
        self.kept_bytes += size;
    }

    /// Returns all kept addresses and forgets them.
    pub(crate) fn drain(&mut self) -> Vec<u64> {
        self.kept_bytes = 0;
        std::mem::take(&mut self.kept).into_values().flatten().collect()
    }

    /// Returns whether the budget has room for `size` bytes of new memory.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        let held = self.used_bytes + self.kept_bytes;
        self.budget.is_none_or(|budget| held.checked_add(size).is_some_and(|bytes| bytes <= budget))
    }

    /// Returns the bytes in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the user's limit.
    pub(crate) fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Returns the bytes that could be allocated if the device has `device_bytes` left.
    pub(crate) fn free_bytes(&self, device_bytes: Option<u64>) -> Option<u64> {
        let within = self.budget.map(|budget| budget.saturating_sub(self.used_bytes));
        let left = device_bytes.map(|bytes| bytes.saturating_add(self.kept_bytes));
        [within, left].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_waste_little() {
        assert_eq!([0, 1, 256].map(size_of), [256; 3]);
        let mut bytes = 257;
        while bytes < 1 << 33 {
            let size = size_of(bytes);
            assert!(size >= bytes && size.is_multiple_of(4), "{bytes} bytes take {size}");
            assert!(size - bytes <= bytes / 4, "{bytes} bytes take {size}");
            assert_eq!(size_of(size), size);
            bytes += bytes / 7 + 1;
        }
        assert_eq!(size_of(u64::MAX), u64::MAX);
    }

    #[test]
    fn memory_is_used_again_if_it_is_about_as_large() {
        let mut pool = Pool::new(None);
        pool.add(1_024);
        pool.give_back(7, 1_024);
        assert_eq!(pool.take(512), None, "far too large");
        assert_eq!(pool.take(1_280), None, "too small");
        assert_eq!(pool.take(900), Some((7, 1_024)));
        assert_eq!((pool.take(900), pool.used_bytes()), (None, 1_024));
    }

    #[test]
    fn kept_memory_counts_until_it_is_given_to_the_device() {
        let mut pool = Pool::new(Some(3_000));
        pool.add(1_024);
        pool.add(1_024);
        pool.give_back(1, 1_024);
        assert!(pool.has_room(952) && !pool.has_room(953));
        assert_eq!(pool.free_bytes(None), Some(1_976));
        assert_eq!(pool.free_bytes(Some(500)), Some(1_524));
        assert_eq!(pool.drain(), [1]);
        assert!(pool.has_room(1_976));
        assert!(!pool.has_room(u64::MAX));
        assert_eq!((pool.used_bytes(), pool.budget()), (1_024, Some(3_000)));
    }

    #[test]
    fn without_a_budget_the_device_decides() {
        let pool = Pool::new(None);
        assert!(pool.has_room(u64::MAX));
        assert_eq!((pool.free_bytes(None), pool.free_bytes(Some(5))), (None, Some(5)));
    }
}
