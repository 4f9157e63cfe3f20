//! Weights from other workers: pieces that one of them has need not come from the head.

use std::collections::BTreeMap;

use super::*;
use crate::wire::frame::Frame;
use crate::wire::memory::Fate;

/// A model with several pieces per layer.
static LARGE: LazyLock<Fixture> = LazyLock::new(|| Fixture::of(64, 704, 12));

/// The result of one engine.
static WANT: LazyLock<(Vec<f32>, Vec<TokenId>)> = LazyLock::new(|| {
    let mut engine = Engine::new(Arc::clone(&LARGE.model), engine_options(256)).unwrap();
    written(&mut engine, &prompt(5, 20), 2)
});

/// Number of pieces that passed, by sender and receiver.
type Pieces = Arc<Mutex<BTreeMap<(u8, u8), usize>>>;

/// Counts pieces as they arrive.
fn counted(home: &Home) -> Pieces {
    let pieces = Pieces::default();
    let own = Arc::clone(&pieces);
    home.hub.hook(move |passing| {
        if matches!(Frame::decode(passing.frame), Ok(Frame::Piece(_))) {
            *own.lock().unwrap().entry((passing.from.0[0], passing.to.0[0])).or_default() += 1;
        }
        Fate::Pass
    });
    pieces
}

/// One worker has all layers but the head's; then a second one takes over three of them.
fn second_comes(mut home: Home) -> (Home, RingHead, Pieces) {
    let planner = |of: &PlanFor| {
        let names: Vec<&str> = of.workers.iter().map(|hello| hello.name.as_str()).collect();
        Ok(match names[..] {
            [] => plan(1, &[("head", LAYERS)]),
            [one] => plan(1, &[("head", 1), (one, 4)]),
            _ => plan(1, &[("head", 1), ("w1", 1), ("w2", 3)]),
        })
    };
    home.add(1, Vec::new());
    let pieces = counted(&home);
    let mut head = home.head_with(Arc::clone(&LARGE.model), Box::new(planner), |_| {});
    assert_same_bits(&written(&mut head, &prompt(5, 20), 2).0, &WANT.0, "with the first worker");
    let first = pieces.lock().unwrap().clone();
    assert!(first[&(0, 1)] >= 12 && first.len() == 1, "four layers from the head: {first:?}");
    home.add(2, Vec::new());
    let handle = head.handle();
    handle.join(Home::node(2));
    until_serves(&handle, "w2", || head.between_answers());
    (home, head, pieces)
}

fn from(pieces: &Pieces, from: u8, to: u8) -> usize {
    pieces.lock().unwrap().get(&(from, to)).copied().unwrap_or(0)
}

#[test]
fn a_worker_gets_what_another_has_from_it_and_nothing_from_the_head() {
    let (home, mut head, pieces) = second_comes(home_of(0));
    assert_same_bits(&written(&mut head, &prompt(5, 20), 2).0, &WANT.0, "with both");
    assert_eq!(head.handle().stats().devices.len(), 3);
    let (by_head, by_worker) = (from(&pieces, 0, 2), from(&pieces, 1, 2));
    assert!(by_head == 0 && by_worker >= 9, "{by_head} pieces from the head, {by_worker} from the worker");
    let mut whole = Engine::new(Arc::clone(&LARGE.model), engine_options(256)).unwrap();
    let want = written(&mut whole, &prompt(6, 30), 2);
    assert_same_bits(&written(&mut head, &prompt(6, 30), 2).0, &want.0, "another text");
    drop((head, home));
}
