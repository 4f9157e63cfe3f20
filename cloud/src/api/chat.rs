//! `POST /v1/chat/completions` and `POST /v1/completions`: the OpenAI chat and text completion API.
//!
//! Serves callers that want the whole answer from the cloud. With the field `baton`, it serves callers that
//! use scenes and continue by themselves after the cloud's L tokens. Requests and replies are those of
//! `baton_openai`.

mod reply;
mod work;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use baton_openai::reply::{ChatCompletion, Head, Message};
use baton_openai::stream::{ChunkWriter, StreamWishes};
use baton_openai::text_reply::TextCompletion;
use baton_openai::wire::{ChatCompletionRequest, TextCompletionRequest};
use baton_openai::{Capabilities, ChatRequest, ErrorReply, FieldError, parse, parse_text};
use baton_protocol::{AssistEvent, EndReason, ErrorCode, ProgressEvent};

use self::reply::Reply;
use self::work::ChatWork;
use super::error::{ApiError, Dialect};
use super::sse::{self, Encode};
use super::{App, access, body, terms};
use crate::access::Caller;
use crate::service::Terms;
use crate::service::stream::AssistStream;

/// Answers a chat.
///
/// With `stream`, the reply is a stream of server-sent events: `data:` lines with chunks, then `data:
/// [DONE]`. An error after the first chunk is one `data: {"error": …}` before `[DONE]`. Until the first
/// token, a comment (`: progress {…}`) reports the progress of the prompt about every two seconds. With
/// `stream_options.include_progress`, a chunk without choices reports it too, in its field `x_progress`.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "chat",
    request_body = ChatCompletionRequest,
    responses(
        (status = 200, description = "the answer, whole or as a stream", content(
            (ChatCompletion = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn complete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(app, &caller, &headers, body, parse).await.map_err(|err| err.told_in(Dialect::OpenAi))
}

/// Continues a text.
///
/// The prompt is used as it is: no chat template is applied, and control tokens that are written as text are
/// read as such. This is the API for base models. The stream is as that of the chat API; its chunks have the
/// shape of the whole reply.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "chat",
    request_body = TextCompletionRequest,
    responses(
        (status = 200, description = "the continuation, whole or as a stream", content(
            (TextCompletion = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn continue_text(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(app, &caller, &headers, body, parse_text).await.map_err(|err| err.told_in(Dialect::OpenAi))
}

/// Reads a request of one of the two APIs.
type Parse = fn(&[u8], &Capabilities) -> Result<ChatRequest, FieldError>;

/// A request that was accepted: its answer, and how the answer is sent.
struct Accepted {
    answer: AssistStream,
    head: Head,
    reply: Reply,
    /// Options of the stream, or `None` for a reply in one piece.
    stream: Option<StreamWishes>,
}

async fn answer(
    app: App,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    parse: Parse,
) -> Result<Response, ApiError> {
    let permit = access::admit(&app, caller)?;
    let terms = terms::terms(headers, caller)?;
    let bytes = body::read(headers, body, &app, caller).await?;
    let service = app.service.clone();
    let accepted = app.prepare(move || {
        let (request, held) = bytes.parse(|json| parse(json, &Capabilities::CLOUD))?;
        let wishes = StreamWishes { usage: request.include_usage, progress: request.include_progress };
        let stream = request.stream.then_some(wishes);
        let work = ChatWork::of(request)?;
        let payer = Some(permit.payer());
        let mut answer = match &work {
            ChatWork::Whole(completion) => service.complete_for(completion, terms, payer)?,
            ChatWork::Assisted(assist, max_tokens) => {
                let terms = Terms { max_tokens: *max_tokens, ..terms };
                service.assist_for(assist, terms, payer)?
            }
        };
        answer.watch(permit);
        let head = match &work {
            ChatWork::Whole(completion) => Head::to(&completion.prompt, answer.model()),
            ChatWork::Assisted(..) => Head::new(answer.model()),
        };
        let reply = Reply::new(service.model_named(answer.model())?.model, &work);
        // Dropped now, because the texts are not needed any more and an answer may take minutes.
        drop((work, held));
        Ok(Accepted { answer, head, reply, stream })
    });
    let Accepted { answer, head, reply, stream } = accepted.await?;
    let Some(wishes) = stream else { return whole(head, reply, answer).await };
    let chunks = Chunks { writer: ChunkWriter::new(head, wishes), reply };
    sse::response(answer, chunks, &app.limits).await
}

/// Returns the reply in one piece.
async fn whole(head: Head, mut reply: Reply, mut answer: AssistStream) -> Result<Response, ApiError> {
    let mut message = Message::default();
    loop {
        let event = answer.next().await.unwrap_or_else(sse::cut_off);
        message.take(reply.pieces(&event));
        match event {
            AssistEvent::Progress(_)
            | AssistEvent::Mask(_)
            | AssistEvent::First(_)
            | AssistEvent::Token(_) => (),
            AssistEvent::Error(body) => return Err(body.into()),
            AssistEvent::End(end) if end.reason == EndReason::Cancelled => {
                return Err(ApiError::new(ErrorCode::Unavailable, "the service is stopping"));
            }
            AssistEvent::End(end) => {
                let ending = reply.ending(&end, reply.baton(Some(&end)));
                return Ok(Json(message.into_completion(head, ending)).into_response());
            }
        }
    }
}

/// Writes the reply as a stream of chunks.
struct Chunks {
    writer: ChunkWriter,
    reply: Reply,
}

impl Encode for Chunks {
    fn event(&mut self, event: &AssistEvent, out: &mut String) {
        for piece in self.reply.pieces(event) {
            self.writer.begin(|| self.reply.baton(None), out);
            self.writer.piece(piece, out);
        }
        match event {
            AssistEvent::Progress(_)
            | AssistEvent::Mask(_)
            | AssistEvent::First(_)
            | AssistEvent::Token(_) => (),
            AssistEvent::Error(body) => self.writer.error(&ErrorReply::from(body), out),
            AssistEvent::End(end) if end.reason == EndReason::Cancelled => {
                self.writer.error(&ErrorReply::from(&sse::cut_off_body()), out)
            }
            AssistEvent::End(end) => {
                self.writer.begin(|| self.reply.baton(None), out);
                self.writer.end(self.reply.ending(end, self.reply.handoff(end)), out);
            }
        }
    }

    fn progress(&mut self, progress: &ProgressEvent, out: &mut String) {
        self.writer.progress(progress, out);
    }

    fn finish(&mut self, out: &mut String) {
        self.writer.done(out);
    }
}
