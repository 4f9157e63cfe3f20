//! A lock by name: one program at a time pulls, replaces or removes a model. The system frees the lock of a
//! program that ends, however it ends.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A held lock. Its file is removed when it is dropped, on Unix.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock, unless another program has it.
    pub(super) fn try_take(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = File::options().write(true).create(true).truncate(false).open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(err)) => return Err(err),
            }
            // The program that had the lock may have removed the file in between: then the next one locks
            // another file of this name.
            let own = file.metadata()?;
            if std::fs::metadata(path).is_ok_and(|there| is_same(&own, &there)) {
                return Ok(Some(Self { path: path.to_owned(), _file: file }));
            }
        }
    }
}

#[cfg(unix)]
fn is_same(own: &Metadata, there: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (there.dev(), there.ino()) == (own.dev(), own.ino())
}

/// The file of a lock is never removed here, so there is no other one of its name.
#[cfg(not(unix))]
fn is_same(_own: &Metadata, _there: &Metadata) -> bool {
    true
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while it is held. A file that stays harms nobody, as on systems where files cannot be
        // told apart.
        if cfg!(unix) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let first = Lock::try_take(&path).unwrap().unwrap();
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(first);
        assert_eq!(path.exists(), cfg!(not(unix)));
        let second = Lock::try_take(&path).unwrap();
        assert!(second.is_some());
        assert!(Lock::try_take(&folder.path().join("none/a.lock")).is_err());
    }

    #[test]
    fn of_many_threads_only_one_is_inside() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let (inside, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut own = 0;
                    while own < 50 {
                        let Some(lock) = Lock::try_take(&path).unwrap() else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        passed.fetch_add(1, Ordering::SeqCst);
                        own += 1;
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 200);
    }
}
