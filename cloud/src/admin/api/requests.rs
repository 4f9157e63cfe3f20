//! `/admin/api/v1/requests`: what runs on this replica, and what ended last.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{PathText, QueryText};
use crate::admin::Admin;
use crate::admin::operations::requests::{RequestFilter, unknown_request};
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::session::Session;
use crate::admin::view::request::{RequestView, RequestsView};

/// The requests to return. What is left out or empty filters nothing.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RequestsAsked {
    /// `running` or `ended`.
    state: Option<String>,
    /// How their ids begin, or a whole id.
    id: Option<String>,
    /// Their tenant.
    tenant: Option<String>,
    /// Their scene.
    scene: Option<String>,
    /// Their model.
    model: Option<String>,
    /// The most to return, 1 to 500. The default is 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// What became of an order to cancel.
#[derive(Serialize, ToSchema)]
pub(super) struct Cancelled {
    /// How many running requests of the id were cancelled.
    cancelled: usize,
}

/// Lists requests of the replica that answers: those that run, and the last 2,000 that ended. Requests of
/// other replicas are not listed.
#[utoipa::path(
    get, path = "/admin/api/v1/requests", tag = "requests", operation_id = "list_requests", params(RequestsAsked),
    responses(
        (status = 200, body = RequestsView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(admin): State<Admin>,
    QueryText(asked): QueryText<RequestsAsked>,
) -> Result<Json<RequestsView>, Problem> {
    let RequestsAsked { state, id, tenant, scene, model, limit } = asked;
    let query = RequestFilter { state, id, tenant, scene, model, limit }.check()?;
    Ok(Json(RequestsView::from(admin.service.requests(&query))))
}

/// Returns the newest request of this id on the replica that answers. One that runs comes first.
#[utoipa::path(
    get, path = "/admin/api/v1/requests/{id}", tag = "requests", operation_id = "show_request",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = RequestView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
) -> Result<Json<RequestView>, Problem> {
    let found = admin.service.request(&id).ok_or_else(unknown_request)?;
    Ok(Json(RequestView::from(found)))
}

/// Cancels the running requests of this id on the replica that answers. Clients choose ids, so there may be
/// several.
#[utoipa::path(
    post, path = "/admin/api/v1/requests/{id}/cancel", tag = "requests", operation_id = "cancel_request",
    params(("id" = String, Path)),
    responses(
        (status = 202, body = Cancelled),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn cancel(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
) -> Result<(StatusCode, Json<Cancelled>), Problem> {
    let cancelled = admin.operations.cancel_request(&session.actor(), &admin.service, &id).await?;
    Ok((StatusCode::ACCEPTED, Json(Cancelled { cancelled })))
}
