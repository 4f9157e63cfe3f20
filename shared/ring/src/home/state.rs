//! The ring's state folder: who this device is, which ring it belongs to, and whose keys it has pinned.
//!
//! Small JSON files, readable by their owner only. Each is written to a temporary file in the same folder
//! and then renamed. A missing file means that there is no such state. A damaged file is an error and is
//! never treated as missing: a device that silently made itself a new key would be a stranger to its own
//! ring.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Environment variable that names the folder.
pub const STATE_DIR_ENV: &str = "BATON_STATE";
/// Larger files are not read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why the state of a ring cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// No folder was given, and there is no home folder.
    #[error("no folder for the ring's state: pass --state DIR or set {STATE_DIR_ENV}")]
    NoFolder,
    /// A file exists but cannot be read.
    #[error("read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is larger than any that is written here.
    #[error("`{}` has {bytes} bytes, {FILE_BYTES_MAX} at most", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A file has invalid content.
    #[error(
        "`{}` is damaged: {reason}; put it back from a copy, or remove it and pair this device again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file cannot be written.
    #[error("write `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The system gives no random numbers, so no key can be made.
    #[error("the system gives no random numbers: {0}")]
    NoRandomness(String),
    /// There are more devices than a ring may have.
    #[error("{devices} devices are pinned, {max} at most; `baton ring leave --device NAME` removes one")]
    TooManyPeers {
        /// How many there are.
        devices: usize,
        /// How many there may be.
        max: usize,
    },
}

/// The folder; it is created when something is first written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateFolder {
    folder: PathBuf,
}

impl StateFolder {
    /// Uses this folder.
    ///
    /// # Errors
    /// [`StateError::NoFolder`] if there is none.
    pub fn open(folder: Option<PathBuf>) -> Result<Self, StateError> {
        Ok(Self { folder: folder.ok_or(StateError::NoFolder)? })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of one of its files.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Reads a file. Returns `None` if it is missing.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StateError> {
        let path = self.file(name);
        let read = |source| StateError::Read { path: path.clone(), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(read(err)),
        };
        let bytes = file.metadata().map_err(read)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(StateError::TooLarge { path, bytes });
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(read)?;
        serde_json::from_slice(&text).map(Some).map_err(|err| self.damaged(name, &err.to_string()))
    }

    pub(super) fn damaged(&self, name: &str, reason: &str) -> StateError {
        StateError::Damaged { path: self.file(name), reason: reason.to_owned() }
    }

    /// Writes a whole file; the old content stays until the new one is on the disk.
    pub(super) fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), StateError> {
        let path = self.file(name);
        self.place(name, value, |partial| fs::rename(partial, &path))
    }

    /// Writes a file only if there is none. Returns whether this call wrote it.
    ///
    /// So two programs that start at once with one folder get one identity, not two.
    pub(super) fn write_first<T: Serialize>(&self, name: &str, value: &T) -> Result<bool, StateError> {
        let path = self.file(name);
        let mut first = true;
        self.place(name, value, |partial| {
            match fs::hard_link(partial, &path) {
                Ok(()) => {}
                Err(_) if path.exists() => first = false,
                // On a file system without links, the rename is still atomic.
                Err(_) => return fs::rename(partial, &path),
            }
            fs::remove_file(partial)
        })?;
        Ok(first)
    }

