//! Answers of every dialect, streamed or whole. Requests and replies are those of `baton_openai`.

use super::calls::Calls;
use super::error::ApiError;
use super::steady::{STEADIED, steady};
use super::{ANSWERS_MAX, ApiState};
use crate::agent::{AgentError, AnswerEvent, AnswerReport, Question};
use crate::relay::{RelayMode, TOO_LONG, Timeline};
use crate::segments::{mark, places};
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use baton_openai::dialect::Dialect;
use baton_openai::ignored::Ignored;
use baton_openai::reply::{Ending, FinishReason, Message, Piece, Times};
use baton_openai::request::NO_INFILL;
use baton_openai::writer::{AnswerFacts, AnswerWriter, Asked, Read, Work};
use baton_openai::{ChatRequest, FieldError, Prompt};
use baton_protocol::{RefineOptions, Role, Segment, Usage};
use futures_util::Stream;
use serde::Serialize;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError, mpsc, oneshot};

/// The most answer events, and packets of frames, that wait for the reader.
const EVENTS_MAX: usize = 256;
/// The header of a whole reply that says who wrote it. Streams say it at their end.
const SOURCE: HeaderName = HeaderName::from_static("x-baton-source");
const IGNORED: HeaderName = HeaderName::from_static(baton_openai::ignored::HEADER);
/// How long a stream waits for an error that can be sent as an HTTP status. No reply is silent for longer.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// Reads a request by `read`, and answers it. If it `stays`, this device alone answers.
pub(super) async fn answer(
    state: Arc<ApiState>,
    body: Body,
    read: Read,
    stays: bool,
) -> Result<Response, ApiError> {
    let asked_at = Instant::now();
    let body = state.bodies.read(body).await?;
    let place = state.places.clone().try_acquire_owned().map_err(|err| match err {
        TryAcquireError::NoPermits => ApiError::Busy { waiting: ANSWERS_MAX, max: ANSWERS_MAX },
        TryAcquireError::Closed => ApiError::Stopping,
    })?;
    // Parsing and tokenizing a long prompt takes milliseconds, so it runs on a blocking thread.
    let reading = state.clone();
    let prepare = tokio::task::spawn_blocking(move || {
        let work = read(body.bytes(), &super::offered(&reading))?;
        drop(body);
        match work {
            Work::Answer(asked) => prepared(&reading, *asked, asked_at).map(Ready::Answer),
            Work::Nothing { model, reply, unloads } => {
                super::check_model(&reading, &model)?;
                Ok(Ready::Reply { reply, unloads })
            }
        }
    });
    let (mut question, shape, streamed) = match prepare.await.map_err(AgentError::Prepare)?? {
        Ready::Answer(prepared) => *prepared,
        Ready::Reply { reply, unloads: true } => {
            state.agent.unload().await;
            return Ok(json_reply(reply));
        }
        Ready::Reply { reply, unloads: false } => {
            state.agent.load().await?;
            return Ok(json_reply(reply));
        }
    };
    if stays {
        question.mode = RelayMode::DeviceOnly;
    }
    if streamed {
        return stream(state, question, shape, place).await;
    }
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let drain = async { while events.recv().await.is_some() {} };
    let (report, ()) = tokio::join!(state.agent.answer(question, sender), drain);
    whole(shape, report?)
}

/// What a request comes to.
enum Ready {
    /// A question, what its reply has besides the answer, and whether it is streamed.
    Answer(Box<(Question, Shape, bool)>),
    /// This reply, without an answer, once the model has left the memory or come into it.
    Reply { reply: String, unloads: bool },
}

/// What a reply has besides the answer.
struct Shape {
    writer: Box<dyn AnswerWriter>,
    /// The prompt, if the reply begins with it.
    echo: Option<String>,
    calls: Calls,
    dialect: Dialect,
    /// The request's stop strings.
    stops: Vec<String>,
    /// The message and byte at which each segment of the question begins.
    places: Vec<(usize, usize)>,
    /// Lines of the system prompt that were made equal to those of other requests.
    steadied: usize,
    /// Fields of the request without effect.
    ignored: Ignored,
    asked_at: Instant,
}

impl Shape {
    /// Appends the frames of more text.
    fn says(&mut self, text: String, out: &mut String) {
        let echo = self.echo.take().into_iter().map(Piece::text);
        for piece in echo.chain(self.calls.push(text)) {
            self.writer.piece(piece, out);
        }
    }

