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
//! Of a mixture whose experts do not all fit, those used most of late stay ([`kept`]), in memory of this
//! process.
//!
//! What always holds: no bit of a result depends on the budget. Unreclaimable memory is that of the buffers,
//! 40 MiB unless they are set otherwise, and that of kept experts. A changed budget takes effect at the
//! beginning of the next token.

mod checks;
mod choice;
pub(crate) mod direct;
mod kept;
mod queue;
mod reader;
mod stats;
mod walk;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use baton_kernels_cpu::{Format, Matrix};
use memmap2::MmapMut;

use super::mapped::{MappedWeights, MatrixAt};
use super::{InputWeights, OutputWeights, Part, PartWeights, Weight, WeightError, WeightSource};
use crate::platform;
use checks::check_reads;
use choice::Cut;
use direct::DirectFile;
use kept::Kept;
use queue::Extent;
use reader::{Reader, ReaderOptions};
use walk::{Choice, Place, Walk, Wanted, extent};

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
/// Bytes of a buffer beyond those of a read, for alignment.
const MARGIN_BYTES: usize = 16 << 10;
/// Rows are cut at multiples of this number, which the kernels process at a time.
const UNIT_ROWS: usize = 32;

/// Memory that streaming needs besides its budget, with reads of the default size; 0 if everything fits.
pub const STREAM_BYTES: u64 = (BUFFERS * (READ_BYTES + MARGIN_BYTES)).next_multiple_of(READ_BYTES) as u64;

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
    /// The most bytes of one read, 4 KiB to 64 MiB. Buffers have that size.
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

impl Residency {
    /// Returns it with reads of at most so many bytes, as far as they are allowed. The number of buffers
    /// changes with that, so that they take no more memory than [`STREAM_BYTES`].
    #[must_use]
    pub fn with_reads_of(self, bytes: usize) -> Self {
        let read_bytes = checks::allowed_read(bytes);
        let fit = STREAM_BYTES / (read_bytes + MARGIN_BYTES) as u64;
        Self { read_bytes, buffers: checks::allowed_buffers(fit as usize), ..self }
    }
}

/// Weights of which a part stays in memory and the rest is read for every token.
pub struct StreamedWeights {
    mapped: MappedWeights,
    ends: bool,
    cut: Cut,
    choice: RwLock<Arc<Choice>>,
    wanted: Mutex<Wanted>,
    passes: AtomicU64,
    /// Bytes of acquired experts that were not in memory, and of those that were kept.
    expert_bytes: AtomicU64,
    kept_expert_bytes: AtomicU64,
    kept: Mutex<Kept>,
    reader: Reader,
}

/// What of some bytes of a model's file is in memory.
pub(crate) enum InMemory {
    /// So many of the first bytes are mapped, and in the page cache.
    First(usize),
    /// All, in memory of this process.
    Kept(Arc<MmapMut>),
}

