//! Fetches weights from other devices of the ring that have them already, and the rest from the head.
//!
//! A device that has the next pieces is asked for them. If it does not send them, or sends bytes with other
//! hashes than in the head's list, it is not asked again. These pieces then come from another device or
//! from the head. So a device that lies or fails costs only time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::fetch::FromHead;
use super::session::Shared;
use crate::ring::frame::{Frame, NodeAddress};
use crate::ring::link::{Link, LinkError, Network, Purpose};
use crate::ring::weights::{Digest, PieceSet, PieceSource, Take, WeightsError};
use baton_terminal::chain;

/// Wait between two checks for other messages.
const SLICE: Duration = Duration::from_millis(20);
/// How long a device that was configured at the same moment may take to learn of this one.
pub(super) const KNOWN: Duration = Duration::from_millis(500);
/// Time between two reports to the head while local pieces are checked.
const REPORT: Duration = Duration::from_millis(500);
/// Most devices that are asked.
const PEERS_MAX: usize = 8;

/// A device that has pieces.
struct PieceHolder {
    node: NodeAddress,
    link: Link,
    available: PieceSet,
}

/// The devices of the ring.
pub(super) struct FromRing<'a> {
    pub(super) head: FromHead<'a>,
    pub(super) shared: &'a Arc<Shared>,
    network: &'a Arc<dyn Network>,
    model: Digest,
    /// Devices that were not asked yet, the last one first.
    unasked: Vec<NodeAddress>,
    peers: Vec<PieceHolder>,
    /// How long one answer of a device other than the head may take.
    patience: Duration,
    /// When the head was last told that local pieces are being checked.
    reported: Option<Instant>,
}

impl<'a> FromRing<'a> {
    pub(super) fn new(
        head: FromHead<'a>,
        shared: &'a Arc<Shared>,
        network: &'a Arc<dyn Network>,
        (model, others): (Digest, &[NodeAddress]),
    ) -> Self {
        // A device that makes no progress for twice the head's patience counts as lost.
        let patience = head.patience / 2;
        let unasked = others.iter().take(PEERS_MAX).rev().cloned().collect();
        Self { head, shared, network, model, unasked, peers: Vec::new(), patience, reported: None }
    }

    /// Asks all devices which pieces they have; a device that does not answer has none.
    fn ask_all(&mut self) -> Result<(), WeightsError> {
        while let Some(node) = self.unasked.pop() {
            match self.ask(&node) {
                Ok((link, available)) => self.peers.push(PieceHolder { node, link, available }),
                Err(err @ WeightsError::Superseded) => return Err(err),
                Err(err) => {
                    tracing::debug!(address = %node.address, err = %chain(&err), "a device has no weights");
                }
            }
            self.head.ask(&Frame::FetchProgress)?;
        }
        Ok(())
    }

    fn ask(&mut self, node: &NodeAddress) -> Result<(Link, PieceSet), WeightsError> {
        let begun = Instant::now();
        let mut link = loop {
            match self.network.connect(node, Purpose::Weights, self.patience) {
                Ok(link) => break link,
                Err(LinkError::Refused | LinkError::Closed) if begun.elapsed() < KNOWN => {
                    self.wanted()?;
                    std::thread::sleep(SLICE);
                }
                Err(err) => return Err(WeightsError::Source(chain(&err))),
            }
        };
        let asked = link.sender.send(&Frame::AskPieces { model: self.model }.encode(), self.patience);
        asked.map_err(|err| WeightsError::Source(chain(&err)))?;
        match self.answer(&mut link)? {
            Frame::HasPieces(bytes) => Ok((link, PieceSet::read(bytes))),
            _ => Err(WeightsError::Source("it answered with another frame".into())),
        }
    }

    /// Fails if a newer part has arrived or the session has ended.
    fn wanted(&mut self) -> Result<(), WeightsError> {
        match self.head.superseded() || self.shared.ended.load(Ordering::Acquire) {
            true => Err(WeightsError::Superseded),
            false => Ok(()),
        }
    }

    /// Returns the next frame of a device.
    fn answer(&mut self, link: &mut Link) -> Result<Frame, WeightsError> {
        let begun = Instant::now();
        loop {
            match link.receiver.receive(SLICE) {
                Ok(bytes) => {
                    return Frame::decode(&bytes).map_err(|err| WeightsError::Source(err.to_string()));
                }
                Err(LinkError::TimedOut) if begun.elapsed() < self.patience => self.wanted()?,
                Err(err) => return Err(WeightsError::Source(chain(&err))),
            }
        }
    }

    /// Fetches pieces from this device until it fails. Returns the first piece that did not arrive, and the
    /// result.
    fn take_from(
        &mut self,
        peer: &mut PieceHolder,
        pieces: Range<u32>,
        take: Take<'_>,
    ) -> (u32, Result<(), WeightsError>) {
        let ask = Frame::FetchPieces { first: pieces.start, count: pieces.end - pieces.start };
        if let Err(err) = peer.link.sender.send(&ask.encode(), self.patience) {
            return (pieces.start, Err(WeightsError::Source(chain(&err))));
        }
        for index in pieces.clone() {
            let taken = self.answer(&mut peer.link).and_then(|frame| match frame {
                Frame::Piece(piece) if piece.index == index => take(index, &piece.bytes),
                _ => Err(WeightsError::Source(format!("it did not answer with piece {index}"))),
            });
            if let Err(err) = taken {
                return (index, Err(err));
            }
        }
        (pieces.end, Ok(()))
    }
}

/// Returns the device to ask for the next pieces, or `None` for the head, and the end of these pieces.
fn next(peers: &[PieceHolder], pieces: Range<u32>) -> (Option<usize>, u32) {
    let most = (0..peers.len()).max_by_key(|at| (peers[*at].available.run(pieces.clone()), usize::MAX - at));
    match most.map(|at| (at, peers[at].available.run(pieces.clone()))) {
        Some((at, run)) if run > 0 => (Some(at), pieces.start + run),
        _ => {
            let has = |index: &u32| peers.iter().any(|peer| peer.available.has(*index));
            (None, pieces.clone().find(has).unwrap_or(pieces.end))
        }
    }
}

impl PieceSource for FromRing<'_> {
    fn manifest(&mut self) -> Result<Vec<u8>, WeightsError> {
        self.head.manifest()
    }

    fn pieces(&mut self, pieces: Range<u32>, take: Take<'_>) -> Result<(), WeightsError> {
        self.ask_all()?;
        let mut at = pieces.start;
        while at < pieces.end {
            let (peer, end) = next(&self.peers, at..pieces.end);
            let Some(peer) = peer else {
                self.head.pieces(at..end, take)?;
                at = end;
                continue;
            };
            let mut peer = self.peers.remove(peer);
            let (came, taken) = self.take_from(&mut peer, at..end, take);
            at = came;
            match taken {
                Ok(()) => self.peers.push(peer),
                Err(err @ (WeightsError::Source(_) | WeightsError::Forged { .. })) => {
                    tracing::warn!(address = %peer.node.address, err = %chain(&err), "weights of a device are not used");
                }
                Err(err) => return Err(err),
            }
            self.head.ask(&Frame::FetchProgress)?;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), WeightsError> {
        self.wanted()?;
        // A device without progress counts as lost to the head.
        if self.reported.is_none_or(|reported| reported.elapsed() >= REPORT) {
            self.reported = Some(Instant::now());
            self.head.ask(&Frame::FetchProgress)?;
        }
        Ok(())
    }
}
