//! Forming against scripted devices: plans, parts, links, readiness, and whose fault it is.

use super::*;
use crate::core::head::HeadWork;
use crate::core::planted::Bug;
use crate::core::roster::tests::{Home, SECOND, device, name, node, plan, setup};
use crate::core::{LinkEffect, Note, Purpose, States};
use crate::wire::frame::{Configure, FailureCode};
use baton_engine::engine::Hidden;

const PATIENCE: Duration = Duration::from_secs(10);

/// What happens in one case of a test.
type Script<'a> = &'a dyn Fn(&mut Ring);

/// A roster and a form, and the links that devices opened.
struct Ring {
    home: Home,
    form: Form,
    cancelled: bool,
    links: u64,
}

impl Ring {
    fn of(count: u8) -> Self {
        Self::with(count, Planted::default())
    }

    fn with(count: u8, planted: Planted) -> Self {
        let form = Form::new(&setup(), planted);
        Self { home: Home::of(count), form, cancelled: false, links: 1 }
    }

    /// One with a formed ring of devices 1 and 2.
    fn formed() -> Self {
        let mut ring = Self::of(2);
        ring.enter(&[1, 2]);
        ring.ready(&[1, 2]);
        ring.come_back(2, ring.form.epoch());
        assert_eq!(ring.finish(), Ok(()));
        ring
    }

    fn drive(&mut self) -> Progress<Result<(), RingFault>> {
        let now = self.home.now;
        let done = self.form.drive(&mut self.home.roster, self.cancelled, now, &mut self.home.fx);
        self.home.settle();
        done
    }

    fn waits(&mut self) {
        assert_eq!(self.drive(), Progress::Waiting);
    }

    fn ends(&mut self) -> Result<(), RingFault> {
        match self.drive() {
            Progress::Done(done) => done,
            Progress::Waiting => panic!("it waits: {:?}", self.form.attempt),
        }
    }

    /// Answers the question for a plan.
    fn plan(&mut self, answer: Result<Planned, String>) {
        self.waits();
        assert!(self.is_planning());
        self.form.planned(answer);
    }

    fn is_planning(&self) -> bool {
        matches!(&self.form.attempt, Some(Attempt { stage: Stage::Planning(None), .. }))
    }

    /// Two layers for each of these devices and the rest for the head, and the link to the first of them
    /// opens.
    fn enter(&mut self, others: &[u8]) {
        self.shares(others);
        self.waits();
        self.open();
    }

    fn shares(&mut self, others: &[u8]) {
        let shares = std::iter::once((0, 6 - 2 * others.len())).chain(others.iter().map(|at| (*at, 2)));
        self.plan(Ok(plan(&shares.collect::<Vec<_>>())));
    }

    /// The latest link to place 1.
    fn out(&self) -> LinkId {
        let link = |effect: &Effect| match effect {
            Effect::Link(LinkEffect::Connect { link, purpose: Purpose::Ring, .. }) => Some(*link),
            _ => None,
        };
        self.home.effects.iter().rev().find_map(link).unwrap()
    }

    fn outs(&self) -> usize {
        let is_it = |effect: &&Effect| {
            matches!(effect, Effect::Link(LinkEffect::Connect { purpose: Purpose::Ring, .. }))
        };
        self.home.effects.iter().filter(is_it).count()
    }

    fn opened(&mut self, opened: Result<(), String>) {
        let (link, now) = (self.out(), self.home.now);
        self.form.opened(link, opened, now, &mut self.home.fx);
        self.home.settle();
    }

    fn open(&mut self) {
        self.opened(Ok(()));
    }

    /// A device opens a link of the ring.
    fn arrive(&mut self, from: u8) -> LinkId {
        let link = LinkId(self.links);
        self.links += 2;
        self.form.arrived(link, device(from), &mut self.home.fx);
        self.home.settle();
        link
    }

    fn hear(&mut self, link: LinkId, frame: Frame) -> Came {
        let came = self.form.heard(link, frame, &mut self.home.fx);
        self.home.settle();
        came
    }

    /// A device opens a link of the ring that enters this epoch.
    fn come_back(&mut self, from: u8, epoch: Epoch) -> LinkId {
        let link = self.arrive(from);
        assert_eq!(self.hear(link, Frame::Enter { epoch, place: 1 }), Came::Nothing);
        link
    }

