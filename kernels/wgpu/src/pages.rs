//! Small tables of launches: written together, once, before the commands that read them.
//!
//! A page is filled again from its start only if no buffer is in it and no recorded command uses it. Writes
//! reach the device before the commands of the next submission.

use std::collections::HashMap;
use std::sync::Arc;

use crate::memory::{ALIGN, Block, Memory};

/// Bytes of a page.
const PAGE_BYTES: u64 = 256 << 10;

/// Larger tables have memory of their own.
const SHARED_MAX: u64 = PAGE_BYTES / 4;

/// A part of a page. The page is used again when none of its parts is held and all are submitted.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) page: Arc<Block>,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// Bytes that are not yet with the device.
#[derive(Debug)]
struct Unwritten {
    page: Arc<Block>,
    at: u64,
    bytes: Vec<u8>,
}

/// The pages of a device.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// The page that is being filled, and how much of it is.
    current: Option<(Arc<Block>, u64)>,
    /// Pages that were full.
    full: Vec<Arc<Block>>,
    unwritten: Vec<Unwritten>,
    /// Pages that commands use which are not yet submitted, by their ids.
    recorded: HashMap<u64, Arc<Block>>,
}

impl Pages {
    /// Makes room for bytes that [`Self::write`] will bring to the device; `None` after a fault.
    pub(crate) fn add(&mut self, memory: &Memory, bytes: &[u8]) -> Option<Slice> {
        let room = (bytes.len() as u64 + 4).next_multiple_of(ALIGN);
        if room > SHARED_MAX {
            let page = Arc::new(memory.new_block(room)?);
            self.unwritten.push(Unwritten { page: Arc::clone(&page), at: 0, bytes: padded(bytes) });
            return Some(Slice { page, at: 0, bytes: room });
        }
        let (page, at) = match self.current.take() {
            Some((page, at)) if at + room <= PAGE_BYTES => (page, at),
            other => {
                self.full.extend(other.map(|(page, _)| page));
                let unused = self.full.iter().position(|page| Arc::strong_count(page) == 1);
                let page = match unused {
                    Some(i) => self.full.swap_remove(i),
                    None => Arc::new(memory.new_block(PAGE_BYTES)?),
                };
                (page, 0)
            }
        };
        match self.unwritten.last_mut() {
            // Neighbours are written together.
            Some(last) if Arc::ptr_eq(&last.page, &page) && last.at <= at => {
                last.bytes.resize((at - last.at) as usize, 0);
                last.bytes.extend(padded(bytes));
            }
            _ => self.unwritten.push(Unwritten { page: Arc::clone(&page), at, bytes: padded(bytes) }),
        }
        self.current = Some((Arc::clone(&page), at + room));
        Some(Slice { page, at, bytes: room })
    }

    /// Keeps a page until the commands are submitted that are recorded now.
    pub(crate) fn hold(&mut self, page: &Arc<Block>) {
        self.recorded.entry(page.id).or_insert_with(|| Arc::clone(page));
    }

    /// Brings everything to the device, before the commands that are submitted next.
    pub(crate) fn write(&mut self, queue: &wgpu::Queue) {
        for part in self.unwritten.drain(..) {
            queue.write_buffer(&part.page.buffer, part.at, &part.bytes);
        }
    }

    /// To be called after a submission: a page that nobody holds is filled from its start again.
    pub(crate) fn submitted(&mut self) {
        self.recorded.clear();
        if let Some((page, at)) = &mut self.current
            && Arc::strong_count(page) == 1
        {
            *at = 0;
        }
    }
}

/// Returns the bytes as whole words.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0);
    padded
}
