//! `baton trace`: how the last answers came about, and what was sent for them.

use std::collections::BTreeMap;

use anyhow::bail;
use baton_terminal::outln;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::conversations::KeptArgs;
use crate::conversations::{Answered, Record};
use crate::privacy::placeholders;

/// Rows of a list.
const ROWS: usize = 20;

/// Text below the options.
pub(super) const HELP: &str = "\
Records are kept on this device alone, the newest 500, beside the conversations of `baton chat`. They hold no answers, and
of questions only what was sent, with placeholders for private values. `--no-record` of ask, chat and serve keeps none.";

#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    kept: KeptArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the last answers (default)
    List,
    /// Print how an answer came about: times, who wrote it, the route and the ones not taken
    Show {
        /// Its number [default: the last one]
        id: Option<i64>,
    },
    /// Print what was sent for an answer, exactly as it left this device
    Sent {
        /// Its number [default: the last one]
        id: Option<i64>,
    },
    /// Forget a record
    Rm {
        /// Its number
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        id: Option<i64>,
        /// Forget all records
        #[arg(long)]
        all: bool,
    },
}

pub(super) async fn run(args: TraceArgs) -> anyhow::Result<()> {
    let (kept, json) = (args.kept.open().await?, args.kept.json);
    match args.command.unwrap_or(Command::List) {
        Command::List => {
            let all = kept.recorded(ROWS).await?;
            if json {
                return Ok(outln!("{}", json!({ "answers": all }))?);
            }
            list(&all)
        }
        Command::Show { id } => {
            let record = kept.recorded_answer(id).await?;
            if json {
                return Ok(outln!("{}", serde_json::to_string(&record)?)?);
            }
            show(&record.answered)
        }
        Command::Sent { id } => {
            let record = kept.recorded_answer(id).await?;
            if json {
                return Ok(outln!("{}", json!({ "id": record.answered.id, "sent": record.sent }))?);
            }
            sent(&record)
        }
        Command::Rm { id, .. } => {
            let gone = kept.forget_record(id).await?;
            match json {
                true => outln!("{}", json!({ "removed": gone }))?,
                false => outln!("{gone} records are forgotten")?,
            }
            Ok(())
        }
    }
}

/// Returns a number of the report, rounded, with its unit.
fn number(report: &Value, path: &str, unit: &str) -> String {
    report.pointer(path).and_then(Value::as_f64).map_or_else(|| "-".to_owned(), |n| format!("{n:.0}{unit}"))
}

fn list(all: &[Answered]) -> anyhow::Result<()> {
    if all.is_empty() {
        return Ok(outln!("no answer was recorded yet; `baton ask`, `chat` and `serve` record theirs")?);
    }
    outln!(
        "{:>5}  {:<12} {:<7} {:>9} {:>9} {:>9} {:>8} {:>9}  ending",
        "id",
        "asked by",
        "route",
        "by cloud",
        "by device",
        "first",
        "gap",
        "sent"
    )?;
    for one in all {
        let report = &one.report;
        let route = report.pointer("/route/chosen").and_then(Value::as_str).unwrap_or("given");
        let bytes = if one.was_sent { number(report, "/request_bytes", " B") } else { "nothing".to_owned() };
        outln!(
            "{:>5}  {:<12} {route:<7} {:>9} {:>9} {:>9} {:>8} {bytes:>9}  {}",
            one.id,
            one.asked_by,
            number(report, "/tokens_from_cloud", ""),
            number(report, "/tokens_from_device", ""),
            number(report, "/ttft_user_ms", " ms"),
            number(report, "/gap_max_ms", " ms"),
            report["ending"].as_str().unwrap_or("-"),
        )?;
    }
    Ok(())
}

