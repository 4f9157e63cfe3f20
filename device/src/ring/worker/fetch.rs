//! Fetches weights over the control channel, between its other messages.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::session::HeadSender;
use crate::ring::frame::{Configure, Frame};
use crate::ring::weights::{BATCH, PieceSource, Take, WeightsError};

/// Most late frames that one abandoned request may leave behind.
const LATE_MAX: u32 = BATCH + 1;

/// The head, as a source of the whole file.
pub(super) struct FromHead<'a> {
    pub(super) outgoing: &'a HeadSender,
    pub(super) inbox: &'a Receiver<Frame>,
    /// A newer part that arrived meanwhile; fetching then ends.
    pub(super) newer: &'a mut Option<Box<Configure>>,
    /// How long one answer may take.
    pub(super) patience: Duration,
}

impl FromHead<'_> {
    pub(super) fn ask(&self, frame: &Frame) -> Result<(), WeightsError> {
        self.outgoing.send(frame).map_err(|err| WeightsError::Source(err.to_string()))
    }

    /// Returns whether a newer part has arrived.
    pub(super) fn superseded(&mut self) -> bool {
        if let Ok(Frame::Configure(newer)) = self.inbox.try_recv() {
            *self.newer = Some(newer);
        }
        self.newer.is_some()
    }

    /// Returns the answer that `meant` takes from a frame. Late answers to requests of an abandoned part
    /// may come before it.
    fn answer_to<T>(&mut self, what: &str, meant: impl Fn(Frame) -> Option<T>) -> Result<T, WeightsError> {
        for _ in 0..=LATE_MAX {
            let frame = self.answer()?;
            let may_be_late = matches!(frame, Frame::Piece(_) | Frame::Manifest(_));
            match meant(frame) {
                Some(answer) => return Ok(answer),
                None if may_be_late => {}
                None => break,
            }
        }
        Err(WeightsError::Source(format!("the head did not answer with {what}")))
    }

    /// Returns the next frame, unless it is a newer part.
    fn answer(&mut self) -> Result<Frame, WeightsError> {
        let until = Instant::now() + self.patience;
        match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Frame::Configure(newer)) => {
                *self.newer = Some(newer);
                Err(WeightsError::Superseded)
            }
            Ok(frame) => Ok(frame),
            Err(RecvTimeoutError::Timeout) => {
                Err(WeightsError::Source(format!("the head gave nothing within {:?}", self.patience)))
            }
            Err(RecvTimeoutError::Disconnected) => Err(WeightsError::Source("the head is gone".into())),
        }
    }
}

impl PieceSource for FromHead<'_> {
    fn manifest(&mut self) -> Result<Vec<u8>, WeightsError> {
        self.ask(&Frame::FetchManifest)?;
        self.answer_to("the list of pieces", |frame| match frame {
            Frame::Manifest(bytes) => Some(bytes),
            _ => None,
        })
    }

    fn pieces(&mut self, pieces: Range<u32>, take: Take<'_>) -> Result<(), WeightsError> {
        self.ask(&Frame::FetchPieces { first: pieces.start, count: pieces.end - pieces.start })?;
        for index in pieces {
            let bytes = self.answer_to(&format!("piece {index}"), |frame| match frame {
                Frame::Piece(piece) if piece.index == index => Some(piece.bytes),
                _ => None,
            })?;
            take(index, &bytes)?;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), WeightsError> {
        if self.superseded() { Err(WeightsError::Superseded) } else { Ok(()) }
    }
}
