//! The API's own description, the overview's figures, and the audit log.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::body::QueryText;
use crate::admin::Admin;
use crate::admin::office::AUDIT_PAGE;
use crate::admin::overview::{self, OverviewView};
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::view::{AuditPage, AuditState};

/// This description.
#[utoipa::path(
    get, path = "/admin/api/v1/openapi.json", tag = "status", operation_id = "openapi", security(()),
    responses((status = 200, description = "OpenAPI", body = Object))
)]
pub(super) async fn document() -> Response {
    Json(super::openapi()).into_response()
}

/// Figures of the running service.
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

/// Which rows of the audit log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditRows {
    /// Only rows before this one.
    #[param(minimum = 1)]
    before: Option<u64>,
    /// At most so many, 1 to 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Rows of the audit log, the newest first.
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
    // No row has a number that the database cannot hold.
    let before = asked.before.map(|before| before.min(i64::MAX as u64));
    Ok(Json(admin.office.audit(before, asked.limit.unwrap_or(AUDIT_PAGE)).await?))
}

/// Reads the whole audit log and says whether it is as it was written.
#[utoipa::path(
    get, path = "/admin/api/v1/audit/verify", tag = "audit", operation_id = "verify_audit",
    responses(
        (status = 200, body = AuditState),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn verify_audit(State(admin): State<Admin>) -> Result<Json<AuditState>, Problem> {
    Ok(Json(admin.office.verify_audit().await?))
}
