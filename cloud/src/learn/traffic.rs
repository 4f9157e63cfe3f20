//! Statistics of requests, summed by minute: counts, times and savings by scene, device class and network
//! class.
//!
//! Pure and bounded: at most [`ROWS_MAX`] rows wait to be written. If there are more, the oldest are dropped
//! and counted. Never: keeps a request, a device's name or a text.

pub mod histogram;
pub mod history;

use std::collections::BTreeMap;

pub use self::histogram::Histogram;

/// One minute, in milliseconds.
pub const MINUTE_MS: i64 = 60_000;
/// One hour, in milliseconds.
pub const HOUR_MS: i64 = 60 * MINUTE_MS;
/// One day, in milliseconds.
pub const DAY_MS: i64 = 24 * HOUR_MS;
/// How long sums of minutes are kept before they are summed by the hour, in milliseconds.
pub const MINUTES_KEPT_MS: i64 = 2 * DAY_MS;
/// How long sums of hours, and usage by the day, are kept, in milliseconds.
pub const HOURS_KEPT_MS: i64 = 90 * DAY_MS;
/// The most rows that wait while the database is away: about two hours of a busy replica.
pub const ROWS_MAX: usize = 8192;
/// The most combinations of scene, class and network with their own row in one minute; further ones count as
/// [`OTHER`].
pub const KEYS_PER_MINUTE_MAX: usize = 256;
/// Name for all combinations without their own row.
pub const OTHER: &str = "other";
/// The assumed length of a whole answer, in tokens, for computing saved slot time. The cloud never learns how
/// long the device's answer became.
pub const ANSWER_TOKENS_ASSUMED: u32 = 200;

/// Upper ends of the buckets of the time to the first token, in milliseconds.
pub const TTFT_BOUNDS_MS: &[f64] = &[
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0, 1_000.0, 1_500.0, 2_000.0,
    3_000.0, 5_000.0, 7_500.0, 10_000.0, 15_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0,
    600_000.0,
];
/// Upper ends of the buckets of L, in tokens.
pub const ASSIST_BOUNDS: &[f64] =
    &[1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0];
/// Upper ends of the buckets of r.
pub const RATIO_BOUNDS: &[f64] = &[
    0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95,
    1.0,
];

/// Key of a row. A field is empty if there is none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TrafficKey {
    /// The scene; empty for chat.
    pub scene: String,
    /// The device's class.
    pub class: String,
    /// The network's class.
    pub network: String,
}

/// One request that has ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestFigures {
    /// Whether it ended with an error.
    pub failed: bool,
    /// Milliseconds from arrival to the first token; `None` if there was no token.
    pub ttft_ms: Option<f64>,
    /// L; `None` for a chat, or if there was no answer.
    pub assist_tokens: Option<u32>,
    /// The share r of the content that the mask keeps; `None` if there was no mask.
    pub ratio: Option<f64>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer that the cloud wrote.
    pub completion_tokens: u64,
    /// Prompt tokens that the device need not read.
    pub prompt_tokens_saved: u64,
    /// Time in a slot, in milliseconds.
    pub slot_ms: u64,
    /// Additional slot time that a whole answer of [`ANSWER_TOKENS_ASSUMED`] tokens would have taken, in
    /// milliseconds.
    pub slot_ms_saved: u64,
}

/// Sums over requests.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficSums {
    /// Requests that ended.
    pub requests: u64,
    /// Requests that ended with an error.
    pub failures: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Answer tokens.
    pub completion_tokens: u64,
    /// Prompt tokens that devices need not read.
    pub prompt_tokens_saved: u64,
    /// Slot time, in milliseconds.
    pub slot_ms: u64,
    /// Slot time saved, in milliseconds.
    pub slot_ms_saved: u64,
    /// Times to the first token, over [`TTFT_BOUNDS_MS`].
    pub ttft_ms: Histogram,
    /// L, over [`ASSIST_BOUNDS`].
    pub assist_tokens: Histogram,
    /// r, over [`RATIO_BOUNDS`].
    pub ratio: Histogram,
}

impl Default for TrafficSums {
    fn default() -> TrafficSums {
        TrafficSums {
            requests: 0,
            failures: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            prompt_tokens_saved: 0,
            slot_ms: 0,
            slot_ms_saved: 0,
            ttft_ms: Histogram::new(TTFT_BOUNDS_MS),
            assist_tokens: Histogram::new(ASSIST_BOUNDS),
            ratio: Histogram::new(RATIO_BOUNDS),
        }
    }
}

impl TrafficSums {
    /// Counts one request.
    pub fn record(&mut self, figures: &RequestFigures) {
        self.requests += 1;
        self.failures += u64::from(figures.failed);
        self.prompt_tokens += figures.prompt_tokens;
        self.completion_tokens += figures.completion_tokens;
        self.prompt_tokens_saved += figures.prompt_tokens_saved;
        self.slot_ms += figures.slot_ms;
        self.slot_ms_saved += figures.slot_ms_saved;
        if let Some(ms) = figures.ttft_ms {
            self.ttft_ms.record(ms);
        }
        if let Some(tokens) = figures.assist_tokens {
            self.assist_tokens.record(f64::from(tokens));
        }
        if let Some(ratio) = figures.ratio {
            self.ratio.record(ratio);
        }
    }

