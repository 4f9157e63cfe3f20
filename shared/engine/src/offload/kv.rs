//! Keys and values in the host's memory, for a GPU that computes their layers.
//!
//! Blocks have the same ids as in the GPU's memory, and the same layout in a slot as in the host's. A few
//! slots of the GPU hold one layer each. When a layer is computed, the blocks that its queries see are loaded
//! into its slot. Those of the next layer are loaded meanwhile. New keys and values are saved behind the
//! kernel that writes them. A slot is used again when its saves are done. With three slots that is asked a
//! layer later at the earliest (PIPO, section 3.1).
//!
//! In f16 attention reads the slot. Other formats are packed in slots and in the host's memory, and the layer
//! that is computed has its blocks opened beside them ([`super::opened`]).

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use baton_kernels_gpu::ops::KvBuffers;
use baton_kernels_gpu::{Buffer, Device, Mark, PackedKv};
use memmap2::MmapMut;

use super::loader::{Loader, Task, Ticket};
use super::opened::Opened;
use super::{OffloadError, OffloadStats, Pipeline};
use crate::backend::SeqSpan;
use crate::config::SlidingWindow;
use crate::kv::{BLOCK_TOKENS, BlockCopy};

/// A layer whose keys and values are in the host's memory.
#[derive(Debug, Clone)]
pub(crate) struct HostLayer {
    /// The layer of the model.
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) d: usize,
    /// What its queries see.
    pub(crate) window: Option<SlidingWindow>,
}

impl HostLayer {
    /// Returns the bytes of a block in each of the layer's stores.
    fn block_bytes(&self, packed: Option<PackedKv>) -> usize {
        let f16 = || KvBuffers::block_bytes(self.heads, self.d);
        packed.map_or_else(f16, |how| how.block_bytes(self.heads, self.d)) as usize
    }

    /// Whether a query at `position` or later sees a key of the block that begins at `first`.
    fn sees_block(&self, position: usize, first: usize) -> bool {
        self.window.is_none_or(|window| window.sees_block(position, first))
    }
}

/// The keys, or the values, of all blocks of a layer; or both if they are packed. The system gives memory as
/// they are written.
type Store = Arc<RwLock<MmapMut>>;

/// How keys and values go to the host's memory and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostKvOptions {
    pub(crate) pipeline: Pipeline,
    /// Bytes that one thread moves at once.
    pub(crate) block_bytes: usize,
    pub(crate) n_blocks: usize,
    /// How they are packed; `None` if they are kept in f16.
    pub(crate) packed: Option<PackedKv>,
}

impl HostKvOptions {
    /// Returns how many stores a layer has, and buffers a slot.
    fn parts(&self) -> usize {
        if self.packed.is_some() { 1 } else { 2 }
    }
}

/// The keys and values of some layers.
pub(crate) struct HostKv {
    device: Arc<dyn Device>,
    loader: Arc<Loader>,
    options: HostKvOptions,
    /// In the order of a pass.
    layers: Vec<HostLayer>,
    /// Of each layer, as many as [`HostKvOptions::parts`].
    stores: Vec<Vec<Store>>,
    state: Mutex<State>,
}

/// Memory of the GPU for the stores of any layer.
struct Slot(Vec<Buffer>);

/// A layer in a slot.
struct Held {
    slot: Slot,
    /// The blocks in the slot, or on their way there.
    blocks: HashSet<u32>,
    loading: Vec<Arc<Ticket>>,
    saving: Vec<Arc<Ticket>>,
}

#[derive(Default)]
struct State {
    free: Vec<Slot>,
    held: HashMap<usize, Held>,
    /// Of packed layers, the one that is computed.
    opened: Option<Opened>,
    stats: OffloadStats,
}

fn lock_all(store: &Store) -> std::sync::RwLockWriteGuard<'_, MmapMut> {
    store.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns runs of consecutive blocks, each of at most `most` blocks.
