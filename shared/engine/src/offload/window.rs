//! Which units are in the GPU's memory, or on their way there, while a pass goes through the layers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use baton_kernels_cpu::Matrix;
use baton_kernels_gpu::{Device, DeviceMatrix};

use super::loader::{Block, From, Loader, Ticket};
use super::placement::choose;
use super::slots::{Slot, SlotShape};
use super::units::Unit;
use super::{Offload, OffloadError, OffloadStats, Pipeline};
use crate::backend::gpu::{MatrixLoads, MatrixPlace, ResidentMatrices};
use crate::model::Model;
use crate::weights::{InputWeights, OutputWeights, Part, PartWeights, WeightError, WeightSource};

/// Experts that have slots at least: one is computed while another is loaded.
const EXPERT_SLOTS_MIN: u64 = 2;

/// Weights of a GPU's layers, of which some are loaded for every pass.
pub(crate) struct Offloaded {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    matrices: ResidentMatrices,
    options: Offload,
    /// In the order of a pass, without experts.
    units: Vec<Unit>,
    index: HashMap<MatrixPlace, usize>,
    stays: Vec<bool>,
    // Ends its threads before the memory that they write is given back.
    loader: Loader,
    state: Mutex<State>,
}

/// A unit that is in a slot, or on its way there.
struct Held {
    slot: Slot,
    ticket: Arc<Ticket>,
    /// The matrices, for who asks by their place in the host's memory.
    matrices: Vec<(MatrixPlace, Arc<DeviceMatrix>)>,
    is_ready: bool,
    /// When it was last needed; for experts.
    used_at: u64,
    /// Whether it is about to be used; for experts.
    is_pinned: bool,
}

#[derive(Default)]
struct State {
    free: Vec<Slot>,
    held: HashMap<usize, Held>,
    expert_free: Vec<Slot>,
    experts: HashMap<(usize, usize), Held>,
    /// The expert that is computed.
    current: Option<(usize, usize)>,
    now: u64,
    stats: OffloadStats,
}

/// What fits, and what it takes.
struct Shapes {
    units: SlotShape,
    experts: SlotShape,
}

impl Offloaded {
    /// Chooses what stays within `room` bytes, allocates slots, and starts the threads.
    ///
    /// # Errors
    /// [`OffloadError`] if there is no room for the slots, the file cannot be read or threads not be started,
    /// or the device has a fault.
    pub(crate) fn new(
        model: Arc<Model>,
        device: Arc<dyn Device>,
        matrices: ResidentMatrices,
        layers: &[usize],
        options: &Offload,
        room: u64,
    ) -> Result<Self, OffloadError> {
        let (units, shapes) = units(&model, &*device, layers)?;
        let sizes: Vec<u64> = units.iter().map(Unit::bytes).collect();
        let all: u64 = sizes.iter().sum();
        let expert_bytes = shapes.experts.bytes();
        let experts_min = if expert_bytes > 0 { EXPERT_SLOTS_MIN * expert_bytes } else { 0 };
        let slots = options.pipeline.slots() as u64;
        let within = room.checked_sub(experts_min);
        let resident = options.resident_bytes.unwrap_or(u64::MAX);
        let (stays, slots) = match within {
            Some(within) if all <= within.min(resident) => (vec![true; units.len()], 0),
            _ => {
                let need = slots * shapes.units.bytes() + experts_min;
                let room = room.checked_sub(need).ok_or(OffloadError::NoRoom { need, room })?;
                (choose(&sizes, room.min(resident)), slots)
            }
        };
        let resident_bytes =
            sizes.iter().zip(&stays).filter(|(_, stays)| **stays).map(|(size, _)| size).sum();
        let rest: u64 = room - slots * shapes.units.bytes() - resident_bytes;
        let n_experts =
            rest.min(resident.saturating_sub(resident_bytes).max(experts_min)).checked_div(expert_bytes);
        let most = (model.config().experts.map_or(0, |experts| experts.count) * layers.len()) as u64;
        let expert_slots = n_experts.unwrap_or(0).min(most);
        let state = State {
            free: (0..slots).map(|_| shapes.units.slot(&*device)).collect(),
            expert_free: (0..expert_slots).map(|_| shapes.experts.slot(&*device)).collect(),
            stats: OffloadStats {
                weight_bytes: all,
                resident_bytes,
                slot_bytes: slots * shapes.units.bytes() + expert_slots * expert_bytes,
                expert_slots: expert_slots as usize,
                ..OffloadStats::default()
            },
            ..State::default()
        };
        if let Some(fault) = device.fault() {
            return Err(fault.into());
        }
        let from = from(&model).map_err(OffloadError::Open)?;
        let loader =
            Loader::start(Arc::clone(&device), from, options.threads).map_err(OffloadError::Threads)?;
        let gguf = model.mapped_weights().file();
        let place = |unit: &Unit| MatrixPlace::of(unit.matrices[0].bytes(gguf));
        let index = units.iter().enumerate().map(|(at, unit)| (place(unit), at)).collect();
        let state = Mutex::new(state);
        Ok(Self { model, device, matrices, options: options.clone(), units, index, stays, loader, state })
    }

