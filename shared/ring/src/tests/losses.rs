//! Devices and links that are lost at any moment, and frames that are wrong: the answer is the same, only
//! later.

use super::*;
use crate::core::States;
use crate::host::{Machine, OpenShare};
use crate::wire::frame::Frame;
use crate::wire::link::Purpose;
use crate::wire::memory::{Fate, Passing};
use std::path::Path;
use std::time::Instant;

/// The result of one engine.
static WANT: LazyLock<(Vec<f32>, Vec<TokenId>)> =
    LazyLock::new(|| written(&mut one_engine(), &prompt(3, 60), 5));

/// A home of a head and two workers that share the layers in two rounds.
fn home() -> Home {
    home_of(2)
}

fn head(home: &Home) -> RingHead {
    home.head(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])))
}

/// Counts frames of the ring; `fate` decides what happens to the one with this number.
fn at_frame(home: &Home, number: usize, mut fate: impl FnMut(&Passing<'_>) -> Fate + Send + 'static) {
    let mut seen = 0;
    home.hub.hook(move |passing| {
        let step = matches!(Frame::decode(passing.frame), Ok(Frame::Step(_)));
        if passing.purpose == Purpose::Control || !step {
            return Fate::Pass;
        }
        seen += 1;
        if seen == number { fate(passing) } else { Fate::Pass }
    });
}

/// Computes the answer and checks that it equals that of one engine.
#[track_caller]
fn check_answer(head: &mut RingHead, what: &str) -> RingHandle {
    let (logits, text) = written(head, &prompt(3, 60), 5);
    assert_eq!(text, WANT.1, "{what}");
    assert_same_bits(&logits, &WANT.0, what);
    head.handle()
}

fn lost(handle: &RingHandle) -> Vec<String> {
    handle.stats().lost.into_iter().map(|lost| lost.name).collect()
}

#[test]
fn a_worker_that_dies_with_a_frame_is_replaced_by_the_others() {
    let home = home();
    let mut head = head(&home);
    let hub = Arc::clone(&home.hub);
    // The frame itself arrives.
    at_frame(&home, 9, move |_| {
        hub.kill(1);
        Fate::Pass
    });
    let handle = check_answer(&mut head, "w1 dies with frame 9");
    assert_eq!(lost(&handle), ["w1"]);
    assert!(handle.stats().recoveries >= 1);
}

#[test]
fn when_all_are_gone_the_head_goes_on_alone() {
    let home = home();
    let mut head = head(&home);
    let hub = Arc::clone(&home.hub);
    at_frame(&home, 12, move |_| {
        hub.kill(1);
        hub.kill(2);
        Fate::Cut
    });
    let handle = check_answer(&mut head, "both die");
    let mut names = lost(&handle);
    names.sort();
    assert_eq!(names, ["w1", "w2"]);
    assert_eq!(handle.stats().devices.len(), 1);
}

#[test]
fn a_head_that_cannot_hold_the_model_alone_says_so() {
    let home = home_of(1);
    let mut head = home.head(|of: &PlanFor| match of.workers.len() {
        0 => Err("the head holds 2 of 5 layers".to_owned()),
        _ => Ok(plan(1, &[("head", 2), ("w1", 3)])),
    });
    let hub = Arc::clone(&home.hub);
    at_frame(&home, 3, move |_| {
        hub.kill(1);
        Fate::Pass
    });
    let seq = head.create_in(PrefixScope::default(), None).unwrap();
    let ids = prompt(3, 60);
    let refused = (0..10).find_map(|_| head.step(&[step(seq, &ids, Wanted::Last)], &mut ()).err()).unwrap();
    let words = baton_terminal::chain(&refused);
    assert!(words.contains("no plan for head: the head holds 2 of 5 layers"), "{words}");
    assert!(words.contains("the ring lacks `w1` ("), "{words}");
    assert_eq!(head.len(seq).unwrap(), 0, "the step changed nothing");
}

#[test]
fn a_link_that_is_cut_costs_an_epoch_but_no_device() {
    let home = home();
    let mut head = head(&home);
    at_frame(&home, 7, |_| Fate::Cut);
    let handle = check_answer(&mut head, "cut with frame 7");
    assert!(lost(&handle).is_empty(), "{:?}", handle.stats());
    assert_eq!(handle.stats().epoch, 2);
}

#[test]
fn a_frame_that_is_lost_is_noticed_by_the_deadline() {
    let home = home();
    let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    let mut head = home.head_with(model(), planner, |options| {
        options.heartbeat = Duration::from_millis(400);
        options.floor = Duration::from_millis(1500);
        options.token = Duration::ZERO;
    });
    at_frame(&home, 6, |_| Fate::Instead(Vec::new()));
    let handle = check_answer(&mut head, "frame 6 is lost");
    assert!(handle.stats().recoveries >= 1);
}

#[test]
fn a_worker_that_stands_still_is_lost_by_its_silence() {
    let home = home();
    let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    let mut head = home.head_with(model(), planner, |options| {
        options.heartbeat = Duration::from_millis(400);
        options.patience = Duration::from_secs(4);
    });
    let (mut seen, key): (usize, DeviceId) = (0, DeviceId([2; 32]));
    // From its fifth frame on it sends nothing more, not even heartbeats, but its links stay open.
    home.hub.hook(move |passing| {
        let from = passing.from == key;
        seen += usize::from(from && passing.purpose == Purpose::Ring);
        if from && seen >= 5 { Fate::Instead(Vec::new()) } else { Fate::Pass }
    });
    let handle = check_answer(&mut head, "w2 stands still");
    assert!(lost(&handle).contains(&"w2".to_owned()), "{:?}", handle.stats());
}

/// A machine on which models cannot be opened: the code panics, as often as it says.
#[derive(Debug)]
struct Panics(Mutex<usize>);

impl Machine for Panics {
    fn model_bytes(&self) -> Option<u64> {
        None
    }

    fn open(
        &self,
        path: &Path,
        share: &OpenShare,
    ) -> Result<Arc<Model>, Box<dyn std::error::Error + Send + Sync>> {
        let mut left = self.0.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            drop(left);
            panic!("an odd matrix");
        }
        TestMachine::default().open(path, share)
    }
}

