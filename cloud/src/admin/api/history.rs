//! `/admin/api/v1/history` and `usage`: sums over a range of time.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::body::QueryText;
use crate::admin::Admin;
use crate::admin::operations::history::RangeInput;
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::view::history::{HistoryView, UsageView};
use crate::store::now_ms;

/// The sums to return.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryAsked {
    /// Start of the range, in milliseconds since 1970; the default is a day before its end.
    from_ms: Option<i64>,
    /// End of the range, which is not part of it; the default is now.
    to_ms: Option<i64>,
    /// What the groups are: `scene` (the default), `class` or `network`.
    by: Option<String>,
    /// The only scene to count; empty for the chat API.
    scene: Option<String>,
}

/// The usage to return.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageAsked {
    /// Start of the range, in milliseconds since 1970; the default is a day before its end.
    from_ms: Option<i64>,
    /// End of the range, which is not part of it; the default is now.
    to_ms: Option<i64>,
    /// The only tenant to list.
    tenant: Option<String>,
}

/// Sums requests of all replicas over a range of time. Minutes are kept for two days, then hours for 90 days.
#[utoipa::path(
    get, path = "/admin/api/v1/history", tag = "history", operation_id = "history", params(HistoryAsked),
    responses(
        (status = 200, body = HistoryView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn history(
    State(admin): State<Admin>,
    QueryText(asked): QueryText<HistoryAsked>,
) -> Result<Json<HistoryView>, Problem> {
    let HistoryAsked { from_ms, to_ms, by, scene } = asked;
    let (range, by) = (RangeInput { from_ms, to_ms }, by.unwrap_or_else(|| "scene".to_owned()));
    Ok(Json(admin.operations.traffic_history(range, &by, scene, now_ms()).await?))
}

/// Lists what tenants used on all replicas, by day (UTC). Days are kept for 90 days.
#[utoipa::path(
    get, path = "/admin/api/v1/usage", tag = "history", operation_id = "usage", params(UsageAsked),
    responses(
        (status = 200, body = UsageView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn usage(
    State(admin): State<Admin>,
    QueryText(asked): QueryText<UsageAsked>,
) -> Result<Json<UsageView>, Problem> {
    let UsageAsked { from_ms, to_ms, tenant } = asked;
    let tenant = tenant.unwrap_or_default();
    Ok(Json(admin.operations.tenant_usage(RangeInput { from_ms, to_ms }, &tenant, now_ms()).await?))
}
