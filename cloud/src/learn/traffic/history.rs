//! Sums of telemetry over a range of time: in total, by group, and by step for charts.
//!
//! Pure and bounded: at most [`GROUPS_MAX`] groups and [`POINTS_MAX`] points, whatever the range is.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::{DAY_MS, HOUR_MS, HOURS_KEPT_MS, MINUTE_MS, MINUTES_KEPT_MS, OTHER, TrafficRow, TrafficSums};

/// The most groups with their own sums; further ones count as [`OTHER`].
pub const GROUPS_MAX: usize = 200;
/// The most points of a range.
pub const POINTS_MAX: i64 = 96;

/// Lengths of a step.
const STEPS_MS: [i64; 6] = [MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS];

/// What telemetry is grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupBy {
    /// The scene; empty for the chat API.
    #[default]
    Scene,
    /// The device's class; empty if there is none.
    Class,
    /// The network's class; empty if there is none.
    Network,
}

impl GroupBy {
    /// Every value.
    pub const ALL: [GroupBy; 3] = [GroupBy::Scene, GroupBy::Class, GroupBy::Network];

    /// Returns its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            GroupBy::Scene => "scene",
            GroupBy::Class => "class",
            GroupBy::Network => "network",
        }
    }
}

/// A word that is no [`GroupBy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it must be scene, class or network")]
pub struct UnknownGroup;

impl FromStr for GroupBy {
    type Err = UnknownGroup;

    fn from_str(text: &str) -> Result<GroupBy, UnknownGroup> {
        GroupBy::ALL.into_iter().find(|by| by.as_str() == text).ok_or(UnknownGroup)
    }
}

/// A range that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It ends before it begins.
    #[error("the range must begin before it ends, and before now")]
    Order,
    /// It begins before everything that is kept.
    #[error("the range must begin within the last 90 days, which are kept")]
    TooOld,
}

/// A range of time, in milliseconds since 1970, whose ends are those of periods that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    from_ms: i64,
    to_ms: i64,
    step_ms: i64,
}

impl TimeRange {
    /// Makes the range from `from_ms` up to but not including `to_ms`. Widens it to whole minutes. An end
    /// over two days ago is widened to a whole hour, since only hours are kept of that time. Cuts what is
    /// after `now_ms`.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn new(from_ms: i64, to_ms: i64, now_ms: i64) -> Result<TimeRange, RangeError> {
        let to_ms = to_ms.min(now_ms);
        if from_ms >= to_ms {
            return Err(RangeError::Order);
        }
        // A day more, so that "the last 90 days" is not too old a moment later.
        if from_ms < now_ms.saturating_sub(HOURS_KEPT_MS + DAY_MS) {
            return Err(RangeError::TooOld);
        }
        let period = |ms: i64| if ms < now_ms - MINUTES_KEPT_MS { HOUR_MS } else { MINUTE_MS };
        let from_ms = floor(from_ms, period(from_ms));
        let to_ms = floor(to_ms - 1, period(to_ms)) + period(to_ms);
        let fits = |step: &&i64| **step >= period(from_ms) && (to_ms - from_ms) / **step < POINTS_MAX - 1;
        let step_ms = STEPS_MS.iter().find(fits).copied().unwrap_or(DAY_MS);
        Ok(TimeRange { from_ms, to_ms, step_ms })
    }

    /// Returns its start.
    #[must_use]
    pub fn from_ms(&self) -> i64 {
        self.from_ms
    }

    /// Returns its end, which is not part of it.
    #[must_use]
    pub fn to_ms(&self) -> i64 {
        self.to_ms
    }

    /// Returns the length of a step.
    #[must_use]
    pub fn step_ms(&self) -> i64 {
        self.step_ms
    }

    /// Returns the days (UTC) that it touches: the start of the first, and the end of the last.
    #[must_use]
    pub fn days(&self) -> (i64, i64) {
        (floor(self.from_ms, DAY_MS), floor(self.to_ms - 1, DAY_MS) + DAY_MS)
    }

    /// Returns parts of it, in order. Each begins and ends at a multiple of `part_ms`, except at its ends.
    pub(crate) fn parts(&self, part_ms: i64) -> impl Iterator<Item = (i64, i64)> {
        let TimeRange { from_ms, to_ms, .. } = *self;
        let starts = (0..).map(move |index| floor(from_ms, part_ms) + index * part_ms);
        let starts = starts.take_while(move |start| *start < to_ms);
        starts.map(move |start| (start.max(from_ms), (start + part_ms).min(to_ms)))
    }
}

