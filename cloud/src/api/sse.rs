//! Server-sent events: frames, packets, keep-alive.
//!
//! Always: events that belong together are one chunk of the body; mask and first token are in one packet. A
//! disconnect of the reader drops the stream, which cancels the answer. The answer is dropped before its end
//! is sent, so that a client that asks again at once finds its quota free.

use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::response::Response;
use baton_openai::stream::{HEADERS, PING};
use baton_protocol::{AssistEvent, ErrorBody, ErrorCode, ProgressEvent, StreamChecksum};
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::ApiLimits;
use super::error::ApiError;
use super::kept::KeptReader;
use crate::service::stream::{AssistStream, ProgressSource};

/// Turns the events of one answer into the text of a stream.
pub(super) trait Encode: Send + 'static {
    /// Appends the frames of one event.
    fn event(&mut self, event: &AssistEvent, out: &mut String);

    /// Appends the progress of an answer that has no token yet.
    fn progress(&mut self, progress: &ProgressEvent, out: &mut String);

    /// Appends what follows the terminal event.
    fn finish(&mut self, out: &mut String);
}

/// The source of a reply's events.
#[derive(Debug)]
pub(super) enum Source {
    /// The answer itself, which is cancelled if its reader disconnects.
    Live(AssistStream),
    /// A kept answer.
    Kept(KeptReader),
}

impl Source {
    async fn next_batch(&mut self) -> Option<Vec<AssistEvent>> {
        match self {
            Source::Live(answer) => answer.next_batch().await,
            Source::Kept(reader) => reader.next_batch().await,
        }
    }

    fn progress(&self) -> Option<ProgressEvent> {
        let source = match self {
            Source::Live(answer) => answer.progress(),
            Source::Kept(reader) => reader.progress(),
        };
        source.and_then(ProgressSource::now)
    }
}

impl From<AssistStream> for Source {
    fn from(answer: AssistStream) -> Source {
        Source::Live(answer)
    }
}

impl From<KeptReader> for Source {
    fn from(reader: KeptReader) -> Source {
        Source::Kept(reader)
    }
}

/// Returns a streaming reply once its first packet is ready, or once it was silent for the longest time
/// allowed.
///
/// # Errors
/// The error that ends the answer before its first event. The reply then has the error's HTTP status, like
/// any refusal.
pub(super) async fn response(
    answer: impl Into<Source>,
    encode: impl Encode,
    limits: &ApiLimits,
) -> Result<Response, ApiError> {
    let (keep_alive, progress_every) = (limits.keep_alive, limits.progress_every);
    let mut state =
        Streaming { answer: Some(answer.into()), encode, keep_alive, progress_every, begun: false };
    let silence = state.silence();
    let answer = state.answer.as_mut().expect("it was put there above");
    let first = match tokio::time::timeout(silence, answer.next_batch()).await {
        Err(_) => state.waiting(),
        Ok(None) => return Err(cut_off_body().into()),
        Ok(Some(batch)) => match batch.first() {
            Some(AssistEvent::Error(body)) => return Err(body.clone().into()),
            _ => state.packet(&batch),
        },
    };
    let later = stream::unfold(state, |mut state| async move {
        let frame = state.next().await?;
        Some((frame, state))
    });
    let frames = stream::once(async { first }).chain(later).map(Ok::<Bytes, std::convert::Infallible>);
    let mut response = Response::new(Body::from_stream(frames));
    for (name, value) in HEADERS {
        response.headers_mut().insert(*name, HeaderValue::from_static(value));
    }
    Ok(response)
}

struct Streaming<E> {
    /// `None` after the terminal event.
    answer: Option<Source>,
    encode: E,
    keep_alive: Duration,
    progress_every: Duration,
    /// Whether events were sent.
    begun: bool,
}

impl<E: Encode> Streaming<E> {
    /// Waits for the next packet. Returns `None` after the terminal event.
    async fn next(&mut self) -> Option<Bytes> {
        let silence = self.silence();
        let answer = self.answer.as_mut()?;
        let Ok(batch) = tokio::time::timeout(silence, answer.next_batch()).await else {
            return Some(self.waiting());
        };
        // If the worker is gone, there is no terminal event; the reader gets one anyway.
        let batch = batch.unwrap_or_else(|| vec![cut_off()]);
        Some(self.packet(&batch))
    }

    /// Returns how long the stream may be silent.
    fn silence(&self) -> Duration {
        if self.begun { self.keep_alive } else { self.keep_alive.min(self.progress_every) }
    }

    /// Returns the frame to send after such a silence: the progress, or a ping.
    fn waiting(&mut self) -> Bytes {
        let progress = self.answer.as_ref().and_then(Source::progress);
        let Some(progress) = progress.filter(|_| !self.begun) else {
            return Bytes::from_static(PING.as_bytes());
        };
        let mut out = String::new();
        self.encode.progress(&progress, &mut out);
        out.into()
    }

    fn packet(&mut self, batch: &[AssistEvent]) -> Bytes {
        let mut out = String::new();
        self.begun = true;
        for event in batch {
            self.encode.event(event, &mut out);
            if is_terminal(event) {
                self.answer = None;
                self.encode.finish(&mut out);
                break;
            }
        }
        out.into()
    }
}

pub(super) fn is_terminal(event: &AssistEvent) -> bool {
    matches!(event, AssistEvent::End(_) | AssistEvent::Error(_))
}

/// Returns the terminal event of an answer whose worker is gone.
pub(super) fn cut_off() -> AssistEvent {
    AssistEvent::Error(cut_off_body())
}

/// Returns the body of that event.
pub(super) fn cut_off_body() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unavailable, "the service stopped before the answer's end")
}

/// Writes one event in the form of the assist protocol, with the checksum of the stream so far.
pub(super) fn frame(event: &AssistEvent, sum: &mut StreamChecksum, out: &mut String) {
    use std::fmt::Write;

    let (name, mut data) = (event.name(), event.data());
    sum.seal(name, &mut data);
    let write = match event.index() {
        Some(index) => write!(out, "event: {name}\nid: {index}\ndata: {data}\n\n"),
        None => write!(out, "event: {name}\ndata: {data}\n\n"),
    };
    write.expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::TokenEvent;

    #[test]
    fn frames_carry_their_index() {
        let (mut out, mut sum) = (String::new(), StreamChecksum::new(b"{}"));
        let text = "a\nb".to_owned();
        frame(&AssistEvent::Token(TokenEvent { index: 3, id: 9, text }), &mut sum, &mut out);
        let own = "event: token\nid: 3\ndata: {\"index\":3,\"id\":9,\"text\":\"a\\nb\",\"crc\":\"";
        assert!(out.starts_with(own) && out.ends_with("\"}\n\n"), "{out}");
        out.clear();
        frame(&cut_off(), &mut sum, &mut out);
        assert!(out.starts_with("event: error\ndata: {\"error\":{\"code\":\"unavailable\""), "{out}");
    }
}
