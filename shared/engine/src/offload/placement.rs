//! What stays in the GPU's memory: weights, keys and values, and the projection to logits.
//!
//! PIPO chooses by its Eq. 1 and Appendix B: one tier for all weights, and the pipeline whose peak fits. Here
//! each tier takes a part. What is best is predicted in seconds of a pass if rates were measured. Else it is
//! counted in bytes that move for a pass:
//! - A weight that does not stay is loaded once for each pass.
//! - Keys and values in the host's memory are loaded as far as the context is used, say half of it. They need
//!   slots for a few layers only, and packed ones need memory to be opened in.
//!
//! So weights come first, unless the host has no memory for keys and values. What remains takes the keys and
//! values of some layers. The projection to logits takes room that weights could have. It stays if it can, or
//! if the CPU would take longer for it than the GPU for the loads that it causes.

use std::num::NonZeroU64;

use super::{KvHome, MoveRates, Offload, Pipeline};

/// The share of the context that is expected to be used, in percent.
const CONTEXT_USED_PERCENT: u64 = 50;

/// Experts that have slots at least: one is computed while another is loaded.
const EXPERT_SLOTS_MIN: u64 = 2;

/// Bytes of keys and values.
#[derive(Debug, Clone, Default)]
pub(crate) struct KvSizes {
    /// In the GPU's memory, of each layer that has its own.
    pub(crate) on_gpu: Vec<u64>,
    /// Of the same layers in the host's memory, or in a slot.
    pub(crate) on_host: Vec<u64>,
    /// Of the memory that packed layers are opened in; 0 if they are not packed.
    pub(crate) opened: u64,
}

/// What is placed, in bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    /// Units in the order of a pass, without experts.
    pub(super) units: Vec<u64>,
    /// A slot for any unit, and one for small units; 0 if there are none.
    pub(super) slots: [u64; 2],
    /// A slot for any expert; 0 if there are none.
    pub(super) expert_slot: u64,
    /// Experts of all layers, and those among them that a token uses.
    pub(super) experts: u64,
    pub(super) experts_used: u64,
    /// Keys and values.
    pub(super) kv: KvSizes,
    /// The projection to logits; `None` if the CPU computes it anyway.
    pub(super) output: Option<u64>,
    /// Weights that the host's memory holds at most; `None` if it holds all.
    pub(super) in_memory: Option<u64>,
}

/// What stays where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) pipeline: Pipeline,
    /// Units that stay in the GPU's memory.
    pub(crate) stays: Vec<bool>,
    /// Slots of units and of small units, 0 if all stay.
    pub(crate) slots: [u64; 2],
    pub(crate) expert_slots: u64,
    /// Layers of [`KvSizes`] whose keys and values stay in the GPU's memory.
    pub(crate) kv_stays: Vec<bool>,
    /// Slots of a layer's keys and values, 0 if all stay.
    pub(crate) kv_slots: u64,
    /// Whether the projection to logits stays in the GPU's memory.
    pub(crate) output: bool,
}

