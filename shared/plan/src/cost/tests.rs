//! The time of a token, compared with brute force: bisection over `T`, a grid over `P`.

use super::*;
use crate::sample::{Draw, cluster, device, drawn, model};

/// Returns the device's own seconds if `prefetch` bytes are kept for reading ahead, from the definition.
fn seconds_with(held: &Holding, rounds: usize, prefetch: f64) -> f64 {
    let busy = held.busy_s + rounds as f64 * held.copy_s;
    let read = held.overflow + prefetch;
    let inside = read - read.min(rounds as f64 * (held.stream + prefetch));
    busy.max(inside / held.disk) + held.fill_s
}

/// Returns the least own seconds for a token of `token_s`, over a grid of `P`.
fn own_by_grid(held: &Holding, rounds: usize, token_s: f64) -> f64 {
    let busy = held.busy_s + rounds as f64 * held.copy_s;
    if held.overflow <= 0.0 {
        return busy;
    }
    let grid = (0..=4000).map(|step| held.room * f64::from(step) / 4000.0);
    let allowed = grid.filter(|prefetch| held.overflow + prefetch <= held.disk * token_s * (1.0 + 1e-12));
    allowed.map(|prefetch| seconds_with(held, rounds, prefetch)).fold(f64::INFINITY, f64::min)
}

fn token_by_bisection(held: &[Holding], rounds: usize, around_s: f64) -> f64 {
    let sum = |token_s| held.iter().map(|held| own_by_grid(held, rounds, token_s)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if sum(middle) + rounds as f64 * around_s <= middle { high = middle } else { low = middle }
    }
    high
}

#[test]
fn the_time_of_a_token_is_the_least_that_every_device_keeps_up_with() {
    let mut draw = Draw::new(3);
    let (mut streamed, mut kept_any) = (0, 0);
    for seed in 0..150 {
        let (cluster, model, workload) = drawn(seed, 3, 12);
        let costs = Costs::new(&cluster, &model, workload).unwrap();
        let rounds = draw.count(1, 4);
        let counts = [draw.count(0, 6), draw.count(rounds, 8), draw.count(rounds, 8)];
        let held: Option<Vec<Holding>> = (0..3)
            .map(|at| {
                let ways = costs.holdings(at, counts[at], at == 0);
                ways.get(draw.count(0, ways.len().max(1) - 1)).copied()
            })
            .collect();
        let Some(held) = held else { continue };
        let around = costs.hops.around(&[0, 1, 2]);
        let exact = Costs::settle(&held, rounds, around);
        if !exact.is_finite() {
            assert!(!around.is_finite());
            continue;
        }
        let by_hand = token_by_bisection(&held, rounds, around);
        streamed += usize::from(held.iter().any(|held| held.overflow > 0.0 && rounds > 1));
        assert!(exact <= by_hand * (1.0 + 1e-9), "{seed}: {exact} {by_hand}");
        assert!(by_hand <= exact * 1.003, "{seed}: {exact} {by_hand} {held:?} {rounds}");
        let parts = Costs::parts(&held, rounds, around, exact).unwrap();
        let mut slack_s = exact - rounds as f64 * around;
        for (held, own) in held.iter().zip(&parts).filter(|(held, _)| held.overflow > 0.0) {
            let with = seconds_with(held, rounds, own.prefetch);
            assert!(with <= own.seconds * (1.0 + 1e-9), "{seed}: {with} {own:?}");
            assert!((held.overflow + own.prefetch) / held.disk <= exact * (1.0 + 1e-9), "{seed}: {own:?}");
        }
        slack_s -= parts.iter().map(|own| own.seconds).sum::<f64>();
        assert!(slack_s >= -1e-9 * exact, "{seed}: {slack_s}");
        // A thousandth of a byte is rounding.
        let kept = parts.iter().any(|own| own.prefetch > 1e-3);
        assert!(!kept || slack_s <= 1e-9 * exact, "{seed}: {slack_s} s are left, and yet {parts:?}");
        kept_any += usize::from(kept);
    }
    assert!(kept_any > 5, "{kept_any} cases in which memory is kept for reading ahead");
    assert!(streamed > 20, "{streamed} cases with something to read ahead");
}

