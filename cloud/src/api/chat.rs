//! `POST /v1/chat/completions`, `/v1/completions` and `/v1/responses`: OpenAI's APIs. `POST /v1/embeddings`
//! is refused.
//!
//! Serves callers that want the whole answer from the cloud. With the field `baton`, it serves callers that
//! use scenes and continue by themselves after the cloud's L tokens. Requests and replies are those of
//! `baton_openai`.

mod reply;
mod work;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use baton_generate::thinking::begins_in_thinking;
use baton_openai::ignored::Ignored;
use baton_openai::reply::{ChatCompletion, Message};
use baton_openai::responses::{read_responses, reply::ResponseBody, wire::ResponsesRequest};
use baton_openai::stream::{read_chat, read_text};
use baton_openai::text_reply::TextCompletion;
use baton_openai::wire::{ChatCompletionRequest, TextCompletionRequest};
use baton_openai::writer::{AnswerFacts, AnswerWriter, Asked, NewWriter, Read, Work};
use baton_openai::{Capabilities, ErrorReply, FieldError, Prompt, embeddings};
use baton_protocol::{AssistEvent, EndReason, ErrorCode, ProgressEvent};
use serde_json::json;

use self::reply::Reply;
use self::work::ChatWork;
use super::body::Held;
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
    answer(app, &caller, &headers, body, read_chat).await.map_err(|err| err.told_in(Dialect::OpenAi))
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
    answer(app, &caller, &headers, body, read_text).await.map_err(|err| err.told_in(Dialect::OpenAi))
}

/// Makes a response.
///
/// Nothing is kept between two requests: each has its whole conversation in `input`. With `stream`, the reply
/// is a stream of named events, from `response.created` to `response.completed`, `response.incomplete` or
/// `response.failed`.
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "chat",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "the response, whole or as a stream", content(
            (ResponseBody = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn respond(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(app, &caller, &headers, body, read_responses).await.map_err(|err| err.told_in(Dialect::OpenAi))
}

/// Refuses embeddings: there is no model for them.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    tag = "chat",
    responses((status = "4XX", description = "always: there is no embedding model", body = ErrorReply)),
    security(("key" = [])),
)]
pub(super) async fn embed() -> ApiError {
    ApiError::from(embeddings::refusal()).told_in(Dialect::OpenAi)
}

/// A request that was accepted: its answer, and how the answer is sent.
struct Accepted {
    answer: AssistStream,
    writer: Box<dyn AnswerWriter>,
    reply: Reply,
    /// Whether it is streamed.
    stream: bool,
}

/// A request as it was read.
struct Parsed {
    work: ChatWork,
    held: Held,
    writer: NewWriter,
    ignored: Ignored,
    /// Whether it is streamed.
    stream: bool,
    is_chat: bool,
}

async fn answer(
    app: App,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    read: Read,
) -> Result<Response, ApiError> {
    let permit = access::admit(&app, caller)?;
    let mut terms = terms::terms(headers, caller)?;
    let bytes = body::read(headers, body, &app, caller).await?;
    let read = app.prepare(move || {
        let (asked, held) = bytes.parse(|json| read(json, &Capabilities::CLOUD).and_then(asked))?;
        let Asked { mut request, writer, .. } = asked;
        let ignored = std::mem::take(&mut request.ignored);
        let stream = request.stream;
        let is_chat = matches!(request.prompt, Prompt::Chat(_)) && request.begun.is_none();
        let work = ChatWork::of(request)?;
        Ok(Parsed { work, held, writer, ignored, stream, is_chat })
    });
    let Parsed { work, held, writer, ignored, stream, is_chat } = read.await?;
    let header = ignored.header();
    let model = match &work {
        ChatWork::Whole(completion) => &completion.model,
        ChatWork::Assisted(assist, _) => app.service.answering(assist, &terms)?,
    };
    let lease = terms::on_time(&mut terms, |deadline| app.service.hold(model, deadline)).await?;
    let service = app.service.clone();
    let accepted = app.prepare(move || {
        let payer = Some(permit.payer());
        let mut answer = match &work {
            ChatWork::Whole(completion) => service.complete_for(completion, terms, payer)?,
            ChatWork::Assisted(assist, max_tokens) => {
                let terms = Terms { max_tokens: *max_tokens, ..terms };
                service.assist_for(assist, terms, payer)?
            }
        };
        answer.watch(permit);
        answer.watch(lease);
        let model = service.model_in_memory(answer.model())?;
        let is_thinking = is_chat && begins_in_thinking(model.template());
        let writer = writer.with(AnswerFacts { is_thinking, ..AnswerFacts::of(answer.model()) });
        let reply = Reply::new(&model, &work, ignored);
        // Dropped now, because the texts are not needed any more and an answer may take minutes.
        drop((work, held));
        Ok(Accepted { answer, writer, reply, stream })
    });
    let Accepted { answer, writer, reply, stream } = accepted.await?;
    let mut response = match stream {
        true => sse::response(answer, Frames { writer, reply }, &app.limits).await?,
        false => whole(writer, reply, answer).await?,
    };
    if let Some(names) = header.and_then(|names| HeaderValue::try_from(names).ok()) {
        response.headers_mut().insert(baton_openai::ignored::HEADER, names);
    }
    Ok(response)
}

/// Returns the request for an answer: the dialects that are served here ask for nothing else.
fn asked(work: Work) -> Result<Asked, FieldError> {
    match work {
        Work::Answer(asked) => Ok(*asked),
        Work::Nothing { .. } => Err(FieldError::whole("the request asks for no answer")),
    }
}

/// Returns the reply in one piece.
async fn whole(
    writer: Box<dyn AnswerWriter>,
    mut reply: Reply,
    mut answer: AssistStream,
) -> Result<Response, ApiError> {
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
                return Err(ApiError::new(ErrorCode::Unavailable, "the answer was cancelled"));
            }
            AssistEvent::End(end) => {
                let ending = reply.ending(&end, reply.baton(Some(&end)));
                let json = writer.whole(message, ending);
                return Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response());
            }
        }
    }
}

/// Writes the reply as a stream.
struct Frames {
    writer: Box<dyn AnswerWriter>,
    reply: Reply,
}

impl Frames {
    fn begin(&mut self, out: &mut String) {
        if !self.writer.is_begun() {
            self.writer.begin(self.reply.baton(None), out);
        }
    }
}

impl Encode for Frames {
    fn event(&mut self, event: &AssistEvent, out: &mut String) {
        for piece in self.reply.pieces(event) {
            self.begin(out);
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
                self.begin(out);
                self.writer.end(self.reply.ending(end, self.reply.handoff(end)), out);
            }
        }
    }

    fn progress(&mut self, progress: &ProgressEvent, out: &mut String) {
        self.writer.progress(&json!(progress), out);
    }

    fn finish(&mut self, out: &mut String) {
        self.writer.done(out);
    }
}
