//! `POST /v1/chat/completions`: the OpenAI chat API.
//!
//! For callers that want the whole answer from the cloud; with the field `baton`, for those that know scenes and go on
//! by themselves where the cloud stops at L.

mod reply;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use baton_protocol::{AssistEvent, EndReason, ErrorCode, ProgressEvent};
use serde_json::{Value, json};

use self::reply::{Head, Reply, finish_reason, usage};
use super::chat_request::{self, ChatRequest, ChatWork};
use super::error::{ApiError, Dialect, openai_body};
use super::openapi::{ChatCompletion, ErrorReply};
use super::sse::{self, Encode};
use super::{App, access, body, terms};
use crate::access::Caller;
use crate::service::Terms;
use crate::stream::AssistStream;

/// Answers a chat.
///
/// With `stream`, the reply is a stream of server-sent events: `data:` lines with chunks, then `data: [DONE]`. An error
/// after the first chunk is one `data: {"error": …}` before `[DONE]`. Until the first token a comment (`: progress {…}`) says
/// about every two seconds how far the prompt is, and with `stream_options.include_progress` a chunk without choices does,
/// in its field `x_progress`.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "chat",
    request_body = chat_request::ChatCompletionRequest,
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
    answer(app, &caller, &headers, body).await.map_err(|err| err.told_in(Dialect::OpenAi))
}

async fn answer(app: App, caller: &Caller, headers: &HeaderMap, body: Body) -> Result<Response, ApiError> {
    let permit = access::admit(&app, caller)?;
    let terms = terms::terms(headers, caller)?;
    let bytes = body::read(headers, body, &app, caller).await?;
    let service = app.service.clone();
    let accepted = app.prepare(move || {
        let (request, held) = bytes.parse(chat_request::parse)?;
        let payer = Some(permit.payer());
        let mut answer = match &request.work {
            ChatWork::Whole(completion) => service.complete_for(completion, terms, payer)?,
            ChatWork::Assisted(assist, max_tokens) => {
                let terms = Terms { max_tokens: *max_tokens, ..terms };
                service.assist_for(assist, terms, payer)?
            }
        };
        answer.watch(permit);
        let reply = Reply::new(service.model_named(answer.model())?.model, &request.work);
        // The texts are not needed any more, and an answer may take minutes.
        let ChatRequest { stream, include_usage, include_progress, work } = request;
        drop((work, held));
        Ok((reply, answer, stream, include_usage, include_progress))
    });
    let (reply, answer, stream, include_usage, include_progress) = accepted.await?;
    let head = Head::new(answer.model());
    if !stream {
        return whole(head, reply, answer).await;
    }
    let chunks = Chunks { head, reply, include_usage, include_progress, begun: false };
    sse::response(answer, chunks, &app.limits).await
}

/// The reply in one piece.
async fn whole(head: Head, mut reply: Reply, mut answer: AssistStream) -> Result<Response, ApiError> {
    let mut message = reply::Message::default();
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
            AssistEvent::End(end) => return Ok(message.whole(&head, &reply, &end)),
        }
    }
}

/// The reply as a stream of chunks.
struct Chunks {
    head: Head,
    reply: Reply,
    include_usage: bool,
    include_progress: bool,
    begun: bool,
}

impl Chunks {
    fn chunk(&self, delta: Value, logprobs: Value, finish_reason: Option<&str>) -> Value {
        let choice =
            json!({ "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason });
        let mut chunk = self.head.object("chat.completion.chunk", json!([choice]));
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The chunk that clients take the role from, and what they asked to know of the answer.
    fn begin(&mut self, out: &mut String) {
        if self.begun {
            return;
        }
        self.begun = true;
        let mut chunk = self.chunk(json!({ "role": "assistant", "content": "" }), Value::Null, None);
        if let Some(baton) = self.reply.baton(None) {
            chunk["baton"] = baton;
        }
        put(&chunk, out);
    }

    fn pieces(&mut self, event: &AssistEvent, out: &mut String) {
        for piece in self.reply.pieces(event) {
            self.begin(out);
            let (delta, logprobs) = piece.into_delta();
            put(&self.chunk(delta, logprobs, None), out);
        }
    }
}

impl Encode for Chunks {
    fn event(&mut self, event: &AssistEvent, out: &mut String) {
        self.pieces(event, out);
        match event {
            AssistEvent::Progress(_)
            | AssistEvent::Mask(_)
            | AssistEvent::First(_)
            | AssistEvent::Token(_) => (),
            AssistEvent::Error(body) => put(&openai_body(body), out),
            AssistEvent::End(end) if end.reason == EndReason::Cancelled => {
                put(&openai_body(&sse::cut_off_body()), out)
            }
            AssistEvent::End(end) => {
                self.begin(out);
                let reason = finish_reason(end.reason, self.reply.calls());
                let mut last = self.chunk(json!({}), Value::Null, Some(reason));
                if let Some(handoff) = self.reply.handoff(end) {
                    last["baton"] = json!({ "handoff": handoff });
                }
                put(&last, out);
                if self.include_usage {
                    let mut last = self.head.object("chat.completion.chunk", json!([]));
                    last["usage"] = usage(end.usage);
                    put(&last, out);
                }
            }
        }
    }

    /// A comment, which every client skips, and a chunk for one that asked for it.
    fn progress(&mut self, progress: &ProgressEvent, out: &mut String) {
        let progress = json!(progress);
        out.push_str(": progress ");
        out.push_str(&progress.to_string());
        out.push_str("\n\n");
        if self.include_progress {
            let mut chunk = self.head.object("chat.completion.chunk", json!([]));
            chunk["x_progress"] = progress;
            put(&chunk, out);
        }
    }

    fn finish(&mut self, out: &mut String) {
        out.push_str("data: [DONE]\n\n");
    }
}

fn put(value: &Value, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}
