//! Fetches the weights of a part: first what is here, then what other workers have, the rest from the head.
//!
//! A device that has the next pieces is asked for them. If it does not send them, or sends bytes with other
//! hashes than in the head's list, it is not asked again; these pieces then come from elsewhere. So a
//! device that lies or fails costs only time. One question is under way at a time, and what came is kept
//! whatever follows.

mod pieces;
mod taking;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use super::base::Base;
use super::edge::{AGAIN, KNOWN};
use super::types::{DiskEvent, DiskWork, PartOf, WorkerNews};
use crate::core::{Digest, LinkId, Node, Note, Purpose};
use crate::wire::frame::Frame;
use pieces::Peer;
use taking::Taking;

/// Most devices that are asked.
const PEERS_MAX: usize = 8;
/// Time between two reports to the head while local pieces are checked.
const REPORT: Duration = Duration::from_millis(500);

/// What came of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FetchNews {
    /// It goes on.
    Going,
    /// Everything is in this file.
    Done(PathBuf),
    /// It cannot be done. A message for people.
    Failed(String),
    /// The head sent what nobody asked for.
    NotAsked,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// The disk looks for the part.
    Looking,
    /// The head is asked for the list of pieces.
    AskingList { until: Duration },
    /// The disk keeps the list.
    Keeping,
    /// Another worker is asked what it has.
    Asking { node: Node, begun: Duration, ask: Ask },
    /// Pieces come.
    Taking(Taking),
}

/// How far asking one worker is.
#[derive(Debug)]
enum Ask {
    Opening(LinkId),
    Again { at: Duration },
    Answer { link: LinkId, until: Duration },
}

/// Weights under way.
#[derive(Debug)]
pub(super) struct Fetch {
    control: LinkId,
    model: Digest,
    layers: Vec<usize>,
    /// Whether the header is right, so that the layers' pieces are known.
    has_header: bool,
    unasked: VecDeque<Node>,
    peers: Vec<Peer>,
    stage: Stage,
    /// Pieces that are missing, with their bytes, ascending.
    missing: VecDeque<(u32, u64)>,
    path: PathBuf,
    /// Bytes that the part lacked.
    total: u64,
    told_at: Option<Duration>,
}

impl Fetch {
    /// Begins to fetch what these layers need. The disk is free.
    pub(super) fn begin(
        control: LinkId,
        (model, layers): (Digest, Vec<usize>),
        others: &[Node],
        base: &mut Base,
    ) -> Self {
        let fetch = Self {
            control,
            model,
            layers,
            has_header: false,
            unasked: others.iter().take(PEERS_MAX).cloned().collect(),
            peers: Vec::new(),
            stage: Stage::Looking,
            missing: VecDeque::new(),
            path: PathBuf::new(),
            total: 0,
            told_at: None,
        };
        fetch.look(base);
        fetch
    }

    fn look(&self, base: &mut Base) {
        let layers = self.layers.clone();
        let part = if self.has_header { PartOf::Layers(layers.clone()) } else { PartOf::Header };
        base.work_on_disk(DiskWork::Look { model: self.model, part, layers });
    }

    /// Another device that makes no progress for twice the head's patience counts as lost to the head.
    fn peer_patience(base: &Base) -> Duration {
        base.setup.patience / 2
    }

