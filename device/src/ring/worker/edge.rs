//! Measuring what lies between two workers, as the head asks: one opens a link to the other and sends bytes there and
//! back.
//!
//! On threads of their own, so that a plan that comes meanwhile waits for neither; both end within seconds whatever the
//! other side does. Nothing of a ring's work goes over such a link.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::session::{Serving, Shared, locked};
use crate::ring::edges::{self, MEASURE};
use crate::ring::frame::{Frame, NextNode, WayTo};
use crate::ring::link::{Key, Link, LinkError, Purpose};

/// Between two looks at what has come.
const SLICE: Duration = Duration::from_millis(5);

impl Serving<'_> {
    /// Measures the way to a device and tells the head.
    pub(super) fn measure(&self, to: NextNode) {
        let (network, shared) = (Arc::clone(&self.network), Arc::clone(self.shared));
        let measured = move || {
            let way = network
                .connect(&to, Purpose::Ring, MEASURE)
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
        spawn(move || {
            let end = Instant::now() + MEASURE * 2;
            while Instant::now() < end && !shared.ended.load(Ordering::Acquire) {
                match taken(&shared, from) {
                    Some(link) => return echo(&shared, link, end),
                    None => std::thread::sleep(SLICE),
                }
            }
        });
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    if let Err(err) = std::thread::Builder::new().name("baton-ring-edge".into()).spawn(work) {
        tracing::warn!(%err, "a way cannot be measured");
    }
}

/// The link of this device, if it has come.
fn taken(shared: &Shared, from: Key) -> Option<Link> {
    let mut arrivals = locked(&shared.arrivals);
    let at = arrivals.iter().position(|link| link.peer == from)?;
    Some(arrivals.remove(at))
}

/// Answers until the other side is done, or the time is over.
fn echo(shared: &Shared, mut link: Link, end: Instant) {
    while Instant::now() < end && !shared.ended.load(Ordering::Acquire) {
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
