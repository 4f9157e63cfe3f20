//! Tests of quotas with a clock that is moved by hand, alone and with another replica.

use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::access::TenantSettings;

/// A gate whose wall clock starts at the beginning of a day. Its monotonic clock moves along.
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

    /// Sends a request that ends at once and used so many tokens.
    fn whole(&self, tenant: &Arc<Tenant>, tokens: u64) -> Result<(), QuotaError> {
        let permit = self.gate.admit(tenant)?;
        permit.payer().reserve(need(None, tokens, 1))?.compute(tokens);
        Ok(())
    }

    /// Returns what a request of this name is charged if it computes its prompt and writes so many tokens.
    fn charged(&self, tenant: &Arc<Tenant>, name: u8, written: u64) -> Result<u64, QuotaError> {
        let before = self.tokens();
        let mut reservation = self.gate.admit(tenant)?.payer().reserve(need(Some(name), 50, 100))?;
        reservation.compute(50);
        (0..written).for_each(|_| reservation.write());
        drop(reservation);
        Ok(self.tokens() - before)
    }

    fn tokens(&self) -> u64 {
        self.gate.deltas().iter().map(|delta| delta.tokens).sum()
    }

    fn reserved(&self) -> u64 {
        self.gate.deltas().first().map_or(0, |delta| delta.reserved)
    }
}

fn need(name: Option<u8>, prompt_tokens: u64, max_tokens: u64) -> TokenNeed {
    TokenNeed { name: name.map(|name| RequestName([name; 32])), prompt_tokens, max_tokens }
}

fn tenant(change: impl FnOnce(&mut TenantSettings)) -> Arc<Tenant> {
    let mut settings = TenantSettings::default();
    change(&mut settings);
    let updated_by = String::new();
    Arc::new(Tenant { id: "t".into(), revision: 1, settings, created_ms: 0, updated_ms: 0, updated_by })
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
    // The next minute has begun, and the limiter allows one more request every 20 s.
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
    let err = world.whole(&tenant, 60).unwrap_err();
    assert_eq!(err, QuotaError::Tokens { limit: 100, left: 40, retry_after_ms: DAY_MS as u64 });
    world.whole(&tenant, 40).unwrap_err();
    // If the day has less left than an answer may have, the answer gets what is left.
    let mut last = world.gate.admit(&tenant).unwrap().payer().reserve(need(None, 30, 1000)).unwrap();
    assert_eq!(last.max_tokens(), 10);
    last.compute(30);
    (0..10).for_each(|_| last.write());
    drop(last);
    world.advance(DAY_MS - 5000);
    let err = world.whole(&tenant, 1).unwrap_err();
    assert_eq!(err, QuotaError::Tokens { limit: 100, left: 0, retry_after_ms: 5000 });
    world.advance(5000);
    assert_eq!(world.whole(&tenant, 1), Ok(()));
    // Yesterday's tokens still wait for the database, separate from today's.
    let deltas = world.gate.deltas();
    let days: Vec<(i64, u64)> = deltas.iter().map(|delta| (delta.day_ms, delta.tokens)).collect();
    assert_eq!(days, [(DAY, 100), (DAY + DAY_MS, 1)]);
}

#[test]
fn requests_at_the_same_time_cannot_pass_the_day_together() {
    let world = World::new();
    let tenant = tenant(|settings| settings.tokens_per_day = Some(500));
    let ask = || world.gate.admit(&tenant).and_then(|permit| permit.payer().reserve(need(None, 100, 100)));
    let mut running: Vec<Reservation> = (0..2).map(|_| ask().unwrap()).collect();
    assert_eq!(world.reserved(), 400);
    for _ in 0..38 {
        let err = ask().unwrap_err();
        assert_eq!(err, QuotaError::Reserved { limit: 500, left: 100, retry_after_ms: 1000 });
    }
    // One ends after 20 tokens, so what it did not use is free again.
    running[0].compute(100);
    (0..20).for_each(|_| running[0].write());
    running.remove(0);
    assert_eq!((world.tokens(), world.reserved()), (120, 200));
    // A request that cannot fit today, whatever ends, gets another error.
    let err = world.gate.admit(&tenant).unwrap().payer().reserve(need(None, 380, 1)).unwrap_err();
    assert!(matches!(err, QuotaError::Tokens { left: 380, .. }), "{err:?}");
    assert!(matches!(ask(), Err(QuotaError::Reserved { left: 180, .. })));
    drop(running);
    assert_eq!((world.tokens(), world.reserved()), (120, 0), "nothing of the other was computed");
    assert_eq!(ask().unwrap().max_tokens(), 100);
}

