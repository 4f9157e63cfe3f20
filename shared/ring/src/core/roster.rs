//! Who belongs to the ring: the devices with a control channel, what is known of each, and who may come.
//!
//! The roster greets devices, notices their silence, and removes those that are lost or at fault. It decides
//! nothing about the ring itself: it forms none and sends no step.
//!
//! Always holds:
//!
//! - There is one member per device. No two members, and no member and the head, have the same name.
//! - At most one device is greeted and at most one pair measures, so that measurements do not disturb each
//!   other.
//! - The control channel of a member is open exactly as long as the member is not lost.
//! - A device that computed wrong is never greeted again.

mod admit;
mod blame;
mod greet;
mod member;
mod pairs;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::head::{Fx, HeadSetup, ModelFacts, PlanFor};
use super::planted::{Bug, Planted};
use super::stats::LostDevice;
use super::ways::Ways;
use super::{DeviceId, Epoch, LinkId, Node};
use crate::wire::frame::{Frame, Heartbeat, Hello};
use admit::Admission;
use greet::{Greeting, Paths};
use member::{Member, Standing};
use pairs::Pairs;

/// Bounds of the time between two looks at who is silent.
const TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// Broken links of a device after which it is left out.
pub(super) const STRIKES_MAX: u32 = 2;
/// Most losses that are kept.
const LOST_MAX: usize = 64;

/// The devices of the ring, besides the head.
#[derive(Debug)]
pub(super) struct Roster {
    own: DeviceId,
    own_name: String,
    n_layers: usize,
    heartbeat: Duration,
    patience: Duration,
    /// Known before anybody is greeted.
    model: Option<ModelFacts>,
    /// In the order in which they came: the planner sees this order.
    members: Vec<Member>,
    greeting: Option<Greeting>,
    admission: Option<Admission>,
    /// Devices that shall join and were not looked at yet: one node per device, the latest one.
    newcomers: Vec<Node>,
    pairs: Pairs,
    ways: Ways,
    barred: BTreeSet<DeviceId>,
    /// Broken links per device, as long as the device was not lost.
    strikes: BTreeMap<DeviceId, u32>,
    /// The devices that were lost last, oldest first.
    lost: VecDeque<LostDevice>,
    /// Whether the head computes an adapter. Other devices cannot, so none may take part.
    adapters: bool,
    planted: Planted,
}

/// Facts, and devices that shall join.
impl Roster {
    /// Makes the roster of a head that knows nobody yet.
    pub(super) fn new(setup: &HeadSetup, planted: Planted) -> Self {
        Self {
            own: setup.own.device,
            own_name: setup.name.clone(),
            n_layers: setup.n_layers,
            heartbeat: setup.heartbeat,
            patience: setup.patience,
            model: None,
            members: Vec::new(),
            greeting: None,
            admission: None,
            newcomers: Vec::new(),
            pairs: Pairs::default(),
            ways: setup.ways.clone(),
            barred: BTreeSet::new(),
            strikes: BTreeMap::new(),
            lost: VecDeque::new(),
            adapters: false,
            planted,
        }
    }

    /// Returns what is known of the model's file, once it was read.
    pub(super) fn model(&self) -> Option<&ModelFacts> {
        self.model.as_ref()
    }

    /// The model's file was read.
    pub(super) fn read(&mut self, facts: ModelFacts) {
        self.model = Some(facts);
    }

    /// An adapter was added to the head's engine: from now on the head stays alone.
    pub(super) fn adapter_came(&mut self) {
        self.adapters = true;
    }

    /// A device shall join. Of one device the latest address counts.
    pub(super) fn join(&mut self, node: Node) {
        self.newcomers.retain(|other| other.device != node.device);
        self.newcomers.push(node);
    }

    /// Returns the devices that shall join and were not looked at yet.
    pub(super) fn joining(&self) -> Vec<DeviceId> {
        self.newcomers.iter().map(|node| node.device).collect()
    }

    /// Takes the devices that shall join, or none as long as others fetch their weights or an adapter is in
    /// use: there is one plan for all that fetch.
    pub(super) fn take_newcomers(&mut self) -> Vec<Node> {
        let fetch = self.members.iter().any(|member| member.standing == Standing::Coming);
        if fetch || self.adapters { Vec::new() } else { std::mem::take(&mut self.newcomers) }
    }

