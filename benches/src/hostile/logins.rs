//! Measures the cost of many wrong passwords at the console: memory, hashes, and the delay of a user with the
//! right password.

use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_e2e::hostile::logins::{Door, Flood, flood};
use serde_json::json;

use crate::report::Report;

/// Number of wrong passwords at once.
const FLOOD: usize = 300;
/// Maximum growth of the service's memory, in MiB.
const GROWTH_MIB_MAX: f64 = 64.0;
/// Maximum time to log in with the right password, in seconds, including all waits that the service demands.
const WAIT_S_MAX: f64 = 30.0;
/// Maximum number of passwords that are checked for one user: from one address, and from all addresses.
const LOOKED_AT_MAX: [f64; 2] = [5.0, 100.0];

/// Measures the cost and adds it to the report.
pub(super) async fn run(report: &mut Report) -> Result<()> {
    let door = Door::open().await?;
    let known = door.get_in(3, None).await?;
    let device = known.device.context("a log-in sets no cookie for its device")?;
    let get_in = async |host: u8, device: Option<&str>| -> Result<f64> {
        let begun = Instant::now();
        door.get_in(host, device).await?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let (one, known_s) = tokio::join!(flood(&door, FLOOD, 66, 1), get_in(3, Some(&device)));
    // A new device can log in until the user name has had a hundred failed attempts.
    let (many, new_s) = tokio::join!(flood(&door, FLOOD, 100, 18), get_in(4, None));
    let (one, many, known_s, new_s) = (one?, many?, known_s?, new_s?);
    let mib = |flood: &Flood| flood.growth_bytes as f64 / f64::from(1 << 20);
    let row = |name: &str, flood: &Flood, who: &str, waited_s: f64| {
        vec![
            name.to_owned(),
            flood.looked_at.to_string(),
            flood.refused.to_string(),
            format!("{:.1}", mib(flood)),
            format!("{:.1}", flood.took.as_secs_f64()),
            format!("{waited_s:.1} ({who})"),
        ]
    };
    report.table(
        "300 wrong passwords at once",
        &["from", "looked at", "refused", "memory, MiB", "seconds", "right password, s"],
        &[row("one address", &one, "known device", known_s), row("18 addresses", &many, "new device", new_s)],
    );
    let data = |flood: &Flood, waited_s: f64| {
        json!({
            "looked_at": flood.looked_at, "refused": flood.refused, "growth_mib": mib(flood),
            "took_s": flood.took.as_secs_f64(), "right_password_s": waited_s,
        })
    };
    report.data("logins", json!({ "one_address": data(&one, known_s), "many": data(&many, new_s) }));
    report.check_at_most("memory of 300 log-ins at once, MiB", mib(&one).max(mib(&many)), GROWTH_MIB_MAX);
    report.check_at_most("longest wait with the right password, s", known_s.max(new_s), WAIT_S_MAX);
    report.check_at_most("hashes for one address", one.looked_at as f64, LOOKED_AT_MAX[0]);
    report.check_at_most("hashes for one name", many.looked_at as f64, LOOKED_AT_MAX[1]);
    Ok(())
}
