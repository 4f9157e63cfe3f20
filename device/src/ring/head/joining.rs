//! Devices that come while the ring serves, and devices that went while nobody asked.
//!
//! Both are seen to between answers only: whoever comes takes part from the next answer on. A device that cannot be
//! formed a ring with is left out again, so that who comes never costs those that are there their ring.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::edges::{EdgeBook, MEASURE};
use super::super::frame::{Frame, NextNode, WayTo};
use super::super::link::Key;
use super::super::weights::{Manifest, PIECE_BYTES, WeightsError};
use super::door::Door;
use super::member::{Member, Shelf};
use super::{RingError, RingHead, Route, chain, locked};

/// Workers between which every way is measured: 28 pairs. Ways to further ones count as the slowest that is known.
const WEIGHED_MAX: usize = 8;
/// Between two looks at whether a way was measured.
const SLICE: Duration = Duration::from_millis(2);

impl RingHead {
    /// Takes devices in, to be called between answers: the ring is planned anew with those that answer, and live
    /// sequences go over to it. Where no ring can be formed with them, it is formed without.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn adopt(&mut self, nodes: &[NextNode]) -> Result<(), RingError> {
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
        let known = |member: &Arc<Member>| member.node.key == node.key;
        if self.members.iter().any(|member| known(member) && member.lost().is_none()) {
            return Ok(false);
        }
        self.members.retain(|member| !known(member));
        let shelf = self.shelf()?;
        if self.door.is_none() {
            self.door = Some(Door::open(&self.network)?);
        }
        let keys: Vec<Key> =
            self.members.iter().map(|member| member.node.key).chain(std::iter::once(node.key)).collect();
        self.network.allow(&keys);
        let times = (self.options.heartbeat, self.options.patience);
        match Member::connect(self.network.as_ref(), node, &shelf, &self.options.edges, times) {
            Ok(member) => {
                let mut names = self.members.iter().map(|member| member.name());
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

    /// Shows other threads who belongs to the ring.
    pub(super) fn publish(&self) {
        *locked(&self.board.present) = self.members.iter().map(|member| member.node.key).collect();
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
        let newcomers = std::mem::take(&mut *locked(&self.board.newcomers));
        if let Err(err) = self.adopt(&newcomers) {
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
