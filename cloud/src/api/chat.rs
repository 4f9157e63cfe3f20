//! `POST /v1/chat/completions`: the OpenAI chat API for callers that want the whole answer from the cloud.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use baton_protocol::{AssistEvent, EndReason, ErrorCode, Usage};
use serde_json::{Value, json};
use uuid::Uuid;

use super::error::ApiError;
use super::sse::{self, Encode};
use super::{App, body, chat_request, terms};
use crate::stream::AssistStream;

pub(super) async fn complete(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let terms = terms::terms(&headers)?;
    let bytes = body::read(&headers, body, &app).await?;
    let service = app.service.clone();
    let accepted = tokio::task::spawn_blocking(move || {
        let request = chat_request::parse(&bytes)?;
        let answer = service.complete_on(&request.completion, terms)?;
        Ok::<_, ApiError>((request, answer))
    });
    let (request, answer) =
        accepted.await.map_err(|_| ApiError::new(ErrorCode::Internal, "the request could not be read"))??;
    let head = Head::new(app.service.model_name());
    if !request.stream {
        return whole(head, answer).await;
    }
    let chunks = Chunks { head, include_usage: request.include_usage, begun: false };
    sse::response(answer, chunks, app.limits.keep_alive).await
}

/// What is the same in every part of one reply.
#[derive(Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(model: &str) -> Head {
        Head {
            id: format!("chatcmpl-{}", Uuid::new_v4().simple()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: model.to_owned(),
        }
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({ "id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices })
    }
}

/// The reply in one piece.
async fn whole(head: Head, mut answer: AssistStream) -> Result<Response, ApiError> {
    let mut content = String::new();
    loop {
        match answer.next().await.unwrap_or_else(sse::cut_off) {
            AssistEvent::Mask(_) => (),
            AssistEvent::First(first) => content.push_str(&first.text),
            AssistEvent::Token(token) => content.push_str(&token.text),
            AssistEvent::Error(body) => return Err(body.into()),
            AssistEvent::End(end) if end.reason == EndReason::Cancelled => {
                return Err(ApiError::new(ErrorCode::Unavailable, "the service is stopping"));
            }
            AssistEvent::End(end) => {
                let choice = json!({
                    "index": 0,
                    "message": { "role": "assistant", "content": content, "refusal": null },
                    "logprobs": null,
                    "finish_reason": finish_reason(end.reason),
                });
                let mut reply = head.object("chat.completion", json!([choice]));
                reply["usage"] = usage(end.usage);
                return Ok(Json(reply).into_response());
            }
        }
    }
}

/// The reply as a stream of chunks.
struct Chunks {
    head: Head,
    include_usage: bool,
    begun: bool,
}

impl Chunks {
    fn chunk(&mut self, delta: Value, finish_reason: Option<&str>, out: &mut String) {
        if !self.begun {
            self.begun = true;
            self.chunk(json!({ "role": "assistant", "content": "" }), None, out);
        }
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason });
        let mut chunk = self.head.object("chat.completion.chunk", json!([choice]));
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        put(&chunk, out);
    }

    fn text(&mut self, text: &str, out: &mut String) {
        if !text.is_empty() {
            self.chunk(json!({ "content": text }), None, out);
        }
    }
}

impl Encode for Chunks {
    fn event(&mut self, event: &AssistEvent, out: &mut String) {
        match event {
            AssistEvent::Mask(_) => (),
            AssistEvent::First(first) => self.text(&first.text, out),
            AssistEvent::Token(token) => self.text(&token.text, out),
            AssistEvent::Error(body) => put(&json!(body), out),
            AssistEvent::End(end) if end.reason == EndReason::Cancelled => {
                put(&json!(sse::cut_off_body()), out)
            }
            AssistEvent::End(end) => {
                self.chunk(json!({}), Some(finish_reason(end.reason)), out);
                if self.include_usage {
                    let mut last = self.head.object("chat.completion.chunk", json!([]));
                    last["usage"] = usage(end.usage);
                    put(&last, out);
                }
            }
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

fn finish_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Stop => "stop",
        EndReason::Cap | EndReason::Cancelled => "length",
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_prefix_tokens },
    })
}
