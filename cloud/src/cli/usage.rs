//! `usage`: lists what tenants used by day, as the console does.

use std::io::Write;

use anyhow::Context;
use clap::Args;

use super::DatabaseArgs;
use super::columns::{self, Side};
use crate::admin::operations::AdminService;
use crate::admin::operations::history::RangeInput;
use crate::admin::view::history::UsageView;
use crate::learn::traffic::DAY_MS;
use crate::store::{Store, now_ms};

/// `usage`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud usage                        the last 7 days (UTC), today among them\n  \
    baton-cloud usage --days 90 --tenant acme --json\n\n\
    Tokens are those of prompts and answers, on all replicas. Days are kept for 90 days.")]
pub struct UsageCommand {
    /// How many days, today among them
    #[arg(long, default_value = "7", value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(1..=90))]
    pub days: i64,
    /// List one tenant only
    #[arg(long, default_value = "", hide_default_value = true)]
    pub tenant: String,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

pub(super) async fn run(command: UsageCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let UsageCommand { days, tenant, database } = command;
    let now = now_ms();
    let today = now - now.rem_euclid(DAY_MS);
    // A moment ago, because a range is not empty. It is today's, except at midnight.
    let from_ms = (today - (days - 1) * DAY_MS).min(now - 1);
    let range = RangeInput { from_ms: Some(from_ms), to_ms: Some(now) };
    let read = async |store: &Store| {
        let admin = AdminService::new(store.clone(), None);
        Ok(admin.tenant_usage(range, &tenant, now).await?)
    };
    let view = database.with_store(read).await?;
    if database.json {
        let json = serde_json::to_string(&view).context("write JSON")?;
        return writeln!(out, "{json}").context("print");
    }
    print(&view, out).context("print")
}

fn print(view: &UsageView, out: &mut impl Write) -> std::io::Result<()> {
    let day = |ms: i64| super::moment(ms).chars().take(10).collect::<String>();
    let days = view.days.iter().map(|used| {
        [day(used.day_ms), used.tenant.clone(), used.requests.to_string(), used.tokens.to_string()]
    });
    let sums = view.tenants.iter().map(|used| {
        ["all".to_owned(), used.tenant.clone(), used.requests.to_string(), used.tokens.to_string()]
    });
    let columns = [
        ("day (UTC)", Side::Left),
        ("tenant", Side::Left),
        ("requests", Side::Right),
        ("tokens", Side::Right),
    ];
    columns::write(columns, days.chain(sums), out)?;
    if view.has_more {
        writeln!(out, "There are more: name a tenant, or fewer days.")?;
    }
    Ok(())
}
