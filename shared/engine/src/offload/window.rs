//! Which units are in the GPU's memory, or on their way there, while a pass goes through the layers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use baton_kernels_cpu::Matrix;
use baton_kernels_gpu::{Device, DeviceMatrix};

use super::blocks::{Block, From};
use super::loader::{Loader, Task, Ticket};
use super::placement::{KvSizes, Placement, Sizes};
use super::slots::{Slot, SlotShape};
use super::units::Unit;
use super::{Offload, OffloadError, OffloadStats, Pipeline};
use crate::backend::gpu::{MatrixLoads, MatrixPlace, ResidentMatrices};
use crate::model::Model;
use crate::weights::uses::Uses;
use crate::weights::{InputWeights, MatrixAt, OutputWeights, Part, PartWeights, WeightError, WeightSource};

/// Weights of a GPU's layers, of which some are loaded for every pass.
pub(crate) struct Offloaded {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    matrices: ResidentMatrices,
    pipeline: Pipeline,
    /// The layer that a pass begins with.
    first_layer: Option<usize>,
    /// Bytes that one thread loads at once, in whole words.
    block_bytes: usize,
    /// In the order of a pass, without experts.
    units: Vec<Unit>,
    index: HashMap<MatrixPlace, usize>,
    stays: Vec<bool>,
    /// Of each unit, the kind of its slots.
    kinds: Vec<usize>,
    /// How many slots of each kind there are.
    slots: [u64; 2],
    from: Arc<From>,
    loader: Arc<Loader>,
    state: Mutex<State>,
}

/// A unit that is in a slot, or on its way there.
struct Held {
    slot: Slot,
    ticket: Arc<Ticket>,
    /// The matrices, for who asks by their place in the host's memory.
    matrices: Vec<(MatrixPlace, Arc<DeviceMatrix>)>,
    is_ready: bool,
    /// Whether it is about to be used; for experts.
    is_pinned: bool,
}

#[derive(Default)]
struct State {
    /// Slots for any unit, and for small units.
    free: [Vec<Slot>; 2],
    held: HashMap<usize, Held>,
    expert_free: Vec<Slot>,
    experts: HashMap<(usize, usize), Held>,
    /// The expert that is computed.
    current: Option<(usize, usize)>,
    uses: Uses<(usize, usize)>,
    stats: OffloadStats,
}

/// What fits, and what it takes.
struct Shapes {
    /// Slots for any unit, and for small units.
    units: [SlotShape; 2],
    experts: SlotShape,
}

/// Units of layers, and what of them stays.
pub(crate) struct Planned {
    first_layer: Option<usize>,
    units: Vec<Unit>,
    shapes: Shapes,
    placement: Placement,
}

impl Planned {
    /// Chooses what stays within `room` bytes. There are the weights of these layers, and keys and values.
    /// There may be the projection to logits.
    ///
    /// # Errors
    /// [`OffloadError::NoRoom`], [`OffloadError::Weights`].
    pub(crate) fn new(
        model: &Model,
        device: &dyn Device,
        (layers, kv, output): (&[usize], KvSizes, Option<u64>),
        options: &Offload,
        room: u64,
    ) -> Result<Self, OffloadError> {
        let (units, shapes) = units(model, device, layers)?;
        let weights = model.mapped_weights();
        let mixtures = layers.iter().filter(|layer| weights.has_experts(**layer)).count();
        let of_layer = model.config().experts.map_or([0; 2], |experts| [experts.count, experts.used]);
        let [experts, experts_used] = of_layer.map(|of_layer| (of_layer * mixtures) as u64);
        let in_memory = model.streamed().map(|weights| weights.budget_bytes());
        let sizes = Sizes {
            units: units.iter().map(Unit::bytes).collect(),
            slots: shapes.units.each_ref().map(SlotShape::bytes),
            expert_slot: shapes.experts.bytes(),
            experts,
            experts_used,
            kv,
            output,
            in_memory,
        };
        // A model that is read from the disk leaves the host no memory for keys and values.
        let needed = || layers.iter().map(|layer| weights.layer_bytes(*layer)).sum::<u64>();
        let host_has_room = model
            .streamed()
            .is_none_or(|streamed| needed() + weights.output_bytes() <= streamed.budget_bytes());
        let placed = sizes.place(room, options, host_has_room);
        let placement = placed.map_err(|need| OffloadError::NoRoom { need, room })?;
        Ok(Self { first_layer: layers.first().copied(), units, shapes, placement })
    }