    /// Appends the frames of what was held back.
    fn says_rest(&mut self, out: &mut String) {
        let echo = self.echo.take().into_iter().map(Piece::text);
        for piece in echo.chain(self.calls.finish()) {
            self.writer.piece(piece, out);
        }
    }
}

fn prepared(
    state: &ApiState,
    asked: Asked,
    asked_at: Instant,
) -> Result<Box<(Question, Shape, bool)>, ApiError> {
    let Asked { mut request, dialect, counts_prompt, context_min, writer } = asked;
    super::check_model(state, &request.model)?;
    if has_less_room(state, context_min) {
        request.ignored.add("options.num_ctx");
    }
    if !request.prompt.fill_in(|text| state.agent.tokenizer().is_token(text)) {
        return Err(FieldError::new("suffix", NO_INFILL).into());
    }
    let steadied = steadied(state, &mut request);
    let question = question(state, &request)?;
    let places = places(request.prompt.messages(), &question.segments);
    // A prompt that cannot be laid out fails when it is answered, with a better message.
    let prompt_tokens = match counts_prompt {
        true => state.agent.prompt_tokens(&question).map_or(0, |tokens| tokens as u64),
        false => 0,
    };
    let is_chat = question.own.is_none();
    let is_thinking = is_chat && state.agent.begins_in_thinking();
    let facts = AnswerFacts { model: state.model_name.clone(), prompt_tokens, is_thinking };
    let streamed = request.stream;
    let calls = Calls::of(request.tools.as_ref(), state.agent.call_markup(&state.scene));
    let echo = match request.prompt {
        Prompt::Text { text, echo: true, .. } => Some(text),
        _ => None,
    };
    let stops = request.sampling.stop;
    let ignored = request.ignored;
    let writer = writer.with(facts);
    let shape = Shape { writer, echo, calls, dialect, stops, places, steadied, ignored, asked_at };
    Ok(Box::new((question, shape, streamed)))
}

/// Makes the system prompt equal to those of other requests; returns the number of lines that were changed.
pub(super) fn steadied(state: &ApiState, request: &mut ChatRequest) -> usize {
    match &mut request.prompt {
        Prompt::Chat(messages) if state.steadies => steady(messages),
        _ => 0,
    }
}

/// Returns whether there is room for fewer tokens than the client wants. A prompt that does not fit is
/// refused or shortened anyway.
fn has_less_room(state: &ApiState, context_min: Option<u64>) -> bool {
    let room = state.agent.context_tokens();
    context_min.zip(room).is_some_and(|(wanted, room)| wanted > room as u64)
}

pub(super) fn question(state: &ApiState, request: &ChatRequest) -> Result<Question, AgentError> {
    let tokenizer = state.agent.tokenizer();
    let segments = match &request.prompt {
        Prompt::Chat(messages) => mark(messages, |text| tokenizer.encode(text).len()),
        Prompt::Text { text, .. } => vec![Segment::fixed(Role::User, text.as_str())],
    };
    let offered = request.tools.as_ref().map_or(&[][..], |tools| &tools.tools);
    let own = match (&request.prompt, &request.begun) {
        (Prompt::Text { text, .. }, _) => Some(state.agent.text_prompt(text)?),
        (Prompt::Chat(_), Some(begun)) => Some(state.agent.begun_prompt(&segments, offered, begun)?),
        (Prompt::Chat(_), None) => None,
    };
    Ok(Question {
        segments,
        scene: state.scene.clone(),
        mode: state.mode,
        pace: state.pace,
        sampling: request.sampling.clone(),
        tokens_max: request.max_tokens.unwrap_or(usize::MAX),
        refine: RefineOptions::default(),
        assist_tokens: None,
        shorten: request.shorten,
        corrector: None,
        tools: request.tools.clone(),
        format: request.format.clone(),
        own,
        cites: request.citations,
    })
}

/// Who wrote how many tokens of an answer.
#[derive(Debug, Serialize)]
struct Wrote {
    /// `device`, `cloud`, or `relay` if both wrote.
    writer: &'static str,
    cloud_tokens: usize,
    device_tokens: usize,
}