#[test]
fn an_answer_that_is_broken_off_is_charged_for_what_was_done() {
    let world = World::new();
    let tenant = tenant(|_| ());
    let ask = || world.gate.admit(&tenant).unwrap().payer().reserve(need(None, 50, 10)).unwrap();
    drop(ask());
    assert_eq!(world.tokens(), 0, "it never began");
    let mut cancelled = ask();
    cancelled.compute(32);
    cancelled.compute(16);
    drop(cancelled);
    assert_eq!(world.tokens(), 32, "its prompt was computed so far");
    let mut failed = ask();
    failed.compute(50);
    failed.forgive_prompt();
    drop(failed);
    assert_eq!(world.tokens(), 32, "the service failed before the first token");
    let mut written = ask();
    written.compute(50);
    (0..3).for_each(|_| written.write());
    written.forgive_prompt();
    drop(written);
    assert_eq!(world.tokens(), 32 + 53);
}

#[test]
fn a_request_that_is_sent_again_is_charged_once() {
    let world = World::new();
    let tenant = tenant(|_| ());
    assert_eq!(world.charged(&tenant, 1, 10), Ok(60));
    assert_eq!(world.charged(&tenant, 1, 10), Ok(0));
    assert_eq!(world.charged(&tenant, 1, 14), Ok(4), "the longest of its answers");
    assert_eq!(world.charged(&tenant, 2, 10), Ok(60), "another request");
    assert_eq!(world.charged(&tenant, 1, 10), Ok(0));
    assert_eq!(world.charged(&tenant, 1, 10), Err(QuotaError::Repeated), "an answer costs slots, too");
    assert_eq!(world.charged(&tenant, 2, 1), Ok(0));
    world.advance(RECEIPT_MS);
    assert_eq!(world.charged(&tenant, 1, 10), Ok(60), "it is not known any more");
    // All at the same time: no more than four run.
    let ask = || world.gate.admit(&tenant).unwrap().payer().reserve(need(Some(3), 50, 10));
    let running: Vec<Reservation> = (0..4).map(|_| ask().unwrap()).collect();
    assert_eq!(ask().unwrap_err(), QuotaError::Repeated);
    drop(running);
    assert!(ask().is_ok(), "those used nothing");
    // If the clock is set back by a day, receipts end.
    world.advance(-DAY_MS);
    assert_eq!(world.charged(&tenant, 2, 10), Ok(60));
}

#[test]
fn receipts_are_bounded() {
    let world = World::new();
    let tenant = tenant(|_| ());
    let payer = world.gate.admit(&tenant).unwrap().payer().clone();
    for at in 0..10_000_u64 {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&at.to_le_bytes());
        let need = TokenNeed { name: Some(RequestName(name)), prompt_tokens: 1, max_tokens: 1 };
        payer.reserve(need).unwrap().compute(1);
        world.advance(1);
    }
    assert_eq!(world.gate.meters()["t"].receipts.len(), 4096);
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
        reserved_elsewhere: 0,
    };
    // Other replicas run three: with ours the tenant has all it may.
    world.gate.exchanged(&sent, &[shared(4, 30, 3)]);
    assert!(matches!(world.gate.admit(&tenant), Err(QuotaError::Concurrency { .. })));
    world.gate.exchanged(&[], &[shared(10, 30, 0)]);
    assert!(matches!(world.gate.admit(&tenant), Err(QuotaError::Rate { .. })), "ten in this minute");
    world.gate.exchanged(&[], &[shared(4, 1000, 0)]);
    assert!(matches!(world.gate.admit(&tenant), Err(QuotaError::Tokens { .. })));
    let elsewhere = SharedUsage { reserved_elsewhere: 900, ..shared(4, 30, 0) };
    world.gate.exchanged(&[], &[elsewhere]);
    let err = world.gate.admit(&tenant).unwrap().payer().reserve(need(None, 50, 50)).unwrap_err();
    assert_eq!(err, QuotaError::Reserved { limit: 1000, left: 70, retry_after_ms: 1000 });
    world.gate.exchanged(&[], &[shared(4, 30, 0)]);
    assert!(world.gate.admit(&tenant).is_ok());
    assert_eq!(world.gate.deltas()[0].requests, 2, "what was sent is not sent again");
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

