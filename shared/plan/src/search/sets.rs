//! The dynamic programme over sets of devices. `A[set][l]` is the least sum of the head and all devices of
//! the set, each with a share, for `l` layers:
//! `A[set][l] = min over x of A[set without its last device][l - x] + own(last device, x)`.

use super::{Choice, Programme, Row};
use crate::network::{Hops, Rings};

/// Sets of a few devices, and their rings.
pub(super) struct Sets<'a> {
    hops: &'a Hops,
    head: usize,
    others: &'a [usize],
    rings: Rings,
    /// The bit of a device that must take part; 0 for none.
    with: usize,
}

impl<'a> Sets<'a> {
    pub(super) fn new(
        hops: &'a Hops,
        head: usize,
        others: &'a [usize],
        fixed_order: bool,
        with: Option<usize>,
    ) -> Self {
        let rings = if fixed_order {
            Rings::in_order(hops, head, others)
        } else {
            Rings::shortest(hops, head, others)
        };
        let with =
            with.and_then(|with| others.iter().position(|device| *device == with)).map_or(0, |at| 1 << at);
        Self { hops, head, others, rings, with }
    }

    /// Returns the device of the set with the highest index, which is added last.
    fn last(set: usize) -> usize {
        set.ilog2() as usize
    }

    /// Returns the shares of `set` for this many layers in total, traced back from the sums.
    fn shares(&self, sums: &[Row], rows: &[Row], set: usize, layers: usize) -> Vec<(usize, usize)> {
        let (mut set, mut left, mut shares) = (set, layers, Vec::new());
        while set != 0 {
            let last = Self::last(set);
            let before = set & !(1 << last);
            let row = &rows[self.others[last]];
            let sum = |count: usize| sums[before][left - count] + row[count];
            let count = (1..=left).min_by(|a, b| sum(*a).total_cmp(&sum(*b))).expect("a device has a layer");
            shares.push((self.others[last], count));
            left -= count;
            set = before;
        }
        shares.push((self.head, left));
        shares
    }
}

impl Programme for Sets<'_> {
    fn least(&self, rows: &[Row], rounds: usize, limit: f64) -> Option<Choice> {
        let layers = rows[self.head].len() - 1;
        let sets = 1_usize << self.others.len();
        let mut sums = vec![vec![f64::INFINITY; layers + 1]; sets];
        sums[0].clone_from(&rows[self.head]);
        for set in 1..sets {
            let last = Self::last(set);
            let (before, from) = sums.split_at_mut(set);
            let (before, row) = (&before[set & !(1 << last)], &rows[self.others[last]]);
            for (count, own) in row.iter().enumerate().filter(|(_, own)| own.is_finite()) {
                for (sum, before) in from[0][count..].iter_mut().zip(before) {
                    *sum = sum.min(before + own);
                }
            }
        }
        let whole = |set: usize| sums[set][layers] + rounds as f64 * self.rings.around(set);
        let allowed = (usize::from(rounds > 1)..sets).filter(|set| set & self.with == self.with);
        let set = allowed.min_by(|a, b| whole(*a).total_cmp(&whole(*b))).filter(|set| whole(*set) < limit)?;
        let shares = self.shares(&sums, rows, set, layers);
        let ring = self.rings.ring(self.hops, set);
        let of = |device: &usize| shares.iter().find(|(at, _)| at == device).map_or(0, |(_, count)| *count);
        let layers = ring.iter().map(of).collect();
        Some(Choice { ring, layers })
    }

    fn shortest_around(&self) -> f64 {
        (1..1_usize << self.others.len()).map(|set| self.rings.around(set)).fold(f64::INFINITY, f64::min)
    }
}
