//! Who is at fault, and who leaves.

use std::time::Duration;

use super::member::{Member, Standing};
use super::{Roster, STRIKES_MAX};
use crate::core::form::Formed;
use crate::core::head::{Fault, Fx};
use crate::core::planted::Bug;
use crate::core::{DeviceId, Epoch, Note};
use crate::wire::frame::{Failure, FailureCode, Frame, Heartbeat};

impl Roster {
    /// Returns the fault that the control channels of these places report, if any. What is certain comes
    /// before what may only follow from it.
    pub(in crate::core) fn trouble(&self, places: &[DeviceId], epoch: Epoch) -> Option<Fault> {
        let lost = |(place, device): (usize, &DeviceId)| {
            let words = match self.member(*device) {
                Some(member) => member.seen.lost.clone()?,
                None => "it has left the ring".to_owned(),
            };
            Some(Fault::Lost { place, words })
        };
        let failed = |(place, device): (usize, &DeviceId)| {
            let member = self.member(*device)?;
            let failure = member.failure(epoch)?;
            let words = format!("`{}` says: {}", member.name(), failure.words);
            let (before, next) = (place - 1, (place + 1) % (places.len() + 1));
            // The head knows when it fails itself. So a device that blames the head is itself taken to be at
            // fault.
            let or_itself = |accused: usize| if accused == 0 { place } else { accused };
            Some(match failure.code {
                FailureCode::Before => Fault::Link { place: or_itself(before), words },
                FailureCode::Next => Fault::Link { place: or_itself(next), words },
                FailureCode::Refused => Fault::Wrong { place: or_itself(before), words },
                FailureCode::Engine | FailureCode::Weights | FailureCode::Busy => {
                    Fault::Lost { place, words }
                }
            })
        };
        let failures = || (1..).zip(places).filter_map(failed);
        (1..)
            .zip(places)
            .find_map(lost)
            .or_else(|| failures().find(Fault::is_certain))
            .or_else(|| failures().next())
    }

    /// Finds the fault after nothing has moved for too long: a device that did not pass a frame on, or a link
    /// that lost one.
    pub(in crate::core) fn stalled(&self, formed: &Formed, limit: Duration) -> Fault {
        let name = |place: usize| formed.layout.names.get(place).map_or("", String::as_str);
        let beat = |device: &DeviceId| self.beat(*device).copied().unwrap_or_default();
        let beats: Vec<Heartbeat> = formed.places.iter().map(beat).collect();
        let holds = |beat: &Heartbeat| beat.epoch != formed.epoch || beat.received > beat.sent;
        if let Some(at) = beats.iter().position(holds) {
            let words = format!("`{}` passed no frame on within {} ms", name(at + 1), limit.as_millis());
            return Fault::Lost { place: at + 1, words };
        }
        let lost = beats.windows(2).position(|pair| pair[0].sent > pair[1].received).map(|at| at + 2);
        let received = beats.first().is_some_and(|beat| beat.received > 0);
        let place = lost.unwrap_or(if received { formed.places.len() } else { 1 });
        let words = format!("a frame to or from `{}` was lost", name(place));
        Fault::Link { place, words }
    }

    /// Handles a fault: the device leaves the ring, unless only a link broke and it has tries left.
    pub(in crate::core) fn blame(&mut self, fault: &Fault, places: &[DeviceId], fx: &mut Fx) {
        let words = fault.words().to_owned();
        let Some(device) = fault.place().checked_sub(1).and_then(|at| places.get(at)).copied() else {
            return;
        };
        let Some(name) = self.name(device).map(str::to_owned) else { return };
        if !fault.is_certain() {
            let strikes = self.strikes.entry(device).or_default();
            *strikes += 1;
            if *strikes < STRIKES_MAX {
                return fx.note(Note::LinkBroke { device: name, words });
            }
        }
        self.strikes.remove(&device);
        fx.note(Note::Left { device: name.clone(), words: words.clone() });
        self.record(name, words);
        self.leave(&[device], fx);
    }

    /// A step was committed: broken links of before count no more.
    pub(in crate::core) fn step_done(&mut self) {
        if !self.planted.is(Bug::StrikesKept) {
            self.strikes.clear();
        }
    }

    /// Tells a device that its results are wrong. It is never greeted again.
    pub(in crate::core) fn distrust(&mut self, device: DeviceId, failure: Failure, fx: &mut Fx) {
        self.send(device, Frame::Failed(failure), fx);
        self.barred.insert(device);
    }

    /// Removes the members whose control channel has ended. Those that fetch their weights are looked at by
    /// [`Self::welcome`].
    pub(in crate::core) fn bury(&mut self, fx: &mut Fx) {
        let dead = |member: &Member| member.standing == Standing::Member && !member.is_there();
        let (dead, kept): (Vec<Member>, _) = self.members.drain(..).partition(dead);
        self.members = kept;
        for member in dead {
            let (device, words) = (member.hello.name, member.seen.lost.unwrap_or_default());
            fx.note(Note::Lost { device: device.clone(), words: words.clone() });
            self.record(device, words);
        }
    }

    /// These devices leave, and no loss is recorded. Returns whether any was there.
    pub(in crate::core) fn leave(&mut self, devices: &[DeviceId], fx: &mut Fx) -> bool {
        let before = self.members.len();
        self.members.retain(|member| {
            let leaves = devices.contains(&member.node.device);
            if leaves {
                member.close(fx);
            }
            !leaves
        });
        self.members.len() != before
    }
}
