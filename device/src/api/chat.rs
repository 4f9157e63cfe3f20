//! `POST /v1/chat/completions` and `POST /v1/completions`, streamed or whole. Requests and
//! replies are those of `baton_openai`.

use super::error::ApiError;
use super::{ANSWERS_MAX, ApiState};
use crate::agent::{AgentError, AnswerEvent, AnswerReport, Question};
use crate::relay::TOO_LONG;
use crate::segments::mark;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use baton_openai::reply::{Ending, FinishReason, Head, Message, Piece};
use baton_openai::stream::{ChunkWriter, HEADERS, PING, StreamWishes};
use baton_openai::{Capabilities, ChatRequest, FieldError, Prompt, parse, parse_text};
use baton_protocol::{RefineOptions, Role, Segment, Usage};
use futures_util::Stream;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError, mpsc, oneshot};

/// The most answer events, and packets of frames, that wait for the reader.
const EVENTS_MAX: usize = 256;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long a stream waits for an error that can be sent as an HTTP status. No reply is silent for longer.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// Reads a request of one of the two APIs.
type Parse = fn(&[u8], &Capabilities) -> Result<ChatRequest, FieldError>;

pub(super) async fn complete(State(state): State<Arc<ApiState>>, body: Body) -> Result<Response, ApiError> {
    answer(state, body, parse).await
}

pub(super) async fn continue_text(
    State(state): State<Arc<ApiState>>,
    body: Body,
) -> Result<Response, ApiError> {
    answer(state, body, parse_text).await
}

async fn answer(state: Arc<ApiState>, body: Body, parse: Parse) -> Result<Response, ApiError> {
    let body = state.bodies.read(body).await?;
    let place = state.places.clone().try_acquire_owned().map_err(|err| match err {
        TryAcquireError::NoPermits => ApiError::Busy { waiting: ANSWERS_MAX, max: ANSWERS_MAX },
        TryAcquireError::Closed => ApiError::Stopping,
    })?;
    // Parsing and tokenizing a long prompt takes milliseconds, so it runs on a blocking thread.
    let reading = state.clone();
    let read = tokio::task::spawn_blocking(move || {
        let request = parse(body.bytes(), &Capabilities::DEVICE)?;
        drop(body);
        super::check_model(&reading, &request.model)?;
        let question = question(&reading, &request);
        let wishes = StreamWishes { usage: request.include_usage, progress: request.include_progress };
        let head = Head::to(&request.prompt, reading.model_name.as_str());
        let echo = match request.prompt {
            Prompt::Text { text, echo: true } => Some(text),
            _ => None,
        };
        Ok::<_, ApiError>((question, Shape { head, echo }, request.stream.then_some(wishes)))
    });
    let (question, shape, streamed) = read.await.map_err(AgentError::Prepare)??;
    if let Some(wishes) = streamed {
        return stream(state, question, shape, wishes, place).await;
    }
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let drain = async { while events.recv().await.is_some() {} };
    let (report, ()) = tokio::join!(state.agent.answer(question, sender), drain);
    whole(shape, report?)
}

/// What a reply has besides the answer.
struct Shape {
    head: Head,
    /// The prompt, if the reply begins with it.
    echo: Option<String>,
}

fn question(state: &ApiState, request: &ChatRequest) -> Question {
    let tokenizer = state.agent.tokenizer();
    Question {
        segments: match &request.prompt {
            Prompt::Chat(messages) => mark(messages, |text| tokenizer.encode(text).len()),
            Prompt::Text { text, .. } => vec![Segment::fixed(Role::User, text.as_str())],
        },
        scene: state.scene.clone(),
        mode: state.mode,
        pace: state.pace,
        sampling: request.sampling.clone(),
        tokens_max: request.max_tokens.unwrap_or(usize::MAX),
        refine: RefineOptions::default(),
        assist_tokens: None,
        shorten: request.shorten,
        corrector: None,
        verbatim: matches!(request.prompt, Prompt::Text { .. }),
    }
}

/// Returns how an answer ended, with notes on what was different from the request: a shortened prompt, a
/// cloud that did not answer.
fn ending(report: &AnswerReport) -> Ending {
    let finish_reason = if report.ending == "length" { FinishReason::Length } else { FinishReason::Stop };
    let notes = Some(&report.notes).filter(|notes| !notes.is_empty());
    let baton = notes.map(|notes| json!({ "notes": notes }));
    Ending { finish_reason, usage: usage(report).into(), baton }
}

fn usage(report: &AnswerReport) -> Usage {
    let timeline = &report.timeline;
    let tokens = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let by_cloud = || timeline.cloud_usage.map_or(0, |usage| usage.prompt_tokens);
    Usage {
        prompt_tokens: timeline.prompt_tokens.map_or_else(by_cloud, tokens),
        cached_prefix_tokens: timeline.prompt_tokens_cached.map_or(0, tokens),
        completion_tokens: tokens(timeline.shown.len()),
    }
}