#[test]
fn enough_memory_needs_no_disk_and_too_little_reads_the_rest() {
    let described = cluster(vec![device("a", 4.0)]);
    let shape = model(4);
    let costs = Costs::new(&described, &shape, Workload { context: 10, sequences: 1 }).unwrap();
    let held = costs.holding(0, 3, 0, true).unwrap();
    assert!(held.overflow == 0.0, "{held:?}");
    let held = costs.holding(0, 4, 0, true).unwrap();
    // 4 layers of 100 MB, an output of 80 MB and 2,500 B of lookup; 436 MB of memory, of which KV takes
    // 163,840 B.
    assert!((held.overflow - (480e6 + 2500.0 - 436e6 + 163_840.0)).abs() < 1.0, "{held:?}");
}

#[test]
fn more_rounds_hide_what_one_round_cannot() {
    // Two devices that each read as long as they compute: reading ahead during the other's turn pays off.
    let mut slow = [device("a", 4.0), device("b", 4.0)];
    for device in &mut slow {
        device.cpu.read_bytes_per_s = 1e9;
    }
    let described = cluster(slow.to_vec());
    let shape = model(14);
    let costs = Costs::new(&described, &shape, Workload { context: 10, sequences: 1 }).unwrap();
    let held = [costs.holding(0, 7, 0, true).unwrap(), costs.holding(1, 7, 0, false).unwrap()];
    let token_s = |rounds| Costs::settle(&held, rounds, 0.0);
    assert!(
        token_s(2) < token_s(1) * 0.999_999
            || (token_s(1) - held.iter().map(|h| h.busy_s + h.fill_s).sum::<f64>()).abs() < 1e-9
    );
    let mut fast = held;
    for held in &mut fast {
        held.busy_s /= 10.0;
    }
    assert!(Costs::settle(&fast, 4, 0.0) < Costs::settle(&fast, 1, 0.0) * 0.9);
}

#[test]
fn metal_gives_all_back_and_a_slow_disk_takes_nothing_over() {
    use crate::cluster::{Gpu, GpuKind};
    let mut mac = device("mac", 10.0);
    mac.os = Os::Macos;
    let processor = mac.cpu.clone();
    mac.gpu = Some(Gpu {
        kind: GpuKind::Metal,
        processor,
        memory_bytes: 310e6,
        buffer_bytes: 0.0,
        copy_s: 0.0,
        load_bytes_per_s: None,
        loads_beside: false,
    });
    let mut slow = device("slow", 2.0);
    slow.disk.sequential_bytes_per_s = 0.09e9;
    let described = cluster(vec![mac, slow]);
    let shape = model(10);
    let costs = Costs::new(&described, &shape, Workload { context: 10, sequences: 1 }).unwrap();
    let fits = costs.holding(0, 2, 2, true).unwrap();
    assert!(fits.overflow == 0.0);
    let over = costs.holding(0, 4, 2, true).unwrap();
    assert!((over.overflow - (480e6 + 2500.0)).abs() < 1.0 && over.room == 0.0, "{over:?}");
    assert!((over.disk - 0.4e9).abs() < 1.0, "here and there");
    assert!(costs.holding(1, 2, 0, false).is_some() && costs.holding(1, 3, 0, false).is_none());
}

#[test]
fn a_gpu_that_shares_the_memory_takes_it_from_the_cpu_s_layers() {
    use crate::cluster::{Gpu, GpuKind};
    let with = |kind, memory_bytes| {
        let mut laptop = device("laptop", 6.0);
        laptop.buffer_bytes = 0.0;
        let processor = laptop.cpu.clone();
        laptop.gpu = Some(Gpu {
            kind,
            processor,
            memory_bytes,
            buffer_bytes: 0.0,
            copy_s: 0.0,
            load_bytes_per_s: None,
            loads_beside: false,
        });
        cluster(vec![laptop])
    };
    let (shape, workload) = (model(10), Workload { context: 10, sequences: 1 });
    let (shared, own) = (with(GpuKind::Shared, 1e9), with(GpuKind::Cuda, 1e9));
    let [shared, own] = [&shared, &own].map(|described| Costs::new(described, &shape, workload).unwrap());
    // Six layers fit into the device's memory, in all.
    let [in_shared, in_own] = [&shared, &own].map(|costs| costs.gpu_room(0, 10, false));
    assert!(in_shared <= 6 && in_own > 6, "{in_shared} {in_own}");
    let layer = shape.layer_bytes;
    let with_gpu = |costs: &Costs<'_>, gpu| costs.holding(0, 8, gpu, false).unwrap();
    let over = with_gpu(&shared, 0).overflow;
    assert!(over > layer, "{over}");
    assert!((with_gpu(&shared, 3).overflow - over).abs() < 1.0, "as much is read, whoever computes");
    assert!((with_gpu(&shared, 0).room - with_gpu(&shared, 3).room - 3.0 * layer).abs() < 0.1 * layer);
    assert_eq!(with_gpu(&own, 3).overflow, 0.0, "memory of its own holds more");
    // A limit of the GPU's part says nothing of the CPU's.
    let few = with(GpuKind::Shared, 1.5 * layer);
    let few = Costs::new(&few, &shape, workload).unwrap();
    assert_eq!((few.gpu_room(0, 10, false), with_gpu(&few, 1).overflow), (1, over));
}

