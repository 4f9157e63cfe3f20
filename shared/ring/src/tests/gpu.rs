//! Rings in which GPUs compute some layers of a window.
//!
//! The GPU is one in host memory that computes each kernel by its definition.

use baton_engine::engine::KvFormat;
use baton_engine::{EngineOptions, GpuLayers, GpuUse};
use baton_kernels_gpu::cases::HostDevice;
use baton_kernels_gpu::{Device, GpuError};
use baton_plan::Plan;

use super::*;

fn use_of(device: &Arc<HostDevice>) -> GpuUse {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    GpuUse { device, layers: GpuLayers::Fit, on_loss: |_| () }
}

/// Two rounds: the head, a worker with so many layers on its GPU, a worker without one.
fn mixed(on_head: usize, on_worker: usize) -> Plan {
    let mut plan = plan(2, &[("head", 1), ("w1", 3), ("w2", 1)]);
    (plan.shares[0].gpu_layers, plan.shares[1].gpu_layers) = (on_head, on_worker);
    plan
}

/// Makes a home whose first worker has the GPU.
fn home_with(device: &Arc<HostDevice>) -> Home {
    let mut home = home_of(0);
    let machine = TestMachine { gpu: Some(use_of(device)), ..TestMachine::default() };
    home.add_on(1, vec![model_path()], Arc::new(machine));
    home.add(2, vec![model_path()]);
    home
}

/// Checks that logits are nearly those of one engine, and the tokens are the same.
#[track_caller]
fn check_near(have: &(Vec<f32>, Vec<TokenId>), want: &(Vec<f32>, Vec<TokenId>), what: &str) {
    assert_eq!(have.1, want.1, "{what}");
    let top = want.0.iter().fold(0.0f32, |top, value| top.max(value.abs()));
    let gap = gap(&have.0, &want.0);
    assert!(have.0.len() == want.0.len() && gap <= 2e-4 * top, "{what}: {gap} of {top}");
}

#[test]
#[should_panic(expected = "one is missing: NaN of 2")]
fn a_logit_that_is_no_number_is_far_from_every_number() {
    check_near(&(vec![1.0, f32::NAN, 2.0], Vec::new()), &(vec![1.0, 1.5, 2.0], Vec::new()), "one is missing");
}

#[test]
fn a_ring_of_cpus_and_gpus_writes_the_text_of_one_engine() {
    let ids = prompt(3, 70);
    let want = written(&mut one_engine(), &ids, 8);
    for (on_head, on_worker) in [(0, 1), (0, 3), (1, 2), (1, 0)] {
        let (ours, theirs) = (Arc::new(HostDevice::new(None)), Arc::new(HostDevice::new(None)));
        let home = home_with(&theirs);
        let planner = Box::new(first(mixed(on_head, on_worker)));
        let mut head = home.head_with(model(), planner, |options| {
            options.engine = EngineOptions { gpu: Some(use_of(&ours)), ..options.engine.clone() };
            options.health = Duration::ZERO;
        });
        let what = format!("{on_head} and {on_worker} layers on GPUs");
        check_near(&written(&mut head, &ids, 8), &want, &what);
        assert_eq!((ours.used_bytes() > 0, theirs.used_bytes() > 0), (on_head > 0, on_worker > 0), "{what}");
        (0..4).for_each(|_| head.idle());
        let stats = head.handle().stats();
        assert!(
            stats.lost.is_empty() && stats.recoveries == 0,
            "{what}: an audit suspects nobody: {stats:?}"
        );
    }
}

/// Returns the least budget of a GPU that computes layers 1 to 3, which are loaded to it then.
fn least_budget() -> u64 {
    let loads = |budget: &u64| {
        let layers = vec![1, 2, 3];
        let gpu = GpuUse {
            layers: GpuLayers::Only(layers.clone()),
            ..use_of(&Arc::new(HostDevice::new(Some(*budget))))
        };
        let options = EngineOptions { layers: Some(layers), gpu: Some(gpu), ..engine_options(1024) };
        Engine::new(model(), options).is_ok_and(|engine| {
            engine.offload_stats().is_some_and(|stats| stats.resident_bytes < stats.weight_bytes)
        })
    };
    (1..2000).map(|step| step * 4096).find(loads).unwrap()
}

