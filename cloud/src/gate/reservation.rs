//! Tokens set aside for one request: reserved before it is computed, settled when its work ends.
//!
//! The most that a request may use is counted before anything is computed, so that requests at the same time
//! cannot pass a limit together. When it ends it is charged what it used: prompt tokens whose computation has
//! begun, and answer tokens. That holds whoever ended the answer. Always: a request that is sent again (same
//! id, same content) within [`RECEIPT_MS`] is charged once, for the longest of its answers; it may be sent
//! [`SENT_MAX`] times.

use std::sync::Arc;

use baton_generate::planted::{self, Bug};

use super::{Gate, Meter, PLACE_FREE_MS, QuotaError, Tenant, left};
use crate::learn::traffic::DAY_MS;

/// How long a request is recognized if it is sent again, from its first time on, in milliseconds.
pub const RECEIPT_MS: i64 = 600_000;
/// How often one request may be sent within that time, since each answer costs slots even if it costs no
/// tokens.
pub const SENT_MAX: u32 = 4;
/// The most requests of one tenant that are remembered; the oldest are forgotten.
const RECEIPTS_MAX: usize = 4096;

/// Identifies a request: a digest of its id and of everything that decides its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestName(pub [u8; 32]);

/// The most tokens that a request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenNeed {
    /// Its name, if it has an id of its own.
    pub name: Option<RequestName>,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// The most tokens of its answer.
    pub max_tokens: u64,
}

/// The tenant account that a request is charged to.
#[derive(Debug, Clone)]
pub struct Payer {
    pub(super) gate: Gate,
    pub(super) tenant: Arc<Tenant>,
}

/// Tokens set aside for one request. When it is dropped, it charges what was used and releases the rest.
#[derive(Debug)]
pub struct Reservation {
    gate: Gate,
    tenant: String,
    name: Option<RequestName>,
    set_aside: u64,
    max_tokens: u64,
    computed: u64,
    written: u64,
}

/// What is remembered of a request that may be sent again.
#[derive(Debug, Default)]
pub(super) struct Receipt {
    first_ms: i64,
    running: u32,
    /// How many of its answers used tokens.
    sent: u32,
    paid: u64,
}

impl Payer {
    /// Sets aside the tokens that a request may use. If nothing else of the tenant runs and the day has less
    /// left, the answer gets what is left ([`Reservation::max_tokens`]).
    ///
    /// # Errors
    /// [`QuotaError::Tokens`] if the day has no room for the prompt and one token. [`QuotaError::Reserved`]
    /// if it may have room when other requests end. [`QuotaError::Repeated`] if the request was sent too
    /// often.
    pub fn reserve(&self, need: TokenNeed) -> Result<Reservation, QuotaError> {
        let now_ms = (self.gate.inner.wall_ms)();
        let mut meters = self.gate.meters();
        let meter = meters.entry(self.tenant.id.clone()).or_default();
        meter.roll(now_ms);
        let paid = meter.paid(need.name, now_ms)?;
        let (set_aside, max_tokens) = match self.tenant.settings.tokens_per_day {
            None => (need.whole().saturating_sub(paid), need.max_tokens),
            Some(limit) => meter.room_for(need, paid, limit, now_ms)?,
        };
        meter.reserved += set_aside;
        if let Some(name) = need.name {
            meter.receipts.entry(name).or_insert_with(|| Receipt::new(now_ms)).running += 1;
            meter.forget_receipts();
        }
        Ok(Reservation {
            gate: self.gate.clone(),
            tenant: self.tenant.id.clone(),
            name: need.name,
            set_aside,
            max_tokens,
            computed: 0,
            written: 0,
        })
    }
}

impl TokenNeed {
    fn whole(self) -> u64 {
        self.prompt_tokens.saturating_add(self.max_tokens)
    }
}

impl Receipt {
    fn new(now_ms: i64) -> Receipt {
        Receipt { first_ms: now_ms, ..Receipt::default() }
    }

    fn is_over(&self, now_ms: i64) -> bool {
        // If the clock was set back, the receipt ends too, so that it is not kept for ever.
        self.running == 0 && !(0..RECEIPT_MS).contains(&(now_ms - self.first_ms))
    }
}

