//! Usage: quotas that replicas share, and telemetry summed by minute and hour.
//!
//! Never: writes the audit log, since these are counts and not changes. Replicas exchange usage every few
//! seconds. So together they may pass a quota by what they use between two exchanges.

use std::collections::{BTreeMap, HashSet};

use super::db::{Row, Tx, args};
use super::{Store, StoreError, sql};
use crate::learn::traffic::{
    ASSIST_BOUNDS, DAY_MS, HOUR_MS, HOURS_KEPT_MS, Histogram, MINUTE_MS, MINUTES_KEPT_MS, RATIO_BOUNDS,
    TTFT_BOUNDS_MS, TrafficKey, TrafficRow, TrafficSums,
};

/// A replica that has not reported for this long is taken as gone, in milliseconds.
const REPLICA_GONE_MS: i64 = 15_000;

/// What a tenant has used on this replica since the last exchange, and what runs now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageDelta {
    /// The tenant.
    pub tenant: String,
    /// Start of the minute of `requests`, in milliseconds since 1970.
    pub minute_ms: i64,
    /// Requests in that minute.
    pub requests: u64,
    /// Start of the day of `tokens`, in milliseconds since 1970.
    pub day_ms: i64,
    /// Requests on that day.
    pub day_requests: u64,
    /// Tokens on that day.
    pub tokens: u64,
    /// Requests that run on this replica now.
    pub running: u32,
    /// Tokens set aside for them.
    pub reserved: u64,
}

/// What a tenant has used on all replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedUsage {
    /// The tenant.
    pub tenant: String,
    /// Start of the minute, in milliseconds since 1970.
    pub minute_ms: i64,
    /// Requests in it, of all replicas.
    pub requests: u64,
    /// Start of the day, in milliseconds since 1970.
    pub day_ms: i64,
    /// Tokens on it, of all replicas.
    pub tokens: u64,
    /// Requests that run on other replicas.
    pub running_elsewhere: u32,
    /// Tokens set aside for them.
    pub reserved_elsewhere: u64,
}

/// Usage of one tenant on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayUsage {
    /// The tenant.
    pub tenant: String,
    /// Requests.
    pub requests: u64,
    /// Tokens.
    pub tokens: u64,
}

