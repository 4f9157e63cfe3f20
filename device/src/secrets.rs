//! Secret keys of this device: 32 random bytes each, in a file of the user alone. With a passphrase the file
//! is encrypted.
//!
//! A sealed file is the magic bytes, a salt, a nonce and the encrypted key with its tag. The key that
//! encrypts it comes from the passphrase by Argon2id (19 MiB, 2 passes, 1 lane: OWASP's least cost). The
//! passphrase is asked for once, and only if a key is needed.

mod source;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use argon2::Argon2;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

pub use source::{SecretSource, SourceError};

use crate::settings::{create_private, make_private_folder};

/// The key of what is kept of prompts on the disk.
pub const PREFIX_KEY: &str = "prefix.key";
/// The seed of the key that receipts of answers are signed with.
pub const RECEIPT_KEY: &str = "receipts.key";
/// The names of this device's keys.
pub const KEY_FILES: [&str; 2] = [PREFIX_KEY, RECEIPT_KEY];
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// What a sealed file begins with.
const MAGIC: &[u8; 8] = b"BATONKEY";
const SALT_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const SEALED_BYTES: usize = MAGIC.len() + SALT_BYTES + NONCE_LEN + KEY_BYTES + TAG_BYTES;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file or its folder cannot be used.
    #[error("use the key in `{}`", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// The file holds something else.
    #[error("`{}` holds no key of 32 bytes: delete it, and what was made with it cannot be used any more", path.display())]
    NoKey {
        /// Its path.
        path: PathBuf,
    },
    /// The file is sealed, and no passphrase is given.
    #[error("`{}` is encrypted: pass --passphrase-command or --passphrase-file", path.display())]
    Sealed {
        /// Its path.
        path: PathBuf,
    },
    /// The file was sealed with another passphrase, or its bytes have changed.
    #[error("`{}` does not open with this passphrase: it was encrypted with another one, or it is damaged", path.display())]
    Wrong {
        /// Its path.
        path: PathBuf,
    },
    /// No passphrase can be read.
    #[error("read the passphrase of this device's keys")]
    Passphrase(#[source] SourceError),
    /// The system gives no random numbers, or no memory for Argon2.
    #[error("the system gives no random numbers, or no 19 MiB of memory")]
    System,
}

/// How a key's file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFile {
    /// There is none yet.
    Missing,
    /// The key stands in it as it is.
    Plain,
    /// The key is encrypted with a passphrase.
    Sealed,
}

/// The passphrase, once it was read.
#[derive(Debug)]
struct Passphrase {
    source: SecretSource,
    read: Mutex<Option<Arc<str>>>,
}

/// The keys in one folder.
#[derive(Debug, Clone)]
pub struct Keys {
    folder: PathBuf,
    passphrase: Option<Arc<Passphrase>>,
}

impl Keys {
    /// Uses the keys in a folder. If there is a source of a passphrase, keys are encrypted with it. Nothing
    /// is read before a key is needed.
    #[must_use]
    pub fn new(folder: &Path, passphrase: Option<SecretSource>) -> Self {
        let passphrase = passphrase.map(|source| Arc::new(Passphrase { source, read: Mutex::default() }));
        Self { folder: folder.to_owned(), passphrase }
    }

    /// Returns the key in the file of this name, and makes one if there is none. If a passphrase is given
    /// and the file is not sealed, it is sealed.
    ///
    /// # Errors
    /// [`KeyError`] if the file cannot be read or made, holds no key, or does not open.
    pub fn get(&self, name: &str) -> Result<[u8; KEY_BYTES], KeyError> {
        let path = self.folder.join(name);
        make_private_folder(&self.folder).map_err(|err| KeyError::File { path: self.folder.clone(), err })?;
        let bytes = match read(&path)? {
            Some(bytes) => bytes,
            None => {
                let mut key = [0; KEY_BYTES];
                SystemRandom::new().fill(&mut key).map_err(|_| KeyError::System)?;
                let bytes = match self.passphrase()? {
                    Some(passphrase) => seal(&key, &passphrase)?,
                    None => key.to_vec(),
                };
                write(&path, &bytes, If::Missing)?;
                // Another program may have made one meanwhile: that one counts.
                read(&path)?.ok_or_else(|| KeyError::NoKey { path: path.clone() })?
            }
        };
        match (kind(&bytes), self.passphrase()?) {
            (Some(KeyFile::Plain), None) => bytes.try_into().map_err(|_| KeyError::NoKey { path }),
            (Some(KeyFile::Plain), Some(passphrase)) => {
                let key: [u8; KEY_BYTES] =
                    bytes.try_into().map_err(|_| KeyError::NoKey { path: path.clone() })?;
                write(&path, &seal(&key, &passphrase)?, If::There)?;
                Ok(key)
            }
            (Some(_), None) => Err(KeyError::Sealed { path }),
            (Some(_), Some(passphrase)) => open(&bytes, &passphrase, &path),
            (None, _) => Err(KeyError::NoKey { path }),
        }
    }

