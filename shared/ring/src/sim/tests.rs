//! Tests of the simulation: all checks hold, and all planted bugs are found.

use std::sync::atomic::{AtomicU64, Ordering};

use baton_engine::Wanted;
use baton_random::{SplitMix64, mix};

use super::engine::{FakeEngine, begins, output, pack, unpack};
use super::*;
use crate::core::{Bug, SeqNo, StepNo};
use crate::wire::frame::{Activations, Operation, Span};

fn span(engine: &FakeEngine, seq: u64, ids: &[u32], wanted: Wanted) -> Span {
    let start = engine.ids(SeqNo(seq)).map_or(0, <[u32]>::len) as u64;
    Span { seq: SeqNo(seq), start, wanted, ids: ids.to_vec() }
}

fn create(engine: &mut FakeEngine, seq: u64) {
    engine.apply(&Operation::Create { seq: SeqNo(seq) }).unwrap();
}

/// What the engine must compute, token by token, without chunks, spans or kept keys and values.
fn outputs(ids: &[u32], n_layers: usize) -> Vec<u64> {
    let mut states: Vec<u64> = ids.iter().map(|id| begins(*id)).collect();
    for layer in 0..n_layers as u64 {
        let mut last = layer;
        for state in &mut states {
            last = mix(last, mix(*state, 1000 + layer));
            *state = mix(*state, last);
        }
    }
    states.into_iter().map(output).collect()
}

#[test]
fn hidden_states_keep_all_bits_in_both_formats() {
    for seed in 0..200 {
        let states: Vec<u64> = (0..3).map(|i| mix(seed, i)).collect();
        let hidden = pack(&states);
        assert_eq!(unpack(&hidden), Some(states.clone()));
        let half: Vec<f32> = hidden.values.iter().map(|v| half::f16::from_f32(*v).to_f32()).collect();
        assert_eq!(half, hidden.values);
    }
    for value in [f32::NAN, 0.5, -1.0, 2048.0, f32::INFINITY] {
        let mut hidden = pack(&[7]);
        hidden.values[1] = value;
        assert_eq!(unpack(&hidden), None, "{value}");
    }
    assert_eq!(Activations::default(), Activations::F32);
}

#[test]
fn the_fake_engine_computes_the_same_in_any_chunks() {
    let mut random = SplitMix64::new(3);
    for n_layers in 1..5 {
        let ids: Vec<u32> = (0..40).map(|_| random.below(50) as u32).collect();
        let right = outputs(&ids, n_layers);
        let mut engine = FakeEngine::new(n_layers, (0..n_layers).collect(), 1_000);
        create(&mut engine, 1);
        let mut found = Vec::new();
        let mut at = 0;
        while at < ids.len() {
            let end = (at + 1 + random.below(9)).min(ids.len());
            let spans = [span(&engine, 1, &ids[at..end], Wanted::All)];
            engine.open(StepNo(1), &spans).unwrap();
            let cut = random.below(end - at + 1);
            for rows in [0..cut, cut..end - at] {
                let states = engine.embed(&rows).unwrap();
                let middle = random.below(n_layers + 1);
                let states = engine.run(&rows, &(0..middle), states, n_layers).unwrap();
                let states = if rows.is_empty() {
                    states
                } else {
                    engine.run(&rows, &(middle..n_layers), states, n_layers).unwrap()
                };
                found.extend(states.into_iter().map(output));
            }
            engine.close(StepNo(1), true).unwrap();
            at = end;
        }
        assert_eq!(found, right);
        assert_eq!(engine.disorder, None);
    }
}

#[test]
fn the_fake_engine_sees_rows_out_of_order() {
    let mut engine = FakeEngine::new(1, vec![0], 100);
    create(&mut engine, 1);
    engine.open(StepNo(1), &[span(&engine, 1, &[1, 2], Wanted::All)]).unwrap();
    let states = engine.embed(&(1..2)).unwrap();
    engine.run(&(1..2), &(0..1), states, 1).unwrap();
    assert!(engine.disorder.is_some());
}

