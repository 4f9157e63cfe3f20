//! The OpenAPI document, the figures of the overview, and the audit log.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::body::QueryText;
use crate::admin::Admin;
use crate::admin::operations::AUDIT_PAGE;
use crate::admin::overview::{self, OverviewView};
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::view::{AuditPage, AuditState};

/// Returns this OpenAPI document.
#[utoipa::path(
    get, path = "/admin/api/v1/openapi.json", tag = "status", operation_id = "openapi", security(()),
    responses((status = 200, description = "OpenAPI", body = Object))
)]
pub(super) async fn document() -> Response {
    Json(super::openapi()).into_response()
}

/// Returns figures of the running service.
#[utoipa::path(
    get, path = "/admin/api/v1/overview", tag = "status", operation_id = "overview",
    responses(
        (status = 200, body = OverviewView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn overview(State(admin): State<Admin>) -> Json<OverviewView> {
    Json(overview::read(&admin).await)
}

/// The rows of the audit log to return.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditRows {
    /// Only rows before this one.
    #[param(minimum = 1)]
    before: Option<u64>,
    /// The most rows to return, 1 to 500. The default is 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Lists rows of the audit log, the newest first.
#[utoipa::path(
    get, path = "/admin/api/v1/audit", tag = "audit", operation_id = "list_audit", params(AuditRows),
    responses(
        (status = 200, body = AuditPage),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn audit(
    State(admin): State<Admin>,
    QueryText(asked): QueryText<AuditRows>,
) -> Result<Json<AuditPage>, Problem> {
    if let Some(limit) = asked.limit.filter(|limit| !(1..=500).contains(limit)) {
        return Err(Problem::field("limit", &format!("field `limit` is {limit}, must be 1 to 500")));
    }
    // The database cannot hold larger numbers, so no row has one.
    let before = asked.before.map(|before| before.min(i64::MAX as u64));
    Ok(Json(admin.operations.audit(before, asked.limit.unwrap_or(AUDIT_PAGE)).await?))
}

/// Checks the whole audit log: that no row was changed, and none is missing.
#[utoipa::path(
    get, path = "/admin/api/v1/audit/verify", tag = "audit", operation_id = "verify_audit",
    responses(
        (status = 200, body = AuditState),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn verify_audit(State(admin): State<Admin>) -> Result<Json<AuditState>, Problem> {
    Ok(Json(admin.operations.verify_audit().await?))
}
