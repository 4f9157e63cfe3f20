//! A fake disk of one worker: which pieces of the model it holds.

use std::collections::BTreeSet;

use baton_random::mix;

/// Bytes of a piece.
const PIECE: usize = 48;
/// Pieces of one layer.
const PER_LAYER: usize = 2;
/// The model's identity.
pub(super) const MODEL: [u8; 32] = [7; 32];
/// The list of the model's pieces.
pub(super) const LIST: [u8; 8] = *b"the list";

/// How many pieces a model of so many layers has; the first is its header.
pub(super) fn pieces(n_layers: usize) -> u32 {
    (1 + n_layers * PER_LAYER) as u32
}

/// Bytes of a model's file.
pub(super) fn file_len(n_layers: usize) -> u64 {
    u64::from(pieces(n_layers)) * PIECE as u64
}

/// Bytes of its header.
pub(super) const HEADER: u64 = PIECE as u64;

/// The right bytes of a piece.
pub(super) fn piece(index: u32) -> Vec<u8> {
    vec![mix(11, u64::from(index)) as u8; PIECE]
}

/// What one worker has on its disk. It outlives the worker's program.
#[derive(Debug, Clone)]
pub(super) struct FakeDisk {
    /// The whole file is there.
    pub(super) whole: bool,
    /// The list of pieces is there.
    pub(super) list: bool,
    /// Pieces that are there.
    pub(super) held: BTreeSet<u32>,
}

impl FakeDisk {
    /// A disk with so many hundredths of the model, taken by chance.
    pub(super) fn new(n_layers: usize, hundredths: usize, seed: u64) -> Self {
        let chosen = |index: &u32| mix(seed, u64::from(*index)) % 100 < hundredths as u64;
        Self {
            whole: hundredths >= 100,
            list: hundredths > 0,
            held: (0..pieces(n_layers)).filter(chosen).collect(),
        }
    }

    /// Pieces that these layers need and that are not there; the header without layers.
    pub(super) fn lacks(&self, layers: &[usize]) -> Vec<u32> {
        let of = |layer: &usize| (1 + layer * PER_LAYER) as u32..(1 + (layer + 1) * PER_LAYER) as u32;
        let needed = if layers.is_empty() { vec![0] } else { layers.iter().flat_map(of).collect() };
        needed.into_iter().filter(|index| !self.whole && !self.held.contains(index)).collect()
    }

    /// Whether a piece is there.
    pub(super) fn has(&self, index: u32) -> bool {
        self.whole || self.held.contains(&index)
    }

    /// One bit for each piece, the lowest first.
    pub(super) fn which(&self, n_layers: usize) -> Vec<u8> {
        let mut bits = vec![0_u8; pieces(n_layers).div_ceil(8) as usize];
        for index in (0..pieces(n_layers)).filter(|index| self.has(*index)) {
            bits[index as usize / 8] |= 1 << (index % 8);
        }
        bits
    }

    /// Keeps a piece. Returns whether its bytes are right.
    pub(super) fn put(&mut self, index: u32, bytes: &[u8]) -> bool {
        let right = bytes == piece(index);
        if right {
            self.held.insert(index);
        }
        right
    }
}
