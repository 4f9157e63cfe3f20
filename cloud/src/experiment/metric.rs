//! What is measured of each answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The largest time that is counted, in milliseconds; a longer one counts as this. One stuck request then
/// cannot decide an experiment.
pub const TIME_MS_MAX: f64 = 600_000.0;

/// One figure of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time to the first token in the cloud, in milliseconds.
    TtftMs,
    /// Time until the device showed the first token, in milliseconds. Devices report it.
    ShownTtftMs,
    /// Largest gap between tokens that the device showed, in milliseconds. Devices report it.
    GapMs,
    /// Time in a slot of the cloud, in milliseconds.
    SlotMs,
    /// Share of the cloud's tokens that the device's model agrees with. Devices report it.
    Agreement,
    /// Share of ratings that are good. People give them.
    Rating,
    /// Share of answers that failed.
    Failures,
}

/// How two arms are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// By the ratio of the means.
    Time,
    /// By the difference of the means, which are shares from 0 to 1.
    Share,
}

impl Metric {
    /// Every metric, in the order of [`crate::experiment::sums`].
    pub const ALL: [Metric; 7] = [
        Metric::TtftMs,
        Metric::ShownTtftMs,
        Metric::GapMs,
        Metric::SlotMs,
        Metric::Agreement,
        Metric::Rating,
        Metric::Failures,
    ];

    /// Returns its name in the API and in columns of the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Metric::TtftMs => "ttft_ms",
            Metric::ShownTtftMs => "shown_ttft_ms",
            Metric::GapMs => "gap_ms",
            Metric::SlotMs => "slot_ms",
            Metric::Agreement => "agreement",
            Metric::Rating => "rating",
            Metric::Failures => "failures",
        }
    }

    /// Returns its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Metric::TtftMs => "Time to first token (ms)",
            Metric::ShownTtftMs => "First token shown (ms)",
            Metric::GapMs => "Largest gap (ms)",
            Metric::SlotMs => "Slot time (ms)",
            Metric::Agreement => "Agreement",
            Metric::Rating => "Good ratings",
            Metric::Failures => "Failures",
        }
    }

    /// Returns how arms are compared by it.
    #[must_use]
    pub const fn scale(self) -> Scale {
        match self {
            Metric::TtftMs | Metric::ShownTtftMs | Metric::GapMs | Metric::SlotMs => Scale::Time,
            Metric::Agreement | Metric::Rating | Metric::Failures => Scale::Share,
        }
    }

    /// Returns whether each value is 0 or 1.
    #[must_use]
    pub const fn is_binary(self) -> bool {
        matches!(self, Metric::Rating | Metric::Failures)
    }

    /// Returns whether a larger value is better.
    #[must_use]
    pub const fn more_is_better(self) -> bool {
        matches!(self, Metric::Agreement | Metric::Rating)
    }

    /// Returns the value as it is counted; `None` if no answer can have it.
    #[must_use]
    pub fn counted(self, value: f64) -> Option<f64> {
        match self.scale() {
            Scale::Time => (value >= 0.0).then(|| value.min(TIME_MS_MAX)),
            Scale::Share => (0.0..=1.0).contains(&value).then_some(value),
        }
    }
}

/// The name of no metric.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no metric `{0}`; these are: ttft_ms, shown_ttft_ms, gap_ms, slot_ms, agreement, rating, failures"
)]
pub struct UnknownMetric(String);

impl std::str::FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(name: &str) -> Result<Metric, UnknownMetric> {
        let found = Metric::ALL.into_iter().find(|metric| metric.as_str() == name);
        found.ok_or_else(|| UnknownMetric(name.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_metric() {
        for (at, metric) in Metric::ALL.into_iter().enumerate() {
            assert_eq!(metric.as_str().parse(), Ok(metric));
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.as_str());
            assert_eq!(metric as usize, at);
        }
        let err = "speed".parse::<Metric>().unwrap_err().to_string();
        assert!(Metric::ALL.iter().all(|metric| err.contains(metric.as_str())), "{err}");
    }

    #[test]
    fn only_possible_values_are_counted() {
        let check = |metric: Metric, value: f64, want: Option<f64>| {
            assert_eq!(metric.counted(value), want, "{metric:?} {value}");
        };
        check(Metric::TtftMs, 12.5, Some(12.5));
        check(Metric::GapMs, 1e300, Some(TIME_MS_MAX));
        check(Metric::SlotMs, f64::INFINITY, Some(TIME_MS_MAX));
        check(Metric::TtftMs, -1.0, None);
        check(Metric::TtftMs, f64::NAN, None);
        check(Metric::Agreement, 1.0, Some(1.0));
        check(Metric::Agreement, 1.01, None);
        check(Metric::Rating, f64::NAN, None);
    }
}
