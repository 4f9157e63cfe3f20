//! The pump against one engine that computes the rows in order, with rings that answer at any time.

use std::collections::VecDeque;
use std::time::Duration;

use baton_engine::Wanted;
use baton_plan::{Plan, Share};
use baton_random::SplitMix64;

use super::*;
use crate::core::head::tests::{fake, setup};
use crate::core::layout::Layout;
use crate::core::{DeviceId, Epoch, LinkId, SeqNo};

/// A ring of `places` devices and `layers` layers, of which the head has the first share.
fn formed(shares: &[usize], rounds: usize) -> Formed {
    let share = |(at, layers): (usize, &usize)| Share {
        device: format!("d{at}"),
        layers: *layers,
        gpu_layers: 0,
        prefetch_bytes: 0.0,
        relays: Vec::new(),
    };
    let plan =
        Plan { layers: shares.iter().sum(), rounds, shares: shares.iter().enumerate().map(share).collect() };
    let layout = Layout::of_plan(&plan, "d0", plan.layers).expect("a plan");
    let places = (1..shares.len()).map(|at| DeviceId([at as u8; 32])).collect();
    Formed { epoch: Epoch(1), layout, places, out: Some(LinkId(0)), back: Some(LinkId(1)) }
}

/// A pump, and everything around it.
struct Bench {
    pump: Pump,
    formed: Formed,
    fx: Fx,
    now: Duration,
    head: fake::Device,
    others: Vec<fake::Device>,
    /// The work of the engine that is under way.
    work: Option<HeadWork>,
    /// Frames on their way through the other devices.
    ring: VecDeque<Step>,
    /// The caller's batch.
    spans: Vec<Span>,
    logits: Vec<u64>,
    discarded: usize,
    most_flying: usize,
}

impl Bench {
    fn new(formed: Formed, planted: Planted) -> Self {
        let setup = setup("d0", formed.layout.n_layers);
        let others = vec![fake::Device::default(); formed.places.len()];
        Self {
            pump: Pump::new(&setup, planted),
            formed,
            fx: Fx::default(),
            now: Duration::ZERO,
            head: fake::Device::default(),
            others,
            work: None,
            ring: VecDeque::new(),
            spans: Vec::new(),
            logits: Vec::new(),
            discarded: 0,
            most_flying: 0,
        }
    }

    fn create(&mut self, seq: SeqNo) {
        self.head.apply(&Operation::Create { seq });
        self.pump.note(Operation::Create { seq });
    }

    fn begin(&mut self, kind: Kind, spans: Vec<Span>) {
        self.spans.clone_from(&spans);
        self.logits.clear();
        self.pump.begin(kind, spans, Some(&self.formed), self.now, &mut self.fx);
        self.effects();
    }

    fn effects(&mut self) {
        for effect in self.fx.take() {
            match effect {
                Effect::Compute(_, work) => assert!(self.work.replace(work).is_none(), "one work at a time"),
                Effect::Link(crate::core::LinkEffect::Send(link, Frame::Step(step))) => {
                    assert_eq!(Some(link), self.formed.out);
                    self.ring.push_back(step);
                }
                Effect::Discard(_) => self.discarded += 1,
                effect => panic!("{effect:?}"),
            }
        }
        self.most_flying = self.most_flying.max(self.pump.under_way().flying);
    }

    fn drive(&mut self) -> PumpNews {
        let news = self.pump.drive(Some(&self.formed), self.now, &mut self.fx);
        self.effects();
        news
    }

    /// The engine ends its work.
    fn compute(&mut self) {
        let done = match self.work.take().expect("a work") {
            HeadWork::Open { step, .. } => {
                self.head.begin(step, &self.spans);
                HeadDone::Done
            }
            HeadWork::Embed { rows } => HeadDone::States(self.head.embed(&rows)),
            HeadWork::Rows { rows, from, layers, logits } => {
                let from = match from {
                    From::Tokens => self.head.embed(&rows),
                    From::States(states) => states,
                };
                let out = if layers.is_empty() { from } else { self.head.layers(&rows, layers, &from) };
                if logits {
                    let found = self.head.logits(&rows, &out);
                    self.logits.extend(found);
                    HeadDone::Done
                } else {
                    HeadDone::States(out)
                }
            }
            HeadWork::Close { commit } => {
                let step = self.head.open().expect("an open step");
                self.head.end(step, commit);
                HeadDone::Done
            }
            work => panic!("{work:?}"),
        };
        self.end_work(done);
    }