#[test]
fn the_parts_of_a_prediction_add_up() {
    for seed in 0..60 {
        let (cluster, model, workload) = drawn(seed, 4, 20);
        let Ok(plan) = crate::search(&cluster, &model, workload, &Default::default()) else { continue };
        let costs = Costs::new(&cluster, &model, workload).unwrap();
        let prediction = costs.predict(&plan).unwrap();
        let sum: f64 = prediction.devices.iter().map(DeviceTime::total_s).sum();
        assert!((sum - prediction.token_s).abs() <= 1e-9 * prediction.token_s, "{seed}: {prediction:?}");
        for time in &prediction.devices {
            let parts = [time.compute_s, time.memory_s, time.disk_s, time.network_s, time.prefetch_bytes];
            assert!(parts.iter().all(|part| *part >= -1e-12), "{seed}: {time:?}");
            assert!(time.read_bytes >= time.overflow_bytes);
        }
    }
}

#[test]
fn a_missing_rate_is_named() {
    let described = cluster(vec![device("a", 4.0)]);
    let mut shape = model(4);
    shape.layer_flops.insert("Q6_K".to_owned(), 1e6);
    let error = Costs::new(&described, &shape, Workload::default()).unwrap_err().to_string();
    assert_eq!(error, "device `a`: cpu has no rate for Q6_K, which `sample` has weights in");
}

#[test]
fn a_gpu_loads_what_it_has_no_room_for_if_that_is_faster_than_the_cpu() {
    use crate::cluster::{Gpu, GpuKind};
    use crate::search::{SearchOptions, search};
    let with = |load_bytes_per_s| {
        let mut desk = device("desk", 20.0);
        let processor = Processor { read_bytes_per_s: 400e9, ..desk.cpu.clone() };
        let flops = processor.flops.iter().map(|(format, rate)| (format.clone(), rate * 20.0)).collect();
        desk.gpu = Some(Gpu {
            kind: GpuKind::Cuda,
            processor: Processor { flops, ..processor },
            memory_bytes: 350e6,
            buffer_bytes: 0.0,
            copy_s: 0.0,
            load_bytes_per_s,
            loads_beside: true,
        });
        cluster(vec![desk])
    };
    let (shape, workload) = (model(10), Workload { context: 10, sequences: 1 });
    let planned = |load_bytes_per_s| {
        let described = with(load_bytes_per_s);
        let plan = search(&described, &shape, workload, &SearchOptions::default()).unwrap();
        let predicted = Costs::new(&described, &shape, workload).unwrap().predict(&plan).unwrap();
        (plan.shares[0].gpu_layers, predicted.devices[0].loaded_layers, predicted.token_s)
    };
    let (none, slow, fast) = (planned(None), planned(Some(2e9)), planned(Some(60e9)));
    // Three layers fit. Of ten that it computes, eight are loaded through the memory of the third.
    assert_eq!(((none.0, none.1), (slow.0, slow.1), (fast.0, fast.1)), ((3, 0), (3, 0), (10, 8)));
    assert!(fast.2 < none.2 && (slow.2 - none.2).abs() < 1e-12, "{none:?} {slow:?} {fast:?}");
    let described = with(Some(60e9));
    let costs = Costs::new(&described, &shape, workload).unwrap();
    let all = costs.holding(0, 10, 10, false).unwrap();
    let bytes = 8.0 * (100e6 + 10.0 * 4096.0);
    assert!((all.busy_s - bytes / 60e9).abs() < 1e-9, "eight layers at the rate of loads: {all:?}");
    assert!(costs.holding(0, 10, 9, false).is_none(), "it loads for all layers or for none");
}