    /// Returns the members, whether or not the plan uses them, and the devices that fetch their weights.
    pub(super) fn present(&self) -> Vec<DeviceId> {
        self.members.iter().map(|member| member.node.device).collect()
    }

    /// Returns the names of the devices that fetch their weights.
    pub(super) fn fetching(&self) -> Vec<String> {
        let coming = self.members.iter().filter(|member| member.standing == Standing::Coming);
        coming.map(|member| member.name().to_owned()).collect()
    }

    /// Returns whether devices wait to be looked at. Those that come are, only if no others fetch their
    /// weights; those that fetch join together.
    pub(super) fn wants_pause(&self) -> bool {
        let mut coming = self.members.iter().filter(|member| member.standing == Standing::Coming).peekable();
        match coming.peek() {
            None => !self.newcomers.is_empty() && !self.adapters,
            Some(_) => coming.all(|member| member.seen.provided),
        }
    }

    /// Returns the number of members, without those that fetch their weights.
    pub(super) fn members(&self) -> usize {
        self.planned_with().count()
    }

    /// Returns a device's name.
    pub(super) fn name(&self, device: DeviceId) -> Option<&str> {
        self.member(device).map(Member::name)
    }

    /// Returns a device's latest heartbeat.
    pub(super) fn beat(&self, device: DeviceId) -> Option<&Heartbeat> {
        self.member(device).map(|member| &member.seen.beat)
    }

    /// Returns a device's address.
    pub(super) fn node(&self, device: DeviceId) -> Option<&Node> {
        self.member(device).map(|member| &member.node)
    }

    /// Returns the member with this name.
    pub(super) fn named(&self, name: &str) -> Option<DeviceId> {
        self.planned_with().find(|member| member.name() == name).map(|member| member.node.device)
    }

    /// Returns the names of the head and of all members, for people.
    pub(super) fn names(&self) -> String {
        let others = self.planned_with().map(Member::name);
        std::iter::once(self.own_name.as_str()).chain(others).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether a device is ready for this epoch.
    pub(super) fn is_ready(&self, device: DeviceId, epoch: Epoch) -> bool {
        self.member(device).is_some_and(|member| member.seen.ready == epoch)
    }

    /// Returns when a device last received a piece of the model.
    pub(super) fn fed_at(&self, device: DeviceId) -> Option<Duration> {
        self.member(device).map(|member| member.seen.fed_at)
    }

    /// Returns the devices that were lost last, oldest first.
    pub(super) fn lost(&self) -> impl Iterator<Item = &LostDevice> {
        self.lost.iter()
    }

    /// Returns which devices were lost and are no members now, and why, for people. Of a device that was lost
    /// more than once the last time counts.
    pub(super) fn missing(&self) -> Option<String> {
        let is_there = |name: &str| self.planned_with().any(|member| member.name() == name);
        let missing: BTreeMap<&str, &LostDevice> = self
            .lost
            .iter()
            .filter(|lost| !is_there(&lost.name))
            .map(|lost| (lost.name.as_str(), lost))
            .collect();
        let words: Vec<String> =
            missing.values().map(|lost| format!("`{}` ({})", lost.name, lost.words)).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Returns what is known of all paths.
    pub(super) fn ways(&self) -> &Ways {
        &self.ways
    }

    /// Returns what to plan with: all members, or the head alone as long as an adapter is in use.
    pub(super) fn plan_for(&self) -> PlanFor {
        let with = |member: &&Member| !self.adapters && member.standing == Standing::Member;
        let workers: Vec<Hello> =
            self.members.iter().filter(with).map(|member| member.hello.clone()).collect();
        let named = self.members.iter().map(|member| (member.node.device, member.name().to_owned()));
        let names: Vec<_> = named.chain(std::iter::once((self.own, self.own_name.clone()))).collect();
        PlanFor { workers, network: self.ways.network(&names) }
    }

    /// Sends a frame to a device, unless that is lost.
    pub(super) fn send(&self, device: DeviceId, frame: Frame, fx: &mut Fx) {
        if let Some(member) = self.member(device).filter(|member| member.is_there()) {
            fx.send(member.control, frame);
        }
    }

    fn member(&self, device: DeviceId) -> Option<&Member> {
        self.members.iter().find(|member| member.node.device == device)
    }

    fn planned_with(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.standing == Standing::Member)
    }

    /// Records a device that was lost. Of many losses the latest are kept.
    fn record(&mut self, name: String, words: String) {
        if self.lost.len() == LOST_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(LostDevice { name, words });
    }
}

/// What is heard, and what time brings.
impl Roster {
    /// Returns whether this is the control channel of a member, or of the device that is greeted.
    pub(super) fn owns(&self, link: LinkId) -> bool {
        self.greeting.as_ref().is_some_and(|greeting| greeting.link == link)
            || self.members.iter().any(|member| member.control == link)
    }