impl Meter {
    /// Returns what this request was charged before.
    fn paid(&mut self, name: Option<RequestName>, now_ms: i64) -> Result<u64, QuotaError> {
        let Some(name) = name else { return Ok(0) };
        if self.receipts.get(&name).is_some_and(|receipt| receipt.is_over(now_ms)) {
            self.receipts.remove(&name);
        }
        match self.receipts.get(&name) {
            Some(receipt) if receipt.sent + receipt.running >= SENT_MAX => Err(QuotaError::Repeated),
            Some(receipt) => Ok(receipt.paid),
            None => Ok(0),
        }
    }

    /// Returns the tokens to set aside, and the most tokens of the answer.
    fn room_for(
        &self,
        need: TokenNeed,
        paid: u64,
        limit: u64,
        now_ms: i64,
    ) -> Result<(u64, u64), QuotaError> {
        let unused = limit.saturating_sub(self.tokens_today());
        let reserved = self.reserved + self.reserved_elsewhere;
        let left = unused.saturating_sub(reserved);
        let whole = need.whole().saturating_sub(paid);
        if whole <= left {
            return Ok((whole, need.max_tokens));
        }
        // Tokens that were charged before are free if the request is sent again.
        let for_answer = |tokens: u64| tokens.saturating_add(paid).saturating_sub(need.prompt_tokens);
        if for_answer(unused) == 0 {
            let retry_after_ms = left_of_day(self.day_ms, now_ms);
            return Err(QuotaError::Tokens { limit, left: unused, retry_after_ms });
        }
        if reserved > 0 {
            return Err(QuotaError::Reserved { limit, left, retry_after_ms: PLACE_FREE_MS });
        }
        Ok((left, for_answer(left)))
    }

    fn forget_receipts(&mut self) {
        while self.receipts.len() > RECEIPTS_MAX {
            let idle = self.receipts.iter().filter(|(_, receipt)| receipt.running == 0);
            let Some(oldest) = idle.min_by_key(|(_, receipt)| receipt.first_ms).map(|(name, _)| *name) else {
                return;
            };
            self.receipts.remove(&oldest);
        }
    }

    /// Updates the receipt of a request that used so many tokens. Returns the tokens to charge.
    fn settle(&mut self, name: Option<RequestName>, used: u64) -> u64 {
        let Some(receipt) = name.and_then(|name| self.receipts.get_mut(&name)) else { return used };
        receipt.running = receipt.running.saturating_sub(1);
        receipt.sent += u32::from(used > 0);
        let paid = if planted::is(Bug::ChargedTwice) { 0 } else { receipt.paid };
        let due = used.saturating_sub(paid);
        receipt.paid += due;
        due
    }
}

fn left_of_day(day_ms: i64, now_ms: i64) -> u64 {
    left(day_ms + DAY_MS, now_ms)
}

impl Reservation {
    /// Returns the most tokens that the answer may have.
    #[must_use]
    pub fn max_tokens(&self) -> u64 {
        self.max_tokens
    }

    /// Notes that the computation of the first `prompt_tokens` tokens has begun, those found in the cache
    /// included.
    pub fn compute(&mut self, prompt_tokens: u64) {
        self.computed = self.computed.max(prompt_tokens);
    }

    /// Notes one more token of the answer.
    pub fn write(&mut self) {
        self.written += 1;
    }

    /// Notes that the service failed: a prompt costs nothing if no token of the answer was written.
    pub fn forgive_prompt(&mut self) {
        if self.written == 0 {
            self.computed = 0;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let now_ms = (self.gate.inner.wall_ms)();
        if let Some(meter) = self.gate.meters().get_mut(&self.tenant) {
            let kept = planted::is(Bug::QuotaKept) && self.written == 0;
            meter.reserved = meter.reserved.saturating_sub(if kept { 0 } else { self.set_aside });
            let due = meter.settle(self.name, self.computed + self.written);
            if due > 0 {
                meter.roll(now_ms);
                meter.waiting.entry(meter.day_ms).or_default().1 += due;
            }
        }
    }
}