impl Store {
    /// Adds the usage of this replica and returns the usage of all replicas. Both are one transaction: if it
    /// fails, nothing was added. Without deltas it only reads.
    ///
    /// The result has one row for each delta. Then follows one row for each other tenant that used anything
    /// in the minute or on the day of `now_ms`, or has running requests on another replica.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn exchange_usage(
        &self,
        replica: &str,
        deltas: &[UsageDelta],
        now_ms: i64,
    ) -> Result<Vec<SharedUsage>, StoreError> {
        let mut deltas: Vec<&UsageDelta> = deltas.iter().collect();
        // All replicas lock tenants in the same order, so that they cannot deadlock.
        deltas.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        let mut tx =
            if deltas.is_empty() { self.pool.begin_read().await? } else { self.pool.begin_write().await? };
        let mut shared = Vec::with_capacity(deltas.len());
        for delta in &deltas {
            let tenant = delta.tenant.as_str();
            let values = args![tenant, MINUTE_MS, delta.minute_ms, delta.requests, 0_u32];
            let minute = tx.row(&sql::USAGE_ADD, values).await?;
            let values = args![tenant, DAY_MS, delta.day_ms, delta.day_requests, delta.tokens];
            let day = tx.row(&sql::USAGE_ADD, values).await?;
            tx.execute(&sql::LOAD_PUT, args![replica, tenant, delta.running, delta.reserved, now_ms]).await?;
            let total = |row: Option<Row>, column| row.map_or(Ok(0), |row: Row| row.count(column));
            shared.push(SharedUsage {
                tenant: tenant.to_owned(),
                minute_ms: delta.minute_ms,
                requests: total(minute, "requests")?,
                day_ms: delta.day_ms,
                tokens: total(day, "tokens")?,
                running_elsewhere: 0,
                reserved_elsewhere: 0,
            });
        }
        add_everyone(&mut tx, &mut shared, now_ms).await?;
        add_loads(&mut tx, replica, &mut shared, now_ms).await?;
        tx.commit().await?;
        Ok(shared)
    }

    /// Returns what every tenant used on the day that begins at `day_ms`.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn usage_of_day(&self, day_ms: i64) -> Result<Vec<DayUsage>, StoreError> {
        let rows = self.pool.rows(&sql::USAGE, args![DAY_MS, day_ms]).await?;
        rows.iter().map(used).collect()
    }

    /// Writes the sums of a replica's minutes. A later write of the same minute replaces the earlier one.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer; nothing is written then.
    pub async fn keep_traffic(&self, replica: &str, rows: &[TrafficRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut tx = self.pool.begin_write().await?;
        for row in rows {
            put(&mut tx, replica, row).await?;
        }
        tx.commit().await
    }

    /// Returns sums over all replicas from `from_ms` up to but not including `to_ms`, by start and key.
    /// `period_ms` is [`MINUTE_MS`] (kept for two days) or [`HOUR_MS`].
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer, [`StoreError::Row`] if a row cannot be read.
    pub async fn traffic(
        &self,
        period_ms: i64,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<TrafficRow>, StoreError> {
        let rows = self.pool.rows(&sql::TELEMETRY, args![period_ms, from_ms, to_ms]).await?;
        Ok(summed(&rows.iter().map(traffic_row).collect::<Result<Vec<_>, _>>()?, period_ms))
    }

    /// Sums old minutes into hours, and deletes what has been kept long enough. Any replica may do this at
    /// any time.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer; nothing is changed then.
    pub async fn compact(&self, now_ms: i64) -> Result<(), StoreError> {
        let horizon = now_ms - MINUTES_KEPT_MS;
        let horizon = horizon - horizon.rem_euclid(HOUR_MS);
        let mut tx = self.pool.begin_write().await?;
        // Only one replica does this at a time; the next one finds nothing left to sum.
        tx.row(&sql::STATE_LOCK, args![0_i64]).await?;
        let rows = tx.rows(&sql::TELEMETRY, args![MINUTE_MS, i64::MIN, horizon]).await?;
        let minutes = rows.iter().map(traffic_row).collect::<Result<Vec<_>, _>>()?;
        for hour in summed(&minutes, HOUR_MS) {
            let known = tx.rows(&sql::TELEMETRY, args![HOUR_MS, hour.start_ms, hour.start_ms + 1]).await?;
            let known = known.iter().map(traffic_row).collect::<Result<Vec<_>, _>>()?;
            let mut hour = hour;
            for known in known.iter().filter(|known| known.key == hour.key) {
                hour.sums.merge(&known.sums);
            }
            put(&mut tx, "", &hour).await?;
        }
        tx.execute(&sql::TELEMETRY_FORGET, args![MINUTE_MS, i64::MIN, horizon]).await?;
        tx.execute(&sql::TELEMETRY_FORGET, args![HOUR_MS, i64::MIN, now_ms - HOURS_KEPT_MS]).await?;
        tx.execute(&sql::USAGE_FORGET, args![MINUTE_MS, now_ms - 10 * MINUTE_MS]).await?;
        tx.execute(&sql::USAGE_FORGET, args![DAY_MS, now_ms - HOURS_KEPT_MS]).await?;
        tx.execute(&sql::LOAD_FORGET, args![now_ms - 10 * REPLICA_GONE_MS]).await?;
        tx.execute(&sql::FEEDBACK_FORGET, args![now_ms]).await?;
        tx.commit().await?;
        self.forget_model_reports(now_ms).await
    }
}

impl SharedUsage {
    /// Returns the usage of a tenant that has used nothing at this time.
    fn none(tenant: String, now_ms: i64) -> SharedUsage {
        SharedUsage {
            tenant,
            minute_ms: now_ms - now_ms.rem_euclid(MINUTE_MS),
            requests: 0,
            day_ms: now_ms - now_ms.rem_euclid(DAY_MS),
            tokens: 0,
            running_elsewhere: 0,
            reserved_elsewhere: 0,
        }
    }
}

/// Adds a row for each tenant that has used anything in this minute or on this day and has no row in `shared`
/// yet.
async fn add_everyone(tx: &mut Tx, shared: &mut Vec<SharedUsage>, now_ms: i64) -> Result<(), StoreError> {
    let SharedUsage { minute_ms, day_ms, .. } = SharedUsage::none(String::new(), now_ms);
    let of_now = shared.iter().filter(|usage| (usage.minute_ms, usage.day_ms) == (minute_ms, day_ms));
    let said: HashSet<String> = of_now.map(|usage| usage.tenant.clone()).collect();
    for row in tx.rows(&sql::USAGE_NOW, args![MINUTE_MS, minute_ms, DAY_MS, day_ms]).await? {
        let tenant = row.text("tenant")?;
        if !said.contains(&tenant) {
            let (requests, tokens) = (row.count("requests")?, row.count("tokens")?);
            shared.push(SharedUsage { requests, tokens, ..SharedUsage::none(tenant, now_ms) });
        }
    }
    Ok(())
}

/// Adds what runs on other replicas to every row of a tenant. A tenant may have two rows, one for each of two
/// days.
async fn add_loads(
    tx: &mut Tx,
    replica: &str,
    shared: &mut Vec<SharedUsage>,
    now_ms: i64,
) -> Result<(), StoreError> {
    let mut loads = BTreeMap::new();
    for row in tx.rows(&sql::LOAD_OTHERS, args![replica, now_ms - REPLICA_GONE_MS]).await? {
        loads.insert(row.text("tenant")?, (row.small("running")?, row.count("reserved")?));
    }
    for usage in shared.iter_mut() {
        if let Some(&load) = loads.get(&usage.tenant) {
            (usage.running_elsewhere, usage.reserved_elsewhere) = load;
        }
    }
    for usage in shared.iter() {
        loads.remove(&usage.tenant);
    }
    shared.extend(loads.into_iter().map(|(tenant, (running_elsewhere, reserved_elsewhere))| SharedUsage {
        running_elsewhere,
        reserved_elsewhere,
        ..SharedUsage::none(tenant, now_ms)
    }));
    Ok(())
}

async fn put(tx: &mut Tx, replica: &str, row: &TrafficRow) -> Result<(), StoreError> {
    let sums = &row.sums;
    let (ttft, assist, ratio) = (sums.ttft_ms.to_text(), sums.assist_tokens.to_text(), sums.ratio.to_text());
    let values = args![
        row.period_ms,
        row.start_ms,
        replica,
        &row.key.scene,
        &row.key.class,
        &row.key.network,
        sums.requests,
        sums.failures,
        sums.prompt_tokens,
        sums.completion_tokens,
        sums.prompt_tokens_saved,
        sums.slot_ms,
        sums.slot_ms_saved,
        &ttft,
        &assist,
        &ratio
    ];
    tx.execute(&sql::TELEMETRY_PUT, values).await.map(drop)
}

/// Adds up the rows of the same period and key.
fn summed(rows: &[TrafficRow], period_ms: i64) -> Vec<TrafficRow> {
    let mut all: BTreeMap<(i64, TrafficKey), TrafficSums> = Default::default();
    for row in rows {
        let start_ms = row.start_ms - row.start_ms.rem_euclid(period_ms);
        all.entry((start_ms, row.key.clone())).or_default().merge(&row.sums);
    }
    let row = |((start_ms, key), sums)| TrafficRow { period_ms, start_ms, key, sums };
    all.into_iter().map(row).collect()
}

pub(super) fn used(row: &Row) -> Result<DayUsage, StoreError> {
    Ok(DayUsage {
        tenant: row.text("tenant")?,
        requests: row.count("requests")?,
        tokens: row.count("tokens")?,
    })
}

pub(super) fn traffic_row(row: &Row) -> Result<TrafficRow, StoreError> {
    let histogram = |column, bounds| {
        let text = row.text(column)?;
        Histogram::parse(bounds, &text).ok_or_else(|| row.bad(column, text))
    };
    Ok(TrafficRow {
        period_ms: row.int("period_ms")?,
        start_ms: row.int("start_ms")?,
        key: TrafficKey {
            scene: row.text("scene")?,
            class: row.text("class")?,
            network: row.text("network")?,
        },
        sums: TrafficSums {
            requests: row.count("requests")?,
            failures: row.count("failures")?,
            prompt_tokens: row.count("prompt_tokens")?,
            completion_tokens: row.count("completion_tokens")?,
            prompt_tokens_saved: row.count("prompt_tokens_saved")?,
            slot_ms: row.count("slot_ms")?,
            slot_ms_saved: row.count("slot_ms_saved")?,
            ttft_ms: histogram("ttft_counts", TTFT_BOUNDS_MS)?,
            assist_tokens: histogram("assist_counts", ASSIST_BOUNDS)?,
            ratio: histogram("ratio_counts", RATIO_BOUNDS)?,
        },
    })
}
