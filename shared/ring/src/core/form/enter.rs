//! One try to form a ring of several devices: each gets its part, and links open from place to place.

use std::time::Duration;

use super::{Attempt, Form, Formed, Route, Stage, Turn, fetch_limit};
use crate::core::head::{Fault, Fx, HeadWork, Planned, RingFault};
use crate::core::layout::{Layout, gpu_layers_of};
use crate::core::planted::{Bug, Planted};
use crate::core::roster::Roster;
use crate::core::{DeviceId, Epoch, LinkId, Node, Purpose};
use crate::wire::frame::{Configure, Frame};

/// Wait before a link to place 1 is opened again.
const AGAIN: Duration = Duration::from_millis(20);

/// Devices have their parts and open their links.
#[derive(Debug)]
pub(super) struct Entering {
    layout: Layout,
    /// The devices at the places from 1 on.
    places: Vec<DeviceId>,
    begun: Duration,
    out: Out,
    back: Option<LinkId>,
    limits: Limits,
}

/// How long devices may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Without progress.
    quiet: Duration,
    /// In all; `None` if a bug is planted.
    total: Option<Duration>,
}

/// The link to place 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Out {
    Closed { retry_at: Duration },
    Opening(LinkId),
    Open(LinkId),
}

impl Entering {
    fn out_link(&self) -> Option<LinkId> {
        match self.out {
            Out::Closed { .. } => None,
            Out::Opening(link) | Out::Open(link) => Some(link),
        }
    }

    /// Returns whether this is its link to place 1.
    pub(super) fn out_is(&self, link: LinkId) -> bool {
        self.out_link() == Some(link)
    }

    /// The link to place 1 was opened, or was not.
    pub(super) fn opened(&mut self, link: LinkId, opened: bool, epoch: Epoch, now: Duration, fx: &mut Fx) {
        if self.out != Out::Opening(link) {
            return;
        }
        self.out = if opened {
            fx.send(link, Frame::Enter { epoch, place: 0 });
            Out::Open(link)
        } else {
            Out::Closed { retry_at: now + AGAIN }
        };
    }

    /// A link has ended. The one to place 1 is opened again; the last device must open another one.
    pub(super) fn gone(&mut self, link: LinkId, now: Duration) {
        if self.out_is(link) {
            self.out = Out::Closed { retry_at: now + AGAIN };
        }
        self.drop_back(link);
    }

    /// Forgets the link from the last device, if it is this one.
    pub(super) fn drop_back(&mut self, link: LinkId) {
        self.back = self.back.filter(|back| *back != link);
    }

    /// Its limits begin so much later.
    pub(super) fn was_late(&mut self, late: Duration) {
        self.begun += late;
    }

    /// Closes its links.
    pub(super) fn end(&self, fx: &mut Fx) {
        [self.out_link(), self.back].into_iter().flatten().for_each(|link| fx.close(link));
    }

    /// When something must be looked at again: the next try to open a link, or the end of patience.
    pub(super) fn wake_at(&self, roster: &Roster) -> Option<Duration> {
        let retry = match self.out {
            Out::Closed { retry_at } => Some(retry_at),
            Out::Opening(_) | Out::Open(_) => None,
        };
        self.ends(roster).map(|(at, _)| at).chain(retry).min()
    }

    /// Returns when the devices are too late, and the limit that is then passed.
    fn ends(&self, roster: &Roster) -> impl Iterator<Item = (Duration, Duration)> {
        let fed = self.places.iter().filter_map(|device| roster.fed_at(*device));
        let moved = fed.fold(self.begun, Duration::max);
        let Limits { quiet, total } = self.limits;
        let total = total.map(|total| (self.begun + total, total));
        std::iter::once((moved + quiet, quiet)).chain(total)
    }

