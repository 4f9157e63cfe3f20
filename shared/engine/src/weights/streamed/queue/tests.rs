//! The order of reads, and that no claim waits for ever.

use super::*;
use proptest::prelude::*;

fn extent(at: usize) -> Extent {
    Extent { part: 0, bytes: at * 10..at * 10 + 10 }
}

/// Returns a queue for a cycle of `len` ranges, with numbered buffers.
fn queue(len: usize, buffers: usize, spared: usize) -> Queue<usize> {
    let mut queue = Queue::new((0..buffers).collect(), spared, true);
    queue.set_cycle((0..len).map(extent).collect(), 0);
    queue
}

/// Starts and finishes every possible read; returns their positions in order.
fn read_all(queue: &mut Queue<usize>) -> Vec<usize> {
    let mut read = Vec::new();
    while let Some(started) = queue.start() {
        read.push(started.extent.bytes.start / 10);
        queue.finish(started.ticket, started.buffer, Ok(()));
    }
    read
}

#[track_caller]
fn take(queue: &mut Queue<usize>, at: usize) -> usize {
    let ticket = queue.claim(&extent(at));
    read_all(queue);
    match queue.take(ticket) {
        Taken::Here(buffer) => buffer,
        other => panic!("{at}: {other:?}"),
    }
}

#[test]
fn reads_run_ahead_in_order_and_around() {
    let mut queue = queue(5, 3, 0);
    assert_eq!(read_all(&mut queue), [0, 1, 2]);
    let mut read = Vec::new();
    for at in [0, 1, 2, 3, 4, 0, 1] {
        let buffer = take(&mut queue, at);
        queue.give_back(buffer);
        read.extend(read_all(&mut queue));
    }
    assert_eq!(read, [3, 4, 0, 1, 2, 3, 4]);
    assert_eq!(queue.in_vain(), 0);
}

#[test]
fn a_walk_that_jumps_is_followed() {
    let mut queue = queue(8, 3, 0);
    read_all(&mut queue);
    // A claim further ahead: everything in between is dropped.
    let buffer = take(&mut queue, 2);
    queue.give_back(buffer);
    assert_eq!(queue.in_vain(), 2);
    assert_eq!(read_all(&mut queue), [5]);
    // A claim elsewhere: reading continues after it.
    let ticket = queue.claim(&extent(6));
    assert_eq!(read_all(&mut queue), [6, 7, 0]);
    assert!(matches!(queue.take(ticket), Taken::Here(_)));
}

#[test]
fn what_is_claimed_takes_the_buffer_of_what_comes_last() {
    let mut queue = queue(8, 3, 0);
    assert_eq!(read_all(&mut queue), [0, 1, 2]);
    for at in [50, 50, 51] {
        queue.ask(extent(at));
    }
    assert!(read_all(&mut queue).is_empty(), "a hint alone takes nothing");
    let buffer = take(&mut queue, 50);
    queue.give_back(buffer);
    assert_eq!(read_all(&mut queue), [51], "what is asked for goes before reading ahead");
    let buffer = take(&mut queue, 51);
    queue.give_back(buffer);
    assert_eq!((read_all(&mut queue), queue.in_vain()), (vec![2], 1), "what was given up is read again");
}

#[test]
fn what_is_claimed_takes_the_buffer_of_a_hint() {
    let mut queue = queue(0, 1, 0);
    queue.ask(extent(3));
    assert_eq!(read_all(&mut queue), [3]);
    // The hint blocks another pass: a claim drops it unless somebody waits for it.
    let first = queue.claim(&extent(3));
    queue.ask(extent(4));
    let second = queue.claim(&extent(5));
    assert!(read_all(&mut queue).is_empty());
    assert!(matches!(queue.take(first), Taken::Here(0)));
    queue.give_back(0);
    assert_eq!(read_all(&mut queue), [5]);
    assert!(matches!(queue.take(second), Taken::Here(0)));
}

#[test]
fn buffers_are_spared_for_what_is_asked_for() {
    let mut queue = queue(8, 4, 2);
    assert_eq!(read_all(&mut queue), [0, 1]);
    queue.ask(extent(50));
    assert_eq!(read_all(&mut queue), [50]);
    // Hinted and never used: dropped when the next token begins.
    queue.forget_asked();
    assert_eq!((read_all(&mut queue), queue.in_vain()), (vec![], 1));
}

#[test]
fn without_reading_ahead_only_what_is_claimed_is_read() {
    let mut queue = Queue::new(vec![0, 1], 0, false);
    queue.set_cycle((0..4).map(extent).collect(), 20);
    assert!(queue.start_caching().is_none());
    assert!(read_all(&mut queue).is_empty());
    let ticket = queue.claim(&extent(2));
    assert!(matches!(queue.take(ticket), Taken::NotYet));
    assert_eq!(read_all(&mut queue), [2]);
    assert!(matches!(queue.take(ticket), Taken::Here(_)));
}

