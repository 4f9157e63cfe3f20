//! Plans: rounds, devices, unequal and empty windows, heads without layers, relays.

use proptest::prelude::*;

use std::path::Path;

use super::*;
use crate::wire::frame::Activations;

/// The result of one engine.
static WANT: LazyLock<(Vec<f32>, Vec<TokenId>)> =
    LazyLock::new(|| written(&mut one_engine(), &prompt(1, 70), 6));

#[track_caller]
fn check(rounds: usize, shares: &[(&str, usize)]) {
    let plan = plan(rounds, shares);
    assert!(plan.is_whole() && plan.layers == LAYERS);
    let devices = shares.iter().flat_map(|(name, _)| name.split('>')).count();
    let home = home_of(devices as u8 - 1);
    let mut head = home.head(first(plan));
    let (logits, text) = written(&mut head, &prompt(1, 70), 6);
    let what = format!("{rounds} rounds of {shares:?}");
    assert_same_bits(&logits, &WANT.0, &what);
    assert_eq!(text, WANT.1, "{what}");
    let stats = head.handle().stats();
    assert!(stats.lost.is_empty() && stats.recoveries == 0, "{what}: {stats:?}");
    assert_eq!((stats.steps, stats.tokens), (7, 76), "{what}");
}

#[test]
fn one_device_in_any_rounds() {
    check(1, &[("head", 5)]);
    check(3, &[("head", 5)]);
}

#[test]
fn two_devices() {
    check(1, &[("head", 3), ("w1", 2)]);
    check(1, &[("head", 1), ("w1", 4)]);
    check(1, &[("head", 0), ("w1", 5)]);
    check(2, &[("head", 2), ("w1", 3)]);
    check(2, &[("head", 0), ("w1", 5)]);
    check(5, &[("head", 2), ("w1", 3)]);
    check(8, &[("head", 3), ("w1", 2)]);
    check(8, &[("head", 0), ("w1", 5)]);
}

#[test]
fn three_devices() {
    check(1, &[("head", 1), ("w1", 2), ("w2", 2)]);
    check(1, &[("head", 2), ("w2", 1), ("w1", 2)]);
    check(2, &[("head", 2), ("w1", 2), ("w2", 1)]);
    check(3, &[("head", 0), ("w1", 3), ("w2", 2)]);
    check(4, &[("head", 3), ("w1", 1), ("w2", 1)]);
    check(7, &[("head", 1), ("w1", 3), ("w2", 1)]);
}

#[test]
fn four_devices() {
    check(1, &[("head", 1), ("w1", 1), ("w2", 1), ("w3", 2)]);
    check(2, &[("head", 0), ("w3", 2), ("w1", 1), ("w2", 2)]);
    check(6, &[("head", 1), ("w1", 1), ("w2", 1), ("w3", 2)]);
}

#[test]
fn relays_and_devices_without_layers() {
    check(1, &[("head>w2", 2), ("w1", 3)]);
    check(2, &[("head", 2), ("w1>w2", 3)]);
    check(3, &[("head>w1", 1), ("w2>w3", 4)]);
    check(2, &[("head", 3), ("w1", 0), ("w2", 2)]);
    check(1, &[("head", 5), ("w1", 0)]);
}

#[test]
fn a_head_alone_sends_no_frame() {
    let home = home_of(1);
    let counted = Arc::new(Mutex::new(0));
    let own = Arc::clone(&counted);
    home.hub.hook(move |passing| {
        *own.lock().unwrap() += usize::from(passing.purpose == crate::wire::link::Purpose::Ring);
        crate::wire::memory::Fate::Pass
    });
    let mut head = home.head(first(plan(2, &[("head", 5)])));
    let (logits, _) = written(&mut head, &prompt(1, 70), 6);
    assert_same_bits(&logits, &WANT.0, "alone");
    assert_eq!(*counted.lock().unwrap(), 0, "frames of the ring");
    let stats = head.handle().stats();
    assert!(stats.epoch_steps > 0 && stats.step_ms > 0.0, "its steps are timed: {stats:?}");
    assert_eq!((stats.devices[0].compute_ms, stats.devices[0].wait_ms), (stats.step_ms, 0.0));
}

