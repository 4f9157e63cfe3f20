//! Faults of a simulated home: when they begin, and how a misbehaving device sends.

use std::time::Duration;

use crate::core::{Epoch, LinkEvent, LinkId, Purpose};
use crate::sim::faults::{Bad, What as Happens, When, forge, spoil};
use crate::sim::network::End;
use crate::wire::frame::Frame;

use super::{Port, What, World, id};

/// How often a device that fetches for ever says so.
const SAYS: Duration = Duration::from_millis(500);

impl World {
    /// Faults of a time are put into the heap.
    pub(super) fn plan_faults(&mut self) {
        let times: Vec<(usize, Duration)> = self
            .scenario
            .faults
            .iter()
            .enumerate()
            .filter_map(|(at, (_, fault))| match fault.when {
                When::At(time) => Some((at, time)),
                When::Sent(..) => None,
            })
            .collect();
        for (at, time) in times {
            self.at(time, What::Fault(at));
        }
    }

    /// Faults begin that wait for a device's frames.
    pub(super) fn faults_after(&mut self, device: usize, purpose: Purpose, nth: u64, link: usize) {
        for at in 0..self.scenario.faults.len() {
            let (_, fault) = self.scenario.faults[at];
            let When::Sent(of, least) = fault.when else { continue };
            if fault.device == device && of == purpose && least <= nth && !self.begun[at] {
                match fault.what {
                    Happens::Cut(cut) if cut == purpose => {
                        self.begun[at] = true;
                        self.checks.faults += 1;
                        self.touch_link(link);
                        self.cut(link);
                    }
                    // The core that sends now must not be called once more.
                    _ => self.after(Duration::ZERO, What::Fault(at)),
                }
            }
        }
    }

    fn touch_link(&mut self, link: usize) {
        let link = &self.net.links()[link];
        let ring = link.purpose == Purpose::Ring;
        if ring {
            self.checks.cut_any();
        }
        for end in link.ends.into_iter().flatten() {
            match ring {
                true => self.checks.cut(end.device),
                false => self.checks.touch(end.device),
            }
        }
    }

    /// A fault begins.
    pub(super) fn fault(&mut self, at: usize) {
        if std::mem::replace(&mut self.begun[at], true) {
            return;
        }
        let (_, fault) = self.scenario.faults[at];
        let device = fault.device;
        if device > 0 && self.devices[device].worker.is_none() {
            return;
        }
        self.trace(0xfa + at as u64);
        self.checks.faults += 1;
        let harmless = matches!(fault.what, Happens::Bad(bad) | Happens::Always(bad) if bad.is_harmless());
        let cut = fault.what == Happens::Cut(Purpose::Ring);
        if !harmless && !cut {
            self.checks.touch(device);
        }
        match fault.what {
            Happens::Kill => self.kill(device),
            Happens::Restart(time) => {
                self.kill(device);
                self.after(time, What::Begin { device });
            }
            Happens::Stop(time) if !self.devices[device].stopped => {
                self.devices[device].stopped = true;
                self.after(time, What::GoOn { device });
            }
            Happens::Stop(_) => {}
            Happens::Cut(purpose) => {
                if let Some(link) = self.link_of(device, purpose) {
                    self.touch_link(link);
                    self.cut(link);
                }
            }
            Happens::Refuse(links) => {
                self.devices[device].refuses += links;
                if device == 0 {
                    self.checks.touch_all();
                }
            }
            Happens::Slow(factor) => {
                self.net.slower[device] = factor;
                self.checks.touch_all();
            }
            Happens::Bad(bad) => self.misbehave(device, bad, false),
            Happens::Always(bad) => self.misbehave(device, bad, true),
        }
    }

    fn misbehave(&mut self, device: usize, bad: Bad, always: bool) {
        self.devices[device].bad.always = always;
        if bad.disorders() {
            self.checks.disorder = true;
            self.checks.touch_all();
        }
        if bad.lasts() {
            self.devices[device].bad.lasting = Some(bad);
        } else {
            self.devices[device].bad.next = Some(bad);
        }
        match bad {
            Bad::WrongLayers => {
                if let Some(worker) = &mut self.devices[device].worker {
                    worker.engine.wrong = true;
                }
            }
            Bad::FedForEver => self.after(SAYS, What::Fed { device }),
            _ => {}
        }
    }

