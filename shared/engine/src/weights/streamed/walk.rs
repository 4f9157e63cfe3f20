//! The matrices that a token uses, in their order, and what of them stays in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::checks::{ResidencyError, check_layers};
use super::choice::{Cut, Walked, choose};
use super::queue::Extent;
use crate::weights::mapped::{MappedWeights, MatrixAt};

/// A matrix of the walk: the sequence of matrices that a token uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) at: MatrixAt,
    /// Whether it is of experts, which a pass reads if it needs them.
    pub(super) sometimes: bool,
    /// Whether it is the projection to logits.
    pub(super) output: bool,
    /// Whether somebody else loads what does not stay ([`super::StreamedWeights::set_loaded`]).
    pub(super) loaded: bool,
}

impl Place {
    pub(super) fn walked(&self) -> Walked {
        let Self { at, sometimes, output, .. } = *self;
        Walked { rows: at.rows, row_bytes: at.row_bytes(), sometimes, output }
    }
}

/// The requested settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) budget_bytes: u64,
    pub(super) prefetch_bytes: u64,
}

/// The matrices that a token uses, in order.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) layers: Vec<usize>,
    pub(super) places: Vec<Place>,
    /// Whether somebody else loads layers, and begins the passes.
    pub(super) is_loaded: bool,
}

impl Walk {
    pub(super) fn new(
        mapped: &MappedWeights,
        layers: Vec<usize>,
        ends: bool,
    ) -> Result<Self, ResidencyError> {
        check_layers(&layers, mapped.n_layers())?;
        let mut places = Vec::new();
        if let Some(at) = mapped.inputs_at().filter(|_| ends) {
            places.push(Place { at: *at, sometimes: false, output: false, loaded: false });
        }
        for &layer in &layers {
            let place = |sometimes| move |at| Place { at, sometimes, output: false, loaded: false };
            places.extend(mapped.matrices(layer).into_iter().map(place(false)));
            places.extend(mapped.expert_matrices(layer).into_iter().map(place(true)));
        }
        if ends {
            places.push(Place { at: *mapped.head_at(), sometimes: false, output: true, loaded: false });
        }
        Ok(Self { layers, places, is_loaded: false })
    }

    /// Returns the bytes of all experts.
    pub(super) fn expert_bytes(&self) -> u64 {
        let experts = self.places.iter().filter(|place| place.sometimes);
        experts.map(|place| place.at.extent().1.len() as u64).sum()
    }

    /// Adds matrices that somebody else loads, and the experts of some layers.
    pub(super) fn with_loaded(
        mut self,
        mapped: &MappedWeights,
        matrices: &[MatrixAt],
        experts_of: &[usize],
    ) -> Self {
        let place = |sometimes| move |at| Place { at, sometimes, output: false, loaded: true };
        self.is_loaded = true;
        self.places.extend(matrices.iter().copied().map(place(false)));
        let experts = experts_of.iter().flat_map(|layer| mapped.expert_matrices(*layer));
        self.places.extend(experts.map(place(true)));
        self
    }
}

/// What of a matrix stays in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resident {
    pub(super) rows: usize,
    /// Behind the last byte of these rows in the file.
    pub(super) end: usize,
    /// Whether it is of experts.
    pub(super) is_expert: bool,
    /// Whether other rows are kept if they are used most.
    pub(super) keeps: bool,
}

/// The rows of a walk that stay in memory.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) walk: Arc<Walk>,
    pub(super) wanted: Wanted,
    /// Bytes that the page cache may use for reading ahead.
    pub(super) prefetch_bytes: u64,
    /// For each matrix of the walk, the number of rows that stay.
    pub(super) rows: Vec<usize>,
    /// The same, keyed by the file and byte at which the matrix begins.
    pub(super) by_place: BTreeMap<(usize, usize), Resident>,
    /// Bytes of experts that stay because they are used most, if not all stay.
    pub(super) kept_bytes: u64,
    pub(super) resident_bytes: u64,
    pub(super) streamed_bytes: u64,
}

