//! Gives pieces of the model to other devices of the ring, so that the head does not have to send all of
//! them.
//!
//! At most [`GIVEN_MAX`] devices at once, one question of each at a time. The device that asks checks every
//! piece by the head's list.

use std::collections::BTreeMap;
use std::time::Duration;

use super::base::Base;
use super::types::Effect;
use crate::core::{Give, LinkId};
use crate::wire::frame::Frame;

/// Most devices that are given pieces at once.
pub(super) const GIVEN_MAX: usize = 4;
/// Most pieces of one question.
pub(super) const BATCH: u32 = 16;

/// One device that is given pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    /// Whether it has said which model it asks for.
    asked: bool,
    /// Frames of the present answer that are still to be sent.
    left: u32,
    /// Since when it may ask.
    idle_since: Duration,
}

/// The links over which pieces are given.
#[derive(Debug, Default)]
pub(super) struct Giving(BTreeMap<LinkId, Given>);

impl Giving {
    pub(super) fn arrived(&mut self, link: LinkId, base: &mut Base) {
        if self.0.len() >= GIVEN_MAX {
            return base.close(link);
        }
        self.0.insert(link, Given { asked: false, left: 0, idle_since: base.now });
    }

    pub(super) fn owns(&self, link: LinkId) -> bool {
        self.0.contains_key(&link)
    }

    pub(super) fn heard(&mut self, link: LinkId, frame: &Frame, base: &mut Base) {
        let Some(given) = self.0.get_mut(&link) else { return };
        let give = match frame {
            // The other device may have the last frame before it is known here that it was sent.
            _ if given.left > 1 => None,
            Frame::AskPieces { model } => {
                (given.asked, given.left) = (true, given.left + 1);
                Some(Give::Which { model: *model })
            }
            Frame::FetchPieces { first, count } if given.asked && (1..=BATCH).contains(count) => {
                given.left += *count;
                Some(Give::Pieces { first: *first, count: *count })
            }
            _ => None,
        };
        match give {
            Some(give) => base.push(Effect::Give(link, give)),
            None => {
                self.0.remove(&link);
                base.close(link);
            }
        }
    }

    pub(super) fn gave(&mut self, link: LinkId, now: Duration) {
        if let Some(given) = self.0.get_mut(&link) {
            // Counted from the end of the answer, which may have taken long.
            (given.left, given.idle_since) = (given.left.saturating_sub(1), now);
        }
    }

    pub(super) fn gone(&mut self, link: LinkId) {
        self.0.remove(&link);
    }

    pub(super) fn on_time(&mut self, base: &mut Base) {
        let (now, patience) = (base.now, base.setup.patience);
        self.0.retain(|link, given| {
            let late = given.left == 0 && now >= given.idle_since + patience;
            if late {
                base.close(*link);
            }
            !late
        });
    }

    pub(super) fn wake_at(&self, patience: Duration) -> Option<Duration> {
        let idle = self.0.values().filter(|given| given.left == 0);
        idle.map(|given| given.idle_since + patience).min()
    }

    pub(super) fn end(&mut self, base: &mut Base) {
        super::base::close_all(std::mem::take(&mut self.0).into_keys(), base);
    }
}
