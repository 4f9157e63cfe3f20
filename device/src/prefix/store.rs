//! Files of encrypted blocks in one folder, bounded in bytes.
//!
//! A file is written under another name, and renamed when it is whole. If it is torn, of another name or
//! changed, it is removed and counts as missing. If there are too many bytes, those that were used longest
//! ago go. Several programs may use one folder: each sees what the others wrote, and one that removes a
//! file takes from the others only time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::Name;
use crate::secrets::{KeyError, Keys, PREFIX_KEY};
use crate::settings::{create_private, make_private_folder};

/// What a file begins with.
const MAGIC: &[u8; 8] = b"BATONKV1";
/// A file without its bytes of the block.
const FRAME_BYTES: usize = MAGIC.len() + NONCE_LEN;
/// If files must go, so many percent of the capacity stay.
const LEFT_PERCENT: u64 = 90;

/// Why blocks cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or a folder cannot be used.
    #[error("keep prefixes in `{}`", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// The key cannot be used.
    #[error("get the key of what is kept")]
    Key(#[source] KeyError),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// A file as it was last seen.
#[derive(Debug, Clone, Copy)]
struct Seen {
    bytes: u64,
    used: SystemTime,
}

#[derive(Debug, Default)]
struct Files {
    seen: HashMap<Name, Seen>,
    bytes: u64,
    /// Whether the folder was read.
    read: bool,
}

/// Blocks on the disk.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    key: LessSafeKey,
    secret: [u8; 32],
    capacity: u64,
    random: SystemRandom,
    files: Mutex<Files>,
}

impl Store {
    /// Uses a folder for at most `capacity` bytes.
    ///
    /// # Errors
    /// [`StoreError`] if the folder cannot be made, or the key cannot be read or made.
    pub fn open(folder: PathBuf, keys: &Keys, capacity: u64) -> Result<Self, StoreError> {
        let random = SystemRandom::new();
        make_private_folder(&folder).map_err(|err| StoreError::File { path: folder.clone(), err })?;
        let secret = keys.get(PREFIX_KEY).map_err(StoreError::Key)?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &secret).map_err(|_| StoreError::Random)?;
        let files = Mutex::default();
        Ok(Self { folder, key: LessSafeKey::new(key), secret, capacity, random, files })
    }

    /// Returns the key, for names.
    pub(super) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Whether there is a file of this name.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.path(name).exists()
    }

    /// Returns the block of this name, if it is there and whole, and marks it as used.
    pub(super) fn get(&self, name: &Name) -> Option<Vec<u8>> {
        let path = self.path(name);
        let mut file = File::open(&path).ok()?;
        let mut bytes = Vec::with_capacity(file.metadata().ok()?.len() as usize);
        file.read_to_end(&mut bytes).ok()?;
        let block = self.opened(name, bytes);
        if block.is_none() {
            drop(fs::remove_file(&path));
            self.forget(name);
            return None;
        }
        let now = SystemTime::now();
        // If the time cannot be set, the file only goes earlier.
        drop(file.set_modified(now));
        if let Some(seen) = self.files().seen.get_mut(name) {
            seen.used = now;
        }
        block
    }

    /// Writes a block, and removes what was used longest ago if there are too many bytes.
    ///
    /// # Errors
    /// [`StoreError::File`] if it cannot be written; no part of it is left then.
    pub(super) fn put(&self, name: &Name, mut block: Vec<u8>) -> Result<(), StoreError> {
        let path = self.path(name);
        let named = |err| StoreError::File { path: path.clone(), err };
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| StoreError::Random)?;
        let sealed = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(sealed, Aad::from(name.0), &mut block)
            .map_err(|_| named(io::ErrorKind::FileTooLarge.into()))?;
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let written = make_private_folder(path.parent().unwrap_or(&self.folder))
            .and_then(|()| create_private(&partial))
            .and_then(|mut file| {
                file.write_all(MAGIC)?;
                file.write_all(&nonce)?;
                file.write_all(&block)
            })
            .and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            // A full disk must not be filled further.
            drop(fs::remove_file(&partial));
        }
        written.map_err(named)?;
        let bytes = (FRAME_BYTES + block.len()) as u64;
        self.saw(*name, Seen { bytes, used: SystemTime::now() });
        self.make_room();
        Ok(())
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.read_folder();
        self.files().bytes
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &Name) -> PathBuf {
        let name = hex::encode(name.0);
        self.folder.join(&name[..2]).join(name)
    }

    fn opened(&self, name: &Name, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let nonce = bytes.get(MAGIC.len()..FRAME_BYTES).filter(|_| bytes.starts_with(MAGIC))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let block = self.key.open_within(nonce, Aad::from(name.0), &mut bytes, FRAME_BYTES..).ok()?.len();
        bytes.truncate(block);
        Some(bytes)
    }

    fn saw(&self, name: Name, seen: Seen) {
        let mut files = self.files();
        let before = files.seen.insert(name, seen).map_or(0, |before| before.bytes);
        files.bytes = files.bytes + seen.bytes - before;
    }

    fn forget(&self, name: &Name) {
        let mut files = self.files();
        let bytes = files.seen.remove(name).map_or(0, |seen| seen.bytes);
        files.bytes -= bytes;
    }

    /// Learns what earlier programs have left, once.
    fn read_folder(&self) {
        if std::mem::replace(&mut self.files().read, true) {
            return;
        }
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for entry in folders.filter_map(|folder| fs::read_dir(folder.path()).ok()).flatten().flatten() {
            let (Some(name), Ok(facts)) = (name_of(&entry.file_name()), entry.metadata()) else {
                // Left by a program that was killed.
                if entry.path().extension().is_some_and(|extension| extension == "partial") {
                    drop(fs::remove_file(entry.path()));
                }
                continue;
            };
            self.saw(
                name,
                Seen { bytes: facts.len(), used: facts.modified().unwrap_or(SystemTime::UNIX_EPOCH) },
            );
        }
    }

    /// Removes what was used longest ago, if there are too many bytes.
    fn make_room(&self) {
        self.read_folder();
        let mut files = self.files();
        if files.bytes <= self.capacity {
            return;
        }
        let mut oldest: Vec<(SystemTime, Name)> =
            files.seen.iter().map(|(name, seen)| (seen.used, *name)).collect();
        oldest.sort_unstable();
        for (_, name) in oldest {
            if files.bytes <= self.capacity / 100 * LEFT_PERCENT {
                break;
            }
            drop(fs::remove_file(self.path(&name)));
            let bytes = files.seen.remove(&name).map_or(0, |seen| seen.bytes);
            files.bytes -= bytes;
        }
    }
}

/// Returns the name that a file's name states.
fn name_of(file: &std::ffi::OsStr) -> Option<Name> {
    let bytes = hex::decode(file.to_str()?).ok()?;
    bytes.try_into().ok().map(Name)
}
