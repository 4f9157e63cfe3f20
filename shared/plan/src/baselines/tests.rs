//! The rules on clusters for which the right answer is obvious.

use super::*;
use crate::cluster::{Gpu, GpuKind, Workload};
use crate::sample::{cluster, device, model};

fn layers(rule: Baseline, devices: Vec<crate::cluster::Device>, count: usize) -> Vec<(String, usize)> {
    let described = cluster(devices);
    let shape = model(count);
    let costs = Costs::new(&described, &shape, Workload { context: 16, sequences: 1 }).unwrap();
    let plan = rule.plan(&costs).unwrap();
    assert!(plan.is_whole() && costs.predict(&plan).unwrap().token_s > 0.0);
    plan.shares.into_iter().map(|share| (share.device, share.layers)).collect()
}

fn named(names: [(&str, usize); 2]) -> Vec<(String, usize)> {
    names.map(|(name, layers)| (name.to_owned(), layers)).to_vec()
}

#[test]
fn whole_parts_in_proportion() {
    assert_eq!(proportional(10, &[1.0, 1.0, 2.0]), [3, 2, 5]);
    assert_eq!(proportional(7, &[0.0, 0.0]), [7, 0]);
    assert_eq!(proportional(3, &[1.0; 4]).iter().sum::<usize>(), 3);
}

#[test]
fn memory_alone_decides_for_mem_sched() {
    let mut fast = device("fast", 4.0);
    fast.cpu.read_bytes_per_s = 100e9;
    assert_eq!(
        layers(Baseline::MemSched, vec![fast, device("large", 12.0)], 8),
        named([("fast", 2), ("large", 6)])
    );
}

#[test]
fn perf_sched_moves_what_does_not_fit() {
    let mut fast = device("fast", 3.0);
    fast.cpu.read_bytes_per_s = 60e9;
    fast.cpu.flops.insert("Q4_K".to_owned(), 240e9);
    // In proportion to power it would get 6 of 8; its memory holds 2 besides the output.
    assert_eq!(
        layers(Baseline::PerfSched, vec![fast, device("large", 12.0)], 8),
        named([("fast", 2), ("large", 6)])
    );
}

#[test]
fn the_fastest_gpu_is_filled_first() {
    let mut with_gpu = device("gpu", 2.0);
    let mut processor = with_gpu.cpu.clone();
    processor.read_bytes_per_s = 300e9;
    processor.flops.insert("Q4_K".to_owned(), 3e12);
    with_gpu.gpu = Some(Gpu {
        kind: GpuKind::Cuda,
        processor,
        memory_bytes: 505e6,
        buffer_bytes: 0.0,
        copy_s: 1e-5,
        load_bytes_per_s: None,
        loads_beside: false,
    });
    let found = layers(Baseline::FillFastestGpusFirst, vec![device("head", 4.0), with_gpu], 8);
    assert_eq!(found, named([("head", 3), ("gpu", 5)]), "what the GPU does not hold goes to the first CPU");
}
