//! Sums over a range of time, as the console, its API and the command line show them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::learn::traffic::TrafficSums;
use crate::learn::traffic::history::{History, TimeRange};
use crate::store::{DayUsage, UsageHistory};

/// Sums of requests that ended.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HistorySums {
    /// Requests that ended.
    pub requests: u64,
    /// Of these, those that ended with an error.
    pub failures: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Answer tokens that the cloud wrote.
    pub completion_tokens: u64,
    /// Prompt tokens that devices did not have to prefill.
    pub prompt_tokens_saved: u64,
    /// Slot time, in seconds.
    pub slot_seconds: f64,
    /// Slot time saved, in seconds, compared with answers that the cloud writes to their end.
    pub slot_seconds_saved: f64,
    /// Median time to the first token, in milliseconds; null if there was none.
    pub ttft_p50_ms: Option<f64>,
    /// 95 % of first tokens came within this time, in milliseconds.
    pub ttft_p95_ms: Option<f64>,
}

impl From<&TrafficSums> for HistorySums {
    fn from(sums: &TrafficSums) -> HistorySums {
        HistorySums {
            requests: sums.requests,
            failures: sums.failures,
            prompt_tokens: sums.prompt_tokens,
            completion_tokens: sums.completion_tokens,
            prompt_tokens_saved: sums.prompt_tokens_saved,
            slot_seconds: sums.slot_ms as f64 / 1e3,
            slot_seconds_saved: sums.slot_ms_saved as f64 / 1e3,
            ttft_p50_ms: sums.ttft_ms.quantile(0.5),
            ttft_p95_ms: sums.ttft_ms.quantile(0.95),
        }
    }
}

/// Sums of one scene, class or network.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HistoryGroup {
    /// Its name. Empty for the chat API, or if devices named no class. `other` for those without own sums.
    pub name: String,
    /// Its sums.
    pub sums: HistorySums,
}

/// Sums of one step.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HistoryPoint {
    /// Its start, in milliseconds since 1970.
    pub start_ms: i64,
    /// Its sums.
    pub sums: HistorySums,
}

/// Sums of all replicas over a range of time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HistoryView {
    /// Start of the range, in milliseconds since 1970: that of a minute, or of an hour if it is over two days
    /// ago.
    pub from_ms: i64,
    /// End of the range, which is not part of it.
    pub to_ms: i64,
    /// Length of a step, in milliseconds.
    pub step_ms: i64,
    /// What the groups are: `scene`, `class` or `network`.
    pub by: String,
    /// The only scene that is counted; null if all are.
    pub scene: Option<String>,
    /// All sums together.
    pub total: HistorySums,
    /// Sums by scene, class or network, those with the most requests first.
    pub groups: Vec<HistoryGroup>,
    /// Sums by step.
    pub points: Vec<HistoryPoint>,
}

impl From<&History> for HistoryView {
    fn from(history: &History) -> HistoryView {
        let group =
            |(name, sums): (&str, &TrafficSums)| HistoryGroup { name: name.to_owned(), sums: sums.into() };
        let point = |(start_ms, sums): (i64, TrafficSums)| HistoryPoint { start_ms, sums: (&sums).into() };
        HistoryView {
            from_ms: history.range.from_ms(),
            to_ms: history.range.to_ms(),
            step_ms: history.range.step_ms(),
            by: history.by.as_str().to_owned(),
            scene: history.scene.clone(),
            total: (&history.total).into(),
            groups: history.largest_first().into_iter().map(group).collect(),
            points: history.points().map(point).collect(),
        }
    }
}

/// Usage of one tenant on one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TenantDayView {
    /// Start of the day (UTC), in milliseconds since 1970.
    pub day_ms: i64,
    /// The tenant.
    pub tenant: String,
    /// Its requests.
    pub requests: u64,
    /// Prompt and answer tokens.
    pub tokens: u64,
}

/// Usage of one tenant over all days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TenantUsageView {
    /// The tenant.
    pub tenant: String,
    /// Its requests.
    pub requests: u64,
    /// Prompt and answer tokens.
    pub tokens: u64,
}

impl From<DayUsage> for TenantUsageView {
    fn from(usage: DayUsage) -> TenantUsageView {
        TenantUsageView { tenant: usage.tenant, requests: usage.requests, tokens: usage.tokens }
    }
}

/// Usage of tenants on all replicas, over whole days (UTC).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsageView {
    /// Start of the first day, in milliseconds since 1970.
    pub from_ms: i64,
    /// End of the last day, which is not part of it.
    pub to_ms: i64,
    /// Each tenant's sums, those with the most tokens first.
    pub tenants: Vec<TenantUsageView>,
    /// Each day of each tenant that used anything, the newest day first.
    pub days: Vec<TenantDayView>,
    /// Whether there are more days or tenants than are listed. Ask for fewer days, or for one tenant.
    pub has_more: bool,
}

impl UsageView {
    /// Makes the view of what tenants used on the days of a range.
    #[must_use]
    pub fn of(range: TimeRange, usage: UsageHistory) -> UsageView {
        let (from_ms, to_ms) = range.days();
        let days = usage.days.into_iter().map(|day| TenantDayView {
            day_ms: day.day_ms,
            tenant: day.usage.tenant,
            requests: day.usage.requests,
            tokens: day.usage.tokens,
        });
        let tenants = usage.tenants.into_iter().map(TenantUsageView::from).collect();
        UsageView { from_ms, to_ms, tenants, days: days.collect(), has_more: usage.has_more }
    }
}
