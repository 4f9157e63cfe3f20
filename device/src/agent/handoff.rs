//! Fetches keys and values for the driver: frame by frame, checked, and again after a cut.
//!
//! Frames are checked on a thread of their own. Never: holds more than the rows of this device's own model
//! for its own prompt. Always: exactly one last message, rows that are whole and sound or a reason, and
//! nothing after it.

use std::sync::Arc;
use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_engine::rows::rows_are_sound;
use baton_engine::{KvRows, KvWidth};
use baton_protocol::{KvFrames, KvLayer, KvLayout, KvTicket};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Agent;
use super::prepare::Prepared;
use crate::client::KvSource;
use crate::local::KvSide;
use crate::relay::KvNews;

/// Pieces of the stream that may wait to be checked.
const PIECES_MAX: usize = 16;
/// News that may wait for the core.
const NEWS_MAX: usize = 64;
/// Most times that a fetch is taken up again.
const CUTS_MAX: usize = 3;
/// Longest pause in a fetch, and before it begins.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A fetch under way. Dropping it ends the fetch.
pub(super) struct KvFetch {
    pub(super) news: mpsc::Receiver<KvNews>,
    task: JoinHandle<()>,
}

/// What the checking thread gets.
enum Piece {
    Bytes(Bytes),
    /// The stream was cut: from which byte on does it go on?
    Cut(oneshot::Sender<u64>),
}

impl KvFetch {
    /// Begins to fetch.
    pub(super) fn begin(source: KvSource, ticket: KvTicket, side: KvSide) -> KvFetch {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let task = tokio::spawn(async move {
            let last = match fetched(&source, &ticket, &side, sender.clone()).await {
                Ok(rows) => KvNews::Whole(Arc::new(rows)),
                Err(reason) => KvNews::Failed { reason },
            };
            // If nobody listens any more, the answer needs them no more.
            let _unheard = sender.send(last).await;
        });
        KvFetch { news, task }
    }

    /// Makes a fetch that has failed.
    fn failed(reason: &str) -> KvFetch {
        let (sender, news) = mpsc::channel(1);
        let _first = sender.try_send(KvNews::Failed { reason: reason.to_owned() });
        KvFetch { news, task: tokio::spawn(async {}) }
    }
}

impl Drop for KvFetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends a fetch, if there is one, and joins its task.
pub(super) async fn end(fetch: &mut Option<KvFetch>) {
    if let Some(mut fetch) = fetch.take() {
        fetch.task.abort();
        // A cancelled task always ends with a cancellation error.
        let _cancelled = (&mut fetch.task).await;
    }
}

impl Agent {
    /// Begins to fetch the keys and values of a ticket.
    pub(super) fn fetch_kv(&self, prepared: &Prepared, ticket: KvTicket) -> KvFetch {
        let side = self.device.as_ref().and_then(|device| device.worker.kv().ok());
        match (&self.cloud, &prepared.request, side) {
            (Some(client), Some(request), Some(side)) => {
                KvFetch::begin(client.kv_source(request), ticket, side)
            }
            _ => KvFetch::failed("this device takes none"),
        }
    }
}

async fn fetched(
    source: &KvSource,
    ticket: &KvTicket,
    side: &KvSide,
    news: mpsc::Sender<KvNews>,
) -> Result<KvRows, String> {
    let format: KvFormat = ticket.format.as_str().parse().map_err(|_| "an unknown format".to_owned())?;
    let widths = side.widths.iter();
    let layers =
        widths.map(|width| KvLayer { heads: width.heads, token_bytes: width.token_bytes(format) }).collect();
    let tokens = ticket.tokens as usize;
    let layout = KvLayout::new(ticket.format, tokens, layers, (source.request_id(), &ticket.prompt_sha256));
    layout.check(ticket).map_err(|err| err.to_string())?;
    let (pieces, waiting) = mpsc::channel(PIECES_MAX);
    let widths = Arc::clone(&side.widths);
    let checked = tokio::task::spawn_blocking(move || checked(waiting, layout, (format, &widths), &news));
    let lost = pump(source, ticket.bytes, pieces).await;
    let checked = checked.await.map_err(|_| "the checks have failed".to_owned())?;
    // Frames that are wrong say more than the stream that they came by.
    checked.map_err(|wrong| wrong.or(lost).unwrap_or_else(|| "the fetch has ended".to_owned()))
}

/// Hands the stream's pieces on, and takes it up again after a cut. Returns why it ended before its end.
async fn pump(source: &KvSource, all: u64, pieces: mpsc::Sender<Piece>) -> Option<String> {
    let mut from = 0;
    for _ in 0..=CUTS_MAX {
        let lost = match tokio::time::timeout(SILENCE_MAX, source.frames(from)).await {
            Ok(Ok(stream)) => {
                let mut stream = std::pin::pin!(stream);
                loop {
                    match tokio::time::timeout(SILENCE_MAX, stream.next()).await {
                        Ok(Some(Ok(piece))) => pieces.send(Piece::Bytes(piece)).await.ok()?,
                        Ok(Some(Err(fault))) => break fault.to_string(),
                        Ok(None) => break "the stream was cut".to_owned(),
                        Err(_) => break "the stream was silent".to_owned(),
                    }
                }
            }
            Ok(Err(fault)) => return Some(fault.to_string()),
            Err(_) => "no answer".to_owned(),
        };
        let (tell, told) = oneshot::channel();
        pieces.send(Piece::Cut(tell)).await.ok()?;
        from = told.await.ok()?;
        if from >= all {
            return None;
        }
        tracing::debug!(from, lost, "keys and values are fetched on");
    }
    Some(format!("the line was cut {} times", CUTS_MAX + 1))
}

/// Checks frames as they come. An error without a reason means that the stream has ended.
fn checked(
    mut pieces: mpsc::Receiver<Piece>,
    layout: KvLayout,
    (format, widths): (KvFormat, &[KvWidth]),
    news: &mpsc::Sender<KvNews>,
) -> Result<KvRows, Option<String>> {
    let mut rows = KvRows::new(format, layout.tokens(), layout.layers().len());
    let mut frames = KvFrames::new(layout);
    while let Some(piece) = pieces.blocking_recv() {
        let bytes = match piece {
            Piece::Bytes(bytes) => bytes,
            Piece::Cut(tell) => {
                frames.cut();
                // The stream's end waits for it.
                let _gone = tell.send(frames.whole_bytes());
                continue;
            }
        };
        let (before, mut unsound) = (frames.whole_bytes(), None);
        let taken = frames.push(&bytes, |place, bytes| {
            match widths.get(place.layer).is_some_and(|width| rows_are_sound(format, *width, bytes)) {
                true => rows.push(place.layer, bytes),
                false => unsound = Some(place.layer),
            }
        });
        taken.map_err(|err| Some(err.to_string()))?;
        if let Some(layer) = unsound {
            return Err(Some(format!("layer {layer} has values that are no finite numbers")));
        }
        if frames.is_complete() {
            return Ok(rows);
        }
        if frames.whole_bytes() > before
            && news.blocking_send(KvNews::Come { bytes: frames.whole_bytes() }).is_err()
        {
            return Err(None);
        }
    }
    Err(None)
}
