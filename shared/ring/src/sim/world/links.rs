//! Links of a simulated home: opening, sending, arriving, ending.

use crate::core::{Gone, LinkEffect, LinkEvent, LinkId, Purpose};
use crate::sim::network::{End, Item};
use crate::wire::frame::Frame;

use super::{Port, What, World, id, index};

/// Most frames that wait in a port. More end the link in a program.
const PORT_MAX: usize = 64;

/// About how many bytes a frame has on its way.
fn bytes(frame: &Frame) -> usize {
    match frame {
        Frame::Step(step) => {
            96 + step.states.hidden().values.len() * 4 + step.operations.len() * 24 + step.rows.len() * 4
        }
        // An echo counts as more than it is, so that measuring ends before it takes much memory.
        Frame::Echo(echo) | Frame::Echoed(echo) => 32 + 16 * echo.bytes.len(),
        Frame::Configure(_) => 600,
        _ => 96,
    }
}

impl World {
    /// Does what a device's core wants of a link.
    pub(super) fn link_effect(&mut self, device: usize, effect: LinkEffect) {
        if self.options.tells && !matches!(effect, LinkEffect::Send(..)) {
            self.tell(format!("device {device}: {effect:?}"));
        }
        match effect {
            LinkEffect::Connect { link, to, purpose, within } => {
                let to = index(to.device);
                if purpose == Purpose::Ring {
                    self.old_link(device, to);
                }
                let life = self.devices[device].life;
                let at = self.net.open(End { device, life, link }, to, purpose);
                let port = Port { link: at, side: 0, open: false, to };
                if self.devices[device].ports.insert(link, port).is_some() || !link.0.is_multiple_of(2) {
                    self.checks.break_it(format!("C9: device {device} opens {link:?} once more"));
                }
                let arrives = self.net.arrives(at, 1, self.now, 0);
                self.at(arrives, What::Dial { link: at, to });
                self.after(within, What::DialEnd { link: at });
            }
            LinkEffect::Allow(devices) => self.devices[device].allowed = devices,
            LinkEffect::Send(link, frame) => match self.devices[device].ports.get(&link).copied() {
                Some(port) if port.open => self.send(device, port, frame),
                _ => self
                    .checks
                    .break_it(format!("C9: device {device} sends over {link:?}, which is not open")),
            },
            LinkEffect::Close(link) => match self.devices[device].ports.remove(&link) {
                Some(port) => self.end_link(port.link, port.side, "the other device has closed it"),
                None => {
                    self.checks.break_it(format!("C9: device {device} closes {link:?}, which is not open"))
                }
            },
            LinkEffect::Hold(link) => self.hold(device, link, true),
            LinkEffect::Release(link) => self.hold(device, link, false),
        }
    }

    fn hold(&mut self, device: usize, link: LinkId, held: bool) {
        let Some(port) = self.devices[device].ports.get(&link).copied() else {
            self.checks
                .break_it(format!("C9: device {device} holds or releases {link:?}, which is not open"));
            return;
        };
        let way = &mut self.net.link(port.link).ways[port.side];
        way.held = held;
        if !held {
            for _ in 0..std::mem::take(&mut way.arrived) {
                self.at(self.now, What::Item { link: port.link, side: port.side });
            }
        }
    }

    /// The wish for a link reaches the device that shall accept it.
    pub(super) fn dialled(&mut self, link: usize, to: usize) {
        let Some(from) = self.net.links()[link].ends[0] else { return };
        let purpose = self.net.links()[link].purpose;
        let device = &mut self.devices[to];
        let dead = to > 0 && device.worker.is_none();
        let refused = device.refuses > 0;
        device.refuses = device.refuses.saturating_sub(1);
        if dead || refused || !self.allows(to, from.device, purpose) {
            let words = if dead { "nobody is there" } else { "it is refused" };
            let arrives = self.net.arrives(link, 0, self.now, 0);
            self.at(arrives, What::Opened { link, outcome: Err(words.to_owned()) });
            return;
        }
        let Some(port) = self.devices[from.device].ports.get(&from.link) else { return };
        if port.link != link {
            return;
        }
        let accepted = self.accept(link, to, from.device);
        let arrives = self.net.arrives(link, 0, self.now, 0);
        self.at(arrives, What::Opened { link, outcome: Ok(()) });
        self.step_link(to, LinkEvent::Arrived { link: accepted, from: id(from.device), purpose });
    }

    /// A device accepts a link.
    pub(super) fn accept(&mut self, link: usize, to: usize, from: usize) -> LinkId {
        let device = &mut self.devices[to];
        let accepted = LinkId(device.links * 2 + 1);
        device.links += 1;
        device.ports.insert(accepted, Port { link, side: 1, open: true, to: from });
        self.net.link(link).ends[1] = Some(End { device: to, life: self.devices[to].life, link: accepted });
        accepted
    }

    /// The device that opens a link hears how that ended.
    pub(super) fn opened(&mut self, link: usize, outcome: Result<(), String>) {
        let Some(end) = self.net.links()[link].ends[0] else { return };
        let device = &mut self.devices[end.device];
        let known =
            device.life == end.life && device.ports.get(&end.link).is_some_and(|port| port.link == link);
        if !known {
            if outcome.is_ok() {
                self.end_link(link, 0, "nobody wants it any more");
            }
            return;
        }
        match &outcome {
            _ if device.ports[&end.link].open => return,
            Ok(()) => {
                if let Some(port) = device.ports.get_mut(&end.link) {
                    port.open = true;
                }
            }
            Err(_) => {
                device.ports.remove(&end.link);
                self.end_link(link, 0, "it took too long");
            }
        }
        self.step_link(end.device, LinkEvent::Opened(end.link, outcome));
    }