    /// Takes the result of the disk's work.
    pub(super) fn disk(&mut self, event: DiskEvent, base: &mut Base) -> FetchNews {
        match (&mut self.stage, event) {
            (Stage::Looking, DiskEvent::Progress { done, total }) => {
                base.tell(WorkerNews::Checking { done, total });
                if self.told_at.is_none_or(|told| base.now >= told + REPORT) {
                    self.told_at = Some(base.now);
                    self.report(base);
                }
                FetchNews::Going
            }
            (_, DiskEvent::Progress { .. }) => FetchNews::Going,
            (Stage::Looking, DiskEvent::NoList) => {
                base.send(self.control, Frame::FetchManifest);
                self.stage = Stage::AskingList { until: base.now + base.setup.patience };
                FetchNews::Going
            }
            (Stage::Looking, DiskEvent::Whole(path)) => self.done(path, base),
            (Stage::Looking, DiskEvent::Lacks { pieces, path }) => {
                self.total = pieces.iter().map(|(_, bytes)| bytes).sum();
                (self.missing, self.path) = (pieces.into(), path);
                self.go_on(base)
            }
            (Stage::Keeping, DiskEvent::Done) => {
                self.stage = Stage::Looking;
                self.look(base);
                FetchNews::Going
            }
            (Stage::Taking(_), event) => self.stored(event, base),
            (_, DiskEvent::Failed(words)) => self.failed(words, base),
            (_, other) => self.failed(format!("the disk gave {other:?}"), base),
        }
    }

    /// Takes the next thing in hand: a device to ask, pieces to take, the next part, or the end.
    fn go_on(&mut self, base: &mut Base) -> FetchNews {
        if self.missing.is_empty() {
            if self.has_header {
                return self.done(self.path.clone(), base);
            }
            self.has_header = true;
            self.stage = Stage::Looking;
            self.look(base);
        } else if let Some(node) = self.unasked.pop_front() {
            let within = Self::peer_patience(base);
            let link = base.connect(node.clone(), Purpose::Weights, within);
            self.stage = Stage::Asking { node, begun: base.now, ask: Ask::Opening(link) };
        } else {
            self.ask_for_pieces(base);
        }
        FetchNews::Going
    }

    fn report(&self, base: &mut Base) {
        base.send(self.control, Frame::FetchProgress);
    }

    fn done(&mut self, path: PathBuf, base: &mut Base) -> FetchNews {
        self.close(base);
        FetchNews::Done(path)
    }

    fn failed(&mut self, words: impl Into<String>, base: &mut Base) -> FetchNews {
        self.close(base);
        FetchNews::Failed(words.into())
    }

    fn close(&mut self, base: &mut Base) {
        let asked = match &self.stage {
            Stage::Asking { ask: Ask::Opening(link) | Ask::Answer { link, .. }, .. } => Some(*link),
            _ => None,
        };
        let peers = std::mem::take(&mut self.peers).into_iter().map(|peer| peer.link);
        super::base::close_all(asked.into_iter().chain(peers), base);
    }

    /// Ends it. Works of the disk are aborted; what is held is read again.
    pub(super) fn abandon(&mut self, base: &mut Base) {
        base.abort();
        self.release(base);
        self.close(base);
    }

    /// Returns how many answers the head still owes, which come late.
    pub(super) fn owed(&self) -> u32 {
        match &self.stage {
            Stage::AskingList { .. } => 1,
            Stage::Taking(taking) => taking.owed_by_head(),
            _ => 0,
        }
    }

    /// Returns whether the control link is not read now, because the disk is slower than the head.
    pub(super) fn holds_control(&self) -> bool {
        matches!(&self.stage, Stage::Taking(taking) if taking.holds_head())
    }

    /// The control link is gone, so that it is not released.
    pub(super) fn lose_control(&mut self) {
        if let Stage::Taking(taking) = &mut self.stage {
            taking.lose_head();
        }
    }

    pub(super) fn owns(&self, link: LinkId) -> bool {
        let asked = match &self.stage {
            Stage::Asking { ask: Ask::Opening(own) | Ask::Answer { link: own, .. }, .. } => Some(*own),
            _ => None,
        };
        asked == Some(link) || self.peers.iter().any(|peer| peer.link == link)
    }