    fn end_work(&mut self, done: HeadDone) {
        let (took, now) = (Duration::from_micros(10), self.now);
        assert!(self.pump.is_busy());
        // The numbers of works are the host's; here one ends as it began.
        self.fx = Fx::default();
        self.pump.computed(done, took, Some(&self.formed), now, &mut self.fx);
        self.effects();
    }

    /// The oldest frame passes all other devices. Returns it as it comes back.
    fn pass(&mut self) -> Step {
        let mut step = self.ring.pop_front().expect("a frame under way");
        for (at, device) in self.others.iter_mut().enumerate() {
            step.operations.iter().for_each(|operation| {
                device.apply(operation);
            });
            device.pass(&mut step, &self.formed.layout, at + 1);
        }
        step.operations.clear();
        step
    }

    fn hear(&mut self, step: Step) {
        self.pump.heard(Box::new(step), self.now, &mut self.fx);
        self.effects();
    }

    /// Lets anything happen, in an order that the random numbers choose, until the step has ended.
    fn run(&mut self, rng: &mut SplitMix64, mut cancel_after: Option<usize>) -> PumpNews {
        for _ in 0..100_000 {
            let news = self.drive();
            if !matches!(news, PumpNews::Waiting) {
                return news;
            }
            match &mut cancel_after {
                Some(0) => {
                    self.pump.end(Ending::Cancelled);
                    cancel_after = None;
                    continue;
                }
                Some(left) => *left -= 1,
                None => {}
            }
            if self.work.is_some() && (self.ring.is_empty() || rng.below(2) == 0) {
                self.compute();
            } else {
                let step = self.pass();
                self.hear(step);
            }
        }
        panic!("the step does not end");
    }
}

fn ids(rng: &mut SplitMix64, most: u64) -> Vec<u32> {
    (0..1 + rng.next_u64() % most).map(|_| (rng.next_u64() % 50) as u32).collect()
}

fn random_ring(rng: &mut SplitMix64) -> Formed {
    let rounds = 1 + rng.below(3);
    let places = 2 + rng.below(3);
    let mut shares: Vec<usize> = (0..places).map(|_| rounds * rng.below(3)).collect();
    shares[places - 1] += rounds;
    formed(&shares, rounds)
}

fn random_batch(rng: &mut SplitMix64, lens: &[(SeqNo, usize)]) -> Vec<Span> {
    let mut spans = Vec::new();
    for (seq, len) in lens {
        if spans.is_empty() || rng.below(2) == 0 {
            let wanted = [Wanted::None, Wanted::Last, Wanted::All][rng.below(3)];
            spans.push(Span { seq: *seq, start: *len as u64, wanted, ids: ids(rng, 300) });
        }
    }
    spans
}

/// Runs some steps, some of them cancelled, and compares every result with one engine.
fn script(seed: u64) {
    let mut rng = SplitMix64::new(seed);
    let mut bench = Bench::new(random_ring(&mut rng), Planted::default());
    let n_layers = bench.formed.layout.n_layers;
    let mut reference = fake::Device::default();
    for seq in 0..3 {
        bench.create(SeqNo(seq));
        reference.apply(&Operation::Create { seq: SeqNo(seq) });
    }
    let (mut steps, mut tokens) = (0, 0);
    for _ in 0..6 {
        let lens: Vec<(SeqNo, usize)> = reference.ids().iter().map(|(seq, ids)| (*seq, ids.len())).collect();
        let spans = random_batch(&mut rng, &lens);
        let cancel = (rng.below(2) == 0).then(|| rng.below(40));
        bench.begin(Kind::Caller, spans.clone());
        match bench.run(&mut rng, cancel) {
            PumpNews::Committed(committed) => {
                assert_eq!(committed.spans, spans);
                let batch: Vec<_> =
                    spans.iter().map(|span| (span.seq, span.ids.clone(), span.wanted)).collect();
                assert_eq!(bench.logits, reference.whole(&batch, n_layers), "seed {seed}");
                steps += 1;
                tokens += spans.iter().map(|span| span.ids.len() as u64).sum::<u64>();
            }
            PumpNews::Ended(Ending::Cancelled) => assert!(cancel.is_some()),
            news => panic!("seed {seed}: {news:?}"),
        }
        assert_eq!(bench.head.ids(), reference.ids(), "seed {seed}");
        assert!(bench.most_flying <= flying_max(bench.formed.places.len() + 1));
    }
    let figures = bench.pump.figures();
    assert_eq!((figures.steps, figures.epoch_steps, figures.tokens), (steps, steps, tokens));
}

