//! What the rooms of the head's core have in common: where they put effects, and what they answer.

use std::time::Duration;

use super::types::{Effect, HeadWork};
use crate::core::{Give, LinkEffect, LinkId, Node, Note, Purpose, WorkId};
use crate::wire::frame::Frame;

/// Collects the effects of one event, in order, and gives out numbers.
///
/// Numbers of links that are opened here are even and never used twice.
#[derive(Debug, Default)]
pub(in crate::core) struct Fx {
    effects: Vec<Effect>,
    links: u64,
    works: u64,
    /// The engine work under way.
    work: Option<WorkId>,
}

impl Fx {
    /// Adds an effect.
    pub(in crate::core) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Begins to open a link, and returns its number.
    pub(in crate::core) fn connect(&mut self, to: Node, purpose: Purpose, within: Duration) -> LinkId {
        let link = LinkId(self.links * 2);
        self.links += 1;
        self.effects.push(Effect::Link(LinkEffect::Connect { link, to, purpose, within }));
        link
    }

    /// Sends a frame.
    pub(in crate::core) fn send(&mut self, link: LinkId, frame: Frame) {
        self.effects.push(Effect::Link(LinkEffect::Send(link, frame)));
    }

    /// Closes a link. Nothing comes from it any more.
    pub(in crate::core) fn close(&mut self, link: LinkId) {
        self.effects.push(Effect::Link(LinkEffect::Close(link)));
    }

    /// Lets the host answer on a link by itself.
    pub(in crate::core) fn give(&mut self, link: LinkId, give: Give) {
        self.effects.push(Effect::Give(link, give));
    }

    /// Tells people.
    pub(in crate::core) fn note(&mut self, note: Note) {
        self.effects.push(Effect::Note(note));
    }

    /// Begins work of the engine, and returns its number. No other work may be under way.
    pub(in crate::core) fn compute(&mut self, work: HeadWork) -> WorkId {
        debug_assert!(self.work.is_none(), "one work at a time");
        self.works += 1;
        let id = WorkId(self.works);
        self.work = Some(id);
        self.effects.push(Effect::Compute(id, work));
        id
    }

    /// Returns whether the engine works.
    pub(in crate::core) fn is_busy(&self) -> bool {
        self.work.is_some()
    }

    /// Notes that a work has ended. Returns whether it was the one under way.
    pub(in crate::core) fn computed(&mut self, work: WorkId) -> bool {
        let known = self.work == Some(work);
        if known {
            self.work = None;
        }
        known
    }

    /// Returns the effects since the last call.
    pub(in crate::core) fn take(&mut self) -> Vec<Effect> {
        std::mem::replace(&mut self.effects, Vec::with_capacity(8))
    }
}

/// Whether a room has reached what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum Progress<T> {
    /// It waits for an event.
    Waiting,
    /// It has.
    Done(T),
}

/// What went wrong in the ring. Places are those of the epoch; place 0 is the head, which is never lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum Fault {
    /// A device is gone.
    Lost {
        /// Its place.
        place: usize,
        /// What is known.
        words: String,
    },
    /// A device sent something invalid.
    Wrong {
        /// Its place.
        place: usize,
        /// What it was.
        words: String,
    },
    /// The link to or from a device broke.
    Link {
        /// Its place.
        place: usize,
        /// What is known.
        words: String,
    },
}

impl Fault {
    /// Returns what is known.
    pub(in crate::core) fn words(&self) -> &str {
        match self {
            Self::Lost { words, .. } | Self::Wrong { words, .. } | Self::Link { words, .. } => words,
        }
    }

    /// Returns the place of the device at fault.
    pub(in crate::core) fn place(&self) -> usize {
        match self {
            Self::Lost { place, .. } | Self::Wrong { place, .. } | Self::Link { place, .. } => *place,
        }
    }

    /// Returns whether a device is at fault for certain. A broken link may follow from another fault.
    pub(in crate::core) fn is_certain(&self) -> bool {
        !matches!(self, Self::Link { .. })
    }
}