    fn gone(&mut self, link: LinkId) -> Option<Fault> {
        let now = self.home.now;
        self.form.gone(link, &Gone::Closed("cut".to_owned()), now)
    }

    fn ready(&mut self, numbers: &[u8]) {
        let epoch = self.form.epoch();
        numbers.iter().for_each(|number| self.home.say(*number, Frame::Ready { epoch }));
    }

    /// The engine changes to its layers.
    fn finish(&mut self) -> Result<(), RingFault> {
        self.waits();
        self.compute(&HeadDone::Done);
        self.ends()
    }

    fn compute(&mut self, done: &HeadDone) {
        let (work, _) = self.reset();
        self.home.fx.computed(work);
        assert!(self.form.computed(work, done));
        assert!(!self.form.computed(WorkId(99), done));
    }

    fn reset(&self) -> (WorkId, Option<&Vec<usize>>) {
        let last = self.home.effects.iter().rev().find_map(|effect| match effect {
            Effect::Compute(work, HeadWork::Reset { layers, .. }) => Some((*work, layers.as_ref())),
            _ => None,
        });
        last.expect("a reset")
    }

    fn parts(&self, number: u8) -> Vec<&Configure> {
        let told = self.home.told(number).into_iter();
        told.filter_map(|frame| match frame {
            Frame::Configure(configure) => Some(configure.as_ref()),
            _ => None,
        })
        .collect()
    }
}

fn step(epoch: Epoch) -> Step {
    Step {
        epoch,
        step: crate::core::StepNo(1),
        round: 0,
        layers_done: 6,
        audit: None,
        rows: 0..1,
        operations: Vec::new(),
        activations: Activations::F32,
        states: States::of(Hidden { rows: 1, width: 1, values: vec![0.0] }),
    }
}

#[test]
fn the_longest_that_fetching_may_take_follows_its_bytes() {
    assert_eq!(fetch_time(0), Duration::ZERO);
    assert_eq!(fetch_time(1_280_000), SECOND * 10);
    assert!(fetch_time(u64::MAX) < Duration::MAX, "of any model there is a longest");
    let model = ModelFacts { digest: [0; 32], file_len: 2_560_000, header_bytes: 128_000 };
    assert_eq!(fetch_limit(Some(&model), SECOND, 3, 6), SECOND * (1 + 1 + 10));
    assert_eq!(fetch_limit(Some(&model), SECOND, 0, 0), SECOND * 2);
    assert_eq!(fetch_limit(None, SECOND, 3, 6), SECOND);
}

#[test]
fn a_head_without_others_is_alone_and_has_no_epoch() {
    let mut ring = Ring::of(1);
    ring.plan(Ok(plan(&[(0, 6), (1, 0)])));
    ring.waits();
    assert_eq!(ring.reset().1, None, "all layers");
    assert!(matches!(ring.form.route(), Route::Down) && ring.form.wake_at(&ring.home.roster).is_none());
    assert_eq!(ring.finish(), Ok(()));
    assert!(matches!(ring.form.route(), Route::Alone(_)) && ring.form.formed().is_none());
    assert_eq!((ring.form.epoch(), ring.outs()), (Epoch(0), 0));
    assert_eq!(ring.form.layout().unwrap().names, [name(0), name(1)]);
    assert_eq!(ring.form.pace(), Pace { token: SECOND, first: SECOND * 2 });
    assert!(ring.form.fall(&mut ring.home.fx).is_none());
    assert!(matches!(ring.form.route(), Route::Down) && ring.form.layout().is_none());
}

#[test]
fn a_ring_is_formed_when_links_are_open_and_all_are_ready() {
    let mut ring = Ring::of(2);
    ring.enter(&[1, 2]);
    assert_eq!(ring.home.sent(ring.out()), [&Frame::Enter { epoch: Epoch(1), place: 0 }]);
    ring.waits();
    ring.ready(&[1]);
    let back = ring.arrive(2);
    ring.waits();
    ring.ready(&[2]);
    ring.waits();
    assert!(matches!(&ring.form.attempt, Some(Attempt { stage: Stage::Entering(_), .. })), "no Enter yet");
    assert_eq!(ring.hear(back, Frame::Enter { epoch: Epoch(1), place: 2 }), Came::Nothing);
    ring.waits();
    assert_eq!(ring.reset().1, Some(&vec![0, 1]));
    assert!(ring.form.formed().is_none(), "not before the engine has its layers");
    assert_eq!(ring.finish(), Ok(()));
    let formed = ring.form.formed().unwrap();
    assert_eq!((formed.epoch, &formed.places), (Epoch(1), &vec![device(1), device(2)]));
    assert_eq!((formed.out, formed.back), (Some(ring.out()), Some(back)));
    assert!(ring.form.broken().is_none() && !ring.form.arrivals.holds(back));
}

