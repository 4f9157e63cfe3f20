//! Access to a ring for other threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::core::head::{Event, HeadCore};
use crate::core::stats::RingStats;
use crate::core::ways::Ways;
use crate::core::{DeviceId, Node, Purpose};
use crate::host::head::RingError;
use crate::host::{By, Monitor, spawn};

/// What handles share.
struct Shared {
    monitor: Arc<Monitor<HeadCore>>,
    /// Whether links of other devices are taken.
    accepts: AtomicBool,
}

/// Access to the ring for other threads: its statistics, and a way to let devices join.
#[derive(Clone)]
pub struct RingHandle(Arc<Shared>);

/// The same access, which does not keep the ring's figures alive.
#[derive(Clone)]
pub struct WeakRingHandle(Weak<Shared>);

impl std::fmt::Debug for RingHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RingHandle").field(&self.stats()).finish()
    }
}

impl std::fmt::Debug for WeakRingHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakRingHandle")
    }
}

impl WeakRingHandle {
    /// Returns the access as long as the ring is alive.
    pub fn upgrade(&self) -> Option<RingHandle> {
        self.0.upgrade().filter(|shared| !shared.monitor.has_ended()).map(RingHandle)
    }
}

impl RingHandle {
    pub(super) fn new(monitor: &Arc<Monitor<HeadCore>>) -> Self {
        Self(Arc::new(Shared { monitor: Arc::clone(monitor), accepts: AtomicBool::new(false) }))
    }

    /// Lets other devices open links of the ring; a head that is alone takes none.
    pub(super) fn accept(&self) -> Result<(), RingError> {
        if self.0.accepts.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let monitor = Arc::clone(&self.0.monitor);
        let accepting = move || {
            let admits = |_: &DeviceId, purpose: Purpose| purpose == Purpose::Ring;
            let ended = || monitor.has_ended();
            if let Err(err) = monitor.accept_all(&admits, &ended) {
                tracing::warn!(%err, "the head takes no more links");
            }
        };
        spawn("ring-accept", accepting).map_err(RingError::Threads)
    }

    /// Returns the present statistics of the ring.
    pub fn stats(&self) -> RingStats {
        self.0.monitor.look(HeadCore::stats)
    }

    /// Lets a device take part as soon as it has its weights and no answer runs.
    pub fn join(&self, node: Node) {
        if let Err(err) = self.accept() {
            tracing::warn!(err = %baton_terminal::chain(&err), "a device cannot join");
            return;
        }
        self.0.monitor.step(By::Other, Event::Join(node));
    }

    /// Returns the keys of the members, whether or not the plan uses them, and of devices that fetch their
    /// weights.
    pub fn present(&self) -> Vec<DeviceId> {
        self.0.monitor.look(HeadCore::present)
    }

    /// Returns the keys of devices that will join as soon as no answer runs.
    pub fn joining(&self) -> Vec<DeviceId> {
        self.0.monitor.look(HeadCore::joining)
    }

    /// Returns what is known of the network paths between devices.
    pub fn ways(&self) -> Ways {
        self.0.monitor.look(|core| core.ways().clone())
    }

    /// Returns access that does not keep the ring alive.
    pub fn downgrade(&self) -> WeakRingHandle {
        WeakRingHandle(Arc::downgrade(&self.0))
    }
}
