//! At least one frame of every kind that is equal after encoding and decoding: used by unit tests, and as
//! the fuzz target's seeds.
//!
//! `device/fuzz` includes this file too, so it uses only the format beside it and the format's own types.

use std::time::Duration;

use baton_engine::engine::{Hidden, KvFormat};
use baton_engine::{SlidingWindow, Wanted};
use baton_plan::{Device, Disk, Gpu, GpuKind, Os, Processor, Window};

use super::{
    Activations, Audit, Configure, EchoData, Failure, FailureCode, Frame, Heartbeat, Hello, LinkSpeed,
    MeasuredLink, Operation, PieceData, Provide, Span, Step,
};
use crate::core::ids::{DeviceId, Epoch, Node, SeqNo, StepNo};
use crate::core::states::States;

fn device(gpu: bool) -> Device {
    let flops = [("F32".to_owned(), 2e9), ("Q4_K".to_owned(), 1e10)].into();
    let cpu = Processor { flops, read_bytes_per_s: 1e10, kv_copy_s: 1e-6 };
    let of_gpu = |processor| Gpu {
        kind: GpuKind::Shared,
        processor,
        memory_bytes: 8e9,
        buffer_bytes: 3e8,
        copy_s: 0.0,
        load_bytes_per_s: Some(1e10),
        loads_beside: true,
    };
    Device {
        name: "desk".into(),
        os: Os::Android,
        gpu: gpu.then(|| of_gpu(cpu.clone())),
        cpu,
        memory_bytes: 4e9,
        swap_bytes: 1e9,
        buffer_bytes: 2e8,
        stream_bytes: 4e7,
        weight_bytes_max: gpu.then_some(1.5e9),
        disk: Disk { sequential_bytes_per_s: 1e9, random_bytes_per_s: 1e8 },
    }
}

/// Two workers, a head, two rounds.
pub(super) fn configure() -> Configure {
    let window = |round, place, begin, end| Window { round, place, begin, end, gpu: round };
    Configure {
        epoch: Epoch(7),
        place: 1,
        n_layers: 6,
        width: 64,
        prefetch_bytes: 300 << 20,
        reads_ahead: true,
        windows: vec![window(0, 0, 0, 2), window(0, 1, 2, 3), window(1, 1, 3, 6)],
        model: [9; 32],
        kv_tokens: 4096,
        kv_format: KvFormat::Q8,
        prefix_percent: 50,
        window: Some(SlidingWindow { sinks: 4, tokens: 100 }),
        next: Node { device: DeviceId([3; 32]), address: "192.168.0.7:7300".into() },
        before: DeviceId([4; 32]),
        others: vec![
            Node { device: DeviceId([6; 32]), address: "10.0.0.2:8018".into() },
            Node { device: DeviceId([8; 32]), address: String::new() },
        ],
        activations: Activations::F16,
        heartbeat: Duration::from_millis(300),
        hop: Duration::from_millis(2500),
    }
}

/// A typical speed in a home.
pub(super) fn link_speed() -> LinkSpeed {
    LinkSpeed { latency_s: 0.002, there_bytes_per_s: 4e7, back_bytes_per_s: 5e7 }
}

/// Returns the frames.
pub(crate) fn of_every_kind() -> Vec<Frame> {
    let failure = Failure { epoch: Epoch(2), code: FailureCode::Refused, words: "row 3 is no number".into() };
    let beat =
        Heartbeat { epoch: Epoch(1), received: 2, sent: 3, refused: 4, bytes_out: 9, ..Heartbeat::default() };
    vec![
        Frame::Hello(Hello { name: "desk".into(), device: Some(device(true)) }),
        Frame::Hello(Hello { name: "relay".into(), device: None }),
        Frame::Hello(Hello { name: "phone".into(), device: Some(device(false)) }),
        Frame::Enter { epoch: Epoch(3), place: 2 },
        Frame::Configure(Box::new(configure())),
        Frame::Configure(Box::new(Configure {
            window: None,
            kv_format: KvFormat::F32,
            others: Vec::new(),
            ..configure()
        })),
        Frame::Ready { epoch: Epoch(8) },
        Frame::Heartbeat(beat),
        Frame::Failed(failure),
        Frame::Provide(Box::new(Provide {
            model: [9; 32],
            layers: vec![0, 3, 4],
            others: configure().others,
        })),
        Frame::Provided,
        Frame::FetchManifest,
        Frame::Manifest(vec![1, 2, 3]),
        Frame::FetchPieces { first: 4, count: 5 },
        Frame::Piece(PieceData { index: 6, bytes: vec![7; 9] }),
        Frame::AskPieces { model: [9; 32] },
        Frame::HasPieces(vec![0b101, 0xff]),
        Frame::FetchProgress,
        Frame::Echo(EchoData { number: 3, reply: 70_000, bytes: vec![1; 5] }),
        Frame::Echoed(EchoData { number: 3, reply: 0, bytes: Vec::new() }),
        Frame::AwaitEdge { from: DeviceId([5; 32]) },
        Frame::MeasureEdge(Node { device: DeviceId([6; 32]), address: "10.0.0.2:8018".into() }),
        Frame::Edge(MeasuredLink { to: DeviceId([6; 32]), speed: None }),
        Frame::Edge(MeasuredLink { to: DeviceId([6; 32]), speed: Some(link_speed()) }),
        Frame::Step(step(Activations::F32)),
        Frame::Step(step(Activations::F16)),
    ]
}

/// A chunk of two rows, after one operation of every kind. Its values are the same in half precision.
fn step(activations: Activations) -> Step {
    let span = |wanted, ids| Span { seq: SeqNo(1), start: 5, wanted, ids };
    let spans =
        vec![span(Wanted::None, vec![7]), span(Wanted::Last, vec![8, 9]), span(Wanted::All, Vec::new())];
    Step {
        epoch: Epoch(3),
        step: StepNo(11),
        round: 1,
        layers_done: 4,
        audit: (activations == Activations::F16).then_some(Audit { place: 2, begin: 4, end: 5 }),
        rows: 2..4,
        operations: vec![
            Operation::Create { seq: SeqNo(1) },
            Operation::Fork { from: SeqNo(1), tokens: 5, seq: SeqNo(2) },
            Operation::Truncate { seq: SeqNo(2), tokens: 3 },
            Operation::Release { seq: SeqNo(2) },
            Operation::Reuse { seq: SeqNo(1), ids: vec![4, 5], gained: 1 },
            Operation::Open { step: StepNo(11), spans },
            Operation::Commit { step: StepNo(10) },
            Operation::Cancel { step: StepNo(9) },
        ],
        activations,
        states: States::of(Hidden { rows: 2, width: 3, values: vec![0.5, -1.0, 2.0, 0.25, -8.0, 0.0] }),
    }
}

/// Returns whether decoding this frame may have changed bits: infinities and NaN in half precision. The
/// code that uses a frame refuses such values.
pub(crate) fn may_differ(frame: &Frame) -> bool {
    let Frame::Step(step) = frame else { return false };
    step.activations == Activations::F16 && step.states.hidden().values.iter().any(|value| !value.is_finite())
}
