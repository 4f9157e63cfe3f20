//! Rings whose links take 3 to 7 ms each way: a token takes what it takes on one device, and the links' time.

use std::time::Duration;

use anyhow::Result;
use baton_e2e::home::{Planned, Task};
use baton_plan::Cluster;
use serde_json::{Value, json};

use super::overhead::{HOP_MAX_MS, NAMES, home};
use super::{Bench, evenly, median_ms, shape};
use crate::engine::samples::median;

const DELAYS_MS: [u64; 3] = [3, 5, 7];
const ROUNDS: [usize; 3] = [1, 2, 4];

/// Measures and adds the table and the check.
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
    // What the processes that stand for the links take of their own is theirs, not the ring's: it is in this.
    let mut undelayed = Vec::new();
    for _ in 0..bench.args.alternations {
        undelayed.push(bench.ring(&home, &task, &Planned::shares(&shares, 1))?);
    }
    let alone =
        (0..bench.args.alternations).map(|_| bench.alone(&home, &task)).collect::<Result<Vec<_>>>()?;
    let alone_ms = median_ms(&alone);
    let own_ms = (median_ms(&undelayed) - alone_ms) / NAMES.len() as f64;
    let (mut rows, mut beyond, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for delay_ms in DELAYS_MS {
        let delay = Duration::from_millis(delay_ms);
        home.links.iter().for_each(|link| link.set(delay, None));
        for rounds in ROUNDS.into_iter().filter(|rounds| rounds * NAMES.len() <= shape.layers) {
            let given = Planned::shares(&shares, rounds);
            let turns = bench.args.alternations.div_ceil(2);
            let figures = (0..turns).map(|_| bench.ring(&home, &task, &given)).collect::<Result<Vec<_>>>()?;
            let (measured_ms, hops) = (median_ms(&figures), NAMES.len() * rounds);
            let over_ms = (measured_ms - alone_ms) / hops as f64 - delay_ms as f64;
            eprintln!(
                "{delay_ms} ms, {rounds} rounds: {measured_ms:.2} ms, {over_ms:.3} ms a hop beyond the link"
            );
            let slow = |home: &mut Cluster| {
                home.network.latency_s = delay.as_secs_f64();
                home.network.edges.iter_mut().for_each(|edge| edge.latency_s = None);
            };
            let of = format!("links of {delay_ms} ms, {rounds} rounds");
            bench.predict_in(of, &figures, &shape, &task, slow);
            rows.push(vec![
                format!("{delay_ms} ms, {rounds} rounds"),
                hops.to_string(),
                format!("{:.2}", alone_ms + (hops as u64 * delay_ms) as f64),
                format!("{measured_ms:.2}"),
                format!("{over_ms:.3}"),
            ]);
            data.push(json!({
                "delay_ms": delay_ms, "rounds": rounds, "step_ms": measured_ms, "beyond_ms": over_ms,
            }));
            beyond.push(over_ms);
        }
    }
    let header = ["links", "hops", "alone and links, ms", "measured", "beyond, ms a hop"];
    bench.report.table(&format!("{}: two devices over links", subject.name), &header, &rows);
    bench.report.note(format!(
        "one device alone: {alone_ms:.2} ms; through links without delay a hop takes {own_ms:.3} ms"
    ));
    let typical = median(beyond).unwrap_or(f64::NAN);
    bench.report.check_at_most("ms of a hop beyond a link of 3 to 7 ms, median", typical, HOP_MAX_MS);
    bench.report.data(
        "links",
        json!({ "alone_ms": alone_ms, "undelayed_hop_ms": own_ms, "runs": Value::Array(data) }),
    );
    Ok(())
}
