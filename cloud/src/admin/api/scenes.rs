//! `/admin/api/v1/scenes`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{JsonBody, PathText, QueryText};
use super::{changed, expected, tagged};
use crate::admin::Admin;
use crate::admin::predict::{PredictFor, Prediction};
use crate::admin::problem::{Kind, Problem, ProblemBody};
use crate::admin::session::Session;
use crate::admin::view::{DiffView, SceneView, Settings, VersionView};

/// Every scene.
#[derive(Serialize, ToSchema)]
pub(super) struct SceneList {
    /// By id.
    scenes: Vec<SceneView>,
}

/// Every version of a scene.
#[derive(Serialize, ToSchema)]
pub(super) struct VersionList {
    /// The newest first.
    versions: Vec<VersionView>,
}

/// A draft.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DraftInput {
    /// What the scene shall say and allow.
    settings: Settings,
    /// Why, at most 1,024 bytes.
    #[serde(default)]
    note: String,
}

/// Why a draft is published.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishInput {
    /// At most 1,024 bytes.
    #[serde(default)]
    note: String,
}

/// Back to which version.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RollBackInput {
    /// The version that comes back, as a copy with a new number.
    #[schema(minimum = 1)]
    version: u32,
    /// Why, at most 1,024 bytes.
    #[serde(default)]
    note: String,
}

/// What is predicted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictInput {
    /// Settings to try; null: the draft's, else those in force.
    #[serde(default)]
    settings: Option<Settings>,
    /// For which device, network and prompt; null: the first class over wifi with 4,096 tokens.
    #[serde(default, rename = "for")]
    #[schema(rename = "for")]
    asked: Option<PredictFor>,
}

/// Two versions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Versions {
    /// The earlier one; 0: the defaults. Left out: the one in force.
    from: Option<u32>,
    /// The later one. Left out: the draft, else the newest.
    to: Option<u32>,
}

/// Every scene.
#[utoipa::path(
    get, path = "/admin/api/v1/scenes", tag = "scenes", operation_id = "list_scenes",
    responses(
        (status = 200, body = SceneList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<SceneList>, Problem> {
    let scenes = admin.office.scenes().await?.into_iter().map(|scene| admin.warned(scene)).collect();
    Ok(Json(SceneList { scenes }))
}

/// One scene; its `ETag` is what a change must carry as `If-Match`.
#[utoipa::path(
    get, path = "/admin/api/v1/scenes/{id}", tag = "scenes", operation_id = "show_scene", params(("id" = String, Path)),
    responses(
        (status = 200, body = SceneView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let scene = admin.warned(admin.office.scene(&id).await?);
    Ok(tagged(&headers, scene.revision, &scene))
}

/// Every version of a scene, the newest first.
#[utoipa::path(
    get, path = "/admin/api/v1/scenes/{id}/versions", tag = "scenes", operation_id = "list_versions", params(("id" = String, Path)),
    responses(
        (status = 200, body = VersionList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn versions(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
) -> Result<Json<VersionList>, Problem> {
    let (_, versions) = admin.office.history(&id).await?;
    Ok(Json(VersionList { versions }))
}

/// One version of a scene.
#[utoipa::path(
    get, path = "/admin/api/v1/scenes/{id}/versions/{version}", tag = "scenes", operation_id = "show_version",
    params(("id" = String, Path), ("version" = u32, Path)),
    responses(
        (status = 200, body = VersionView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn version(
    State(admin): State<Admin>,
    PathText((id, version)): PathText<(String, u32)>,
) -> Result<Json<VersionView>, Problem> {
    Ok(Json(admin.office.version(&id, version).await?))
}

/// What differs between two versions.
#[utoipa::path(
    get, path = "/admin/api/v1/scenes/{id}/diff", tag = "scenes", operation_id = "diff_versions", params(("id" = String, Path), Versions),
    responses(
        (status = 200, body = DiffView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn diff(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
    QueryText(asked): QueryText<Versions>,
) -> Result<Json<DiffView>, Problem> {
    let scene = admin.office.scene(&id).await?;
    let from = asked.from.or(scene.published_version).unwrap_or(0);
    let to = asked.to.or(scene.draft_version).unwrap_or(scene.newest_version);
    Ok(Json(admin.office.diff(&id, from, to).await?))
}

/// What the optimizer would answer: plan, reason, curves, and the table over all classes.
#[utoipa::path(
    post, path = "/admin/api/v1/scenes/{id}/predict", tag = "scenes", operation_id = "predict", params(("id" = String, Path)),
    request_body = PredictInput,
    responses(
        (status = 200, body = Prediction),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn predict(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
    JsonBody(input): JsonBody<PredictInput>,
) -> Result<Json<Prediction>, Problem> {
    let scene = admin.office.scene(&id).await?;
    let settings = input.settings.as_ref().or(scene.latest());
    let settings =
        settings.ok_or_else(|| Problem::new(Kind::Conflict, format!("scene `{id}` has no settings")))?;
    Ok(Json(admin.predict(&id, &settings.check()?, &input.asked.unwrap_or_default()).await?))
}

/// Saves a draft in place of the one that waits; `If-None-Match: *` makes a new scene.
#[utoipa::path(
    put, path = "/admin/api/v1/scenes/{id}/draft", tag = "scenes", operation_id = "save_draft",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    request_body = DraftInput,
    responses(
        (status = 200, body = SceneView),
        (status = 412, description = "Somebody else was faster", body = ProblemBody, content_type = "application/problem+json"),
        (status = 428, description = "No `If-Match`", body = ProblemBody, content_type = "application/problem+json"),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn save_draft(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<DraftInput>,
) -> Result<Response, Problem> {
    let expected = expected(&headers)?;
    let settings = input.settings.check()?;
    let scene = admin.office.save_draft(&session.actor(), &id, &settings, &input.note, expected).await?;
    Ok(changed(scene.revision, &admin.warned(scene)))
}

/// Gives the draft up.
#[utoipa::path(
    delete, path = "/admin/api/v1/scenes/{id}/draft", tag = "scenes", operation_id = "discard_draft",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses(
        (status = 200, body = SceneView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn discard_draft(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let scene = admin.office.discard_draft(&session.actor(), &id, expected(&headers)?).await?;
    Ok(changed(scene.revision, &admin.warned(scene)))
}

/// Brings the draft into force.
#[utoipa::path(
    post, path = "/admin/api/v1/scenes/{id}/publish", tag = "scenes", operation_id = "publish",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body = PublishInput,
    responses(
        (status = 200, body = SceneView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn publish(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<PublishInput>,
) -> Result<Response, Problem> {
    let scene = admin.office.publish(&session.actor(), &id, &input.note, expected(&headers)?).await?;
    Ok(changed(scene.revision, &admin.warned(scene)))
}

/// Brings an older version back into force, as a copy with a new number.
#[utoipa::path(
    post, path = "/admin/api/v1/scenes/{id}/rollback", tag = "scenes", operation_id = "roll_back",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body = RollBackInput,
    responses(
        (status = 200, body = SceneView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn roll_back(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<RollBackInput>,
) -> Result<Response, Problem> {
    let expected = expected(&headers)?;
    let scene = admin.office.roll_back(&session.actor(), &id, input.version, &input.note, expected).await?;
    Ok(changed(scene.revision, &admin.warned(scene)))
}