#[test]
fn each_device_is_told_its_part() {
    let mut ring = Ring::of(2);
    ring.enter(&[2, 1]);
    let part = |number| ring.parts(number)[0].clone();
    let (first, second) = (part(2), part(1));
    assert_eq!((first.place, second.place), (1, 2));
    assert_eq!((&first.next, first.before), (&node(1), device(0)));
    assert_eq!((&second.next, second.before), (&node(0), device(2)));
    assert_eq!((first.others, second.others), (vec![node(1)], vec![node(2)]));
    assert_eq!((first.epoch, first.model, first.n_layers, first.width), (Epoch(1), [7; 32], 6, 4));
    assert_eq!((first.prefetch_bytes, first.kv_tokens, first.prefix_percent), (1000, 64, 25));
    assert_eq!((first.windows.len(), first.heartbeat), (3, setup().heartbeat));
}

#[test]
fn without_a_plan_that_can_be_run_there_is_no_ring() {
    let mut ring = Ring::of(2);
    ring.plan(Err("too little memory".to_owned()));
    let no_plan = |words: &str| RingFault::NoPlan { devices: "d0, d1, d2".into(), words: words.into() };
    assert_eq!(ring.ends(), Err(no_plan("too little memory")));
    ring.plan(Ok(plan(&[(0, 3), (9, 3)])));
    assert_eq!(ring.ends(), Err(no_plan("the plan names a device that is not there")));
    ring.plan(Ok(plan(&[(0, 3), (1, 2)])));
    assert!(matches!(ring.ends(), Err(RingFault::Layout(_))));
    assert_eq!((ring.form.epoch(), ring.outs(), ring.home.roster.members()), (Epoch(0), 0, 2));
}

#[test]
fn a_head_whose_engine_fails_forms_no_ring() {
    let mut ring = Ring::of(2);
    ring.enter(&[1, 2]);
    ring.ready(&[1, 2]);
    let back = ring.come_back(2, Epoch(1));
    ring.waits();
    ring.compute(&HeadDone::Failed);
    assert_eq!(ring.ends(), Err(RingFault::Host));
    ring.home.settle();
    assert_eq!((ring.home.closed(back), ring.home.closed(ring.out())), (1, 1));
    assert!(matches!(ring.form.route(), Route::Down));
}

#[test]
fn a_device_at_fault_leaves_and_the_next_try_goes_without_it() {
    let mut ring = Ring::of(2);
    ring.enter(&[1, 2]);
    let first = ring.out();
    ring.home.fail(2, 1, FailureCode::Engine);
    ring.waits();
    assert_eq!(ring.home.closed(first), 1);
    assert_eq!(ring.home.roster.present(), [device(1)]);
    assert!(matches!(ring.home.effects.last(), Some(Effect::Plan(what)) if what.workers.len() == 1));
    ring.enter(&[1]);
    assert_eq!(ring.form.epoch(), Epoch(2));
    ring.ready(&[1]);
    ring.come_back(1, Epoch(2));
    assert_eq!(ring.finish(), Ok(()));
}

#[test]
fn a_lost_member_is_not_planned_with_and_a_lost_place_gets_nothing() {
    let mut ring = Ring::of(3);
    ring.home.hang_up(3, "cut");
    ring.shares(&[1, 2]);
    assert_eq!(ring.home.lost(), ["d3: cut"]);
    ring.home.hang_up(2, "cut");
    ring.waits();
    assert_eq!((ring.parts(1).len(), ring.parts(2).len()), (1, 0));
    assert_eq!(ring.home.lost(), ["d3: cut", "d2: cut"]);
}

