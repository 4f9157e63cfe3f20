//! Every figure of an explanation comes from a search.

use super::*;
use crate::sample::{cluster, device, model};

#[test]
fn every_figure_is_that_of_a_search() {
    let mut far = device("far", 30.0);
    far.cpu.read_bytes_per_s = 0.5e9;
    let described = cluster(vec![device("a", 6.0), device("b", 6.0), far]);
    let shape = model(10);
    let workload = Workload { context: 64, sequences: 1 };
    let options = SearchOptions::default();
    let plan = search(&described, &shape, workload, &options).unwrap();
    let explanation = explain(&described, &shape, workload, &options, &plan).unwrap();
    assert_eq!(plan.shares.iter().map(|share| share.device.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let now = explanation.prediction.token_s;
    assert_eq!(explanation.left_out.len(), 1);
    assert!(explanation.left_out[0].device == "far" && explanation.left_out[0].token_s.unwrap() > now);
    let without_b = explanation.without.iter().find(|what| what.device == "b").unwrap().token_s.unwrap();
    let rest = described.without("b");
    let alone = search(&rest, &shape, workload, &options).unwrap();
    let token_s = Costs::new(&rest, &shape, workload).unwrap().predict(&alone).unwrap().token_s;
    assert!((without_b - token_s).abs() < 1e-12 && without_b >= now);
    assert!(explanation.twice.iter().all(|what| what.token_s.unwrap() <= now * (1.0 + 1e-12)));
    let least = explanation.rounds.iter().filter_map(|rounds| rounds.token_s).fold(f64::INFINITY, f64::min);
    assert!((least - now).abs() < 1e-12);
    assert_eq!(explanation.bound_by.1, Cause::Compute, "{explanation:?}");
}