#[test]
fn loads_are_of_used_experts_and_of_the_whole_context() {
    use crate::cluster::{Gpu, GpuKind};
    let mut desk = device("desk", 20.0);
    let processor = Processor { read_bytes_per_s: 400e9, ..desk.cpu.clone() };
    let flops = processor.flops.keys().map(|format| (format.clone(), 1e15)).collect();
    desk.gpu = Some(Gpu {
        kind: GpuKind::Cuda,
        processor: Processor { flops, ..processor },
        memory_bytes: 250e6,
        buffer_bytes: 0.0,
        copy_s: 0.0,
        load_bytes_per_s: Some(10e9),
        loads_beside: true,
    });
    let described = cluster(vec![desk]);
    let mixture = ModelShape { expert_bytes: 80e6, expert_share: 0.25, ..model(10) };
    let loaded_bytes = |shape: &ModelShape, context, sequences| {
        let costs = Costs::new(&described, shape, Workload { context, sequences }).unwrap();
        let held = costs.holding(0, 10, 10, false).unwrap();
        // What is computed takes less time than loads.
        (held.busy_s * 10e9 / held.loaded as f64, held.loaded)
    };
    let check = |shape: &ModelShape, (context, sequences), want: f64| {
        let (bytes, loaded) = loaded_bytes(shape, context, sequences);
        assert!((bytes - want).abs() < 1.0, "{bytes} bytes of each of {loaded} layers, want {want}");
    };
    check(&model(10), (10, 1), 100e6 + 10.0 * 4096.0);
    check(&model(10), (1000, 1), 100e6 + 1000.0 * 4096.0);
    check(&model(10), (1000, 2), 100e6 + 2000.0 * 4096.0);
    check(&mixture, (10, 1), 40e6 + 10.0 * 4096.0);
    // Two tokens share some of their experts.
    check(&mixture, (10, 2), 20e6 + 80e6 * (1.0 - 0.75 * 0.75) + 20.0 * 4096.0);
    // Nor does the disk: of ten layers six fit, and experts are the last that get memory.
    let small = cluster(vec![device("small", 6.0)]);
    let overflow = |shape: &ModelShape| {
        let costs = Costs::new(&small, shape, Workload { context: 10, sequences: 1 }).unwrap();
        costs.holding(0, 10, 0, false).unwrap().overflow
    };
    let missing = overflow(&model(10));
    assert!((overflow(&mixture) - 0.25 * missing).abs() < 1.0 && missing > 300e6, "{missing}");
    let few_experts = ModelShape { expert_bytes: 10e6, ..mixture.clone() };
    assert!((overflow(&few_experts) - (missing - 0.75 * 100e6)).abs() < 1.0);
    // The CPU reads no others from memory either.
    let of_cpu = |shape: &ModelShape| {
        Costs::new(&described, shape, Workload { context: 10, sequences: 1 }).unwrap().cpu_layer(0)
    };
    let (all, used) = (of_cpu(&model(10)), of_cpu(&mixture));
    assert!(used.memory_s < all.memory_s && used.compute_s == all.compute_s, "{used:?} {all:?}");
}

#[test]
fn a_gpu_that_loads_and_computes_in_turn_takes_the_sum_of_both() {
    use crate::cluster::{Gpu, GpuKind};
    let seconds = |loads_beside, rate| {
        let mut desk = device("desk", 20.0);
        desk.gpu = Some(Gpu {
            kind: GpuKind::Cuda,
            processor: desk.cpu.clone(),
            memory_bytes: 350e6,
            buffer_bytes: 0.0,
            copy_s: 0.0,
            load_bytes_per_s: Some(rate),
            loads_beside,
        });
        let (described, shape) = (cluster(vec![desk]), model(10));
        let costs = Costs::new(&described, &shape, Workload { context: 10, sequences: 1 }).unwrap();
        let held = costs.holding(0, 10, 10, false).unwrap();
        let computing_s = 10.0 * costs.gpu_layer(0).unwrap().total();
        let loading_s = held.loaded as f64 * (100e6 + 10.0 * 4096.0) / rate;
        (held.busy_s, computing_s, loading_s)
    };
    for rate in [10e9, 30e9] {
        let (beside, computing_s, loading_s) = seconds(true, rate);
        assert!((beside - computing_s.max(loading_s)).abs() < 1e-9, "{rate}: {beside}");
        let (in_turn, ..) = seconds(false, rate);
        assert!((in_turn - computing_s - loading_s).abs() < 1e-9, "{rate}: {in_turn}");
    }
}
