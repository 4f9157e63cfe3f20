//! Devices that come while the ring serves, and devices that went while nobody asked.
//!
//! Both are seen to between answers only. Whoever comes fetches its weights first, while the ring goes on without it,
//! and takes part from the next answer on once it has them. A device that cannot be formed a ring with is left out
//! again, so that who comes never costs those that are there their ring.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::edges::{EdgeBook, MEASURE};
use super::super::frame::{Frame, NextNode, Provide, WayTo};
use super::super::layout::Layout;
use super::super::link::Key;
use super::super::stats::LostDevice;
use super::super::weights::{Manifest, PIECE_BYTES, WeightsError};
use super::door::Door;
use super::member::{Member, Shelf};
use super::{RingError, RingHead, Route, chain, locked};

/// Workers between which every way is measured: 28 pairs. Ways to further ones count as the slowest that is known.
const WEIGHED_MAX: usize = 8;
/// How long a device may get nothing of what it lacks before it is left out; hashing a file of its own takes time, too.
const QUIET: Duration = Duration::from_secs(120);
/// Between two looks at whether a way was measured.
const SLICE: Duration = Duration::from_millis(2);

impl RingHead {
    /// Lets devices come, to be called between answers: those that answer are told to fetch what they will need.
    fn adopt(&mut self, nodes: &[NextNode]) -> Result<(), RingError> {
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
        self.weigh_edges();
        if matches!(self.route, Route::Down) {
            // Nothing goes on that they could keep waiting.
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

    /// Has them fetch the weights of the layers that they would have in this plan; until then they are no members.
    fn provide(&mut self, came: &[Key], layout: &Layout) {
        let model = self.shelf.as_ref().map(|shelf| shelf.manifest.digest()).unwrap_or_default();
        let (coming, members): (Vec<_>, Vec<_>) =
            self.members.drain(..).partition(|member| came.contains(&member.node.key));
        self.members = members;
        let others: Vec<NextNode> = self.members.iter().map(|member| member.node.clone()).collect();
        let layers = |name: &str| {
            let place = layout.names.iter().position(|other| other == name);
            place.map_or_else(Vec::new, |place| layout.layers_of(place))
        };
        let all: usize = coming.iter().map(|member| layers(member.name()).len()).sum();
        let due = Instant::now() + self.fetch_limit(QUIET, all);
        for member in coming {
            // Layers are fewer than 65536.
            let layers = layers(member.name()).into_iter().map(|layer| layer as u16).collect();
            member.expect_by(due);
            let told =
                member.send(&Frame::Provide(Box::new(Provide { model, layers, others: others.clone() })));
            match told {
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

    /// Sees to the devices that fetch: once none does any more, those that have everything are taken in.
    fn welcome(&mut self) -> Result<(), RingError> {
        let mut left = Vec::new();
        self.coming.retain(|member| {
            let state = member.state();
            let words = state.lost.or_else(|| member.failure(0).map(|failure| failure.words));
            let quiet = !state.provided && state.fed.elapsed() > QUIET;
            let words = words.or_else(|| quiet.then(|| format!("got no weights for {} s", QUIET.as_secs())));
            let late = !state.provided && state.due.is_some_and(|due| Instant::now() > due);
            let words = words.or_else(|| late.then(|| "it took too long to get its weights".to_owned()));
            left.extend(words.clone().map(|words| LostDevice { name: member.name().to_owned(), words }));
            words.is_none()
        });
        for device in left {
            tracing::warn!(device = device.name, words = device.words, "a device leaves before it took part");
            locked(&self.board.stats).lose(device);
            self.publish();
        }
        if self.coming.is_empty() || self.coming.iter().any(|member| !member.state().provided) {
            return Ok(());
        }
        let came: Vec<Key> = self.coming.iter().map(|member| member.node.key).collect();
        self.members.append(&mut self.coming);
        self.weigh_edges();
        self.take_in(&came)
    }

    /// Plans the ring anew with these members, and live sequences go over to it; where no ring can be formed with them,
    /// it is formed without.
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

    /// Opens the control channel to a device; whether it is a member now and was none before.
    pub(super) fn admit(&mut self, node: &NextNode) -> Result<bool, RingError> {
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
        let shelf = self.shelf()?;
        if self.door.is_none() {
            self.door = Some(Door::open(&self.network)?);
        }
        let all = self.members.iter().chain(&self.coming);
        let keys: Vec<Key> = all.map(|member| member.node.key).chain(std::iter::once(node.key)).collect();
        self.network.allow(&keys);
        let times = (self.options.heartbeat, self.options.patience);
        match Member::connect(self.network.as_ref(), node, &shelf, &self.options.edges, times) {
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

    /// Lets workers measure the ways between them that are not known yet: one pair after the other, so that they do not
    /// slow each other down.
    pub(super) fn weigh_edges(&mut self) {
        let own = self.network.own().key;
        let named = |member: &Arc<Member>| (member.node.key, member.name().to_owned());
        let mut names: Vec<(Key, String)> = self.members.iter().map(named).collect();
        names.push((own, self.options.name.clone()));
        let book = self.options.edges.clone();
        let members = self.members.iter().take(WEIGHED_MAX).enumerate();
        for (at, a) in members {
            for b in self.members.iter().take(WEIGHED_MAX).skip(at + 1) {
                let pair = (a.node.key, b.node.key);
                if !book.knows(pair.0, pair.1) && self.weighed.insert(pair) {
                    weigh(&book, a, b);
                }
            }
        }
        book.name(&names);
    }

    fn shelf(&mut self) -> Result<Arc<Shelf>, RingError> {
        if let Some(shelf) = &self.shelf {
            return Ok(Arc::clone(shelf));
        }
        let path = self.engine.model().path().ok_or(RingError::NoFile)?.to_owned();
        let shelf = Arc::new(Shelf::open(path)?);
        self.shelf = Some(Arc::clone(&shelf));
        Ok(shelf)
    }

    /// Shows other threads who belongs to the ring, or is about to.
    pub(super) fn publish(&self) {
        let all = self.members.iter().chain(&self.coming);
        *locked(&self.board.present) = all.map(|member| member.node.key).collect();
        let names = self.coming.iter().map(|member| member.name().to_owned());
        locked(&self.board.stats).fetching = names.collect();
    }

    /// Sees to who went and who came since the last answer.
    pub(super) fn settle(&mut self) {
        let fault = match &self.route {
            Route::Ring(epoch) => epoch.trouble(self.epoch),
            Route::Alone | Route::Down => None,
        };
        match fault {
            Some(fault) => {
                self.fall(&fault);
                self.recover_or_warn();
            }
            // Members that the plan does not use.
            None => self.bury(),
        }
        let mut done = self.welcome();
        // One plan for all that fetch: who comes meanwhile waits for them.
        if self.coming.is_empty() {
            let newcomers = std::mem::take(&mut *locked(&self.board.newcomers));
            done = done.and_then(|()| self.adopt(&newcomers));
        }
        if let Err(err) = done {
            tracing::warn!(err = %chain(&err), "the ring cannot be formed again");
        }
    }

    /// Forms the ring again; where it cannot be, the next step says so.
    pub(super) fn recover_or_warn(&mut self) {
        if let Err(err) = self.recover(&mut ()) {
            tracing::warn!(err = %chain(&err), "the ring cannot be formed again");
        }
    }
}

/// One worker measures the way to another; where it cannot, the way counts as the slowest that is known.
fn weigh(book: &EdgeBook, a: &Member, b: &Member) {
    let asked = b.send(&Frame::AwaitEdge { from: a.node.key });
    if asked.and_then(|()| a.send(&Frame::MeasureEdge(b.node.clone()))).is_err() {
        return;
    }
    // Connecting may take as long as measuring.
    let end = Instant::now() + MEASURE * 2;
    while Instant::now() < end && a.lost().is_none() && b.lost().is_none() {
        match a.state().edge.filter(|edge| edge.to == b.node.key) {
            Some(WayTo { way: Some(way), .. }) => return book.put(a.node.key, b.node.key, way),
            Some(WayTo { way: None, .. }) => break,
            None => std::thread::sleep(SLICE),
        }
    }
    tracing::warn!(from = a.name(), to = b.name(), "the way between two devices cannot be measured");
}

impl Shelf {
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