#[test]
fn beyond_the_buffers_the_page_cache_holds_what_comes_next() {
    let mut queue = queue(8, 2, 0);
    queue.set_cycle((0..8).map(extent).collect(), 30);
    let cache_all = |queue: &mut Queue<usize>| -> Vec<usize> {
        std::iter::from_fn(|| queue.start_caching()).map(|extent| extent.bytes.start / 10).collect()
    };
    assert_eq!(read_all(&mut queue), [0, 1]);
    assert_eq!(cache_all(&mut queue), [2, 3, 4], "30 bytes");
    for (at, read, cached) in [(0, 2, 5), (1, 3, 6), (2, 4, 7), (3, 5, 0), (4, 6, 1)] {
        let buffer = take(&mut queue, at);
        queue.give_back(buffer);
        let started = queue.start().unwrap();
        assert_eq!((started.extent.bytes.start / 10, started.cached), (read, true));
        queue.finish(started.ticket, started.buffer, Ok(()));
        assert_eq!(cache_all(&mut queue), [cached]);
    }
    assert_eq!((queue.in_vain(), queue.outdated()), (0, None));
    // A walk that jumps: cached ranges before the position are useless, those after it are kept.
    let ticket = queue.claim(&extent(0));
    let started = queue.start().unwrap();
    assert_eq!((&started.extent, started.cached), (&extent(0), true));
    queue.finish(started.ticket, started.buffer, Ok(()));
    assert!(matches!(queue.take(ticket), Taken::Here(_)));
    assert_eq!((queue.outdated(), queue.outdated()), (Some(extent(7)), None));
    let next = queue.start().unwrap();
    assert_eq!((&next.extent, next.cached), (&extent(1), true));
}

#[test]
fn a_failed_read_reaches_who_claimed_it_and_is_tried_again() {
    let mut queue = queue(3, 1, 0);
    let Read { ticket, buffer, .. } = queue.start().unwrap();
    queue.finish(ticket, buffer, Err(io::ErrorKind::UnexpectedEof.into()));
    let claimed = queue.claim(&extent(0));
    assert!(matches!(queue.take(claimed), Taken::Failed(err) if err.kind() == io::ErrorKind::UnexpectedEof));
    assert_eq!(take(&mut queue, 0), 0);
}

#[test]
fn a_dropped_read_gives_its_buffer_back_when_it_ends() {
    let mut queue = queue(4, 2, 0);
    let first = queue.start().unwrap();
    let second = queue.start().unwrap();
    assert!(queue.start().is_none());
    let ticket = queue.claim(&extent(3));
    assert!(queue.start().is_none(), "both buffers are with readers");
    queue.finish(first.ticket, first.buffer, Ok(()));
    let started = queue.start().unwrap();
    assert_eq!(started.extent.bytes.start, 30);
    queue.finish(second.ticket, second.buffer, Ok(()));
    queue.finish(started.ticket, started.buffer, Ok(()));
    assert!(matches!(queue.take(ticket), Taken::Here(_)));
}

proptest! {
    /// Several passes walk in any order, each holding one range while it computes: each gets all it asks for.
    #[test]
    fn every_claim_is_met(
        len in 0..6_usize,
        buffers in 1..5_usize,
        spared in 0..3_usize,
        cache in 0..4_usize,
        walks in prop::collection::vec(prop::collection::vec((0..9_usize, any::<bool>()), 1..12), 1..4),
        order in prop::collection::vec(0..64_usize, 0..200),
    ) {
        let mut queue = queue(len, buffers, spared);
        queue.set_cycle((0..len).map(extent).collect(), 10 * cache);
        let mut cached = std::collections::HashSet::new();
        let mut walkers: Vec<_> = walks.iter().map(|walk| (walk.iter(), None, None)).collect();
        let mut reading = Vec::new();
        let mut order = order.into_iter().chain((0..).map(|at: usize| at / 3));
        let mut steps = 0;
        while walkers.iter().any(|(walk, claim, held)| walk.len() > 0 || claim.is_some() || held.is_some()) {
            steps += 1;
            prop_assert!(steps < 4_000, "a walk stands still: {queue:?}");
            match order.next().unwrap() % (walkers.len() + 2) {
                0 => if let Some(read) = queue.start() {
                    prop_assert!(!read.cached || cached.remove(&read.extent));
                    reading.push(read);
                } else if let Some(extent) = queue.start_caching() {
                    cached.insert(extent);
                    prop_assert!(queue.cached.len() <= cache);
                },
                1 => if !reading.is_empty() {
                    let read = reading.remove(0);
                    queue.finish(read.ticket, read.buffer, Ok(()));
                } else if let Some(extent) = queue.outdated() {
                    prop_assert!(cached.remove(&extent));
                },
                walker => {
                    let (walk, claim, held) = &mut walkers[walker - 2];
                    if let Some(buffer) = held.take() {
                        queue.give_back(buffer);
                    } else if let Some(ticket) = *claim {
                        match queue.take(ticket) {
                            Taken::NotYet => {}
                            Taken::Here(buffer) => (*claim, *held) = (None, Some(buffer)),
                            Taken::Failed(err) => prop_assert!(false, "{err}"),
                        }
                    } else if let Some((at, asks_first)) = walk.next() {
                        if *asks_first {
                            queue.ask(extent(*at + 1));
                        }
                        *claim = Some(queue.claim(&extent(*at)));
                    }
                }
            }
        }
        // Every buffer can be used again.
        for read in reading {
            queue.finish(read.ticket, read.buffer, Ok(()));
        }
        queue.set_cycle(Vec::new(), 0);
        queue.forget_asked();
        prop_assert_eq!(queue.free.len(), buffers);
        // So can the page cache.
        while let Some(extent) = queue.outdated() {
            prop_assert!(cached.remove(&extent));
        }
        prop_assert!(cached.is_empty(), "{cached:?}");
    }
}
