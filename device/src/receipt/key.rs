//! The key that this device signs receipts with. It is made when it is first needed.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use baton_registry::envelope::{KeyError, SigningKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::settings::{create_private, make_private_folder};

/// The file of the key's seed.
const FILE: &str = "receipts.key";

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// Its file cannot be used.
    #[error("use the key in `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// The file holds something else.
    #[error("`{}` is no key of 32 bytes: move it away, and a new key is made", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The system gives no random bytes, or the key is refused.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Returns the key of the device with this folder for settings.
///
/// # Errors
/// [`SigningKeyError`] if it can be neither read nor made.
pub fn signing_key(folder: &Path) -> Result<SigningKey, SigningKeyError> {
    Ok(SigningKey::from_seed(&seed(folder, FILE)?)?)
}

fn seed(folder: &Path, name: &str) -> Result<[u8; 32], SigningKeyError> {
    let path = folder.join(name);
    let failed = |err| SigningKeyError::File { path: path.clone(), err };
    if !path.exists() {
        make_private_folder(folder).map_err(failed)?;
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| KeyError::Random)?;
        let own = folder.join(format!(".{name}.{}", std::process::id()));
        let made = create_private(&own).and_then(|mut file| file.write_all(&seed));
        // Another program may have made one meanwhile: a link does not replace it.
        let linked = made.and_then(|()| match fs::hard_link(&own, &path) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
        let _gone = fs::remove_file(&own);
        linked.map_err(failed)?;
    }
    let bytes = fs::read(&path).map_err(failed)?;
    bytes.try_into().map_err(|_| SigningKeyError::NoKey { path })
}
