//! `/admin/api/v1/experiments`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{JsonBody, PathText};
use super::{changed, expected, tagged};
use crate::admin::Admin;
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::session::Session;
use crate::admin::view::{ExperimentPage, ExperimentView};
use crate::experiment::plan::Plan;

/// Every experiment.
#[derive(Serialize, ToSchema)]
pub(super) struct ExperimentList {
    /// The newest first.
    experiments: Vec<ExperimentView>,
}

/// Why an experiment is stopped.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopInput {
    /// At most 1,024 bytes.
    #[serde(default)]
    note: String,
}

/// The arm that is promoted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PromoteInput {
    /// Its name.
    arm: String,
    /// Why, at most 1,024 bytes.
    #[serde(default)]
    note: String,
}

/// Lists every experiment.
#[utoipa::path(
    get, path = "/admin/api/v1/experiments", tag = "experiments", operation_id = "list_experiments",
    responses(
        (status = 200, body = ExperimentList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<ExperimentList>, Problem> {
    Ok(Json(ExperimentList { experiments: admin.operations.experiments().await? }))
}

/// Returns an experiment with the comparison of its arms. A change must carry its `ETag` as `If-Match`.
#[utoipa::path(
    get, path = "/admin/api/v1/experiments/{id}", tag = "experiments", operation_id = "show_experiment",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = ExperimentPage),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
) -> Result<Response, Problem> {
    let shown = admin.operations.experiment(&id).await?;
    // The figures change without a new revision, so that a 304 would be wrong.
    Ok(tagged(&HeaderMap::new(), shown.experiment.revision, &shown))
}

/// Writes the plan of a new experiment (`If-None-Match: *`) or of a draft.
#[utoipa::path(
    put, path = "/admin/api/v1/experiments/{id}", tag = "experiments", operation_id = "save_experiment",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    request_body = Plan,
    responses(
        (status = 200, body = ExperimentView),
        (status = 412, description = "Somebody else was faster", body = ProblemBody, content_type = "application/problem+json"),
        (status = 428, description = "No `If-Match`", body = ProblemBody, content_type = "application/problem+json"),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn save(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(plan): JsonBody<Plan>,
) -> Result<Response, Problem> {
    let expected = expected(&headers)?;
    let saved = admin.operations.save_experiment(&session.actor(), &id, &plan, expected).await?;
    Ok(changed(saved.revision, &saved))
}

/// Starts a draft: requests of its scene take part within five seconds.
#[utoipa::path(
    post, path = "/admin/api/v1/experiments/{id}/start", tag = "experiments", operation_id = "start_experiment",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses(
        (status = 200, body = ExperimentView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn start(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let started = admin.operations.start_experiment(&session.actor(), &id, expected(&headers)?).await?;
    Ok(changed(started.revision, &started))
}

/// Stops a running experiment: its scene is as before.
#[utoipa::path(
    post, path = "/admin/api/v1/experiments/{id}/stop", tag = "experiments", operation_id = "stop_experiment",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body = StopInput,
    responses(
        (status = 200, body = ExperimentView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn stop(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<StopInput>,
) -> Result<Response, Problem> {
    let expected = expected(&headers)?;
    let stopped = admin.operations.stop_experiment(&session.actor(), &id, &input.note, expected).await?;
    Ok(changed(stopped.revision, &stopped))
}

/// Publishes the settings of an arm as a new version of the scene, and ends the experiment.
#[utoipa::path(
    post, path = "/admin/api/v1/experiments/{id}/promote", tag = "experiments", operation_id = "promote_experiment",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body = PromoteInput,
    responses(
        (status = 200, body = ExperimentView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn promote(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<PromoteInput>,
) -> Result<Response, Problem> {
    let (by, expected) = (session.actor(), expected(&headers)?);
    let done = admin.operations.promote_experiment(&by, &id, &input.arm, &input.note, expected).await?;
    Ok(changed(done.revision, &done))
}
