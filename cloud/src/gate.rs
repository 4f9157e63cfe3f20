//! Quotas of each tenant: requests in a minute, requests at the same time, tokens in a day.
//!
//! A rate limiter (GCRA, by `governor`) spreads out the requests of this replica. Requests in the minute,
//! tokens of the day, running requests and tokens set aside for them are counted over all replicas. Replicas
//! exchange these counts through the database every few seconds. Each exchange covers every tenant, also
//! those without requests here. The first exchange comes before a replica listens. So one replica alone never
//! passes a limit, and a restart does not reset a day.
//!
//! Between two exchanges a replica does not know what the others use. With n replicas a day's tokens may be
//! passed by at most n - 1 times what the day had left at the last exchange. While the database is away each
//! replica counts alone, and adds its counts when it is back. If a replica does not report for 15 s, others
//! stop counting what it has set aside. Its usage since its last exchange is then lost, and so are its
//! receipts.
//!
//! Always: a permit returns its place when it is dropped; a reservation is settled once; there are at most as
//! many meters as tenants.

mod reservation;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use baton_generate::planted::{self, Bug};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

pub use self::reservation::{Payer, RECEIPT_MS, RequestName, Reservation, SENT_MAX, TokenNeed};

use self::reservation::Receipt;
use crate::access::Tenant;
use crate::learn::traffic::{DAY_MS, MINUTE_MS};
use crate::store::{SharedUsage, UsageDelta};
use baton_generate::clock::Clock;

/// The most days of usage that are kept while the database is away; older ones are dropped.
const DAYS_WAITING_MAX: usize = 8;
/// When to try again if a tenant has too many requests running, in milliseconds.
const PLACE_FREE_MS: u64 = 1000;

/// Why a tenant's request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// Too many requests in a minute.
    #[error("the tenant may send {limit} requests in a minute")]
    Rate {
        /// Requests in a minute.
        limit: u32,
        /// When to try again, in milliseconds.
        retry_after_ms: u64,
    },
    /// Too many requests at the same time.
    #[error("the tenant may have {limit} requests running at the same time")]
    Concurrency {
        /// Requests at the same time.
        limit: u32,
        /// When to try again, in milliseconds: by then a request has probably ended.
        retry_after_ms: u64,
    },
    /// The day has not enough tokens left.
    #[error("the tenant may use {limit} tokens in a day (UTC), {left} are left")]
    Tokens {
        /// Tokens in a day.
        limit: u64,
        /// Tokens that are left.
        left: u64,
        /// When the next day begins, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// The day has enough tokens left, but running requests may use them.
    #[error(
        "the tenant may use {limit} tokens in a day (UTC), {left} are left beside what its running requests may use"
    )]
    Reserved {
        /// Tokens in a day.
        limit: u64,
        /// Tokens that are left and not set aside.
        left: u64,
        /// When to try again, in milliseconds: by then a request has probably ended.
        retry_after_ms: u64,
    },
    /// One request was sent too often.
    #[error("a request may be sent {SENT_MAX} times; ask again with a new `request_id`")]
    Repeated,
}

impl QuotaError {
    /// Returns when to try again, in milliseconds; `None` if that would not help.
    #[must_use]
    pub fn retry_after_ms(&self) -> Option<u64> {
        match *self {
            QuotaError::Rate { retry_after_ms, .. }
            | QuotaError::Concurrency { retry_after_ms, .. }
            | QuotaError::Tokens { retry_after_ms, .. }
            | QuotaError::Reserved { retry_after_ms, .. } => Some(retry_after_ms),
            QuotaError::Repeated => None,
        }
    }
}

/// Counts what tenants use, and refuses requests over a quota.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    wall_ms: Box<dyn Fn() -> i64 + Send + Sync>,
    meters: Mutex<HashMap<String, Meter>>,
}

/// The scheduler's clock as `governor` needs it.
#[derive(Clone)]
struct GateClock(Clock);

impl governor::clock::Clock for GateClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.now()
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, GateClock, NoOpMiddleware<Duration>>;

