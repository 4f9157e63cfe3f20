//! Admits devices that join while the ring serves, and removes devices that were lost while no answer ran.
//!
//! Both happen only between answers. A new device first fetches its weights while the ring goes on without
//! it; it takes part from the next answer after that. If no ring can be formed with a new device, it is
//! left out again, so a new device never costs the others their ring.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::edges::{EdgeTable, MEASURE};
use super::super::frame::{Frame, MeasuredLink, NodeAddress, Provide};
use super::super::layout::Layout;
use super::super::link::Key;
use super::super::stats::LostDevice;
use super::super::weights::{Manifest, PIECE_BYTES, WeightsError};
use super::listener::RingListener;
use super::member::{Member, ModelFile};
use super::{RingError, RingHead, Route, chain, locked};

/// Workers between which all paths are measured: 28 pairs. Paths to further workers count as the slowest
/// one that is known.
const MEASURED_MAX: usize = 8;
/// How long a device may make no progress in fetching before it is left out. Hashing a file of its own also
/// takes time.
const QUIET: Duration = Duration::from_secs(120);
/// Wait between two checks whether a path was measured.
const SLICE: Duration = Duration::from_millis(2);

impl RingHead {
    /// Admits devices between answers: those that answer are told to fetch the weights that they will need.
    fn admit_newcomers(&mut self, nodes: &[NodeAddress]) -> Result<(), RingError> {
        let mut came: Vec<Key> = Vec::new();
        for node in nodes {
            match self.admit(node) {
                Ok(true) => came.push(node.key),
                Ok(false) => {}
                Err(err) => {
                    tracing::warn!(address = %node.address, err = %chain(&err), "a device cannot join");
                }
            }
        }
        if came.is_empty() {
            return Ok(());
        }
        self.measure_edges();
        if matches!(self.route, Route::Down) {
            // There is no ring that they could delay.
            return self.take_in(&came);
        }
        match self.draft() {
            Ok(layout) => self.provide(&came, &layout),
            Err(err) => {
                tracing::warn!(err = %chain(&err), "no plan with the devices that came");
                self.members.retain(|member| !came.contains(&member.node.key));
            }
        }
        self.publish();
        Ok(())
    }

    /// Tells these devices to fetch the weights of the layers that this plan gives them. Until then they
    /// are not members.
    fn provide(&mut self, came: &[Key], layout: &Layout) {
        let model =
            self.model_file.as_ref().map(|model_file| model_file.manifest.digest()).unwrap_or_default();
        let (coming, members): (Vec<_>, Vec<_>) =
            self.members.drain(..).partition(|member| came.contains(&member.node.key));
        self.members = members;
        let others: Vec<NodeAddress> = self.members.iter().map(|member| member.node.clone()).collect();
        let layers = |name: &str| {
            let place = layout.names.iter().position(|other| other == name);
            place.map_or_else(Vec::new, |place| layout.layers_of(place))
        };
        let all: usize = coming.iter().map(|member| layers(member.name()).len()).sum();
        let due = Instant::now() + self.fetch_limit(QUIET, all);
        for member in coming {
            // There are fewer than 65536 layers.
            let layers = layers(member.name()).into_iter().map(|layer| layer as u16).collect();
            member.expect_by(due);
            let sent =
                member.send(&Frame::Provide(Box::new(Provide { model, layers, others: others.clone() })));
            match sent {
                Ok(()) => {
                    tracing::info!(
                        device = member.name(),
                        "a device fetches its weights before it takes part"
                    );
                    self.coming.push(member);
                }
                Err(err) => {
                    tracing::warn!(device = member.name(), err = %chain(&err), "a device cannot join")
                }
            }
        }
    }

    /// Checks the devices that fetch weights. When none of them is still fetching, those that have
    /// everything become members.
    fn take_in_ready(&mut self) -> Result<(), RingError> {
        let mut left = Vec::new();
        self.coming.retain(|member| {
            let state = member.state();
            let words = state.lost.or_else(|| member.failure(0).map(|failure| failure.words));
            let quiet = !state.provided && state.progressed.elapsed() > QUIET;
            let words = words.or_else(|| quiet.then(|| format!("got no weights for {} s", QUIET.as_secs())));
            let late = !state.provided && state.due.is_some_and(|due| Instant::now() > due);
            let words = words.or_else(|| late.then(|| "it took too long to get its weights".to_owned()));
            left.extend(words.clone().map(|words| LostDevice { name: member.name().to_owned(), words }));
            words.is_none()
        });
        for device in left {
            tracing::warn!(device = device.name, words = device.words, "a device leaves before it took part");
            locked(&self.shared.stats).lose(device);
            self.publish();
        }
        if self.coming.is_empty() || self.coming.iter().any(|member| !member.state().provided) {
            return Ok(());
        }
        let came: Vec<Key> = self.coming.iter().map(|member| member.node.key).collect();
        self.members.append(&mut self.coming);
        self.measure_edges();
        self.take_in(&came)
    }

    /// Makes a new plan with these members and moves live sequences to it. If no ring can be formed with
    /// them, it is formed without them.
    fn take_in(&mut self, came: &[Key]) -> Result<(), RingError> {
        match self.recover(&mut ()) {
            Err(err) if self.members.iter().any(|member| came.contains(&member.node.key)) => {
                tracing::warn!(err = %chain(&err), "no ring with the devices that came");
                self.members.retain(|member| !came.contains(&member.node.key));
                self.recover(&mut ())
            }
            done => done,
        }
    }

