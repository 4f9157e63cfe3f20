//! Weights of a model that does not fit into memory: a fixed part stays, the rest is read for every token.
//!
//! Every token uses the same matrices in the same order. With this access pattern a page cache that is one
//! page too small keeps nothing, so a mapped file would be read completely for each token. The least possible
//! is to read only the part that does not fit.
//!
//! Here the first rows of each matrix stay mapped, as many as the budget allows. They are in the page cache
//! and never locked, so the system can still evict them. The other rows are read past the page cache into a
//! few buffers, in the order of use, while the resident rows are computed with ([`choice`], [`queue`],
//! [`reader`]). The scheme is PIPO's, sections 3.2 and 3.3. Streamed rows are never accessed through the
//! mapping. Embedding rows always are: a token needs one.
//!
//! What always holds: no bit of a result depends on the budget. Unreclaimable memory is that of the buffers,
//! 40 MiB unless they are set otherwise. A changed budget takes effect at the beginning of the next token.

mod checks;
mod choice;
pub(crate) mod direct;
mod queue;
mod reader;
mod stats;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use baton_kernels_cpu::{Format, Matrix};

use super::mapped::{MappedWeights, MatrixAt};
use super::{InputWeights, OutputWeights, Part, PartWeights, Weight, WeightError, WeightSource};
use crate::platform;
use checks::{check_layers, check_reads};
use choice::{Cut, Walked, choose};
use direct::DirectFile;
use queue::Extent;
use reader::{Reader, ReaderOptions};

pub use checks::ResidencyError;
pub use stats::ResidencyStats;

/// Default number of buffers that weights are read into.
const BUFFERS: usize = 20;
/// Default number of reading threads. As in PIPO: enough that the disk always has a next request.
const THREADS: usize = 3;
/// Default size of a read in bytes. PIPO finds reads near 8 MB best if there is one at a time. Three reads at
/// a time of a quarter of that are as fast. Their buffers are free again sooner, and a read that a pass waits
/// for competes less with reads for later.
const READ_BYTES: usize = 2 << 20;
/// Rows are cut at multiples of this number, which the kernels process at a time.
const UNIT_ROWS: usize = 32;

/// Memory that streaming needs besides its budget, with reads of the default size; 0 if everything fits.
pub const STREAM_BYTES: u64 = (BUFFERS * (READ_BYTES + (16 << 10))) as u64;

/// How much of a model stays in memory, and which part of it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// Bytes of weights that may stay in memory. Whole pages count, so up to two pages per matrix are used in
    /// addition.
    pub budget_bytes: u64,
    /// The layers that this device computes, in the order in which a token passes through them; `None` means
    /// all.
    pub layers: Option<Vec<usize>>,
    /// Whether this device also computes embeddings and logits.
    pub ends: bool,
    /// The part of the budget that the page cache may use for weights that are read ahead, beyond the read
    /// buffers, while this device is idle. In a ring of several rounds that is while other devices compute
    /// (`P_m` of the plan).
    pub prefetch_bytes: u64,
    /// Whether reads run ahead of the computation. If not, each read is waited for, which is for
    /// measurements.
    pub reads_ahead: bool,
    /// The most bytes of one read, 4 KiB to 8 MB. Buffers have that size.
    pub read_bytes: usize,
    /// Buffers that weights are read into, 1 to 1024, twenty by default. Fewer hide less of the reading.
    pub buffers: usize,
    /// Threads that read, 1 to 16, three by default.
    pub threads: usize,
}

impl Default for Residency {
    /// Keeps everything in memory.
    fn default() -> Self {
        Self {
            budget_bytes: u64::MAX,
            layers: None,
            ends: true,
            prefetch_bytes: 0,
            reads_ahead: true,
            read_bytes: READ_BYTES,
            buffers: BUFFERS,
            threads: THREADS,
        }
    }
}

/// A matrix of the walk: the sequence of matrices that a token uses.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: MatrixAt,
    sometimes: bool,
    /// Whether it is the projection to logits.
    output: bool,
    /// Whether somebody else loads what does not stay ([`StreamedWeights::set_loaded`]).
    loaded: bool,
}

