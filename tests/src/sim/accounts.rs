//! The database of usage, as a model, and the books of what must be charged.
//!
//! The books are kept from what a reader sees, not from what the gate counts. Never: shares code with the
//! gate.

use std::collections::BTreeMap;

use baton_cloud::store::{SharedUsage, UsageDelta};

/// Milliseconds of a day and of a minute.
const DAY_MS: i64 = 86_400_000;
const MINUTE_MS: i64 = 60_000;
/// A replica that has not reported for so long is gone.
const GONE_MS: i64 = 15_000;

/// Usage of one tenant, shared by replicas.
#[derive(Debug, Clone, Default)]
pub(super) struct Database {
    /// Requests and tokens of each day.
    days: BTreeMap<i64, (u64, u64)>,
    minutes: BTreeMap<i64, u64>,
    /// What runs on each replica, what it has set aside, and when it said so.
    loads: BTreeMap<u32, (u32, u64, i64)>,
    /// Whether it does not answer.
    pub(super) away: bool,
}

impl Database {
    /// One exchange in one transaction; none if the database is away.
    pub(super) fn exchange(
        &mut self,
        replica: u32,
        deltas: &[UsageDelta],
        tenant: &str,
        now_ms: i64,
    ) -> Option<Vec<SharedUsage>> {
        if self.away {
            return None;
        }
        let mut shared = Vec::new();
        for delta in deltas {
            let minute = self.minutes.entry(delta.minute_ms).or_default();
            *minute += delta.requests;
            let requests = *minute;
            let day = self.days.entry(delta.day_ms).or_default();
            (day.0, day.1) = (day.0 + delta.day_requests, day.1 + delta.tokens);
            let tokens = day.1;
            self.loads.insert(replica, (delta.running, delta.reserved, now_ms));
            shared.push(self.usage(
                tenant,
                (delta.minute_ms, requests),
                (delta.day_ms, tokens),
                replica,
                now_ms,
            ));
        }
        let (minute_ms, day_ms) = (now_ms - now_ms.rem_euclid(MINUTE_MS), now_ms - now_ms.rem_euclid(DAY_MS));
        let said = shared.iter().any(|usage| (usage.minute_ms, usage.day_ms) == (minute_ms, day_ms));
        let minute = self.minutes.get(&minute_ms).copied();
        let day = self.days.get(&day_ms).copied();
        if !said && (minute.is_some() || day.is_some()) {
            let (requests, tokens) = (minute.unwrap_or(0), day.unwrap_or_default().1);
            shared.push(self.usage(tenant, (minute_ms, requests), (day_ms, tokens), replica, now_ms));
        }
        Some(shared)
    }

    fn usage(
        &self,
        tenant: &str,
        (minute_ms, requests): (i64, u64),
        (day_ms, tokens): (i64, u64),
        replica: u32,
        now_ms: i64,
    ) -> SharedUsage {
        let others = self.loads.iter().filter(|(of, load)| **of != replica && load.2 > now_ms - GONE_MS);
        let (mut running_elsewhere, mut reserved_elsewhere) = (0, 0);
        for (_, load) in others {
            running_elsewhere += load.0;
            reserved_elsewhere += load.1;
        }
        SharedUsage {
            tenant: tenant.to_owned(),
            minute_ms,
            requests,
            day_ms,
            tokens,
            running_elsewhere,
            reserved_elsewhere,
        }
    }

    /// Returns all tokens that were ever charged.
    pub(super) fn tokens(&self) -> u64 {
        self.days.values().map(|day| day.1).sum()
    }

    /// Returns the tokens of the day of this time.
    pub(super) fn tokens_of(&self, now_ms: i64) -> u64 {
        self.days.get(&(now_ms - now_ms.rem_euclid(DAY_MS))).map_or(0, |day| day.1)
    }
}

/// The most and the least that an answer must cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Due {
    pub(super) least: u64,
    pub(super) most: u64,
}

/// What one life of the cloud must have charged.
#[derive(Debug, Clone, Default)]
pub(super) struct Books {
    /// Tokens in the database before.
    before: u64,
    /// Answers that ended, by request.
    ended: BTreeMap<(usize, bool), Vec<Due>>,
    /// Whether the clock on the wall jumped, so that receipts may be forgotten.
    pub(super) jumped: bool,
}

impl Books {
    pub(super) fn new(before: u64, jumped: bool) -> Books {
        Books { before, ended: BTreeMap::new(), jumped }
    }

    /// Notes the end of an answer to this request.
    pub(super) fn note(&mut self, request: (usize, bool), due: Due) {
        self.ended.entry(request).or_default().push(due);
    }

    /// Returns what all answers together must have cost: one request costs as much as its longest answer.
    pub(super) fn due(&self) -> Due {
        let mut sum = Due { least: self.before, most: self.before };
        for dues in self.ended.values() {
            sum.least += dues.iter().map(|due| due.least).max().unwrap_or(0);
            sum.most += match self.jumped {
                true => dues.iter().map(|due| due.most).sum::<u64>(),
                false => dues.iter().map(|due| due.most).max().unwrap_or(0),
            };
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_costs_as_much_as_its_longest_answer() {
        let mut books = Books::new(5, false);
        books.note((1, false), Due { least: 10, most: 10 });
        books.note((1, false), Due { least: 3, most: 12 });
        books.note((2, false), Due { least: 1, most: 1 });
        assert_eq!(books.due(), Due { least: 16, most: 18 });
        books.jumped = true;
        assert_eq!(books.due(), Due { least: 16, most: 28 });
    }
}
