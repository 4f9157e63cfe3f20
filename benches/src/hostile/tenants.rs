//! Measures what greedy tenants and invented devices cost others: places for verified answers, a rollout that
//! goes on, and memory of keys and values that nobody fetches.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use baton_e2e::hostile::tenants::{GIVE_KV, SMALL_CACHE, Tenants};
use serde_json::{Value, json};

use crate::report::Report;

/// Verified answers of each greedy tenant; four of them fill all places.
const ANSWERS: usize = 260;
const GREEDY: usize = 4;
/// Verified answers of the fifth tenant.
const FIFTH: usize = 20;
/// Devices that exist in nobody's hand.
const DEVICES: usize = 300;
/// Two looks of the guard, and a reserve.
const GUARDED: Duration = Duration::from_secs(25);
/// Keys and values that nobody fetches.
const HANDOFFS: usize = 300;
/// Longest time until their memory is given back, in seconds.
const BACK_S: f64 = 35.0;

/// Measures and adds to the report.
pub(super) async fn run(report: &mut Report) -> Result<()> {
    places(report).await?;
    let with_keys = devices(&["fleet", "stranger"]).await?;
    let without = devices(&[]).await?;
    let rows: Vec<Vec<String>> = [("with keys", &with_keys), ("without", &without)]
        .into_iter()
        .map(|(name, (paused, seconds))| {
            vec![name.to_owned(), DEVICES.to_string(), format!("{seconds:.1}"), paused.to_string()]
        })
        .collect();
    report.table(
        "devices that nobody has, each of which could not load a candidate",
        &["service", "devices", "reported in, s", "rollouts paused"],
        &rows,
    );
    let paused = usize::from(with_keys.0) + usize::from(without.0);
    report.check_equal("rollouts that invented devices pause", paused as f64, 0.0);
    if cfg!(target_os = "linux") {
        handoffs(report).await?;
    }
    Ok(())
}

/// Lets four tenants take all places of verified answers, and a fifth ask for some.
async fn places(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let verify = ["scenes", "set", "doc-qa-full", "--verify", "on"];
    let names = ["a", "b", "c", "d", "fifth"];
    let tenants = Tenants::start(folder.path(), &names, &[&verify], &[]).await?;
    let begun = Instant::now();
    let mut offered = [0_usize; GREEDY];
    for _ in 0..ANSWERS {
        for (tenant, offered) in offered.iter_mut().enumerate() {
            *offered += usize::from(tenants.begin_verified(tenant).await?.is_some());
        }
    }
    let mut fifth = Vec::new();
    for _ in 0..FIFTH {
        fifth.extend(tenants.begin_verified(GREEDY).await?);
    }
    let mut kept = 0;
    for id in &fifth {
        kept += usize::from(tenants.is_kept(GREEDY, *id).await?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    report.table(
        &format!("places of verified answers, in {seconds:.1} s"),
        &["tenant", "asked", "offered", "kept"],
        &[
            vec![
                "four greedy ones".to_owned(),
                (GREEDY * ANSWERS).to_string(),
                offered.iter().sum::<usize>().to_string(),
                String::new(),
            ],
            vec!["a fifth".to_owned(), FIFTH.to_string(), fifth.len().to_string(), kept.to_string()],
        ],
    );
    report.data("places", json!({ "offered": offered, "fifth": fifth.len(), "kept": kept, "s": seconds }));
    report.check_equal("verified answers of a fifth tenant that are kept", kept as f64, FIFTH as f64);
    Ok(())
}

/// Lets invented devices report that they could not load a candidate. Returns whether that paused the
/// rollout, and how long the reports took, in seconds.
async fn devices(names: &[&str]) -> Result<(bool, f64)> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let set = ["rollouts", "set", "--class", "phone", "m@1"];
    let tenants = Tenants::start(folder.path(), names, &[&set], &[]).await?;
    tenants.knows_targets().await?;
    tenants.admin(&["rollouts", "start", "--class", "phone", "m@2", "--share", "100"]).await?;
    let begun = Instant::now();
    for at in 0..DEVICES {
        tenants.report(1, &format!("invented-{at}"), "m@1", Some("m@2")).await?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    tokio::time::sleep(GUARDED).await;
    let targets = tenants.admin(&["rollouts", "list"]).await?;
    let paused = targets[0]["rollout"]["is_paused"].as_bool().context("there is no rollout")?;
    Ok((paused, seconds))
}

/// Leaves keys and values unread, and waits until their memory is given back.
async fn handoffs(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let tenants = Tenants::start(folder.path(), &[], &[&GIVE_KV], &[SMALL_CACHE]).await?;
    // What answers themselves need, and their keys and values in the cache, is taken before.
    for at in 0..HANDOFFS {
        tenants.ask(0, at, Value::Null).await?;
    }
    let before = tenants.cloud.memory_bytes()?;
    let mut bytes = 0;
    for at in 0..HANDOFFS {
        bytes += tenants.abandon_handoff(0, 1000 + at).await?.unwrap_or(0);
    }
    let during = tenants.cloud.memory_bytes()?;
    let begun = Instant::now();
    let limit = before + bytes / 10;
    let mut after = during;
    while after > limit && begun.elapsed().as_secs_f64() < BACK_S {
        tokio::time::sleep(Duration::from_millis(100)).await;
        after = tenants.cloud.memory_bytes()?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let left = mib(after.saturating_sub(before));
    report.table(
        &format!("memory of {HANDOFFS} handoffs that nobody reads, MiB"),
        &["parked", "before", "during", "after", "after, s"],
        &[[mib(bytes), mib(before), mib(during), mib(after), seconds]
            .map(|figure| format!("{figure:.1}"))
            .to_vec()],
    );
    let data: Value = json!({
        "parked_mib": mib(bytes), "before_mib": mib(before), "during_mib": mib(during), "after_mib": mib(after),
        "back_s": seconds,
    });
    report.data("handoffs", data);
    report.check_at_most("parked memory not given back after 35 s, MiB", left, mib(bytes) / 10.0);
    Ok(())
}
