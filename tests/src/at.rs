//! Something that happens at a time, for the heaps of simulations.

use std::cmp::Ordering;

/// Ordered by time, then by the order in which things were planned. The earliest counts as the greatest,
/// because a heap gives the greatest first.
#[derive(Debug)]
pub(crate) struct At<W> {
    pub(crate) ns: u64,
    pub(crate) order: u64,
    pub(crate) what: W,
}

impl<W> PartialEq for At<W> {
    fn eq(&self, other: &Self) -> bool {
        (self.ns, self.order) == (other.ns, other.order)
    }
}

impl<W> Eq for At<W> {}

impl<W> PartialOrd for At<W> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<W> Ord for At<W> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.ns, other.order).cmp(&(self.ns, self.order))
    }
}
