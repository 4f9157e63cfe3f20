//! Server-sent events: frames, packets, keep-alive.
//!
//! Always: events that belong together are one chunk of the body (mask and first token travel in one packet), and the
//! reader's going away drops the stream, which cancels the answer.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use baton_protocol::{AssistEvent, ErrorBody, ErrorCode};
use bytes::Bytes;
use futures_util::stream;

use crate::stream::AssistStream;

const PING: &str = ": ping\n\n";

/// Turns the events of one answer into the text of a stream.
pub(super) trait Encode: Send + 'static {
    /// Appends the frames of one event.
    fn event(&mut self, event: &AssistEvent, out: &mut String);

    /// Appends what follows the terminal event.
    fn finish(&mut self, out: &mut String);
}

/// A streaming reply.
pub(super) fn response(answer: AssistStream, encode: impl Encode, keep_alive: Duration) -> Response {
    let state = Streaming { answer, encode, keep_alive, ended: false };
    let frames = stream::unfold(state, |mut state| async move {
        let frame = state.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(frame), state))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Streaming<E> {
    answer: AssistStream,
    encode: E,
    keep_alive: Duration,
    ended: bool,
}

impl<E: Encode> Streaming<E> {
    /// The next packet; none after the terminal event.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let Ok(batch) = tokio::time::timeout(self.keep_alive, self.answer.next_batch()).await else {
            return Some(Bytes::from_static(PING.as_bytes()));
        };
        // A worker that is gone leaves no terminal event: the reader still gets one.
        let batch = batch.unwrap_or_else(|| vec![cut_off()]);
        let mut out = String::new();
        for event in &batch {
            self.encode.event(event, &mut out);
            if is_terminal(event) {
                self.ended = true;
                self.encode.finish(&mut out);
                break;
            }
        }
        Some(out.into())
    }
}

fn is_terminal(event: &AssistEvent) -> bool {
    matches!(event, AssistEvent::End(_) | AssistEvent::Error(_))
}

/// The terminal event of an answer that nobody writes any more.
pub(super) fn cut_off() -> AssistEvent {
    AssistEvent::Error(cut_off_body())
}

/// What such an answer says.
pub(super) fn cut_off_body() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unavailable, "the service stopped in the middle of this answer")
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
