//! Measures the network path between two workers, as the head asks: one opens a link to the other and sends
//! bytes there and back.
//!
//! Both sides use separate threads, so that a plan that arrives meanwhile does not wait for them. Both end
//! within seconds, whatever the other side does. The answering side also ends with the next part or the
//! next measurement. These links have their own purpose, so that they are never confused with links of the
//! ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::peers::KNOWN;
use super::session::{SessionLoop, Shared};
use crate::ring::edges::{self, MEASURE};
use crate::ring::frame::{Frame, MeasuredLink, NodeAddress};
use crate::ring::link::{Key, Link, LinkError, Network, Purpose};
use crate::ring::locked;

/// Wait between two checks for a link.
const SLICE: Duration = Duration::from_millis(5);
/// Wait between two attempts to open a link.
const AGAIN: Duration = Duration::from_millis(20);

impl SessionLoop<'_> {
    /// Measures the path to a device and reports it to the head.
    pub(super) fn measure(&self, to: NodeAddress) {
        let (network, shared) = (Arc::clone(&self.network), Arc::clone(self.shared));
        let measured = move || {
            let speed = reached(network.as_ref(), &shared, &to)
                .and_then(|mut link| edges::measure(link.sender.as_mut(), link.receiver.as_mut(), MEASURE));
            let speed =
                speed.inspect_err(|err| tracing::debug!(%err, "a network path cannot be measured")).ok();
            // If the head is gone, the result is not needed.
            let _unheard = shared.outgoing.send(&Frame::Edge(MeasuredLink { to: to.key, speed }));
        };
        spawn(measured);
    }

    /// Answers a device that measures the path to this one.
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
                    // After a link has ended, another one may come.
                    Some(link) => echo(link, &goes_on),
                    None => std::thread::sleep(SLICE),
                }
            }
        });
    }

    /// Stops answering, because a part begins.
    pub(super) fn end_measuring(&self) {
        self.shared.turn.fetch_add(1, Ordering::AcqRel);
        locked(&self.shared.edges).clear();
    }
}

/// Opens a link to a device that may learn of this one a moment later.
fn reached(network: &dyn Network, shared: &Shared, to: &NodeAddress) -> Result<Link, LinkError> {
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
        tracing::warn!(%err, "a network path cannot be measured");
    }
}

/// Takes the link from this device, if it has arrived.
fn taken(shared: &Shared, from: Key) -> Option<Link> {
    let mut edges = locked(&shared.edges);
    let at = edges.iter().position(|link| link.peer == from)?;
    Some(edges.remove(at))
}

/// Answers echoes until the other side is done, or `goes_on` returns false.
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
