//! Keys and values in the host's memory, for a GPU that computes their layers.
//!
//! Blocks have the same ids and the same layout as in the GPU's memory. A few slots of the GPU hold one layer
//! each. When a layer is computed, the blocks that its queries see are loaded into its slot. Those of the
//! next layer are loaded meanwhile. New keys and values are saved behind the kernel that writes them. A slot
//! is used again when its saves are done. With three slots that is asked a layer later at the earliest (PIPO,
//! section 3.1).

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use baton_kernels_gpu::ops::KvBuffers;
use baton_kernels_gpu::{Buffer, Device, Mark};
use memmap2::MmapMut;

use super::loader::{Loader, Task, Ticket};
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
    fn block_bytes(&self) -> usize {
        KvBuffers::block_bytes(self.heads, self.d) as usize
    }

    /// Whether a query at `position` or later sees a key of the block that begins at `first`.
    fn sees_block(&self, position: usize, first: usize) -> bool {
        self.window.is_none_or(|window| window.sees_block(position, first))
    }
}

/// The keys, or the values, of all blocks of a layer. The system gives memory as they are written.
type Store = Arc<RwLock<MmapMut>>;

/// How keys and values go to the host's memory and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostKvOptions {
    pub(crate) pipeline: Pipeline,
    /// Bytes that one thread moves at once.
    pub(crate) block_bytes: usize,
    pub(crate) n_blocks: usize,
}

/// The keys and values of some layers.
pub(crate) struct HostKv {
    device: Arc<dyn Device>,
    loader: Arc<Loader>,
    options: HostKvOptions,
    /// In the order of a pass.
    layers: Vec<HostLayer>,
    /// Keys and values of each.
    stores: Vec<[Store; 2]>,
    state: Mutex<State>,
}

/// Keys and values in the GPU's memory, large enough for any layer.
struct Slot([Buffer; 2]);

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
        let bytes = |layer: &HostLayer| layer.block_bytes().saturating_mul(options.n_blocks);
        let store = |layer| {
            let bytes = bytes(layer);
            let named = |err| OffloadError::HostMemory { bytes, err };
            Ok::<Store, OffloadError>(Arc::new(RwLock::new(MmapMut::map_anon(bytes).map_err(named)?)))
        };
        let stores = layers.iter().map(|layer| Ok::<_, OffloadError>([store(layer)?, store(layer)?]));
        let stores = stores.collect::<Result<Vec<[Store; 2]>, _>>()?;
        let largest = layers.iter().map(bytes).max().unwrap_or(0) as u64;
        let slots = options.pipeline.kv_slots();
        let slot = || Slot(std::array::from_fn(|_| device.alloc(largest)));
        let free: Vec<Slot> = (0..slots).map(|_| slot()).collect();
        if let Some(fault) = device.fault() {
            return Err(fault.into());
        }
        let stats = OffloadStats {
            kv_host_bytes: layers.iter().map(|layer| 2 * bytes(layer) as u64).sum(),
            kv_slot_bytes: slots * 2 * largest,
            ..OffloadStats::default()
        };
        let state = Mutex::new(State { free, stats, ..State::default() });
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
        let Slot([keys, values]) = &held.slot;
        KvBuffers { keys: keys.clone(), values: values.clone(), heads, d }
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
                state.stats.kv_loaded_bytes += 2 * (missing.len() * self.layers[place].block_bytes()) as u64;
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
        runs(blocks, (self.options.block_bytes / self.layers[place].block_bytes()).max(1))
    }

    fn load(&self, place: usize, slot: &Slot, blocks: Vec<u32>) -> Arc<Ticket> {
        let bytes = self.layers[place].block_bytes();
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

    /// Begins to save the new keys and values of the layer at `place`, which a kernel has just written.
    pub(crate) fn save(&self, place: usize, spans: &[SeqSpan]) {
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
        let bytes = self.layers[place].block_bytes();
        state.stats.kv_saved_bytes += 2 * (blocks.len() * bytes) as u64;
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
    }

    /// Copies a block in each layer.
    pub(crate) fn copy(&self, copies: &[BlockCopy]) {
        if copies.is_empty() {
            return;
        }
        self.flush();
        for (layer, stores) in self.layers.iter().zip(&self.stores) {
            let bytes = layer.block_bytes();
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
        for (HostLayer { layer, heads, d, .. }, [keys, values]) in self.layers.iter().zip(&self.stores) {
            let (mut keys, mut values) = (lock_all(keys), lock_all(values));
            for (head, from, to) in moves(*layer, *heads) {
                for pair in 0..d / 2 {
                    let key = |slot: usize| {
                        let row = (slot / BLOCK_TOKENS * heads + head) * d / 2 + pair;
                        4 * (row * BLOCK_TOKENS + slot % BLOCK_TOKENS)
                    };
                    keys.copy_within(key(from)..key(from) + 4, key(to));
                }
                let value = |slot: usize| {
                    let head = slot / BLOCK_TOKENS * heads + head;
                    (head * BLOCK_TOKENS + slot % BLOCK_TOKENS) * 2 * d
                };
                values.copy_within(value(from)..value(from) + 2 * d, value(to));
            }
        }
    }
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

    #[test]
    fn a_layer_is_entered_while_the_one_before_is_saved() {
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(None));
        let loader = Arc::new(Loader::start(NonZeroUsize::MIN).unwrap());
        let layers = (0..4).map(|layer| HostLayer { layer, heads: 1, d: 32, window: None }).collect();
        let options = HostKvOptions { pipeline: Pipeline::Performance, block_bytes: 1 << 20, n_blocks: 4 };
        let kv = HostKv::new(device, Arc::clone(&loader), layers, options).unwrap();
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
        kv.save(0, &spans);
        kv.enter(1, &spans, false);
        assert!(!is_stuck.load(Ordering::SeqCst), "the second layer waited for the save of the first");
        go_on.send(()).unwrap();
        held.settle().unwrap();
        kv.save(1, &spans);
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
            let options = HostKvOptions { pipeline: Pipeline::Performance, block_bytes: 1 << 20, n_blocks };
            let made = HostKv::new(Arc::clone(&device), Arc::clone(&loader), layers, options);
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
