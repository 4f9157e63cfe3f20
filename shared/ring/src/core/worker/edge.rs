//! Measures the network path to another worker, and answers one that measures the path to this device.
//!
//! Both end within seconds, whatever the other side does. One measurement runs at a time, and a newer one
//! replaces it. A link from a device that is not awaited yet is not read: the head's word may come a moment
//! later.

use std::time::Duration;

use super::base::{Base, close_all};
use crate::core::arrivals::Arrivals;
use crate::core::echo::{EchoNews, Echoes, MEASURE, answer};
use crate::core::{DeviceId, LinkEffect, LinkId, Node, Purpose};
use crate::wire::frame::{Frame, LinkSpeed, MeasuredLink};

/// How long a device that was told at the same moment may take to learn of this one.
pub(super) const KNOWN: Duration = Duration::from_millis(500);
/// Wait between two attempts to open a link.
pub(super) const AGAIN: Duration = Duration::from_millis(20);

/// How far a measurement is.
#[derive(Debug)]
enum Stage {
    Opening(LinkId),
    Again { at: Duration },
    Echoing(LinkId, Echoes),
}

#[derive(Debug)]
struct Measuring {
    to: Node,
    begun: Duration,
    stage: Stage,
}

/// A device that may measure the path to this one.
#[derive(Debug)]
struct Awaited {
    from: DeviceId,
    until: Duration,
    links: Vec<LinkId>,
}

/// Both sides of measuring.
#[derive(Debug, Default)]
pub(super) struct Edge {
    measuring: Option<Measuring>,
    awaited: Option<Awaited>,
    /// Links of other devices; nothing is read from them.
    waiting: Arrivals,
}

impl Edge {
    /// Measures the path to a device and reports it to the head.
    pub(super) fn measure(&mut self, to: Node, base: &mut Base) {
        self.stop_measuring(base);
        let link = base.connect(to.clone(), Purpose::Edge, MEASURE);
        self.measuring = Some(Measuring { to, begun: base.now, stage: Stage::Opening(link) });
    }

    fn stop_measuring(&mut self, base: &mut Base) {
        match self.measuring.take().map(|measuring| measuring.stage) {
            Some(Stage::Opening(link) | Stage::Echoing(link, _)) => base.close(link),
            Some(Stage::Again { .. }) | None => {}
        }
    }

    /// Ends the measurement and reports its result. The link is closed, or it is gone already.
    fn report(&mut self, speed: Option<LinkSpeed>, control: LinkId, base: &mut Base) {
        if let Some(measuring) = self.measuring.take() {
            base.send(control, Frame::Edge(MeasuredLink { to: measuring.to.device, speed }));
        }
    }

    /// Answers this device from now on, for a bounded time.
    pub(super) fn wait_for(&mut self, from: DeviceId, base: &mut Base) {
        self.end_answering(base);
        let links = self.waiting.take_all(from);
        links.iter().for_each(|link| base.link(LinkEffect::Release(*link)));
        self.awaited = Some(Awaited { from, until: base.now + MEASURE * 2, links });
    }

    fn end_answering(&mut self, base: &mut Base) {
        close_all(self.awaited.take().into_iter().flat_map(|awaited| awaited.links), base);
    }

    /// A part begins: nobody is answered any more.
    pub(super) fn part_begins(&mut self, base: &mut Base) {
        self.end_answering(base);
        close_all(self.waiting.clear(), base);
    }

    /// The session is over.
    pub(super) fn end(&mut self, base: &mut Base) {
        self.stop_measuring(base);
        self.part_begins(base);
    }

    pub(super) fn arrived(&mut self, link: LinkId, from: DeviceId, base: &mut Base) {
        match &mut self.awaited {
            Some(awaited) if awaited.from == from => {
                awaited.links.push(link);
                if awaited.links.len() > crate::core::arrivals::OF_ONE_MAX {
                    base.close(awaited.links.remove(0));
                }
            }
            _ => {
                base.link(LinkEffect::Hold(link));
                if let Some(oldest) = self.waiting.add(link, from) {
                    base.close(oldest);
                }
            }
        }
    }

