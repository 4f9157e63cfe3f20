//! Encoded frames are decoded again, and any other bytes are refused.

use super::samples::{configure, link_speed, may_differ, of_every_kind};
use super::*;
use crate::core::ids::{DeviceId, Epoch, SeqNo, StepNo};
use crate::core::states::States;
use baton_engine::Wanted;
use baton_engine::engine::Hidden;
use proptest::prelude::*;

fn ids() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..6)
}

fn span() -> impl Strategy<Value = Span> {
    let wanted = prop::sample::select(vec![Wanted::None, Wanted::Last, Wanted::All]);
    (any::<u64>(), any::<u64>(), wanted, ids()).prop_map(|(seq, start, wanted, ids)| Span {
        seq: SeqNo(seq),
        start,
        wanted,
        ids,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        any::<u64>().prop_map(|seq| Operation::Create { seq: SeqNo(seq) }),
        any::<[u64; 3]>().prop_map(|[from, tokens, seq]| Operation::Fork {
            from: SeqNo(from),
            tokens,
            seq: SeqNo(seq)
        }),
        any::<[u64; 2]>().prop_map(|[seq, tokens]| Operation::Truncate { seq: SeqNo(seq), tokens }),
        any::<u64>().prop_map(|seq| Operation::Release { seq: SeqNo(seq) }),
        (any::<[u64; 2]>(), ids()).prop_map(|([seq, gained], ids)| Operation::Reuse {
            seq: SeqNo(seq),
            ids,
            gained
        }),
        (any::<u64>(), prop::collection::vec(span(), 0..3))
            .prop_map(|(step, spans)| Operation::Open { step: StepNo(step), spans }),
        any::<u64>().prop_map(|step| Operation::Commit { step: StepNo(step) }),
        any::<u64>().prop_map(|step| Operation::Cancel { step: StepNo(step) }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let rows = (0..5usize, 0..5usize).prop_map(|(start, more)| start..start + more);
    let values = |n: usize| prop::collection::vec(-1e6f32..1e6, n);
    let hidden = (0..4usize, 0..4usize).prop_flat_map(move |(rows, width)| {
        values(rows * width).prop_map(move |values| Hidden { rows, width, values })
    });
    let numbers = (any::<[u64; 2]>(), any::<[u16; 2]>());
    (numbers, rows, prop::collection::vec(operation(), 0..4), hidden).prop_map(
        |(([epoch, step], [round, layers_done]), rows, operations, hidden)| Step {
            epoch: Epoch(epoch),
            step: StepNo(step),
            round,
            layers_done,
            audit: layers_done.is_multiple_of(2).then_some(Audit {
                place: round,
                begin: 0,
                end: layers_done,
            }),
            rows,
            operations,
            activations: Activations::F32,
            states: States::of(hidden),
        },
    )
}

#[test]
fn every_kind_is_read_as_it_was_written() {
    for frame in of_every_kind() {
        assert_eq!(Frame::decode(&frame.encode()).unwrap(), frame);
        let mut appended = vec![7];
        frame.encode_into(&mut appended);
        assert_eq!((appended[0], &appended[1..]), (7, &frame.encode()[..]));
    }
}

#[test]
fn frames_cut_short_or_with_more_behind_are_refused() {
    for frame in of_every_kind() {
        let bytes = frame.encode();
        for end in 0..bytes.len() {
            assert!(Frame::decode(&bytes[..end]).is_err(), "{frame:?} of {end} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Frame::decode(&longer), Err(FrameError::Trailing { bytes: 1 }), "{frame:?}");
    }
}

#[track_caller]
fn check_refused(bytes: &[u8], want: FrameError) {
    assert_eq!(Frame::decode(bytes), Err(want));
}

#[test]
fn refusals_name_the_field_and_the_limit() {
    let version = VERSION.to_le_bytes();
    check_refused(&[1, 0, 6], FrameError::Version { theirs: 1 });
    check_refused(&[version[0], version[1], 21], FrameError::Value { what: "kind", value: 21, max: 20 });
    check_refused(&[], FrameError::Short { what: "version", needed: 2, left: 0 });
    let manifest = [version[0], version[1], 8, 255, 255, 255, 255, 0];
    check_refused(&manifest, FrameError::Short { what: "manifest", needed: u32::MAX as usize, left: 1 });
    let mut gap = configure();
    gap.windows[1].begin = 1;
    let frame = Frame::Configure(Box::new(gap)).encode();
    check_refused(&frame, FrameError::Mismatch { what: "windows and layers" });
    let mut name = Frame::Hello(Hello { name: "x".into(), device: None }).encode();
    name[7] = 0xff;
    check_refused(&name, FrameError::Text { what: "name" });
    for name in ["de\x1b]0;sk", "de\nsk", "de\u{9b}sk"] {
        let hello = Frame::Hello(Hello { name: name.into(), device: None }).encode();
        check_refused(&hello, FrameError::Text { what: "name" });
    }
    let long = Frame::Hello(Hello { name: "x".repeat(300), device: None }).encode();
    check_refused(&long, FrameError::Value { what: "name", value: 300, max: 256 });
}

#[test]
fn rates_come_in_the_order_of_their_formats_and_each_once() {
    let hello = of_every_kind().swap_remove(0).encode();
    let at = |name: &[u8]| hello.windows(name.len()).position(|part| part == name).expect("a rate of it");
    let (f32, q4) = (at(b"F32"), at(b"Q4_K"));
    assert!(f32 < q4);
    for (place, letter) in [(f32, b'Z'), (q4, b'A')] {
        let mut other = hello.clone();
        other[place] = letter;
        check_refused(&other, FrameError::Mismatch { what: "rates and formats" });
    }
}

#[test]
fn echoes_and_ways_are_held_to_their_bounds() {
    let echo = |reply, len| Frame::Echo(EchoData { number: 1, reply, bytes: vec![0; len] }).encode();
    let max = ECHO_BYTES_MAX as usize;
    assert!(Frame::decode(&echo(ECHO_BYTES_MAX, max)).is_ok());
    let over = |value| FrameError::Value { what: "bytes of an echo", value, max: max as u64 };
    check_refused(&echo(ECHO_BYTES_MAX + 1, 0), over(max as u64 + 1));
    check_refused(&echo(0, max + 1), over(max as u64 + 1));
    type Change = fn(&mut LinkSpeed);
    let changes: [Change; 4] = [
        |link_speed| link_speed.latency_s = f64::NAN,
        |link_speed| link_speed.latency_s = -1.0,
        |link_speed| link_speed.there_bytes_per_s = 0.0,
        |link_speed| link_speed.back_bytes_per_s = f64::INFINITY,
    ];
    for change in changes {
        let mut link_speed = link_speed();
        change(&mut link_speed);
        let frame = Frame::Edge(MeasuredLink { to: DeviceId([1; 32]), speed: Some(link_speed) }).encode();
        check_refused(&frame, FrameError::Mismatch { what: "latency and rates of a way" });
    }
}

#[test]
fn a_cache_of_more_tokens_than_any_plan_has_is_refused() {
    let of = |kv_tokens| Frame::Configure(Box::new(Configure { kv_tokens, ..configure() })).encode();
    assert!(Frame::decode(&of(KV_TOKENS_MAX)).is_ok());
    for value in [KV_TOKENS_MAX + 1, u64::MAX] {
        let refused = FrameError::Value { what: "tokens of the kv cache", value, max: KV_TOKENS_MAX };
        check_refused(&of(value), refused);
    }
}

#[test]
fn half_precision_rounds_and_keeps_within_its_range() {
    let hidden = Hidden { rows: 1, width: 4, values: vec![1.0, 1e9, -1e9, 0.1] };
    let step = Step {
        epoch: Epoch(1),
        step: StepNo(1),
        round: 0,
        layers_done: 0,
        audit: None,
        rows: 0..1,
        operations: Vec::new(),
        activations: Activations::F16,
        states: States::of(hidden),
    };
    let Frame::Step(read) = Frame::decode(&Frame::Step(step).encode()).unwrap() else { panic!("a step") };
    assert_eq!(read.states.hidden().values[..3], [1.0, 65504.0, -65504.0]);
    assert!((read.states.hidden().values[3] - 0.1).abs() < 1e-4);
    let sent = Hidden { rows: 1, width: 4, values: vec![1.0, 1e9, -1e9, 0.1] };
    assert_eq!(Activations::F16.carried(sent.clone()), *read.states.hidden());
    assert_eq!(Activations::F32.carried(sent.clone()), sent);
}

#[test]
fn long_words_are_cut_between_characters() {
    let failure = Failure { epoch: Epoch(1), code: FailureCode::Engine, words: "ä".repeat(4000) };
    let Frame::Failed(read) = Frame::decode(&Frame::Failed(failure).encode()).unwrap() else {
        panic!("a failure")
    };
    assert_eq!(read.words, "ä".repeat(2048));
    let broken = Failure { epoch: Epoch(1), code: FailureCode::Engine, words: "one\nand \x1b[2J".into() };
    let Frame::Failed(read) = Frame::decode(&Frame::Failed(broken).encode()).unwrap() else {
        panic!("a failure")
    };
    assert_eq!(read.words, "one and  [2J");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn steps_are_read_as_they_were_written(step in step()) {
        let frame = Frame::Step(step);
        let bytes = frame.encode();
        prop_assert_eq!(Frame::decode(&bytes).unwrap(), frame);
        for end in 0..bytes.len() {
            prop_assert!(Frame::decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..21u8) {
        let headed = [&VERSION.to_le_bytes()[..], &[kind], &bytes].concat();
        if let Ok(frame) = Frame::decode(&headed) {
            let written = frame.encode();
            prop_assert!(Frame::decode(&written).is_ok(), "{:?}", frame);
            // Compared as bytes, because NaN does not equal itself.
            prop_assert!(written == headed || may_differ(&frame), "{:?}", frame);
        }
    }

    #[test]
    fn a_changed_byte_never_panics(step in step(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = Frame::Step(step).encode();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(Frame::Step(read)) = Frame::decode(&bytes) {
            let hidden = read.states.hidden();
            prop_assert_eq!(hidden.values.len(), hidden.rows * hidden.width);
        }
    }
}
