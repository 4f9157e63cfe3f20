//! Fetching weights over the control channel, between whatever else comes there.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::session::Outgoing;
use crate::ring::frame::{Configure, Frame};
use crate::ring::weights::{PieceSource, Take, WeightsError};

/// The head, as the one who has the whole file.
pub(super) struct FromHead<'a> {
    pub(super) outgoing: &'a Outgoing,
    pub(super) inbox: &'a Receiver<Frame>,
    /// A newer part that came meanwhile: fetching ends.
    pub(super) newer: &'a mut Option<Box<Configure>>,
    /// How long one answer may take.
    pub(super) patience: Duration,
}

impl FromHead<'_> {
    fn ask(&self, frame: &Frame) -> Result<(), WeightsError> {
        self.outgoing.send(frame).map_err(|err| WeightsError::Source(err.to_string()))
    }

    /// The next frame that is an answer.
    fn answer(&mut self) -> Result<Frame, WeightsError> {
        let until = Instant::now() + self.patience;
        match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Frame::Configure(newer)) => {
                *self.newer = Some(newer);
                Err(WeightsError::Source("a newer plan came".into()))
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
        match self.answer()? {
            Frame::Manifest(bytes) => Ok(bytes),
            _ => Err(WeightsError::Source("the head answered with another frame".into())),
        }
    }

    fn pieces(&mut self, pieces: Range<u32>, take: Take<'_>) -> Result<(), WeightsError> {
        self.ask(&Frame::FetchPieces { first: pieces.start, count: pieces.end - pieces.start })?;
        for index in pieces {
            match self.answer()? {
                Frame::Piece(piece) if piece.index == index => take(index, &piece.bytes)?,
                _ => return Err(WeightsError::Source(format!("the head did not answer with piece {index}"))),
            }
        }
        Ok(())
    }
}