    /// Returns the fault if the devices are too late.
    fn late(&self, roster: &Roster, epoch: Epoch, now: Duration) -> Option<Fault> {
        let (_, limit) = self.ends(roster).find(|(at, _)| now >= *at)?;
        let waiting = self.places.iter().position(|device| !roster.is_ready(*device, epoch));
        let is_open = matches!(self.out, Out::Open(_));
        let place = waiting.map_or(if is_open { self.places.len() } else { 1 }, |at| at + 1);
        Some(Fault::Lost { place, words: format!("not ready within {} ms", limit.as_millis()) })
    }

    /// Returns the links there and back, if all devices are ready.
    fn is_ready(&self, roster: &Roster, epoch: Epoch, planted: Planted) -> Option<(LinkId, LinkId)> {
        let waiting = self.places.iter().filter(|device| !roster.is_ready(**device, epoch)).count();
        let may_wait = usize::from(planted.is(Bug::FormedEarly));
        match (self.out, self.back) {
            (Out::Open(out), Some(back)) if waiting <= may_wait => Some((out, back)),
            _ => None,
        }
    }
}

impl Form {
    /// Begins with a plan: the head changes to all layers if it is alone; otherwise each device gets its
    /// part.
    pub(super) fn begin(
        &mut self,
        answer: Result<Planned, String>,
        attempt: &Attempt,
        roster: &Roster,
        (cancelled, now): (bool, Duration),
        fx: &mut Fx,
    ) -> Result<Stage, RingFault> {
        let no_plan = |words| RingFault::NoPlan { devices: roster.names(), words };
        let planned = answer.map_err(no_plan)?;
        let layout = Layout::of_plan(&planned.plan, &self.facts.name, self.facts.n_layers)?;
        self.pace = planned.pace;
        if layout.is_alone() {
            let work = fx.compute(HeadWork::Reset { layers: None, gpu_layers: None, prefetch_bytes: 0 });
            return Ok(Stage::Resetting { work, done: None, into: Route::Alone(layout) });
        }
        let is_there = |name: &String| roster.node(roster.named(name)?).cloned();
        let nodes: Option<Vec<Node>> = layout.names.iter().skip(1).map(is_there).collect();
        let nodes = nodes.filter(|nodes| !nodes.is_empty());
        let nodes = nodes.ok_or_else(|| no_plan("the plan names a device that is not there".to_owned()))?;
        if cancelled {
            return Err(RingFault::Cancelled);
        }
        let is_first_try = attempt.tries_left + 1 == attempt.tries;
        if is_first_try || !self.planted.is(Bug::SameEpoch) {
            self.epoch.0 += 1;
        }
        Ok(Stage::Entering(self.send_parts(layout, &nodes, roster, now, fx)))
    }

    /// Sends each device its part, and begins to open the link to place 1. `nodes` are those of the places
    /// from 1 on.
    fn send_parts(
        &self,
        layout: Layout,
        nodes: &[Node],
        roster: &Roster,
        now: Duration,
        fx: &mut Fx,
    ) -> Entering {
        for (at, node) in nodes.iter().enumerate() {
            let configure = self.part(&layout, nodes, at + 1, roster);
            roster.send(node.device, Frame::Configure(Box::new(configure)), fx);
        }
        let quiet = self.facts.patience * 2;
        // All layers together, because the head's own link may be the slow one.
        let windows = layout.windows.iter().filter(|window| window.place > 0);
        let layers = windows.map(|window| window.end - window.begin).sum();
        let total = fetch_limit(roster.model(), quiet, layers, self.facts.n_layers);
        let total = (!self.planted.is(Bug::FedForEver)).then_some(total);
        let places: Vec<DeviceId> = nodes.iter().map(|node| node.device).collect();
        let out = self.first_link(&places, roster, now, fx);
        Entering { layout, places, begun: now, out, back: None, limits: Limits { quiet, total } }
    }

    /// Begins to open the link to place 1.
    fn first_link(&self, places: &[DeviceId], roster: &Roster, now: Duration, fx: &mut Fx) -> Out {
        match places.first().and_then(|first| roster.node(*first)) {
            Some(node) => Out::Opening(fx.connect(node.clone(), Purpose::Ring, self.facts.patience)),
            None => Out::Closed { retry_at: now + AGAIN },
        }
    }

