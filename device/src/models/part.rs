//! A file that is being downloaded: its bytes so far, and a small state file beside them.
//!
//! After every [`CHUNK`] the bytes are made durable, then the state says how many are. So whenever the
//! program or the machine stops, the bytes that the state counts are there, and at most one chunk is read
//! again. The digest runs along. What an earlier run wrote is read from the disk for it, so that damage there
//! is found.

use super::PullError;
use baton_registry::digest::Digest as ChunkDigest;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes between two points from which a download can go on.
pub const CHUNK: u64 = 4 << 20;
/// A state file with more bytes is none.
const STATE_BYTES_MAX: u64 = 64 << 10;
/// Bytes that are read at once for the digest.
const READ_BYTES: usize = 1 << 20;

/// What is to be downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Want {
    /// The address, without credentials.
    pub(super) url: String,
    /// The length in bytes, if the server's list says it.
    pub(super) bytes: Option<u64>,
    /// The SHA-256 in lower-case hex, if the server's list says it.
    pub(super) sha256: Option<String>,
    /// The digests of its chunks of [`CHUNK`] bytes, if a signed manifest says them. A damaged chunk is then
    /// found as soon as it is there, and only it is downloaded again.
    pub(super) chunks: Option<Arc<[ChunkDigest]>>,
}

/// What the state file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    url: String,
    /// The entity tag of the reply that the bytes are from.
    etag: Option<String>,
    bytes: Option<u64>,
    sha256: Option<String>,
    /// Bytes that are durable.
    verified: u64,
}

impl State {
    /// Whether bytes with this state are a beginning of what is wanted: of the same digest if both are known,
    /// else of the same address.
    fn is_of(&self, want: &Want) -> bool {
        let lengths_agree = self.bytes.is_none() || want.bytes.is_none() || self.bytes == want.bytes;
        lengths_agree
            && match (&self.sha256, &want.sha256) {
                (Some(own), Some(want)) => own == want,
                _ => self.sha256 == want.sha256 && self.url == want.url,
            }
    }
}

/// A file that is being downloaded.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    file: File,
    state: State,
    digest: Sha256,
    /// Bytes that were written; [`State::verified`] of them are durable.
    len: u64,
    chunks: Option<Arc<[ChunkDigest]>>,
    /// The digest of the present chunk so far, and that of the file before it.
    chunk: Sha256,
    before: Sha256,
}

/// What came of writing bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// They are there.
    Some,
    /// A chunk was completed and is durable.
    Chunk,
    /// A chunk was damaged on its way. It is dropped, with the bytes after it.
    Damaged,
}

/// Returns the path of the state of the file that is downloaded to `path`.
pub(super) fn state_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".json");
    PathBuf::from(name)
}

impl Part {
    /// Opens the download at `path`, with what an earlier run left if that fits. `on_read` is told the bytes
    /// that were read again from the disk, and may stop it.
    pub(super) fn open(
        path: &Path,
        want: Want,
        mut on_read: impl FnMut(u64) -> Result<(), PullError>,
    ) -> Result<Self, PullError> {
        let failed = |err| PullError::file("open", path)(err);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(failed)?;
        let there = file.metadata().map_err(failed)?.len();
        let kept = read_state(&state_path(path)).filter(|state| state.is_of(&want));
        let verified = kept.as_ref().map_or(0, |state| state.verified).min(there);
        let bytes = want.bytes.or_else(|| kept.as_ref()?.bytes);
        // Another server's tag says nothing about this one's file.
        let etag = kept.filter(|state| state.url == want.url).and_then(|state| state.etag);
        file.set_len(verified).map_err(failed)?;
        let state = State { url: want.url, etag, bytes, sha256: want.sha256, verified };
        let mut part = Self {
            path: path.to_owned(),
            file,
            state,
            digest: Sha256::new(),
            len: 0,
            chunks: want.chunks,
            chunk: Sha256::new(),
            before: Sha256::new(),
        };
        part.read_again(verified, &mut on_read)?;
        Ok(part)
    }

