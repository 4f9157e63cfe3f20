//! `POST /v1/assist/{id}/verify`: checks a draft of the device against what the cloud would have written.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use baton_openai::{ErrorReply, FieldError};
use baton_protocol::{VerifyError, VerifyReply, VerifyRequest};

use super::error::ApiError;
use super::openapi::{VerifyBody, VerifyReplyBody};
use super::{App, PathId, access, body, request_uuid, terms};
use crate::access::Caller;

/// Checks a draft.
///
/// The answer must have been requested with `verify`, and its `first` event must have `verify`. The reply
/// says how many drafted tokens the cloud would have written, and which tokens follow them: at least one,
/// unless the answer ends. The same draft sent again gets the same tokens.
///
/// An answer is forgotten (410) some time after its last request, and by a restart of the service. Then the
/// device goes on alone.
#[utoipa::path(
    post,
    path = "/v1/assist/{id}/verify",
    tag = "assist",
    request_body = VerifyBody,
    params(("id" = Uuid, Path, description = "the `request_id` of the assist request")),
    responses(
        (status = 200, description = "what the cloud would have written", body = VerifyReplyBody),
        (status = 410, description = "the answer is not kept here", body = ErrorReply),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn verify(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: PathId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<VerifyReply>, ApiError> {
    let id = request_uuid(id)?;
    let permit = access::admit(&app, &caller)?;
    let mut terms = terms::terms(&headers, &caller)?;
    let bytes = body::read(&headers, body, &app, &caller).await?;
    let (request, _held) = bytes.parse(VerifyRequest::parse)?;
    let model = app.service.verified_by(terms.owner, id)?;
    let _lease = terms::on_time(&mut terms, |deadline| app.service.hold(&model, deadline)).await?;
    let check = app.service.verify(id, request, terms, Some(permit.payer()))?;
    Ok(Json(check.reply().await?))
}

impl From<VerifyError> for ApiError {
    fn from(err: VerifyError) -> ApiError {
        let field = err.field().map(str::to_owned);
        match field {
            Some(field) => FieldError::new(field, err.to_string()).into(),
            None => FieldError::whole(err.to_string()).into(),
        }
    }
}