#[test]
fn a_worker_whose_engine_panics_says_so_and_serves_the_next_head() {
    let mut home = home_of(0);
    home.add_on(1, vec![model_path()], Arc::new(Panics(Mutex::new(1))));
    let ring = || home.head(first(plan(1, &[("head", 2), ("w1", 3)])));
    let handle = check_answer(&mut ring(), "alone");
    let stats = handle.stats();
    assert_eq!(lost(&handle), ["w1"]);
    let words = "the engine panicked: an odd matrix";
    assert!(stats.lost[0].words.contains(words), "{stats:?}");
    let said = |(_, event): &(u8, WorkerEvent)| matches!(event, WorkerEvent::Failed { words: said, .. } if said.contains(words));
    // The worker's program is told after the head is.
    let begun = Instant::now();
    while !home.events.lock().unwrap().iter().any(said) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the worker does not say it");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut next = ring();
    check_answer(&mut next, "with the worker");
    let stats = next.handle().stats();
    assert!(
        stats.lost.is_empty() && stats.devices.len() == 2,
        "{stats:?}, {:?}",
        home.events.lock().unwrap()
    );
}

#[test]
fn who_sends_what_is_no_number_is_ejected() {
    let home = home();
    let mut head = home.head(first(plan(1, &[("head", 1), ("w1", 2), ("w2", 2)])));
    // To the next worker.
    at_frame(&home, 2, |passing| {
        let Ok(Frame::Step(mut step)) = Frame::decode(passing.frame) else { panic!("a step frame") };
        let mut hidden = std::mem::take(&mut step.states).into_hidden();
        hidden.values[5] = f32::NAN;
        step.states = States::of(hidden);
        Fate::Instead(vec![Frame::Step(step).encode()])
    });
    let handle = check_answer(&mut head, "no number");
    assert_eq!(lost(&handle), ["w1"]);
    assert!(handle.stats().lost[0].words.contains("no number"), "{:?}", handle.stats());
}
