//! Takes one run of pieces after the other, from another worker or from the head, and stores each.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::pieces::{neighbours, whom_to_ask};
use super::{Fetch, FetchNews, Stage};
use crate::core::worker::base::Base;
use crate::core::worker::types::{DiskEvent, DiskWork, WorkerNews};
use crate::core::{Bug, LinkEffect, LinkId, Note};
use crate::wire::frame::{Frame, PieceData};

/// The link is held as soon as so many pieces wait for the disk; one more may come.
const WAITING_MAX: usize = 3;

/// Who was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Head,
    Peer(LinkId),
}

/// Why a run ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Broken {
    /// Whoever was asked is at fault.
    Source(String),
    /// This device's disk is.
    Disk(String),
}

/// What the disk does with the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storing {
    Nothing,
    Piece { bytes: u64 },
    Syncing,
}

/// One run of pieces.
#[derive(Debug)]
pub(super) struct Taking {
    from: From,
    run: Range<u32>,
    /// The next piece that must come.
    next: u32,
    /// Pieces that came and wait for the disk.
    waiting: VecDeque<PieceData>,
    held: bool,
    storing: Storing,
    until: Duration,
    broken: Option<Broken>,
}

impl Taking {
    /// Returns how many pieces the head still has to send.
    pub(super) fn owed_by_head(&self) -> u32 {
        if self.from == From::Head { self.run.end - self.next } else { 0 }
    }

    /// Returns whether the head's link is not read now.
    pub(super) fn holds_head(&self) -> bool {
        self.held && self.from == From::Head
    }

    /// The head's link is gone.
    pub(super) fn lose_head(&mut self) {
        self.held &= self.from != From::Head;
    }

    /// Returns when the next piece is late. Time that this device's disk takes does not count.
    pub(super) fn until(&self) -> Option<Duration> {
        let waits = self.storing == Storing::Nothing && self.broken.is_none();
        (waits && self.next < self.run.end).then_some(self.until)
    }
}

impl Fetch {
    fn link_of(&self, from: From) -> LinkId {
        match from {
            From::Head => self.control,
            From::Peer(link) => link,
        }
    }

    /// Asks for the next run; something is missing.
    pub(super) fn ask_for_pieces(&mut self, base: &mut Base) {
        let pieces = neighbours(self.missing.iter().map(|(piece, _)| *piece));
        let (peer, end) = whom_to_ask(&self.peers, &pieces);
        let from = peer.map_or(From::Head, |at| From::Peer(self.peers[at].link));
        let ask = Frame::FetchPieces { first: pieces.start, count: end - pieces.start };
        base.send(self.link_of(from), ask);
        self.stage = Stage::Taking(Taking {
            from,
            run: pieces.start..end,
            next: pieces.start,
            waiting: VecDeque::new(),
            held: false,
            storing: Storing::Nothing,
            until: base.now + self.patience_with(from, base),
            broken: None,
        });
    }

    fn patience_with(&self, from: From, base: &Base) -> Duration {
        match from {
            From::Head => base.setup.patience,
            From::Peer(_) => Self::peer_patience(base),
        }
    }

    /// Takes a frame of a worker that was asked before.
    pub(super) fn peer_sent(&mut self, link: LinkId, frame: Frame, base: &mut Base) -> FetchNews {
        match (&self.stage, frame) {
            (Stage::Taking(taking), Frame::Piece(piece)) if taking.from == From::Peer(link) => {
                self.piece(piece, base)
            }
            _ => self.peer_failed(link, ("it sent a frame that was not asked for", true), base),
        }
    }

    /// Takes a piece of the one that was asked.
    pub(super) fn piece(&mut self, piece: PieceData, base: &mut Base) -> FetchNews {
        let Stage::Taking(taking) = &mut self.stage else { return FetchNews::Going };
        let want = taking.next;
        taking.next = (want + 1).min(taking.run.end);
        if taking.broken.is_some() {
            return FetchNews::Going;
        }
        if piece.index != want || want >= taking.run.end {
            let words = format!("it did not answer with piece {want}");
            return self.source_failed((words, true), base);
        }
        taking.waiting.push_back(piece);
        if taking.waiting.len() >= WAITING_MAX && !taking.held {
            taking.held = true;
            let from = taking.from;
            let link = self.link_of(from);
            base.link(LinkEffect::Hold(link));
        }
        self.store(base)
    }

    /// Lets the disk do the next thing with the run, if it is free. Ends the run after its last piece.
    fn store(&mut self, base: &mut Base) -> FetchNews {
        let missing = self.missing.iter().map(|(_, bytes)| bytes).sum();
        let Stage::Taking(taking) = &mut self.stage else { return FetchNews::Going };
        if taking.storing != Storing::Nothing {
            return FetchNews::Going;
        }
        if let Some(PieceData { index, bytes }) = taking.waiting.pop_front() {
            taking.storing = Storing::Piece { bytes: bytes.len() as u64 };
            base.work_on_disk(DiskWork::Put { index, bytes, missing });
        } else if taking.broken.is_some() || taking.next >= taking.run.end {
            taking.storing = Storing::Syncing;
            base.work_on_disk(DiskWork::Sync { missing });
        }
        self.release_if_room(base);
        FetchNews::Going
    }

