//! Measures how long the cloud is busy with an answer whose device has ended, and whether a neighbour that
//! asks next waits for it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use baton_e2e::hostile::cancel::{Left, Phase, Point, Stage, points};
use baton_e2e::hostile::neighbour;
use baton_e2e::hostile::streams::give_up;
use baton_e2e::process::{CloudProcess, models_folder};
use serde_json::json;

use super::SENTENCES;
use crate::engine::samples::percentile;
use crate::report::Report;

/// The seed of the points.
const SEED: u64 = 1;
/// The longest time that the cloud may be busy after the device's end, in seconds: if it was told, and if it
/// was not.
const TOLD_S_MAX: f64 = 1.0;
const UNTOLD_S_MAX: f64 = 11.0;
/// Maximum p95 of a neighbour behind questions that were given up, as a multiple of that without them.
const GROWTH_MAX: f64 = 1.2;
/// Questions that are given up before each of the neighbour's requests.
const GIVEN_UP: usize = 4;

/// Measures and adds to the report.
pub(super) async fn run(report: &mut Report, quick: bool) -> Result<()> {
    ends(report, if quick { 7 } else { 50 }).await?;
    neighbours(report, if quick { 10 } else { 100 }).await?;
    Ok(())
}

/// Ends devices at seeded points.
async fn ends(report: &mut Report, number: usize) -> Result<()> {
    let points = points(SEED, number);
    let mut lefts: Vec<(Point, Left)> = Vec::new();
    for phase in Phase::ALL {
        let stage = Stage::start(phase).await?;
        for point in points.iter().filter(|point| point.phase == phase) {
            let left = stage.run(*point).await?;
            ensure!(left.was_told == point.exit.is_told(), "{point:?}: {left:?}");
            lefts.push((*point, left));
        }
        eprintln!("{}: {} of {number}", phase.name(), lefts.len());
    }
    let longest = |so: &dyn Fn(&Point) -> bool| {
        let busy = lefts.iter().filter(|(point, _)| so(point)).map(|(_, left)| left.busy.as_secs_f64());
        busy.reduce(f64::max)
    };
    let seconds = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{s:.2}"));
    let rows: Vec<Vec<String>> = Phase::ALL
        .iter()
        .map(|phase| {
            let of = |told: bool| longest(&|point| point.phase == *phase && point.exit.is_told() == told);
            let number = lefts.iter().filter(|(point, _)| point.phase == *phase).count();
            vec![phase.name().to_owned(), number.to_string(), seconds(of(true)), seconds(of(false))]
        })
        .collect();
    report.table(
        "longest time until the cloud is free after a device's end, s",
        &["phase", "ends", "told", "kill -9"],
        &rows,
    );
    let one = |(point, left): &(Point, Left)| {
        json!({
            "phase": point.phase.name(), "exit": point.exit.name(), "busy_s": left.busy.as_secs_f64(),
            "told": left.was_told,
        })
    };
    report.data("ends", lefts.iter().map(one).collect::<Vec<_>>());
    let told = longest(&|point| point.exit.is_told()).context("some are told")?;
    let untold = longest(&|point| !point.exit.is_told()).context("some are not told")?;
    report.check_at_most("slots and backlog are free after a device's end, s", told, TOLD_S_MAX);
    report.check_at_most("slots and backlog are free after a device's kill -9, s", untold, UNTOLD_S_MAX);
    Ok(())
}

/// Measures a neighbour's times to the first token, in turn with and without questions given up before.
async fn neighbours(report: &mut Report, requests: usize) -> Result<()> {
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &[]).await?;
    let server: SocketAddr = cloud.address().parse().context("read the service's address")?;
    let (mut quiet, mut behind) = (Vec::new(), Vec::new());
    neighbour(server, 0, SENTENCES).await?; // Warms up.
    for turn in 1..=requests {
        quiet.push(ms(neighbour(server, 2 * turn, SENTENCES).await?.ttft));
        for at in 0..GIVEN_UP {
            give_up(server, (turn * GIVEN_UP + at) as u64, SENTENCES).await?;
        }
        behind.push(ms(neighbour(server, 2 * turn + 1, SENTENCES).await?.ttft));
    }
    let p = |ms: &[f64], part: f64| percentile(ms.to_vec(), part).context("a request was measured");
    let row = |name: &str, ms: &[f64]| -> Result<Vec<String>> {
        let (p50, p95) = (p(ms, 0.5)?, p(ms, 0.95)?);
        Ok(vec![name.to_owned(), ms.len().to_string(), format!("{p50:.1}"), format!("{p95:.1}")])
    };
    report.table(
        "a neighbour's time to the first token, ms",
        &["", "requests", "p50", "p95"],
        &[row("alone", &quiet)?, row("behind questions that were given up", &behind)?],
    );
    report.data("given_up_ttft_ms", json!({ "alone": quiet, "behind": behind }));
    let growth = p(&behind, 0.95)? / p(&quiet, 0.95)?;
    report.check_at_most("neighbour's TTFT p95 behind questions that were given up", growth, GROWTH_MAX);
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