    /// A control channel was opened, or was not.
    pub(super) fn opened(&mut self, link: LinkId, opened: Result<(), String>, now: Duration, fx: &mut Fx) {
        let until = now + self.patience;
        if let Some(greeting) = self.greeting.as_mut().filter(|greeting| greeting.link == link) {
            let news = greeting.opened(opened, until);
            self.greeted(news, now, fx);
        }
    }

    /// A frame came over a control channel.
    pub(super) fn heard(&mut self, link: LinkId, frame: Frame, now: Duration, fx: &mut Fx) {
        if let Some(greeting) = self.greeting.as_mut().filter(|greeting| greeting.link == link) {
            let mut paths = Paths { own: self.own, ways: &mut self.ways };
            let news = greeting.heard(frame, &mut paths, now, fx);
            return self.greeted(news, now, fx);
        }
        let member = self.members.iter_mut().find(|member| member.control == link && member.is_there());
        if let Some(member) = member
            && let Err(words) = member.heard(frame, now, fx)
        {
            member.lose(words.to_owned(), fx);
        }
    }

    /// The host has sent a piece of the model, or the list, over a control channel.
    pub(super) fn gave(&mut self, link: LinkId, now: Duration) {
        if let Some(member) = self.members.iter_mut().find(|member| member.control == link) {
            member.seen.fed_at = now;
        }
    }

    /// A control channel has ended.
    pub(super) fn gone(&mut self, link: LinkId, words: String, now: Duration, fx: &mut Fx) {
        if let Some(greeting) = self.greeting.as_ref().filter(|greeting| greeting.link == link) {
            let news = greeting.gone(words);
            return self.greeted(news, now, fx);
        }
        if let Some(member) = self.members.iter_mut().find(|member| member.control == link) {
            // The channel is closed already.
            member.seen.lost.get_or_insert(words);
        }
    }

    /// Sends heartbeats, and notices who is silent or takes too long. May be called at any time.
    pub(super) fn on_time(&mut self, now: Duration, fx: &mut Fx) {
        let times = (self.heartbeat, self.tick());
        let late_counts = self.planted.is(Bug::OwnLatenessCounts);
        for member in &mut self.members {
            member.on_time(times, late_counts, now, fx);
        }
        if let Some(greeting) = &self.greeting {
            let news = greeting.on_time(now);
            self.greeted(news, now, fx);
        }
    }

    /// When [`Self::on_time`] or a room's work must go on at the latest.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let tick = self.tick();
        let there = self.members.iter().filter(|member| member.is_there());
        let members = there.map(|member| member.seen.beat_at.min(member.seen.looked_at + tick)).min();
        let greeting = self.greeting.as_ref().and_then(Greeting::wake_at);
        [members, greeting, self.pairs.wake_at()].into_iter().flatten().min()
    }

    /// Ends all control channels.
    pub(super) fn end(&mut self, fx: &mut Fx) {
        self.admission = None;
        if let Some(greeting) = self.greeting.take() {
            greeting.end(fx);
        }
        self.members.drain(..).for_each(|member| member.close(fx));
    }

    /// Returns the time between two looks at the members.
    pub(super) fn tick(&self) -> Duration {
        (self.heartbeat / 4).clamp(TICK.0, TICK.1)
    }
}
