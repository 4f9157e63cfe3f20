//! Faults of reads, planted by tests: a stated read of a file fails in a stated way.
//!
//! Only tests are built with it. A file is known by its path, so a test plants faults in files of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ALIGNED;
use crate::platform;

/// How a read fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ReadFault {
    /// It is interrupted before it has read anything.
    Interrupted,
    /// It gives fewer bytes than it could, at least a block.
    Short,
    /// It gives no bytes, as behind the end of the file.
    End,
    /// The disk fails (`EIO`).
    Disk,
    /// The system has no memory for it (`ENOMEM`).
    Memory,
    /// The code that reads has a bug.
    Panic,
}

impl ReadFault {
    /// Every fault.
    pub(crate) const ALL: [Self; 6] =
        [Self::Interrupted, Self::Short, Self::End, Self::Disk, Self::Memory, Self::Panic];

    /// Returns the error that a read ends with; `None` if it goes on.
    pub(crate) fn error(self) -> Option<io::Error> {
        match self {
            Self::Interrupted | Self::Short => None,
            Self::End => Some(io::ErrorKind::UnexpectedEof.into()),
            // `EIO` of Unix, and another error elsewhere.
            Self::Disk => Some(io::Error::from_raw_os_error(5)),
            Self::Memory => Some(io::ErrorKind::OutOfMemory.into()),
            Self::Panic => Some(io::Error::other("the thread that reads has panicked")),
        }
    }
}

/// By file: the reads that come before, and the fault.
static PLANTED: Mutex<BTreeMap<PathBuf, (usize, ReadFault)>> = Mutex::new(BTreeMap::new());

fn planted() -> MutexGuard<'static, BTreeMap<PathBuf, (usize, ReadFault)>> {
    PLANTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets a read of a file fail: of those from now on, the one with `nth` before it. Replaces what was planted
/// there.
pub(crate) fn plant(path: &Path, nth: usize, fault: ReadFault) {
    planted().insert(path.to_owned(), (nth, fault));
}

/// Removes what is planted in a file. Returns whether there was something, so that no read has failed yet.
pub(crate) fn remove(path: &Path) -> bool {
    planted().remove(path).is_some()
}

/// Counts a read, and returns the fault if it is the planted one.
fn due(path: &Path) -> Option<ReadFault> {
    let mut planted = planted();
    let (left, fault) = planted.get_mut(path)?;
    if *left > 0 {
        *left -= 1;
        return None;
    }
    let fault = *fault;
    planted.remove(path);
    Some(fault)
}

/// Reads as the system does, unless a fault is planted.
pub(super) fn read_at(path: &Path, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    match due(path) {
        None => platform::read_at(file, buffer, offset),
        Some(ReadFault::Interrupted) => Err(io::ErrorKind::Interrupted.into()),
        Some(ReadFault::Short) => {
            let read = platform::read_at(file, buffer, offset)?;
            // No whole blocks, unless there is one only.
            let given = (read * 5 / 8 + 1).max(ALIGNED).min(read);
            buffer[given..].fill(0xa5);
            Ok(given)
        }
        Some(ReadFault::End) => Ok(0),
        // This prints nothing, unlike `panic!`.
        Some(ReadFault::Panic) => std::panic::resume_unwind(Box::new("planted for a read")),
        Some(fault) => fault.error().map_or(Ok(0), Err),
    }
}