    /// A device's host sends a frame.
    pub(super) fn send(&mut self, device: usize, port: Port, frame: Frame) {
        self.checks.sent(device, port.to, &frame);
        let purpose = self.net.links()[port.link].purpose;
        if device == 0 || !self.spoils(device) {
            self.transmit(port.link, port.side, frame);
        } else {
            self.send_badly(device, port, purpose, frame);
        }
        let nth = &mut self.devices[device].bad.sent[purpose as usize];
        *nth += 1;
        let nth = *nth;
        self.faults_after(device, purpose, nth, port.link);
    }

    /// A frame goes over a link, from one side to the other.
    pub(super) fn transmit(&mut self, link: usize, side: usize, frame: Frame) {
        let to = 1 - side;
        if self.net.links()[link].closed || self.net.links()[link].ends[to].is_none() {
            return;
        }
        if self.options.tells {
            self.tell_frame(link, side, &frame);
        }
        let size = bytes(&frame);
        let frame = match self.scenario.home.coded {
            true => match Frame::decode(&frame.encode()) {
                Ok(frame) => frame,
                Err(err) => {
                    self.checks.break_it(format!("a frame cannot be decoded: {err}: {frame:?}"));
                    return;
                }
            },
            false => frame,
        };
        let arrives = self.net.arrives(link, to, self.now, size);
        let slow = self.net.factor(link) > 1;
        let held = &mut self.net.link(link).ways[to];
        held.queue.push_back(Item::Frame(Box::new(frame)));
        let waits = held.queue.len();
        let patient = slow
            || held.held
            || self.net.links()[link].ends[to].is_some_and(|end| self.devices[end.device].stopped);
        if waits > PORT_MAX && !patient {
            self.checks.break_it(format!("C4: {waits} frames wait in a port"));
        }
        self.at(arrives, What::Item { link, side: to });
    }

    fn tell_frame(&mut self, link: usize, side: usize, frame: &Frame) {
        let device = |side: usize| self.net.links()[link].ends[side].map_or(usize::MAX, |end| end.device);
        let words = match frame {
            Frame::Heartbeat(_) | Frame::Echo(_) | Frame::Echoed(_) => return,
            Frame::Step(step) => format!(
                "epoch {} step {} round {} layers {} rows {:?} states {} audit {:?} {:?}",
                step.epoch,
                step.step,
                step.round,
                step.layers_done,
                step.rows,
                step.states.rows(),
                step.audit,
                step.operations
            ),
            frame => format!("{frame:?}"),
        };
        let (from, to) = (device(side), device(1 - side));
        self.tell(format!("{from} to {to}: {words}"));
    }

    /// Something arrives at a side of a link.
    pub(super) fn arrive(&mut self, link: usize, side: usize) {
        let Some(end) = self.net.links()[link].ends[side] else { return };
        let device = &self.devices[end.device];
        let known =
            device.life == end.life && device.ports.get(&end.link).is_some_and(|port| port.link == link);
        let way = &mut self.net.link(link).ways[side];
        if known && way.held {
            way.arrived += 1;
            return;
        }
        match way.queue.pop_front() {
            Some(Item::Frame(frame)) if known => {
                self.checks.heard(end.device, &frame);
                self.step_link(end.device, LinkEvent::Heard(end.link, *frame));
            }
            Some(Item::End(words)) if known => {
                self.devices[end.device].ports.remove(&end.link);
                self.step_link(end.device, LinkEvent::Gone(end.link, Gone::Closed(words)));
            }
            _ => {}
        }
    }

    /// A link ends at one side; the other hears of it later.
    pub(super) fn end_link(&mut self, link: usize, side: usize, words: &str) {
        // On some links, what is on its way still arrives.
        let lost = (self.scenario.seed ^ link as u64).is_multiple_of(2);
        let state = self.net.link(link);
        state.ways[side].queue.clear();
        if std::mem::replace(&mut state.closed, true) || state.ends[1 - side].is_none() {
            return;
        }
        if lost {
            state.ways[1 - side].queue.clear();
        }
        self.end_at(link, 1 - side, words);
    }

    fn end_at(&mut self, link: usize, side: usize, words: &str) {
        self.net.link(link).ways[side].queue.push_back(Item::End(words.to_owned()));
        let arrives = self.net.arrives(link, side, self.now, 0);
        self.at(arrives, What::Item { link, side });
    }

    /// A link is cut: both sides hear of it.
    pub(super) fn cut(&mut self, link: usize) {
        let state = self.net.link(link);
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        for side in 0..2 {
            if self.net.links()[link].ends[side].is_some() {
                self.net.link(link).ways[side].queue.clear();
                self.end_at(link, side, "the link is cut");
            }
        }
    }

    /// The youngest open link of a device for a purpose.
    pub(super) fn link_of(&self, device: usize, purpose: Purpose) -> Option<usize> {
        let of = |port: &&Port| {
            let link = &self.net.links()[port.link];
            port.open && !link.closed && link.purpose == purpose && link.ends[1].is_some()
        };
        self.devices[device].ports.values().filter(of).map(|port| port.link).max()
    }
}
