//! Sends without waiting for the network: a separate thread sends large frames, so that a device computes
//! the next chunk meanwhile. Small frames are sent at once, because passing them to the thread would cost
//! more time than it saves.
//!
//! The order is kept. The queue is bounded: a sender that is too fast waits, with a time limit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{FrameSender, LinkError};

/// Frames of at most this size are sent by the caller.
const DIRECT_BYTES: usize = 64 << 10;
/// Large frames that may wait.
const QUEUE: usize = 2;
/// Wait between two attempts to queue a frame.
const RETRY: Duration = Duration::from_millis(1);

/// What caller and thread share.
struct Shared {
    sender: Mutex<Box<dyn FrameSender>>,
    /// Frames that are queued and not sent yet.
    waiting: AtomicUsize,
    /// Nobody sends any more.
    ended: AtomicBool,
    /// Why nothing can be sent any more.
    failed: Mutex<Option<LinkError>>,
}

impl Shared {
    fn sender(&self) -> MutexGuard<'_, Box<dyn FrameSender>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Option<LinkError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends this device's frames to the next one. Dropping it discards the queued frames. A frame that is
/// being sent still ends or reaches its time limit.
pub struct Outbox {
    shared: Arc<Shared>,
    queue: SyncSender<Vec<u8>>,
    timeout: Duration,
}

impl Outbox {
    /// Opens an outbox over a link; every frame may take `timeout`.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub fn new(sender: Box<dyn FrameSender>, timeout: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            sender: Mutex::new(sender),
            waiting: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            failed: Mutex::new(None),
        });
        let (queue, frames) = sync_channel(QUEUE);
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("baton-ring-out".into())
            .spawn(move || send_all(&own, &frames, timeout))?;
        Ok(Self { shared, queue, timeout })
    }

    /// Sends a frame, or queues it behind earlier ones.
    ///
    /// # Errors
    /// [`LinkError`] of this frame or of an earlier one.
    pub fn send(&self, frame: Vec<u8>) -> Result<(), LinkError> {
        if let Some(err) = self.shared.failed().take() {
            return Err(err);
        }
        if frame.len() <= DIRECT_BYTES && self.shared.waiting.load(Ordering::Acquire) == 0 {
            return self.shared.sender().send(&frame, self.timeout);
        }
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let begun = Instant::now();
        let mut frame = frame;
        loop {
            frame = match self.queue.try_send(frame) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(frame)) => frame,
                Err(TrySendError::Disconnected(_)) => {
                    return Err(self.shared.failed().take().unwrap_or(LinkError::Closed));
                }
            };
            if begun.elapsed() > self.timeout {
                return Err(LinkError::TimedOut);
            }
            std::thread::sleep(RETRY);
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
    }
}

fn send_all(shared: &Shared, frames: &Receiver<Vec<u8>>, timeout: Duration) {
    while let Ok(frame) = frames.recv() {
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        let sent = shared.sender().send(&frame, timeout);
        shared.waiting.fetch_sub(1, Ordering::AcqRel);
        if let Err(err) = sent {
            *shared.failed() = Some(err);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Forwards frames, slowly at first.
    struct Slow(mpsc::Sender<Vec<u8>>, bool);

    impl FrameSender for Slow {
        fn send(&mut self, frame: &[u8], _timeout: Duration) -> Result<(), LinkError> {
            if std::mem::take(&mut self.1) {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.0.send(frame.to_vec()).map_err(|_| LinkError::Closed)
        }
    }

    #[test]
    fn order_is_kept_whatever_the_size() {
        let (sender, sent) = mpsc::channel();
        let outbox = Outbox::new(Box::new(Slow(sender, true)), Duration::from_secs(10)).unwrap();
        let frames: Vec<Vec<u8>> =
            (0..20u8).map(|i| vec![i; if i % 3 == 0 { DIRECT_BYTES + 1 } else { 10 }]).collect();
        frames.iter().for_each(|frame| outbox.send(frame.clone()).unwrap());
        let arrived = sent.iter().take(frames.len()).collect::<Vec<_>>();
        assert_eq!(arrived, frames);
    }

    #[test]
    fn what_failed_in_the_thread_is_said_at_the_next_frame() {
        let (sender, sent) = mpsc::channel();
        drop(sent);
        let outbox = Outbox::new(Box::new(Slow(sender, false)), Duration::from_secs(10)).unwrap();
        let large = vec![0; DIRECT_BYTES + 1];
        let refused = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            outbox.send(large.clone()).err()
        });
        assert!(matches!(refused, Some(LinkError::Closed)), "{refused:?}");
    }
}