impl Place {
    fn walked(&self) -> Walked {
        let Self { at, sometimes, output, .. } = *self;
        Walked { rows: at.rows, row_bytes: at.row_bytes(), sometimes, output }
    }
}

/// The requested settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    budget_bytes: u64,
    prefetch_bytes: u64,
}

/// The matrices that a token uses, in order.
#[derive(Debug)]
struct Walk {
    layers: Vec<usize>,
    places: Vec<Place>,
}

impl Walk {
    fn new(mapped: &MappedWeights, layers: Vec<usize>, ends: bool) -> Result<Self, ResidencyError> {
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
        Ok(Self { layers, places })
    }

    /// Adds matrices that somebody else loads, and the experts of some layers.
    fn with_loaded(mut self, mapped: &MappedWeights, matrices: &[MatrixAt], experts_of: &[usize]) -> Self {
        let place = |sometimes| move |at| Place { at, sometimes, output: false, loaded: true };
        self.places.extend(matrices.iter().copied().map(place(false)));
        let experts = experts_of.iter().flat_map(|layer| mapped.expert_matrices(*layer));
        self.places.extend(experts.map(place(true)));
        self
    }
}

/// What of a matrix stays in memory.
#[derive(Debug, Clone, Copy)]
struct Resident {
    rows: usize,
    /// Behind the last byte of these rows in the file.
    end: usize,
}

/// The rows of a walk that stay in memory.
#[derive(Debug)]
struct Choice {
    walk: Arc<Walk>,
    wanted: Wanted,
    /// Bytes that the page cache may use for reading ahead.
    prefetch_bytes: u64,
    /// For each matrix of the walk, the number of rows that stay.
    rows: Vec<usize>,
    /// The same, keyed by the file and byte at which the matrix begins.
    by_place: BTreeMap<(usize, usize), Resident>,
    resident_bytes: u64,
    streamed_bytes: u64,
}

/// Weights of which a part stays in memory and the rest is read for every token.
pub struct StreamedWeights {
    mapped: MappedWeights,
    ends: bool,
    cut: Cut,
    choice: RwLock<Arc<Choice>>,
    wanted: Mutex<Wanted>,
    passes: AtomicU64,
    /// Bytes of acquired experts that do not stay.
    expert_bytes: AtomicU64,
    reader: Reader,
}

/// One matrix `[rows, cols]` whose first rows are in memory and whose other rows are waited for.
#[derive(Debug, Clone, Copy)]
pub struct StreamedMatrix<'a> {
    source: &'a StreamedWeights,
    at: MatrixAt,
    resident: usize,
}

impl StreamedMatrix<'_> {
    /// Returns the storage format.
    pub fn format(&self) -> Format {
        self.at.format
    }

    /// Returns the number of rows: the length of an output vector.
    pub fn rows(&self) -> usize {
        self.at.rows
    }
}

impl<'a> StreamedMatrix<'a> {
    /// Returns the rows that stay in memory: the first ones, or none.
    pub(super) fn resident(&self) -> Result<Matrix<'a>, WeightError> {
        self.source.map_matrix(&self.at.rows(0..self.resident))
    }

    /// Waits for the other rows, piece by piece.
    pub(super) fn wait(&self, mut each: impl FnMut(usize, Matrix<'_>)) -> Result<(), WeightError> {
        for rows in self.source.cut.pieces(self.resident..self.at.rows, self.at.row_bytes()) {
            let (format, cols) = (self.at.format, self.at.cols);
            let some = self.at.rows(rows.clone());
            self.source.reader.with(&extent(&some), |bytes| {
                each(rows.start, Matrix::new(format, rows.len(), cols, bytes)?);
                Ok::<(), WeightError>(())
            })??;
        }
        Ok(())
    }
}

/// Returns the bytes of a matrix that do not stay.
fn missing_bytes(weight: &Weight<'_>) -> u64 {
    let Weight::Streamed(StreamedMatrix { at, resident, .. }) = weight else { return 0 };
    ((at.rows - resident) * at.row_bytes()) as u64
}

/// Returns the position of the rows.
fn extent(at: &MatrixAt) -> Extent {
    let (part, bytes) = at.extent();
    Extent { part, bytes }
}