#[test]
fn steps_give_what_one_engine_gives_however_the_ring_answers() {
    (0..300).for_each(script);
}

/// A ring of two devices with one layer each, and a step of one token whose frame is under way.
fn one_frame(planted: Planted) -> Bench {
    let mut bench = Bench::new(formed(&[1, 1], 1), planted);
    bench.create(SeqNo(0));
    bench.begin(Kind::Caller, vec![Span { seq: SeqNo(0), start: 0, wanted: Wanted::Last, ids: vec![7] }]);
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Waiting);
    bench.compute();
    assert_eq!(bench.ring.len(), 1);
    bench
}

fn fault_of(change: impl FnOnce(&mut Step)) -> PumpNews {
    let mut bench = one_frame(Planted::default());
    let mut step = bench.pass();
    change(&mut step);
    bench.hear(step);
    bench.drive()
}

#[test]
fn a_frame_that_comes_back_must_be_the_oldest_and_have_its_shape() {
    assert_eq!(fault_of(|_| {}), PumpNews::Waiting);
    let wrong: [fn(&mut Step); 8] = [
        |step| step.step.0 += 1,
        |step| step.round += 1,
        |step| step.rows.end += 1,
        |step| step.layers_done -= 1,
        |step| step.states = fake::states(&[1, 2]),
        |step| step.states = fake::states(&[]),
        |step| {
            step.states = States::of(baton_engine::engine::Hidden { rows: 1, width: 2, values: vec![0.0; 2] })
        },
        |step| {
            let values = vec![f32::NAN];
            step.states = States::of(baton_engine::engine::Hidden { rows: 1, width: 1, values });
        },
    ];
    for (at, change) in wrong.into_iter().enumerate() {
        let news = fault_of(change);
        assert!(matches!(news, PumpNews::Fault(Fault::Wrong { place: 1, .. })), "{at}: {news:?}");
    }
}

#[test]
fn more_frames_than_were_sent_are_a_fault() {
    let mut bench = one_frame(Planted::default());
    let step = bench.pass();
    bench.hear(step.clone());
    bench.hear(step);
    assert_eq!(bench.discarded, 1);
    assert!(matches!(bench.drive(), PumpNews::Fault(Fault::Wrong { place: 1, .. })));
}

#[test]
fn a_frame_of_a_cancelled_step_is_dropped_and_the_others_are_told() {
    let mut bench = one_frame(Planted::default());
    bench.pump.end(Ending::Cancelled);
    assert_eq!(bench.drive(), PumpNews::Waiting);
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Ended(Ending::Cancelled));
    let late = bench.pass();
    bench.hear(late);
    bench.begin(Kind::Caller, vec![Span { seq: SeqNo(0), start: 0, wanted: Wanted::Last, ids: vec![9] }]);
    let mut rng = SplitMix64::new(1);
    assert!(matches!(bench.run(&mut rng, None), PumpNews::Committed(_)));
    assert_eq!(bench.discarded, 1);
    let mut reference = fake::Device::default();
    reference.apply(&Operation::Create { seq: SeqNo(0) });
    assert_eq!(bench.logits, reference.whole(&[(SeqNo(0), vec![9], Wanted::Last)], 2));
}