    pub(super) fn opened(&mut self, link: LinkId, opened: Result<(), String>, base: &mut Base) -> FetchNews {
        let until = base.now + Self::peer_patience(base);
        let Stage::Asking { begun, ask, .. } = &mut self.stage else { return FetchNews::Going };
        match opened {
            Ok(()) => {
                *ask = Ask::Answer { link, until };
                base.send(link, Frame::AskPieces { model: self.model });
                FetchNews::Going
            }
            // It may learn of this device a moment later.
            Err(_) if base.now < *begun + KNOWN => {
                *ask = Ask::Again { at: base.now + AGAIN };
                FetchNews::Going
            }
            Err(words) => self.has_none(words, base),
        }
    }

    /// The device that is asked counts as one that has nothing. Its link is closed already.
    fn has_none(&mut self, words: impl Into<String>, base: &mut Base) -> FetchNews {
        if let Stage::Asking { node, .. } = &self.stage {
            base.note(Note::NoWeightsFrom { address: node.address.clone(), words: words.into() });
        }
        self.asked(base)
    }

    /// A device was asked; the next one follows.
    fn asked(&mut self, base: &mut Base) -> FetchNews {
        self.stage = Stage::Looking;
        self.report(base);
        self.go_on(base)
    }

    /// Takes a frame of another worker.
    pub(super) fn heard(&mut self, link: LinkId, frame: Frame, base: &mut Base) -> FetchNews {
        if let Stage::Asking { node, ask: Ask::Answer { link: asked, .. }, .. } = &self.stage
            && *asked == link
        {
            let Frame::HasPieces(which) = frame else {
                base.close(link);
                return self.has_none("it answered with another frame", base);
            };
            self.peers.push(Peer { node: node.clone(), link, which });
            return self.asked(base);
        }
        self.peer_sent(link, frame, base)
    }

    /// A link to another worker is gone.
    pub(super) fn gone(&mut self, link: LinkId, words: &str, base: &mut Base) -> FetchNews {
        match &self.stage {
            Stage::Asking { ask: Ask::Answer { link: asked, .. }, .. } if *asked == link => {
                self.has_none(words, base)
            }
            _ => self.peer_failed(link, (words, false), base),
        }
    }

    /// Takes an answer of the head.
    pub(super) fn head_sent(&mut self, frame: Frame, base: &mut Base) -> FetchNews {
        match (&self.stage, frame) {
            (Stage::AskingList { .. }, Frame::Manifest(list)) => {
                self.stage = Stage::Keeping;
                base.work_on_disk(DiskWork::Keep { model: self.model, list });
                FetchNews::Going
            }
            (Stage::Taking(taking), Frame::Piece(piece)) if taking.owed_by_head() > 0 => {
                self.piece(piece, base)
            }
            _ => FetchNews::NotAsked,
        }
    }

    pub(super) fn on_time(&mut self, base: &mut Base) -> FetchNews {
        let now = base.now;
        if self.wake_at().is_none_or(|at| now < at) {
            return FetchNews::Going;
        }
        match &mut self.stage {
            Stage::AskingList { .. } => {
                let words = format!("the head gave nothing within {:?}", base.setup.patience);
                self.failed(words, base)
            }
            Stage::Asking { node, ask, .. } => match ask {
                Ask::Again { .. } => {
                    let within = Self::peer_patience(base);
                    *ask = Ask::Opening(base.connect(node.clone(), Purpose::Weights, within));
                    FetchNews::Going
                }
                Ask::Answer { link, .. } => {
                    base.close(*link);
                    self.has_none("it did not answer", base)
                }
                Ask::Opening(_) => FetchNews::Going,
            },
            Stage::Taking(_) => self.too_late(base),
            Stage::Looking | Stage::Keeping => FetchNews::Going,
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        match &self.stage {
            Stage::AskingList { until } => Some(*until),
            Stage::Asking { ask: Ask::Again { at }, .. } => Some(*at),
            Stage::Asking { ask: Ask::Answer { until, .. }, .. } => Some(*until),
            Stage::Taking(taking) => taking.until(),
            Stage::Asking { ask: Ask::Opening(_), .. } | Stage::Looking | Stage::Keeping => None,
        }
    }
}
