//! Sums of telemetry and of tenants' usage over a range of time.

use super::AdminService;
use crate::admin::problem::Problem;
use crate::admin::view::history::{HistoryView, UsageView};
use crate::learn::traffic::DAY_MS;
use crate::learn::traffic::history::{GroupBy, TimeRange};

/// The range that is asked for, in milliseconds since 1970. Without a start it begins a day before its end,
/// and without an end it ends now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RangeInput {
    pub(crate) from_ms: Option<i64>,
    pub(crate) to_ms: Option<i64>,
}

impl RangeInput {
    fn check(self, now_ms: i64) -> Result<TimeRange, Problem> {
        let to_ms = self.to_ms.unwrap_or(now_ms).min(now_ms);
        let from_ms = self.from_ms.unwrap_or(to_ms.saturating_sub(DAY_MS));
        let wrong = |err| Problem::field("from_ms", &format!("field `from_ms` is {from_ms}: {err}"));
        TimeRange::new(from_ms, to_ms, now_ms).map_err(wrong)
    }
}

impl AdminService {
    /// Returns sums of all replicas over a range, by the groups that `by` names. `scene` counts one scene
    /// only.
    pub(crate) async fn traffic_history(
        &self,
        range: RangeInput,
        by: &str,
        scene: Option<String>,
        now_ms: i64,
    ) -> Result<HistoryView, Problem> {
        let by: GroupBy = by.parse().map_err(|err| Problem::field("by", &format!("field `by`: {err}")))?;
        let range = range.check(now_ms)?;
        Ok(HistoryView::from(&self.store.history(range, by, scene).await?))
    }

    /// Returns what tenants used on the days that a range touches; all tenants if `tenant` is empty.
    pub(crate) async fn tenant_usage(
        &self,
        range: RangeInput,
        tenant: &str,
        now_ms: i64,
    ) -> Result<UsageView, Problem> {
        let range = range.check(now_ms)?;
        Ok(UsageView::of(range, self.store.usage_history(range, tenant).await?))
    }
}