#[test]
fn a_worker_s_gpu_loads_what_it_has_no_room_for() {
    let ids = prompt(3, 70);
    let want = written(&mut one_engine(), &ids, 8);
    let theirs = Arc::new(HostDevice::new(Some(least_budget())));
    let home = home_with(&theirs);
    let mut plan = plan(1, &[("head", 1), ("w1", 3), ("w2", 1)]);
    plan.shares[1].gpu_layers = 3;
    let mut head = home.head_with(model(), Box::new(first(plan)), |options| {
        options.health = Duration::ZERO;
    });
    check_near(&written(&mut head, &ids, 8), &want, "three layers loaded");
    assert!(theirs.used_bytes() > 0, "the GPU computes");
    let stats = head.handle().stats();
    assert!(stats.lost.is_empty() && stats.recoveries == 0, "{stats:?}");
}

#[test]
fn a_worker_computes_on_the_cpu_if_its_gpu_refuses_the_plan_s_layers() {
    let ids = prompt(3, 70);
    let want = written(&mut one_engine(), &ids, 8);
    let theirs = Arc::new(HostDevice::new(None).of_bindings(1 << 12));
    let home = home_with(&theirs);
    let mut head = home.head_with(model(), Box::new(first(mixed(0, 2))), |options| {
        options.health = Duration::ZERO;
    });
    let have = written(&mut head, &ids, 8);
    assert_same_bits(&have.0, &want.0, "the CPU computes");
    assert_eq!((have.1, theirs.used_bytes()), (want.1, 0));
    let stats = head.handle().stats();
    assert!(stats.lost.is_empty() && stats.recoveries == 0, "{stats:?}");
}

#[test]
fn a_ring_with_keys_that_no_gpu_keeps_has_its_layers_on_cpus() {
    let ids = prompt(5, 60);
    let format = |options: EngineOptions| EngineOptions { kv_format: KvFormat::Q8, ..options };
    let want = written(&mut Engine::new(model(), format(engine_options(1024))).unwrap(), &ids, 8);
    let theirs = Arc::new(HostDevice::new(None));
    let home = home_with(&theirs);
    let mut head = home.head_with(model(), Box::new(first(mixed(0, 0))), |options| {
        options.engine = format(options.engine.clone());
    });
    let have = written(&mut head, &ids, 8);
    assert_same_bits(&have.0, &want.0, "q8");
    assert_eq!(have.1, want.1);
    let stats = head.handle().stats();
    assert_eq!((stats.lost.len(), stats.recoveries, theirs.used_bytes()), (0, 0, 0), "{stats:?}");
}

#[test]
fn a_ring_goes_on_if_a_gpu_is_lost_in_the_middle_of_an_answer() {
    let ids = prompt(4, 50);
    let want = written(&mut one_engine(), &ids, 12);
    for on_head in [false, true] {
        let (ours, theirs) = (Arc::new(HostDevice::new(None)), Arc::new(HostDevice::new(None)));
        let home = home_with(&theirs);
        let mut head = home.head_with(model(), Box::new(first(mixed(1, 2))), |options| {
            options.engine = EngineOptions { gpu: Some(use_of(&ours)), ..options.engine.clone() };
        });
        let seq = head.create_in(PrefixScope::default(), None).unwrap();
        let mut logits = head.step(&[step(seq, &ids, Wanted::Last)], &mut ()).unwrap().remove(0).logits;
        let mut text = Vec::new();
        for at in 0..12 {
            if at == 5 {
                let device = if on_head { &ours } else { &theirs };
                device.fail(GpuError::Lost("unplugged".to_owned()));
            }
            text.push(greedy(&logits));
            logits = head.step(&[step(seq, &text[at..], Wanted::Last)], &mut ()).unwrap().remove(0).logits;
        }
        assert_eq!(text, want.1, "on the head: {on_head}");
    }
}
