//! Has workers measure the unknown paths between them: one pair after the other, so that they do not disturb
//! each other.
//!
//! A path that cannot be measured counts as the slowest one that is known. No pair is asked twice.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Roster;
use super::member::{Member, Standing};
use crate::core::echo::MEASURE;
use crate::core::head::{Effect, Fx, Progress};
use crate::core::{DeviceId, Note};
use crate::wire::frame::Frame;

/// Workers between which all paths are measured: 28 pairs. Paths to further workers count as the slowest one
/// that is known.
const MEASURED_MAX: usize = 8;

/// Which pairs were asked, and which one measures now.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    asked: BTreeSet<(DeviceId, DeviceId)>,
    now: Option<Pairing>,
}

/// One worker measures the path to another.
#[derive(Debug, Clone, Copy)]
struct Pairing {
    a: DeviceId,
    b: DeviceId,
    until: Duration,
}

impl Pairs {
    /// When the pair that measures now takes too long.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.now.map(|pairing| pairing.until)
    }
}

impl Roster {
    /// Has the members measure the paths between them that are not known, until all were asked.
    pub(in crate::core) fn pairs(&mut self, now: Duration, fx: &mut Fx) -> Progress<()> {
        loop {
            if let Some(pairing) = self.pairs.now {
                if !self.has_ended(pairing, now, fx) {
                    return Progress::Waiting;
                }
                self.pairs.now = None;
            }
            let Some((a, b)) = self.next_pair() else { return Progress::Done(()) };
            self.pairs.asked.insert((a, b));
            self.ask(a, b, fx);
            // Connecting may take as long as measuring.
            self.pairs.now = Some(Pairing { a, b, until: now + MEASURE * 2 });
        }
    }

    /// Returns the next pair whose path is not known and that was not asked before.
    fn next_pair(&self) -> Option<(DeviceId, DeviceId)> {
        let members = || self.members.iter().filter(|member| member.standing == Standing::Member);
        let devices: Vec<DeviceId> = members().take(MEASURED_MAX).map(|member| member.node.device).collect();
        let pairs = devices.iter().enumerate().flat_map(|(at, a)| {
            let after = devices.iter().skip(at + 1);
            after.map(move |b| (*a, *b))
        });
        pairs.into_iter().find(|pair| !self.ways.knows(pair.0, pair.1) && !self.pairs.asked.contains(pair))
    }

    fn ask(&mut self, a: DeviceId, b: DeviceId, fx: &mut Fx) {
        let Some(node) = self.member(b).map(|member| member.node.clone()) else { return };
        self.send(b, Frame::AwaitEdge { from: a }, fx);
        self.send(a, Frame::MeasureEdge(node), fx);
        if let Some(member) = self.members.iter_mut().find(|member| member.node.device == a) {
            member.seen.edge = None;
        }
    }

    /// Returns whether a pair has measured, or cannot. What it measured is stored.
    fn has_ended(&mut self, pairing: Pairing, now: Duration, fx: &mut Fx) -> bool {
        let Pairing { a, b, until } = pairing;
        let found = self.member(a).and_then(|member| member.seen.edge).filter(|edge| edge.to == b);
        let lives = |device| self.member(device).is_some_and(Member::is_there);
        match found {
            Some(edge) => {
                if let Some(speed) = edge.speed {
                    self.ways.put(a, b, speed);
                    fx.push(Effect::KeepWays);
                    return true;
                }
            }
            None if now < until && lives(a) && lives(b) => return false,
            None => {}
        }
        let name = |device| self.name(device).unwrap_or_default().to_owned();
        fx.note(Note::PairNotMeasured { from: name(a), to: name(b) });
        true
    }
}
