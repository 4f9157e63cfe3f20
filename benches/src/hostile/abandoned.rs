//! Measures the cost of streams of maximum length whose readers disconnect while the service keeps the
//! streams for a reconnection.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_e2e::hostile::streams::{abandon, figures_when};
use baton_e2e::process::{CloudProcess, models_folder};
use serde_json::{Value, json};

use crate::report::Report;

/// Number of slots of the service.
const SLOTS: usize = 4;
/// Number of abandoned streams.
const STREAMS: u64 = 8;

/// Measures and adds to the report.
pub(super) async fn run(report: &mut Report) -> Result<()> {
    let options = [format!("--slots={SLOTS}").into()];
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &options).await?;
    let server: SocketAddr = cloud.address().parse().context("read the service's address")?;
    let count = |figures: &Value, name: &str| figures[name].as_u64().unwrap_or(u64::MAX);
    let begun = Instant::now();
    for seed in 0..STREAMS {
        abandon(server, seed).await?;
    }
    let unread = figures_when(server, |figures| count(figures, "slots_used") == 0).await?;
    let held_s = begun.elapsed().as_secs_f64();
    let parked = count(&unread, "parked");
    let ended = figures_when(server, |figures| count(figures, "parked") == 0).await?;
    let kept_s = begun.elapsed().as_secs_f64();
    let slot_s = ended["slot_ms_total"].as_f64().context("no slot time is told")? / 1e3;
    report.table(
        &format!("{STREAMS} abandoned streams of L = 65,536 on {SLOTS} slots"),
        &["waited for their readers", "slots free after, s", "ended after, s", "slot time of each, s"],
        &[vec![
            parked.to_string(),
            format!("{held_s:.1}"),
            format!("{kept_s:.1}"),
            format!("{:.2}", slot_s / STREAMS as f64),
        ]],
    );
    report
        .data("abandoned", json!({ "parked": parked, "held_s": held_s, "kept_s": kept_s, "slot_s": slot_s }));
    // An answer may end by itself before it is far enough ahead of its reader to be parked.
    report.check_at_least("abandoned streams that give their slot up before they end", parked as f64, 1.0);
    report.check_equal("slots that they hold in the end", count(&ended, "slots_used") as f64, 0.0);
    Ok(())
}