fn floor(ms: i64, period_ms: i64) -> i64 {
    ms - ms.rem_euclid(period_ms)
}

/// Sums of a range.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The range.
    pub range: TimeRange,
    /// What the groups are.
    pub by: GroupBy,
    /// The only scene that is counted, if one was asked for.
    pub scene: Option<String>,
    /// All sums together.
    pub total: TrafficSums,
    /// Sums by scene, class or network.
    pub groups: BTreeMap<String, TrafficSums>,
    points: BTreeMap<i64, TrafficSums>,
}

impl History {
    /// Makes the history of a range without any request.
    #[must_use]
    pub fn new(range: TimeRange, by: GroupBy, scene: Option<String>) -> History {
        let total = TrafficSums::default();
        History { range, by, scene, total, groups: BTreeMap::new(), points: BTreeMap::new() }
    }

    /// Counts a row. Ignores it if it is outside the range, or of another scene than was asked for.
    pub fn add(&mut self, row: &TrafficRow) {
        let inside = (self.range.from_ms..self.range.to_ms).contains(&row.start_ms);
        if !inside || self.scene.as_ref().is_some_and(|scene| *scene != row.key.scene) {
            return;
        }
        let name = match self.by {
            GroupBy::Scene => &row.key.scene,
            GroupBy::Class => &row.key.class,
            GroupBy::Network => &row.key.network,
        };
        let is_apart = self.groups.contains_key(name) || self.groups.len() < GROUPS_MAX;
        let name = if is_apart { name.clone() } else { OTHER.to_owned() };
        self.total.merge(&row.sums);
        self.groups.entry(name).or_default().merge(&row.sums);
        self.points.entry(floor(row.start_ms, self.range.step_ms)).or_default().merge(&row.sums);
    }

