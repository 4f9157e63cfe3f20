//! Greets one device: opens its control channel, reads its introduction, and measures the path to it.
//!
//! If measuring fails, the device is greeted once more without it, over a new channel: answers to echoes may
//! still be in transit on the old one. A greeting decides nothing about the ring; it says how it ended.

use std::time::Duration;

use crate::core::echo::{EchoNews, Echoes, MEASURE};
use crate::core::head::{Effect, Fx};
use crate::core::ways::Ways;
use crate::core::{DeviceId, LinkId, Node, Purpose};
use crate::wire::frame::{Frame, Hello};

/// What is said of a device that sends nothing.
const TIMED_OUT: &str = "nothing within the time limit";
/// What is said of a device that sends something else.
const REFUSED: &str = "the other device refuses";

/// The greeting of one device.
#[derive(Debug)]
pub(super) struct Greeting {
    /// The device.
    pub(super) node: Node,
    /// Its control channel.
    pub(super) link: LinkId,
    stage: Stage,
    measures: bool,
}

#[derive(Debug)]
enum Stage {
    /// The channel opens.
    Opening,
    /// The device introduces itself.
    Introducing { until: Duration },
    /// Echoes go there and back.
    Measuring { hello: Box<Hello>, echoes: Box<Echoes> },
}

/// What became of a greeting.
#[derive(Debug)]
pub(super) enum Greeted {
    /// It goes on.
    Waiting,
    /// The device has introduced itself, and the path is known or was measured.
    In(Box<Hello>),
    /// The path cannot be measured; the device must be greeted once more.
    NotMeasured {
        /// The reason.
        words: String,
        /// Whether the channel is still open.
        open: bool,
    },
    /// The device does not take part.
    Out {
        /// The reason.
        words: String,
        /// Whether the channel is still open.
        open: bool,
    },
}

/// What the echoes need to know.
pub(super) struct Paths<'a> {
    /// This device.
    pub(super) own: DeviceId,
    /// What is known of all paths.
    pub(super) ways: &'a mut Ways,
}

impl Greeting {
    /// Opens a control channel to the device. `measures` says whether the path shall be measured.
    pub(super) fn begin(node: Node, measures: bool, patience: Duration, fx: &mut Fx) -> Self {
        let link = fx.connect(node.clone(), Purpose::Control, patience);
        Self { node, link, stage: Stage::Opening, measures }
    }

    /// The channel was opened, or was not.
    pub(super) fn opened(&mut self, opened: Result<(), String>, until: Duration) -> Greeted {
        match opened {
            Ok(()) => {
                self.stage = Stage::Introducing { until };
                Greeted::Waiting
            }
            Err(words) => Greeted::Out { words, open: false },
        }
    }

    /// A frame came from the device. A heartbeat means nothing yet.
    pub(super) fn heard(
        &mut self,
        frame: Frame,
        paths: &mut Paths<'_>,
        now: Duration,
        fx: &mut Fx,
    ) -> Greeted {
        let refused = |measures: bool| {
            let (words, open) = (REFUSED.to_owned(), true);
            if measures { Greeted::NotMeasured { words, open } } else { Greeted::Out { words, open } }
        };
        match (&mut self.stage, frame) {
            (_, Frame::Heartbeat(_)) => Greeted::Waiting,
            (Stage::Introducing { .. }, Frame::Hello(hello)) if self.measures => {
                let (echoes, first) = Echoes::latency(now, MEASURE);
                fx.send(self.link, first);
                self.stage = Stage::Measuring { hello: Box::new(hello), echoes: Box::new(echoes) };
                Greeted::Waiting
            }
            (Stage::Introducing { .. }, Frame::Hello(hello)) => Greeted::In(Box::new(hello)),
            (Stage::Introducing { .. }, Frame::Failed(failure)) => {
                Greeted::Out { words: format!("a device refuses: {}", failure.words), open: true }
            }
            (Stage::Measuring { hello, echoes }, Frame::Echoed(echoed)) => {
                let (own, other) = (paths.own, self.node.device);
                match echoes.heard(&echoed, now) {
                    EchoNews::Next(echo) => fx.send(self.link, Frame::Echo(echo)),
                    EchoNews::Latency(latency_s) if paths.ways.holds(own, other, latency_s) => {
                        return Greeted::In(hello.clone());
                    }
                    EchoNews::Latency(_) => fx.send(self.link, echoes.go_on(now, MEASURE)),
                    EchoNews::Speed(speed) => {
                        paths.ways.put(own, other, speed);
                        fx.push(Effect::KeepWays);
                        return Greeted::In(hello.clone());
                    }
                    EchoNews::Wrong => return refused(true),
                }
                Greeted::Waiting
            }
            (Stage::Measuring { .. }, _) => refused(true),
            (Stage::Opening | Stage::Introducing { .. }, _) => refused(false),
        }
    }

    /// The channel has ended.
    pub(super) fn gone(&self, words: String) -> Greeted {
        match self.stage {
            Stage::Measuring { .. } => Greeted::NotMeasured { words, open: false },
            Stage::Opening | Stage::Introducing { .. } => Greeted::Out { words, open: false },
        }
    }

    /// Ends what takes too long.
    pub(super) fn on_time(&self, now: Duration) -> Greeted {
        let (words, open) = (TIMED_OUT.to_owned(), true);
        match (&self.stage, self.wake_at()) {
            (_, None) => Greeted::Waiting,
            (_, Some(until)) if now < until => Greeted::Waiting,
            (Stage::Measuring { .. }, _) => Greeted::NotMeasured { words, open },
            (Stage::Opening | Stage::Introducing { .. }, _) => Greeted::Out { words, open },
        }
    }

    /// When it takes too long. A channel that opens has its limit outside.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Opening => None,
            Stage::Introducing { until } => Some(*until),
            Stage::Measuring { echoes, .. } => Some(echoes.ends_at()),
        }
    }

    /// Ends the greeting.
    pub(super) fn end(&self, fx: &mut Fx) {
        fx.close(self.link);
    }
}