/// Returns what an exchange at this time says about the tenant.
fn heard(at_ms: i64, requests: u64, tokens: u64, running_elsewhere: u32) -> SharedUsage {
    SharedUsage {
        tenant: "t".into(),
        minute_ms: start(at_ms, MINUTE_MS),
        requests,
        day_ms: start(at_ms, DAY_MS),
        tokens,
        running_elsewhere,
        reserved_elsewhere: u64::from(running_elsewhere) * 50,
    }
}

#[test]
fn what_others_ran_does_not_stay_with_a_tenant_that_is_quiet_here() {
    let world = World::new();
    let (one, few) = (
        tenant(|settings| settings.concurrency_max = Some(1)),
        tenant(|settings| settings.tokens_per_day = Some(60)),
    );
    world.whole(&one, 1).unwrap();
    let sent = world.gate.deltas();
    world.gate.exchanged(&sent, &[heard(DAY, 2, 1, 1)]);
    assert!(matches!(world.whole(&one, 1), Err(QuotaError::Concurrency { .. })));
    assert!(matches!(world.whole(&few, 20), Err(QuotaError::Reserved { left: 9, .. })));
    // The refused request was admitted before `reserve` refused it. That is sent once, then the tenant is
    // quiet.
    world.gate.exchanged(&world.gate.deltas(), &[heard(DAY, 3, 1, 1)]);
    world.advance(60_000);
    let sent = world.gate.deltas();
    assert_eq!(sent, []);
    world.gate.exchanged(&sent, &[heard(DAY + 60_000, 0, 1, 0)]);
    assert_eq!(world.whole(&one, 1), Ok(()));
    // If no replica runs or uses anything, the database does not even list the tenant.
    let sent = world.gate.deltas();
    world.gate.exchanged(&sent, &[heard(DAY + 60_000, 1, 2, 1)]);
    world.advance(60_000);
    world.gate.exchanged(&[], &[]);
    assert_eq!((world.whole(&one, 1), world.whole(&few, 20)), (Ok(()), Ok(())));
}

#[test]
fn a_replica_that_begins_or_was_quiet_goes_on_with_the_day() {
    let world = World::new();
    let by_day = tenant(|settings| settings.tokens_per_day = Some(100));
    let by_minute = tenant(|settings| settings.requests_per_minute = Some(3));
    let full = QuotaError::Tokens { limit: 100, left: 0, retry_after_ms: DAY_MS as u64 };
    // It has never seen the tenant.
    world.gate.exchanged(&[], &[heard(DAY, 3, 100, 0)]);
    assert_eq!(world.whole(&by_day, 1), Err(full));
    assert_eq!(world.whole(&by_minute, 1), Err(QuotaError::Rate { limit: 3, retry_after_ms: 60_000 }));
    assert_eq!(world.gate.deltas(), [], "what was only heard of is not told");
    // It has not seen it since yesterday.
    world.advance(DAY_MS);
    world.gate.exchanged(&[], &[heard(DAY + DAY_MS, 0, 100, 0)]);
    assert_eq!(world.whole(&by_day, 1), Err(full));
    assert_eq!(world.whole(&by_minute, 1), Ok(()));
}
