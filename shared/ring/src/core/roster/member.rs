//! One device with a control channel: what is known of it, and what time does to it.
//!
//! Always holds: the control channel is open exactly as long as the device is not lost.

use std::time::Duration;

use super::greet::Greeting;
use crate::core::head::Fx;
use crate::core::{Epoch, Give, LinkId, Node};
use crate::wire::frame::{Failure, Frame, Heartbeat, Hello, MeasuredLink};

/// Heartbeats that may be missed.
const MISSED_MAX: u32 = 3;
/// How long a device may make no progress in fetching before it is left out. Hashing a file of its own also
/// takes time.
pub(super) const QUIET: Duration = Duration::from_secs(120);
/// Most pieces that a device may ask for at once.
const PIECES_MAX: u32 = 16;

/// A device with a control channel.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) node: Node,
    pub(super) hello: Hello,
    pub(super) control: LinkId,
    pub(super) standing: Standing,
    /// When a device that comes must have fetched everything, even if it makes progress.
    pub(super) due: Option<Duration>,
    pub(super) seen: Seen,
}

/// Whether a device may be planned with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is planned with.
    Member,
    /// It fetches its weights first.
    Coming,
}

/// What was heard of a device, and when.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) beat: Heartbeat,
    /// The newest epoch that it is ready for.
    pub(super) ready: Epoch,
    /// Whether it has fetched everything that it was told to provide.
    pub(super) provided: bool,
    /// Its latest failure.
    pub(super) failure: Option<Failure>,
    /// Why it is gone: the first reason.
    pub(super) lost: Option<String>,
    /// When it last received a piece of the model, from here or from another device.
    pub(super) fed_at: Duration,
    /// The path that it measured last.
    pub(super) edge: Option<MeasuredLink>,
    /// How long nothing came from it. This device's own lateness does not count.
    pub(super) quiet: Duration,
    pub(super) looked_at: Duration,
    pub(super) beat_at: Duration,
}

impl Member {
    pub(super) fn new(greeting: &Greeting, hello: Hello, now: Duration) -> Self {
        let seen = Seen {
            beat: Heartbeat::default(),
            ready: Epoch::default(),
            provided: false,
            failure: None,
            lost: None,
            fed_at: now,
            edge: None,
            quiet: Duration::ZERO,
            looked_at: now,
            beat_at: now,
        };
        let (node, control) = (greeting.node.clone(), greeting.link);
        Self { node, hello, control, standing: Standing::Member, due: None, seen }
    }

    pub(super) fn name(&self) -> &str {
        &self.hello.name
    }

    pub(super) fn is_there(&self) -> bool {
        self.seen.lost.is_none()
    }

    /// Returns its failure in this epoch, if any.
    pub(super) fn failure(&self, epoch: Epoch) -> Option<&Failure> {
        self.seen.failure.as_ref().filter(|failure| failure.epoch == epoch)
    }

    /// It is lost: its control channel is closed. The first reason stays.
    pub(super) fn lose(&mut self, words: String, fx: &mut Fx) {
        if self.seen.lost.is_none() {
            self.seen.lost = Some(words);
            fx.close(self.control);
        }
    }

    /// Closes its control channel, if that is open.
    pub(super) fn close(&self, fx: &mut Fx) {
        if self.is_there() {
            fx.close(self.control);
        }
    }

    /// Takes a frame of its control channel. An error says why the channel ends.
    pub(super) fn heard(&mut self, frame: Frame, now: Duration, fx: &mut Fx) -> Result<(), &'static str> {
        self.seen.quiet = Duration::ZERO;
        match frame {
            Frame::Heartbeat(beat) => self.seen.beat = beat,
            Frame::Ready { epoch } => self.seen.ready = epoch,
            Frame::Provided => self.seen.provided = true,
            Frame::Failed(failure) => self.seen.failure = Some(failure),
            Frame::Edge(edge) => self.seen.edge = Some(edge),
            Frame::FetchProgress => self.seen.fed_at = now,
            Frame::FetchManifest => fx.give(self.control, Give::List),
            Frame::FetchPieces { first, count } if count <= PIECES_MAX => {
                fx.give(self.control, Give::Pieces { first, count });
            }
            _ => return Err("it sent a frame that is the head's to send"),
        }
        Ok(())
    }

    /// Sends a heartbeat if it is time, and counts the silence. `tick` is the time between two looks.
    pub(super) fn on_time(
        &mut self,
        (heartbeat, tick): (Duration, Duration),
        late_counts: bool,
        now: Duration,
        fx: &mut Fx,
    ) {
        if !self.is_there() {
            return;
        }
        let since = now.saturating_sub(self.seen.looked_at);
        if since >= tick {
            self.seen.looked_at = now;
            // If it is longer, this device itself was late, and has not yet read what arrived meanwhile.
            self.seen.quiet += if late_counts { since } else { since.min(tick * 2) };
            if self.seen.quiet > heartbeat * MISSED_MAX {
                return self.lose(format!("silent for {} ms", self.seen.quiet.as_millis()), fx);
            }
        }
        if now >= self.seen.beat_at {
            self.seen.beat_at = now + heartbeat;
            fx.send(self.control, Frame::Heartbeat(Heartbeat::default()));
        }
    }

    /// Returns why a device that fetches weights is left out, if it is.
    pub(super) fn leaves_before(&self, now: Duration) -> Option<String> {
        if self.standing == Standing::Member {
            return None;
        }
        let seen = &self.seen;
        let failed = || self.failure(Epoch::default()).map(|failure| failure.words.clone());
        let quiet = !seen.provided && now.saturating_sub(seen.fed_at) > QUIET;
        let late = !seen.provided && self.due.is_some_and(|due| now > due);
        seen.lost
            .clone()
            .or_else(failed)
            .or_else(|| quiet.then(|| format!("got no weights for {} s", QUIET.as_secs())))
            .or_else(|| late.then(|| "it took too long to get its weights".to_owned()))
    }
}
