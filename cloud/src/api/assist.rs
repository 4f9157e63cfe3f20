//! `POST /v1/assist`: one request, one event stream. `GET /v1/assist/{id}` resumes that stream, and `DELETE`
//! ends the request.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use baton_openai::{ErrorReply, FieldError};
use baton_protocol::{AssistEvent, AssistRequest, ErrorCode, ProgressEvent, StreamChecksum};

use super::body::Held;
use super::error::ApiError;
use super::kept::{Asked, KeptReader, Owner};
use super::openapi::AssistBody;
use super::sse::{self, Encode, Source};
use super::{App, PathId, access, body, request_uuid, terms};
use crate::access::Caller;
use crate::gate::Permit;
use crate::service::Terms;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Tells why a request does not begin that its client has ended.
const ENDED: &str = "the request was ended by DELETE; a new request needs a new `request_id`";

/// Assists a device.
///
/// The reply is a stream of server-sent events: at most one `mask`, then `first`, then a `token` for each
/// further token up to L, and one `end` or `error`. Before the first token, a `progress` is sent about every
/// two seconds. Their data are `MaskBody`, `FirstBody`, `TokenBody`, `EndBody`, `ErrorReply` and
/// `ProgressBody`, each with a last field `crc`. Comments (`: ping`) keep the connection alive. Closing the
/// connection cancels the answer; with `resume`, once ten seconds have passed without a reader.
///
/// `crc` is the running checksum of the reply: a CRC-32, as eight hex digits. It covers the inflated body of
/// the request, and then each event so far: its name, a line feed, its data without this field, and a line
/// feed. In a resumed stream, the stream's id, a space and `last-event-id` replace the body. A client may
/// ignore it.
#[utoipa::path(
    post,
    path = "/v1/assist",
    tag = "assist",
    request_body = AssistBody,
    params(
        ("x-device-id" = Option<String>, Header, description = "the device's name for itself, 8 to 128 characters: a \
            random text that stays. It decides the arm of an experiment and is not kept."),
    ),
    responses(
        (status = 200, description = "the events", content_type = "text/event-stream", body = String),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn assist(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let permit = access::admit(&app, &caller)?;
    let owner = Owner::of(&headers);
    let terms = Terms { asker: Some(owner.digest()), ..terms::terms(&headers, &caller)? };
    let bytes = body::read(&headers, body, &app, &caller).await?;
    let kept = app.kept.clone();
    let read = app.prepare(move || {
        let asked = Asked::by(&bytes);
        let frames = AssistFrames(StreamChecksum::new(&bytes));
        let (request, held) = bytes.parse(AssistRequest::parse)?;
        // The same request sent again gets the same stream, as long as it is kept.
        let Some(reader) = kept.find(owner, request.request_id, None) else {
            return Ok((Read::New(Box::new(New { request, held, asked })), frames));
        };
        if !reader.answers(asked) {
            let message = "is the id of another request, sent lately; a new request needs a new one";
            return Err(FieldError::new("request_id", message).into());
        }
        Ok((Read::Kept(reader), frames))
    });
    let (read, frames) = read.await?;
    let source = match read {
        Read::Kept(reader) => Source::Kept(reader),
        Read::New(new) => accept(&app, owner, *new, terms, permit).await?,
    };
    sse::response(source, frames, &app.limits).await
}

/// A request as it was read.
enum Read {
    /// Its stream is kept.
    Kept(KeptReader),
    New(Box<New>),
}

/// A request without a stream.
struct New {
    request: AssistRequest,
    held: Held,
    asked: Asked,
}

/// Waits for the request's model, and begins the answer.
async fn accept(
    app: &App,
    owner: Owner,
    new: New,
    mut terms: Terms,
    permit: Permit,
) -> Result<Source, ApiError> {
    let New { request, held, asked } = new;
    let model = app.service.answering(&request, &terms)?;
    let lease = terms::on_time(&mut terms, |deadline| app.service.hold(model, deadline)).await?;
    let (service, kept) = (app.service.clone(), app.kept.clone());
    let accepted = app.prepare(move || {
        let mut answer = service.assist_for(&request, terms, Some(permit.payer()))?;
        answer.watch(permit);
        answer.watch(lease);
        drop(held);
        // Looked for behind the beginning: an end that comes from now on finds the answer and cancels it.
        if kept.is_ended(owner, request.request_id) {
            return Err(ApiError::new(ErrorCode::Gone, ENDED));
        }
        if !request.resume {
            return Ok(Source::Live(answer));
        }
        let kept = kept.keep(owner, request.request_id, asked, answer);
        Ok(kept.map_or_else(|answer| Source::Live(*answer), Source::Kept))
    });
    accepted.await
}

/// Resumes a stream that was requested with `resume`, after the token that `last-event-id` names.
#[utoipa::path(
    get,
    path = "/v1/assist/{id}",
    tag = "assist",
    params(
        ("id" = Uuid, Path, description = "the `request_id`"),
        ("last-event-id" = Option<u32>, Header, description = "index of the last token seen"),
    ),
    responses(
        (status = 200, description = "the events that follow", content_type = "text/event-stream", body = String),
        (status = "4XX", description = "refused, or not kept here", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn resume(
    State(app): State<App>,
    id: PathId,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = request_uuid(id)?;
    let seen = match headers.get(LAST_EVENT_ID) {
        None => None,
        Some(value) => {
            let index = value.to_str().ok().and_then(|text| text.trim().parse().ok());
            Some(index.ok_or_else(|| {
                ApiError::new(ErrorCode::InvalidRequest, "`last-event-id` must be the index of a token")
            })?)
        }
    };
    let Some(reader) = app.kept.find(Owner::of(&headers), id, seen) else {
        return Err(ApiError::new(ErrorCode::Gone, "no stream of this name is kept here"));
    };
    let frames = AssistFrames(StreamChecksum::of_resumed(id, seen));
    sse::response(reader, frames, &app.limits).await
}

/// Ends a request that its client wants no more, at any time: while it waits, computes or writes, and while
/// the client goes on with its answer.
///
/// Its answer is cancelled. Drafts are checked no more, and what is kept of the answer and of its keys and
/// values is given up. A request of this id that comes within ten seconds is not begun (410). Only requests
/// of the same key end. The reply is the same if there is none, so that a client need not know how far its
/// request has come.
#[utoipa::path(
    delete,
    path = "/v1/assist/{id}",
    tag = "assist",
    params(("id" = Uuid, Path, description = "the `request_id`")),
    responses(
        (status = 204, description = "nothing of this request runs or is kept any more"),
        (status = "4XX", description = "refused", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn end(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: PathId,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let id = request_uuid(id)?;
    let owner = Owner::of(&headers);
    // In this order: a request that begins meanwhile is found by one of both.
    app.kept.end(owner, id);
    app.service.end_assist(caller.owner(), (owner.digest(), id));
    Ok(StatusCode::NO_CONTENT)
}

/// Writes events as frames, each with the checksum of the reply so far.
struct AssistFrames(StreamChecksum);

impl Encode for AssistFrames {
    fn event(&mut self, event: &AssistEvent, out: &mut String) {
        sse::frame(event, &mut self.0, out);
    }

    fn progress(&mut self, progress: &ProgressEvent, out: &mut String) {
        sse::frame(&AssistEvent::Progress(*progress), &mut self.0, out);
    }

    fn finish(&mut self, _out: &mut String) {}
}
