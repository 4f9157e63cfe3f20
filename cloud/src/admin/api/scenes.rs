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
use crate::admin::view::{DiffView, SceneView, VersionView};
use crate::scene::schema::Settings;
use crate::scene::{self, SceneSettings};

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
    /// The scene's settings.
    #[schema(value_type = Settings)]
    settings: SceneSettings,
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

/// The version to roll back to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RollBackInput {
    /// The version to bring back into force, as a copy with a new number.
    #[schema(minimum = 1)]
    version: u32,
    /// Why, at most 1,024 bytes.
    #[serde(default)]
    note: String,
}

/// Settings and conditions of a prediction.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictInput {
    /// Settings to try. If null: those of the draft, or else those in force.
    #[serde(default)]
    #[schema(value_type = Option<Settings>)]
    settings: Option<SceneSettings>,
    /// Device, network and prompt. If null: the first device class over wifi with 4,096 tokens.
    #[serde(default, rename = "for")]
    #[schema(rename = "for")]
    asked: Option<PredictFor>,
}

/// Two versions to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Versions {
    /// The earlier version; 0 for the defaults. The default is the version in force.
    from: Option<u32>,
    /// The later version. The default is the draft, or else the newest version.
    to: Option<u32>,
}

/// Lists every scene.
#[utoipa::path(
    get, path = "/admin/api/v1/scenes", tag = "scenes", operation_id = "list_scenes",
    responses(
        (status = 200, body = SceneList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<SceneList>, Problem> {
    let scenes = admin.operations.scenes().await?.into_iter().map(|scene| admin.warned(scene)).collect();
    Ok(Json(SceneList { scenes }))
}

/// Returns one scene. A change must carry its `ETag` as `If-Match`.
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
    let scene = admin.warned(admin.operations.scene(&id).await?);
    Ok(tagged(&headers, scene.revision, &scene))
}

/// Lists every version of a scene, the newest first.
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
    let (_, versions) = admin.operations.history(&id).await?;
    Ok(Json(VersionList { versions }))
}

/// Returns one version of a scene.
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
    Ok(Json(admin.operations.version(&id, version).await?))
}

/// Returns the settings that differ between two versions.
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
    let scene = admin.operations.scene(&id).await?;
    let from = asked.from.or(scene.published_version).unwrap_or(0);
    let to = asked.to.or(scene.draft_version).unwrap_or(scene.newest_version);
    Ok(Json(admin.operations.diff(&id, from, to).await?))
}

/// Predicts what the optimizer would choose: plan, reason, curves, and the table over all classes.
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
    let scene = admin.operations.scene(&id).await?;
    let settings = input.settings.as_ref().or(scene.latest());
    let settings =
        settings.ok_or_else(|| Problem::new(Kind::Conflict, format!("scene `{id}` has no settings")))?;
    scene::check(settings).map_err(|err| Problem::of_scene(&err))?;
    Ok(Json(admin.predict(&id, settings, &input.asked.unwrap_or_default()).await?))
}

/// Saves a draft in place of the present one. With `If-None-Match: *` it makes a new scene.
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
    let DraftInput { settings, note } = input;
    let scene = admin.operations.save_draft(&session.actor(), &id, &settings, &note, expected).await?;
    Ok(changed(scene.revision, &admin.warned(scene)))
}

/// Discards the draft.
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
    let scene = admin.operations.discard_draft(&session.actor(), &id, expected(&headers)?).await?;
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
    let scene = admin.operations.publish(&session.actor(), &id, &input.note, expected(&headers)?).await?;
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
    let scene =
        admin.operations.roll_back(&session.actor(), &id, input.version, &input.note, expected).await?;
    Ok(changed(scene.revision, &admin.warned(scene)))
}
