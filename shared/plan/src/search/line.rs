//! The dynamic programme along one order. `A[device][l]` is the least sum from the head to this device with
//! `l` layers so far, its own included. Devices that take no part are skipped.

use super::{Best, Choice, Field, Programme, Row, SearchOptions, improve};
use crate::network::{Hops, short_order};

/// One order of all other devices.
struct Line<'a> {
    hops: &'a Hops,
    head: usize,
    order: Vec<usize>,
    /// The position of a device that must take part; the head has position 0.
    with: Option<usize>,
}

/// The most orders that are tried.
const ORDERS_MAX: usize = 4;

/// Searches along a short order, then along orders that are short for the devices of the best plan, with the
/// others inserted.
pub(super) fn improve_orders(
    field: &Field<'_>,
    others: &[usize],
    options: &SearchOptions,
    with: Option<usize>,
    best: &mut Option<Best>,
) {
    let (hops, head) = (&field.costs.hops, field.head);
    let mut order = if options.fixed_order { others.to_vec() } else { short_order(hops, head, others) };
    for _ in 0..ORDERS_MAX {
        let with = with.and_then(|with| order.iter().position(|device| *device == with)).map(|at| at + 1);
        improve(field, &Line { hops, head, order: order.clone(), with }, options.rounds, best);
        let Some(best) = best.as_ref().filter(|best| best.choice.ring[0] == head && !options.fixed_order)
        else {
            return;
        };
        let kept = short_order(hops, head, &best.choice.ring[1..]);
        let left: Vec<usize> = others.iter().copied().filter(|device| !kept.contains(device)).collect();
        let next = left.into_iter().fold(kept, |order, device| inserted(hops, head, order, device));
        if next == order {
            return;
        }
        order = next;
    }
}

/// Inserts one more device into the order at the position that lengthens the ring least.
fn inserted(hops: &Hops, head: usize, mut order: Vec<usize>, device: usize) -> Vec<usize> {
    let node = |at: usize| if at == 0 || at == order.len() + 1 { head } else { order[at - 1] };
    let detour = |at: usize| {
        let (before, after) = (node(at), node(at + 1));
        hops.seconds(before, device) + hops.seconds(device, after) - hops.seconds(before, after)
    };
    let place = (0..=order.len()).min_by(|a, b| detour(*a).total_cmp(&detour(*b))).unwrap_or(0);
    order.insert(place, device);
    order
}

impl Line<'_> {
    fn node(&self, at: usize) -> usize {
        if at == 0 { self.head } else { self.order[at - 1] }
    }

    /// Whether a step from one position to a later one skips the device that must take part.
    fn skips(&self, before: usize, place: usize) -> bool {
        self.with.is_some_and(|with| before < with && with < place)
    }

    /// Returns, for each number of layers, the least sum to reach the device at `place`, and the position
    /// before it.
    fn reached(&self, sums: &[Row], place: usize, rounds: f64) -> (Row, Vec<usize>) {
        let mut least = vec![f64::INFINITY; sums[0].len()];
        let mut from = vec![0; sums[0].len()];
        for (before, sums) in
            sums.iter().enumerate().take(place).filter(|(before, _)| !self.skips(*before, place))
        {
            let hop = rounds * self.hops.seconds(self.node(before), self.node(place));
            for ((least, from), sum) in least.iter_mut().zip(&mut from).zip(sums) {
                if sum + hop < *least {
                    (*least, *from) = (sum + hop, before);
                }
            }
        }
        (least, from)
    }
}

impl Programme for Line<'_> {
    fn least(&self, rows: &[Row], rounds: usize, limit: f64) -> Option<Choice> {
        let layers = rows[self.head].len() - 1;
        let k = rounds as f64;
        let mut sums = vec![rows[self.head].clone()];
        let mut came = vec![(Vec::new(), Vec::new())];
        for place in 1..=self.order.len() {
            let (reached, from) = self.reached(&sums, place, k);
            let row = &rows[self.node(place)];
            let (mut sum, mut count) = (vec![f64::INFINITY; layers + 1], vec![0; layers + 1]);
            for (own_count, own) in row.iter().enumerate().filter(|(_, own)| own.is_finite()) {
                for at in own_count..=layers {
                    let whole = reached[at - own_count] + own;
                    if whole < sum[at] {
                        (sum[at], count[at]) = (whole, own_count);
                    }
                }
            }
            sums.push(sum);
            came.push((from, count));
        }
        let back =
            |place: usize| k * if place == 0 { 0.0 } else { self.hops.seconds(self.node(place), self.head) };
        let whole = |place: usize| sums[place][layers] + back(place);
        let ends = (usize::from(rounds > 1)..sums.len()).filter(|place| !self.skips(*place, sums.len()));
        let last =
            ends.min_by(|a, b| whole(*a).total_cmp(&whole(*b))).filter(|place| whole(*place) < limit)?;
        let (mut place, mut left, mut shares) = (last, layers, Vec::new());
        while place != 0 {
            let (from, count) = &came[place];
            let own = count[left];
            shares.push((self.node(place), own));
            left -= own;
            place = from[left];
        }
        shares.push((self.head, left));
        let (ring, layers) = shares.into_iter().rev().unzip();
        Some(Choice { ring, layers })
    }

    fn shortest_around(&self) -> f64 {
        let there_and_back =
            |at: &usize| self.hops.seconds(self.head, *at) + self.hops.seconds(*at, self.head);
        self.order.iter().map(there_and_back).fold(f64::INFINITY, f64::min)
    }
}