impl StreamedWeights {
    /// Chooses what stays in memory and starts reading: first what the first token needs, then what stays.
    ///
    /// # Errors
    /// [`ResidencyError`] if the settings are out of range, or files or threads are not available.
    pub fn new(mapped: MappedWeights, residency: &Residency) -> Result<Self, ResidencyError> {
        let n_layers = mapped.n_layers();
        let layers = residency.layers.clone().unwrap_or_else(|| (0..n_layers).collect());
        let walk = Arc::new(Walk::new(&mapped, layers, residency.ends)?);
        check_reads(residency)?;
        let gguf = Arc::clone(mapped.gguf());
        let paths = gguf.part_paths().ok_or(ResidencyError::NotAFile)?;
        let open = |path: &std::path::Path| {
            let named = |err| ResidencyError::Open { path: path.to_owned(), err };
            DirectFile::open(path).map_err(named)
        };
        let files = paths.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let &Residency { read_bytes, buffers, threads, .. } = residency;
        let worth_bytes = read_bytes as u64 / 4;
        let cut = Cut { read_bytes_max: read_bytes, unit_rows: UNIT_ROWS, worth_bytes };
        let spared = if walk.places.iter().any(|place| place.sometimes) { buffers / 2 } else { 0 };
        let options = ReaderOptions {
            buffers,
            buffer_bytes: read_bytes,
            threads,
            spared,
            reads_ahead: residency.reads_ahead,
        };
        let reader = Reader::new(gguf, files, options).map_err(ResidencyError::Threads)?;
        let source = Self {
            mapped,
            ends: residency.ends,
            cut,
            choice: RwLock::new(Arc::new(Choice::none(Arc::clone(&walk)))),
            wanted: Mutex::new(Wanted {
                budget_bytes: residency.budget_bytes,
                prefetch_bytes: residency.prefetch_bytes,
            }),
            passes: AtomicU64::new(0),
            expert_bytes: AtomicU64::new(0),
            reader,
        };
        source.apply(walk);
        Ok(source)
    }

    /// Returns all weights as the file has them, of which nothing is read past the page cache.
    pub(crate) fn mapped(&self) -> &MappedWeights {
        &self.mapped
    }

    /// Changes how many bytes of weights may stay in memory, from the next token on.
    pub fn set_budget(&self, bytes: u64) {
        self.wanted_mut().budget_bytes = bytes;
    }

    /// Changes how many of those bytes are for reading ahead, from the next token on.
    pub fn set_prefetch(&self, bytes: u64) {
        self.wanted_mut().prefetch_bytes = bytes;
    }

