//! The database of usage, a model that it is held to, and the books of what must be charged.
//!
//! In some of the seeds the database is the program's own store in memory. The books are kept from what a
//! reader sees, not from what the gate counts. Never: shares code with the gate.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use baton_cloud::access::{Actor, TenantSettings};
use baton_cloud::store::{Database, Expected, SharedUsage, Store, StoreError, UsageDelta};
use tokio::runtime::{Builder, Runtime};

/// The tenant of all questions.
pub(super) const TENANT: &str = "home";
/// Milliseconds of a day and of a minute.
const DAY_MS: i64 = 86_400_000;
const MINUTE_MS: i64 = 60_000;
/// A replica that has not reported for so long is gone.
const GONE_MS: i64 = 15_000;
/// A time at which the store forgets all that simulations have written.
const LATER_MS: i64 = 1_000_000 * DAY_MS;

thread_local! {
    /// Opening a database takes longer than a whole seed, so all seeds of a thread share one.
    static OPENED: LazyCell<Opened> = LazyCell::new(Opened::new);
}

/// An open store, and what runs it.
struct Opened {
    runtime: Runtime,
    store: Store,
}

impl Opened {
    fn new() -> Opened {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime needs nothing");
        let open = async {
            let store = Store::open(&Database::Memory).await?;
            store.set_tenant(TENANT, &TenantSettings::default(), Expected::Any, &Actor::service()).await?;
            Ok::<_, StoreError>(store)
        };
        let store = runtime.block_on(open).expect("memory can be written");
        Opened { runtime, store }
    }

    fn exchange(
        &self,
        replica: &str,
        deltas: &[UsageDelta],
        now_ms: i64,
    ) -> Result<Vec<SharedUsage>, StoreError> {
        self.runtime.block_on(self.store.exchange_usage(replica, deltas, now_ms))
    }
}

/// The database as the cloud finds it.
#[derive(Debug, Clone)]
pub(super) struct UsageStore {
    model: Usage,
    /// Whether the program's store is asked too.
    stores: bool,
    /// Whether it does not answer.
    pub(super) away: bool,
    /// In what the store and the model differ.
    differs: Option<String>,
}

impl UsageStore {
    /// Returns a database in which nothing was used. If `stores`, it is the program's store, held to the
    /// model; if not, it is the model.
    pub(super) fn new(stores: bool) -> UsageStore {
        let mut database = UsageStore { model: Usage::default(), stores, away: false, differs: None };
        if stores {
            let emptied = OPENED.with(|opened| opened.runtime.block_on(opened.store.compact(LATER_MS)));
            database.differs = emptied.err().map(told);
        }
        database
    }

    /// One exchange in one transaction; none if the database is away.
    pub(super) fn exchange(
        &mut self,
        replica: u32,
        deltas: &[UsageDelta],
        now_ms: i64,
    ) -> Option<Vec<SharedUsage>> {
        if self.away {
            return None;
        }
        let mut modelled = self.model.exchange(replica, deltas, now_ms);
        if !self.stores {
            return Some(modelled);
        }
        let name = format!("replica {replica}");
        let shared = OPENED.with(|opened| opened.exchange(&name, deltas, now_ms).map_err(told));
        let sort = |usage: &SharedUsage| (usage.tenant.clone(), usage.day_ms, usage.minute_ms);
        modelled.sort_by_key(sort);
        let mut shared = shared.map_err(|words| self.differs.get_or_insert(words)).ok()?;
        shared.sort_by_key(sort);
        if shared != modelled {
            let words = format!("store: {shared:?}, must be {modelled:?}");
            self.differs.get_or_insert(words);
        }
        Some(shared)
    }

    /// Checks that the store did what the model says.
    ///
    /// # Errors
    /// In what they differ.
    pub(super) fn check(&self) -> Result<(), String> {
        self.differs.clone().map_or(Ok(()), Err)
    }

    /// Returns all tokens that were ever charged.
    pub(super) fn tokens(&self) -> u64 {
        self.model.days.values().map(|day| day.1).sum()
    }

    /// Returns the tokens of the day of this time.
    pub(super) fn tokens_of(&self, now_ms: i64) -> u64 {
        self.model.days.get(&(now_ms - now_ms.rem_euclid(DAY_MS))).map_or(0, |day| day.1)
    }
}

fn told(err: StoreError) -> String {
    format!("store: {err}")
}

/// Usage of one tenant, shared by replicas: what the store must hold.
#[derive(Debug, Clone, Default)]
struct Usage {
    /// Requests and tokens of each day.
    days: BTreeMap<i64, (u64, u64)>,
    minutes: BTreeMap<i64, u64>,
    /// What runs on each replica, what it has set aside, and when it said so.
    loads: BTreeMap<u32, (u32, u64, i64)>,
}

impl Usage {
    fn exchange(&mut self, replica: u32, deltas: &[UsageDelta], now_ms: i64) -> Vec<SharedUsage> {
        let mut shared = Vec::new();
        for delta in deltas {
            let minute = self.minutes.entry(delta.minute_ms).or_default();
            *minute += delta.requests;
            let requests = *minute;
            let day = self.days.entry(delta.day_ms).or_default();
            (day.0, day.1) = (day.0 + delta.day_requests, day.1 + delta.tokens);
            let tokens = day.1;
            self.loads.insert(replica, (delta.running, delta.reserved, now_ms));
            shared.push(self.usage((delta.minute_ms, requests), (delta.day_ms, tokens), replica, now_ms));
        }
        let (minute_ms, day_ms) = (now_ms - now_ms.rem_euclid(MINUTE_MS), now_ms - now_ms.rem_euclid(DAY_MS));
        let said = shared.iter().any(|usage| (usage.minute_ms, usage.day_ms) == (minute_ms, day_ms));
        let requests = self.minutes.get(&minute_ms).copied().unwrap_or(0);
        let tokens = self.days.get(&day_ms).copied().unwrap_or_default().1;
        let now = self.usage((minute_ms, requests), (day_ms, tokens), replica, now_ms);
        let runs_elsewhere = now.running_elsewhere > 0 || now.reserved_elsewhere > 0;
        if !said && (requests > 0 || tokens > 0) || shared.is_empty() && runs_elsewhere {
            shared.push(now);
        }
        shared
    }

    fn usage(
        &self,
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
            tenant: TENANT.to_owned(),
            minute_ms,
            requests,
            day_ms,
            tokens,
            running_elsewhere,
            reserved_elsewhere,
        }
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
    /// What drafts cost that were checked.
    drafts: Due,
    /// Whether the clock on the wall jumped, so that receipts may be forgotten.
    pub(super) jumped: bool,
}

impl Books {
    pub(super) fn new(before: u64, jumped: bool) -> Books {
        Books { before, ended: BTreeMap::new(), drafts: Due::default(), jumped }
    }

    /// Notes the end of an answer to this request.
    pub(super) fn note(&mut self, request: (usize, bool), due: Due) {
        self.ended.entry(request).or_default().push(due);
    }

    /// Notes what a draft costs.
    pub(super) fn add(&mut self, due: Due) {
        self.drafts.least += due.least;
        self.drafts.most += due.most;
    }

    /// Returns what all answers together must have cost: one request costs as much as its longest answer.
    pub(super) fn due(&self) -> Due {
        let Due { least, most } = self.drafts;
        let mut sum = Due { least: self.before + least, most: self.before + most };
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
