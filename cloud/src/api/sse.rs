//! Server-sent events: frames, packets, keep-alive.
//!
//! Always: events that belong together are one chunk of the body (mask and first token travel in one packet), and the
//! reader's going away drops the stream, which cancels the answer. An answer is given up before its reader hears of its
//! end, so that who asks again at once finds its place free.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use baton_protocol::{AssistEvent, ErrorBody, ErrorCode};
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::error::ApiError;
use super::kept::KeptReader;
use crate::stream::AssistStream;

const PING: &str = ": ping\n\n";

/// Turns the events of one answer into the text of a stream.
pub(super) trait Encode: Send + 'static {
    /// Appends the frames of one event.
    fn event(&mut self, event: &AssistEvent, out: &mut String);

    /// Appends what follows the terminal event.
    fn finish(&mut self, out: &mut String);
}

/// Where the events of a reply come from.
#[derive(Debug)]
pub(super) enum Source {
    /// The answer itself: without its reader it is cancelled.
    Live(AssistStream),
    /// What is kept of it.
    Kept(KeptReader),
}

impl Source {
    async fn next_batch(&mut self) -> Option<Vec<AssistEvent>> {
        match self {
            Source::Live(answer) => answer.next_batch().await,
            Source::Kept(reader) => reader.next_batch().await,
        }
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

/// A streaming reply, once its first packet is there or `keep_alive` has passed.
///
/// # Errors
/// What ends the answer before its first event: it has a status of its own then, as every refusal has.
pub(super) async fn response(
    answer: impl Into<Source>,
    encode: impl Encode,
    keep_alive: Duration,
) -> Result<Response, ApiError> {
    let mut answer = answer.into();
    let first = tokio::time::timeout(keep_alive, answer.next_batch()).await;
    let mut state = Streaming { answer: Some(answer), encode, keep_alive };
    let first = match first {
        Err(_) => Bytes::from_static(PING.as_bytes()),
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
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

struct Streaming<E> {
    /// None after its terminal event.
    answer: Option<Source>,
    encode: E,
    keep_alive: Duration,
}

impl<E: Encode> Streaming<E> {
    /// The next packet; none after the terminal event.
    async fn next(&mut self) -> Option<Bytes> {
        let answer = self.answer.as_mut()?;
        let Ok(batch) = tokio::time::timeout(self.keep_alive, answer.next_batch()).await else {
            return Some(Bytes::from_static(PING.as_bytes()));
        };
        // A worker that is gone leaves no terminal event: the reader still gets one.
        let batch = batch.unwrap_or_else(|| vec![cut_off()]);
        Some(self.packet(&batch))
    }

    fn packet(&mut self, batch: &[AssistEvent]) -> Bytes {
        let mut out = String::new();
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

/// The terminal event of an answer that nobody writes any more.
pub(super) fn cut_off() -> AssistEvent {
    AssistEvent::Error(cut_off_body())
}

/// What such an answer says.
pub(super) fn cut_off_body() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unavailable, "the service stopped before the answer's end")
}

/// One event as the assist protocol has it.
pub(super) fn frame(event: &AssistEvent, out: &mut String) {
    use std::fmt::Write;

    let write = match event.index() {
        Some(index) => write!(out, "event: {}\nid: {index}\ndata: {}\n\n", event.name(), event.data()),
        None => write!(out, "event: {}\ndata: {}\n\n", event.name(), event.data()),
    };
    write.expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::TokenEvent;

    #[test]
    fn frames_carry_their_index() {
        let mut out = String::new();
        let text = "a\nb".to_owned();
        frame(&AssistEvent::Token(TokenEvent { index: 3, id: 9, text }), &mut out);
        assert_eq!(out, "event: token\nid: 3\ndata: {\"index\":3,\"id\":9,\"text\":\"a\\nb\"}\n\n");
        out.clear();
        frame(&cut_off(), &mut out);
        assert!(out.starts_with("event: error\ndata: {\"error\":{\"code\":\"unavailable\""), "{out}");
    }
}