#[test]
fn half_precision_changes_numbers_a_little_and_only_where_it_is_asked_for() {
    let home = home_of(1);
    let planner = Box::new(first(plan(1, &[("head", 2), ("w1", 3)])));
    let mut head = home.head_with(model(), planner, |options| options.activations = Activations::F16);
    let (logits, _) = written(&mut head, &prompt(1, 70), 0);
    let want = &WANT.0[..logits.len()];
    let far = gap(&logits, want);
    let size = want.iter().map(|value| value.abs()).fold(0.0, f32::max);
    assert!(far > 0.0 && far < 0.02 * size, "{far} of {size}");
}

#[test]
fn demo_models_write_the_same_text_on_rings() {
    for (name, workers) in [("demo-device.gguf", 2u8), ("demo-cloud.gguf", 1)] {
        // A copy, because the list of its pieces is stored beside it.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name), &path).unwrap();
        let model = Model::open(&path).unwrap();
        let ids = model.tokenizer().encode("The meeting is on Tuesday at ten. When is the meeting?");
        let mut engine = Engine::new(Arc::clone(&model), engine_options(1024)).unwrap();
        let want = written(&mut engine, &ids, 8);
        let layers = model.config().n_layers;
        for rounds in [1, 3] {
            let mut home = home_of(0);
            (1..=workers).for_each(|number| home.add(number, vec![path.clone()]));
            let mut head = home.head_with(Arc::clone(&model), Box::new(even(rounds, layers)), |_| {});
            let have = written(&mut head, &ids, 8);
            assert_same_bits(&have.0, &want.0, name);
            assert_eq!(have.1, want.1, "{name} in {rounds} rounds");
        }
    }
}

