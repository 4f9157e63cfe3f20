//! `/admin/api/v1/playground`: one question about a document, and what the cloud and a device make of it.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;

use super::body::JsonBody;
use crate::admin::problem::{Problem, ProblemBody};
use crate::admin::view::playground::{PlaygroundInput, PlaygroundView};
use crate::admin::{Admin, playground};
use crate::http::request_id::request_id;

/// Asks a question about a document, on the way of devices' requests. Returns the mask, the first L tokens
/// and their times within 60 seconds.
///
/// No tenant pays, no experiment counts it, and no log or database has a word of it. Closing the connection
/// cancels it.
#[utoipa::path(
    post, path = "/admin/api/v1/playground", tag = "playground", operation_id = "ask_playground",
    request_body = PlaygroundInput,
    responses(
        (status = 200, body = PlaygroundView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn ask(
    State(admin): State<Admin>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<PlaygroundInput>,
) -> Result<Json<PlaygroundView>, Problem> {
    Ok(Json(playground::ask(&admin, request_id(&headers), &input).await?))
}
