//! Reads server-sent events with a limit on their size. Lines end with `\n` or `\r\n`; a `\r` alone does not
//! end a line here.

use crate::relay::CloudFault;
use baton_protocol::{AssistEvent, EventError, StreamChecksum};
use bytes::Bytes;
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt, stream};
use std::future::ready;

/// Most bytes of one stream.
pub const STREAM_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a line, which the parser must hold in memory.
pub const EVENT_BYTES_MAX: u64 = 512 << 10;
/// Most lines that the parser gets at once; it gets whole lines only. At the end of each line it moves
/// everything that it holds, and it reads an incomplete line again whenever more of it comes.
const LINES_AT_ONCE: usize = 64;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(super) enum Broken {
    TooLarge(u64),
    Transport,
}

/// Cuts a stream of bytes into pieces of whole lines.
#[derive(Default)]
pub(super) struct Lines {
    total: u64,
    begun: bool,
    /// The start of a line whose end has not come yet.
    held: Vec<u8>,
}

impl Lines {
    /// Returns the pieces for the parser; a `chunk` of `None` is the end of the stream.
    pub(super) fn pieces<E>(&mut self, chunk: Option<Result<Bytes, E>>) -> Vec<Result<Vec<u8>, Broken>> {
        let chunk = match chunk {
            Some(Ok(chunk)) => chunk,
            Some(Err(_)) => return vec![Err(Broken::Transport)],
            None => {
                let rest = std::mem::take(&mut self.held);
                return self.cut(rest).into_iter().map(Ok).collect();
            }
        };
        self.total += chunk.len() as u64;
        if self.total > STREAM_BYTES_MAX {
            return vec![Err(Broken::TooLarge(STREAM_BYTES_MAX))];
        }
        let (ended, open) = chunk.split_at(chunk.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1));
        let mut lines = Vec::new();
        if !ended.is_empty() {
            lines = std::mem::take(&mut self.held);
            lines.extend_from_slice(ended);
        }
        self.held.extend_from_slice(open);
        let too_long = |line: &[u8]| line.len() as u64 > EVENT_BYTES_MAX;
        if too_long(&self.held) || lines.split(|&b| b == b'\n').any(too_long) {
            return vec![Err(Broken::TooLarge(EVENT_BYTES_MAX))];
        }
        self.cut(lines).into_iter().map(Ok).collect()
    }

    fn cut(&mut self, mut lines: Vec<u8>) -> Vec<Vec<u8>> {
        if !self.begun && !lines.is_empty() {
            self.begun = true;
            // The parser counts the byte order mark of three bytes as one byte. So it must never see one: an
            // empty line replaces it.
            let mark = if lines.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            lines.splice(..mark, *b"\n");
        }
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for (at, line) in lines.split_inclusive(|&b| b == b'\n').enumerate() {
            match pieces.last_mut() {
                Some(piece) if !at.is_multiple_of(LINES_AT_ONCE) => piece.extend_from_slice(line),
                _ => pieces.push(line.to_vec()),
            }
        }
        pieces
    }
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
    let mut lines = Lines::default();
    let chunks = bytes.map(Some).chain(stream::once(ready(None)));
    chunks
        .flat_map(move |chunk| stream::iter(lines.pieces(chunk)))
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
            ready((!over).then_some(event))
        })
}
