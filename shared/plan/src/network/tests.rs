//! Rings compared with all permutations, and hops with all paths.

use super::*;
use crate::cluster::Edge;
use crate::sample::{cluster, device, drawn, model};

/// Returns all orders of `items`.
fn orders(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in items.iter().enumerate() {
        let rest: Vec<usize> =
            items.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, item)| *item).collect();
        all.extend(orders(&rest).into_iter().map(|order| [&[*first], order.as_slice()].concat()));
    }
    all
}

#[test]
fn the_shortest_ring_is_that_of_all_orders() {
    for seed in 0..40 {
        let (cluster, model, workload) = drawn(seed, 5, 10);
        let hops = Hops::new(&cluster, &model, &workload);
        let others = [1, 2, 3, 4];
        let rings = Rings::shortest(&hops, 0, &others);
        for set in 0..16_usize {
            let inside: Vec<usize> = (0..4).filter(|at| set >> at & 1 == 1).map(|at| others[at]).collect();
            let around = |order: Vec<usize>| hops.around(&[&[0], order.as_slice()].concat());
            let least = orders(&inside).into_iter().map(around).fold(f64::INFINITY, f64::min);
            let found = hops.around(&rings.ring(&hops, set));
            assert!(
                (rings.around(set) - least).abs() <= 1e-12 * least || rings.around(set) == least,
                "{seed} {set}"
            );
            assert!(
                (found - least).abs() <= 1e-12 * least || found == least,
                "{seed} {set}: {found} {least}"
            );
        }
        let local = hops.around(&[&[0], short_order(&hops, 0, &others).as_slice()].concat());
        assert!(local >= rings.around(15) - 1e-12, "{seed}");
    }
}

#[test]
fn devices_that_do_not_see_each_other_are_relayed() {
    let mut described = cluster(vec![device("a", 1.0), device("b", 1.0), device("c", 1.0)]);
    let blind = Edge { from: "a".to_owned(), to: "c".to_owned(), latency_s: None, bytes_per_s: None };
    described.network.edges.push(blind.clone());
    let hops = Hops::new(&described, &model(4), &Workload::default());
    assert_eq!(hops.relays(0, 2), [1]);
    assert_eq!(hops.relays(2, 0), [1], "an edge counts in both directions");
    assert_eq!(hops.relays(0, 1), [] as [usize; 0]);
    assert!((hops.seconds(0, 2) - 2.0 * hops.seconds(0, 1)).abs() < 1e-12);
    // The opposite edge, if given, decides its own direction.
    described.network.edges.push(Edge {
        from: "c".to_owned(),
        to: "a".to_owned(),
        latency_s: Some(1e-3),
        ..blind
    });
    let hops = Hops::new(&described, &model(4), &Workload::default());
    assert_eq!((hops.relays(2, 0), hops.relays(0, 2)), (vec![], vec![1]));
    for at in ["a", "c"] {
        described.network.edges.push(Edge {
            from: "b".to_owned(),
            to: at.to_owned(),
            latency_s: None,
            bytes_per_s: None,
        });
    }
    let hops = Hops::new(&described, &model(4), &Workload::default());
    assert!(hops.seconds(0, 1).is_infinite() && hops.relays(0, 1).is_empty());
}
