//! How much memory a device's model takes: the whole file if it fits, else as much as the system can give.
//! The amount changes as other programs start and stop.
//!
//! [`Keeper`] decides, without clock or I/O; a thread reads the memory once a second and tells the engine.
//! What always holds: a budget shrinks as soon as less memory is available. It grows only after more memory
//! has been available for a while. Nothing of a model is locked in memory.

use baton_terminal::{errln, size};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use baton_engine::engine::KvFormat;
use baton_engine::platform::own_bytes;
use baton_engine::weights::StreamedWeights;
use baton_engine::{Model, ModelError, Residency, STREAM_BYTES};
use baton_plan::Device;

use crate::machine::memory::Memory;
use crate::machine::profile::{memory_with, this_memory};
use crate::machine::shape::{ShapeError, shape_of};

/// Bytes the program needs besides weights, KV cache, read buffers and text: activations, code.
const BESIDE_BYTES: u64 = 12 << 20;
/// Bytes a device without text needs besides weights and KV cache.
pub const BUFFER_BYTES: u64 = STREAM_BYTES + BESIDE_BYTES;
/// Bytes a tokenizer needs for each token of its vocabulary, merges included.
const TEXT_TOKEN_BYTES: u64 = 280;
/// How often the memory is measured.
const LOOK: Duration = Duration::from_secs(1);
/// How long more memory must be available before the budget grows.
const GROW_AFTER: Duration = Duration::from_secs(10);
/// Smaller changes, in percent of the budget, are not worth reading other pages.
const SHRINK_PERCENT: u64 = 2;
const GROW_PERCENT: u64 = 2;
/// Page faults per pass above which the system is evicting the model's pages, whatever memory it reports.
const FAULTS_MAX: u64 = 64;

/// The value of `--memory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFor {
    /// As much as the system can give.
    Auto,
    /// Map the whole file, even if the memory is too small for all of it.
    All,
    /// Keep at most this many bytes of weights in memory.
    Bytes(u64),
}

impl FromStr for MemoryFor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            _ => baton_gpu::bytes_of(text).map(Self::Bytes).ok_or_else(|| {
                format!("`{text}` is no amount of memory: want auto, all or a size like 2GB or 800MB")
            }),
        }
    }
}

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its shape cannot be read.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The engine refuses it.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl MemoryFor {
    /// Sets the limit that the user gave in the planner's description of a device.
    pub fn bound(self, device: &mut Device) {
        if let Self::Bytes(bytes) = self {
            device.weight_bytes_max = Some(bytes as f64);
        }
    }
}

/// Returns the bytes needed to read and write text with a vocabulary of this size; the head of a ring does
/// both.
pub fn text_bytes(vocab: usize) -> u64 {
    TEXT_TOKEN_BYTES * vocab as u64
}

/// The part of a model that a device computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Tokens of KV cache.
    pub kv_tokens: usize,
    /// The number format of keys and values.
    pub kv_format: KvFormat,
    /// The layers it computes.
    pub layers: Layers,
    /// Whether weights are read ahead of their use. Without, for measurements, each read is waited for.
    pub reads_ahead: bool,
}

/// The layers that a device computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layers {
    /// All layers, and the logits.
    All,
    /// Those of a ring's head, and the logits. Each plan says which layers ([`StreamedWeights::set_layers`]);
    /// none before the first plan.
    Planned,
    /// Those of another device of a ring, in the order in which a token passes through them.
    Of(Vec<usize>),
}

