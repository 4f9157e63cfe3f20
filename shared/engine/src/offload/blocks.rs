//! Blocks of weights on their way to the GPU.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_kernels_gpu::{Buffer, Device, Mark, last_word};

use super::loader::{Scratch, Task};
use crate::model::Model;
use crate::weights::direct::{Buffer as ReadBuffer, DirectFile};
use crate::weights::{InMemory, MatrixAt, WeightError};

/// Where bytes of weights come from.
pub(super) enum From {
    /// The mapped file, which is in memory.
    Memory(Arc<Model>),
    /// The mapped file as far as it stays in memory, and experts that are kept. The others are read past the
    /// page cache.
    Disk {
        model: Arc<Model>,
        files: Vec<DirectFile>,
        /// Bytes that were read.
        read_bytes: AtomicU64,
    },
}

impl From {
    /// Opens a model's file again if it does not fit into the host's memory.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(model: &Arc<Model>) -> io::Result<Self> {
        let model = Arc::clone(model);
        match (model.streamed(), model.mapped_weights().file().part_paths()) {
            (Some(_), Some(paths)) => {
                let files = paths.into_iter().map(DirectFile::open).collect::<Result<_, _>>()?;
                Ok(Self::Disk { model, files, read_bytes: AtomicU64::new(0) })
            }
            _ => Ok(Self::Memory(model)),
        }
    }

    /// Returns the bytes that were read from files.
    pub(super) fn read_bytes(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Disk { read_bytes, .. } => read_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Some bytes of a matrix, and where they go.
pub(super) struct Block {
    pub(super) matrix: MatrixAt,
    /// Bytes of the matrix; they begin at a whole word.
    pub(super) bytes: Range<usize>,
    pub(super) to: Buffer,
    pub(super) to_at: u64,
}

impl Block {
    /// Returns the task that loads the block, after what the device was told before `after`.
    pub(super) fn load(self, device: &Arc<dyn Device>, from: &Arc<From>, after: &Mark) -> Task {
        let (device, from, after) = (Arc::clone(device), Arc::clone(from), after.clone());
        Box::new(move |scratch| self.run(&*device, &from, &after, scratch))
    }

    fn run(
        &self,
        device: &dyn Device,
        from: &From,
        after: &Mark,
        scratch: &mut Scratch,
    ) -> Result<Vec<Mark>, WeightError> {
        let Self { matrix, bytes, .. } = self;
        let mapped = |model: &Model, bytes: Range<usize>| {
            self.send(device, 0, &matrix.bytes(model.mapped_weights().file())[bytes], after)
        };
        let (model, files, read_bytes) = match from {
            From::Memory(model) => return Ok(mapped(model, bytes.clone())),
            From::Disk { model, files, read_bytes } => (model, files, read_bytes),
        };
        let (part, whole) = matrix.extent();
        let range = whole.start + bytes.start..whole.start + bytes.end;
        let weights = model.streamed();
        let first = match weights.map(|weights| weights.in_memory(part, &range)) {
            Some(InMemory::Kept(kept)) => return Ok(self.send(device, 0, &kept, after)),
            // In whole words.
            Some(InMemory::First(first)) => first / 4 * 4,
            None => 0,
        };
        let mut marks = if first > 0 { mapped(model, bytes.start..bytes.start + first) } else { Vec::new() };
        let (file, rest) = (&files[part], range.start + first..range.end);
        if !rest.is_empty() {
            let read = ReadBuffer::with_room(scratch, rest.len());
            file.read(&rest, read).map_err(|err| WeightError::Read {
                path: file.path().to_owned(),
                offset: rest.start as u64,
                len: rest.len(),
                err,
            })?;
            read_bytes.fetch_add(rest.len() as u64, Ordering::Relaxed);
            marks.extend(self.send(device, first as u64, read.bytes(), after));
            if let Some(weights) = weights.filter(|_| first == 0) {
                weights.keep(part, &range, read.bytes());
            }
        }
        Ok(marks)
    }

    /// Hands the bytes from `at` of the block on to the device, in whole words.
    fn send(&self, device: &dyn Device, at: u64, bytes: &[u8], after: &Mark) -> Vec<Mark> {
        let (to, to_at) = (&self.to, self.to_at + at);
        let whole = bytes.len() / 4 * 4;
        let mut marks = Vec::new();
        if whole > 0 {
            marks.push(device.load(to, to_at, &bytes[..whole], after));
        }
        if whole < bytes.len() {
            let word = last_word(&bytes[whole..]);
            marks.push(device.load(to, to_at + whole as u64, &word, after));
        }
        marks
    }
}
