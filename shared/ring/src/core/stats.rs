//! Statistics of a ring, for people: which device computes what, how long it takes by cause, which devices
//! were lost.

use crate::wire::frame::Heartbeat;

/// One device of the ring.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DeviceStats {
    /// Its name.
    pub name: String,
    /// Its place; the head is place 0.
    pub place: usize,
    /// Its layers.
    pub layers: Vec<usize>,
    /// Milliseconds of computing per step of the present epoch.
    pub compute_ms: f64,
    /// Milliseconds without anything to compute, per step.
    pub wait_ms: f64,
    /// Milliseconds of sending, per step.
    pub send_ms: f64,
    /// Bytes that it received in the present epoch.
    pub bytes_in: u64,
    /// Bytes that it sent in the present epoch.
    pub bytes_out: u64,
}

impl DeviceStats {
    /// Makes a device's statistics from its latest heartbeat, after so many steps of that epoch.
    pub fn of(name: &str, place: usize, layers: Vec<usize>, beat: &Heartbeat, steps: u64) -> Self {
        let each = |us: u64| us as f64 / 1e3 / steps.max(1) as f64;
        Self {
            name: name.to_owned(),
            place,
            layers,
            compute_ms: each(beat.compute_us),
            wait_ms: each(beat.wait_us),
            send_ms: each(beat.send_us),
            bytes_in: beat.bytes_in,
            bytes_out: beat.bytes_out,
        }
    }
}

/// A device that was lost.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LostDevice {
    /// Its name.
    pub name: String,
    /// The reason.
    pub words: String,
}

/// The present state of the ring.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct RingStats {
    /// The present epoch; 0 if the head has always been alone.
    pub epoch: u64,
    /// Rounds of the present plan.
    pub rounds: usize,
    /// Devices in ring order.
    pub devices: Vec<DeviceStats>,
    /// Steps since the start.
    pub steps: u64,
    /// Tokens that went through the model since the start, including those of rebuilt caches.
    pub tokens: u64,
    /// Steps of the present epoch.
    pub epoch_steps: u64,
    /// Average milliseconds of a step in the present epoch.
    pub step_ms: f64,
    /// Frames that the head refused, such as those of an old epoch.
    pub refused: u64,
    /// How often sequences were computed again on another set of devices.
    pub recoveries: u64,
    /// Devices that fetch their weights before they take part.
    #[serde(default)]
    pub fetching: Vec<String>,
    /// The devices that were lost last, oldest first.
    pub lost: Vec<LostDevice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_one_step() {
        let beat = Heartbeat { compute_us: 9000, wait_us: 3000, send_us: 30, ..Heartbeat::default() };
        let stats = DeviceStats::of("desk", 1, vec![2], &beat, 3);
        assert!((stats.compute_ms - 3.0).abs() < 1e-9 && (stats.wait_ms - 1.0).abs() < 1e-9);
        assert!((stats.send_ms - 0.01).abs() < 1e-9);
        assert!(DeviceStats::of("desk", 1, vec![], &beat, 0).compute_ms.is_finite());
    }
}