    fn wanted_mut(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the layers in use, in the order in which a token passes through them.
    pub fn layers(&self) -> Vec<usize> {
        self.choice().walk.layers.clone()
    }

    /// Switches to other layers: those not needed any more leave memory, and the new ones take their place.
    /// Call it between steps, since a running step would not find its layers any more.
    ///
    /// # Errors
    /// [`ResidencyError::NoSuchLayer`] and [`ResidencyError::LayerTwice`]; nothing has changed then.
    pub fn set_layers(&self, layers: Vec<usize>) -> Result<(), ResidencyError> {
        self.apply(Arc::new(Walk::new(&self.mapped, layers, self.ends)?));
        Ok(())
    }

    /// As [`Self::set_layers`], with matrices and the experts of some layers of which a GPU loads what does
    /// not stay in memory. Nothing of those is read ahead.
    ///
    /// # Errors
    /// As [`Self::set_layers`].
    pub(crate) fn set_loaded(
        &self,
        layers: Vec<usize>,
        matrices: &[MatrixAt],
        experts_of: &[usize],
    ) -> Result<(), ResidencyError> {
        let walk = Walk::new(&self.mapped, layers, self.ends)?;
        self.apply(Arc::new(walk.with_loaded(&self.mapped, matrices, experts_of)));
        Ok(())
    }

    /// Returns how many of the first of these bytes of a file of the model are in memory.
    pub(crate) fn in_memory(&self, part: usize, bytes: &Range<usize>) -> usize {
        self.choice().resident_of(part, bytes)
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> ResidencyStats {
        let (choice, counts) = (self.choice(), self.reader.counts());
        ResidencyStats {
            weight_bytes: choice.walk.places.iter().map(|place| place.at.extent().1.len() as u64).sum(),
            budget_bytes: choice.wanted.budget_bytes,
            prefetch_bytes: choice.prefetch_bytes,
            resident_bytes: choice.resident_bytes,
            streamed_bytes: choice.streamed_bytes,
            cold_bytes: counts.cold_bytes,
            passes: self.passes.load(Ordering::Relaxed),
            expert_bytes: self.expert_bytes.load(Ordering::Relaxed),
            reads: counts.reads,
            bytes_read: counts.bytes_read,
            reads_in_vain: counts.reads_in_vain,
            waited: counts.waited,
            reading: counts.reading,
            major_faults: platform::major_faults(),
            direct: self.reader.is_direct(),
        }
    }

    fn choice(&self) -> Arc<Choice> {
        Arc::clone(&self.choice.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a walk begins with the inputs of all layers.
    fn begins_with_inputs(&self) -> bool {
        self.ends && self.mapped.inputs_at().is_some()
    }

    /// Marks the beginning of a token's walk.
    fn begin_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.reader.begin_pass();
        let choice = self.choice();
        if choice.wanted != *self.wanted_mut() {
            self.apply(Arc::clone(&choice.walk));
        }
    }

    /// Chooses again for this walk and the requested budget, and tells the reader what has changed.
    fn apply(&self, walk: Arc<Walk>) {
        let mut choice = self.choice.write().unwrap_or_else(PoisonError::into_inner);
        let next = Choice::new(walk, *self.wanted_mut(), &self.cut);
        let (mut cycle, mut keep, mut let_go) = (Vec::new(), Vec::new(), Vec::new());
        for (place, &rows) in next.walk.places.iter().zip(&next.rows) {
            let part = |rows: Range<usize>| extent(&place.at.rows(rows));
            if !place.sometimes && !place.loaded {
                let pieces = self.cut.pieces(rows..place.at.rows, place.at.row_bytes());
                cycle.extend(pieces.into_iter().map(part));
            }
            let before = choice.resident_rows(&place.at).unwrap_or(0);
            if before < rows {
                keep.push(part(before..rows));
            } else if rows < before {
                let_go.push(part(rows..before));
            }
        }
        for (place, &rows) in choice.walk.places.iter().zip(&choice.rows) {
            if rows > 0 && next.resident_rows(&place.at).is_none() {
                let_go.push(extent(&place.at.rows(0..rows)));
            }
        }
        self.reader.set(cycle, next.prefetch_bytes as usize, keep, &let_go);
        *choice = Arc::new(next);
    }

    /// Returns a matrix through the mapping.
    fn map_matrix(&self, at: &MatrixAt) -> Result<Matrix<'_>, WeightError> {
        Ok(Matrix::new(at.format, at.rows, at.cols, at.bytes(self.mapped.gguf()))?)
    }

    /// Returns some rows of a matrix of the walk.
    fn weight(&self, choice: &Choice, at: &MatrixAt, rows: Range<usize>) -> Result<Weight<'_>, WeightError> {
        let resident = choice.resident_rows(at).unwrap_or(at.rows);
        let resident = resident.clamp(rows.start, rows.end) - rows.start;
        let at = at.rows(rows);
        if resident == at.rows {
            return Ok(self.map_matrix(&at)?.into());
        }
        Ok(Weight::Streamed(StreamedMatrix { source: self, at, resident }))
    }

    fn part(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        let n_layers = self.mapped.n_layers();
        let choice = self.choice();
        if layer < n_layers && !choice.walk.layers.contains(&layer) {
            return Err(WeightError::LayerElsewhere { layer });
        }
        self.mapped.part(layer, part, &|at, rows| self.weight(&choice, at, rows))
    }
}

impl Choice {
    /// Returns a choice in which nothing stays and nothing is read ahead.
    fn none(walk: Arc<Walk>) -> Self {
        Self {
            wanted: Wanted { budget_bytes: 0, prefetch_bytes: 0 },
            prefetch_bytes: 0,
            rows: vec![0; walk.places.len()],
            walk,
            by_place: BTreeMap::new(),
            resident_bytes: 0,
            streamed_bytes: 0,
        }
    }