    /// Returns the groups, those with the most requests first.
    #[must_use]
    pub fn largest_first(&self) -> Vec<(&str, &TrafficSums)> {
        let mut groups: Vec<_> = self.groups.iter().map(|(name, sums)| (name.as_str(), sums)).collect();
        groups.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.requests));
        groups
    }

    /// Returns the sums of each step, also of those without a request.
    pub fn points(&self) -> impl Iterator<Item = (i64, TrafficSums)> {
        let TimeRange { from_ms, to_ms, step_ms } = self.range;
        let starts = (0..).map(move |index| floor(from_ms, step_ms) + index * step_ms);
        let starts = starts.take_while(move |start| *start < to_ms);
        starts.map(|start| (start, self.points.get(&start).cloned().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::traffic::{RequestFigures, TrafficKey};

    const NOW: i64 = 1000 * DAY_MS + 7 * HOUR_MS + 90_000;

    fn row(start_ms: i64, scene: &str, class: &str, failed: bool) -> TrafficRow {
        let mut sums = TrafficSums::default();
        sums.record(&RequestFigures { failed, ttft_ms: Some(40.0), ..RequestFigures::default() });
        let key = TrafficKey { scene: scene.into(), class: class.into(), network: String::new() };
        TrafficRow { period_ms: MINUTE_MS, start_ms, key, sums }
    }

    #[test]
    fn a_range_has_whole_periods_and_a_bounded_number_of_points() {
        let range = |from, to| TimeRange::new(from, to, NOW).map(|range| (range.from_ms, range.to_ms));
        assert_eq!(range(NOW - HOUR_MS, NOW), Ok((NOW - HOUR_MS - 30_000, NOW + 30_000)));
        let hour = NOW - 90_000;
        let old = hour - 3 * DAY_MS;
        assert_eq!(range(old + 5, old + 6), Ok((old, old + HOUR_MS)), "only hours are kept");
        assert_eq!(range(old, i64::MAX), Ok((old, NOW + 30_000)), "the future is cut");
        assert_eq!(range(NOW, NOW + 1), Err(RangeError::Order));
        assert_eq!(range(i64::MIN, NOW), Err(RangeError::TooOld));
        assert_eq!(range(5, 5), Err(RangeError::Order));
        assert!(range(NOW - 90 * DAY_MS, NOW).is_ok());
        for minutes in [1, 59, 95, 96, 97, 600, 2879, 2881, 20_000, 129_600] {
            let range = TimeRange::new(NOW - minutes * MINUTE_MS, NOW, NOW).unwrap();
            let points = History::new(range, GroupBy::Scene, None).points().count();
            assert!((1..=POINTS_MAX as usize).contains(&points), "{minutes} minutes have {points} points");
            assert!(range.step_ms >= HOUR_MS || minutes <= 2880, "{minutes} minutes: {range:?}");
        }
    }

    #[test]
    fn parts_make_up_the_range() {
        let range = TimeRange::new(NOW - 10 * DAY_MS, NOW, NOW).unwrap();
        let parts: Vec<(i64, i64)> = range.parts(6 * HOUR_MS).collect();
        assert_eq!((parts[0].0, parts[parts.len() - 1].1), (range.from_ms, range.to_ms));
        assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0 && pair[0].1 % (6 * HOUR_MS) == 0));
        let (first, end) = range.days();
        assert!(first <= range.from_ms && end >= range.to_ms && (end - first) % DAY_MS == 0);
    }

    #[test]
    fn rows_are_summed_by_group_and_step() {
        let range = TimeRange::new(NOW - HOUR_MS, NOW, NOW).unwrap();
        let at = range.from_ms;
        let rows = [
            row(at, "a", "phone", false),
            row(at, "b", "phone", true),
            row(at + MINUTE_MS, "b", "watch", false),
            row(at - MINUTE_MS, "b", "phone", false),
            row(range.to_ms, "b", "phone", false),
        ];
        let history = |by, scene: Option<&str>| {
            let mut history = History::new(range, by, scene.map(str::to_owned));
            rows.iter().for_each(|row| history.add(row));
            history
        };
        let counts = |history: &History| -> Vec<(String, u64, u64)> {
            let groups = history.largest_first().into_iter();
            groups.map(|(name, sums)| (name.to_owned(), sums.requests, sums.failures)).collect()
        };
        let scenes = history(GroupBy::Scene, None);
        assert_eq!(counts(&scenes), [("b".into(), 2, 1), ("a".into(), 1, 0)]);
        assert_eq!((scenes.total.requests, scenes.total.failures), (3, 1));
        let steps: Vec<u64> = scenes.points().map(|(_, sums)| sums.requests).collect();
        assert_eq!((steps.len(), &steps[..3]), (61, &[2, 1, 0][..]));
        assert_eq!(
            counts(&history(GroupBy::Class, Some("b"))),
            [("phone".into(), 1, 1), ("watch".into(), 1, 0)]
        );
        assert_eq!(counts(&history(GroupBy::Network, Some("none"))), []);
    }

    #[test]
    fn groups_are_bounded() {
        let range = TimeRange::new(NOW - HOUR_MS, NOW, NOW).unwrap();
        let mut history = History::new(range, GroupBy::Class, None);
        for index in 0..GROUPS_MAX + 7 {
            history.add(&row(range.from_ms, "a", &format!("class {index:04}"), false));
        }
        assert_eq!(history.groups.len(), GROUPS_MAX + 1);
        assert_eq!((history.groups[OTHER].requests, history.total.requests), (7, GROUPS_MAX as u64 + 7));
    }

    #[test]
    fn groups_have_names() {
        for by in GroupBy::ALL {
            assert_eq!(by.as_str().parse(), Ok(by));
        }
        assert_eq!("tenant".parse::<GroupBy>(), Err(UnknownGroup));
    }
}
