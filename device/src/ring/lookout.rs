//! Looking out for paired devices that are not in the ring: those that come back, and those that were paired later.
//!
//! A thread of its own looks every few seconds, and hands who answers to the ring, which takes it in as soon as no
//! answer runs. A device that joins and is lost again and again is handed over ever more seldom ([`Patience`]), so that
//! it cannot make the ring flap. Looking never disturbs the ring: it asks a device whether it is there, no more.

mod paired;

pub use paired::PairedHome;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::frame::NextNode;
use super::head::RingHandle;
use super::link::Key;

/// Between two looks.
pub const LOOK: Duration = Duration::from_secs(3);
/// How long a device that was handed over waits until it is handed over again; doubled each time.
const FIRST: Duration = Duration::from_secs(5);
/// The longest such wait: a person who has mended a device sees it in the ring within this time.
const MOST: Duration = Duration::from_secs(60);
/// Who stays in the ring for so long begins anew, and so does who was not handed over for so long.
const CALM: Duration = Duration::from_secs(300);

/// Where devices may be.
pub trait Neighbourhood: Send {
    /// Keys of the devices that are paired with this one now.
    fn paired(&mut self) -> Vec<Key>;

    /// Where a device answers; none where it does not.
    fn find(&mut self, key: &Key) -> Option<NextNode>;
}

/// What is known of one device.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// How often it was handed over since it was last calm.
    tries: u32,
    /// Not before this moment again.
    next: Duration,
    /// In the ring since.
    since: Option<Duration>,
}

/// Which devices are handed to the ring when: at once if one has gone, then after 5 s, 10 s, 20 s, … and at most
/// 1 min for one that does not stay. Who has been in the ring, or away, for 5 min begins anew.
#[derive(Debug, Default)]
pub struct Patience {
    seen: BTreeMap<Key, Seen>,
}

impl Patience {
    /// Devices to hand over at `now` (since any beginning): paired ones that answer, are not in the ring, and are not
    /// on their way into it.
    pub fn look(
        &mut self,
        now: Duration,
        present: &[Key],
        joining: &[Key],
        home: &mut dyn Neighbourhood,
    ) -> Vec<NextNode> {
        let paired = home.paired();
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
            if let Some(node) = home.find(&key) {
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

/// Looks out for the ring's devices as long as anybody else has a view of the ring.
///
/// # Errors
/// What the system says where it gives no thread.
pub fn keep_looking(
    ring: &RingHandle,
    mut home: Box<dyn Neighbourhood>,
    every: Duration,
) -> std::io::Result<()> {
    let watch = ring.watch();
    let look = move || {
        let (begun, mut patience) = (Instant::now(), Patience::default());
        while let Some(ring) = watch.handle() {
            let (present, joining) = (ring.present(), ring.joining());
            // Asking may take long, and keeps no ring alive meanwhile.
            drop(ring);
            let found = patience.look(begun.elapsed(), &present, &joining, home.as_mut());
            if let Some(ring) = watch.handle() {
                for node in found {
                    tracing::info!(address = %node.address, "a device of the ring is there again");
                    ring.join(node);
                }
            }
            std::thread::sleep(every);
        }
    };
    std::thread::Builder::new().name("baton-ring-lookout".into()).spawn(look).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices that are paired, and whether they answer.
    struct Fake(Vec<(u8, bool)>);

    impl Neighbourhood for Fake {
        fn paired(&mut self) -> Vec<Key> {
            self.0.iter().map(|(number, _)| [*number; 32]).collect()
        }

        fn find(&mut self, key: &Key) -> Option<NextNode> {
            let there = self.0.iter().any(|(number, there)| [*number; 32] == *key && *there);
            there.then(|| NextNode { address: format!("at:{}", key[0]), key: *key })
        }
    }

    fn keys(nodes: &[NextNode]) -> Vec<u8> {
        nodes.iter().map(|node| node.key[0]).collect()
    }

    /// Seconds at which device 1 is handed over, in the ring at the seconds that `present` says.
    fn moments(seconds: u64, present: impl Fn(u64) -> bool) -> Vec<u64> {
        let (mut patience, mut home) = (Patience::default(), Fake(vec![(1, true)]));
        let mut at = Vec::new();
        for second in 0..seconds {
            let there = if present(second) { vec![[1; 32]] } else { Vec::new() };
            if !patience.look(Duration::from_secs(second), &there, &[], &mut home).is_empty() {
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
            let (mut patience, mut home) = (Patience::default(), Fake(vec![(1, true)]));
            let mut back = None;
            for second in 0..4_000 {
                home.0 = vec![(1, second < 3_600 || second >= mended)];
                let found = patience.look(Duration::from_secs(second), &[], &[], &mut home);
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
        let (mut patience, mut home) = (Patience::default(), Fake(vec![(1, true)]));
        let mut at = Vec::new();
        for second in 0..2_000 {
            home.0 = vec![(1, !(400..1_000).contains(&second))];
            if !patience.look(Duration::from_secs(second), &[], &[], &mut home).is_empty() {
                at.push(second);
            }
        }
        at.retain(|second| *second >= 1_000);
        assert_eq!(at[..4], [1_000, 1_005, 1_015, 1_035]);
    }

    #[test]
    fn a_device_that_has_stayed_begins_anew() {
        // Handed over at 0, 5 and 15 s; in the ring from then on for 5 min, or for less.
        let stays = |until: u64| move |second: u64| (16..until).contains(&second);
        let after =
            |until| moments(700, stays(until)).into_iter().filter(|at| *at >= until).collect::<Vec<_>>();
        assert_eq!(after(320)[..3], [320, 325, 335]);
        assert_eq!(after(200)[..2], [200, 240], "less than 5 min are no proof");
    }

    #[test]
    fn who_is_there_on_the_way_or_unpaired_is_left_alone() {
        let (mut patience, mut home) =
            (Patience::default(), Fake(vec![(1, true), (2, true), (3, false), (4, true)]));
        let now = Duration::ZERO;
        let found = patience.look(now, &[[1; 32]], &[[2; 32]], &mut home);
        assert_eq!(keys(&found), [4], "1 is present, 2 is joining, 3 does not answer");
        home.0 = vec![(3, true), (5, true)];
        let found = patience.look(now, &[], &[], &mut home);
        assert_eq!(keys(&found), [3, 5], "paired later, and silent before");
    }
}