/// One operation on sequences; numbers choose among the existing ones.
#[derive(Debug, Clone)]
enum Move {
    Create,
    Fork(usize, usize),
    Truncate(usize, usize),
    Release(usize),
    Reuse(usize, u32),
    Step(Vec<(usize, usize, Wanted)>),
    Cancelled(usize, usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let wanted = || prop::sample::select(vec![Wanted::None, Wanted::Last, Wanted::All]);
    let entry = (0..4usize, 1..60usize, wanted());
    let one = prop_oneof![
        2 => Just(Move::Create),
        1 => (0..4usize, any::<usize>()).prop_map(|(seq, n)| Move::Fork(seq, n)),
        1 => (0..4usize, any::<usize>()).prop_map(|(seq, n)| Move::Truncate(seq, n)),
        1 => (0..4usize).prop_map(Move::Release),
        2 => (0..4usize, 0..2u32).prop_map(|(seq, text)| Move::Reuse(seq, text)),
        5 => prop::collection::vec(entry, 1..4).prop_map(Move::Step),
        1 => (0..4usize, 1..9usize).prop_map(|(seq, layer)| Move::Cancelled(seq, layer)),
    ];
    prop::collection::vec(one, 1..25)
}

/// Cancels after so many layers.
struct Until(usize);

impl baton_engine::StepControl for Until {
    fn after_layer(&mut self, _done: usize, _total: usize) -> std::ops::ControlFlow<()> {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    }
}

/// Applies the operation to some sequences, and returns the logits.
fn done(sequences: &mut dyn Sequences, seqs: &mut Vec<SeqId>, what: &Move) -> Vec<Vec<f32>> {
    let texts = [prompt(1, 300), prompt(2, 300)];
    let at = |seqs: &[SeqId], n: usize| (!seqs.is_empty()).then(|| n % seqs.len());
    match what {
        Move::Create if seqs.len() < 4 => {
            seqs.push(sequences.create_in(PrefixScope::default(), None).unwrap())
        }
        Move::Fork(n, tokens) if seqs.len() < 4 => {
            if let Some(at) = at(seqs, *n) {
                let tokens = tokens % (sequences.len(seqs[at]).unwrap() + 1);
                seqs.push(sequences.fork(seqs[at], tokens).unwrap());
            }
        }
        Move::Truncate(n, tokens) => {
            if let Some(at) = at(seqs, *n) {
                let tokens = tokens % (sequences.len(seqs[at]).unwrap() + 1);
                sequences.truncate(seqs[at], tokens).unwrap();
            }
        }
        Move::Release(n) => {
            if let Some(at) = at(seqs, *n) {
                sequences.release(seqs.remove(at));
            }
        }
        Move::Reuse(n, text) => {
            if let Some(at) = at(seqs, *n) {
                let len = sequences.len(seqs[at]).unwrap();
                let gained = sequences.reuse_prefix(seqs[at], &texts[*text as usize][len.min(300)..]);
                return vec![vec![gained as f32]];
            }
        }
        Move::Step(entries) => return step_of(sequences, seqs, entries, &texts, &mut ()),
        Move::Cancelled(n, layers) => {
            let entries = [(*n, 20, Wanted::Last)];
            return step_of(sequences, seqs, &entries, &texts, &mut Until(*layers));
        }
        Move::Create | Move::Fork(..) => {}
    }
    Vec::new()
}

fn step_of(
    sequences: &mut dyn Sequences,
    seqs: &[SeqId],
    entries: &[(usize, usize, Wanted)],
    texts: &[Vec<TokenId>; 2],
    control: &mut dyn baton_engine::StepControl,
) -> Vec<Vec<f32>> {
    let mut batch: Vec<StepSeq<'_>> = Vec::new();
    for (n, tokens, wanted) in entries {
        if seqs.is_empty() {
            break;
        }
        let at = n % seqs.len();
        let len = sequences.len(seqs[at]).unwrap();
        let ids = &texts[at % 2][len.min(300)..300.min(len + tokens)];
        if !ids.is_empty() && batch.iter().all(|entry| entry.seq != seqs[at]) {
            batch.push(step(seqs[at], ids, *wanted));
        }
    }
    if batch.is_empty() {
        return Vec::new();
    }
    match sequences.step(&batch, control) {
        Ok(outputs) => outputs.into_iter().map(|output| output.logits).collect(),
        // A ring and an engine are cancelled at different points, but both must leave nothing behind.
        Err(err) => {
            assert!(err.is_cancelled(), "{err}");
            Vec::new()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done_to_sequences_the_ring_does_as_one_engine(
        moves in moves(),
        rounds in 1..4usize,
        split in prop::sample::select(vec![[2, 2, 1], [0, 3, 2], [1, 1, 3]]),
    ) {
        let home = home_of(2);
        let [a, b, c] = split;
        let mut head = home.head(first(plan(rounds, &[("head", a), ("w1", b), ("w2", c)])));
        let mut engine = one_engine();
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for what in &moves {
            if let Move::Cancelled(n, _) = what {
                // The ring may finish before it sees the cancellation: then the engine does the whole step
                // as well.
                let Some(at) = (!others.is_empty()).then(|| n % others.len()) else { continue };
                let before = Sequences::len(&head, others[at]).unwrap();
                done(&mut head, &mut others, what);
                let whole = Sequences::len(&head, others[at]).unwrap() > before;
                done(&mut engine, &mut own, &Move::Cancelled(*n, if whole { usize::MAX } else { 1 }));
                Sequences::truncate(&mut head, others[at], before).unwrap();
                engine.truncate(own[at], before).unwrap();
                continue;
            }
            let want = done(&mut engine, &mut own, what);
            let have = done(&mut head, &mut others, what);
            prop_assert_eq!(have.len(), want.len());
            for (have, want) in have.iter().zip(&want) {
                assert_same_bits(have, want, &format!("{what:?} of {moves:?}"));
            }
        }
        let stats = head.handle().stats();
        prop_assert!(stats.lost.is_empty() && stats.recoveries == 0, "{:?}", stats);
    }
}
