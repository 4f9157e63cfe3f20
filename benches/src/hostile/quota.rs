//! Checks that concurrent requests together stay within a daily quota of tokens, and that a request that is
//! sent again is charged once.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use baton_e2e::hostile::quota::{ask, limited_service, question};
use serde_json::json;
use tokio::task::JoinSet;

use crate::report::Report;

/// The daily quota of tokens.
const TOKENS: u64 = 500;
/// Number of concurrent requests.
const AT_ONCE: usize = 40;
/// Number of times that one request is sent.
const AGAIN: usize = 3;

/// Runs the checks and adds them to the report.
pub(super) async fn run(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let cloud = limited_service(folder.path(), TOKENS, &[]).await?;
    let server: SocketAddr = cloud.address().parse().context("read the service's address")?;
    let mut all = JoinSet::new();
    for _ in 0..AT_ONCE {
        all.spawn(async move { ask(server, &question(12, 8)).await });
    }
    let (mut served, mut used) = (0, 0);
    while let Some(told) = all.join_next().await {
        let told = told.context("a client's task")??;
        served += usize::from(told.status == 200);
        used += told.tokens;
    }
    let folder = tempfile::tempdir().context("make a folder")?;
    let cloud = limited_service(folder.path(), TOKENS, &[]).await?;
    let server: SocketAddr = cloud.address().parse().context("read the service's address")?;
    let same = question(25, 8);
    let mut again = 0;
    for _ in 0..AGAIN {
        let told = ask(server, &same).await?;
        again += usize::from(told.status == 200 && told.tokens > TOKENS / 2);
    }
    report.table(
        &format!("a day of {TOKENS} tokens"),
        &["", "sent", "served", "tokens used"],
        &[
            vec!["at the same time".to_owned(), AT_ONCE.to_string(), served.to_string(), used.to_string()],
            vec!["one request again".to_owned(), AGAIN.to_string(), again.to_string(), "once".to_owned()],
        ],
    );
    report.data(
        "quota",
        json!({ "tokens": TOKENS, "at_once": AT_ONCE, "served": served, "used": used, "again": again }),
    );
    report.check_at_least("requests served of a day's tokens", served as f64, 1.0);
    report.check_at_most("tokens used by requests at once", used as f64, TOKENS as f64);
    report.check_equal("times that one request was answered for one charge", again as f64, AGAIN as f64);
    Ok(())
}