/// Opens the model for one engine that computes this share of it. If a part does not stay in memory, writes
/// one line that says so. With [`MemoryFor::Auto`], the budget then follows the memory that the system can
/// give as long as the model lives.
///
/// # Errors
/// [`OpenError`] if the shape cannot be read or the engine refuses the model.
pub fn open(path: &Path, memory: MemoryFor, repack: u64, share: &Share) -> Result<Arc<Model>, OpenError> {
    let (budget_bytes, follows) = match memory {
        MemoryFor::All => return Ok(Model::open_repacked(path, repack)?),
        MemoryFor::Bytes(bytes) => (bytes, None),
        MemoryFor::Auto => {
            let shape = shape_of(path, share.kv_format)?;
            let (layers, ends, text) = match &share.layers {
                Layers::Of(layers) => (layers.len(), 0.0, 0),
                Layers::All | Layers::Planned => (shape.layers, shape.output_bytes, text_bytes(shape.vocab)),
            };
            let layer_kv_bytes = (shape.kv_bytes * share.kv_tokens as f64) as u64;
            let needs = Needs { layers, layer_kv_bytes, text, had: own_bytes().unwrap_or(0) };
            let weights = shape.layer_bytes * layers as f64 + ends;
            // Without memory rules for this system the file is mapped.
            let Ok((_, found)) = this_memory() else { return Ok(Model::open_repacked(path, repack)?) };
            let possible = needs.left_for_weights(found.available_bytes, needs.had);
            if weights as u64 + repack <= possible {
                return Ok(Model::open_repacked(path, repack)?);
            }
            (possible, Some((needs, found)))
        }
    };
    let (layers, ends) = match &share.layers {
        Layers::All => (None, true),
        Layers::Planned => (Some(Vec::new()), true),
        Layers::Of(layers) => (Some(layers.clone()), false),
    };
    let model = Model::open_within(
        path,
        &Residency { budget_bytes, layers, ends, reads_ahead: share.reads_ahead, ..Residency::default() },
    )?;
    if let (Some(weights), Layers::All | Layers::Of(_)) = (model.streamed(), &share.layers) {
        say(weights, follows.as_ref().map(|(_, found)| found));
    }
    if let Some((needs, _)) = follows {
        // The text is in memory by now and is counted in what the program holds.
        let needs = Needs { text: 0, had: own_bytes().unwrap_or(0), ..needs };
        let (watched, keeper) = (Arc::downgrade(&model), Keeper::new(budget_bytes));
        // If no thread can be started, the budget stays as it is.
        let _ = std::thread::Builder::new()
            .name("residency".into())
            .spawn(move || follow(&watched, needs, keeper));
    }
    Ok(model)
}

/// Writes one line if any weights are streamed.
fn say(weights: &StreamedWeights, found: Option<&Memory>) {
    let stats = weights.stats();
    let read = stats.weight_bytes - stats.resident_bytes;
    if read == 0 {
        return;
    }
    let bound = found.map_or_else(|| "--memory".to_owned(), |found| found.bound_by.clone());
    errln!(
        "{} of the model's {} of weights stay in memory ({bound} sets the bound); the other {} are \
         read from the disk for every token{}",
        size(stats.resident_bytes),
        size(stats.weight_bytes),
        size(read),
        if stats.direct { "" } else { ", through the page cache, since its file system has no direct reads" },
    );
}

/// The bytes a program needs besides weights, and those it held when they were counted.
#[derive(Debug, Clone, Copy)]
struct Needs {
    layers: usize,
    layer_kv_bytes: u64,
    /// Bytes still to be allocated for text.
    text: u64,
    had: u64,
}

impl Needs {
    /// Returns how much of `available` can go to weights when the program itself holds `unreclaimable` bytes.
    fn left_for_weights(&self, available: u64, unreclaimable: u64) -> u64 {
        let kv_bytes = (self.layers as u64).saturating_mul(self.layer_kv_bytes);
        let bytes = kv_bytes.saturating_add(BUFFER_BYTES).saturating_add(self.text);
        let to_come = bytes.saturating_sub(unreclaimable.saturating_sub(self.had));
        available.saturating_sub(to_come)
    }

    /// As [`Self::left_for_weights`], when `held` bytes of experts are kept. These are weights: they count as
    /// available in `memory`, and are no memory that the program needs beside weights.
    fn left_beside(&self, memory: &Memory, unreclaimable: u64, held: u64) -> u64 {
        self.left_for_weights(memory.available_bytes, unreclaimable.saturating_sub(held))
    }
}

