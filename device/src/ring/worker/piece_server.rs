//! Serves pieces of the model to other devices of the ring, so that the head does not have to send all of
//! them.
//!
//! One thread serves one device, and there are few threads; each request is bounded. A thread ends with its
//! link, with the session, or if nothing is asked for a while. The device that asks checks every piece by
//! the head's list.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::WorkerOptions;
use super::session::Shared;
use crate::ring::frame::{Frame, PieceData};
use crate::ring::link::{Link, LinkError};
use crate::ring::weights::{BATCH, LocalPieces};

/// Most devices that are served at once.
const SERVED_MAX: usize = 4;
/// Wait between two checks whether the session goes on.
const SLICE: Duration = Duration::from_millis(50);

/// Where pieces are stored, and how long a device that fetches them may be silent or slow.
#[derive(Debug, Clone)]
pub(super) struct PieceServer {
    files: Vec<PathBuf>,
    folder: PathBuf,
    patience: Duration,
}

impl PieceServer {
    pub(super) fn of(options: &WorkerOptions) -> Self {
        Self { files: options.files.clone(), folder: options.folder.clone(), patience: options.patience }
    }

    /// Serves the device that opened this link, on a separate thread.
    pub(super) fn serve_pieces(&self, shared: &Arc<Shared>, link: Link) {
        if shared.served.fetch_add(1, Ordering::AcqRel) >= SERVED_MAX {
            shared.served.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (own, piece_server) = (Arc::clone(shared), self.clone());
        let served = move || {
            piece_server.answer_requests(&own, link);
            own.served.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(err) = std::thread::Builder::new().name("baton-ring-pieces".into()).spawn(served) {
            shared.served.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%err, "a device gets no weights from here");
        }
    }

    fn answer_requests(&self, shared: &Shared, mut link: Link) {
        let (mut local, mut asked) = (None, Instant::now());
        while !shared.ended.load(Ordering::Acquire) && asked.elapsed() < self.patience {
            let frame = match link.receiver.receive(SLICE) {
                Ok(bytes) => Frame::decode(&bytes),
                Err(LinkError::TimedOut) => continue,
                Err(_) => return,
            };
            let answered = match frame {
                Ok(Frame::AskPieces { model }) => {
                    local = LocalPieces::of(model, &self.files, &self.folder);
                    let available = local.as_ref().map(|local| local.available().bytes().to_vec());
                    self.send(&mut link, &Frame::HasPieces(available.unwrap_or_default()))
                }
                Ok(Frame::FetchPieces { first, count }) if count <= BATCH => {
                    (first..first.saturating_add(count)).all(|index| {
                        let piece = local.as_ref().and_then(|local: &LocalPieces| local.piece(index).ok());
                        piece.is_some_and(|bytes| {
                            self.send(&mut link, &Frame::Piece(PieceData { index, bytes }))
                        })
                    })
                }
                _ => false,
            };
            if !answered {
                return;
            }
            // Counted from the end of the answer, which may have taken long.
            asked = Instant::now();
        }
    }

    /// Returns whether the frame was accepted.
    fn send(&self, link: &mut Link, frame: &Frame) -> bool {
        link.sender.send(&frame.encode(), self.patience).is_ok()
    }
}