    fn measuring_link(&self) -> Option<LinkId> {
        match self.measuring.as_ref()?.stage {
            Stage::Opening(link) | Stage::Echoing(link, _) => Some(link),
            Stage::Again { .. } => None,
        }
    }

    pub(super) fn owns(&self, link: LinkId) -> bool {
        let answered = self.awaited.as_ref().is_some_and(|awaited| awaited.links.contains(&link));
        answered || self.waiting.holds(link) || self.measuring_link() == Some(link)
    }

    pub(super) fn opened(&mut self, link: LinkId, opened: bool, control: LinkId, base: &mut Base) {
        let now = base.now;
        let Some(measuring) = self.measuring.as_mut() else { return };
        if opened {
            let (echoes, first) = Echoes::latency(now, MEASURE);
            measuring.stage = Stage::Echoing(link, echoes);
            base.send(link, first);
        } else if now < measuring.begun + KNOWN {
            measuring.stage = Stage::Again { at: now + AGAIN };
        } else {
            self.report(None, control, base);
        }
    }

    pub(super) fn heard(&mut self, link: LinkId, frame: &Frame, control: LinkId, base: &mut Base) {
        if self.measuring_link() == Some(link) {
            return self.echoed(link, frame, control, base);
        }
        match frame {
            Frame::Echo(echo) if !self.waiting.holds(link) => base.send(link, answer(echo)),
            _ => {
                self.gone(link, control, base);
                base.close(link);
            }
        }
    }

    fn echoed(&mut self, link: LinkId, frame: &Frame, control: LinkId, base: &mut Base) {
        let now = base.now;
        let Some(Measuring { stage: Stage::Echoing(_, echoes), .. }) = self.measuring.as_mut() else {
            return;
        };
        let news = match frame {
            Frame::Echoed(echoed) => echoes.heard(echoed, now),
            _ => EchoNews::Wrong,
        };
        let speed = match news {
            EchoNews::Next(next) => return base.send(link, Frame::Echo(next)),
            EchoNews::Latency(_) => {
                let next = echoes.go_on(now, echoes.ends_at().saturating_sub(now));
                return base.send(link, next);
            }
            EchoNews::Speed(speed) => Some(speed),
            EchoNews::Wrong => None,
        };
        base.close(link);
        self.report(speed, control, base);
    }

    /// A link is gone.
    pub(super) fn gone(&mut self, link: LinkId, control: LinkId, base: &mut Base) {
        if self.measuring_link() == Some(link) {
            return self.report(None, control, base);
        }
        self.waiting.remove(link);
        if let Some(awaited) = &mut self.awaited {
            awaited.links.retain(|other| *other != link);
        }
    }

    pub(super) fn on_time(&mut self, control: LinkId, base: &mut Base) {
        let now = base.now;
        if self.awaited.as_ref().is_some_and(|awaited| now >= awaited.until) {
            self.end_answering(base);
        }
        let Some(measuring) = &mut self.measuring else { return };
        match &measuring.stage {
            Stage::Again { at } if now >= *at => {
                let link = base.connect(measuring.to.clone(), Purpose::Edge, MEASURE);
                measuring.stage = Stage::Opening(link);
            }
            Stage::Echoing(link, echoes) if now >= echoes.ends_at() => {
                base.close(*link);
                self.report(None, control, base);
            }
            _ => {}
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        let measuring = self.measuring.as_ref().and_then(|measuring| match &measuring.stage {
            Stage::Again { at } => Some(*at),
            Stage::Echoing(_, echoes) => Some(echoes.ends_at()),
            Stage::Opening(_) => None,
        });
        [measuring, self.awaited.as_ref().map(|awaited| awaited.until)].into_iter().flatten().min()
    }
}
