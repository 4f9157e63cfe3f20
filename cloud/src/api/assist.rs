//! `POST /v1/assist`: one request, one event stream.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use baton_protocol::{AssistEvent, AssistRequest, ErrorCode};

use super::error::ApiError;
use super::sse::{self, Encode};
use super::{App, body};

pub(super) async fn assist(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let bytes = body::read(&headers, body, &app.limits).await?;
    let service = app.service.clone();
    // Parsing and tokenizing a long prompt takes milliseconds: not on a thread of the runtime.
    let accepted = tokio::task::spawn_blocking(move || {
        let request = AssistRequest::parse(&bytes)?;
        Ok::<_, ApiError>(service.assist(&request)?)
    });
    let answer =
        accepted.await.map_err(|_| ApiError::new(ErrorCode::Internal, "the request could not be read"))??;
    Ok(sse::response(answer, AssistFrames, app.limits.keep_alive))
}

struct AssistFrames;

impl Encode for AssistFrames {
    fn event(&mut self, event: &AssistEvent, out: &mut String) {
        sse::frame(event, out);
    }

    fn finish(&mut self, _out: &mut String) {}
}
