//! A registry in a folder: an OCI image layout.
//!
//! Never: leaves a file that is not whole under its name. Bytes are written beside, made durable and renamed;
//! the index names a version last. What no version names is no harm.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use baton_registry::digest::Digest;
use baton_registry::layout::{INDEX_FILE, LAYOUT_FILE, LAYOUT_JSON, blob_path};

/// Its lock says that somebody adds a version.
const LOCK_FILE: &str = ".lock";

/// A folder with the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryFolder {
    root: PathBuf,
}

impl RegistryFolder {
    /// Uses a folder.
    #[must_use]
    pub fn new(root: PathBuf) -> RegistryFolder {
        RegistryFolder { root }
    }

    /// Returns the folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the folder, if it is not there.
    ///
    /// # Errors
    /// The system's error.
    pub fn make(&self) -> io::Result<()> {
        fs::create_dir_all(self.root.join("blobs/sha256"))?;
        let layout = self.root.join(LAYOUT_FILE);
        if !layout.exists() {
            write_whole(&layout, LAYOUT_JSON.as_bytes())?;
        }
        Ok(())
    }

    /// Waits until nobody else writes here, and keeps others out until the file is dropped.
    ///
    /// # Errors
    /// The system's error.
    pub fn lock(&self) -> io::Result<File> {
        let file = File::create(self.root.join(LOCK_FILE))?;
        file.lock()?;
        Ok(file)
    }

    /// Returns the path of the bytes with this digest.
    #[must_use]
    pub fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join(blob_path(digest))
    }

    /// Reads the index; `None` if there is none yet.
    ///
    /// # Errors
    /// The system's error, also if it has more than `max` bytes.
    pub fn index(&self, max: usize) -> io::Result<Option<Vec<u8>>> {
        match read_to(&self.root.join(INDEX_FILE), max) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Reads small bytes and checks their digest.
    ///
    /// # Errors
    /// The system's error, also if they are damaged or more than `max`.
    pub fn read(&self, digest: &Digest, max: usize) -> io::Result<Vec<u8>> {
        let bytes = read_to(&self.blob(digest), max)?;
        if Digest::of(&bytes) != *digest {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the bytes do not have their digest"));
        }
        Ok(bytes)
    }

    /// Writes small bytes under their digest.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(bytes);
        let path = self.blob(&digest);
        if !path.exists() {
            write_whole(&path, bytes)?;
        }
        Ok(digest)
    }

    /// Replaces the index.
    ///
    /// # Errors
    /// The system's error.
    pub fn write_index(&self, json: &[u8]) -> io::Result<()> {
        write_whole(&self.root.join(INDEX_FILE), json)
    }
}

/// Reads a file of at most `max` bytes.
fn read_to(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {max} bytes")));
    }
    Ok(bytes)
}

/// Writes a file, whole or not at all, also if the machine stops.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(bytes)?;
    settle(new, path)
}

/// Makes a written file durable, and gives it its name.
pub(super) fn settle(new: tempfile::NamedTempFile, path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // Other users serve and copy the folder.
        new.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    }
    new.as_file().sync_all()?;
    new.persist(path).map_err(|err| err.error)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