#[test]
fn the_first_link_is_opened_again_after_a_while() {
    let mut ring = Ring::of(2);
    ring.shares(&[1, 2]);
    ring.waits();
    for at in 1..5 {
        ring.opened(Err("refused".to_owned()));
        ring.waits();
        assert_eq!(ring.form.wake_at(&ring.home.roster), Some(ring.home.now + AGAIN));
        assert_eq!(ring.outs(), at);
        ring.home.leap(AGAIN);
        ring.waits();
        assert_eq!(ring.outs(), at + 1);
    }
    ring.open();
    ring.gone(ring.out());
    ring.home.leap(AGAIN);
    ring.waits();
    assert_eq!(ring.outs(), 6, "one that ended too");
    ring.open();
    assert_eq!(ring.home.sent(ring.out()).len(), 1);
}

const AGAIN: Duration = Duration::from_millis(20);

#[test]
fn a_link_of_an_older_epoch_is_never_taken() {
    let try_with = |planted: Planted| {
        let mut ring = Ring::with(2, planted);
        ring.enter(&[1, 2]);
        let late = ring.arrive(2);
        ring.home.fail(1, 1, FailureCode::Before);
        ring.waits();
        ring.enter(&[1, 2]);
        ring.ready(&[1, 2]);
        ring.hear(late, Frame::Enter { epoch: Epoch(1), place: 2 });
        ring.waits();
        let formed_with_late =
            matches!(&ring.form.attempt, Some(Attempt { stage: Stage::Resetting { .. }, .. }));
        (ring, late, formed_with_late)
    };
    let (mut ring, late, taken) = try_with(Planted::default());
    assert!(!taken && ring.home.closed(late) == 1);
    let back = ring.come_back(2, Epoch(2));
    assert_eq!(ring.finish(), Ok(()));
    assert_eq!(ring.form.formed().unwrap().back, Some(back));
    assert!(try_with(Planted::bug(Bug::OldLinkTaken)).2);
}

#[test]
fn a_device_may_open_its_link_again_before_the_ring_is_formed() {
    let mut ring = Ring::of(2);
    ring.enter(&[1, 2]);
    let first = ring.come_back(2, Epoch(1));
    ring.waits();
    assert_eq!(ring.gone(first), None);
    let second = ring.come_back(2, Epoch(1));
    ring.waits();
    assert_eq!(ring.hear(second, Frame::Step(step(Epoch(1)))), Came::Refused, "too early");
    assert_eq!(ring.home.closed(second), 1);
    let third = ring.come_back(2, Epoch(1));
    ring.ready(&[1, 2]);
    assert_eq!(ring.finish(), Ok(()));
    assert_eq!(ring.form.formed().unwrap().back, Some(third));
    assert_eq!(ring.home.closed(first), 0, "it had ended");
}

#[test]
fn links_that_nobody_waits_for_have_bounds() {
    let mut ring = Ring::of(2);
    let links: Vec<LinkId> = (0..6).map(|_| ring.arrive(9)).collect();
    assert_eq!(links.iter().filter(|link| ring.home.closed(**link) == 1).count(), 2);
    let last = links[5];
    assert_eq!(ring.hear(last, Frame::Provided), Came::Nothing);
    assert_eq!(ring.home.closed(last), 1);
    assert!(!ring.form.arrivals.holds(last));
    ring.hear(links[4], Frame::Enter { epoch: Epoch(3), place: 1 });
    assert_eq!(ring.hear(links[4], Frame::Enter { epoch: Epoch(4), place: 1 }), Came::Nothing);
    assert_eq!(ring.home.closed(links[4]), 1, "it may enter once");
    ring.form.end(&mut ring.home.fx);
    ring.home.settle();
    assert!(links.iter().all(|link| ring.home.closed(*link) == 1));
}

/// Time passes; devices say something now and then, so that they are not lost by their silence.
fn wait(ring: &mut Ring, time: Duration, fed: &[u8]) {
    let end = ring.home.now + time;
    while ring.home.now < end {
        ring.home.now += SECOND.min(end - ring.home.now);
        for number in [1, 2] {
            let alive = if fed.contains(&number) {
                Frame::FetchProgress
            } else {
                Frame::Heartbeat(Default::default())
            };
            ring.home.say(number, alive);
        }
    }
}