    /// Returns what stays.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }
}

impl Offloaded {
    /// Allocates slots, and lets a loader's threads fill them.
    ///
    /// # Errors
    /// [`OffloadError`] if the file cannot be opened, or the device has a fault.
    pub(crate) fn new(
        model: Arc<Model>,
        device: Arc<dyn Device>,
        matrices: ResidentMatrices,
        (loader, options): (Arc<Loader>, &Offload),
        planned: Planned,
    ) -> Result<Self, OffloadError> {
        let Planned { first_layer, units, shapes, placement } = planned;
        let Placement { pipeline, stays, slots, expert_slots, .. } = placement;
        let bytes = |of: bool| {
            let chosen = units.iter().zip(&stays).filter(|(_, stays)| **stays || !of);
            chosen.map(|(unit, _)| unit.bytes()).sum()
        };
        let kinds = units.iter().map(|unit| usize::from(slots[1] > 0 && shapes.is_small(unit, &*device)));
        let kinds = kinds.collect();
        let free = |kind: usize| (0..slots[kind]).map(|_| shapes.units[kind].slot(&*device)).collect();
        let unit_slot_bytes: u64 = (0..2).map(|kind| slots[kind] * shapes.units[kind].bytes()).sum();
        let state = State {
            free: [free(0), free(1)],
            expert_free: (0..expert_slots).map(|_| shapes.experts.slot(&*device)).collect(),
            stats: OffloadStats {
                pipeline,
                weight_bytes: bytes(false),
                resident_bytes: bytes(true),
                slot_bytes: unit_slot_bytes + expert_slots * shapes.experts.bytes(),
                expert_slots: expert_slots as usize,
                expert_slot_bytes: shapes.experts.bytes(),
                ..OffloadStats::default()
            },
            ..State::default()
        };
        if let Some(fault) = device.fault() {
            return Err(fault.into());
        }
        let from = Arc::new(From::open(&model).map_err(OffloadError::Open)?);
        let gguf = model.mapped_weights().file();
        let place = |unit: &Unit| MatrixPlace::of(unit.matrices[0].bytes(gguf));
        let index = units.iter().enumerate().map(|(at, unit)| (place(unit), at)).collect();
        let state = Mutex::new(state);
        let block_bytes = options.block_bytes.get().next_multiple_of(4);
        Ok(Self {
            model,
            device,
            matrices,
            pipeline,
            first_layer,
            block_bytes,
            units,
            index,
            stays,
            kinds,
            slots,
            from,
            loader,
            state,
        })
    }

    /// Returns what was done so far.
    pub(crate) fn stats(&self) -> OffloadStats {
        OffloadStats { read_bytes: self.from.read_bytes(), ..self.state().stats }
    }

