//! Looks for paired devices that are not in the ring: those that come back, and those that were paired
//! later.
//!
//! A thread looks every few seconds and passes devices that answer to the ring, which admits them as soon
//! as no answer runs. A device that joins and is lost again and again is passed on less and less often
//! ([`RejoinBackoff`]), so that it does not make the ring change all the time. Looking never disturbs the
//! ring: it only asks a device whether it is reachable.

mod paired;

pub use paired::PairedDevices;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::core::{DeviceId, Node};
use crate::host::RingHandle;

/// Time between two looks.
pub const LOOK: Duration = Duration::from_secs(3);
/// Wait before a device is passed to the ring again; doubled each time.
const FIRST: Duration = Duration::from_secs(5);
/// The longest such wait: a repaired device is in the ring again within this time.
const MOST: Duration = Duration::from_secs(60);
/// After this time in the ring, or without being passed on, a device's wait is reset.
const CALM: Duration = Duration::from_secs(300);

/// Finds devices on the network.
pub trait DeviceFinder: Send {
    /// Returns the keys of the devices that are paired with this one now.
    fn paired(&mut self) -> Vec<DeviceId>;

    /// Returns where a device answers, or `None` if it does not.
    fn find(&mut self, key: &DeviceId) -> Option<Node>;
}

/// What is known of one device.
#[derive(Debug, Clone, Copy, Default)]
struct DeviceState {
    /// How often it was passed on since its wait was last reset.
    tries: u32,
    /// It is not passed on before this moment.
    next: Duration,
    /// Since when it is in the ring.
    since: Option<Duration>,
}

/// Decides when a device is passed to the ring. A device that has left is passed on at once. If it does not
/// stay, it is passed on again after 5 s, 10 s, 20 s, … and at most 1 min. The wait is reset after 5 min in
/// the ring or away.
#[derive(Debug, Default)]
pub struct RejoinBackoff {
    seen: BTreeMap<DeviceId, DeviceState>,
}

impl RejoinBackoff {
    /// Returns the devices to pass on at `now` (a time from any beginning): paired ones that answer, are
    /// not in the ring, and are not about to join it.
    pub fn look(
        &mut self,
        now: Duration,
        present: &[DeviceId],
        joining: &[DeviceId],
        finder: &mut dyn DeviceFinder,
    ) -> Vec<Node> {
        let paired = finder.paired();
        self.seen.retain(|key, _| paired.contains(key));
        let mut found = Vec::new();
        for key in paired {
            let seen = self.seen.entry(key).or_default();
            if present.contains(&key) {
                let since = *seen.since.get_or_insert(now);
                if now.saturating_sub(since) >= CALM {
                    seen.tries = 0;
                }
                continue;
            }
            seen.since = None;
            if joining.contains(&key) || now < seen.next {
                continue;
            }
            if let Some(node) = finder.find(&key) {
                if now.saturating_sub(seen.next) >= CALM {
                    seen.tries = 0;
                }
                seen.next = now + FIRST.saturating_mul(1 << seen.tries.min(16)).min(MOST);
                seen.tries += 1;
                found.push(node);
            }
        }
        found
    }
}

