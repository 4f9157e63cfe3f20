//! The rhythm in which the cloud's tokens come: several at once, if a pass of the cloud writes several or the
//! network joins packets.
//!
//! Pure. Two figures: how long a token takes, which says when the last one comes, and how long the pauses
//! between bursts are, which says what is silence. Always: tokens that come one by one are bursts of one.

use baton_pacing::Millis;

/// Tokens that come within this time of each other are one burst, in milliseconds.
const BURST_MS: f64 = 2.0;
/// Weight of a new burst in the means.
const NEW_SHARE: f64 = 0.25;

/// What is known of a stream's rhythm.
#[derive(Debug, Default)]
pub(super) struct Bursts {
    /// When the last burst began, when its last token came, and its tokens.
    last: Option<(Millis, Millis, usize)>,
    /// The usual time for a token; 0 until it is known.
    interval_ms: f64,
    /// The usual time between the beginnings of two bursts; 0 until it is known.
    gap_ms: f64,
}

impl Bursts {
    /// Notes that another stream begins. The pause before it says nothing.
    pub(super) fn begin(&mut self) {
        self.last = None;
    }

    /// Notes that so many tokens have come, at least one.
    pub(super) fn heard(&mut self, tokens: usize, now: Millis) {
        let Some((began_at, last_at, so_far)) = self.last else {
            self.last = Some((now, now, tokens));
            return;
        };
        if (now - last_at).as_f64() <= BURST_MS {
            self.last = Some((began_at, now, so_far + tokens));
            return;
        }
        let gap_ms = (now - began_at).as_f64();
        let toward = |old: f64, new: f64| match old {
            0.0 => new,
            old => (1.0 - NEW_SHARE) * old + NEW_SHARE * new,
        };
        self.interval_ms = toward(self.interval_ms, gap_ms / so_far as f64);
        self.gap_ms = toward(self.gap_ms, gap_ms);
        self.last = Some((now, now, tokens));
    }

    /// Returns the usual time for a token, in milliseconds; 0 until it is known.
    pub(super) fn interval_ms(&self) -> f64 {
        self.interval_ms
    }

    /// Returns the usual time between two bursts, in milliseconds; at most the time in which this device
    /// writes as many tokens, at `own_ms` each. 0 until it is known.
    pub(super) fn gap_ms(&self, own_ms: f64) -> f64 {
        if self.interval_ms <= own_ms { self.gap_ms } else { self.gap_ms * own_ms / self.interval_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rhythm after bursts of `tokens` tokens, half a millisecond apart, every `every_ms`.
    fn after(bursts: usize, tokens: usize, every_ms: f64) -> Bursts {
        let mut rhythm = Bursts::default();
        for burst in 0..bursts {
            for token in 0..tokens {
                rhythm.heard(1, Millis::new(burst as f64 * every_ms + 0.5 * token as f64));
            }
        }
        rhythm
    }

    #[test]
    fn a_burst_counts_as_one_pause_and_all_of_its_tokens() {
        for tokens in [1, 2, 5, 9] {
            let rhythm = after(6, tokens, 150.0);
            assert!((rhythm.interval_ms() - 150.0 / tokens as f64).abs() < 1e-9, "{rhythm:?}");
            assert!((rhythm.gap_ms(1e9) - 150.0).abs() < 1e-9, "{rhythm:?}");
        }
        let mut at_once = Bursts::default();
        (0..4).for_each(|burst| at_once.heard(9, Millis::new(150.0 * f64::from(burst))));
        assert!((at_once.interval_ms() - 150.0 / 9.0).abs() < 1e-9, "{at_once:?}");
    }

    #[test]
    fn a_cloud_slower_than_the_device_is_measured_by_the_device() {
        // 30 ms for a token; the device would need 10 ms, and so 50 ms for a burst of 5.
        let rhythm = after(6, 5, 150.0);
        assert!((rhythm.gap_ms(10.0) - 50.0).abs() < 1e-9);
        assert!((rhythm.gap_ms(100.0) - 150.0).abs() < 1e-9);
        assert!((after(6, 1, 110.0).gap_ms(100.0) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_known_of_a_single_burst_and_of_the_pause_before_a_stream() {
        let mut rhythm = after(1, 5, 150.0);
        assert_eq!((rhythm.interval_ms(), rhythm.gap_ms(100.0)), (0.0, 0.0));
        rhythm.begin();
        rhythm.heard(1, Millis::new(9_000.0));
        assert_eq!(rhythm.interval_ms(), 0.0);
    }
}
