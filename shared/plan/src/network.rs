//! Hops: the time to pass a hidden state from one device to another, and the shortest ring through a set of
//! devices.
//!
//! Relays join two devices that do not see each other: hops are shortest paths (Floyd 1962). Rings are exact
//! up to [`EXACT_MAX`] devices (Held and Karp 1962), and improved locally beyond that.

use crate::cluster::{Cluster, ModelShape, Workload};

/// The most devices for which the shortest ring is guaranteed.
pub const EXACT_MAX: usize = 8;
/// Bytes of one value of a hidden state in transfer.
const VALUE_BYTES: f64 = 4.0;

/// Seconds from each device to each other one, over relays if that is shorter or the only way.
#[derive(Debug, Clone, PartialEq)]
pub struct Hops {
    devices: usize,
    seconds: Vec<f64>,
    /// The first device on the way; the target itself if the two see each other.
    via: Vec<usize>,
}

impl Hops {
    /// Computes the hops of one step of `workload`. The cluster must have passed its check.
    pub fn new(cluster: &Cluster, model: &ModelShape, workload: &Workload) -> Self {
        let devices = cluster.devices.len();
        let bytes = VALUE_BYTES * model.hidden as f64 * workload.sequences as f64;
        let time = |latency: f64, rate: f64| latency + bytes / rate;
        let network = &cluster.network;
        let mut hops = Self {
            devices,
            seconds: vec![time(network.latency_s, network.bytes_per_s); devices * devices],
            via: (0..devices * devices).map(|at| at % devices).collect(),
        };
        // An edge first counts in both directions; then each edge sets its own direction and wins.
        for own in [false, true] {
            for edge in &network.edges {
                let (Some(from), Some(to)) = (cluster.index(&edge.from), cluster.index(&edge.to)) else {
                    continue;
                };
                let rate = edge.bytes_per_s.unwrap_or(network.bytes_per_s);
                let seconds = edge.latency_s.map_or(f64::INFINITY, |latency| time(latency, rate));
                let (from, to) = if own { (from, to) } else { (to, from) };
                hops.seconds[from * devices + to] = seconds;
            }
        }
        for at in 0..devices {
            hops.seconds[at * devices + at] = 0.0;
        }
        hops.relay();
        hops
    }

    fn relay(&mut self) {
        let n = self.devices;
        for between in 0..n {
            for from in 0..n {
                for to in 0..n {
                    let over = self.seconds[from * n + between] + self.seconds[between * n + to];
                    if over < self.seconds[from * n + to] {
                        self.seconds[from * n + to] = over;
                        self.via[from * n + to] = self.via[from * n + between];
                    }
                }
            }
        }
    }

    /// Returns the seconds from one device to another: infinite if there is no way, 0 to itself.
    pub fn seconds(&self, from: usize, to: usize) -> f64 {
        self.seconds[from * self.devices + to]
    }

    /// Returns the relays on the way, in order; empty if the two see each other.
    pub fn relays(&self, from: usize, to: usize) -> Vec<usize> {
        let mut at = from;
        let mut relays = Vec::new();
        while at != to && relays.len() < self.devices && self.seconds(at, to).is_finite() {
            at = self.via[at * self.devices + to];
            if at != to {
                relays.push(at);
            }
        }
        relays
    }

    /// Returns the seconds once around the ring; 0 for one device.
    pub fn around(&self, ring: &[usize]) -> f64 {
        if ring.len() < 2 {
            return 0.0;
        }
        ring.iter().zip(ring.iter().cycle().skip(1)).map(|(from, to)| self.seconds(*from, *to)).sum()
    }
}

/// The shortest ring from `head` through every set of other devices; a set is a bit mask of indices into
/// `others`.
#[derive(Debug)]
pub struct Rings {
    others: Vec<usize>,
    head: usize,
    /// `best[set][last]`: the shortest way from the head through `set` that ends at `last`.
    best: Vec<f64>,
    /// Seconds once around, for each set.
    around: Vec<f64>,
}

impl Rings {
    /// Finds for every set the shortest ring in any order. At most [`EXACT_MAX`] devices.
    pub fn shortest(hops: &Hops, head: usize, others: &[usize]) -> Self {
        let n = others.len();
        let sets = 1_usize << n;
        let mut best = vec![f64::INFINITY; sets * n.max(1)];
        let mut around = vec![f64::INFINITY; sets];
        around[0] = 0.0;
        for set in 1..sets {
            for last in (0..n).filter(|last| set >> last & 1 == 1) {
                let before = set & !(1 << last);
                let way = if before == 0 {
                    hops.seconds(head, others[last])
                } else {
                    let ways = (0..n).filter(|at| before >> at & 1 == 1);
                    ways.map(|at| best[before * n + at] + hops.seconds(others[at], others[last]))
                        .fold(f64::INFINITY, f64::min)
                };
                best[set * n + last] = way;
                around[set] = around[set].min(way + hops.seconds(others[last], head));
            }
        }
        Self { others: others.to_vec(), head, best, around }
    }

    /// Takes for every set the ring in the order of `others`.
    pub fn in_order(hops: &Hops, head: usize, others: &[usize]) -> Self {
        let ring = |set: usize| {
            let inside = others.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1);
            std::iter::once(head).chain(inside.map(|(_, device)| *device)).collect::<Vec<_>>()
        };
        let around = (0..1_usize << others.len()).map(|set| hops.around(&ring(set))).collect();
        Self { others: others.to_vec(), head, best: Vec::new(), around }
    }

    /// Returns the seconds once around the head and this set.
    pub fn around(&self, set: usize) -> f64 {
        self.around[set]
    }

    /// Returns the devices of the ring through this set, the head first.
    pub fn ring(&self, hops: &Hops, set: usize) -> Vec<usize> {
        let n = self.others.len();
        let inside = |set: usize| (0..n).filter(move |at| set >> at & 1 == 1);
        if self.best.is_empty() {
            return std::iter::once(self.head).chain(inside(set).map(|at| self.others[at])).collect();
        }
        let (mut set, mut next, mut back) = (set, self.head, Vec::new());
        while set != 0 {
            let way = |at: usize| self.best[set * n + at] + hops.seconds(self.others[at], next);
            let Some(last) = inside(set).min_by(|a, b| way(*a).total_cmp(&way(*b))) else { break };
            next = self.others[last];
            back.push(next);
            set &= !(1 << last);
        }
        std::iter::once(self.head).chain(back.into_iter().rev()).collect()
    }
}

/// Returns a short order of all of `others` after `head`: the nearest neighbour each time, then 2-opt (Croes
/// 1958).
pub fn short_order(hops: &Hops, head: usize, others: &[usize]) -> Vec<usize> {
    let (mut ring, mut left) = (vec![head], others.to_vec());
    while !left.is_empty() {
        let at = ring[ring.len() - 1];
        let nearest = (0..left.len())
            .min_by(|a, b| hops.seconds(at, left[*a]).total_cmp(&hops.seconds(at, left[*b])))
            .expect("some are left");
        ring.push(left.remove(nearest));
    }
    let mut around = hops.around(&ring);
    // Every pass but the last shortens the ring; the bound stops endless passes caused by rounding.
    for _ in 0..ring.len() {
        let before = around;
        for first in 1..ring.len() {
            for last in first + 1..ring.len() {
                ring[first..=last].reverse();
                let turned = hops.around(&ring);
                if turned < around {
                    around = turned;
                } else {
                    ring[first..=last].reverse();
                }
            }
        }
        if around >= before {
            break;
        }
    }
    ring.split_off(1)
}

#[cfg(test)]
mod tests;
