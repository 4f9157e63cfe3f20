//! `/admin/api/v1/rollouts` and `registry`: which models devices have, and which there are.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::body::{JsonBody, PathText};
use super::{changed, expected, tagged};
use crate::admin::Admin;
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::session::Session;
use crate::admin::view::rollout::{RegistryModel, RolloutChange, RolloutInput, RolloutView};

/// Every target.
#[derive(Serialize, ToSchema)]
pub(super) struct RolloutList {
    /// By scene and class.
    rollouts: Vec<RolloutView>,
}

/// Every version of the registry.
#[derive(Serialize, ToSchema)]
pub(super) struct RegistryList {
    /// By name and version.
    models: Vec<RegistryModel>,
}

/// Lists the versions of the registry that a trusted key has signed.
#[utoipa::path(
    get, path = "/admin/api/v1/registry", tag = "rollouts", operation_id = "list_registry",
    responses(
        (status = 200, body = RegistryList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn registry(State(admin): State<Admin>) -> Result<Json<RegistryList>, Problem> {
    let entries = admin.service.fleet().catalog.all();
    Ok(Json(RegistryList { models: entries.iter().map(|entry| RegistryModel::from(&**entry)).collect() }))
}

/// Lists which models devices should have, by scene and class.
#[utoipa::path(
    get, path = "/admin/api/v1/rollouts", tag = "rollouts", operation_id = "list_rollouts",
    responses(
        (status = 200, body = RolloutList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<RolloutList>, Problem> {
    Ok(Json(RolloutList { rollouts: admin.operations.rollouts().await? }))
}

/// Returns which models the devices of a class should have for a scene.
#[utoipa::path(
    get, path = "/admin/api/v1/rollouts/{scene}/{class}", tag = "rollouts", operation_id = "show_rollout",
    params(("scene" = String, Path), ("class" = String, Path)),
    responses(
        (status = 200, body = RolloutView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    PathText((scene, class)): PathText<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let view = admin.operations.rollout(&scene, &class).await?;
    Ok(tagged(&headers, view.revision, &view))
}

/// Sets the first pair of a class. Another pair gets in by a rollout.
#[utoipa::path(
    put, path = "/admin/api/v1/rollouts/{scene}/{class}", tag = "rollouts", operation_id = "set_rollout",
    params(("scene" = String, Path), ("class" = String, Path), ("If-None-Match" = Option<String>, Header)),
    request_body = RolloutInput,
    responses(
        (status = 200, body = RolloutView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn set(
    State(admin): State<Admin>,
    session: Session,
    PathText((scene, class)): PathText<(String, String)>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<RolloutInput>,
) -> Result<Response, Problem> {
    // A target is never replaced, so what it is based on can only be that there is none.
    expected(&headers)?;
    let catalog = &admin.service.fleet().catalog;
    let set = admin.operations.set_rollout(&session.actor(), (&scene, &class), &input.pair, catalog).await?;
    Ok(changed(set.revision, &set))
}

/// Starts, widens, pauses, resumes, rolls back or finishes a rollout, or revokes a pair.
#[utoipa::path(
    post, path = "/admin/api/v1/rollouts/{scene}/{class}", tag = "rollouts", operation_id = "change_rollout",
    params(("scene" = String, Path), ("class" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = RolloutChange,
    responses(
        (status = 200, body = RolloutView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn change(
    State(admin): State<Admin>,
    session: Session,
    PathText((scene, class)): PathText<(String, String)>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<RolloutChange>,
) -> Result<Response, Problem> {
    let (by, catalog) = (session.actor(), &admin.service.fleet().catalog);
    let of = (scene.as_str(), class.as_str());
    let new = admin.operations.change_rollout(&by, of, &input, expected(&headers)?, catalog).await?;
    Ok(changed(new.revision, &new))
}

/// Removes a target: devices keep what they have, and their pairs are not checked.
#[utoipa::path(
    delete, path = "/admin/api/v1/rollouts/{scene}/{class}", tag = "rollouts", operation_id = "remove_rollout",
    params(("scene" = String, Path), ("class" = String, Path), ("If-Match" = Option<String>, Header)),
    responses(
        (status = 204, description = "Removed"),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn remove(
    State(admin): State<Admin>,
    session: Session,
    PathText((scene, class)): PathText<(String, String)>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    admin.operations.remove_rollout(&session.actor(), (&scene, &class), expected(&headers)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