    /// Whether a device's frames must be looked at.
    pub(super) fn spoils(&self, device: usize) -> bool {
        let bad = &self.devices[device].bad;
        bad.next.is_some() || bad.lasting.is_some() || bad.kept.is_some()
    }

    /// A misbehaving device sends a frame.
    pub(super) fn send_badly(&mut self, device: usize, port: Port, purpose: Purpose, mut frame: Frame) {
        let bad = &mut self.devices[device].bad;
        match (bad.lasting, &frame) {
            (Some(Bad::Mute), _) if purpose == Purpose::Ring => return,
            (Some(Bad::FedForEver), Frame::Ready { .. } | Frame::Provided) => return,
            _ => {}
        }
        let is_step = matches!(frame, Frame::Step(_));
        let next = bad.next;
        let mut done = true;
        match next {
            Some(Bad::Lost) if is_step => {
                bad.next = next.filter(|_| bad.always);
                return;
            }
            Some(Bad::Doubled) if is_step => self.transmit(port.link, port.side, frame.clone()),
            Some(Bad::Swapped) if is_step => {
                bad.next = None;
                bad.kept = Some(frame);
                return;
            }
            Some(Bad::OldFrame) if is_step => {
                done = self.old_frame(device, port, &frame);
            }
            Some(Bad::OldLink) => {
                if let Frame::Enter { epoch, .. } = &frame {
                    bad.entered = *epoch;
                }
                done = false;
            }
            Some(bad @ (Bad::ForgedPiece | Bad::ShortPiece)) if purpose == Purpose::Weights => {
                // It forges every piece that it gives from now on.
                forge(bad, &mut frame);
                done = false;
            }
            Some(bad) => {
                done = match &mut frame {
                    Frame::Step(step) => spoil(bad, step),
                    _ => false,
                }
            }
            None => done = false,
        }
        if done && !self.devices[device].bad.always {
            self.devices[device].bad.next = None;
        }
        self.transmit(port.link, port.side, frame);
        let swaps = next.is_none() && is_step;
        if let Some(kept) = self.devices[device].bad.kept.take_if(|_| swaps) {
            self.transmit(port.link, port.side, kept);
        }
    }

    /// Sends a frame of an older epoch once more, or keeps this one for that purpose.
    fn old_frame(&mut self, device: usize, port: Port, frame: &Frame) -> bool {
        let bad = &mut self.devices[device].bad;
        let epoch = |frame: &Frame| match frame {
            Frame::Step(step) => step.epoch,
            _ => Epoch(0),
        };
        match bad.kept.take_if(|kept| epoch(kept) < epoch(frame)) {
            Some(old) => {
                self.transmit(port.link, port.side, old);
                true
            }
            None => {
                bad.kept.get_or_insert_with(|| frame.clone());
                false
            }
        }
    }

    /// A device that opens a link of the ring opens another for an older epoch before it, on which nothing
    /// follows.
    pub(super) fn old_link(&mut self, device: usize, to: usize) {
        if self.devices[device].bad.next != Some(Bad::OldLink)
            || self.devices[to].stopped
            || (to > 0 && self.devices[to].worker.is_none())
        {
            return;
        }
        let life = self.devices[device].life;
        let epoch = self.devices[device].bad.entered;
        let end = End { device, life, link: LinkId(u64::MAX) };
        let link = self.net.open(end, to, Purpose::Ring);
        let accepted = self.accept(link, to, device);
        let arrives = self.net.arrives(link, 1, self.now, 0);
        self.at(arrives, What::Old { to, accepted, from: device });
        self.transmit(link, 0, Frame::Enter { epoch, place: 0 });
    }

    /// A link that was forged is there.
    pub(super) fn old_arrived(&mut self, to: usize, accepted: LinkId, from: usize) {
        if self.devices[to].ports.contains_key(&accepted) {
            let purpose = Purpose::Ring;
            self.step_link(to, LinkEvent::Arrived { link: accepted, from: id(from), purpose });
        }
    }

    /// A device that fetches for ever says so.
    pub(super) fn fed(&mut self, device: usize) {
        if self.devices[device].bad.lasting != Some(Bad::FedForEver) || self.over {
            return;
        }
        let control = self.devices[device]
            .ports
            .values()
            .copied()
            .find(|port| port.open && self.net.links()[port.link].purpose == Purpose::Control);
        if let Some(port) = control {
            self.transmit(port.link, port.side, Frame::FetchProgress);
        }
        self.after(SAYS, What::Fed { device });
    }
}
