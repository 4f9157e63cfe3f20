//! `POST /v1/chat/completions`, streamed or whole.

use super::error::ApiError;
use super::request::{self, ChatRequest};
use super::{ANSWERS_MAX, ApiState};
use crate::agent::{AgentError, AnswerEvent, AnswerReport, Question};
use crate::relay::{Progress, TOO_LONG};
use crate::segments::mark;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use baton_protocol::RefineOptions;
use futures_util::Stream;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError, mpsc, oneshot};
use uuid::Uuid;

/// Answer events, and stream chunks, that may wait for the reader.
const EVENTS_MAX: usize = 256;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long a stream waits for what may refuse it: nothing is silent for longer.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// What is the same in every chunk of one answer.
#[derive(Debug, Clone)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(model: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self { id: format!("chatcmpl-{}", Uuid::new_v4().simple()), created, model }
    }

    fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason }],
        })
    }

    /// A chunk without choices.
    fn bare_chunk(&self, field: &str, value: Value) -> Value {
        let mut chunk = self.chunk(json!({}), None);
        chunk["choices"] = json!([]);
        chunk[field] = value;
        chunk
    }
}

/// What a stream holds besides the answer.
#[derive(Debug, Clone, Copy)]
struct Wishes {
    usage: bool,
    progress: bool,
}

pub(super) async fn complete(State(state): State<Arc<ApiState>>, body: Body) -> Result<Response, ApiError> {
    let body = state.bodies.read(body).await?;
    let place = state.places.clone().try_acquire_owned().map_err(|err| match err {
        TryAcquireError::NoPermits => ApiError::Busy { waiting: ANSWERS_MAX, max: ANSWERS_MAX },
        TryAcquireError::Closed => ApiError::Stopping,
    })?;
    // Parsing and tokenizing a long prompt takes milliseconds: not on a thread of the runtime.
    let reading = state.clone();
    let read = tokio::task::spawn_blocking(move || {
        let request = request::parse(body.bytes())?;
        drop(body);
        if let Some(asked) = request.model.as_deref().filter(|asked| !asked.is_empty()) {
            super::check_model(&reading, asked)?;
        }
        let question = question(&reading, &request);
        Ok::<_, ApiError>((request, question))
    });
    let (request, question) = read.await.map_err(AgentError::Prepare)??;
    let head = Head::new(state.model_name.clone());
    if request.stream {
        let wishes = Wishes { usage: request.include_usage, progress: request.include_progress };
        return stream(state, question, head, wishes, place).await;
    }
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let drain = async { while events.recv().await.is_some() {} };
    let (report, ()) = tokio::join!(state.agent.answer(question, sender), drain);
    whole(&head, &report?)
}

fn question(state: &ApiState, request: &ChatRequest) -> Question {
    let tokenizer = state.agent.tokenizer();
    Question {
        segments: mark(&request.messages, |text| tokenizer.encode(text).len()),
        scene: state.scene.clone(),
        mode: state.mode,
        pace: state.pace,
        sampling: request.sampling.clone(),
        tokens_max: request.tokens_max,
        refine: RefineOptions::default(),
        assist_tokens: None,
        shorten: request.shorten,
        corrector: None,
    }
}

/// OpenAI's word for how an answer ended.
fn finish_reason(report: &AnswerReport) -> &'static str {
    if report.ending == "length" { "length" } else { "stop" }
}

fn usage(report: &AnswerReport) -> Value {
    let prompt = report.timeline.prompt_tokens.or_else(|| {
        report.timeline.cloud_usage.map(|u| usize::try_from(u.prompt_tokens).unwrap_or(usize::MAX))
    });
    let (prompt, completion) = (prompt.unwrap_or(0), report.timeline.shown.len());
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt.saturating_add(completion),
        "prompt_tokens_details": { "cached_tokens": report.timeline.prompt_tokens_cached.unwrap_or(0) },
    })
}

/// An answer that failed; `written` is what its reader does not have yet.
pub(super) fn failure(report: &AnswerReport, written: &str) -> Option<ApiError> {
    report.error.as_ref().map(|error| {
        let mut message = error.message.clone();
        if error.code == TOO_LONG {
            message.push_str("; with `truncation`: `auto` the prompt is shortened");
        }
        ApiError::Answer { message, code: error.code, written: written.to_owned() }
    })
}

/// What the answer does differently from what was asked for: a prompt that was shortened, a cloud that did not answer.
fn tell_notes(body: &mut Value, report: &AnswerReport) {
    if !report.notes.is_empty() {
        body["baton"] = json!({ "notes": report.notes });
    }
}