#[test]
fn the_limit_of_a_stall_does_not_count_while_the_engine_works() {
    let second = Duration::from_secs(1);
    let mut bench = Bench::new(formed(&[1, 1], 1), Planted::default());
    bench.create(SeqNo(0));
    bench.begin(Kind::Caller, vec![Span { seq: SeqNo(0), start: 0, wanted: Wanted::Last, ids: vec![7] }]);
    assert_eq!(bench.pump.stall_at(), None, "the engine opens the step");
    bench.now += 100 * second;
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Waiting);
    bench.now += 100 * second;
    assert_eq!(bench.pump.stall_at(), None, "the engine computes");
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Waiting);
    // 5 s, and four tokens of 500 ms each for a chunk of 16 rows.
    assert_eq!(bench.pump.stall_at(), Some((bench.now + 15 * second, 15 * second)));
    bench.now += 3 * second;
    let step = bench.pass();
    bench.hear(step);
    assert_eq!(bench.drive(), PumpNews::Waiting);
    assert_eq!(bench.pump.stall_at(), None, "the logits are computed");
}

#[test]
fn what_the_engine_refuses_ends_the_step_and_nothing_is_logged_of_a_step_that_did_not_open() {
    let mut bench = Bench::new(formed(&[1, 1], 1), Planted::default());
    bench.create(SeqNo(0));
    let spans = vec![Span { seq: SeqNo(0), start: 0, wanted: Wanted::Last, ids: vec![7] }];
    bench.begin(Kind::Caller, spans.clone());
    bench.work = None;
    bench.end_work(HeadDone::Refused);
    assert_eq!(bench.drive(), PumpNews::Ended(Ending::Refused));
    assert_eq!(bench.pump.under_way().logged, 1, "the sequence alone");
    bench.begin(Kind::Caller, spans);
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Waiting);
    bench.work = None;
    bench.end_work(HeadDone::Refused);
    assert_eq!(bench.drive(), PumpNews::Waiting);
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Ended(Ending::Refused));
    assert_eq!(bench.pump.log[1..].len(), 2, "opened and cancelled");
    assert!(matches!(bench.pump.log[2], Operation::Cancel { .. }));
}

#[test]
fn an_audit_is_bounded_like_any_step_and_gives_both_ends_of_the_layer() {
    let mut bench = one_frame(Planted::default());
    bench.pump.end(Ending::Cancelled);
    assert_eq!(bench.drive(), PumpNews::Waiting);
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Ended(Ending::Cancelled));
    let spans = vec![Span { seq: SeqNo(0), start: 0, wanted: Wanted::All, ids: vec![1, 2, 3, 4] }];
    bench.begin(Kind::Audit { place: 1, layer: 1 }, spans);
    let PumpNews::Back { begins, have } = bench.run(&mut SplitMix64::new(3), None) else { panic!("no rows") };
    assert_eq!((begins.rows(), have.rows()), (4, 4));
    assert!(!begins.same_bits(&have));
    assert_eq!(bench.head.ids()[&SeqNo(0)], Vec::<u32>::new(), "nothing stays of it");
    assert_eq!(bench.pump.figures().steps, 0);
}

#[test]
fn a_step_without_sequences_is_done_at_once() {
    let mut bench = Bench::new(formed(&[1, 1], 1), Planted::default());
    bench.begin(Kind::Caller, Vec::new());
    assert!(matches!(bench.drive(), PumpNews::Committed(committed) if committed.spans.is_empty()));
    assert_eq!(bench.pump.under_way(), UnderWay::default());
}

#[test]
fn a_new_epoch_begins_with_an_empty_log_and_nothing_under_way() {
    let mut bench = one_frame(Planted::default());
    bench.pump.end(Ending::Faulted);
    assert_eq!(bench.drive(), PumpNews::Waiting);
    bench.compute();
    assert_eq!(bench.drive(), PumpNews::Ended(Ending::Faulted));
    assert_eq!(bench.pump.under_way().flying, 1);
    bench.pump.new_epoch();
    assert_eq!(bench.pump.under_way(), UnderWay::default());
}