/// One matrix `[rows, cols]` whose first rows are in memory and whose other rows are waited for.
#[derive(Debug, Clone, Copy)]
pub struct StreamedMatrix<'a> {
    source: &'a StreamedWeights,
    at: MatrixAt,
    resident: usize,
    keeps: bool,
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
        let (format, cols) = (self.at.format, self.at.cols);
        for (rows, extent) in self.missing() {
            let mut with = |bytes: &[u8]| {
                each(rows.start, Matrix::new(format, rows.len(), cols, bytes)?);
                Ok::<(), WeightError>(())
            };
            if !self.keeps {
                self.source.reader.with(&extent, with)??;
                continue;
            }
            let kept = self.source.kept().take(&extent);
            match kept {
                Some(bytes) => with(&bytes)?,
                None => self.source.reader.with(&extent, |bytes| {
                    self.source.kept().offer(&extent, bytes);
                    with(bytes)
                })??,
            }
        }
        Ok(())
    }

    /// Returns the reads for the rows that do not stay, with their rows.
    fn missing(&self) -> impl Iterator<Item = (Range<usize>, Extent)> {
        let Self { source, at, resident, .. } = *self;
        let pieces = source.cut.pieces(resident..at.rows, at.row_bytes());
        pieces.into_iter().map(move |rows| (rows.clone(), extent(&at.rows(rows))))
    }
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
            kept_expert_bytes: AtomicU64::new(0),
            kept: Mutex::default(),
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

    /// Returns how many bytes of weights may stay in memory from the next token on.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.wanted_mut().budget_bytes
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

    /// Returns what of these bytes of a file of the model is in memory. For who loads them: counts a use if
    /// they are of an expert.
    pub(crate) fn in_memory(&self, part: usize, bytes: &Range<usize>) -> InMemory {
        let piece = Extent { part, bytes: bytes.clone() };
        let choice = self.choice();
        let Some(matrix) = choice.around(&piece) else { return InMemory::First(0) };
        let first = matrix.end.saturating_sub(bytes.start).min(bytes.len());
        if !matrix.is_expert {
            return InMemory::First(first);
        }
        let kept = if matrix.keeps { self.kept().take(&piece) } else { None };
        let count = if kept.is_some() { &self.kept_expert_bytes } else { &self.expert_bytes };
        count.fetch_add((bytes.len() - first) as u64, Ordering::Relaxed);
        kept.map_or(InMemory::First(first), InMemory::Kept)
    }

    /// Keeps bytes that were read because none of them was in memory, if they are of an expert that is used
    /// enough.
    pub(crate) fn keep(&self, part: usize, bytes: &Range<usize>, read: &[u8]) {
        let piece = Extent { part, bytes: bytes.clone() };
        if self.choice().keeps(&piece) {
            self.kept().offer(&piece, read);
        }
    }

    /// Returns the reads that every token needs, in order: the file of the model, and bytes of it.
    pub fn reads(&self) -> Vec<(usize, Range<usize>)> {
        let choice = self.choice();
        let mut reads = Vec::new();
        for (place, &rows) in choice.walk.places.iter().zip(&choice.rows) {
            let extents = self.cycle_of(place, rows);
            reads.extend(extents.into_iter().map(|Extent { part, bytes }| (part, bytes)));
        }
        reads
    }

    /// Returns the reads of a matrix of which so many rows stay; none if only some tokens need it.
    fn cycle_of(&self, place: &Place, rows: usize) -> Vec<Extent> {
        if place.sometimes || place.loaded {
            return Vec::new();
        }
        let pieces = self.cut.pieces(rows..place.at.rows, place.at.row_bytes());
        pieces.into_iter().map(|rows| extent(&place.at.rows(rows))).collect()
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
            all_expert_bytes: choice.walk.expert_bytes(),
            kept_bytes: choice.kept_bytes,
            held_expert_bytes: self.kept().bytes() as u64,
            expert_bytes: self.expert_bytes.load(Ordering::Relaxed),
            kept_expert_bytes: self.kept_expert_bytes.load(Ordering::Relaxed),
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

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a pass, unless a GPU that loads layers does.
    fn begin_own_pass(&self) {
        if !self.choice().walk.is_loaded {
            self.begin_pass();
        }
    }

    /// Marks the beginning of a token's walk. A GPU that computes all layers calls it with the first of them.
    pub(crate) fn begin_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.kept().begin_pass();
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
        self.kept().set(next.kept_bytes as usize, |extent| next.keeps(extent));
        let (mut cycle, mut keep, mut let_go) = (Vec::new(), Vec::new(), Vec::new());
        for (place, &rows) in next.walk.places.iter().zip(&next.rows) {
            let part = |rows: Range<usize>| extent(&place.at.rows(rows));
            cycle.extend(self.cycle_of(place, rows));
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

    /// Counts the bytes of an expert that are not in memory, and those that were kept.
    fn count_expert(&self, weights: [Weight<'_>; 3]) {
        for weight in weights {
            let Weight::Streamed(matrix) = weight else { continue };
            for (_, extent) in matrix.missing() {
                let is_kept = matrix.keeps && self.kept().has(&extent);
                let count = if is_kept { &self.kept_expert_bytes } else { &self.expert_bytes };
                count.fetch_add(extent.bytes.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Returns a matrix through the mapping.
    fn map_matrix(&self, at: &MatrixAt) -> Result<Matrix<'_>, WeightError> {
        Ok(Matrix::new(at.format, at.rows, at.cols, at.bytes(self.mapped.gguf()))?)
    }

    /// Returns some rows of a matrix of the walk.
    fn weight(&self, choice: &Choice, at: &MatrixAt, rows: Range<usize>) -> Result<Weight<'_>, WeightError> {
        let whole = choice.resident(at);
        let (resident, keeps) = whole.map_or((at.rows, false), |whole| (whole.rows, whole.keeps));
        let resident = resident.clamp(rows.start, rows.end) - rows.start;
        let at = at.rows(rows);
        if resident == at.rows {
            return Ok(self.map_matrix(&at)?.into());
        }
        Ok(Weight::Streamed(StreamedMatrix { source: self, at, resident, keeps }))
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

impl WeightSource for StreamedWeights {
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        let begins = part == Part::Attention && self.choice().walk.layers.first() == Some(&layer);
        if begins && !self.begins_with_inputs() {
            self.begin_own_pass();
        }
        let weights = self.part(layer, part)?;
        if let PartWeights::Expert(network) = &weights {
            self.count_expert([network.gate, network.up, network.down]);
        }
        Ok(weights)
    }

    /// Uses the mapping: a token needs one row.
    fn embedding(&self) -> Result<Matrix<'_>, WeightError> {
        if self.ends { self.mapped.embedding() } else { Err(WeightError::EndsElsewhere) }
    }

    fn inputs(&self) -> Result<Option<InputWeights<'_>>, WeightError> {
        if self.begins_with_inputs() {
            self.begin_own_pass();
        }
        let choice = self.choice();
        self.mapped.inputs_part(&|at, rows| self.weight(&choice, at, rows))
    }

    fn output(&self) -> Result<OutputWeights<'_>, WeightError> {
        if !self.ends {
            return Err(WeightError::EndsElsewhere);
        }
        if self.choice().walk.layers.is_empty() && !self.begins_with_inputs() {
            self.begin_own_pass();
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
            if let Weight::Streamed(matrix) = weight {
                extents.extend(matrix.missing().map(|(_, extent)| extent));
            }
        }
        let kept = self.kept();
        extents.retain(|extent| !kept.has(extent));
        drop(kept);
        self.reader.ask(extents);
    }
}

impl std::fmt::Debug for StreamedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamedWeights").field("layers", &self.choice().walk.layers).finish_non_exhaustive()
    }
}
