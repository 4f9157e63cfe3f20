//! `history`: sums requests of all replicas over a time, as the console does.

use std::io::Write;

use anyhow::Context;
use clap::Args;

use super::columns::{self, Side};
use super::{DatabaseArgs, moment};
use crate::admin::operations::AdminService;
use crate::admin::operations::history::RangeInput;
use crate::admin::view::history::{HistorySums, HistoryView};
use crate::learn::traffic::history::GroupBy;
use crate::learn::traffic::{DAY_MS, HOUR_MS, HOURS_KEPT_MS, MINUTE_MS};
use crate::store::{Store, now_ms};

/// `history`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud history                        the last day, by scene\n  \
    baton-cloud history --since 30d --by class --scene doc-qa\n  \
    baton-cloud history --since 90m --json     also sums by step of time\n\n\
    Minutes are kept for two days, hours for 90 days. So a time that began over two days ago begins with a whole hour.\n\
    Telemetry knows no tenant: see `baton-cloud usage`.")]
pub struct HistoryCommand {
    /// How long ago the time began: minutes, hours or days, such as 90m, 24h or 30d
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = length, allow_negative_numbers = true)]
    pub since: i64,
    /// What the groups are: scene, class or network
    #[arg(long, default_value = "scene", value_name = "GROUP")]
    pub by: GroupBy,
    /// Count one scene only; the empty one is the chat API
    #[arg(long)]
    pub scene: Option<String>,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

pub(super) async fn run(command: HistoryCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let HistoryCommand { since, by, scene, database } = command;
    let now = now_ms();
    let range = RangeInput { from_ms: Some(now - since), to_ms: Some(now) };
    let read = async |store: &Store| {
        let admin = AdminService::new(store.clone(), None);
        Ok(admin.traffic_history(range, by.as_str(), scene, now).await?)
    };
    let view = database.with_store(read).await?;
    if database.json {
        let json = serde_json::to_string(&view).context("write JSON")?;
        return writeln!(out, "{json}").context("print");
    }
    print(&view, out).context("print")
}

/// Reads a length of time; returns it in milliseconds.
fn length(text: &str) -> Result<i64, String> {
    let wrong = || "it must be a number of minutes, hours or days: 90m, 24h or 30d".to_owned();
    let unit_ms = match text.chars().next_back() {
        Some('m') => MINUTE_MS,
        Some('h') => HOUR_MS,
        Some('d') => DAY_MS,
        _ => return Err(wrong()),
    };
    let count: i64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let length = count.checked_mul(unit_ms).filter(|length| (1..=HOURS_KEPT_MS).contains(length));
    length.ok_or_else(|| "it must be 1 minute to 90 days".to_owned())
}

fn print(view: &HistoryView, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "{} to {} (UTC)", moment(view.from_ms), moment(view.to_ms))?;
    let absent = if view.by == "scene" { "(chat)" } else { "(none)" };
    let cells = |name: &str, sums: &HistorySums| {
        let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
        [
            if name.is_empty() { absent.to_owned() } else { name.to_owned() },
            sums.requests.to_string(),
            sums.failures.to_string(),
            sums.prompt_tokens.to_string(),
            sums.completion_tokens.to_string(),
            sums.prompt_tokens_saved.to_string(),
            format!("{:.1}", sums.slot_seconds),
            format!("{:.1}", sums.slot_seconds_saved),
            ms(sums.ttft_p50_ms),
            ms(sums.ttft_p95_ms),
        ]
    };
    let total = std::iter::once(cells("(all)", &view.total));
    let groups = view.groups.iter().map(|group| cells(&group.name, &group.sums));
    let numbers = [
        "requests",
        "failures",
        "prompt",
        "written",
        "saved",
        "slot s",
        "slot s saved",
        "TTFT p50",
        "TTFT p95",
    ];
    let mut columns = [(view.by.as_str(), Side::Left); 10];
    for (column, title) in columns[1..].iter_mut().zip(numbers) {
        *column = (title, Side::Right);
    }
    columns::write(columns, total.chain(groups), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_minutes_hours_or_days() {
        assert_eq!((length("90m"), length("24h")), (Ok(90 * MINUTE_MS), Ok(DAY_MS)));
        assert_eq!(length("90d"), Ok(HOURS_KEPT_MS));
        for wrong in ["", "h", "5", "1.5h", "5s", "-1h", "0m", "91d", "9223372036854775807d", "5 ü"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
    }
}