#[test]
fn a_cancelled_step_leaves_nothing_and_a_known_prefix_is_found() {
    let mut engine = FakeEngine::new(2, vec![0, 1], 100);
    create(&mut engine, 1);
    create(&mut engine, 2);
    let ids: Vec<u32> = (0..11).collect();
    engine.open(StepNo(1), &[span(&engine, 1, &ids, Wanted::Last)]).unwrap();
    let states = engine.embed(&(0..11)).unwrap();
    engine.run(&(0..11), &(0..2), states, 2).unwrap();
    engine.close(StepNo(1), false).unwrap();
    assert_eq!(engine.ids(SeqNo(1)), Some(&[] as &[u32]));
    assert_eq!(engine.reuse(SeqNo(2), &ids), 0);
    let right = engine.step(&[span(&engine, 1, &ids, Wanted::Last)]).unwrap();
    assert_eq!(right, outputs(&ids, 2)[10..]);
    // Two whole blocks of four, and never all tokens.
    assert_eq!(engine.reuse(SeqNo(2), &ids), 8);
    assert_eq!(engine.step(&[span(&engine, 2, &ids[8..], Wanted::Last)]).unwrap(), right);
    assert_eq!(engine.disorder, None);
}

#[test]
fn a_seed_gives_one_scenario_and_any_part_of_it_is_one() {
    for seed in 0..100 {
        let scenario = Scenario::of(seed);
        assert_eq!(scenario, Scenario::of(seed));
        assert!((1..=4).contains(&scenario.home.workers) && scenario.faults.len() <= 3);
        let part = scenario.only(&[0, 3], &[]);
        assert!(part.script.len() == 2 && part.faults.is_empty());
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn numbers(name: &str) -> Option<Vec<usize>> {
    let list = std::env::var(name).ok()?;
    Some(list.split(',').filter_map(|number| number.parse().ok()).collect())
}

/// Plays one seed in words, if `SIM_SEED` names it. With `SIM_REQUESTS` and `SIM_FAULTS` only those are
/// left, and `SIM_BUG` plants a bug.
#[test]
fn replay() {
    let Some(seed) = number("SIM_SEED") else { return };
    let scenario = Scenario::of(seed);
    let all = |count: usize| (0..count).collect::<Vec<_>>();
    let requests = numbers("SIM_REQUESTS").unwrap_or_else(|| all(scenario.script.len()));
    let faults = numbers("SIM_FAULTS").unwrap_or_else(|| all(scenario.faults.len()));
    let named = std::env::var("SIM_BUG").ok();
    let bug = Bug::ALL.into_iter().find(|bug| named.as_ref() == Some(&format!("{bug:?}")));
    let outcome = play(scenario.only(&requests, &faults), &Options { tells: true, bug });
    println!("{}\n{:?} after {} events", outcome.told.join("\n"), outcome.broken, outcome.events);
    assert_eq!(outcome.broken, None);
}

/// Runs seeds on some threads; the first one that breaks a check is shrunk and told.
fn all_hold(from: u64, count: u64) {
    const THREADS: u64 = 2;
    let next = AtomicU64::new(from);
    let one = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + count {
                return None;
            }
            if run(seed, &Options::default()).broken.is_some() {
                next.store(from + count, Ordering::Relaxed);
                return shrink(seed, &Options::default());
            }
        }
    };
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
        threads.into_iter().find_map(|thread| thread.join().unwrap())
    });
    if let Some(shrunk) = found {
        panic!("{shrunk}");
    }
}

/// `SIM_FROM` and `SIM_COUNT` choose other seeds.
#[test]
fn every_check_holds_on_every_seed() {
    all_hold(number("SIM_FROM").unwrap_or(0), number("SIM_COUNT").unwrap_or(2_000));
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        let found = (0..500).find(|seed| with_bug(bug, *seed).broken.is_some());
        assert!(found.is_some(), "nothing finds {bug:?}");
    }
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    for seed in 0..100 {
        let outcome = run(seed, &Options::default());
        assert_eq!(outcome, run(seed, &Options::default()), "C10: seed {seed}");
    }
    let traces: std::collections::BTreeSet<u64> =
        (0..100).map(|seed| run(seed, &Options::default()).trace).collect();
    assert_eq!(traces.len(), 100);
}

#[test]
fn a_seed_that_breaks_a_check_is_made_shorter() {
    let options = Options { bug: Some(Bug::LastTokenLost), ..Options::default() };
    let seed = (0..500).find(|seed| run(*seed, &options).broken.is_some()).unwrap();
    let shrunk = shrink(seed, &options).unwrap();
    let whole = Scenario::of(seed);
    assert!(shrunk.scenario.script.len() < whole.script.len());
    // What is told is enough to see it again.
    let again = whole.only(&shrunk.requests(), &shrunk.faults());
    assert_eq!(again, shrunk.scenario);
    assert_eq!(play(again, &options).broken.as_ref(), Some(&shrunk.broken));
    assert!(shrunk.to_string().contains(&format!("SIM_SEED={seed}")));
    assert_eq!(shrink(seed, &Options::default()), None);
}