    fn read_again(
        &mut self,
        verified: u64,
        on_read: &mut impl FnMut(u64) -> Result<(), PullError>,
    ) -> Result<(), PullError> {
        let mut buffer = vec![0; READ_BYTES];
        while self.len < verified {
            let room = usize::try_from(verified - self.len).unwrap_or(READ_BYTES).min(READ_BYTES);
            let read = self.file.read(&mut buffer[..room]).map_err(PullError::file("read", &self.path))?;
            if read == 0 {
                // Somebody cut the file meanwhile: go on after what is there.
                break;
            }
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(self.in_chunk(rest.len()));
                if !self.count(now) {
                    // The disk has damaged it: it is downloaded again.
                    return self.drop_chunk().map_err(PullError::file("cut", &self.path));
                }
                rest = later;
            }
            on_read(self.len)?;
        }
        self.state.verified = self.len;
        Ok(())
    }

    /// Returns how many of `len` bytes are of the present chunk.
    fn in_chunk(&self, len: usize) -> usize {
        usize::try_from(CHUNK - self.len % CHUNK).unwrap_or(usize::MAX).min(len)
    }

    /// Counts bytes that are there; they are of one chunk. Returns whether the chunk is right, as far as it
    /// is known.
    fn count(&mut self, bytes: &[u8]) -> bool {
        self.digest.update(bytes);
        self.len += bytes.len() as u64;
        let Some(chunks) = &self.chunks else { return true };
        self.chunk.update(bytes);
        let is_last = self.state.bytes == Some(self.len);
        if !self.len.is_multiple_of(CHUNK) && !is_last {
            return true;
        }
        let at = usize::try_from((self.len - 1) / CHUNK).unwrap_or(usize::MAX);
        let found: [u8; 32] = self.chunk.finalize_reset().into();
        if chunks.get(at).is_none_or(|want| *want.bytes() != found) {
            return false;
        }
        self.before = self.digest.clone();
        true
    }

    /// Drops the present chunk, which is damaged.
    fn drop_chunk(&mut self) -> io::Result<()> {
        let begin = (self.len - 1) / CHUNK * CHUNK;
        self.digest = self.before.clone();
        self.chunk = Sha256::new();
        self.len = begin;
        self.state.verified = self.state.verified.min(begin);
        write_state(&state_path(&self.path), &self.state)?;
        self.file.set_len(begin)?;
        self.file.seek(SeekFrom::Start(begin)).map(drop)
    }

    /// Returns the number of bytes that are there.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the length of the whole file, as far as it is known.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.state.bytes
    }

    /// Returns the entity tag of the bytes that are there.
    pub(super) fn etag(&self) -> Option<&str> {
        self.state.etag.as_deref()
    }

    /// Returns the entity tag, if equal tags mean equal bytes.
    pub(super) fn strong_etag(&self) -> Option<&str> {
        self.etag().filter(|etag| etag.starts_with('"'))
    }

    /// Whether something tells if more bytes are of the same file: the promised digest, or the entity tag.
    pub(super) fn is_known(&self) -> bool {
        self.state.sha256.is_some() || self.strong_etag().is_some()
    }

    /// Whether every byte is there.
    pub(super) fn is_whole(&self) -> bool {
        self.state.bytes == Some(self.len)
    }

    /// Returns the path of the bytes.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes what the server said of the file before its bytes come; the bytes so far stay.
    pub(super) fn told(&mut self, etag: Option<String>, bytes: Option<u64>) {
        self.state.etag = etag;
        self.state.bytes = self.state.bytes.or(bytes);
    }

    /// Drops the bytes so far.
    pub(super) fn clear(&mut self) -> Result<(), PullError> {
        let failed = |err| PullError::file("clear", &self.path)(err);
        self.state.verified = 0;
        self.state.etag = None;
        write_state(&state_path(&self.path), &self.state).map_err(failed)?;
        self.file.set_len(0).map_err(failed)?;
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        (self.len, self.digest) = (0, Sha256::new());
        (self.chunk, self.before) = (Sha256::new(), Sha256::new());
        Ok(())
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<Written> {
        let mut written = Written::Some;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.in_chunk(bytes.len()));
            self.file.write_all(now)?;
            if !self.count(now) {
                self.drop_chunk()?;
                return Ok(Written::Damaged);
            }
            if self.len.is_multiple_of(CHUNK) {
                self.commit()?;
                written = Written::Chunk;
            }
            bytes = later;
        }
        Ok(written)
    }

    /// Makes everything that was written durable.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        self.state.verified = self.len;
        write_state(&state_path(&self.path), &self.state)
    }

    /// Returns the SHA-256 of what was written, in lower-case hex.
    pub(super) fn digest(&self) -> String {
        hex::encode(self.digest.clone().finalize())
    }
}