/// Returns the position of the rows.
pub(super) fn extent(at: &MatrixAt) -> Extent {
    let (part, bytes) = at.extent();
    Extent { part, bytes }
}

/// Takes the rows of experts back if not all of them stay. Returns the bytes of those.
fn leave_experts(places: &[Place], rows: &mut [usize], cut: &Cut) -> u64 {
    let can_leave = |place: &Place| place.sometimes && place.at.row_bytes() <= cut.read_bytes_max;
    let experts = || places.iter().enumerate().filter(|(_, place)| can_leave(place));
    if experts().all(|(at, place)| rows[at] == place.at.rows) {
        return 0;
    }
    experts().map(|(at, place)| (std::mem::take(&mut rows[at]) * place.at.row_bytes()) as u64).sum()
}

impl Choice {
    /// Returns a choice in which nothing stays and nothing is read ahead.
    pub(super) fn none(walk: Arc<Walk>) -> Self {
        Self {
            wanted: Wanted { budget_bytes: 0, prefetch_bytes: 0 },
            prefetch_bytes: 0,
            rows: vec![0; walk.places.len()],
            walk,
            by_place: BTreeMap::new(),
            kept_bytes: 0,
            resident_bytes: 0,
            streamed_bytes: 0,
        }
    }

    pub(super) fn new(walk: Arc<Walk>, wanted: Wanted, cut: &Cut) -> Self {
        let walked: Vec<Walked> = walk.places.iter().map(Place::walked).collect();
        let all: u64 = walk.places.iter().map(|place| place.at.extent().1.len() as u64).sum();
        let budget = wanted.budget_bytes;
        // If everything stays, nothing is read ahead.
        let prefetch_bytes = if all <= budget { 0 } else { wanted.prefetch_bytes.min(budget) };
        let mut rows = choose(&walked, budget - prefetch_bytes, cut);
        let kept_bytes = leave_experts(&walk.places, &mut rows, cut);
        let mut choice = Self { wanted, prefetch_bytes, rows, kept_bytes, ..Self::none(Arc::clone(&walk)) };
        choice.resident_bytes = kept_bytes;
        for (place, rows) in walk.places.iter().zip(&choice.rows) {
            let (whole, row_bytes) = (extent(&place.at), place.at.row_bytes());
            let end = whole.bytes.start + rows * row_bytes;
            let is_expert = place.sometimes;
            let resident = Resident { rows: *rows, end, is_expert, keeps: kept_bytes > 0 && is_expert };
            choice.by_place.insert((whole.part, whole.bytes.start), resident);
            choice.resident_bytes += (rows * row_bytes) as u64;
            if !place.sometimes && !place.loaded {
                choice.streamed_bytes += ((place.at.rows - rows) * row_bytes) as u64;
            }
        }
        choice
    }

    /// Returns what of a matrix stays; `None` if the matrix is not in the walk.
    pub(super) fn resident(&self, at: &MatrixAt) -> Option<Resident> {
        let whole = extent(at);
        self.by_place.get(&(whole.part, whole.bytes.start)).copied()
    }

    pub(super) fn resident_rows(&self, at: &MatrixAt) -> Option<usize> {
        self.resident(at).map(|resident| resident.rows)
    }

    /// Returns what stays of the matrix that a piece belongs to.
    pub(super) fn around(&self, piece: &Extent) -> Option<&Resident> {
        let before = self.by_place.range(..=(piece.part, piece.bytes.start)).next_back();
        before.filter(|((of, _), _)| *of == piece.part).map(|(_, resident)| resident)
    }

    /// Whether a piece belongs to a matrix whose rows are kept if they are used most.
    pub(super) fn keeps(&self, piece: &Extent) -> bool {
        self.around(piece).is_some_and(|resident| resident.keeps)
    }
}