fn show(one: &Answered) -> anyhow::Result<()> {
    let report = &one.report;
    let say = |what: &str, path: &str, unit: &str| outln!("{what:<38} {:>10}", number(report, path, unit));
    let ending = report["ending"].as_str().unwrap_or("-");
    outln!("answer {} by `{}`, which ended with `{ending}`", one.id, one.asked_by)?;
    if let Some(why) = report.pointer("/error/message").and_then(Value::as_str) {
        outln!("error: {why}")?;
    }
    outln!("\ntimes since the question")?;
    for (what, path) in [
        ("first token shown", "/ttft_user_ms"),
        ("cloud's first token", "/ttft_cloud_ms"),
        ("device has read its prompt", "/prompt_ready_ms"),
        ("device's own first token (takeover)", "/ttft_device_ms"),
        ("last token shown", "/total_ms"),
        ("longest gap", "/gap_max_ms"),
    ] {
        say(what, path, " ms")?;
    }
    outln!("\ntokens")?;
    for (what, path) in [
        ("written by the cloud", "/tokens_from_cloud"),
        ("agreed for the cloud (L)", "/assist_tokens"),
        ("written by this device", "/tokens_from_device"),
        ("whole prompt", "/prompt_tokens"),
        ("prompt that this device used", "/prompt_tokens_refined"),
        ("of that, known before", "/prompt_tokens_cached"),
    ] {
        say(what, path, "")?;
    }
    say("\nbytes sent", "/request_bytes", "")?;
    for note in report["notes"].as_array().into_iter().flatten() {
        outln!("note: {note}")?;
    }
    routes(&report["route"])
}

/// Prints the chosen route beside those that were not.
fn routes(route: &Value) -> anyhow::Result<()> {
    let Some(chosen) = route["chosen"].as_str() else { return Ok(()) };
    outln!("\nroute: {chosen} ({})", route["why"].as_str().unwrap_or("-"))?;
    outln!(
        "{:<8} {:>10} {:>8} {:>10} {:>8} {:>9} {:>10}",
        "expected",
        "first",
        "gap",
        "end",
        "cloud",
        "bytes",
        "weighted"
    )?;
    for forecast in route["forecasts"].as_array().into_iter().flatten() {
        let seconds = forecast["cloud_s"].as_f64().unwrap_or(0.0);
        outln!(
            "{:<8} {:>10} {:>8} {:>10} {:>8} {:>9} {:>10}",
            forecast["route"].as_str().unwrap_or("-"),
            number(forecast, "/first_ms", " ms"),
            number(forecast, "/gap_ms", " ms"),
            number(forecast, "/total_ms", " ms"),
            format!("{seconds:.1} s"),
            number(forecast, "/bytes", ""),
            number(forecast, "/weighted_ms", " ms"),
        )?;
    }
    Ok(())
}

fn sent(record: &Record) -> anyhow::Result<()> {
    let Some(sent) = &record.sent else {
        return Ok(outln!("answer {}: nothing was sent", record.answered.id)?);
    };
    let request = &sent["request"];
    let Some(segments) = request["segments"].as_array() else {
        bail!("answer {}: the record was written by another version of baton", record.answered.id);
    };
    let (cloud, bytes) = (sent["cloud"].as_str().unwrap_or("-"), number(sent, "/bytes", ""));
    outln!("sent to {cloud}, {bytes} bytes as compressed")?;
    let mut replaced: BTreeMap<&str, usize> = BTreeMap::new();
    let text = request.to_string();
    for placeholder in placeholders(&text) {
        *replaced.entry(placeholder).or_default() += 1;
    }
    for (placeholder, times) in &replaced {
        outln!("{placeholder} stands for a value that stayed here ({times} times)")?;
    }
    for segment in segments {
        let role = segment["role"].as_str().unwrap_or("-");
        outln!("\n--- {role}\n{}", segment["text"].as_str().unwrap_or_default())?;
    }
    for field in ["tools", "format", "sampling", "refine", "device", "continued"] {
        if request[field].is_object() {
            outln!("\n--- {field}\n{}", serde_json::to_string_pretty(&request[field])?)?;
        }
    }
    Ok(())
}
