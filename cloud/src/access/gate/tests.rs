//! Quotas under a clock that is moved by hand, alone and with another replica.

use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::access::TenantSettings;

/// A gate at a wall-clock time that starts at a full day; its monotonic clock moves along.
struct World {
    gate: Gate,
    now_ms: Arc<AtomicI64>,
}

const DAY: i64 = 20_000 * DAY_MS;

impl World {
    fn new() -> World {
        let now_ms = Arc::new(AtomicI64::new(DAY));
        let (clock, wall) = (now_ms.clone(), now_ms.clone());
        let clock = Clock::from_fn(move || {
            Duration::from_millis((clock.load(Ordering::Relaxed) - DAY + 1000) as u64)
        });
        World { gate: Gate::new(clock, move || wall.load(Ordering::Relaxed)), now_ms }
    }

    fn advance(&self, ms: i64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// One request that is over at once and used so many tokens.
    fn whole(&self, tenant: &Tenant, tokens: u64) -> Result<(), QuotaError> {
        let mut permit = self.gate.admit(tenant)?;
        permit.usage = Some(Usage { prompt_tokens: tokens, cached_prefix_tokens: 0, completion_tokens: 0 });
        Ok(())
    }
}

fn tenant(change: impl FnOnce(&mut TenantSettings)) -> Tenant {
    let mut settings = TenantSettings::default();
    change(&mut settings);
    Tenant { id: "t".into(), revision: 1, settings, created_ms: 0, updated_ms: 0, updated_by: String::new() }
}

#[test]
fn no_limit_lets_everything_in() {
    let world = World::new();
    let tenant = tenant(|_| ());
    let permits: Vec<Permit> = (0..1000).map(|_| world.gate.admit(&tenant).unwrap()).collect();
    assert_eq!(world.gate.deltas()[0].running, 1000);
    drop(permits);
    assert_eq!((world.gate.deltas()[0].running, world.gate.deltas()[0].requests), (0, 1000));
}

#[test]
fn requests_in_a_minute() {
    let world = World::new();
    let tenant = tenant(|settings| settings.requests_per_minute = Some(3));
    for _ in 0..3 {
        world.whole(&tenant, 1).unwrap();
    }
    assert_eq!(world.whole(&tenant, 1), Err(QuotaError::Rate { limit: 3, retry_after_ms: 60_000 }));
    // The next minute has begun, and the limiter has given one of three back every 20 s.
    world.advance(60_000);
    for _ in 0..3 {
        world.whole(&tenant, 1).unwrap();
    }
    let err = world.whole(&tenant, 1).unwrap_err();
    assert_eq!(err.to_string(), "the tenant may send 3 requests in a minute");
}

#[test]
fn requests_at_the_same_time() {
    let world = World::new();
    let tenant = tenant(|settings| settings.concurrency_max = Some(2));
    let one = world.gate.admit(&tenant).unwrap();
    let _two = world.gate.admit(&tenant).unwrap();
    let err = world.gate.admit(&tenant).unwrap_err();
    assert_eq!(err, QuotaError::Concurrency { limit: 2, retry_after_ms: 1000 });
    drop(one);
    assert!(world.gate.admit(&tenant).is_ok());
}

#[test]
fn tokens_in_a_day() {
    let world = World::new();
    let tenant = tenant(|settings| settings.tokens_per_day = Some(100));
    world.whole(&tenant, 60).unwrap();
    world.whole(&tenant, 60).unwrap();
    world.advance(DAY_MS - 5000);
    let err = world.whole(&tenant, 1).unwrap_err();
    assert_eq!(err, QuotaError::Tokens { limit: 100, retry_after_ms: 5000 });
    world.advance(5000);
    assert_eq!(world.whole(&tenant, 1), Ok(()));
    // Yesterday's tokens still wait for the database, apart from today's.
    let deltas = world.gate.deltas();
    let days: Vec<(i64, u64)> = deltas.iter().map(|delta| (delta.day_ms, delta.tokens)).collect();
    assert_eq!(days, [(DAY, 120), (DAY + DAY_MS, 1)]);
}

#[test]
fn an_answer_that_is_broken_off_is_charged_for_what_was_done() {
    let world = World::new();
    let tenant = tenant(|_| ());
    let mut permit = world.gate.admit(&tenant).unwrap();
    permit.set_prompt_tokens(50);
    drop(permit);
    assert_eq!(world.gate.deltas()[0].tokens, 0, "nothing was written: it was refused or never began");
    let mut permit = world.gate.admit(&tenant).unwrap();
    permit.set_prompt_tokens(50);
    permit.written = 3;
    drop(permit);
    assert_eq!(world.gate.deltas()[0].tokens, 53);
}

#[test]
fn replicas_share_limits_where_they_meet() {
    let world = World::new();
    let tenant = tenant(|settings| {
        settings.requests_per_minute = Some(10);
        settings.concurrency_max = Some(4);
        settings.tokens_per_day = Some(1000);
    });
    let _running = world.gate.admit(&tenant).unwrap();
    let sent = world.gate.deltas();
    let shared = |requests, tokens, running_elsewhere| SharedUsage {
        tenant: "t".into(),
        minute_ms: sent[0].minute_ms,
        requests,
        day_ms: sent[0].day_ms,
        tokens,
        running_elsewhere,
    };
    // Others run three: with ours the tenant has all it may.
    world.gate.exchanged(&sent, &[shared(4, 30, 3)]);
    assert!(matches!(world.gate.admit(&tenant), Err(QuotaError::Concurrency { .. })));
    world.gate.exchanged(&[], &[shared(10, 30, 0)]);
    assert!(matches!(world.gate.admit(&tenant), Err(QuotaError::Rate { .. })), "ten in this minute");
    world.gate.exchanged(&[], &[shared(4, 1000, 0)]);
    assert!(matches!(world.gate.admit(&tenant), Err(QuotaError::Tokens { .. })));
    world.gate.exchanged(&[], &[shared(4, 30, 0)]);
    assert!(world.gate.admit(&tenant).is_ok());
    assert_eq!(world.gate.deltas()[0].requests, 1, "what was sent is not sent again");
}

#[test]
fn what_the_database_did_not_take_waits() {
    let world = World::new();
    let tenant = tenant(|_| ());
    for day in 0..20 {
        world.whole(&tenant, 10 + day).unwrap();
        world.advance(DAY_MS);
    }
    let days: Vec<u64> = world.gate.deltas().iter().map(|delta| delta.tokens).collect();
    assert_eq!(days, [22, 23, 24, 25, 26, 27, 28, 29], "the last eight days");
    let sent = world.gate.deltas();
    world.gate.exchanged(&sent, &[]);
    assert_eq!(world.gate.deltas(), []);
}
