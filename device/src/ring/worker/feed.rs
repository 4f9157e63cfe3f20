//! Giving pieces of the model to other devices of the ring, so that not all of them have to come from its head.
//!
//! One thread for each device that asks, few of them, each bounded in what it reads at once; it ends with its link, with
//! the session, or where nothing is asked for a while. Who asks checks every piece by the head's list.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::WorkerOptions;
use super::session::Shared;
use crate::ring::frame::{Frame, PieceOf};
use crate::ring::link::{Link, LinkError};
use crate::ring::weights::{BATCH, Stock};

/// Devices that are fed at once.
const FED_MAX: usize = 4;
/// Between two looks at whether the session goes on.
const SLICE: Duration = Duration::from_millis(50);

/// Where pieces lie, and how long whoever takes them may be silent or slow.
#[derive(Debug, Clone)]
pub(super) struct Larder {
    files: Vec<PathBuf>,
    folder: PathBuf,
    patience: Duration,
}

impl Larder {
    pub(super) fn of(options: &WorkerOptions) -> Self {
        Self { files: options.files.clone(), folder: options.folder.clone(), patience: options.patience }
    }

    /// Feeds whoever opened this link, on a thread of its own.
    pub(super) fn feed(&self, shared: &Arc<Shared>, link: Link) {
        if shared.fed.fetch_add(1, Ordering::AcqRel) >= FED_MAX {
            shared.fed.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (own, larder) = (Arc::clone(shared), self.clone());
        let fed = move || {
            larder.give(&own, link);
            own.fed.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(err) = std::thread::Builder::new().name("baton-ring-feed".into()).spawn(fed) {
            shared.fed.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%err, "a device gets no weights from here");
        }
    }

    fn give(&self, shared: &Shared, mut link: Link) {
        let (mut stock, mut asked) = (None, Instant::now());
        while !shared.ended.load(Ordering::Acquire) && asked.elapsed() < self.patience {
            let frame = match link.receiver.receive(SLICE) {
                Ok(bytes) => Frame::decode(&bytes),
                Err(LinkError::TimedOut) => continue,
                Err(_) => return,
            };
            let answered = match frame {
                Ok(Frame::AskPieces { model }) => {
                    stock = Stock::of(model, &self.files, &self.folder);
                    let which = stock.as_ref().map(|stock| stock.which().bytes().to_vec());
                    self.send(&mut link, &Frame::HasPieces(which.unwrap_or_default()))
                }
                Ok(Frame::FetchPieces { first, count }) if count <= BATCH => {
                    (first..first.saturating_add(count)).all(|index| {
                        let piece = stock.as_ref().and_then(|stock: &Stock| stock.piece(index).ok());
                        piece.is_some_and(|bytes| {
                            self.send(&mut link, &Frame::Piece(PieceOf { index, bytes }))
                        })
                    })
                }
                _ => false,
            };
            if !answered {
                return;
            }
            // After what was asked for was sent, which may have taken long.
            asked = Instant::now();
        }
    }

    /// Whether it was taken.
    fn send(&self, link: &mut Link, frame: &Frame) -> bool {
        link.sender.send(&frame.encode(), self.patience).is_ok()
    }
}