    fn release_if_room(&mut self, base: &mut Base) {
        let Stage::Taking(taking) = &mut self.stage else { return };
        if taking.waiting.len() < WAITING_MAX {
            self.release(base);
        }
    }

    /// Reads from the one that was asked again.
    pub(super) fn release(&mut self, base: &mut Base) {
        let Stage::Taking(taking) = &mut self.stage else { return };
        if std::mem::take(&mut taking.held) {
            let from = taking.from;
            let link = self.link_of(from);
            base.link(LinkEffect::Release(link));
        }
    }

    /// Takes the result of storing.
    pub(super) fn stored(&mut self, event: DiskEvent, base: &mut Base) -> FetchNews {
        let Stage::Taking(taking) = &mut self.stage else { return FetchNews::Going };
        let (from, storing) = (taking.from, std::mem::replace(&mut taking.storing, Storing::Nothing));
        match (storing, event) {
            (Storing::Piece { bytes }, DiskEvent::Done) => {
                self.missing.pop_front();
                let left: u64 = self.missing.iter().map(|(_, bytes)| bytes).sum();
                if bytes > 0 {
                    base.tell(WorkerNews::Fetching { done: self.total - left, total: self.total });
                }
                let until = base.now + self.patience_with(from, base);
                if let Stage::Taking(taking) = &mut self.stage {
                    taking.until = until;
                }
                self.store(base)
            }
            (Storing::Piece { .. }, DiskEvent::Forged(index)) => {
                // What came behind it would take its place.
                taking.waiting.clear();
                let words = format!("piece {index} has other bytes than the list of pieces says");
                self.source_failed((words, true), base)
            }
            (Storing::Piece { .. }, event) => {
                taking.broken.get_or_insert(Broken::Disk(disk_words(event)));
                taking.waiting.clear();
                self.store(base)
            }
            (Storing::Syncing, DiskEvent::Done) => self.run_ended(base),
            (Storing::Syncing | Storing::Nothing, event) => {
                let words = disk_words(event);
                self.failed(words, base)
            }
        }
    }

    /// A run is over, and what came of it is on the disk.
    fn run_ended(&mut self, base: &mut Base) -> FetchNews {
        self.release(base);
        let Stage::Taking(taking) = &mut self.stage else { return FetchNews::Going };
        match (taking.broken.take(), taking.from) {
            (Some(Broken::Disk(words)), _) | (Some(Broken::Source(words)), From::Head) => {
                self.failed(words, base)
            }
            (_, from) => {
                if from != From::Head {
                    self.report(base);
                }
                self.stage = Stage::Looking;
                self.go_on(base)
            }
        }
    }

    /// Whoever was asked sent nothing in time.
    pub(super) fn too_late(&mut self, base: &mut Base) -> FetchNews {
        let Stage::Taking(taking) = &self.stage else { return FetchNews::Going };
        let patience = self.patience_with(taking.from, base);
        self.source_failed((format!("it gave nothing within {patience:?}"), true), base)
    }

    /// Whoever was asked fails; `open` if its link is. The run ends as soon as what came is on the disk.
    fn source_failed(&mut self, (words, open): (String, bool), base: &mut Base) -> FetchNews {
        let Stage::Taking(taking) = &mut self.stage else { return FetchNews::Going };
        let words = match taking.from {
            From::Head => format!("fetch weights from the head: {words}"),
            From::Peer(link) => return self.peer_failed(link, (&words, open), base),
        };
        taking.broken.get_or_insert(Broken::Source(words));
        self.store(base)
    }

    /// A worker sends nothing that can be used, or its link is gone; it is not asked again.
    pub(super) fn peer_failed(
        &mut self,
        link: LinkId,
        (words, open): (&str, bool),
        base: &mut Base,
    ) -> FetchNews {
        let asked_again = open && base.planted.is(Bug::ForgerAskedAgain);
        if let Some(at) = self.peers.iter().position(|peer| peer.link == link)
            && !asked_again
        {
            let peer = self.peers.remove(at);
            let words = words.to_owned();
            base.note(Note::WeightsNotUsed { address: peer.node.address, words });
            if open {
                base.close(link);
            }
        }
        let Stage::Taking(taking) = &mut self.stage else { return FetchNews::Going };
        if taking.from == From::Peer(link) {
            taking.held &= asked_again;
            taking.broken.get_or_insert(Broken::Source(words.to_owned()));
            return self.store(base);
        }
        FetchNews::Going
    }
}

fn disk_words(event: DiskEvent) -> String {
    match event {
        DiskEvent::Failed(words) => words,
        other => format!("the disk gave {other:?}"),
    }
}
