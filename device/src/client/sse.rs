//! Server-sent events behind a byte cap.

use crate::relay::CloudFault;
use baton_protocol::{AssistEvent, EventError, StreamChecksum};
use bytes::Bytes;
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt};

/// Most bytes of one stream.
pub const STREAM_BYTES_MAX: u64 = 16 << 20;
/// Most bytes without an end of line: what the parser must hold at once.
pub const EVENT_BYTES_MAX: u64 = 512 << 10;

enum Broken {
    TooLarge(u64),
    Transport,
}

/// Reads assist events from a response body and holds them to their running checksum. Unknown events are skipped; after
/// an error nothing follows.
pub fn assist_events<S, E>(
    bytes: S,
    mut checksum: StreamChecksum,
) -> impl Stream<Item = Result<AssistEvent, CloudFault>>
where
    S: Stream<Item = Result<Bytes, E>>,
{
    let (mut total, mut line) = (0u64, 0u64);
    let capped = bytes.map(move |chunk| {
        let chunk = chunk.map_err(|_| Broken::Transport)?;
        total += chunk.len() as u64;
        line = match chunk.iter().rposition(|&b| b == b'\n') {
            Some(at) => (chunk.len() - at - 1) as u64,
            None => line + chunk.len() as u64,
        };
        match () {
            () if total > STREAM_BYTES_MAX => Err(Broken::TooLarge(STREAM_BYTES_MAX)),
            () if line > EVENT_BYTES_MAX => Err(Broken::TooLarge(EVENT_BYTES_MAX)),
            () => Ok(chunk),
        }
    });
    capped
        .eventsource()
        .map(move |event| {
            // Unknown events count as well: one of them may be a damaged known one.
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
                Err(EventStreamError::Transport(Broken::TooLarge(max))) => {
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
            std::future::ready((!over).then_some(event))
        })
}
