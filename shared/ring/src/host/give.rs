//! Gives pieces of models to other devices: the head of its own file, a worker of what it has.
//!
//! Pieces never go through the core: it says who gets which, and is told after each one.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use baton_terminal::chain;

use crate::core::{Digest, Give, LinkId};
use crate::locked;
use crate::weights::{LocalPieces, Manifest, PIECE_BYTES, WeightsError};
use crate::wire::frame::{Frame, PieceData};

/// Models that are kept open for devices that fetch.
const OPEN_MAX: usize = 8;

/// Sends a frame and waits until it was sent. Returns false if the link has ended.
pub(super) type SendFrame<'a> = &'a mut dyn FnMut(Frame) -> bool;

/// Who gives pieces.
pub(crate) trait Giver: Send + Sync {
    /// Answers over a link.
    ///
    /// # Errors
    /// A message for people if it cannot; the link then ends.
    fn give(&self, link: LinkId, give: Give, send: SendFrame<'_>) -> Result<(), String>;
}

/// The model's file, for devices that lack parts of it.
#[derive(Debug)]
pub(super) struct ModelFile {
    pub(super) manifest: Manifest,
    pub(super) path: PathBuf,
    file: File,
}

impl ModelFile {
    /// Opens the file and lists its pieces.
    ///
    /// # Errors
    /// [`WeightsError`] if it cannot be read.
    pub(super) fn open(path: &Path) -> Result<Self, WeightsError> {
        let manifest = Manifest::of_file(path, PIECE_BYTES)?;
        let opened = File::open(path);
        let file = opened.map_err(|err| WeightsError::File { what: "open", path: path.to_owned(), err })?;
        Ok(Self { manifest, path: path.to_owned(), file })
    }

    /// Reads a piece and checks it against the list of pieces.
    fn piece(&self, index: u32) -> Result<Vec<u8>, WeightsError> {
        let bytes = self.manifest.piece(&self.file, &self.path, index)?;
        // Without this check the worker would seem to be at fault.
        let rotten = |_| WeightsError::Rotten { path: self.path.clone(), pieces: 1 };
        self.manifest.check(index, &bytes).map_err(rotten)?;
        Ok(bytes)
    }
}

fn send_pieces(
    first: u32,
    count: u32,
    piece: impl Fn(u32) -> Result<Vec<u8>, WeightsError>,
    send: SendFrame<'_>,
) -> Result<(), String> {
    for index in first..first.saturating_add(count) {
        let bytes = piece(index).map_err(|err| chain(&err))?;
        if !send(Frame::Piece(PieceData { index, bytes })) {
            break;
        }
    }
    Ok(())
}

/// Gives pieces of the head's own file, once it was opened.
#[derive(Debug, Clone, Default)]
pub(super) struct FileGiver(pub(super) Arc<OnceLock<ModelFile>>);

impl Giver for FileGiver {
    fn give(&self, _link: LinkId, give: Give, send: SendFrame<'_>) -> Result<(), String> {
        let file = self.0.get().ok_or("the model's file is not open")?;
        match give {
            Give::List => {
                send(Frame::Manifest(file.manifest.bytes()));
                Ok(())
            }
            Give::Pieces { first, count } => send_pieces(first, count, |index| file.piece(index), send),
            Give::Which { .. } => Err("a head does not tell which pieces it has".to_owned()),
        }
    }
}

/// The pieces of each link's model.
type OpenPieces = VecDeque<(LinkId, Arc<LocalPieces>)>;

/// Gives the pieces that a worker has.
#[derive(Debug)]
pub(super) struct LocalGiver {
    files: Vec<PathBuf>,
    folder: PathBuf,
    /// What each link asked for last; of few links, the newest last.
    open: Mutex<OpenPieces>,
}

impl LocalGiver {
    /// Gives pieces of these whole files, and of what is in the folder.
    pub(super) fn new(files: Vec<PathBuf>, folder: PathBuf) -> Self {
        Self { files, folder, open: Mutex::default() }
    }

    fn which(&self, link: LinkId, model: Digest) -> Vec<u8> {
        let pieces = LocalPieces::of(model, &self.files, &self.folder).map(Arc::new);
        let mut open = locked(&self.open);
        open.retain(|(other, _)| *other != link);
        let available = pieces.as_ref().map(|pieces| pieces.available().bytes().to_vec());
        open.extend(pieces.map(|pieces| (link, pieces)));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
        available.unwrap_or_default()
    }
}

impl Giver for LocalGiver {
    fn give(&self, link: LinkId, give: Give, send: SendFrame<'_>) -> Result<(), String> {
        match give {
            Give::Which { model } => {
                send(Frame::HasPieces(self.which(link, model)));
                Ok(())
            }
            Give::Pieces { first, count } => {
                let open = locked(&self.open).iter().find(|(other, _)| *other == link).cloned();
                let (_, pieces) = open.ok_or("no model was asked for")?;
                send_pieces(first, count, |index| pieces.piece(index), send)
            }
            Give::List => Err("a worker has no list of its own".to_owned()),
        }
    }
}
