//! Reads server-sent events with a limit on their size.

use crate::relay::CloudFault;
use baton_protocol::lines::{Lines, TooLarge};
use baton_protocol::{AssistEvent, EventError, StreamChecksum};
use bytes::Bytes;
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt, stream};
use std::future::ready;

/// Most bytes of one stream.
pub const STREAM_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a line, which the parser must hold in memory.
pub const EVENT_BYTES_MAX: u64 = 512 << 10;
enum Broken {
    TooLarge(TooLarge),
    Transport,
}

/// Reads assist events from a response body and checks their running checksum. Skips unknown events; after an
/// error nothing follows.
pub fn assist_events<S, E>(
    bytes: S,
    mut checksum: StreamChecksum,
) -> impl Stream<Item = Result<AssistEvent, CloudFault>>
where
    S: Stream<Item = Result<Bytes, E>>,
{
    let mut lines = Lines::new(STREAM_BYTES_MAX, EVENT_BYTES_MAX);
    let chunks = bytes.map(Some).chain(stream::once(ready(None)));
    chunks
        .flat_map(move |chunk| {
            let pieces = match chunk.transpose() {
                Err(_) => vec![Err(Broken::Transport)],
                Ok(chunk) => {
                    let pieces = lines.pieces(chunk.as_deref());
                    pieces.into_iter().map(|piece| piece.map_err(Broken::TooLarge)).collect()
                }
            };
            stream::iter(pieces)
        })
        .eventsource()
        .map(move |event| {
            // Unknown events are checked too: one of them may be a damaged known event.
            let checked = event.as_ref().map_or(Ok(()), |event| checksum.check(&event.event, &event.data));
            (event, checked)
        })
        .filter_map(|(event, checked)| async move {
            if let Err(err) = checked {
                return Some(Err(CloudFault::Damaged { reason: err.to_string() }));
            }
            match event {
                Ok(event) => match AssistEvent::parse(&event.event, &event.data) {
                    Ok(event) => Some(Ok(event)),
                    Err(EventError::UnknownName { .. }) => None,
                    Err(err) => Some(Err(CloudFault::Malformed { reason: err.to_string() })),
                },
                Err(EventStreamError::Transport(Broken::TooLarge(TooLarge { max }))) => {
                    Some(Err(CloudFault::TooLarge { max }))
                }
                Err(EventStreamError::Transport(Broken::Transport)) => Some(Err(CloudFault::Disconnected)),
                Err(EventStreamError::Utf8(_)) => {
                    Some(Err(CloudFault::Malformed { reason: "the stream is not utf-8".into() }))
                }
                Err(EventStreamError::Parser(_)) => {
                    Some(Err(CloudFault::Malformed { reason: "the stream is not server-sent events".into() }))
                }
            }
        })
        .scan(false, |failed, event| {
            let over = std::mem::replace(failed, event.is_err());
            ready((!over).then_some(event))
        })
}