/// Returns the error of an answer that failed. `written` is the text that its reader does not have yet.
pub(super) fn failure(report: &AnswerReport, written: &str) -> Option<ApiError> {
    report.error.as_ref().map(|error| {
        let mut message = error.message.clone();
        if error.code == TOO_LONG {
            message.push_str("; with `truncation`: `auto` the prompt is shortened");
        }
        ApiError::Answer { message, code: error.code, written: written.to_owned() }
    })
}

fn whole(shape: Shape, report: AnswerReport) -> Result<Response, ApiError> {
    if let Some(err) = failure(&report, &report.answer) {
        return Err(err);
    }
    let ending = ending(&report);
    let mut message = Message::default();
    message.take(shape.echo.into_iter().chain([report.answer]).map(Piece::text));
    Ok(Json(message.into_completion(shape.head, ending)).into_response())
}

/// Streams chunks. The answer runs in its own task, which ends if the reader disconnects, because its channel
/// closes. A failure before the prompt is computed is sent as an HTTP status, unless it takes long to happen.
async fn stream(
    state: Arc<ApiState>,
    question: Question,
    shape: Shape,
    wishes: StreamWishes,
    place: OwnedSemaphorePermit,
) -> Result<Response, ApiError> {
    let (frames, receiver) = mpsc::channel(EVENTS_MAX);
    let (begun, refused) = oneshot::channel();
    tokio::spawn(async move {
        let _place = place;
        let writer = ChunkWriter::new(shape.head, wishes);
        run(&state, question, writer, shape.echo, &frames, begun).await;
    });
    if let Ok(Ok(err)) = tokio::time::timeout(REFUSED_WITHIN, refused).await {
        return Err(err);
    }
    let mut response = Response::new(Body::from_stream(packets(receiver)));
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Returns the frames as they come, and a comment if none has come for a while.
fn packets(receiver: mpsc::Receiver<String>) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures_util::stream::unfold(receiver, |mut receiver| async {
        let packet = match tokio::time::timeout(KEEP_ALIVE, receiver.recv()).await {
            Ok(frames) => Bytes::from(frames?),
            Err(_) => Bytes::from_static(PING.as_bytes()),
        };
        Some((Ok(packet), receiver))
    })
}

/// The reader has disconnected: its channel is closed.
struct Gone;

/// Returns the frames that `write` appends.
fn packet(write: impl FnOnce(&mut String)) -> String {
    let mut out = String::new();
    write(&mut out);
    out
}

async fn send(frames: &mpsc::Sender<String>, packet: String) -> Result<(), Gone> {
    if packet.is_empty() {
        return Ok(());
    }
    frames.send(packet).await.map_err(|_| Gone)
}

async fn run(
    state: &ApiState,
    question: Question,
    mut writer: ChunkWriter,
    mut echo: Option<String>,
    frames: &mpsc::Sender<String>,
    begun: oneshot::Sender<ApiError>,
) {
    let (sender, mut answer_events) = mpsc::channel(EVENTS_MAX);
    let answer = state.agent.answer(question, sender);
    let mut begun = Some(begun);
    // Owns the events. Its end closes them, which tells the agent to cancel if the reader disconnected before
    // the end.
    let forward = async move {
        send(frames, packet(|out| writer.begin(|| None, out))).await?;
        loop {
            let event = tokio::select! {
                event = answer_events.recv() => event,
                () = frames.closed() => return Err(Gone),
            };
            match event {
                None => return Ok((writer, begun, echo)),
                Some(AnswerEvent::Text { text, .. }) if !text.is_empty() => {
                    // From here on the reply is a stream, whatever happens.
                    begun = None;
                    let text = echo.take().into_iter().chain([text]).collect::<String>();
                    send(frames, packet(|out| writer.piece(Piece::text(text), out))).await?;
                }
                Some(AnswerEvent::Progress(progress)) => {
                    begun = None;
                    send(frames, packet(|out| writer.progress(&progress, out))).await?;
                }
                Some(AnswerEvent::Text { .. } | AnswerEvent::Note(_)) => {}
            }
        }
    };
    let (report, forwarded) = tokio::join!(answer, forward);
    let Ok((writer, begun, echo)) = forwarded else { return };
    let report = report.map_err(ApiError::from).and_then(|report| match failure(&report, "") {
        Some(err) => Err(err),
        None => Ok(report),
    });
    let report = match (report, begun) {
        (Err(err), Some(begun)) => match begun.send(err) {
            Ok(()) => return,
            // It took too long to fail: the stream has begun.
            Err(err) => Err(err),
        },
        (report, _) => report,
    };
    // A reader that disconnects now misses only the end of a finished answer.
    let _gone = send(frames, last(writer, echo, &report)).await;
}

/// Returns the frames of an answer's end. `echo` is the prompt if the answer has no text before which it was
/// sent.
fn last(mut writer: ChunkWriter, echo: Option<String>, report: &Result<AnswerReport, ApiError>) -> String {
    packet(|out| {
        match report {
            Err(err) => writer.error(&err.reply(), out),
            Ok(report) => {
                if let Some(text) = echo {
                    writer.piece(Piece::text(text), out);
                }
                writer.end(ending(report), out);
            }
        }
        writer.done(out);
    })
}