    /// Adds other sums.
    pub fn merge(&mut self, other: &TrafficSums) {
        self.requests += other.requests;
        self.failures += other.failures;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.prompt_tokens_saved += other.prompt_tokens_saved;
        self.slot_ms += other.slot_ms;
        self.slot_ms_saved += other.slot_ms_saved;
        self.ttft_ms.merge(&other.ttft_ms);
        self.assist_tokens.merge(&other.assist_tokens);
        self.ratio.merge(&other.ratio);
    }
}

/// Sums of one period.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficRow {
    /// Length of the period: [`MINUTE_MS`] or [`HOUR_MS`].
    pub period_ms: i64,
    /// Its start, in milliseconds since 1970.
    pub start_ms: i64,
    /// The key of these sums.
    pub key: TrafficKey,
    /// The sums.
    pub sums: TrafficSums,
}

/// The minutes that are not written to the database yet.
#[derive(Debug, Default)]
pub struct Traffic {
    rows: BTreeMap<(i64, TrafficKey), Pending>,
    given_up_total: u64,
}

#[derive(Debug, Default)]
struct Pending {
    sums: TrafficSums,
    /// Number of requests that the database has.
    written: u64,
}

impl Traffic {
    /// Counts one request that ended at `now_ms`.
    pub fn record(&mut self, now_ms: i64, key: TrafficKey, figures: &RequestFigures) {
        let minute = now_ms - now_ms.rem_euclid(MINUTE_MS);
        let mut place = (minute, key);
        if !self.rows.contains_key(&place) {
            let first = (minute, TrafficKey::default());
            let kept_apart = self.rows.range(first..).take_while(|((start, _), _)| *start == minute).count();
            if kept_apart >= KEYS_PER_MINUTE_MAX {
                let other = || OTHER.to_owned();
                place.1 = TrafficKey { scene: other(), class: other(), network: other() };
            }
            while self.rows.len() >= ROWS_MAX {
                if let Some((_, lost)) = self.rows.pop_first() {
                    self.given_up_total += lost.sums.requests - lost.written;
                }
            }
        }
        self.rows.entry(place).or_default().sums.record(figures);
    }

    /// Returns the rows that the database does not have completely.
    #[must_use]
    pub fn unwritten(&self) -> Vec<TrafficRow> {
        let due = self.rows.iter().filter(|(_, pending)| pending.sums.requests > pending.written);
        due.map(|((start_ms, key), pending)| TrafficRow {
            period_ms: MINUTE_MS,
            start_ms: *start_ms,
            key: key.clone(),
            sums: pending.sums.clone(),
        })
        .collect()
    }

    /// Notes that the database has these rows. Forgets past minutes that it has completely.
    pub fn written(&mut self, rows: &[TrafficRow], now_ms: i64) {
        for row in rows {
            if let Some(pending) = self.rows.get_mut(&(row.start_ms, row.key.clone())) {
                pending.written = row.sums.requests;
            }
        }
        self.rows.retain(|(start_ms, _), pending| {
            start_ms + MINUTE_MS > now_ms || pending.sums.requests > pending.written
        });
    }

    /// Returns the number of requests whose figures were dropped, because the database was away for too long.
    #[must_use]
    pub fn given_up_total(&self) -> u64 {
        self.given_up_total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scene: &str) -> TrafficKey {
        TrafficKey { scene: scene.into(), ..TrafficKey::default() }
    }

    fn one() -> RequestFigures {
        RequestFigures { ttft_ms: Some(40.0), prompt_tokens: 10, ..RequestFigures::default() }
    }

    #[test]
    fn minutes_are_written_until_the_database_knows_them() {
        let mut traffic = Traffic::default();
        traffic.record(61_000, key("a"), &one());
        let first = traffic.unwritten();
        assert_eq!((first.len(), first[0].start_ms, first[0].sums.prompt_tokens), (1, 60_000, 10));
        // One more request comes while the row is written: it is written again, with both.
        traffic.record(62_000, key("a"), &one());
        traffic.written(&first, 63_000);
        let second = traffic.unwritten();
        assert_eq!((second.len(), second[0].sums.requests), (1, 2));
        traffic.written(&second, 63_000);
        assert_eq!(traffic.unwritten(), []);
        // The same minute continues; then it is over and forgotten.
        traffic.record(64_000, key("a"), &one());
        assert_eq!(traffic.unwritten()[0].sums.requests, 3);
        let third = traffic.unwritten();
        traffic.written(&third, 130_000);
        assert!(traffic.rows.is_empty());
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut traffic = Traffic::default();
        for at in 0..(KEYS_PER_MINUTE_MAX as i64 + 9) {
            traffic.record(0, key(&at.to_string()), &one());
        }
        let rows = traffic.unwritten();
        assert_eq!(rows.len(), KEYS_PER_MINUTE_MAX + 1);
        let other = rows.iter().find(|row| row.key.scene == OTHER).unwrap();
        assert_eq!(other.sums.requests, 9);
        for minute in 1..ROWS_MAX as i64 {
            traffic.record(minute * MINUTE_MS, key("a"), &one());
        }
        assert_eq!(traffic.rows.len(), ROWS_MAX);
        assert_eq!(traffic.given_up_total(), KEYS_PER_MINUTE_MAX as u64);
    }
}