    /// Opens the control channel to a device. Returns whether it has become a member that it was not
    /// before.
    pub(super) fn admit(&mut self, node: &NodeAddress) -> Result<bool, RingError> {
        if self.audits.bars(&node.key) {
            tracing::debug!(address = %node.address, "a device that computed wrong is not taken in");
            return Ok(false);
        }
        let known = |member: &Arc<Member>| member.node.key == node.key;
        let mut all = self.members.iter().chain(&self.coming);
        if all.any(|member| known(member) && member.lost().is_none()) {
            return Ok(false);
        }
        self.members.retain(|member| !known(member));
        self.coming.retain(|member| !known(member));
        let model_file = self.model_file()?;
        if self.listener.is_none() {
            self.listener = Some(RingListener::open(&self.network)?);
        }
        let all = self.members.iter().chain(&self.coming);
        let keys: Vec<Key> = all.map(|member| member.node.key).chain(std::iter::once(node.key)).collect();
        self.network.allow(&keys);
        let times = (self.options.heartbeat, self.options.patience);
        match Member::connect(self.network.as_ref(), node, &model_file, &self.options.edges, times) {
            Ok(mut member) => {
                if let Some(name) = self.options.names.of(&node.key) {
                    member.hello.name = name;
                }
                let mut names = self.members.iter().chain(&self.coming).map(|member| member.name());
                let name = member.name();
                if name == self.options.name || names.any(|other| other == name) {
                    return Err(RingError::TwoNames { name: name.to_owned() });
                }
                self.members.push(Arc::new(member));
                self.publish();
                Ok(true)
            }
            Err(err) => {
                tracing::warn!(address = %node.address, err = %chain(&err), "not in the ring");
                Ok(false)
            }
        }
    }

    /// Lets workers measure the unknown paths between them: one pair after the other, so that they do not
    /// disturb each other.
    pub(super) fn measure_edges(&mut self) {
        let own = self.network.own().key;
        let named = |member: &Arc<Member>| (member.node.key, member.name().to_owned());
        let mut names: Vec<(Key, String)> = self.members.iter().map(named).collect();
        names.push((own, self.options.name.clone()));
        let edges = self.options.edges.clone();
        let members = self.members.iter().take(MEASURED_MAX).enumerate();
        for (at, a) in members {
            for b in self.members.iter().take(MEASURED_MAX).skip(at + 1) {
                let pair = (a.node.key, b.node.key);
                if !edges.knows(pair.0, pair.1) && self.edges_asked.insert(pair) {
                    measure_edge(&edges, a, b);
                }
            }
        }
        edges.set_devices(&names);
    }

    fn model_file(&mut self) -> Result<Arc<ModelFile>, RingError> {
        if let Some(model_file) = &self.model_file {
            return Ok(Arc::clone(model_file));
        }
        let path = self.engine.model().path().ok_or(RingError::NoFile)?.to_owned();
        let model_file = Arc::new(ModelFile::open(path)?);
        self.model_file = Some(Arc::clone(&model_file));
        Ok(model_file)
    }

    /// Publishes to other threads which devices belong to the ring or are about to.
    pub(super) fn publish(&self) {
        let all = self.members.iter().chain(&self.coming);
        *locked(&self.shared.present) = all.map(|member| member.node.key).collect();
        let names = self.coming.iter().map(|member| member.name().to_owned());
        locked(&self.shared.stats).fetching = names.collect();
    }

    /// Handles devices that left or arrived since the last answer.
    pub(super) fn update_members(&mut self) {
        let fault = match &self.route {
            Route::Ring(epoch) => epoch.trouble(self.epoch),
            Route::Alone | Route::Down => None,
        };
        match fault {
            Some(fault) => {
                self.end_epoch(&fault);
                self.recover_or_warn();
            }
            // Members that the plan does not use.
            None => self.remove_lost(),
        }
        let mut done = self.take_in_ready();
        // One plan for all that fetch: devices that arrive meanwhile wait for them.
        if self.coming.is_empty() {
            let newcomers = std::mem::take(&mut *locked(&self.shared.newcomers));
            done = done.and_then(|()| self.admit_newcomers(&newcomers));
        }
        if let Err(err) = done {
            tracing::warn!(err = %chain(&err), "the ring cannot be formed again");
        }
    }

    /// Forms the ring again. If that fails, the next step returns the error.
    pub(super) fn recover_or_warn(&mut self) {
        if let Err(err) = self.recover(&mut ()) {
            tracing::warn!(err = %chain(&err), "the ring cannot be formed again");
        }
    }
}

/// Has one worker measure the path to another. If that fails, the path counts as the slowest one that is
/// known.
fn measure_edge(edges: &EdgeTable, a: &Member, b: &Member) {
    let asked = b.send(&Frame::AwaitEdge { from: a.node.key });
    if asked.and_then(|()| a.send(&Frame::MeasureEdge(b.node.clone()))).is_err() {
        return;
    }
    // Connecting may take as long as measuring.
    let end = Instant::now() + MEASURE * 2;
    while Instant::now() < end && a.lost().is_none() && b.lost().is_none() {
        match a.state().edge.filter(|edge| edge.to == b.node.key) {
            Some(MeasuredLink { speed: Some(speed), .. }) => return edges.put(a.node.key, b.node.key, speed),
            Some(MeasuredLink { speed: None, .. }) => break,
            None => std::thread::sleep(SLICE),
        }
    }
    tracing::warn!(from = a.name(), to = b.name(), "the network path between two devices cannot be measured");
}

impl ModelFile {
    fn open(path: PathBuf) -> Result<Self, WeightsError> {
        let manifest = Manifest::of_file(&path, PIECE_BYTES)?;
        let file = std::fs::File::open(&path).map_err(|err| WeightsError::File {
            what: "open",
            path: path.clone(),
            err,
        })?;
        Ok(Self { manifest, path, file })
    }
}