impl Sizes {
    /// Returns the placement within `room` bytes that costs the least.
    ///
    /// # Errors
    /// The bytes that are needed at least.
    pub(super) fn place(&self, room: u64, options: &Offload, host_has_room: bool) -> Result<Placement, u64> {
        let pipelines: &[Pipeline] = match options.pipeline {
            Pipeline::Automatic => &[Pipeline::Performance, Pipeline::MemoryEfficient],
            _ => std::slice::from_ref(&options.pipeline),
        };
        let outputs: &[bool] = if self.output.is_some() { &[true, false] } else { &[false] };
        for &pipeline in pipelines {
            let mut found = None;
            for &output in outputs {
                let own = if output { self.output.unwrap_or(0) } else { 0 };
                let Some(room) = room.checked_sub(own) else { continue };
                let with_output = |placed: Placement| Placement { output, ..placed };
                let on_gpu = self.with_kv(room, pipeline, options, false).map(with_output);
                let on_host = self.with_kv(room, pipeline, options, true).map(with_output);
                let placed = match options.kv {
                    KvHome::Gpu => on_gpu,
                    KvHome::Host => on_host,
                    KvHome::Automatic if !host_has_room => on_gpu,
                    KvHome::Automatic => self.better(on_gpu, on_host, options),
                };
                found = match options.rates {
                    Some(_) => self.better(found, placed, options),
                    None => found.or(placed),
                };
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(self.least(pipelines[pipelines.len() - 1], options, host_has_room))
    }

    /// Returns the bytes that a placement needs at least.
    fn least(&self, pipeline: Pipeline, options: &Offload, host_has_room: bool) -> u64 {
        let all: u64 = self.kv.on_gpu.iter().sum();
        let kv = match options.kv {
            KvHome::Gpu => all,
            KvHome::Host => self.kv_slots_bytes(pipeline),
            KvHome::Automatic if !host_has_room => all,
            KvHome::Automatic => all.min(self.kv_slots_bytes(pipeline)),
        };
        kv + self.bytes_of(self.slots_of(pipeline)) + EXPERT_SLOTS_MIN * self.expert_slot
    }

    fn slots_of(&self, pipeline: Pipeline) -> [u64; 2] {
        pipeline.slots(self.slots[1] > 0)
    }

    fn bytes_of(&self, slots: [u64; 2]) -> u64 {
        slots.iter().zip(self.slots).map(|(count, bytes)| count * bytes).sum()
    }

    fn kv_slots_bytes(&self, pipeline: Pipeline) -> u64 {
        pipeline.kv_slots() * self.kv.on_host.iter().max().unwrap_or(&0) + self.kv.opened
    }

    /// Places units, with all keys and values on the GPU or as many as possible in the host's memory. `None`
    /// if there is no room.
    fn with_kv(&self, room: u64, pipeline: Pipeline, options: &Offload, host: bool) -> Option<Placement> {
        let all_kv: u64 = self.kv.on_gpu.iter().sum();
        let (kv, kv_slots) =
            if host { (self.kv_slots_bytes(pipeline), pipeline.kv_slots()) } else { (all_kv, 0) };
        let room = room.checked_sub(kv)?;
        let all: u64 = self.units.iter().sum();
        let experts_min = EXPERT_SLOTS_MIN * self.expert_slot;
        let resident = options.resident_bytes.unwrap_or(u64::MAX);
        let everything = room.checked_sub(experts_min).is_some_and(|within| all <= within.min(resident));
        let (stays, slots) = if everything {
            (vec![true; self.units.len()], [0; 2])
        } else {
            let slots = self.slots_of(pipeline);
            let room = room.checked_sub(self.bytes_of(slots) + experts_min)?;
            (choose(&self.units, room.min(resident)), slots)
        };
        let kept = self.kept(&stays);
        let rest = room - self.bytes_of(slots) - kept;
        let for_experts = rest.min(resident.saturating_sub(kept).max(experts_min));
        let expert_slots = for_experts.checked_div(self.expert_slot).unwrap_or(0).min(self.experts);
        let rest = rest - expert_slots * self.expert_slot;
        // With a stated home nothing else is tried.
        let fills = host && everything && options.kv == KvHome::Automatic;
        let kv_stays = if fills { choose(&self.kv.on_gpu, rest) } else { vec![!host; self.kv.on_gpu.len()] };
        Some(Placement { pipeline, stays, slots, expert_slots, kv_stays, kv_slots, output: false })
    }

    fn kept(&self, stays: &[bool]) -> u64 {
        self.units.iter().zip(stays).filter(|(_, stays)| **stays).map(|(size, _)| size).sum()
    }

    /// Returns the bytes that a placement moves for a pass of one token. Experts count as often as they are
    /// used and have no slot, if all are used alike.
    fn moved(&self, placed: &Placement) -> u64 {
        let weights = self.units.iter().sum::<u64>() - self.kept(&placed.stays);
        let elsewhere = u128::from(self.experts - placed.expert_slots) * u128::from(self.expert_slot);
        let used = elsewhere * u128::from(self.experts_used);
        let experts = used.checked_div(u128::from(self.experts)).unwrap_or(0) as u64;
        let on_host = self.kv.on_host.iter().zip(&placed.kv_stays).filter(|(_, stays)| !**stays);
        let kv: u64 = on_host.map(|(size, _)| size).sum();
        weights + experts + kv * CONTEXT_USED_PERCENT / 100
    }

    /// Returns the seconds of a pass of one token. Copies, reads from the disk and products run at the same
    /// time if loads run ahead (PIPO, section 3.1), but for GPUs that copy and compute in turn. The CPU's
    /// projection to logits comes afterwards.
    fn seconds(&self, placed: &Placement, rates: &MoveRates) -> f64 {
        let over = |bytes: f64, rate: NonZeroU64| bytes / rate.get() as f64;
        let moved = self.moved(placed);
        let loaded = self.moved(&Placement { kv_stays: Vec::new(), ..placed.clone() });
        let units: u64 = self.units.iter().sum();
        let experts = self.experts.saturating_sub(placed.expert_slots).saturating_mul(self.expert_slot);
        let elsewhere = (units - self.kept(&placed.stays)).saturating_add(experts);
        let host_output = self.output.filter(|_| !placed.output).unwrap_or(0);
        let on_disk = self.in_memory.map_or(0, |bytes| {
            let for_layers = bytes.saturating_sub(host_output);
            elsewhere.saturating_sub(for_layers)
        });
        let from_disk = loaded as f64 * on_disk as f64 / (elsewhere as f64).max(1.0);
        let computed = units + if placed.output { self.output.unwrap_or(0) } else { 0 };
        let (copies_s, disk_s) = (over(moved as f64, rates.to_gpu), over(from_disk, rates.disk));
        let products_s = over(computed as f64, rates.gpu);
        let layers_s = match placed.pipeline {
            Pipeline::Synchronous => copies_s + disk_s + products_s,
            _ if rates.loads_beside => copies_s.max(products_s).max(disk_s),
            _ => (copies_s + products_s).max(disk_s),
        };
        layers_s + over(host_output as f64, rates.cpu)
    }

    /// Returns the placement that costs less: in seconds if rates are known, else in bytes. The first one is
    /// returned if they cost the same.
    fn better(
        &self,
        one: Option<Placement>,
        other: Option<Placement>,
        options: &Offload,
    ) -> Option<Placement> {
        let (Some(first), Some(second)) = (&one, &other) else { return one.or(other) };
        let is_less = match &options.rates {
            Some(rates) => self.seconds(second, rates) < self.seconds(first, rates),
            None => self.moved(second) < self.moved(first),
        };
        if is_less { other } else { one }
    }
}

/// Chooses the units that stay, of units with these sizes in the order of a pass, within `room` bytes.
///
/// Units that stay are spread over the pass, so that loads have something to run beside all the time. What
/// remains of the room takes the largest units that fit.
pub(super) fn choose(sizes: &[u64], room: u64) -> Vec<bool> {
    let all: u64 = sizes.iter().sum();
    if all <= room {
        return vec![true; sizes.len()];
    }
    let mut stays = vec![false; sizes.len()];
    let (mut passed, mut kept) = (0u128, 0u64);
    for (at, &size) in sizes.iter().enumerate() {
        passed += u128::from(size);
        // The share of the room that belongs to what was passed.
        let due = passed * u128::from(room) / u128::from(all);
        if u128::from(kept + size) <= due {
            stays[at] = true;
            kept += size;
        }
    }
    let mut others: Vec<usize> = (0..sizes.len()).filter(|at| !stays[*at]).collect();
    others.sort_by_key(|at| std::cmp::Reverse(sizes[*at]));
    for at in others {
        if kept + sizes[at] <= room {
            stays[at] = true;
            kept += sizes[at];
        }
    }
    stays
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn what_stays_is_spread() {
        assert_eq!(choose(&[10; 6], 30), [false, true, false, true, false, true]);
        assert_eq!(choose(&[10; 6], 60), [true; 6]);
        assert_eq!(choose(&[10; 3], 9), [false; 3]);
        assert!(choose(&[], 9).is_empty());
    }

    proptest! {
        #[test]
        fn the_room_is_used_and_not_exceeded(
            sizes in prop::collection::vec(1u64..1000, 1..80),
            room in 0u64..40_000,
        ) {
            let stays = choose(&sizes, room);
            let kept: u64 = sizes.iter().zip(&stays).filter(|(_, stays)| **stays).map(|(size, _)| size).sum();
            prop_assert!(kept <= room);
            let least = sizes.iter().zip(&stays).filter(|(_, stays)| !**stays).map(|(size, _)| *size).min();
            prop_assert!(least.is_none_or(|least| kept + least > room), "a unit of {least:?} would fit");
        }
    }

    /// Keys and values that are not packed.
    fn f16(sizes: Vec<u64>) -> KvSizes {
        KvSizes { on_host: sizes.clone(), on_gpu: sizes, opened: 0 }
    }

    /// Eight layers of two units each.
    fn sizes() -> Sizes {
        Sizes {
            units: vec![100; 16],
            slots: [100, 0],
            kv: f16(vec![50; 8]),
            output: Some(200),
            ..Sizes::default()
        }
    }

    fn placed(room: u64, options: &Offload) -> Placement {
        sizes().place(room, options, true).expect("there is room")
    }

    #[test]
    fn everything_stays_if_it_fits() {
        let all = placed(1600 + 400 + 200, &Offload::default());
        assert_eq!((all.stays, all.slots, all.kv_slots), (vec![true; 16], [0, 0], 0));
        assert!(all.output && all.kv_stays == [true; 8]);
    }

    #[test]
    fn keys_and_values_move_to_the_host_before_weights_are_loaded_for_each_pass() {
        // One byte less: keys and values of two layers are elsewhere, all weights stay.
        let less = placed(1600 + 400 + 200 - 1, &Offload::default());
        assert_eq!((less.stays, less.slots, less.kv_slots), (vec![true; 16], [0, 0], 3));
        assert_eq!(less.kv_stays.iter().filter(|stays| **stays).count(), 4);
        // Far less: no keys and values stay.
        let little = placed(200 + 400 + 150 + 300, &Offload::default());
        assert_eq!((little.kv_stays, little.slots), (vec![false; 8], [4, 0]));
        assert_eq!(little.stays.iter().filter(|stays| **stays).count(), 3);
        // Without memory of the host for them they stay.
        let on_gpu = sizes().place(200 + 400 + 150 + 300, &Offload::default(), false).expect("there is room");
        assert_eq!((on_gpu.kv_stays, on_gpu.kv_slots), (vec![true; 8], 0));
        assert_eq!(on_gpu.stays.iter().filter(|stays| **stays).count(), 0);
    }

    #[test]
    fn packed_keys_and_values_take_less_of_the_slots_and_of_the_transfer() {
        let packed = KvSizes { on_host: vec![20; 8], opened: 50, ..f16(vec![50; 8]) };
        let packed = Sizes { kv: packed, output: None, ..sizes() };
        let host = Offload { kv: KvHome::Host, ..Offload::default() };
        let least = 4 * 100 + 3 * 20 + 50;
        let tight = packed.place(least, &host, true).expect("there is room");
        assert_eq!((tight.pipeline, tight.kv_stays.as_slice()), (Pipeline::Performance, &[false; 8][..]));
        assert_eq!(packed.place(2 * 100 + 2 * 20 + 50 - 1, &host, true), Err(2 * 100 + 2 * 20 + 50));
        // What moves for a token: no weight stays, and half of the packed context is loaded.
        assert_eq!(packed.moved(&tight), 1600 + 8 * 20 / 2);
        // What stays is not packed: all weights, slots, and the layers that the rest of the room holds.
        let some =
            packed.place(1600 + 3 * 20 + 50 + 2 * 50, &Offload::default(), true).expect("there is room");
        assert_eq!((some.kv_slots, some.kv_stays.iter().filter(|stays| **stays).count()), (3, 2));
    }

    #[test]
    fn of_experts_only_those_that_are_used_are_moved() {
        // Room for ten of 800 experts, or for 25 more if keys and values are in the host's memory.
        let sizes = Sizes { output: None, expert_slot: 10, experts: 800, ..sizes() };
        let placed = |experts_used| {
            let sizes = Sizes { experts_used, ..sizes.clone() };
            sizes.place(1600 + 400 + 100, &Offload::default(), true).expect("there is room")
        };
        // All are used: 25 experts are more than half of the keys and values.
        let all = placed(800);
        assert_eq!((all.kv_slots, all.expert_slots), (3, 35));
        let few = placed(100);
        assert_eq!((few.kv_slots, few.expert_slots), (0, 10));
    }

    #[test]
    fn the_memory_efficient_pipeline_is_taken_if_the_other_does_not_fit() {
        let least = 2 * 100 + 2 * 50;
        let tight = placed(least, &Offload::default());
        assert_eq!((tight.pipeline, tight.output), (Pipeline::MemoryEfficient, false));
        assert_eq!(sizes().place(least - 1, &Offload::default(), true), Err(least));
        let stated = Offload { pipeline: Pipeline::Performance, ..Offload::default() };
        assert_eq!(sizes().place(least, &stated, true), Err(4 * 100 + 3 * 50));
        assert_eq!(placed(4 * 100 + 3 * 50, &stated).pipeline, Pipeline::Performance);
    }

    #[test]
    fn small_units_have_slots_of_their_own_in_the_performance_pipeline() {
        let options = Offload { kv: KvHome::Gpu, ..Offload::default() };
        let sizes = Sizes { slots: [100, 25], output: None, ..sizes() };
        let least = |room| sizes.place(room, &options, true).map(|placed| placed.slots);
        assert_eq!(least(400 + 3 * 100 + 4 * 25), Ok([3, 4]));
        assert_eq!(least(400 + 3 * 100 + 4 * 25 - 1), Ok([2, 0]));
        assert_eq!(least(400 + 2 * 100 - 1), Err(400 + 2 * 100));
    }

    fn rates(to_gpu: u64, gpu: u64, cpu: u64, disk: u64) -> Option<MoveRates> {
        let rate = |rate| NonZeroU64::new(rate).expect("a rate");
        let [to_gpu, gpu, cpu, disk] = [to_gpu, gpu, cpu, disk].map(rate);
        Some(MoveRates { to_gpu, gpu, cpu, disk, loads_beside: true })
    }

    #[test]
    fn the_cpu_computes_the_logits_if_that_is_faster_than_loading_what_they_displace() {
        let room = 200 + 400 + 400 + 300;
        let with = |rates| placed(room, &Offload { kv: KvHome::Gpu, rates, ..Offload::default() });
        let kept = |placed: &Placement| placed.stays.iter().filter(|stays| **stays).count();
        assert_eq!((with(None).output, kept(&with(None))), (true, 3), "by bytes");
        // The projection takes the room of two units, which is two seconds of copies. The CPU takes one
        // second for it.
        let fast = with(rates(100, 10_000, 200, 100));
        assert_eq!((fast.output, kept(&fast)), (false, 5));
        let slow = with(rates(100, 10_000, 99, 100));
        assert_eq!((slow.output, kept(&slow)), (true, 3));
        // Copies are so fast that products set the pace.
        let wide = with(rates(100_000, 1000, 200, 100));
        assert_eq!((wide.output, kept(&wide)), (true, 3));
    }

    #[test]
    fn seconds_are_those_of_the_slowest_or_of_all_if_nothing_runs_ahead() {
        let sizes = Sizes { in_memory: Some(900), ..sizes() };
        let options = |pipeline| Offload { kv: KvHome::Gpu, pipeline, ..Offload::default() };
        let seconds = |pipeline, rates: Option<MoveRates>| {
            let placed =
                sizes.place(200 + 400 + 400 + 300, &options(pipeline), false).expect("there is room");
            sizes.seconds(&placed, &rates.expect("rates"))
        };
        // Of 1600 bytes 300 stay on the GPU and 900 in memory. The projection stays on the GPU.
        assert_eq!(seconds(Pipeline::Performance, rates(100, 10_000, 1, 100)), 13.0);
        assert_eq!(seconds(Pipeline::Performance, rates(1000, 10_000, 1, 100)), 4.0);
        assert_eq!(seconds(Pipeline::Performance, rates(1000, 100, 1, 1000)), 18.0);
        let in_turn = rates(1000, 100, 1, 1000).map(|rates| MoveRates { loads_beside: false, ..rates });
        assert_eq!(seconds(Pipeline::Performance, in_turn), 1.3 + 18.0);
        // One slot, so 600 stay.
        assert_eq!(seconds(Pipeline::Synchronous, rates(100, 100, 1, 100)), 10.0 + 1.0 + 18.0);
    }

    #[test]
    fn a_stated_home_is_kept() {
        let host = Offload { kv: KvHome::Host, ..Offload::default() };
        assert_eq!(placed(1 << 20, &host).kv_stays, [false; 8]);
        let gpu = Offload { kv: KvHome::Gpu, ..Offload::default() };
        assert_eq!(placed(1200, &gpu).kv_stays, [true; 8]);
        assert_eq!(sizes().place(500, &gpu, true), Err(600));
    }

    proptest! {
        #[test]
        fn a_placement_never_exceeds_the_room(
            units in prop::collection::vec(1u64..1000, 1..40),
            (kv, opened) in (prop::collection::vec((1u64..300, 1u64..300), 1..12), 0u64..300),
            (expert_slot, experts) in (0u64..200, 0u64..30),
            output in prop::option::of(1u64..500),
            (small, room) in (0u64..300, 0u64..40_000),
        ) {
            let slots = [*units.iter().max().unwrap(), small];
            let experts = if expert_slot > 0 { experts } else { 0 };
            let (on_gpu, on_host) = kv.into_iter().unzip();
            let kv = KvSizes { on_gpu, on_host, opened };
            let sizes = Sizes {
                units, slots, expert_slot, experts, experts_used: experts / 2, kv, output, in_memory: None,
            };
            let measured = Offload { rates: rates(7, 100, 20, 3), ..Offload::default() };
            for (host_has_room, options) in [(true, Offload::default()), (false, measured)] {
                let Ok(placed) = sizes.place(room, &options, host_has_room) else { continue };
                let kv_kept: u64 =
                    sizes.kv.on_gpu.iter().zip(&placed.kv_stays).filter(|(_, stays)| **stays).map(|(n, _)| n).sum();
                let used = sizes.kept(&placed.stays) + sizes.bytes_of(placed.slots)
                    + placed.expert_slots * expert_slot
                    + kv_kept + placed.kv_slots * sizes.kv.on_host.iter().max().unwrap()
                    + if placed.kv_slots > 0 { opened } else { 0 }
                    + if placed.output { output.unwrap() } else { 0 };
                prop_assert!(used <= room, "{used} of {room}: {placed:?}");
                prop_assert!(placed.stays.iter().all(|stays| *stays) || placed.slots[0] > 0);
                prop_assert!(placed.kv_stays.iter().all(|stays| *stays) || placed.kv_slots > 0);
            }
        }
    }
}