    /// Returns the matrices that are loaded for each pass, without experts.
    pub(crate) fn loaded(&self) -> Vec<MatrixAt> {
        let others = self.units.iter().zip(&self.stays).filter(|(_, stays)| !**stays);
        others.flat_map(|(unit, _)| unit.matrices.iter().copied()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the units that should be in slots while `at` is computed, in the order of their use.
    fn wanted(&self, at: usize) -> Vec<usize> {
        let following = (1..=self.units.len()).map(|step| (at + step) % self.units.len());
        let streamed = std::iter::once(at).chain(following).filter(|at| !self.stays[*at]);
        let is_ahead = self.pipeline != Pipeline::Synchronous;
        let mut left = if is_ahead || !self.stays[at] { self.slots } else { [0; 2] };
        let mut wanted: Vec<usize> = Vec::new();
        for at in streamed {
            let left = &mut left[self.kinds[at]];
            if *left == 0 || wanted.contains(&at) {
                break;
            }
            *left -= 1;
            wanted.push(at);
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
                state.free[self.kinds[at]].push(self.give_up(held));
            }
        }
        for at in wanted {
            if !state.held.contains_key(&at) {
                let slot =
                    state.free[self.kinds[at]].pop().expect("no more units are wanted than there are slots");
                let held = self.begin(&self.units[at], slot);
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
            state.free[self.kinds[at]].push(self.give_up(held));
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
        held.is_pinned = true;
        state.uses.count(place);
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
            let ranked = idle.map(|(place, _)| (state.uses.rank(place), *place));
            let least = ranked.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let Some((_, least)) = least else { return Ok(false) };
            if let Some(held) = state.experts.remove(&least) {
                state.expert_free.push(self.give_up(held));
            }
        }
        let Some(slot) = state.expert_free.pop() else { return Ok(false) };
        state.stats.loaded_bytes += unit.bytes();
        state.stats.expert_bytes += unit.bytes();
        state.stats.expert_loads += 1;
        state.experts.insert(place, self.begin(&unit, slot));
        Ok(true)
    }

    /// Begins to load a unit into a slot, after everything that the device was told before.
    fn begin(&self, unit: &Unit, slot: Slot) -> Held {
        let pieces = unit.pieces(&*self.device);
        let gguf = self.model.mapped_weights().file();
        let after = self.device.mark();
        let mut tasks: Vec<Task> = Vec::new();
        for (number, (matrix, pieces)) in unit.matrices.iter().zip(&pieces).enumerate() {
            for (at, piece) in pieces.iter().enumerate() {
                for first in piece.bytes.clone().step_by(self.block_bytes) {
                    let block = Block {
                        matrix: *matrix,
                        bytes: first..piece.bytes.end.min(first + self.block_bytes),
                        to: slot.buffer(number, at).clone(),
                        to_at: (first - piece.bytes.start) as u64,
                    };
                    tasks.push(block.load(&self.device, &self.from, &after));
                }
            }
        }
        let places = unit.matrices.iter().map(|at| MatrixPlace::of(at.bytes(gguf)));
        let matrices = slot.matrices(unit, &pieces).into_iter().map(Arc::new);
        let matrices = places.zip(matrices).collect();
        let ticket = self.loader.begin(tasks);
        Held { slot, ticket, matrices, is_ready: false, is_pinned: true }
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

impl Shapes {
    /// Whether a unit takes at most a third of a slot for any unit.
    fn is_small(&self, unit: &Unit, device: &dyn Device) -> bool {
        let mut own = SlotShape::default();
        own.include(&unit.pieces(device));
        3 * own.bytes() <= self.units[0].bytes()
    }
}

/// Returns the units of layers, and the shapes of their slots.
fn units(model: &Model, device: &dyn Device, layers: &[usize]) -> Result<(Vec<Unit>, Shapes), WeightError> {
    let weights = model.mapped_weights();
    let mut shapes = Shapes { units: Default::default(), experts: SlotShape::default() };
    let mut units = Vec::new();
    for &layer in layers {
        for unit in Unit::of_layer(weights, layer)? {
            shapes.units[0].include(&unit.pieces(device));
            units.push(unit);
        }
        if weights.has_experts(layer) {
            shapes.experts.include(&Unit::of_expert(weights, layer, 0)?.pieces(device));
        }
    }
    for unit in &units {
        if shapes.is_small(unit, device) {
            shapes.units[1].include(&unit.pieces(device));
        }
    }
    Ok((units, shapes))
}

impl WeightSource for Offloaded {
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        match part {
            Part::Expert(expert) => self.enter_expert(layer, expert)?,
            Part::Attention => {
                // No layer of a GPU that loads is the CPU's, whose weights would begin the pass.
                if self.first_layer == Some(layer)
                    && let Some(weights) = self.model.streamed()
                {
                    weights.begin_pass();
                }
                let state = &mut *self.state();
                // Each layer is a part of a pass.
                state.uses.pass(1.0 / self.model.config().n_layers as f64);
                // Pins of a step that was cancelled.
                state.experts.values_mut().for_each(|held| held.is_pinned = false);
            }
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
        if self.pipeline == Pipeline::Synchronous {
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
        // Keys and values that were not moved are noticed here, at the next product.
        self.loader.intact()?;
        self.index.get(&place).map_or(Ok(()), |at| self.enter(*at))
    }
}

impl Drop for Offloaded {
    /// Nothing writes to the slots afterwards.
    fn drop(&mut self) {
        let state = &mut *self.state();
        let units = std::mem::take(&mut state.held).into_values();
        let experts = std::mem::take(&mut state.experts).into_values();
        for held in units.chain(experts) {
            self.give_up(held);
        }
    }
}

impl std::fmt::Debug for Offloaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offloaded").field("units", &self.units.len()).finish_non_exhaustive()
    }
}