    fn new(walk: Arc<Walk>, wanted: Wanted, cut: &Cut) -> Self {
        let walked: Vec<Walked> = walk.places.iter().map(Place::walked).collect();
        let all: u64 = walk.places.iter().map(|place| place.at.extent().1.len() as u64).sum();
        let budget = wanted.budget_bytes;
        // If everything stays, nothing is read ahead.
        let prefetch_bytes = if all <= budget { 0 } else { wanted.prefetch_bytes.min(budget) };
        let rows = choose(&walked, budget - prefetch_bytes, cut);
        let mut choice = Self { wanted, prefetch_bytes, rows, ..Self::none(Arc::clone(&walk)) };
        for (place, rows) in walk.places.iter().zip(&choice.rows) {
            let (whole, row_bytes) = (extent(&place.at), place.at.row_bytes());
            let end = whole.bytes.start + rows * row_bytes;
            choice.by_place.insert((whole.part, whole.bytes.start), Resident { rows: *rows, end });
            choice.resident_bytes += (rows * row_bytes) as u64;
            if !place.sometimes && !place.loaded {
                choice.streamed_bytes += ((place.at.rows - rows) * row_bytes) as u64;
            }
        }
        choice
    }

    /// Returns how many rows of a matrix stay; `None` if the matrix is not in the walk.
    fn resident_rows(&self, at: &MatrixAt) -> Option<usize> {
        let whole = extent(at);
        self.by_place.get(&(whole.part, whole.bytes.start)).map(|resident| resident.rows)
    }

    /// Returns how many of the first of these bytes of a file stay.
    fn resident_of(&self, part: usize, bytes: &Range<usize>) -> usize {
        let before = self.by_place.range(..=(part, bytes.start)).next_back();
        let end = before.filter(|((of, _), _)| *of == part).map_or(0, |(_, resident)| resident.end);
        end.saturating_sub(bytes.start).min(bytes.len())
    }
}

impl WeightSource for StreamedWeights {
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        let begins = part == Part::Attention && self.choice().walk.layers.first() == Some(&layer);
        if begins && !self.begins_with_inputs() {
            self.begin_pass();
        }
        let weights = self.part(layer, part)?;
        if let PartWeights::Expert(network) = &weights {
            let missing = [network.gate, network.up, network.down].iter().map(missing_bytes).sum();
            self.expert_bytes.fetch_add(missing, Ordering::Relaxed);
        }
        Ok(weights)
    }

    /// Uses the mapping: a token needs one row.
    fn embedding(&self) -> Result<Matrix<'_>, WeightError> {
        if self.ends { self.mapped.embedding() } else { Err(WeightError::EndsElsewhere) }
    }

    fn inputs(&self) -> Result<Option<InputWeights<'_>>, WeightError> {
        if self.begins_with_inputs() {
            self.begin_pass();
        }
        let choice = self.choice();
        self.mapped.inputs_part(&|at, rows| self.weight(&choice, at, rows))
    }

    fn output(&self) -> Result<OutputWeights<'_>, WeightError> {
        if !self.ends {
            return Err(WeightError::EndsElsewhere);
        }
        if self.choice().walk.layers.is_empty() && !self.begins_with_inputs() {
            self.begin_pass();
        }
        let choice = self.choice();
        self.mapped.output_part(&|at, rows| self.weight(&choice, at, rows))
    }

    /// Asks for the streamed rows of an expert; everything else is known beforehand.
    fn hint(&self, layer: usize, part: Part) {
        if !matches!(part, Part::Expert(_)) {
            return;
        }
        // A part that does not exist is refused when it is acquired.
        let Ok(PartWeights::Expert(network)) = self.part(layer, part) else { return };
        let mut extents = Vec::new();
        for weight in [network.gate, network.up, network.down] {
            if let Weight::Streamed(StreamedMatrix { at, resident, .. }) = weight {
                let pieces = self.cut.pieces(resident..at.rows, at.row_bytes());
                extents.extend(pieces.into_iter().map(|rows| extent(&at.rows(rows))));
            }
        }
        self.reader.ask(extents);
    }
}

impl std::fmt::Debug for StreamedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamedWeights").field("layers", &self.choice().walk.layers).finish_non_exhaustive()
    }
}