    /// Writes the key of this name without encryption, if its file is sealed. Returns whether it was.
    ///
    /// # Errors
    /// [`KeyError`] if the file does not open with the passphrase, or cannot be written.
    pub fn unseal(&self, name: &str) -> Result<bool, KeyError> {
        let path = self.folder.join(name);
        let Some(bytes) = read(&path)?.filter(|bytes| kind(bytes) == Some(KeyFile::Sealed)) else {
            return Ok(false);
        };
        let passphrase = self.passphrase()?.ok_or_else(|| KeyError::Sealed { path: path.clone() })?;
        write(&path, &open(&bytes, &passphrase, &path)?, If::There)?;
        Ok(true)
    }

    /// Returns how the file of this name is.
    ///
    /// # Errors
    /// [`KeyError`] if it cannot be read, or holds no key.
    pub fn look(&self, name: &str) -> Result<KeyFile, KeyError> {
        let path = self.folder.join(name);
        match read(&path)? {
            None => Ok(KeyFile::Missing),
            Some(bytes) => kind(&bytes).ok_or(KeyError::NoKey { path }),
        }
    }

    /// Returns the passphrase; `None` if none is given.
    fn passphrase(&self) -> Result<Option<Arc<str>>, KeyError> {
        let Some(passphrase) = &self.passphrase else { return Ok(None) };
        let mut read = passphrase.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.is_none() {
            *read = Some(passphrase.source.read().map_err(KeyError::Passphrase)?.into());
        }
        Ok(read.clone())
    }
}

/// Says how a file with these bytes is; `None` if it holds no key.
fn kind(bytes: &[u8]) -> Option<KeyFile> {
    match bytes.len() {
        KEY_BYTES => Some(KeyFile::Plain),
        SEALED_BYTES if bytes.starts_with(MAGIC) => Some(KeyFile::Sealed),
        _ => None,
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, KeyError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(KeyError::File { path: path.to_owned(), err }),
    }
}

/// Whether a file is written if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum If {
    Missing,
    There,
}

/// Writes a file for the user alone. At every moment the old bytes are there, or the new ones.
fn write(path: &Path, bytes: &[u8], when: If) -> Result<(), KeyError> {
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = create_private(&partial).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        if when == If::There {
            return fs::rename(&partial, path);
        }
        match fs::hard_link(&partial, path) {
            // Some file systems have no links.
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => fs::rename(&partial, path),
            _ => Ok(()),
        }
    });
    drop(fs::remove_file(&partial));
    written.map_err(|err| KeyError::File { path: path.to_owned(), err })
}

/// Encrypts a key.
fn seal(key: &[u8; KEY_BYTES], passphrase: &str) -> Result<Vec<u8>, KeyError> {
    let random = SystemRandom::new();
    let (mut salt, mut nonce) = ([0; SALT_BYTES], [0; NONCE_LEN]);
    random.fill(&mut salt).and_then(|()| random.fill(&mut nonce)).map_err(|_| KeyError::System)?;
    let mut sealed = key.to_vec();
    stretched(passphrase, &salt)?
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from([&MAGIC[..], &salt].concat()),
            &mut sealed,
        )
        .map_err(|_| KeyError::System)?;
    Ok([&MAGIC[..], &salt, &nonce, &sealed].concat())
}

/// Decrypts a key from the bytes of the file `path`.
fn open(bytes: &[u8], passphrase: &str, path: &Path) -> Result<[u8; KEY_BYTES], KeyError> {
    let wrong = || KeyError::Wrong { path: path.to_owned() };
    let (head, rest) = bytes.split_at_checked(MAGIC.len() + SALT_BYTES).ok_or_else(wrong)?;
    let (nonce, sealed) = rest.split_at_checked(NONCE_LEN).ok_or_else(wrong)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| wrong())?;
    let mut sealed = sealed.to_vec();
    let key = stretched(passphrase, &head[MAGIC.len()..])?
        .open_in_place(nonce, Aad::from(head), &mut sealed)
        .map_err(|_| wrong())?;
    (&*key).try_into().map_err(|_| wrong())
}

/// Makes a key of a passphrase (RFC 9106, Argon2id).
fn stretched(passphrase: &str, salt: &[u8]) -> Result<LessSafeKey, KeyError> {
    let mut key = [0; KEY_BYTES];
    Argon2::default()
        .hash_password_into(passphrase.as_bytes(), salt, &mut key)
        .map_err(|_| KeyError::System)?;
    UnboundKey::new(&CHACHA20_POLY1305, &key).map(LessSafeKey::new).map_err(|_| KeyError::System)
}

#[cfg(test)]
mod tests;
