//! Who comes: devices are greeted one after the other, and fetch their weights before they are planned with.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Roster;
use super::greet::{Greeted, Greeting};
use super::member::{Member, QUIET, Standing};
use crate::core::form::fetch_limit;
use crate::core::head::{Effect, Fx, Progress};
use crate::core::layout::Layout;
use crate::core::{DeviceId, LinkEffect, Node, Note};
use crate::wire::frame::{Frame, Hello, Provide};

/// Devices that are greeted one after the other.
#[derive(Debug)]
pub(super) struct Admission {
    left: VecDeque<Node>,
    came: Vec<DeviceId>,
    /// Whether a name that two devices have ends the admission.
    strict: bool,
    /// Such a name.
    clash: Option<String>,
}

/// Returns the layers of the device with this name, or none if it has no place.
fn layers_named(layout: &Layout, name: &str) -> Vec<usize> {
    let place = layout.names.iter().position(|other| other == name);
    place.map_or_else(Vec::new, |place| layout.layers_of(place))
}

impl Roster {
    /// Begins to greet these devices. If `strict`, a name that two devices have ends the admission; otherwise
    /// the second of them is left out.
    pub(in crate::core) fn begin_admit(&mut self, nodes: Vec<Node>, strict: bool) {
        self.admission = Some(Admission { left: nodes.into(), came: Vec::new(), strict, clash: None });
    }

    /// Greets the devices one after the other. Returns those that have come, or the name that two devices
    /// have.
    pub(in crate::core) fn admit(&mut self, fx: &mut Fx) -> Progress<Result<Vec<DeviceId>, String>> {
        loop {
            if self.greeting.is_some() {
                return Progress::Waiting;
            }
            let Some(admission) = &mut self.admission else { return Progress::Done(Ok(Vec::new())) };
            if let Some(name) = admission.clash.take() {
                self.admission = None;
                return Progress::Done(Err(name));
            }
            match admission.left.pop_front() {
                Some(node) => self.greet(node, fx),
                None => {
                    let came = self.admission.take().map(|admission| admission.came);
                    return Progress::Done(Ok(came.unwrap_or_default()));
                }
            }
        }
    }

    /// Begins to greet a device, unless it is barred or there already.
    fn greet(&mut self, node: Node, fx: &mut Fx) {
        if self.barred.contains(&node.device) {
            return fx.note(Note::Barred { address: node.address });
        }
        if self.member(node.device).is_some_and(Member::is_there) {
            return;
        }
        self.members.retain(|member| member.node.device != node.device);
        let mut allowed = self.present();
        allowed.push(node.device);
        fx.push(Effect::Link(LinkEffect::Allow(allowed)));
        self.greeting = Some(Greeting::begin(node, true, self.patience, fx));
    }

    /// Goes on after something happened to the greeting.
    pub(super) fn greeted(&mut self, news: Greeted, now: Duration, fx: &mut Fx) {
        if matches!(news, Greeted::Waiting) {
            return;
        }
        let Some(greeting) = self.greeting.take() else { return };
        let address = greeting.node.address.clone();
        match news {
            Greeted::Waiting => {}
            Greeted::In(hello) => self.enter(&greeting, *hello, now, fx),
            Greeted::NotMeasured { words, open } => {
                if open {
                    greeting.end(fx);
                }
                fx.note(Note::NotMeasured { device: address, words });
                self.greeting = Some(Greeting::begin(greeting.node, false, self.patience, fx));
            }
            Greeted::Out { words, open } => {
                if open {
                    greeting.end(fx);
                }
                fx.note(Note::NotIn { address, words });
            }
        }
    }

    /// Takes in a device that was greeted, unless its name is taken.
    fn enter(&mut self, greeting: &Greeting, hello: Hello, now: Duration, fx: &mut Fx) {
        let name = hello.name.clone();
        if name == self.own_name || self.members.iter().any(|member| member.name() == name) {
            greeting.end(fx);
            match &mut self.admission {
                Some(admission) if admission.strict => admission.clash = Some(name),
                _ => {
                    let words = format!("two devices of the ring are called `{name}`");
                    fx.note(Note::NotIn { address: greeting.node.address.clone(), words });
                }
            }
            return;
        }
        self.members.push(Member::new(greeting, hello, now));
        if let Some(admission) = &mut self.admission {
            admission.came.push(greeting.node.device);
        }
        // The first heartbeat goes at once.
        self.on_time(now, fx);
    }

    /// Tells these devices to fetch the weights of the layers that this layout gives them. Until they have
    /// them they are not planned with. The members are told to let them fetch.
    pub(in crate::core) fn provide(
        &mut self,
        came: &[DeviceId],
        layout: &Layout,
        now: Duration,
        fx: &mut Fx,
    ) {
        let others: Vec<Node> = self
            .planned_with()
            .filter(|member| !came.contains(&member.node.device))
            .map(|member| member.node.clone())
            .collect();
        let layers: BTreeMap<DeviceId, Vec<usize>> = came
            .iter()
            .filter_map(|device| Some((*device, layers_named(layout, self.name(*device)?))))
            .collect();
        let all: usize = layers.values().map(Vec::len).sum();
        let due = now + fetch_limit(self.model.as_ref(), QUIET, all, self.n_layers);
        let model = self.model.as_ref().map(|model| model.digest).unwrap_or_default();
        for (device, layers) in layers {
            others.iter().for_each(|other| self.send(other.device, Frame::AwaitEdge { from: device }, fx));
            // There are fewer than 65536 layers.
            let layers = layers.into_iter().map(|layer| layer as u16).collect();
            let provide = Provide { model, layers, others: others.clone() };
            self.send(device, Frame::Provide(Box::new(provide)), fx);
            if let Some(member) = self.members.iter_mut().find(|member| member.node.device == device) {
                member.standing = Standing::Coming;
                member.due = Some(due);
                fx.note(Note::Fetches { device: member.name().to_owned() });
            }
        }
    }

    /// Checks the devices that fetch weights. If none of them is still fetching, those that have everything
    /// become members and are returned.
    pub(in crate::core) fn welcome(&mut self, now: Duration, fx: &mut Fx) -> Vec<DeviceId> {
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        for member in self.members.drain(..) {
            match member.leaves_before(now) {
                Some(words) => left.push((member, words)),
                None => kept.push(member),
            }
        }
        self.members = kept;
        for (member, words) in left {
            member.close(fx);
            let device = member.hello.name;
            fx.note(Note::LeftBefore { device: device.clone(), words: words.clone() });
            self.record(device, words);
        }
        let coming = || self.members.iter().filter(|member| member.standing == Standing::Coming);
        if coming().any(|member| !member.seen.provided) {
            return Vec::new();
        }
        let came: Vec<DeviceId> = coming().map(|member| member.node.device).collect();
        self.members.iter_mut().for_each(|member| member.standing = Standing::Member);
        came
    }
}
