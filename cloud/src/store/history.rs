//! Sums of telemetry and of tenants' usage over a range of time.
//!
//! Always: bounded, in memory and in what is returned. Minutes become hours while a range is read. So each
//! part of a range is whole hours, and its minutes and hours are read by one statement.

use super::db::{Row, args};
use super::usage::{traffic_row, used};
use super::{DayUsage, Store, StoreError, sql};
use crate::learn::traffic::history::{GroupBy, History, TimeRange};
use crate::learn::traffic::{DAY_MS, HOUR_MS, MINUTE_MS};

/// Length of a range that is read at once. A replica writes at most 257 rows a minute.
const PART_MS: i64 = 6 * HOUR_MS;
/// The most days of tenants that are returned.
const DAYS_MAX: u32 = 5000;
/// The most tenants that are returned.
const TENANTS_MAX: u32 = 1000;

/// Usage of one tenant on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantDay {
    /// Start of the day (UTC), in milliseconds since 1970.
    pub day_ms: i64,
    /// The usage.
    pub usage: DayUsage,
}

/// Usage of tenants over a range of days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageHistory {
    /// Each day of each tenant that used anything, the newest day first.
    pub days: Vec<TenantDay>,
    /// Each tenant's sum over all days, those with the most tokens first.
    pub tenants: Vec<DayUsage>,
    /// Whether there are more days or tenants than are returned.
    pub has_more: bool,
}

impl Store {
    /// Sums telemetry of all replicas over a range. `scene` counts one scene only; the empty one is the chat
    /// API.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer, [`StoreError::Row`] if a row cannot be read.
    pub async fn history(
        &self,
        range: TimeRange,
        by: GroupBy,
        scene: Option<String>,
    ) -> Result<History, StoreError> {
        let mut history = History::new(range, by, scene);
        for (from_ms, to_ms) in range.parts(PART_MS) {
            let values = args![MINUTE_MS, HOUR_MS, from_ms, to_ms];
            for row in self.pool.rows(&sql::TELEMETRY_BOTH, values).await? {
                history.add(&traffic_row(&row)?);
            }
        }
        Ok(history)
    }

    /// Returns what tenants used on the days (UTC) that a range touches; of all tenants if `tenant` is empty.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn usage_history(&self, range: TimeRange, tenant: &str) -> Result<UsageHistory, StoreError> {
        let (from_ms, to_ms) = range.days();
        let values = args![DAY_MS, from_ms, to_ms, tenant, DAYS_MAX + 1];
        let rows = self.pool.rows(&sql::USAGE_DAYS, values).await?;
        let day = |row: &Row| Ok(TenantDay { day_ms: row.int("start_ms")?, usage: used(row)? });
        let mut days = rows.iter().map(day).collect::<Result<Vec<_>, StoreError>>()?;
        let values = args![DAY_MS, from_ms, to_ms, tenant, TENANTS_MAX + 1];
        let rows = self.pool.rows(&sql::USAGE_TENANTS, values).await?;
        let mut tenants = rows.iter().map(used).collect::<Result<Vec<_>, StoreError>>()?;
        let has_more = days.len() > DAYS_MAX as usize || tenants.len() > TENANTS_MAX as usize;
        days.truncate(DAYS_MAX as usize);
        tenants.truncate(TENANTS_MAX as usize);
        Ok(UsageHistory { days, tenants, has_more })
    }
}
