//! Measuring what lies between two workers, as the head asks: one opens a link to the other and sends bytes there and
//! back.
//!
//! On threads of their own, so that a plan that comes meanwhile waits for neither; both end within seconds whatever the
//! other side does, and the one that answers ends with the next part or the next measurement. Links for this have a
//! purpose of their own: nothing of a ring's work goes over them, and no link of the ring is taken for one of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::peers::KNOWN;
use super::session::{Serving, Shared, locked};
use crate::ring::edges::{self, MEASURE};
use crate::ring::frame::{Frame, NextNode, WayTo};
use crate::ring::link::{Key, Link, LinkError, Network, Purpose};

/// Between two looks at what has come.
const SLICE: Duration = Duration::from_millis(5);
/// Between two tries to open a link.
const AGAIN: Duration = Duration::from_millis(20);

impl Serving<'_> {
    /// Measures the way to a device and tells the head.
    pub(super) fn measure(&self, to: NextNode) {
        let (network, shared) = (Arc::clone(&self.network), Arc::clone(self.shared));
        let measured = move || {
            let way = reached(network.as_ref(), &shared, &to)
                .and_then(|mut link| edges::measure(link.sender.as_mut(), link.receiver.as_mut(), MEASURE));
            let way = way.inspect_err(|err| tracing::debug!(%err, "a way cannot be measured")).ok();
            // Where the head is gone nobody wants to know.
            let _unheard = shared.outgoing.send(&Frame::Edge(WayTo { to: to.key, way }));
        };
        spawn(measured);
    }

    /// Answers a device that measures the way to this one.
    pub(super) fn await_edge(&self, from: Key) {
        self.network.allow(&[from]);
        let shared = Arc::clone(self.shared);
        let turn = shared.turn.fetch_add(1, Ordering::AcqRel) + 1;
        spawn(move || {
            let end = Instant::now() + MEASURE * 2;
            let goes_on = || {
                let present = shared.turn.load(Ordering::Acquire) == turn;
                present && Instant::now() < end && !shared.ended.load(Ordering::Acquire)
            };
            while goes_on() {
                match taken(&shared, from) {
                    // Behind one that has ended already another one may come.
                    Some(link) => echo(link, &goes_on),
                    None => std::thread::sleep(SLICE),
                }
            }
        });
    }

    /// A part begins: nothing more is answered.
    pub(super) fn end_measuring(&self) {
        self.shared.turn.fetch_add(1, Ordering::AcqRel);
        locked(&self.shared.edges).clear();
    }
}

/// A link to a device that may hear of this one a moment later than this one of it.
fn reached(network: &dyn Network, shared: &Shared, to: &NextNode) -> Result<Link, LinkError> {
    let begun = Instant::now();
    loop {
        match network.connect(to, Purpose::Edge, MEASURE) {
            Err(LinkError::Refused | LinkError::Closed)
                if begun.elapsed() < KNOWN && !shared.ended.load(Ordering::Acquire) =>
            {
                std::thread::sleep(AGAIN);
            }
            done => return done,
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    if let Err(err) = std::thread::Builder::new().name("baton-ring-edge".into()).spawn(work) {
        tracing::warn!(%err, "a way cannot be measured");
    }
}

/// The link of this device, if it has come.
fn taken(shared: &Shared, from: Key) -> Option<Link> {
    let mut edges = locked(&shared.edges);
    let at = edges.iter().position(|link| link.peer == from)?;
    Some(edges.remove(at))
}

/// Answers until the other side is done, or this is not wanted any more.
fn echo(mut link: Link, goes_on: &dyn Fn() -> bool) {
    while goes_on() {
        let frame = match link.receiver.receive(SLICE * 10) {
            Ok(bytes) => Frame::decode(&bytes),
            Err(LinkError::TimedOut) => continue,
            Err(_) => return,
        };
        let Ok(Frame::Echo(echo)) = frame else { return };
        if link.sender.send(&edges::answer(&echo).encode(), MEASURE).is_err() {
            return;
        }
    }
}