/// One tenant's counters.
#[derive(Default)]
struct Meter {
    /// The limiter, with the rate that it was made for.
    limiter: Option<(u32, Limiter)>,
    running: u32,
    /// `running` as other replicas know it.
    running_told: u32,
    running_elsewhere: u32,
    minute_ms: i64,
    /// Requests of this minute: those that the database counted at the last exchange, and those that it does
    /// not know yet.
    minute: Count,
    day_ms: i64,
    /// Tokens of this day that the database had counted at the last exchange.
    day_known: u64,
    /// Requests and tokens by day that the database does not know yet.
    waiting: BTreeMap<i64, (u64, u64)>,
    /// Tokens set aside for requests here, and for those on other replicas at the last exchange.
    reserved: u64,
    reserved_elsewhere: u64,
    /// `reserved` as other replicas know it.
    reserved_told: u64,
    receipts: HashMap<RequestName, Receipt>,
}

#[derive(Default)]
struct Count {
    known: u64,
    waiting: u64,
}

impl Meter {
    fn roll(&mut self, now_ms: i64) {
        let (minute_ms, day_ms) = (start(now_ms, MINUTE_MS), start(now_ms, DAY_MS));
        if self.minute_ms != minute_ms {
            (self.minute_ms, self.minute) = (minute_ms, Count::default());
        }
        if self.day_ms != day_ms {
            (self.day_ms, self.day_known) = (day_ms, 0);
        }
        while self.waiting.len() > DAYS_WAITING_MAX {
            self.waiting.pop_first();
        }
    }

    fn tokens_today(&self) -> u64 {
        self.day_known + self.waiting.get(&self.day_ms).map_or(0, |&(_, tokens)| tokens)
    }