/// Measures once a second until the model is dropped.
fn follow(model: &Weak<Model>, mut needs: Needs, mut keeper: Keeper) {
    let begun = Instant::now();
    loop {
        std::thread::sleep(LOOK);
        let Some(model) = model.upgrade() else { return };
        let Some(weights) = model.streamed() else { return };
        let stats = weights.stats();
        let held = stats.held_expert_bytes;
        let Ok((_, found)) = memory_with(held) else { return };
        let layers = weights.layers().len();
        let other_share = std::mem::replace(&mut needs.layers, layers) != layers;
        let possible_bytes = needs.left_beside(&found, own_bytes().unwrap_or(0), held);
        if other_share {
            keeper = Keeper::new(possible_bytes);
            weights.set_budget(possible_bytes);
            continue;
        }
        let seen = Seen {
            possible_bytes,
            passes: stats.passes,
            // Pages that are read for the first time are no sign of memory pressure.
            major_faults: stats.major_faults.filter(|_| stats.cold_bytes == 0),
        };
        if let Some(bytes) = keeper.step(seen, begun.elapsed()) {
            tracing::info!(bytes, bound_by = found.bound_by, "weights in memory");
            weights.set_budget(bytes);
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Bytes of weights that the memory rules allow.
    pub possible_bytes: u64,
    /// Passes so far.
    pub passes: u64,
    /// Page faults so far that waited for a disk; `None` if unknown or not meaningful.
    pub major_faults: Option<u64>,
}

/// Decides how many bytes of weights stay in memory. Times count from any fixed moment.
#[derive(Debug, Clone)]
pub struct Keeper {
    budget: u64,
    /// Since when a larger budget has been possible, and the smallest value seen since.
    room: Option<(Duration, u64)>,
    /// Passes and faults of the last measurement.
    last: Option<(u64, u64)>,
}

impl Keeper {
    /// Starts with the budget that the model was opened with.
    pub fn new(budget: u64) -> Self {
        Self { budget, room: None, last: None }
    }

    /// Returns the new budget, or `None` if it does not change.
    pub fn step(&mut self, seen: Seen, now: Duration) -> Option<u64> {
        let pressed = self.pressed(seen);
        let next = if seen.possible_bytes < self.budget - self.budget / 100 * SHRINK_PERCENT {
            seen.possible_bytes
        } else if pressed {
            self.budget - self.budget / 16
        } else {
            let since = self.room_since(seen.possible_bytes, now)?;
            if now.saturating_sub(since.0) < GROW_AFTER {
                return None;
            }
            since.1
        };
        self.budget = next;
        self.room = None;
        self.last = None;
        Some(next)
    }

    /// Whether the passes since the last measurement read pages again that should have stayed in memory.
    fn pressed(&mut self, seen: Seen) -> bool {
        let Some(faults) = seen.major_faults else {
            self.last = None;
            return false;
        };
        let (passes_before, faults_before) = *self.last.get_or_insert((seen.passes, faults));
        self.last = Some((seen.passes, faults));
        let passes = seen.passes - passes_before;
        passes > 0 && faults.saturating_sub(faults_before) > FAULTS_MAX * passes
    }

    /// Returns since when there is more room and the least of it, or `None` if the gain is too small.
    fn room_since(&mut self, possible: u64, now: Duration) -> Option<(Duration, u64)> {
        if possible < self.budget + self.budget / 100 * GROW_PERCENT + 1 {
            self.room = None;
            return None;
        }
        let (since, least) = self.room.unwrap_or((now, possible));
        self.room = Some((since, least.min(possible)));
        self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::machine::memory;

    const GB: u64 = 1_000_000_000;

    fn seen(possible_bytes: u64) -> Seen {
        Seen { possible_bytes, passes: 0, major_faults: None }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_shrinks_at_once_and_grows_after_a_while() {
        let mut keeper = Keeper::new(2 * GB);
        assert_eq!(keeper.step(seen(2 * GB - GB / 100), at(1)), None, "half a percent is nothing");
        assert_eq!(keeper.step(seen(GB), at(2)), Some(GB));
        assert_eq!(keeper.step(seen(GB + GB / 50), at(3)), None);
        for second in 4..14 {
            let possible = if second == 8 { 2 * GB } else { 3 * GB };
            assert_eq!(keeper.step(seen(possible), at(second)), None, "second {second}");
        }
        assert_eq!(keeper.step(seen(3 * GB), at(14)), Some(2 * GB), "the least of the last ten seconds");
        assert_eq!(keeper.step(seen(3 * GB), at(15)), None);
        assert_eq!(keeper.step(seen(2 * GB), at(16)), None, "the room has gone");
        assert_eq!(keeper.step(seen(3 * GB), at(17)), None);
        assert_eq!(keeper.step(seen(3 * GB), at(26)), None);
        assert_eq!(keeper.step(seen(3 * GB), at(27)), Some(3 * GB));
        assert_eq!(keeper.step(seen(0), at(28)), Some(0));
        assert_eq!(keeper.step(seen(0), at(29)), None);
        assert_eq!(keeper.step(seen(GB), at(30)), None);
        assert_eq!(keeper.step(seen(GB), at(40)), Some(GB), "from nothing, too");
    }

    #[test]
    fn pages_that_are_read_again_shrink_it_whatever_the_system_says() {
        let mut keeper = Keeper::new(16 * GB);
        let with = |passes, faults| Seen { passes, major_faults: Some(faults), ..seen(16 * GB) };
        assert_eq!(keeper.step(with(10, 5_000), at(1)), None, "what was before says nothing");
        assert_eq!(keeper.step(with(20, 5_100), at(2)), None, "a few are the rows of the embedding");
        assert_eq!(keeper.step(with(20, 9_000), at(3)), None, "nor do those between passes");
        assert_eq!(keeper.step(with(22, 9_200), at(4)), Some(15 * GB));
        assert_eq!(keeper.step(with(24, 19_200), at(5)), None, "what the change itself reads");
        assert_eq!(keeper.step(with(26, 19_201), at(6)), None);
    }

    #[test]
    fn what_the_program_takes_itself_is_counted_once() {
        let (text, beside) = (5_000, BUFFER_BYTES + 5_000);
        let needs = Needs { layers: 4, layer_kv_bytes: 100, text, had: 100 };
        assert_eq!(needs.left_for_weights(beside + 2_000, 100), 1_600);
        assert_eq!(needs.left_for_weights(beside + 1_700, 400), 1_600, "300 of its own are taken");
        assert_eq!(needs.left_for_weights(1_200, beside + 500), 1_200);
        assert_eq!(needs.left_for_weights(300, 100), 0);
        assert_eq!(Needs { layers: 1, ..needs }.left_for_weights(beside + 2_000, 100), 1_900);
        let endless = Needs { layer_kv_bytes: u64::MAX, ..needs };
        assert_eq!(endless.left_for_weights(beside + 2_000, 100), 0, "a cache of any size leaves nothing");
    }

    #[test]
    fn experts_that_are_kept_do_not_lower_the_budget() {
        const MIB: u64 = 1 << 20;
        let needs = Needs { layers: 4, layer_kv_bytes: 10 * MIB, text: 0, had: 100 * MIB };
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        // What weights may have if so many bytes of them are experts in the program's memory.
        let possible = |held: u64| {
            let free = 8192 * MIB - held;
            let text = format!("MemAvailable: {} kB\n", free / 1024);
            std::fs::write(root.path().join("proc/meminfo"), text).unwrap();
            let memory = memory::of_linux(root.path(), false, held).unwrap();
            needs.left_beside(&memory, needs.had + held, held)
        };
        let budget = possible(0);
        let mut keeper = Keeper::new(budget);
        let mut held = 0;
        for second in 1..60 {
            held = budget.min(held + 256 * MIB) / MIB * MIB;
            let step = keeper.step(seen(possible(held)), at(second));
            assert_eq!(step, None, "{held} bytes are kept, the budget was {budget}");
        }
        assert!(held + MIB > budget, "all of it is experts");
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<MemoryFor>();
        assert_eq!(read("auto"), Ok(MemoryFor::Auto));
        assert_eq!(read("all"), Ok(MemoryFor::All));
        assert_eq!(read("2GB"), Ok(MemoryFor::Bytes(2 * GB)));
        assert_eq!(read("1.5 MiB"), Ok(MemoryFor::Bytes(3 << 19)));
        for bad in ["", "2", "GB", "-1GB", "NaNGB", "1e30GB", "2TB", "2gb"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_model_that_fits_is_mapped_and_one_that_does_not_is_streamed() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-device.gguf");
        let share =
            Share { kv_tokens: 128, kv_format: KvFormat::default(), layers: Layers::All, reads_ahead: true };
        assert!(open(&path, MemoryFor::All, 0, &share).unwrap().streamed().is_none());
        let stats = |share: &Share| {
            let model = open(&path, MemoryFor::Bytes(1_000_000), 0, share).unwrap();
            model.streamed().unwrap().stats()
        };
        let whole = stats(&share);
        assert!(whole.resident_bytes <= 1_000_000 && whole.streamed_bytes > 0, "{whole:?}");
        let part = stats(&Share { layers: Layers::Of(vec![1]), ..share.clone() });
        let head = stats(&Share { layers: Layers::Planned, ..share.clone() });
        assert!(part.weight_bytes < whole.weight_bytes, "{part:?}");
        assert!(head.weight_bytes < whole.weight_bytes - part.weight_bytes, "the logits alone: {head:?}");
        assert!(open(Path::new("missing.gguf"), MemoryFor::Auto, 0, &share).is_err());
    }
}
