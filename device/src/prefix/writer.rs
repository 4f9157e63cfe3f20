//! The thread that writes blocks, so that no answer waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use baton_terminal::chain;
use tracing::warn;

use super::{Name, Store};

/// Bytes of blocks that may wait for the disk.
const WAITING_MAX: usize = 64 << 20;

/// Writes blocks in the order in which they come. Dropping it waits for what was handed over.
#[derive(Debug)]
pub(super) struct Writer {
    blocks: Option<Sender<(Name, Vec<u8>)>>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if it starts none.
    pub(super) fn start(store: Arc<Store>) -> std::io::Result<Self> {
        let (blocks, received) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let thread =
            Builder::new().name("baton-prefixes".into()).spawn(move || write(&store, &received, &left))?;
        Ok(Self { blocks: Some(blocks), waiting, thread: Some(thread) })
    }

    /// Whether there is room for another block.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < WAITING_MAX
    }

    /// Hands a block over.
    pub(super) fn put(&self, name: Name, block: Vec<u8>) {
        self.waiting.fetch_add(block.len(), Ordering::AcqRel);
        if let Some(blocks) = &self.blocks {
            // A thread that panicked has reported it; what it does not write is computed again.
            drop(blocks.send((name, block)));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.blocks.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn write(store: &Store, blocks: &Receiver<(Name, Vec<u8>)>, waiting: &AtomicUsize) {
    let mut failed = false;
    for (name, block) in blocks {
        let bytes = block.len();
        if let Err(err) = store.put(&name, block)
            && !std::mem::replace(&mut failed, true)
        {
            warn!(err = chain(&err), "conversations will be read again after a restart");
        }
        waiting.fetch_sub(bytes, Ordering::AcqRel);
    }
}
