//! The search compared with all plans of small clusters.

use super::*;
use crate::network::Hops;
use crate::sample::{cluster, device, drawn, model};

/// Returns the least time over all layers, GPU layers, sets and rounds, in the cluster's order, the head
/// first.
fn brute(cluster: &Cluster, model: &ModelShape, workload: Workload) -> f64 {
    let costs = Costs::new(cluster, model, workload).unwrap();
    let mut best = f64::INFINITY;
    let mut counts = vec![0; cluster.devices.len()];
    loop {
        if counts.iter().sum::<usize>() == model.layers {
            best = best.min(best_of(&costs, &counts));
        }
        // Counts up: the next number with digits 0 to L.
        let Some(at) = counts.iter().position(|count| *count < model.layers) else { return best };
        counts[at] += 1;
        counts[..at].fill(0);
    }
}

fn best_of(costs: &Costs<'_>, counts: &[usize]) -> f64 {
    let ring: Vec<usize> = (0..counts.len()).filter(|at| *at == 0 || counts[*at] > 0).collect();
    let least = counts.iter().copied().filter(|count| *count > 0).min().unwrap_or(0);
    let rounds = if ring.len() > 1 { least.min(ROUNDS_MAX) } else { 1 };
    let around = costs.hops.around(&ring);
    // All ways of splitting each share between CPU and GPU.
    let mut ways: Vec<Vec<Holding>> = vec![Vec::new()];
    for at in &ring {
        let own: Vec<Holding> =
            (0..=counts[*at]).filter_map(|gpu| costs.holding(*at, counts[*at], gpu, *at == 0)).collect();
        ways = ways
            .iter()
            .flat_map(|before| own.iter().map(move |held| [before.as_slice(), &[*held]].concat()))
            .collect();
    }
    let token_s = |held: &Vec<Holding>, rounds| Costs::settle(held, rounds, around);
    let all = ways.iter().flat_map(|held| (1..=rounds).map(move |rounds| token_s(held, rounds)));
    all.fold(f64::INFINITY, f64::min)
}

#[test]
fn no_plan_is_better_in_the_clusters_order() {
    let (mut planned, mut many) = (0, 0);
    for seed in 0..150 {
        let (cluster, model, workload) = drawn(seed, 1 + seed as usize % 3, 2 + seed as usize % 6);
        let least = brute(&cluster, &model, workload);
        let options = SearchOptions { fixed_order: true, ..SearchOptions::default() };
        let Ok(plan) = search(&cluster, &model, workload, &options) else {
            assert!(least.is_infinite(), "{seed}: there is a plan of {least} s");
            continue;
        };
        let found = Costs::new(&cluster, &model, workload).unwrap().predict(&plan).unwrap().token_s;
        assert!((found - least).abs() <= 1e-9 * least, "{seed}: {found}, brute force {least}: {plan:?}");
        assert!(plan.is_whole());
        planned += 1;
        many += usize::from(plan.rounds > 1);
    }
    assert!(planned > 100 && many > 0, "{planned} plans, {many} of several rounds");
}

#[test]
fn the_best_order_is_no_worse_and_a_line_of_devices_agrees_with_sets() {
    for seed in 0..60 {
        let (cluster, model, workload) = drawn(seed, 5, 16);
        let token_s = |options: &SearchOptions| {
            let plan = search(&cluster, &model, workload, options).ok()?;
            Some(Costs::new(&cluster, &model, workload).unwrap().predict(&plan).unwrap().token_s)
        };
        let fixed = SearchOptions { fixed_order: true, ..SearchOptions::default() };
        let Some(in_order) = token_s(&fixed) else { continue };
        assert!(token_s(&SearchOptions::default()).unwrap() <= in_order * (1.0 + 1e-12), "{seed}");
        let costs = Costs::new(&cluster, &model, workload).unwrap();
        let mut best = None;
        line::improve_orders(&Field::new(&costs, 0), &[1, 2, 3, 4], &fixed, None, &mut best);
        let along = best.unwrap().token_s;
        assert!((along - in_order).abs() <= 1e-9 * in_order, "{seed}: {along} {in_order}");
    }
}

#[test]
fn any_head_is_no_worse_than_a_named_one_and_a_forced_device_takes_part() {
    for seed in 0..40 {
        let (mut cluster, model, workload) = drawn(seed, 4, 12);
        let token_s = |cluster: &Cluster, options: &SearchOptions| {
            let plan = search(cluster, &model, workload, options).ok()?;
            let token_s = Costs::new(cluster, &model, workload).unwrap().predict(&plan).unwrap().token_s;
            Some((token_s, plan))
        };
        let Some((named, _)) = token_s(&cluster, &SearchOptions::default()) else { continue };
        if let Some((forced, plan)) =
            token_s(&cluster, &SearchOptions { with: Some("d3".to_owned()), ..SearchOptions::default() })
        {
            assert!(forced >= named * (1.0 - 1e-12));
            assert!(plan.shares.iter().any(|share| share.device == "d3"), "{plan:?}");
        }
        cluster.head = None;
        assert!(token_s(&cluster, &SearchOptions::default()).unwrap().0 <= named * (1.0 + 1e-12), "{seed}");
    }
}