    fn place<T: Serialize>(
        &self,
        name: &str,
        value: &T,
        finish: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), StateError> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        // The name includes process and write number, so that nobody else writes the same temporary file.
        let turn = WRITES.fetch_add(1, Ordering::Relaxed);
        let partial = self.file(&format!("{name}.{}.{turn}.partial", std::process::id()));
        let write = || -> io::Result<()> {
            make_private_folder(&self.folder)?;
            let mut out = create_private(&partial)?;
            out.write_all(&serde_json::to_vec_pretty(value)?)?;
            out.sync_all()
        };
        let done = write().and_then(|()| finish(&partial));
        if done.is_err() {
            // Nothing more can be done about a file that can neither be finished nor removed.
            let _left = fs::remove_file(&partial);
        }
        done.map_err(|source| StateError::Write { path: self.file(name), source })
    }

    /// Removes a file. Returns whether it existed.
    pub(super) fn remove(&self, name: &str) -> Result<bool, StateError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(StateError::Write { path, source }),
        }
    }

    /// Removes other users' permission to read a file, if the file system has permissions.
    pub(super) fn keep_private(&self, name: &str) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let path = self.file(name);
            let Ok(found) = fs::metadata(&path) else { return };
            if found.permissions().mode() & 0o077 != 0 {
                let path_text = path.display().to_string();
                match fs::set_permissions(&path, fs::Permissions::from_mode(0o600)) {
                    Ok(()) => tracing::warn!(
                        path = path_text,
                        "others could read this device's key; closed to them"
                    ),
                    Err(err) => tracing::warn!(path = path_text, %err, "others can read this device's key"),
                }
            }
        }
        #[cfg(not(unix))]
        let _: &str = name;
    }
}

fn make_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Fills an array with random bytes.
///
/// # Errors
/// [`StateError::NoRandomness`].
pub(super) fn random<const N: usize>() -> Result<[u8; N], StateError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|err| StateError::NoRandomness(err.to_string()))?;
    Ok(bytes)
}

/// Reads the bytes of exactly `2 N` hexadecimal digits.
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a new folder, which is removed with the first value.
    pub(in crate::home) fn folder() -> (tempfile::TempDir, StateFolder) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFolder::open(Some(dir.path().join("deep/ring"))).unwrap();
        (dir, state)
    }

    #[test]
    fn files_are_written_whole_and_for_their_owner_alone() {
        let (_dir, state) = folder();
        assert_eq!(state.read::<Vec<u8>>("a.json").unwrap(), None);
        state.write("a.json", &vec![1, 2, 3]).unwrap();
        state.write("a.json", &vec![4]).unwrap();
        assert_eq!(state.read::<Vec<u8>>("a.json").unwrap(), Some(vec![4]));
        let names: Vec<_> =
            fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a.json"], "temporary files are left");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&state.file("a.json")), mode(state.path())), (0o600, 0o700));
            fs::set_permissions(state.file("a.json"), fs::Permissions::from_mode(0o644)).unwrap();
            state.keep_private("a.json");
            assert_eq!(mode(&state.file("a.json")), 0o600);
        }
        assert!(state.remove("a.json").unwrap() && !state.remove("a.json").unwrap());
    }

    #[test]
    fn the_first_writer_stays() {
        let (_dir, state) = folder();
        assert!(state.write_first("a.json", &1).unwrap());
        assert!(!state.write_first("a.json", &2).unwrap());
        assert_eq!(state.read::<u8>("a.json").unwrap(), Some(1));
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1, "temporary files are left");
    }

    #[test]
    fn what_is_damaged_is_said_and_what_is_huge_is_not_read() {
        let (_dir, state) = folder();
        state.write("a.json", &"text").unwrap();
        let error = state.read::<Vec<u8>>("a.json").unwrap_err().to_string();
        assert!(error.contains("a.json` is damaged: "), "{error}");
        let file = File::create(state.file("b.json")).unwrap();
        file.set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = state.read::<Vec<u8>>("b.json").unwrap_err();
        assert!(
            matches!(error, StateError::TooLarge { bytes, .. } if bytes == FILE_BYTES_MAX + 1),
            "{error}"
        );
    }

    #[test]
    fn hexadecimal_digits() {
        assert_eq!(unhex("00abFF"), Some([0, 0xab, 0xff]));
        for bad in ["00abf", "00abfg", "00abff00", "+0abff", "00äb"] {
            assert_eq!(unhex::<3>(bad), None, "{bad}");
        }
    }
}