    fn check(&mut self, tenant: &Tenant, now_ms: i64, clock: &Clock) -> Result<(), QuotaError> {
        let limits = &tenant.settings;
        if let Some(limit) = limits.concurrency_max
            && self.running.saturating_add(self.running_elsewhere) >= limit
        {
            return Err(QuotaError::Concurrency { limit, retry_after_ms: PLACE_FREE_MS });
        }
        if let Some(limit) = limits.tokens_per_day
            && self.tokens_today() >= limit
        {
            let retry_after_ms = left(self.day_ms + DAY_MS, now_ms);
            return Err(QuotaError::Tokens { limit, left: 0, retry_after_ms });
        }
        let Some(limit) = limits.requests_per_minute else {
            self.limiter = None;
            return Ok(());
        };
        if self.minute.known + self.minute.waiting >= u64::from(limit) {
            return Err(QuotaError::Rate { limit, retry_after_ms: left(self.minute_ms + MINUTE_MS, now_ms) });
        }
        if self.limiter.as_ref().is_none_or(|(rate, _)| *rate != limit) {
            let rate = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
            let limiter = RateLimiter::direct_with_clock(Quota::per_minute(rate), GateClock(clock.clone()));
            self.limiter = Some((limit, limiter));
        }
        match self.limiter.as_ref().map(|(_, limiter)| limiter.check()) {
            Some(Err(until)) => {
                let wait = until.wait_time_from(clock.now()).as_millis();
                Err(QuotaError::Rate { limit, retry_after_ms: u64::try_from(wait).unwrap_or(60_000).max(1) })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    /// Makes a gate without counts. `clock` is monotonic and spreads out requests; `wall_ms` gives minutes
    /// and days (UTC).
    #[must_use]
    pub fn new(clock: Clock, wall_ms: impl Fn() -> i64 + Send + Sync + 'static) -> Gate {
        let inner = Inner { clock, wall_ms: Box::new(wall_ms), meters: Mutex::default() };
        Gate { inner: Arc::new(inner) }
    }

    /// Admits one request of a tenant.
    ///
    /// # Errors
    /// [`QuotaError`] if the tenant has reached a limit.
    pub fn admit(&self, tenant: &Arc<Tenant>) -> Result<Permit, QuotaError> {
        let now_ms = (self.inner.wall_ms)();
        let mut meters = self.meters();
        let meter = meters.entry(tenant.id.clone()).or_default();
        meter.roll(now_ms);
        meter.check(tenant, now_ms, &self.inner.clock)?;
        meter.running += 1;
        meter.minute.waiting += 1;
        meter.waiting.entry(meter.day_ms).or_default().0 += 1;
        Ok(Permit { payer: Payer { gate: self.clone(), tenant: tenant.clone() } })
    }

    /// Returns the usage that the database does not know yet, and what runs here.
    #[must_use]
    pub fn deltas(&self) -> Vec<UsageDelta> {
        let now_ms = (self.inner.wall_ms)();
        let mut deltas = Vec::new();
        for (tenant, meter) in self.meters().iter_mut() {
            meter.roll(now_ms);
            let today = meter.waiting.get(&meter.day_ms).copied();
            // Skips a tenant without new requests, once other replicas know that nothing of it runs here. Its
            // usage on other replicas is received all the same.
            let idle = meter.running == 0
                && meter.running_told == 0
                && meter.reserved == 0
                && meter.reserved_told == 0;
            let quiet = idle && meter.minute.waiting == 0;
            let delta = |day_ms, requests, (day_requests, tokens)| UsageDelta {
                tenant: tenant.clone(),
                minute_ms: meter.minute_ms,
                requests,
                day_ms,
                day_requests,
                tokens,
                running: meter.running,
                reserved: meter.reserved,
            };
            let older = meter.waiting.iter().filter(|&(&day_ms, _)| day_ms != meter.day_ms);
            deltas.extend(older.map(|(&day_ms, &used)| delta(day_ms, 0, used)));
            if !quiet || today.is_some() {
                deltas.push(delta(meter.day_ms, meter.minute.waiting, today.unwrap_or_default()));
            }
        }
        deltas
    }

    /// Takes note that the database has stored `sent`, and takes over the usage of all replicas. A tenant
    /// that is not in `shared` has nothing running elsewhere.
    pub fn exchanged(&self, sent: &[UsageDelta], shared: &[SharedUsage]) {
        let now_ms = (self.inner.wall_ms)();
        let mut meters = self.meters();
        for delta in sent {
            let Some(meter) = meters.get_mut(&delta.tenant) else { continue };
            (meter.running_told, meter.reserved_told) = (delta.running, delta.reserved);
            if meter.minute_ms == delta.minute_ms {
                meter.minute.waiting = meter.minute.waiting.saturating_sub(delta.requests);
            }
            if let Some((requests, tokens)) = meter.waiting.get_mut(&delta.day_ms) {
                *requests = requests.saturating_sub(delta.day_requests);
                *tokens = tokens.saturating_sub(delta.tokens);
                if planted::is(Bug::UsageForgotten) {
                    *tokens = 0;
                }
                if (*requests, *tokens) == (0, 0) {
                    meter.waiting.remove(&delta.day_ms);
                }
            }
        }
        for meter in meters.values_mut() {
            (meter.running_elsewhere, meter.reserved_elsewhere) = (0, 0);
        }
        for usage in shared {
            let meter = meters.entry(usage.tenant.clone()).or_default();
            meter.roll(now_ms);
            meter.running_elsewhere = usage.running_elsewhere;
            meter.reserved_elsewhere = usage.reserved_elsewhere;
            if meter.minute_ms == usage.minute_ms {
                meter.minute.known = usage.requests;
            }
            if meter.day_ms == usage.day_ms {
                meter.day_known = usage.tokens;
            }
        }
    }

    fn meters(&self) -> MutexGuard<'_, HashMap<String, Meter>> {
        self.inner.meters.lock().expect("nothing panics while the meters are locked")
    }
}

/// An admitted request. It returns its place when it is dropped.
#[derive(Debug)]
pub struct Permit {
    payer: Payer,
}

impl Permit {
    /// Returns the tenant account that the request is charged to.
    #[must_use]
    pub fn payer(&self) -> &Payer {
        &self.payer
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(meter) = self.payer.gate.meters().get_mut(&self.payer.tenant.id) {
            meter.running = meter.running.saturating_sub(1);
        }
    }
}

fn start(now_ms: i64, period_ms: i64) -> i64 {
    now_ms - now_ms.rem_euclid(period_ms)
}

fn left(end_ms: i64, now_ms: i64) -> u64 {
    u64::try_from(end_ms - now_ms).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests;