impl Wrote {
    fn of(report: &AnswerReport) -> Self {
        let (cloud_tokens, device_tokens) = (report.tokens_from_cloud, report.tokens_from_device);
        let writer = match (cloud_tokens, device_tokens) {
            (0, _) => "device",
            (_, 0) => "cloud",
            _ => "relay",
        };
        Self { writer, cloud_tokens, device_tokens }
    }

    /// The value of the header, with parameters as in RFC 9110.
    fn header(&self) -> HeaderValue {
        let Self { writer, cloud_tokens, device_tokens } = self;
        let text = format!("{writer};cloud={cloud_tokens};device={device_tokens}");
        HeaderValue::try_from(text).expect("words and numbers are a header's value")
    }
}

/// Returns how an answer ended: who wrote it, and notes on what was different from the request, such as a
/// shortened prompt or a cloud that did not answer.
fn ending(report: &AnswerReport, shape: &Shape) -> Ending {
    let finish_reason = match (report.ending == "length", shape.calls.any()) {
        (true, _) => FinishReason::Length,
        (false, true) => FinishReason::ToolCalls,
        (false, false) => FinishReason::Stop,
    };
    let mut baton = json!({ "source": Wrote::of(report) });
    if !report.notes.is_empty() {
        baton["notes"] = json!(report.notes);
    }
    if shape.ignored.header().is_some() {
        baton["ignored"] = shape.ignored.names().collect();
    }
    if let Some(record) = &report.record {
        baton["record"] = json!(record);
    }
    if let Some(checked) = &report.timeline.verification {
        baton["verification"] = json!(checked);
    }
    if let Some(citations) = &report.citations {
        let cited = citations.iter().map(|citation| citation.of_messages(&shape.places));
        baton["citations"] = cited.collect();
    }
    let stop = report.timeline.stopped_text.as_deref().and_then(|text| first_stop(text, &shape.stops));
    Ending {
        stop: stop.map(str::to_owned),
        times: times(&report.timeline, shape.asked_at),
        baton: Some(baton),
        ..Ending::new(finish_reason, usage(report))
    }
}

/// Returns the stop string that is complete first; of those that end together, the longest.
fn first_stop<'a>(text: &str, stops: &'a [String]) -> Option<&'a str> {
    let found =
        stops.iter().filter_map(|stop| text.find(stop).map(|start| (start + stop.len(), start, stop)));
    found.min().map(|(_, _, stop)| stop.as_str())
}

fn times(timeline: &Timeline, asked_at: Instant) -> Times {
    let millis = |ms: f64| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default();
    let first_ms = timeline.ttft_user_ms.unwrap_or_default();
    Times {
        total: asked_at.elapsed(),
        prompt: millis(first_ms),
        answer: millis(timeline.total_ms.unwrap_or(first_ms) - first_ms),
    }
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
pub(super) fn failure(report: &AnswerReport, written: &str, dialect: Dialect) -> Option<ApiError> {
    report.error.as_ref().map(|error| {
        let mut message = error.message.clone();
        if error.code == TOO_LONG && dialect == Dialect::OpenAi {
            message.push_str("; with `truncation`: `auto` the prompt is shortened");
        }
        let retry_after_ms = error.retry_after_ms;
        ApiError::Answer { message, code: error.code, written: written.to_owned(), retry_after_ms }
    })
}

fn whole(mut shape: Shape, report: AnswerReport) -> Result<Response, ApiError> {
    if let Some(err) = failure(&report, &report.answer, shape.dialect) {
        return Err(err);
    }
    let wrote = Wrote::of(&report).header();
    let mut message = Message::default();
    message.take(shape.echo.take().into_iter().map(Piece::text));
    message.take(shape.calls.push(report.answer.clone()));
    message.take(shape.calls.finish());
    let ending = ending(&report, &shape);
    let ignored = shape.ignored.header();
    let mut reply = json_reply(shape.writer.whole(message, ending));
    reply.headers_mut().insert(SOURCE, wrote);
    add_headers(shape.steadied, ignored, &mut reply);
    Ok(reply)
}

/// Says how many lines of the system prompt were changed, and which fields had no effect, if any.
fn add_headers(steadied: usize, ignored: Option<String>, reply: &mut Response) {
    if steadied > 0 {
        reply.headers_mut().insert(STEADIED, HeaderValue::from(steadied));
    }
    if let Some(value) = ignored.and_then(|names| HeaderValue::try_from(names).ok()) {
        reply.headers_mut().insert(IGNORED, value);
    }
}

fn json_reply(json: String) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], json).into_response()
}

