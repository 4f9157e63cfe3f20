//! What is known of the network paths between devices, and the planner's network of it.
//!
//! A path that was never measured counts as the slowest one that was.

use std::collections::BTreeMap;

use baton_plan::{Edge, Network};

use super::DeviceId;
use crate::wire::frame::LinkSpeed;

/// Bytes per second between two devices as long as nothing is known: a good wireless network.
const BYTES_PER_S: f64 = 5e7;
/// Seconds of latency as long as nothing is known.
const LATENCY_S: f64 = 2e-3;
/// A latency that differs by more than this factor, and by more than [`LATENCY_SLACK_S`], has drifted.
const DRIFT: f64 = 2.0;
const LATENCY_SLACK_S: f64 = 1e-3;

/// One direction between two devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneWay {
    /// Seconds until the first byte arrives.
    pub latency_s: f64,
    /// Bytes per second after that.
    pub bytes_per_s: f64,
}

impl OneWay {
    /// Returns whether the numbers can be of a network.
    pub fn is_sound(&self) -> bool {
        let positive = self.bytes_per_s.is_finite() && self.bytes_per_s > 0.0;
        positive && self.latency_s.is_finite() && self.latency_s >= 0.0
    }
}

/// All that is known of the paths between devices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ways {
    measured: BTreeMap<(DeviceId, DeviceId), OneWay>,
}

impl Ways {
    /// Returns whether the path between two devices is known.
    pub fn knows(&self, from: DeviceId, to: DeviceId) -> bool {
        self.measured.contains_key(&(from, to))
    }

    /// Returns whether the path is known and its latency has not drifted from `latency_s`.
    pub fn holds(&self, from: DeviceId, to: DeviceId, latency_s: f64) -> bool {
        let Some(known) = self.measured.get(&(from, to)) else { return false };
        let (least, most) = (known.latency_s.min(latency_s), known.latency_s.max(latency_s));
        most <= least * DRIFT || most - least <= LATENCY_SLACK_S
    }

    /// Adds a measurement, which holds for both directions.
    pub fn put(&mut self, from: DeviceId, to: DeviceId, speed: LinkSpeed) {
        let LinkSpeed { latency_s, there_bytes_per_s, back_bytes_per_s } = speed;
        self.measured.insert((from, to), OneWay { latency_s, bytes_per_s: there_bytes_per_s });
        self.measured.insert((to, from), OneWay { latency_s, bytes_per_s: back_bytes_per_s });
    }

    /// Adds one direction, unless its numbers can be of no network.
    pub fn add(&mut self, from: DeviceId, to: DeviceId, way: OneWay) {
        if way.is_sound() {
            self.measured.insert((from, to), way);
        }
    }

    /// Returns every direction that is known.
    pub fn all(&self) -> impl Iterator<Item = (DeviceId, DeviceId, OneWay)> {
        self.measured.iter().map(|((from, to), way)| (*from, *to, *way))
    }

    /// Returns the network of these devices, by their names. A path that is not known counts as the slowest
    /// one that is.
    pub fn network(&self, devices: &[(DeviceId, String)]) -> Network {
        let name =
            |device: DeviceId| devices.iter().find(|(own, _)| *own == device).map(|(_, name)| name.clone());
        let edge = |(from, to, way): (DeviceId, DeviceId, OneWay)| {
            Some(Edge {
                from: name(from)?,
                to: name(to)?,
                latency_s: Some(way.latency_s),
                bytes_per_s: Some(way.bytes_per_s),
            })
        };
        let edges: Vec<Edge> = self.all().filter_map(edge).collect();
        let latency_s = edges.iter().filter_map(|edge| edge.latency_s).reduce(f64::max);
        let bytes_per_s = edges.iter().filter_map(|edge| edge.bytes_per_s).reduce(f64::min);
        Network {
            latency_s: latency_s.unwrap_or(LATENCY_S),
            bytes_per_s: bytes_per_s.unwrap_or(BYTES_PER_S),
            edges,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u8) -> DeviceId {
        DeviceId([number; 32])
    }

    fn speed(latency_s: f64, there: f64, back: f64) -> LinkSpeed {
        LinkSpeed { latency_s, there_bytes_per_s: there, back_bytes_per_s: back }
    }

    #[test]
    fn what_is_known_is_given_by_name_and_the_rest_counts_as_the_slowest() {
        let mut ways = Ways::default();
        let network = ways.network(&[(device(0), "head".to_owned())]);
        assert_eq!(
            (network.latency_s, network.bytes_per_s, network.edges.len()),
            (LATENCY_S, BYTES_PER_S, 0)
        );
        ways.put(device(0), device(1), speed(0.004, 3e7, 2e7));
        ways.put(device(0), device(2), speed(0.001, 9e7, 9e7));
        let named = |number: u8, name: &str| (device(number), name.to_owned());
        let network = ways.network(&[named(0, "head"), named(1, "desk")]);
        assert_eq!((network.latency_s, network.bytes_per_s), (0.004, 2e7));
        let edge = |from: &str, to: &str, rate| Edge {
            from: from.to_owned(),
            to: to.to_owned(),
            latency_s: Some(0.004),
            bytes_per_s: Some(rate),
        };
        assert_eq!(network.edges, [edge("head", "desk", 3e7), edge("desk", "head", 2e7)]);
        let three = [named(0, "head"), named(1, "desk"), named(2, "phone")];
        assert_eq!(ways.network(&three).edges.len(), 4, "nothing is known between desk and phone");
    }

    #[test]
    fn a_latency_that_has_drifted_is_measured_again() {
        let mut ways = Ways::default();
        let (a, b) = (device(1), device(2));
        assert!(!ways.holds(a, b, 0.004) && !ways.knows(a, b));
        ways.put(a, b, speed(0.004, 1e7, 1e7));
        assert!(ways.knows(b, a));
        for (latency_s, holds) in
            [(0.004, true), (0.0079, true), (0.0081, false), (0.0031, true), (0.0005, false)]
        {
            assert_eq!(ways.holds(a, b, latency_s), holds, "{latency_s}");
        }
        ways.put(a, b, speed(0.0001, 1e7, 1e7));
        assert!(ways.holds(a, b, 0.0009), "below a millisecond factors say nothing");
    }

    #[test]
    fn numbers_of_no_network_are_not_taken() {
        let mut ways = Ways::default();
        for (latency_s, bytes_per_s) in [(-1.0, 1e7), (f64::NAN, 1e7), (0.1, 0.0), (0.1, f64::INFINITY)] {
            ways.add(device(1), device(2), OneWay { latency_s, bytes_per_s });
        }
        assert!(!ways.knows(device(1), device(2)));
        ways.add(device(1), device(2), OneWay { latency_s: 0.0, bytes_per_s: 1.0 });
        assert!(ways.knows(device(1), device(2)) && !ways.knows(device(2), device(1)));
    }
}
