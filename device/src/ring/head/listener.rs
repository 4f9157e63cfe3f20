//! Accepts the links that other devices open to the head, and reads the frames that come back in the
//! present epoch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::frame::{Frame, Step};
use super::super::link::{FrameReceiver, Key, Link, LinkError, Network, Purpose, add_waiting};
use super::RingError;

/// Wait between two checks whether to stop.
const SLICE: Duration = Duration::from_millis(50);

/// Accepts ring links as long as it lives.
pub(super) struct RingListener {
    arrivals: Arc<Mutex<Vec<Link>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RingListener {
    pub(super) fn open(network: &Arc<dyn Network>) -> Result<Self, RingError> {
        let mut listener = Self { arrivals: Arc::default(), ended: Arc::default(), thread: None };
        let (network, arrivals, ended) =
            (Arc::clone(network), Arc::clone(&listener.arrivals), Arc::clone(&listener.ended));
        let watch = move || {
            while !ended.load(Ordering::Acquire) {
                match network.accept(SLICE) {
                    Ok((link, Purpose::Ring)) => {
                        add_waiting(&mut arrivals.lock().unwrap_or_else(PoisonError::into_inner), link);
                    }
                    // The head takes no commands. It serves weights and measures paths only on the control
                    // channels that it opened.
                    Ok((_, Purpose::Control | Purpose::Weights | Purpose::Edge))
                    | Err(LinkError::TimedOut) => {}
                    Err(err) => {
                        tracing::warn!(%err, "the head takes no more links");
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("baton-ring-accept".into()).spawn(watch);
        listener.thread = Some(thread.map_err(RingError::Threads)?);
        Ok(listener)
    }

    /// Returns the link from this epoch's last device, if it has arrived. Examines one waiting link of that
    /// device, and drops it if it belongs to another epoch.
    pub(super) fn take_link(
        &self,
        from: Key,
        epoch: u64,
        patience: Duration,
    ) -> Option<Box<dyn FrameReceiver>> {
        let mut link = {
            let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            let at = arrivals.iter().position(|link| link.peer == from)?;
            arrivals.remove(at)
        };
        let first = link.receiver.receive(patience).ok().and_then(|bytes| Frame::decode(&bytes).ok());
        matches!(first, Some(Frame::Enter { epoch: of, .. }) if of == epoch).then_some(link.receiver)
    }
}

/// Links that arrive later are left for the next listener.
impl Drop for RingListener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed why.
            let _ended = thread.join();
        }
    }
}

/// What arrived.
pub(super) enum Incoming {
    /// A frame of the epoch.
    Step(Step),
    /// Anything else; the link is then of no use.
    Wrong(String),
    /// The link has ended.
    Closed(String),
}

/// The frames that come back to the head in one epoch.
pub(super) struct FrameInbox {
    pub(super) frames: Receiver<Incoming>,
    ended: Arc<AtomicBool>,
}

impl FrameInbox {
    /// Reads frames of this epoch as long as it lives; at most `room` of them wait. Frames of other epochs
    /// are counted in `refused`.
    pub(super) fn new(
        receiver: Box<dyn FrameReceiver>,
        epoch: u64,
        room: usize,
        refused: Arc<AtomicU64>,
    ) -> Result<Self, RingError> {
        let (sender, frames) = sync_channel(room);
        let ended = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&ended);
        std::thread::Builder::new()
            .name("baton-ring-in".into())
            .spawn(move || read(receiver, epoch, &sender, &own, &refused))
            .map_err(RingError::Threads)?;
        Ok(Self { frames, ended })
    }
}

impl Drop for FrameInbox {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
    }
}

fn read(
    mut receiver: Box<dyn FrameReceiver>,
    epoch: u64,
    frames: &SyncSender<Incoming>,
    ended: &AtomicBool,
    refused: &AtomicU64,
) {
    while !ended.load(Ordering::Acquire) {
        let said = match receiver.receive(SLICE) {
            Ok(bytes) => match Frame::decode(&bytes) {
                Ok(Frame::Step(step)) if step.epoch == epoch => Incoming::Step(step),
                Ok(Frame::Step(_)) => {
                    refused.fetch_add(1, Ordering::AcqRel);
                    continue;
                }
                Ok(_) => Incoming::Wrong("a frame that is no step".to_owned()),
                Err(err) => Incoming::Wrong(err.to_string()),
            },
            Err(LinkError::TimedOut) => continue,
            Err(err) => Incoming::Closed(err.to_string()),
        };
        let last = !matches!(said, Incoming::Step(_));
        // If nobody receives any more, the epoch is over.
        if frames.send(said).is_err() || last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::frame::NodeAddress;
    use super::super::super::link::memory::Hub;
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn a_link_of_an_older_epoch_that_comes_late_takes_no_other_ones_place() {
        let hub = Arc::<Hub>::default();
        let (head, worker): (Arc<dyn Network>, Arc<dyn Network>) = (hub.node(0), hub.node(1));
        let listener = RingListener::open(&head).unwrap();
        let to = NodeAddress { address: String::new(), key: [0; 32] };
        // Kept to the end, because a link ends when either side is dropped.
        let mut links = Vec::new();
        for epoch in [2, 1] {
            let mut link = worker.connect(&to, Purpose::Ring, LONG).unwrap();
            link.sender.send(&Frame::Enter { epoch, place: 1 }.encode(), LONG).unwrap();
            links.push(link);
        }
        let begun = Instant::now();
        while listener.arrivals.lock().unwrap().len() < links.len() {
            assert!(begun.elapsed() < LONG, "both wait at the door");
            std::thread::sleep(Duration::from_millis(1));
        }
        let found = (0..links.len()).find_map(|_| listener.take_link([1; 32], 2, LONG));
        assert!(found.is_some(), "the newer epoch's link is there");
    }
}
