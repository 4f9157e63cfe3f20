//! Weights from other workers: pieces that one of them has need not come from the head. A worker that does
//! not serve them properly costs only time.

use std::collections::BTreeMap;

use super::*;
use crate::ring::frame::{Frame, PieceData};
use crate::ring::link::Purpose;
use crate::ring::link::memory::{Fate, Passing};

/// A model with several pieces per layer.
static LARGE: LazyLock<Fixture> = LazyLock::new(|| Fixture::of(64, 704, 12));

/// The result of one engine.
static WANT: LazyLock<(Vec<f32>, Vec<TokenId>)> = LazyLock::new(|| {
    let mut engine = Engine::new(Arc::clone(&LARGE.model), engine_options(256)).unwrap();
    written(&mut engine, &prompt(5, 20), 2)
});

/// Number of pieces that passed, by sender and receiver.
type Pieces = Arc<Mutex<BTreeMap<(u8, u8), usize>>>;

/// Counts pieces as they arrive; `fate` decides what happens to those between workers, which are counted
/// from 1 on.
fn counted(home: &Home, mut fate: impl FnMut(usize, &Passing<'_>) -> Fate + Send + 'static) -> Pieces {
    let pieces = Pieces::default();
    let (own, mut between) = (Arc::clone(&pieces), 0);
    home.hub.hook(move |passing| {
        let Ok(Frame::Piece(_)) = Frame::decode(passing.frame) else { return Fate::Pass };
        let pair = (passing.from[0], passing.to[0]);
        *own.lock().unwrap().entry(pair).or_default() += 1;
        if passing.purpose != Purpose::Weights {
            return Fate::Pass;
        }
        between += 1;
        fate(between, passing)
    });
    pieces
}

/// One worker has all layers but the head's; then a second one takes over three of them.
fn second_comes(
    mut home: Home,
    fate: impl FnMut(usize, &Passing<'_>) -> Fate + Send + 'static,
) -> (Home, RingHead, Pieces) {
    let planner = |workers: &[Hello]| {
        let names: Vec<&str> = workers.iter().map(|hello| hello.name.as_str()).collect();
        Ok(match names[..] {
            [] => plan(1, &[("head", LAYERS)]),
            [one] => plan(1, &[("head", 1), (one, 4)]),
            _ => plan(1, &[("head", 1), ("w1", 1), ("w2", 3)]),
        })
    };
    home.add(1, Vec::new());
    let pieces = counted(&home, fate);
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
    let (home, mut head, pieces) = second_comes(Home::new(0), |_, _| Fate::Pass);
    assert_same_bits(&written(&mut head, &prompt(5, 20), 2).0, &WANT.0, "with both");
    assert_eq!(head.handle().stats().devices.len(), 3);
    let (by_head, by_worker) = (from(&pieces, 0, 2), from(&pieces, 1, 2));
    assert!(by_head == 0 && by_worker >= 9, "{by_head} pieces from the head, {by_worker} from the worker");
    let mut whole = Engine::new(Arc::clone(&LARGE.model), engine_options(256)).unwrap();
    let want = written(&mut whole, &prompt(6, 30), 2);
    assert_same_bits(&written(&mut head, &prompt(6, 30), 2).0, &want.0, "another text");
    drop((head, home));
}

/// Checks what happens if a worker does `fate` instead of serving its fourth piece.
#[track_caller]
fn check_instead(what: &str, mut fate: impl FnMut(&Passing<'_>) -> Fate + Send + 'static) -> usize {
    let fate = move |number, passing: &Passing<'_>| if number == 4 { fate(passing) } else { Fate::Pass };
    let (home, mut head, pieces) = second_comes(Home::new(0), fate);
    assert_same_bits(&written(&mut head, &prompt(5, 20), 2).0, &WANT.0, what);
    let stats = head.handle().stats();
    assert!(stats.lost.is_empty() && stats.devices.len() == 3, "{what}: {stats:?}");
    let (by_head, by_worker) = (from(&pieces, 0, 2), from(&pieces, 1, 2));
    assert!(by_worker >= 4 && by_head >= 5, "{what}: {by_head} from the head, {by_worker} from the worker");
    drop((head, home));
    by_head + 3
}

#[test]
fn what_a_worker_does_not_give_comes_from_the_head() {
    let changed = |passing: &Passing<'_>, change: fn(&mut PieceData)| {
        let Ok(Frame::Piece(mut piece)) = Frame::decode(passing.frame) else { panic!("a piece") };
        change(&mut piece);
        Fate::Instead(vec![Frame::Piece(piece).encode()])
    };
    let pieces = [
        check_instead("the link ends", |_| Fate::Cut),
        check_instead("it says nothing more", |_| Fate::Instead(Vec::new())),
        check_instead("other bytes", move |passing| changed(passing, |piece| piece.bytes[77] ^= 1)),
        check_instead("a short piece", move |passing| changed(passing, |piece| piece.bytes.truncate(9))),
        check_instead("another piece", move |passing| changed(passing, |piece| piece.index += 1)),
        check_instead("no piece", |_| Fate::Instead(vec![Frame::FetchManifest.encode()])),
        check_instead("no frame", |_| Fate::Instead(vec![vec![0xff; 40]])),
    ];
    assert!(pieces.iter().all(|n| *n == pieces[0]), "no piece is fetched twice: {pieces:?}");
}

#[test]
fn a_worker_that_dies_while_it_gives_costs_nothing_but_itself() {
    let home = Home::new(0);
    let hub = Arc::clone(&home.hub);
    let dies = move |number, _: &Passing<'_>| {
        if number == 4 {
            hub.kill(1);
        }
        Fate::Pass
    };
    let (home, mut head, pieces) = second_comes(home, dies);
    assert_same_bits(&written(&mut head, &prompt(5, 20), 2).0, &WANT.0, "without the first worker");
    let stats = head.handle().stats();
    let lost: Vec<&str> = stats.lost.iter().map(|lost| lost.name.as_str()).collect();
    assert_eq!(lost, ["w1"], "{stats:?}, {:?}", home.events.lock().unwrap());
    assert_eq!(stats.devices.len(), 2, "{stats:?}");
    assert!(from(&pieces, 1, 2) >= 3 && from(&pieces, 0, 2) > 5, "{:?}", pieces.lock().unwrap());
    drop((head, home));
}