fn whole(head: &Head, report: &AnswerReport) -> Result<Response, ApiError> {
    if let Some(err) = failure(report, &report.answer) {
        return Err(err);
    }
    let mut body = json!({
        "id": head.id, "object": "chat.completion", "created": head.created, "model": head.model,
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": report.answer, "refusal": null },
            "logprobs": null,
            "finish_reason": finish_reason(report),
        }],
        "usage": usage(report),
    });
    tell_notes(&mut body, report);
    Ok(Json(body).into_response())
}

/// Streams chunks. The answer runs in its own task, which ends when the reader goes: its channel closes. What fails before
/// its prompt is computed is refused with a status, unless it takes long to fail.
async fn stream(
    state: Arc<ApiState>,
    question: Question,
    head: Head,
    wishes: Wishes,
    place: OwnedSemaphorePermit,
) -> Result<Response, ApiError> {
    let (chunks, receiver) = mpsc::channel::<Event>(EVENTS_MAX);
    let (begun, refused) = oneshot::channel();
    tokio::spawn(async move {
        let _place = place;
        run(&state, question, &head, wishes, &chunks, begun).await;
    });
    if let Ok(Ok(err)) = tokio::time::timeout(REFUSED_WITHIN, refused).await {
        return Err(err);
    }
    Ok(Sse::new(events(receiver))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("ping"))
        .into_response())
}

fn events(receiver: mpsc::Receiver<Event>) -> impl Stream<Item = Result<Event, Infallible>> {
    futures_util::stream::unfold(receiver, |mut receiver| async {
        let event = receiver.recv().await?;
        Some((Ok(event), receiver))
    })
}

/// A reader that is gone: its channel is closed.
struct Gone;

async fn send(chunks: &mpsc::Sender<Event>, value: &Value) -> Result<(), Gone> {
    chunks.send(Event::default().data(value.to_string())).await.map_err(|_| Gone)
}

async fn run(
    state: &ApiState,
    question: Question,
    head: &Head,
    wishes: Wishes,
    chunks: &mpsc::Sender<Event>,
    begun: oneshot::Sender<ApiError>,
) {
    let (sender, mut answer_events) = mpsc::channel(EVENTS_MAX);
    let answer = state.agent.answer(question, sender);
    let mut begun = Some(begun);
    // Owns the events: its end closes them, which tells the agent to cancel when the reader went before the end.
    let forward = async move {
        send(chunks, &head.chunk(json!({ "role": "assistant", "content": "" }), None)).await?;
        loop {
            let event = tokio::select! {
                event = answer_events.recv() => event,
                () = chunks.closed() => return Err(Gone),
            };
            match event {
                None => return Ok(begun),
                Some(AnswerEvent::Text { text, .. }) if !text.is_empty() => {
                    // From here on it is a stream, whatever comes.
                    begun = None;
                    send(chunks, &head.chunk(json!({ "content": text }), None)).await?;
                }
                Some(AnswerEvent::Progress(progress)) => {
                    begun = None;
                    tell(head, wishes, chunks, &progress).await?;
                }
                Some(AnswerEvent::Text { .. } | AnswerEvent::Note(_)) => {}
            }
        }
    };
    let (report, forwarded) = tokio::join!(answer, forward);
    let Ok(begun) = forwarded else { return };
    let report = report.map_err(ApiError::from).and_then(|report| match failure(&report, "") {
        Some(err) => Err(err),
        None => Ok(report),
    });
    let report = match (report, begun) {
        (Err(err), Some(begun)) => match begun.send(err) {
            Ok(()) => return,
            // It took too long to fail: a stream has begun.
            Err(err) => Err(err),
        },
        (report, _) => report,
    };
    // A reader that goes now misses only the end of a finished answer.
    let _gone = finish(head, wishes, chunks, report).await;
}

/// Says how far it is: a comment, which every client skips, and a chunk for one that asked for it.
async fn tell(
    head: &Head,
    wishes: Wishes,
    chunks: &mpsc::Sender<Event>,
    progress: &Progress,
) -> Result<(), Gone> {
    let progress = json!(progress);
    chunks.send(Event::default().comment(format!("progress {progress}"))).await.map_err(|_| Gone)?;
    if wishes.progress {
        send(chunks, &head.bare_chunk("x_progress", progress)).await?;
    }
    Ok(())
}

async fn finish(
    head: &Head,
    wishes: Wishes,
    chunks: &mpsc::Sender<Event>,
    report: Result<AnswerReport, ApiError>,
) -> Result<(), Gone> {
    match report {
        Err(err) => send(chunks, &err.body()).await?,
        Ok(report) => {
            let mut end = head.chunk(json!({}), Some(finish_reason(&report)));
            tell_notes(&mut end, &report);
            send(chunks, &end).await?;
            if wishes.usage {
                send(chunks, &head.bare_chunk("usage", usage(&report))).await?;
            }
        }
    }
    chunks.send(Event::default().data("[DONE]")).await.map_err(|_| Gone)
}
