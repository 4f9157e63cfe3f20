//! Compiled kernels on disk, in the user's folder for caches.
//!
//! A file's name is a hash of all that its contents depend on. It is written under another name and renamed,
//! so programs may share the folder. A file begins with a hash of the rest; a damaged one counts as missing.
//! Nothing here fails: without a folder, kernels are compiled each time.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// Counts the files that this program writes.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: Option<PathBuf>,
}

/// What a compiled kernel depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<'a> {
    /// Its text.
    pub(crate) text: &'a str,
    /// The options of the compiler, with the architecture.
    pub(crate) options: &'a [String],
    /// The compiler's version.
    pub(crate) compiler: (u32, u32),
}

impl Key<'_> {
    fn file_name(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("{} {}\n", self.compiler.0, self.compiler.1));
        for option in self.options {
            hash.update(option);
            hash.update("\n");
        }
        hash.update(self.text);
        let hash = hash.finalize();
        let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{digits}.kernel")
    }
}

/// Returns the user's folder for caches, if the environment names one.
fn users_folder() -> Option<PathBuf> {
    let path = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(windows) {
        return path("LOCALAPPDATA");
    }
    path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")))
}

impl Cache {
    /// Returns the cache in the user's folder.
    pub(crate) fn of_user() -> Self {
        Self { folder: users_folder().map(|folder| folder.join("baton").join("cuda")) }
    }

    /// Returns a kept kernel.
    pub(crate) fn get(&self, key: &Key<'_>) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.folder.as_ref()?.join(key.file_name())).ok()?;
        let image = bytes.get(HASH_BYTES..).filter(|image| !image.is_empty())?;
        let is_whole = Sha256::digest(image).as_slice() == &bytes[..HASH_BYTES];
        is_whole.then(|| bytes.split_off(HASH_BYTES))
    }

    /// Keeps a kernel, if that is possible.
    pub(crate) fn put(&self, key: &Key<'_>, image: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if fs::create_dir_all(folder).is_err() {
            return;
        }
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{}.{number}.new", std::process::id()));
        let bytes = [Sha256::digest(image).as_slice(), image].concat();
        let written = fs::write(&temporary, bytes);
        if written.and_then(|()| fs::rename(&temporary, folder.join(key.file_name()))).is_err() {
            // The file may not exist.
            let _ = fs::remove_file(&temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'a>(text: &'a str, options: &'a [String]) -> Key<'a> {
        Key { text, options, compiler: (13, 0) }
    }

    #[test]
    fn a_kernel_is_kept_under_all_that_it_depends_on() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { folder: Some(folder.path().join("a").join("b")) };
        let (options, others) = (["--arch=sm_86".to_owned()], ["--arch=sm_89".to_owned()]);
        let one = key("text", &options);
        assert_eq!(cache.get(&one), None);
        cache.put(&one, b"image");
        assert_eq!(cache.get(&one).as_deref(), Some(&b"image"[..]));
        assert_eq!(cache.get(&key("texts", &options)), None);
        assert_eq!(cache.get(&key("text", &others)), None);
        assert_eq!(cache.get(&Key { compiler: (12, 0), ..one }), None);
        cache.put(&one, b"other");
        assert_eq!(cache.get(&one).as_deref(), Some(&b"other"[..]));
        let names: Vec<_> = fs::read_dir(folder.path().join("a").join("b")).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left");
    }

    #[test]
    fn a_damaged_file_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { folder: Some(folder.path().to_owned()) };
        let key = key("text", &[]);
        cache.put(&key, b"image");
        let path = folder.path().join(key.file_name());
        let whole = fs::read(&path).unwrap();
        for n in 0..whole.len() {
            fs::write(&path, &whole[..n]).unwrap();
            assert_eq!(cache.get(&key), None, "{n} bytes");
            let mut changed = whole.clone();
            changed[n] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(cache.get(&key), None, "byte {n}");
        }
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let cache = Cache { folder: None };
        cache.put(&key("text", &[]), b"image");
        assert_eq!(cache.get(&key("text", &[])), None);
    }
}