    /// Looks whether the devices are ready, too late, or at fault.
    pub(super) fn enter(
        &mut self,
        mut entering: Entering,
        attempt: &mut Attempt,
        roster: &mut Roster,
        now: Duration,
        fx: &mut Fx,
    ) -> Turn {
        let mut fault = roster.trouble(&entering.places, self.epoch);
        if fault.is_none() {
            self.open_links(&mut entering, roster, now, fx);
            if let Some(links) = entering.is_ready(roster, self.epoch, self.planted) {
                attempt.stage = self.reset(entering, links, fx);
                return Turn::Waiting;
            }
            fault = entering.late(roster, self.epoch, now);
        }
        match fault {
            Some(fault) => {
                entering.end(fx);
                attempt.words = fault.words().to_owned();
                roster.blame(&fault, &entering.places, fx);
                Turn::On
            }
            None => {
                attempt.stage = Stage::Entering(entering);
                Turn::Waiting
            }
        }
    }

    /// Opens the link to place 1 again if it is time, and takes the link from the last device.
    fn open_links(&mut self, entering: &mut Entering, roster: &Roster, now: Duration, fx: &mut Fx) {
        if let Out::Closed { retry_at } = entering.out
            && now >= retry_at
        {
            entering.out = self.first_link(&entering.places, roster, now, fx);
        }
        if let (None, Some(last)) = (entering.back, entering.places.last()) {
            let taken = self.arrivals.take(*last, self.epoch);
            taken.old.into_iter().for_each(|link| fx.close(link));
            entering.back = taken.link;
        }
    }

    /// All devices are ready: the head's engine changes to its layers.
    fn reset(&mut self, entering: Entering, (out, back): (LinkId, LinkId), fx: &mut Fx) -> Stage {
        let Entering { layout, places, .. } = entering;
        let prefetch_bytes = layout.prefetch_bytes.first().copied().unwrap_or(0);
        let (layers, gpu) = (layout.layers_of(0), gpu_layers_of(&layout.windows, 0));
        let work =
            fx.compute(HeadWork::Reset { layers: Some(layers), gpu_layers: Some(gpu), prefetch_bytes });
        let formed = Formed { epoch: self.epoch, layout, places, out: Some(out), back: Some(back) };
        Stage::Resetting { work, done: None, into: Route::Ring(formed) }
    }

    /// Returns what the worker at this place has to know. `nodes` are those of the places from 1 on.
    fn part(&self, layout: &Layout, nodes: &[Node], place: usize, roster: &Roster) -> Configure {
        let facts = &self.facts;
        let node = |place: usize| place.checked_sub(1).and_then(|at| nodes.get(at));
        let others = nodes.iter().enumerate().filter(|(at, _)| at + 1 != place);
        Configure {
            epoch: self.epoch,
            // There are fewer than 65536 places and layers: the layout was checked.
            place: place as u16,
            n_layers: layout.n_layers as u16,
            width: facts.width as u32,
            prefetch_bytes: layout.prefetch_bytes.get(place).copied().unwrap_or(0),
            reads_ahead: facts.reads_ahead,
            windows: layout.windows.clone(),
            model: roster.model().map(|model| model.digest).unwrap_or_default(),
            kv_tokens: facts.cache.kv_tokens as u64,
            kv_format: facts.cache.kv_format,
            prefix_percent: facts.cache.prefix_percent,
            window: facts.cache.window,
            next: node(place + 1).unwrap_or(&facts.own).clone(),
            before: node(place - 1).map_or(facts.own.device, |node| node.device),
            others: others.map(|(_, node)| node.clone()).collect(),
            activations: facts.activations,
            heartbeat: facts.heartbeat,
            hop: facts.hop,
        }
    }
}