    /// Returns what was done so far.
    pub(crate) fn stats(&self) -> OffloadStats {
        self.state().stats
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the units that should be in slots while `at` is computed, in the order of their use.
    fn wanted(&self, at: usize) -> Vec<usize> {
        let following = (1..=self.units.len()).map(|step| (at + step) % self.units.len());
        let streamed = std::iter::once(at).chain(following).filter(|at| !self.stays[*at]);
        let is_ahead = self.options.pipeline != Pipeline::Synchronous;
        let slots = if is_ahead || !self.stays[at] { self.options.pipeline.slots() } else { 0 };
        let mut wanted: Vec<usize> = Vec::new();
        for at in streamed.take(slots) {
            if !wanted.contains(&at) {
                wanted.push(at);
            }
        }
        wanted
    }

    /// Makes a unit ready, and begins to load what follows it.
    fn enter(&self, at: usize) -> Result<(), WeightError> {
        let state = &mut *self.state();
        let wanted = self.wanted(at);
        let over: Vec<usize> = state.held.keys().copied().filter(|held| !wanted.contains(held)).collect();
        for at in over {
            if let Some(held) = state.held.remove(&at) {
                state.free.push(self.give_up(held));
            }
        }
        for at in wanted {
            if !state.held.contains_key(&at) {
                let slot = state.free.pop().expect("there are as many slots as wanted units");
                let held = self.begin(&self.units[at], slot, state.now);
                state.stats.loaded_bytes += self.units[at].bytes();
                state.held.insert(at, held);
            }
        }
        let Some(held) = state.held.get_mut(&at) else { return Ok(()) };
        let begun = Instant::now();
        let ready = self.make_ready(held);
        state.stats.waited += begun.elapsed();
        if ready.is_err()
            && let Some(held) = state.held.remove(&at)
        {
            state.free.push(self.give_up(held));
        }
        ready
    }

    /// Makes an expert ready.
    fn enter_expert(&self, layer: usize, expert: usize) -> Result<(), WeightError> {
        let state = &mut *self.state();
        if let Some(before) = state.current.take()
            && let Some(before) = state.experts.get_mut(&before)
        {
            before.is_pinned = false;
        }
        state.now += 1;
        let place = (layer, expert);
        let is_held = state.experts.contains_key(&place);
        if !is_held && !self.begin_expert(state, place)? {
            // Hints that nobody followed hold all slots.
            state.experts.values_mut().for_each(|held| held.is_pinned = false);
            self.begin_expert(state, place)?;
        }
        state.current = Some(place);
        let held = state.experts.get_mut(&place).expect("there are two slots at least, and none is pinned");
        state.stats.expert_hits += u64::from(held.is_ready);
        (held.used_at, held.is_pinned) = (state.now, true);
        let begun = Instant::now();
        let ready = self.make_ready(held);
        state.stats.waited += begun.elapsed();
        if ready.is_err()
            && let Some(held) = state.experts.remove(&place)
        {
            state.expert_free.push(self.give_up(held));
        }
        ready
    }

    /// Begins to load an expert that is not held. Returns whether there was a slot for it.
    fn begin_expert(&self, state: &mut State, place: (usize, usize)) -> Result<bool, WeightError> {
        let weights = self.model.mapped_weights();
        let unit = Unit::of_expert(weights, place.0, place.1)?;
        if state.expert_free.is_empty() {
            let idle = state.experts.iter().filter(|(_, held)| !held.is_pinned);
            let Some(oldest) =
                idle.min_by_key(|(place, held)| (held.used_at, **place)).map(|(place, _)| *place)
            else {
                return Ok(false);
            };
            if let Some(held) = state.experts.remove(&oldest) {
                state.expert_free.push(self.give_up(held));
            }
        }
        let Some(slot) = state.expert_free.pop() else { return Ok(false) };
        state.stats.loaded_bytes += unit.bytes();
        state.stats.expert_bytes += unit.bytes();
        state.stats.expert_loads += 1;
        state.experts.insert(place, self.begin(&unit, slot, state.now));
        Ok(true)
    }

    /// Begins to load a unit into a slot, after everything that the device was told before.
    fn begin(&self, unit: &Unit, slot: Slot, now: u64) -> Held {
        let pieces = unit.pieces(&*self.device);
        let gguf = self.model.mapped_weights().file();
        let block_bytes = self.options.block_bytes.get().next_multiple_of(4);
        let mut blocks = Vec::new();
        for (number, (matrix, pieces)) in unit.matrices.iter().zip(&pieces).enumerate() {
            for (at, piece) in pieces.iter().enumerate() {
                for first in piece.bytes.clone().step_by(block_bytes) {
                    blocks.push(Block {
                        matrix: *matrix,
                        bytes: first..piece.bytes.end.min(first + block_bytes),
                        to: slot.buffer(number, at).clone(),
                        to_at: (first - piece.bytes.start) as u64,
                    });
                }
            }
        }
        let places = unit.matrices.iter().map(|at| MatrixPlace::of(at.bytes(gguf)));
        let matrices = slot.matrices(unit, &pieces).into_iter().map(Arc::new);
        let matrices = places.zip(matrices).collect();
        let ticket = self.loader.load(blocks, &self.device.mark());
        Held { slot, ticket, matrices, is_ready: false, used_at: now, is_pinned: true }
    }

    /// Waits for a unit, and lets the backend find it.
    fn make_ready(&self, held: &mut Held) -> Result<(), WeightError> {
        if held.is_ready {
            return Ok(());
        }
        for mark in held.ticket.settle()? {
            self.device.wait(&mark);
        }
        self.matrices.add(&held.matrices);
        held.is_ready = true;
        Ok(())
    }

    /// Takes a unit's slot back. Nothing writes to it afterwards.
    fn give_up(&self, held: Held) -> Slot {
        if held.is_ready {
            self.matrices.remove(&held.matrices);
        } else {
            held.ticket.cancel();
            // An error of a unit that nobody needs is none. Later commands may be given this memory.
            held.ticket.settle().iter().flatten().for_each(|mark| self.device.wait(mark));
        }
        held.slot
    }
}

/// Returns the units of layers, and the shapes of their slots.
fn units(model: &Model, device: &dyn Device, layers: &[usize]) -> Result<(Vec<Unit>, Shapes), WeightError> {
    let weights = model.mapped_weights();
    let mut shapes = Shapes { units: SlotShape::default(), experts: SlotShape::default() };
    let mut units = Vec::new();
    for &layer in layers {
        for unit in Unit::of_layer(weights, layer)? {
            shapes.units.include(&unit.pieces(device));
            units.push(unit);
        }
        if weights.has_experts(layer) {
            shapes.experts.include(&Unit::of_expert(weights, layer, 0)?.pieces(device));
        }
    }
    Ok((units, shapes))
}

/// Returns where loads take their bytes: from memory, or from the disk if the model does not fit there.
fn from(model: &Model) -> std::io::Result<From> {
    let gguf = model.mapped_weights().file();
    match (model.streamed(), gguf.part_paths()) {
        (Some(_), Some(paths)) => {
            let files = paths.into_iter().map(crate::weights::direct::DirectFile::open);
            Ok(From::Disk(files.collect::<Result<_, _>>()?))
        }
        _ => Ok(From::Memory(Arc::clone(gguf))),
    }
}

impl WeightSource for Offloaded {
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        match part {
            Part::Expert(expert) => self.enter_expert(layer, expert)?,
            // Pins of a step that was cancelled.
            Part::Attention => self.state().experts.values_mut().for_each(|held| held.is_pinned = false),
            Part::Ffn => {}
        }
        self.model.mapped_weights().stored_part(layer, part)
    }