fn runs(mut blocks: Vec<u32>, most: usize) -> Vec<Range<usize>> {
    blocks.sort_unstable();
    blocks.dedup();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for block in blocks.into_iter().map(|block| block as usize) {
        match runs.last_mut() {
            Some(run) if run.end == block && run.len() < most => run.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

impl HostKv {
    /// Sets memory of the host aside, and allocates slots.
    ///
    /// # Errors
    /// [`OffloadError::HostMemory`], and [`GpuError::OutOfMemory`](baton_kernels_gpu::GpuError::OutOfMemory).
    pub(crate) fn new(
        device: Arc<dyn Device>,
        loader: Arc<Loader>,
        layers: Vec<HostLayer>,
        options: HostKvOptions,
    ) -> Result<Self, OffloadError> {
        let (packed, parts) = (options.packed, options.parts());
        let bytes = |layer: &HostLayer| layer.block_bytes(packed).saturating_mul(options.n_blocks);
        let store = |layer| {
            let bytes = bytes(layer);
            let named = |err| OffloadError::HostMemory { bytes, err };
            Ok::<Store, OffloadError>(Arc::new(RwLock::new(MmapMut::map_anon(bytes).map_err(named)?)))
        };
        let stores = layers.iter().map(|layer| (0..parts).map(|_| store(layer)).collect());
        let stores = stores.collect::<Result<Vec<Vec<Store>>, _>>()?;
        let largest = layers.iter().map(bytes).max().unwrap_or(0) as u64;
        let slots = options.pipeline.kv_slots();
        let slot = || Slot((0..parts).map(|_| device.alloc(largest)).collect());
        let free: Vec<Slot> = (0..slots).map(|_| slot()).collect();
        let open = |how| {
            let f16 = layers.iter().map(|layer| layer.block_bytes(None) * options.n_blocks);
            Opened::new(&*device, how, f16.max().unwrap_or(0) as u64)
        };
        let opened = packed.map(open);
        if let Some(fault) = device.fault() {
            return Err(fault.into());
        }
        let stats = OffloadStats {
            kv_host_bytes: layers.iter().map(|layer| (parts * bytes(layer)) as u64).sum(),
            kv_slot_bytes: slots * parts as u64 * largest + opened.as_ref().map_or(0, Opened::bytes),
            ..OffloadStats::default()
        };
        let state = Mutex::new(State { free, opened, stats, ..State::default() });
        Ok(Self { device, loader, options, layers, stores, state })
    }

    /// Returns the place of a layer of the model among these.
    pub(crate) fn place(&self, layer: usize) -> Option<usize> {
        self.layers.iter().position(|own| own.layer == layer)
    }

    /// Adds what was moved so far, and the sizes.
    pub(crate) fn add_stats(&self, stats: &mut OffloadStats) {
        let own = self.state().stats;
        stats.kv_host_bytes = own.kv_host_bytes;
        stats.kv_slot_bytes = own.kv_slot_bytes;
        stats.kv_loaded_bytes = own.kv_loaded_bytes;
        stats.kv_saved_bytes = own.kv_saved_bytes;
        stats.waited += own.waited;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the layers that should be in slots while the one at `place` is computed, in the order of use.
    fn wanted(&self, place: usize) -> Vec<usize> {
        let n = self.layers.len();
        (0..n.min(self.options.pipeline.kv_wanted())).map(|step| (place + step) % n).collect()
    }

    /// Begins to load what a pass over these spans needs first.
    pub(crate) fn begin(&self, spans: &[SeqSpan]) {
        if self.options.pipeline != Pipeline::Synchronous {
            let state = &mut *self.state();
            self.hold(state, &self.wanted(0), spans, false);
        }
    }

    /// Returns the keys and values of the layer at `place`, as the next kernel may use them. If `is_written`,
    /// those of the spans' own rows are among them.
    pub(crate) fn enter(&self, place: usize, spans: &[SeqSpan], is_written: bool) -> KvBuffers {
        let state = &mut *self.state();
        self.hold(state, &self.wanted(place), spans, is_written);
        let held = state.held.get_mut(&place).expect("the first wanted layer is held");
        let begun = Instant::now();
        for ticket in held.loading.drain(..) {
            // Only a lost device or a panic fails. Device and loader keep the fault.
            ticket.settle().iter().flatten().for_each(|mark| self.device.wait(mark));
        }
        state.stats.waited += begun.elapsed();
        let HostLayer { heads, d, .. } = self.layers[place];
        match (&mut state.opened, &held.slot.0[..]) {
            (Some(opened), [packed]) => {
                let needed = self.needed(place, spans, is_written);
                opened.open(&*self.device, (place, heads, d), packed, needed)
            }
            (_, [keys, values]) => KvBuffers { keys: keys.clone(), values: values.clone(), heads, d },
            (_, buffers) => unreachable!("a slot of {} buffers", buffers.len()),
        }
    }

    /// Returns the bytes of a block in each store of the layer at `place`.
    fn block_bytes(&self, place: usize) -> usize {
        self.layers[place].block_bytes(self.options.packed)
    }

    /// Returns a slot: one that is free, or that of the layer which was used longest ago.
    fn slot(&self, state: &mut State, wanted: &[usize]) -> Slot {
        if let Some(slot) = state.free.pop() {
            return slot;
        }
        let n = self.layers.len();
        let behind = |place: &usize| (wanted[0] + n - place) % n;
        let over = state.held.keys().copied().filter(|held| !wanted.contains(held)).max_by_key(behind);
        let held = over.and_then(|over| state.held.remove(&over));
        self.give_up(held.expect("there are as many slots as wanted layers"))
    }

    /// Sees to it that layers are in slots, or on their way there.
    fn hold(&self, state: &mut State, wanted: &[usize], spans: &[SeqSpan], is_written: bool) {
        for (nth, &place) in wanted.iter().enumerate() {
            // Layers ahead are not written yet.
            let needed = self.needed(place, spans, is_written && nth == 0);
            if !state.held.contains_key(&place) {
                let slot = self.slot(state, wanted);
                let held = Held { slot, blocks: HashSet::new(), loading: Vec::new(), saving: Vec::new() };
                state.held.insert(place, held);
            }
            let held = state.held.get_mut(&place).expect("inserted above if it was not there");
            let missing: Vec<u32> = needed.into_iter().filter(|block| !held.blocks.contains(block)).collect();
            if !missing.is_empty() {
                held.blocks.extend(&missing);
                let bytes = self.options.parts() * self.block_bytes(place);
                state.stats.kv_loaded_bytes += (missing.len() * bytes) as u64;
                held.loading.push(self.load(place, &held.slot, missing));
            }
        }
    }

    /// Returns the blocks that queries of the spans see, without those that begin with their own rows unless
    /// `is_written`.
    fn needed(&self, place: usize, spans: &[SeqSpan], is_written: bool) -> Vec<u32> {
        let layer = &self.layers[place];
        let mut needed = HashSet::new();
        for span in spans {
            let tokens = span.start + if is_written { span.rows.len() } else { 0 };
            let seen = |at: &usize| layer.sees_block(span.start, at * BLOCK_TOKENS);
            let blocks = (0..tokens.div_ceil(BLOCK_TOKENS)).filter(seen);
            needed.extend(blocks.map(|at| span.blocks[at].0));
        }
        needed.into_iter().collect()
    }

    fn runs(&self, place: usize, blocks: Vec<u32>) -> Vec<Range<usize>> {
        runs(blocks, (self.options.block_bytes / self.block_bytes(place)).max(1))
    }

    fn load(&self, place: usize, slot: &Slot, blocks: Vec<u32>) -> Arc<Ticket> {
        let bytes = self.block_bytes(place);
        let after = self.device.mark();
        let mut tasks: Vec<Task> = Vec::new();
        for run in self.runs(place, blocks) {
            for (store, to) in self.stores[place].iter().zip(&slot.0) {
                let (device, store, to, after) =
                    (Arc::clone(&self.device), Arc::clone(store), to.clone(), after.clone());
                let range = run.start * bytes..run.end * bytes;
                tasks.push(Box::new(move |_| {
                    let store = store.read().unwrap_or_else(PoisonError::into_inner);
                    Ok(vec![device.load(&to, range.start as u64, &store[range], &after)])
                }));
            }
        }
        self.loader.begin(tasks)
    }

    /// Begins to save the new keys and values of the layer at `place`, which a kernel has just written to the
    /// slots of `places`.
    pub(crate) fn save(&self, place: usize, spans: &[SeqSpan], places: (&Buffer, usize)) {
        let state = &mut *self.state();
        let Some(held) = state.held.get_mut(&place) else { return };
        let mut blocks = Vec::new();
        for span in spans.iter().filter(|span| !span.new_rows().is_empty()) {
            let first = span.start + span.cached;
            let end = span.start + span.rows.len();
            let new = first / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
            blocks.extend(span.blocks[new].iter().map(|block| block.0));
        }
        held.blocks.extend(&blocks);
        if let Some(opened) = &mut state.opened {
            let HostLayer { heads, d, .. } = self.layers[place];
            opened.pack(&*self.device, (place, heads, d), places, (&held.slot.0[0], &blocks));
        }
        let bytes = self.block_bytes(place);
        state.stats.kv_saved_bytes += (self.options.parts() * blocks.len() * bytes) as u64;
        let after = self.device.mark();
        let mut tasks: Vec<Task> = Vec::new();
        for run in self.runs(place, blocks) {
            for (store, from) in self.stores[place].iter().zip(&held.slot.0) {
                let (device, store, from, after) =
                    (Arc::clone(&self.device), Arc::clone(store), from.clone(), after.clone());
                let range = run.start * bytes..run.end * bytes;
                tasks.push(Box::new(move |_| save(&*device, &from, &store, range, &after)));
            }
        }
        // Two saves of one block must not pass each other. Those of the last pass have long been done.
        for ticket in std::mem::take(&mut held.saving) {
            let _ = ticket.settle();
        }
        held.saving.push(self.loader.begin(tasks));
    }

    /// Takes a layer's slot back. Nothing reads or writes it afterwards.
    fn give_up(&self, held: Held) -> Slot {
        for ticket in held.loading {
            ticket.cancel();
            ticket.settle().iter().flatten().for_each(|mark| self.device.wait(mark));
        }
        for ticket in held.saving {
            // Only a lost device or a panic fails. Device and loader keep the fault.
            let _ = ticket.settle();
        }
        held.slot
    }

    /// Gives up all slots, so that the host's memory has all keys and values.
    fn flush(&self) {
        let state = &mut *self.state();
        let slots: Vec<Slot> = state.held.drain().map(|(_, held)| self.give_up(held)).collect();
        state.free.extend(slots);
        if let Some(opened) = &mut state.opened {
            opened.close();
        }
    }

    /// Copies a block in each layer.
    pub(crate) fn copy(&self, copies: &[BlockCopy]) {
        if copies.is_empty() {
            return;
        }
        self.flush();
        for (layer, stores) in self.layers.iter().zip(&self.stores) {
            let bytes = layer.block_bytes(self.options.packed);
            for store in stores {
                let mut store = lock_all(store);
                for copy in copies {
                    let from = copy.from.0 as usize * bytes;
                    store.copy_within(from..from + bytes, copy.to.0 as usize * bytes);
                }
            }
        }
    }

    /// Copies tokens of single heads, `(head, slot from, slot to)`, which `moves` returns for a layer of the
    /// model with so many heads. No slot is both read and written.
    pub(crate) fn keep(&self, moves: impl Fn(usize, usize) -> Vec<(usize, usize, usize)>) {
        self.flush();
        for (HostLayer { layer, heads, d, .. }, stores) in self.layers.iter().zip(&self.stores) {
            let mut stores: Vec<_> = stores.iter().map(lock_all).collect();
            let shape = (*heads, *d);
            for (head, from, to) in moves(*layer, *heads) {
                match (self.options.packed, &mut stores[..]) {
                    (Some(how), [packed]) => {
                        let words = |slot: usize| how.slot_words(shape, head, slot);
                        words(from).zip(words(to)).for_each(|(from, to)| move_word(packed, from, to));
                    }
                    (_, [keys, values]) => keep_f16(keys, values, shape, (head, from, to)),
                    (_, stores) => unreachable!("a layer of {} stores", stores.len()),
                }
            }
        }
    }
}

/// Copies a word to another place.
fn move_word(bytes: &mut [u8], from: usize, to: usize) {
    bytes.copy_within(4 * from..4 * from + 4, 4 * to);
}

/// Copies the key and the value of one token of one head.
fn keep_f16(
    keys: &mut [u8],
    values: &mut [u8],
    (heads, d): (usize, usize),
    (head, from, to): (usize, usize, usize),
) {
    let head_of = |slot: usize| slot / BLOCK_TOKENS * heads + head;
    for pair in 0..d / 2 {
        let key = |slot: usize| (head_of(slot) * d / 2 + pair) * BLOCK_TOKENS + slot % BLOCK_TOKENS;
        move_word(keys, key(from), key(to));
    }
    let value = |slot: usize| (head_of(slot) * BLOCK_TOKENS + slot % BLOCK_TOKENS) * 2 * d;
    values.copy_within(value(from)..value(from) + 2 * d, value(to));
}

/// Brings bytes of the GPU's memory to the same place of the host's.
fn save(
    device: &dyn Device,
    from: &Buffer,
    store: &Store,
    range: Range<usize>,
    after: &Mark,
) -> Result<Vec<Mark>, crate::weights::WeightError> {
    let mut bytes = vec![0; range.len()];
    device.save(from, range.start as u64, &mut bytes, after)?;
    lock_all(store)[range].copy_from_slice(&bytes);
    Ok(Vec::new())
}

impl Drop for HostKv {
    fn drop(&mut self) {
        self.flush();
    }
}

impl std::fmt::Debug for HostKv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostKv").field("layers", &self.layers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use baton_kernels_gpu::cases::HostDevice;

    use crate::kv::pool::BlockId;

    fn options(n_blocks: usize) -> HostKvOptions {
        HostKvOptions { pipeline: Pipeline::Performance, block_bytes: 1 << 20, n_blocks, packed: None }
    }

    #[test]
    fn a_layer_is_entered_while_the_one_before_is_saved() {
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(None));
        let loader = Arc::new(Loader::start(NonZeroUsize::MIN).unwrap());
        let layers = (0..4).map(|layer| HostLayer { layer, heads: 1, d: 32, window: None }).collect();
        let kv = HostKv::new(Arc::clone(&device), Arc::clone(&loader), layers, options(4)).unwrap();
        let none = (&device.alloc(4), 0);
        // The first tokens of a sequence: nothing is loaded.
        let spans = [SeqSpan { rows: 0..3, start: 0, evicted: 0, cached: 0, blocks: vec![BlockId(0)] }];
        kv.enter(0, &spans, false);
        // Holds the only thread, so that no save ends. It goes on by itself only if nobody lets it.
        let (go_on, gate) = mpsc::channel::<()>();
        let is_stuck = Arc::new(AtomicBool::new(false));
        let stuck = Arc::clone(&is_stuck);
        let task: Task = Box::new(move |_| {
            stuck.store(gate.recv_timeout(Duration::from_secs(20)).is_err(), Ordering::SeqCst);
            Ok(Vec::new())
        });
        let held = loader.begin(vec![task]);
        kv.save(0, &spans, none);
        kv.enter(1, &spans, false);
        assert!(!is_stuck.load(Ordering::SeqCst), "the second layer waited for the save of the first");
        go_on.send(()).unwrap();
        held.settle().unwrap();
        kv.save(1, &spans, none);
        // Two layers later the slot is used again.
        kv.enter(2, &spans, false);
        let places = |kv: &HostKv| {
            let mut places: Vec<usize> = kv.state().held.keys().copied().collect();
            places.sort_unstable();
            places
        };
        assert_eq!(places(&kv), [1, 2, 3]);
        kv.enter(3, &spans, false);
        assert_eq!(places(&kv), [0, 2, 3]);
    }

    #[test]
    fn a_cache_that_no_memory_holds_is_an_error() {
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(None));
        let loader = Arc::new(Loader::start(NonZeroUsize::MIN).unwrap());
        for n_blocks in [1 << 40, usize::MAX] {
            let layers = vec![HostLayer { layer: 0, heads: 8, d: 128, window: None }];
            let made = HostKv::new(Arc::clone(&device), Arc::clone(&loader), layers, options(n_blocks));
            assert!(matches!(made, Err(OffloadError::HostMemory { .. })), "{n_blocks} blocks: {made:?}");
        }
    }

    #[test]
    fn blocks_that_follow_each_other_move_together() {
        assert_eq!(runs(vec![5, 3, 4, 9, 3], 8), [3..6, 9..10]);
        assert_eq!(runs(vec![1, 2, 3, 4, 5], 2), [1..3, 3..5, 5..6]);
        assert!(runs(vec![], 2).is_empty());
    }
}
