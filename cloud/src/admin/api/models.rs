//! `/admin/api/v1/models`: the models of this replica, and orders about them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::body::PathText;
use crate::admin::Admin;
use crate::admin::operations::models::{ModelOrder, ModelsView};
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::session::Session;

/// Lists the models of this replica with their states.
#[utoipa::path(
    get, path = "/admin/api/v1/models", tag = "models", operation_id = "list_models",
    responses(
        (status = 200, body = ModelsView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(State(admin): State<Admin>) -> Json<ModelsView> {
    Json(ModelsView::of(&admin.service))
}

/// Loads a model on this replica, also if it was drained or its last load failed.
#[utoipa::path(
    post, path = "/admin/api/v1/models/{name}/load", tag = "models", operation_id = "load_model",
    params(("name" = String, Path)),
    responses(
        (status = 202, body = ModelsView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn load(
    State(admin): State<Admin>,
    session: Session,
    PathText(name): PathText<String>,
) -> Result<(StatusCode, Json<ModelsView>), Problem> {
    ordered(&admin, &session, &name, ModelOrder::Load).await
}

/// Unloads a model on this replica once no request holds it. The next request loads it again.
#[utoipa::path(
    post, path = "/admin/api/v1/models/{name}/unload", tag = "models", operation_id = "unload_model",
    params(("name" = String, Path)),
    responses(
        (status = 202, body = ModelsView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn unload(
    State(admin): State<Admin>,
    session: Session,
    PathText(name): PathText<String>,
) -> Result<(StatusCode, Json<ModelsView>), Problem> {
    ordered(&admin, &session, &name, ModelOrder::Unload).await
}

/// Lets a model on this replica take no new requests, and unloads it once no request holds it.
#[utoipa::path(
    post, path = "/admin/api/v1/models/{name}/drain", tag = "models", operation_id = "drain_model",
    params(("name" = String, Path)),
    responses(
        (status = 202, body = ModelsView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn drain(
    State(admin): State<Admin>,
    session: Session,
    PathText(name): PathText<String>,
) -> Result<(StatusCode, Json<ModelsView>), Problem> {
    ordered(&admin, &session, &name, ModelOrder::Drain).await
}

async fn ordered(
    admin: &Admin,
    session: &Session,
    name: &str,
    order: ModelOrder,
) -> Result<(StatusCode, Json<ModelsView>), Problem> {
    admin.operations.order_model(&session.actor(), &admin.service, name, order).await?;
    Ok((StatusCode::ACCEPTED, Json(ModelsView::of(&admin.service))))
}