/// Streams frames. The answer runs in its own task, which ends if the reader disconnects, because its channel
/// closes. A failure before the prompt is computed is sent as an HTTP status, unless it takes long to happen.
async fn stream(
    state: Arc<ApiState>,
    question: Question,
    shape: Shape,
    place: OwnedSemaphorePermit,
) -> Result<Response, ApiError> {
    let (frames, receiver) = mpsc::channel(EVENTS_MAX);
    let (begun, refused) = oneshot::channel();
    let (headers, ping) = (shape.writer.headers(), Bytes::from(shape.writer.ping()));
    let (silence_max, steadied) = (shape.writer.silence_max(), shape.steadied);
    let ignored = shape.ignored.header();
    tokio::spawn(async move {
        let _place = place;
        run(&state, question, shape, &frames, begun).await;
    });
    if let Ok(Ok(err)) = tokio::time::timeout(REFUSED_WITHIN, refused).await {
        return Err(err);
    }
    let mut response = Response::new(Body::from_stream(packets(receiver, ping, silence_max)));
    for (name, value) in headers {
        response.headers_mut().insert(*name, HeaderValue::from_static(value));
    }
    add_headers(steadied, ignored, &mut response);
    Ok(response)
}

/// Returns the frames as they come, and `ping` if none has come for a while.
fn packets(
    receiver: mpsc::Receiver<String>,
    ping: Bytes,
    silence_max: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures_util::stream::unfold((receiver, ping), move |(mut receiver, ping)| async move {
        let packet = match tokio::time::timeout(silence_max, receiver.recv()).await {
            Ok(frames) => Bytes::from(frames?),
            Err(_) => ping.clone(),
        };
        Some((Ok(packet), (receiver, ping)))
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
    mut shape: Shape,
    frames: &mpsc::Sender<String>,
    begun: oneshot::Sender<ApiError>,
) {
    let dialect = shape.dialect;
    let (sender, mut answer_events) = mpsc::channel(EVENTS_MAX);
    let answer = state.agent.answer(question, sender);
    let mut begun = Some(begun);
    // Owns the events. Its end closes them, which tells the agent to cancel if the reader disconnected before
    // the end.
    let forward = async move {
        send(frames, packet(|out| shape.writer.begin(None, out))).await?;
        loop {
            let event = tokio::select! {
                event = answer_events.recv() => event,
                () = frames.closed() => return Err(Gone),
            };
            match event {
                None => return Ok((shape, begun)),
                Some(AnswerEvent::Text { text, .. }) if !text.is_empty() => {
                    // From here on the reply is a stream, whatever happens.
                    begun = None;
                    send(frames, packet(|out| shape.says(text, out))).await?;
                }
                Some(AnswerEvent::Progress(progress)) => {
                    begun = None;
                    let progress = json!(progress);
                    send(frames, packet(|out| shape.writer.progress(&progress, out))).await?;
                }
                Some(AnswerEvent::Text { .. } | AnswerEvent::Note(_)) => {}
            }
        }
    };
    let (report, forwarded) = tokio::join!(answer, forward);
    let Ok((shape, begun)) = forwarded else { return };
    let report = report.map_err(ApiError::from).and_then(|report| match failure(&report, "", dialect) {
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
    let _gone = send(frames, last(shape, &report)).await;
}

/// Returns the frames of an answer's end. The prompt is among them if the answer has no text before which it
/// was sent.
fn last(mut shape: Shape, report: &Result<AnswerReport, ApiError>) -> String {
    packet(|out| {
        match report {
            Err(err) => shape.writer.error(&err.reply(), out),
            Ok(report) => {
                shape.says_rest(out);
                let ending = ending(report, &shape);
                shape.writer.end(ending, out);
            }
        }
        shape.writer.done(out);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_complete_stop_string_counts() {
        let stops = ["b c", "a b", "b"].map(str::to_owned);
        assert_eq!(first_stop("x a b c", &stops), Some("a b"), "of those that end together, the longest");
        assert_eq!(first_stop("x", &stops), None);
    }
}