    fn embedding(&self) -> Result<Matrix<'_>, WeightError> {
        self.model.mapped_weights().embedding()
    }

    fn inputs(&self) -> Result<Option<InputWeights<'_>>, WeightError> {
        self.model.mapped_weights().inputs()
    }

    fn output(&self) -> Result<OutputWeights<'_>, WeightError> {
        self.model.mapped_weights().output()
    }

    /// Begins to load an expert; everything else is known beforehand.
    fn hint(&self, layer: usize, part: Part) {
        let Part::Expert(expert) = part else { return };
        if self.options.pipeline == Pipeline::Synchronous {
            return;
        }
        let state = &mut *self.state();
        if let Some(held) = state.experts.get_mut(&(layer, expert)) {
            held.is_pinned = true;
            return;
        }
        // An expert that does not exist is refused when it is acquired. Without a slot it is loaded then.
        let _ = self.begin_expert(state, (layer, expert));
    }
}

impl MatrixLoads for Offloaded {
    fn ready(&self, place: MatrixPlace) -> Result<(), WeightError> {
        self.index.get(&place).map_or(Ok(()), |at| self.enter(*at))
    }
}

impl Drop for Offloaded {
    fn drop(&mut self) {
        let state = &mut *self.state();
        let held: Vec<Held> = state
            .held
            .drain()
            .map(|(_, held)| held)
            .chain(state.experts.drain().map(|(_, held)| held))
            .collect();
        let slots: Vec<Slot> = held.into_iter().map(|held| self.give_up(held)).collect();
        state.free.extend(slots);
    }
}

impl std::fmt::Debug for Offloaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offloaded").field("units", &self.units.len()).finish_non_exhaustive()
    }
}