#[test]
fn many_devices_are_planned_along_an_order_that_uses_the_network() {
    // Twelve devices in two rooms; hops between rooms are slow.
    let mut described = cluster((0..12).map(|at| device(&format!("d{at}"), 3.0)).collect());
    let room = |at: usize| at % 2;
    for from in 0..12 {
        for to in (0..12).filter(|to| room(*to) != room(from)) {
            described.network.edges.push(crate::cluster::Edge {
                from: format!("d{from}"),
                to: format!("d{to}"),
                latency_s: Some(0.1),
                bytes_per_s: None,
            });
        }
    }
    let shape = model(30);
    let workload = Workload { context: 16, sequences: 1 };
    let plan = search(&described, &shape, workload, &SearchOptions::default()).unwrap();
    let hops = Hops::new(&described, &shape, &workload);
    let ring: Vec<usize> = plan.shares.iter().map(|share| described.index(&share.device).unwrap()).collect();
    let crossings =
        ring.iter().zip(ring.iter().cycle().skip(1)).filter(|(a, b)| room(**a) != room(**b)).count();
    assert!(crossings <= 2, "{ring:?}, {} s around", hops.around(&ring));
}

#[test]
fn where_nothing_fits_the_error_says_who_holds_what() {
    let mut small = device("phone", 2.0);
    small.disk.sequential_bytes_per_s = 0.01e9;
    let error =
        search(&cluster(vec![small]), &model(8), Workload { context: 16, sequences: 1 }, &Default::default());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no plan for 8 layers of `sample`: `phone` can hold 2 layers"), "{error}");
}

#[test]
fn where_the_disk_sets_the_time_the_rounds_are_those_that_keep_the_least_memory() {
    let kept = |costs: &Costs<'_>, plan: &Plan| {
        let prediction = costs.predict(plan).unwrap();
        (prediction.token_s, prediction.devices.iter().map(|device| device.prefetch_bytes).sum::<f64>())
    };
    let mut equal = 0;
    for seed in 0..40 {
        let mut devices = [device("a", 2.0 + f64::from(seed % 4)), device("b", 3.0)];
        for device in &mut devices {
            device.disk.sequential_bytes_per_s = 0.4e9 + 0.02e9 * f64::from(seed);
            device.stream_bytes = 50e6;
        }
        let (cluster, model) = (cluster(devices.to_vec()), model(16));
        let workload = Workload { context: 64, sequences: 1 };
        let plan = search(&cluster, &model, workload, &SearchOptions::default()).unwrap();
        let costs = Costs::new(&cluster, &model, workload).unwrap();
        let (token_s, memory) = kept(&costs, &plan);
        let least = plan.shares.iter().map(|share| share.layers).min().unwrap();
        for rounds in 1..=least {
            let (other_s, other) = kept(&costs, &Plan { rounds, ..plan.clone() });
            assert!(other_s >= token_s * (1.0 - 1e-9), "{seed}: {rounds} rounds take {other_s} of {token_s}");
            if rounds != plan.rounds && other_s <= token_s {
                assert!(memory <= other + 1e-3, "{seed}: {rounds} rounds keep {other} of {memory}");
                equal += usize::from(other > memory + 1e6);
            }
        }
    }
    assert!(equal > 5, "{equal} numbers of rounds that keep more");
}

#[test]
fn a_smaller_model_is_not_predicted_slower_whatever_its_attention() {
    let cluster: Cluster = serde_json::from_str(include_str!("../../data/paper-table-3.json")).unwrap();
    let models: Vec<ModelShape> = serde_json::from_str(include_str!("../../data/paper-models.json")).unwrap();
    let cluster = ["D5", "D6"].iter().fold(cluster, |cluster, name| cluster.without(name));
    let mut first = Vec::new();
    for context in [128, 512, 1024, 2048, 4096] {
        let workload = Workload { context, sequences: 1 };
        let token_s = |model: &ModelShape| {
            let plan = search(&cluster, model, workload, &SearchOptions::default()).unwrap();
            Costs::new(&cluster, model, workload).unwrap().predict(&plan).unwrap().token_s
        };
        let mut predicted: Vec<(f64, f64, &str)> = models
            .iter()
            .map(|model| (model.held_bytes(workload), token_s(model), model.name.as_str()))
            .collect();
        predicted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let turned = predicted.windows(2).find(|pair| pair[0].1 > pair[1].1);
        assert_eq!(turned, None, "{context} tokens of context");
        first.push(predicted[predicted.len() - 1].2.to_owned());
    }
    // Llama 1 has a KV head per query head: with a long context its 65 B parameters take more memory than
    // Llama 3's 70 B.
    assert_eq!(first, ["Llama 3-70B", "Llama 3-70B", "Llama 3-70B", "Llama 1-65B", "Llama 1-65B"]);
}