/// Reads a state file; a missing or broken one is none.
fn read_state(path: &Path) -> Option<State> {
    if std::fs::metadata(path).ok()?.len() > STATE_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Writes a state file, whole or not at all.
fn write_state(path: &Path, state: &State) -> io::Result<()> {
    super::store::write_whole(path, &serde_json::to_vec(state)?)
}

/// Returns the bytes that are durable and the length of the whole file, as the state beside `path` has them.
pub(super) fn progress(path: &Path) -> Option<(u64, Option<u64>)> {
    read_state(&state_path(path)).map(|state| (state.verified, state.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(bytes: u64, sha256: Option<&str>) -> Want {
        Want { url: "http://a/m".into(), bytes: Some(bytes), sha256: sha256.map(str::to_owned), chunks: None }
    }

    fn open(path: &Path, want: Want) -> Part {
        Part::open(path, want, |_| Ok(())).unwrap()
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 % 251) as u8).collect()
    }

    #[test]
    fn what_a_killed_program_wrote_is_kept_to_the_last_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        let bytes = pattern(2 * CHUNK as usize + 12_345);
        let want = want(bytes.len() as u64, None);
        let mut part = open(&path, want.clone());
        part.told(Some("\"1\"".into()), None);
        let mut completed = 0;
        for piece in bytes[..CHUNK as usize + 777].chunks(10_007) {
            completed += usize::from(part.write(piece).unwrap() == Written::Chunk);
        }
        assert_eq!((completed, part.len()), (1, CHUNK + 777));
        // A killed program makes nothing durable; the system may even keep more than the state says.
        drop(part);
        let mut part = open(&path, want.clone());
        assert_eq!((part.len(), part.strong_etag(), part.is_known()), (CHUNK, Some("\"1\""), true));
        part.told(Some("W/\"1\"".into()), None);
        assert_eq!((part.strong_etag(), part.is_known()), (None, false), "a weak tag may be of other bytes");
        part.write(&bytes[CHUNK as usize..]).unwrap();
        assert!(part.is_whole());
        part.commit().unwrap();
        let digest = hex::encode(Sha256::digest(&bytes));
        assert_eq!(part.digest(), digest);
        // A whole file is whole again when it is opened, by its bytes on the disk.
        drop(part);
        let part = open(&path, want);
        assert!(part.is_whole() && part.digest() == digest);
    }

    #[test]
    fn a_damaged_chunk_is_found_and_only_it_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        let bytes = pattern(2 * CHUNK as usize + 12_345);
        let chunks: Vec<ChunkDigest> = bytes.chunks(CHUNK as usize).map(ChunkDigest::of).collect();
        let want = Want { chunks: Some(chunks.into()), ..want(bytes.len() as u64, Some("aa")) };
        let mut part = open(&path, want.clone());
        let mut damaged = bytes.clone();
        damaged[CHUNK as usize + 5] ^= 1;
        assert_eq!(part.write(&damaged[..CHUNK as usize + 99]).unwrap(), Written::Chunk);
        let rest = &damaged[CHUNK as usize + 99..];
        let found = rest
            .chunks(10_007)
            .map(|piece| part.write(piece).unwrap())
            .find(|done| *done == Written::Damaged);
        assert_eq!((found, part.len()), (Some(Written::Damaged), CHUNK));
        // Its end counts as a chunk too.
        part.write(&bytes[CHUNK as usize..bytes.len() - 1]).unwrap();
        assert_eq!(part.write(&[bytes[bytes.len() - 1] ^ 1]).unwrap(), Written::Damaged);
        assert_eq!(part.len(), 2 * CHUNK);
        part.write(&bytes[2 * CHUNK as usize..]).unwrap();
        part.commit().unwrap();
        assert!(part.is_whole());
        assert_eq!(part.digest(), hex::encode(Sha256::digest(&bytes)));
        drop(part);
        // A disk that loses a bit costs a chunk, and what follows it.
        let mut on_disk = std::fs::read(&path).unwrap();
        on_disk[CHUNK as usize + 7] ^= 4;
        std::fs::write(&path, &on_disk).unwrap();
        let mut part = open(&path, want.clone());
        assert_eq!(part.len(), CHUNK);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), CHUNK);
        part.write(&bytes[CHUNK as usize..]).unwrap();
        assert_eq!(part.digest(), hex::encode(Sha256::digest(&bytes)));
    }

    #[test]
    fn bytes_of_another_file_are_not_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        let begin = |want: Want| {
            let mut part = open(&path, want);
            part.clear().unwrap();
            part.write(b"begin").unwrap();
            part.commit().unwrap();
        };
        let elsewhere = |want: Want| Want { url: "http://b/m".into(), ..want };
        for (before, after, kept) in [
            (want(10, Some("aa")), want(10, Some("aa")), 5),
            (want(10, Some("aa")), elsewhere(want(10, Some("aa"))), 5),
            (want(10, Some("aa")), want(10, Some("bb")), 0),
            (want(10, Some("aa")), want(10, None), 0),
            (want(10, None), want(10, None), 5),
            (want(10, None), elsewhere(want(10, None)), 0),
            (want(10, None), want(11, None), 0),
        ] {
            begin(before.clone());
            assert_eq!(open(&path, after.clone()).len(), kept, "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_broken_state_or_a_file_that_was_cut_costs_only_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        let mut part = open(&path, want(100, None));
        part.write(&pattern(60)).unwrap();
        part.commit().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(40).unwrap();
        assert_eq!(open(&path, want(100, None)).len(), 40);
        std::fs::write(state_path(&path), b"{broken").unwrap();
        assert_eq!(open(&path, want(100, None)).len(), 0);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn reading_again_can_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        let mut part = open(&path, want(100, None));
        part.write(&pattern(60)).unwrap();
        part.commit().unwrap();
        let stopped = Part::open(&path, want(100, None), |_| Err(PullError::Stopped));
        assert!(matches!(stopped, Err(PullError::Stopped)));
        assert_eq!(progress(&path), Some((60, Some(100))));
    }
}
