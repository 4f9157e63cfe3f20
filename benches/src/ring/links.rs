//! Measures rings whose links have a latency of 3 to 7 ms each way: the time of one more hop minus the
//! latency of its link.
//!
//! Configurations take turns, and the slope over the number of hops is computed for each turn. So a drift of
//! the machine's speed affects all runs of a turn equally.

use std::time::Duration;

use anyhow::Result;
use baton_e2e::home::{Planned, Task};
use baton_pacing::refit::median;
use baton_plan::Cluster;
use serde_json::{Value, json};

use super::overhead::{HOP_MAX_MS, NAMES, ROUNDS, home, slope_ms};
use super::{Bench, Figure, evenly, median_ms, shape};

const DELAYS_MS: [u64; 3] = [3, 5, 7];

/// Runs over links with one delay, by rounds and turns.
struct Delayed {
    delay_ms: u64,
    figures: Vec<Vec<Figure>>,
}

/// Measures the runs and adds the table and the check.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bench.skip("links", "links lead over loopback addresses that only Linux has");
        return Ok(());
    }
    let subject = bench.subject(&bench.args.model)?;
    let shape = shape(&subject)?;
    let home = home(bench, &subject)?.with_links()?;
    let task = Task { prompt: 32, ..Task::of_tokens(bench.args.tokens) };
    let shares = evenly(&NAMES, shape.layers);
    let rounds: Vec<usize> =
        ROUNDS.into_iter().filter(|rounds| rounds * NAMES.len() <= shape.layers).collect();
    let slow = |delay_ms| {
        home.links.iter().for_each(|link| link.set(Duration::from_millis(delay_ms), None));
    };
    let mut alone = Vec::new();
    // Runs without delay are included, to show the cost of the processes that simulate the links.
    let none = |delay_ms| Delayed { delay_ms, figures: vec![Vec::new(); rounds.len()] };
    let mut delayed: Vec<Delayed> = std::iter::once(0).chain(DELAYS_MS).map(none).collect();
    for turn in 1..=bench.args.alternations {
        alone.push(bench.alone(&home, &task)?);
        for Delayed { delay_ms, figures } in &mut delayed {
            slow(*delay_ms);
            for (rounds, figures) in rounds.iter().zip(figures.iter_mut()) {
                figures.push(bench.ring(&home, &task, &Planned::shares(&shares, *rounds))?);
            }
            let last: Vec<String> = figures.iter().map(|of| format!("{:.1}", of[turn - 1].step_ms)).collect();
            eprintln!("{turn}/{}: {delay_ms} ms: {} ms", bench.args.alternations, last.join(", "));
        }
    }
    let (mut rows, mut beyond, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for Delayed { delay_ms, figures } in &delayed {
        let over_ms = slope_ms(&rounds, figures) - *delay_ms as f64;
        for (rounds, figures) in rounds.iter().zip(figures) {
            rows.push(vec![
                format!("{delay_ms} ms, {rounds} rounds"),
                (NAMES.len() * rounds).to_string(),
                format!("{:.2}", median_ms(figures)),
                format!("{over_ms:.3}"),
            ]);
        }
        data.push(json!({ "delay_ms": delay_ms, "beyond_ms": over_ms,
                          "step_ms": figures.iter().map(|of| median_ms(of)).collect::<Vec<_>>() }));
        if *delay_ms == 0 {
            continue;
        }
        beyond.push(over_ms);
        for (rounds, figures) in rounds.iter().zip(figures) {
            let really = |home: &mut Cluster| {
                let latency_s = *delay_ms as f64 / 1e3;
                home.network.latency_s = latency_s;
                home.network.edges.iter_mut().for_each(|edge| edge.latency_s = Some(latency_s));
            };
            let of = format!("links of {delay_ms} ms, {rounds} rounds");
            bench.predict_in(of, figures, &shape, &task, really);
        }
    }
    let header = ["links", "hops", "ms a token", "a hop beyond its link, ms"];
    bench.report.table(&format!("{}: two devices over links", subject.name), &header, &rows);
    let alone_ms = median_ms(&alone);
    bench.report.note(format!("one device alone: {alone_ms:.2} ms"));
    let typical = median(beyond).unwrap_or(f64::NAN);
    bench.report.check_at_most("ms of a hop beyond a link of 3 to 7 ms, median", typical, HOP_MAX_MS);
    bench.report.data("links", json!({ "alone_ms": alone_ms, "rounds": rounds, "runs": Value::Array(data) }));
    Ok(())
}