#[test]
fn devices_that_are_not_ready_in_time_leave() {
    let cases: [(Script<'_>, &str); 4] = [
        (&|ring| ring.open(), "d1"),
        (
            &|ring| {
                ring.open();
                ring.ready(&[1])
            },
            "d2",
        ),
        (&|ring| ring.ready(&[1, 2]), "d1"),
        (
            &|ring| {
                ring.open();
                ring.ready(&[1, 2])
            },
            "d2",
        ),
    ];
    for (at, (script, at_fault)) in cases.into_iter().enumerate() {
        let mut ring = Ring::of(2);
        ring.shares(&[1, 2]);
        ring.waits();
        script(&mut ring);
        ring.waits();
        let due = ring.home.now + PATIENCE * 2;
        assert_eq!(ring.form.wake_at(&ring.home.roster), Some(due));
        wait(&mut ring, PATIENCE * 2 - Duration::from_millis(1), &[]);
        ring.waits();
        assert!(ring.home.lost().is_empty(), "case {at}");
        wait(&mut ring, Duration::from_millis(1), &[]);
        ring.waits();
        assert_eq!(ring.home.lost(), [format!("{at_fault}: not ready within 20000 ms")], "case {at}");
    }
}

#[test]
fn a_device_that_is_fed_for_ever_has_a_limit() {
    // 4 of 6 layers of 6 MB and the header, twice at 256 kB/s: 33 s, and 20 s of patience.
    for (planted, leaves) in [(Planted::default(), true), (Planted::bug(Bug::FedForEver), false)] {
        let mut ring = Ring::with(2, planted);
        ring.enter(&[1, 2]);
        ring.ready(&[2]);
        wait(&mut ring, SECOND * 52, &[1]);
        ring.waits();
        assert!(ring.home.lost().is_empty());
        wait(&mut ring, SECOND, &[1]);
        ring.waits();
        assert_eq!(!ring.home.lost().is_empty(), leaves);
        if leaves {
            assert_eq!(ring.home.lost(), ["d1: not ready within 53000 ms"]);
        }
    }
}

#[test]
fn a_cancelled_attempt_ends_before_devices_get_their_parts_and_while_they_enter() {
    let mut ring = Ring::of(2);
    ring.waits();
    ring.cancelled = true;
    ring.waits();
    ring.form.planned(Ok(plan(&[(0, 2), (1, 2), (2, 2)])));
    assert_eq!(ring.ends(), Err(RingFault::Cancelled));
    assert_eq!((ring.form.epoch(), ring.parts(1).len()), (Epoch(0), 0));
    ring.cancelled = false;
    ring.enter(&[1, 2]);
    let back = ring.come_back(2, Epoch(1));
    ring.waits();
    ring.cancelled = true;
    assert_eq!(ring.ends(), Err(RingFault::Cancelled));
    assert_eq!((ring.home.closed(back), ring.home.closed(ring.out())), (1, 1));
    assert!(ring.home.lost().is_empty() && matches!(ring.form.route(), Route::Down));
    ring.cancelled = false;
    ring.enter(&[1, 2]);
    assert_eq!(ring.form.epoch(), Epoch(2), "no epoch is used twice");
}

#[test]
fn forming_gives_up_after_so_many_tries() {
    let mut ring = Ring::of(2);
    // 2 + 2 * (2 + 1) tries. Each breaks by a link of a device that then comes back.
    let tries = 8;
    for at in 1..=tries {
        ring.enter(&[1, 2]);
        assert_eq!(ring.form.epoch(), Epoch(at));
        ring.home.fail(1, at, FailureCode::Next);
        if at == tries {
            break;
        }
        ring.waits();
        if ring.home.roster.members() < 2 {
            ring.home.admit(&[2]);
        }
    }
    let Err(RingFault::GaveUp { times: 8, words }) = ring.ends() else { panic!("it must give up") };
    assert_eq!(words, "`d1` says: Next");
    ring.waits();
    assert!(ring.is_planning(), "a new attempt has new tries");
}

#[test]
fn the_planted_bugs_of_forming_show() {
    let mut ring = Ring::with(2, Planted::bug(Bug::SameEpoch));
    ring.enter(&[1, 2]);
    ring.home.fail(1, 1, FailureCode::Next);
    ring.waits();
    ring.shares(&[1, 2]);
    ring.waits();
    assert_eq!(ring.parts(2).iter().map(|part| part.epoch).collect::<Vec<_>>(), [Epoch(1), Epoch(1)]);
    let mut ring = Ring::with(2, Planted::bug(Bug::FormedEarly));
    ring.enter(&[1, 2]);
    ring.come_back(2, Epoch(1));
    ring.ready(&[2]);
    assert_eq!(ring.finish(), Ok(()));
}

#[test]
fn what_comes_over_the_links_of_a_formed_ring_is_told_apart() {
    let mut ring = Ring::formed();
    let (out, back) = (ring.form.formed().unwrap().out.unwrap(), ring.form.formed().unwrap().back.unwrap());
    assert!(matches!(ring.hear(back, Frame::Step(step(Epoch(1)))), Came::Step(_)));
    assert_eq!(ring.hear(back, Frame::Step(step(Epoch(0)))), Came::Refused);
    assert_eq!(ring.hear(out, Frame::Provided), Came::Nothing);
    let late = ring.come_back(1, Epoch(0));
    assert_eq!(ring.hear(late, Frame::Step(step(Epoch(1)))), Came::Refused, "over another link");
    assert_eq!((ring.home.closed(late), ring.home.closed(back)), (1, 0));
    assert_eq!(ring.form.broken(), None);
    let Came::Fault(fault) = ring.hear(back, Frame::Provided) else { panic!("a fault") };
    assert!(matches!(fault, Fault::Wrong { place: 2, .. }));
    assert_eq!(ring.form.broken(), Some(&fault));
}

#[test]
fn links_of_a_formed_ring_that_end_are_faults_and_are_not_closed() {
    let link = |place| Fault::Link { place, words: "cut".to_owned() };
    let wrong = Fault::Wrong { place: 2, words: "no frame".to_owned() };
    let mut ring = Ring::formed();
    let (out, back) = (ring.form.formed().unwrap().out.unwrap(), ring.form.formed().unwrap().back.unwrap());
    assert_eq!(ring.gone(LinkId(77)), None);
    assert_eq!(ring.gone(out), Some(link(1)));
    assert_eq!(ring.form.formed().unwrap().out, None, "nothing is sent to it any more");
    assert_eq!(ring.form.broken(), Some(&link(1)));
    let no_frame = Gone::NoFrame("no frame".to_owned());
    assert_eq!(ring.form.gone(back, &no_frame, ring.home.now), Some(wrong.clone()));
    assert_eq!(ring.form.broken(), Some(&wrong), "what is certain comes first");
    let formed = ring.form.fall(&mut ring.home.fx).unwrap();
    ring.home.settle();
    assert_eq!(formed.places, [device(1), device(2)]);
    assert_eq!((ring.home.closed(out), ring.home.closed(back)), (0, 0));
    assert_eq!(ring.form.broken(), None);
    let mut ring = Ring::formed();
    let back = ring.form.formed().unwrap().back.unwrap();
    assert_eq!(ring.gone(back), Some(link(2)));
    ring.form.end(&mut ring.home.fx);
    ring.home.settle();
    assert_eq!((ring.home.closed(ring.out()), ring.home.closed(back)), (1, 0));
}

#[test]
fn a_link_that_ends_while_the_engine_changes_its_layers_breaks_the_ring_when_it_is_formed() {
    let mut ring = Ring::of(2);
    ring.enter(&[1, 2]);
    let back = ring.come_back(2, Epoch(1));
    ring.ready(&[1, 2]);
    ring.waits();
    assert!(matches!(ring.gone(back), Some(Fault::Link { place: 2, .. })));
    ring.compute(&HeadDone::Done);
    assert_eq!(ring.ends(), Ok(()));
    assert!(ring.form.broken().is_some());
    assert!(ring.home.notes().iter().all(|note| !matches!(note, Note::Left { .. })));
}

#[test]
fn an_end_in_the_middle_closes_every_link() {
    let mut ring = Ring::of(2);
    ring.shares(&[1, 2]);
    ring.waits();
    let (out, back) = (ring.out(), ring.come_back(2, Epoch(1)));
    ring.waits();
    ring.form.end(&mut ring.home.fx);
    ring.home.settle();
    assert_eq!((ring.home.closed(out), ring.home.closed(back)), (1, 1), "one that opens too");
}