/// Starts a thread that looks for the ring's devices as long as somebody else has access to the ring.
///
/// # Errors
/// Fails if the system cannot start a thread.
pub fn spawn_rejoin(
    ring: &RingHandle,
    mut finder: Box<dyn DeviceFinder>,
    every: Duration,
) -> std::io::Result<()> {
    let weak = ring.downgrade();
    let look = move || {
        let (begun, mut backoff) = (Instant::now(), RejoinBackoff::default());
        while let Some(ring) = weak.upgrade() {
            let (present, joining) = (ring.present(), ring.joining());
            // Asking may take long, and must not keep the ring alive meanwhile.
            drop(ring);
            let found = backoff.look(begun.elapsed(), &present, &joining, finder.as_mut());
            if let Some(ring) = weak.upgrade() {
                for node in found {
                    tracing::info!(address = %node.address, "a device of the ring is there again");
                    ring.join(node);
                }
            }
            std::thread::sleep(every);
        }
    };
    std::thread::Builder::new().name("baton-ring-rejoin".into()).spawn(look).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices that are paired, and whether they answer.
    struct Fake(Vec<(u8, bool)>);

    impl DeviceFinder for Fake {
        fn paired(&mut self) -> Vec<DeviceId> {
            self.0.iter().map(|(number, _)| DeviceId([*number; 32])).collect()
        }

        fn find(&mut self, key: &DeviceId) -> Option<Node> {
            let there = self.0.iter().any(|(number, there)| DeviceId([*number; 32]) == *key && *there);
            there.then(|| Node { address: format!("at:{}", key.0[0]), device: *key })
        }
    }

    fn keys(nodes: &[Node]) -> Vec<u8> {
        nodes.iter().map(|node| node.device.0[0]).collect()
    }

    /// Returns the seconds at which device 1 is passed on; `present` says when it is in the ring.
    fn moments(seconds: u64, present: impl Fn(u64) -> bool) -> Vec<u64> {
        let (mut backoff, mut finder) = (RejoinBackoff::default(), Fake(vec![(1, true)]));
        let mut at = Vec::new();
        for second in 0..seconds {
            let there = if present(second) { vec![DeviceId([1; 32])] } else { Vec::new() };
            if !backoff.look(Duration::from_secs(second), &there, &[], &mut finder).is_empty() {
                at.push(second);
            }
        }
        at
    }

    #[test]
    fn a_device_that_does_not_stay_is_handed_over_ever_more_seldom() {
        assert_eq!(moments(160, |_| false), [0, 5, 15, 35, 75, 135]);
        let late = moments(20_000, |_| false);
        let gaps: Vec<u64> = late.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps[gaps.len() - 3..], [60, 60, 60], "at most so long");
    }

    #[test]
    fn a_device_that_failed_often_and_is_mended_is_back_within_a_minute() {
        // It fails for an hour, and answers again at any second of the next minutes.
        for mended in 3_600..3_720 {
            let (mut backoff, mut finder) = (RejoinBackoff::default(), Fake(vec![(1, true)]));
            let mut back = None;
            for second in 0..4_000 {
                finder.0 = vec![(1, second < 3_600 || second >= mended)];
                let found = backoff.look(Duration::from_secs(second), &[], &[], &mut finder);
                if second >= mended && !found.is_empty() {
                    back = Some(second);
                    break;
                }
            }
            let waited = back.map(|second| second - mended);
            assert!(waited.is_some_and(|waited| waited < 60), "answers again at {mended}: {waited:?}");
        }
    }

    #[test]
    fn a_device_that_was_away_begins_anew() {
        let (mut backoff, mut finder) = (RejoinBackoff::default(), Fake(vec![(1, true)]));
        let mut at = Vec::new();
        for second in 0..2_000 {
            finder.0 = vec![(1, !(400..1_000).contains(&second))];
            if !backoff.look(Duration::from_secs(second), &[], &[], &mut finder).is_empty() {
                at.push(second);
            }
        }
        at.retain(|second| *second >= 1_000);
        assert_eq!(at[..4], [1_000, 1_005, 1_015, 1_035]);
    }

    #[test]
    fn a_device_that_has_stayed_begins_anew() {
        // Passed on at 0, 5 and 15 s; from then on in the ring for 5 min, or for less.
        let stays = |until: u64| move |second: u64| (16..until).contains(&second);
        let after =
            |until| moments(700, stays(until)).into_iter().filter(|at| *at >= until).collect::<Vec<_>>();
        assert_eq!(after(320)[..3], [320, 325, 335]);
        assert_eq!(after(200)[..2], [200, 240], "less than 5 min are no proof");
    }

    #[test]
    fn who_is_there_on_the_way_or_unpaired_is_left_alone() {
        let (mut backoff, mut finder) =
            (RejoinBackoff::default(), Fake(vec![(1, true), (2, true), (3, false), (4, true)]));
        let now = Duration::ZERO;
        let found = backoff.look(now, &[DeviceId([1; 32])], &[DeviceId([2; 32])], &mut finder);
        assert_eq!(keys(&found), [4], "1 is present, 2 is joining, 3 does not answer");
        finder.0 = vec![(3, true), (5, true)];
        let found = backoff.look(now, &[], &[], &mut finder);
        assert_eq!(keys(&found), [3, 5], "paired later, and silent before");
    }
}
