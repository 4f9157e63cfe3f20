//! When something is tested, and what is shown.

use std::time::Duration;

use baton_engine::engine::Hidden;

use super::*;
use crate::core::head::tests::setup;
use crate::core::layout::Layout;

const SECOND: Duration = Duration::from_secs(1);

fn health() -> Health {
    Health::new(&setup("head", 4), Duration::ZERO)
}

/// The head has layers 0 and 3, others have 1 and 2.
fn layout() -> Layout {
    let window = |round, place, begin, end| baton_plan::Window { round, place, begin, end, gpu: 0 };
    let windows = vec![window(0, 0, 0, 1), window(0, 1, 1, 2), window(0, 2, 2, 3), window(1, 0, 3, 4)];
    Layout { names: Vec::new(), windows, prefetch_bytes: vec![0; 3], n_layers: 4 }
}

#[test]
fn times_are_of_what_came_since_the_last_look_and_of_enough() {
    let mut health = health();
    assert_eq!(health.since("desk", (15, 15_000)), None);
    assert_eq!(health.since("desk", (20, 40_000)), Some(0.002));
    assert_eq!(health.since("desk", (30, 99_000)), None, "10 more");
    assert_eq!(health.since("desk", (40, 140_000)), Some(0.005));
    assert_eq!(health.since("phone", (16, 16_000)), Some(0.001));
    health.formed();
    assert_eq!(health.since("phone", (16, 32_000)), Some(0.002), "a new ring counts anew");
}

#[test]
fn a_slow_ring_is_probed_less_often_but_not_too_seldom() {
    let mut health = health();
    assert!(!health.begin_probe(SECOND * 9));
    assert!(health.begin_probe(SECOND * 10));
    health.end_probe(SECOND * 11);
    assert!(!health.begin_probe(SECOND * 60), "50 times the second that it took");
    assert!(health.begin_probe(SECOND * 61));
    health.end_probe(SECOND * 161);
    assert!(!health.begin_probe(SECOND * 660));
    assert!(health.begin_probe(SECOND * 661), "50 times the usual pause at most");
}

#[test]
fn audits_go_on_where_they_stopped_and_differ() {
    let (mut health, layout) = (health(), layout());
    assert!(health.audit_is_due(false, Duration::ZERO));
    health.begin_audits(SECOND);
    let mut seen = Vec::new();
    for at in [(1, 1), (2, 2), (1, 1)] {
        assert_eq!(health.next_audit(&layout), Some(at));
        assert_eq!(health.audit_ids().len(), ROWS);
        assert!(!seen.contains(&health.audit_ids().to_vec()));
        seen.push(health.audit_ids().to_vec());
    }
    health.begin_audits(SECOND);
    assert_eq!(health.next_audit(&layout), Some((2, 2)));
    assert!(health.goes_on(&layout, SECOND), "there is time, and another layer");
    assert_eq!(health.next_audit(&layout), Some((1, 1)));
    assert!(!health.goes_on(&layout, SECOND), "all layers");
    assert!(!health.audit_is_due(true, SECOND * 10));
    assert!(health.audit_is_due(true, SECOND * 11));
    assert!(!health.audit_is_due(false, SECOND * 60), "before an answer six times as long");
    assert!(health.audit_is_due(false, SECOND * 61));
    health.begin_audits(SECOND);
    health.next_audit(&layout);
    assert!(!health.goes_on(&layout, SECOND + BUDGET), "no time is left");
    let alone = Layout { windows: layout.windows[..1].to_vec(), ..layout };
    assert_eq!(health.next_audit(&alone), None);
}

#[test]
fn bits_decide_and_own_layers_are_read_in_turn() {
    let states = |value| States::of(Hidden { rows: 1, width: 1, values: vec![value] });
    let (mut health, layout) = (health(), layout());
    health.next_audit(&layout);
    health.keep(states(1.0), states(0.0));
    assert!(!health.is_right(&states(-0.0), false));
    health.keep(states(1.0), states(0.5));
    assert!(health.is_right(&states(0.5), false));
    let read: Vec<Vec<usize>> = (0..3).map(|_| health.next_own_layer(&layout)).collect();
    assert_eq!(read, [[0], [3], [0]]);
    let relay = Layout { windows: layout.windows[1..3].to_vec(), ..layout };
    assert_eq!(health.next_own_layer(&relay), Vec::<usize>::new());
}
