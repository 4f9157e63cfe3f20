//! `baton trace`: how the last answers came about, and what was sent for them.

use std::collections::BTreeMap;

use anyhow::bail;
use baton_terminal::outln;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::conversations::KeptArgs;
use crate::conversations::{Answered, AuditSummary, Record};
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
            let (all, audits) = (kept.recorded(ROWS).await?, kept.audits().await?);
            if json {
                return Ok(outln!("{}", json!({ "answers": all, "audits": audits }))?);
            }
            list(&all)?;
            summary(&audits)
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
        let bytes = match one.was_sent {
            true if report["request_bytes"].is_null() => "audit".to_owned(),
            true => number(report, "/request_bytes", " B"),
            false => "nothing".to_owned(),
        };
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

/// Says how well routes were chosen, if any turn was audited.
fn summary(audits: &AuditSummary) -> anyhow::Result<()> {
    let (Some(mean), Some(worst)) = (audits.mean_regret, audits.worst_regret) else { return Ok(()) };
    let (turns, mean, worst) = (audits.turns, 100.0 * mean, 100.0 * worst);
    Ok(outln!("\n{turns} turns were audited: mean regret of the route {mean:.1} %, worst {worst:.1} %")?)
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
    moved(&report["kv"])?;
    for note in report["notes"].as_array().into_iter().flatten() {
        outln!("note: {note}")?;
    }
    let route = &report["route"];
    if let Some(chosen) = route["chosen"].as_str() {
        outln!("\nroute: {chosen} ({})", route["why"].as_str().unwrap_or("-"))?;
        outlooks("expected", &route["forecasts"])?;
    }
    audit(&report["audit"])
}

/// Prints what became of the cloud's keys and values, in a scene that offers some.
fn moved(kv: &Value) -> anyhow::Result<()> {
    let Some(used) = kv["used"].as_bool() else { return Ok(()) };
    if let Some(format) = kv["format"].as_str() {
        let bytes = number(kv, "/bytes", " bytes");
        outln!("keys and values offered: {format}, {bytes} of {} tokens", kv["tokens"])?;
    }
    match (used, kv["reason"].as_str()) {
        (true, _) => outln!("keys and values taken after {}", number(kv, "/fetch_ms", " ms"))?,
        (false, reason) => outln!("keys and values not taken: {}", reason.unwrap_or("the answer ended"))?,
    }
    Ok(())
}

/// Prints what was expected of routes, or measured.
fn outlooks(what: &str, of: &Value) -> anyhow::Result<()> {
    outln!(
        "{what:<8} {:>10} {:>8} {:>10} {:>8} {:>9} {:>10}",
        "first",
        "gap",
        "end",
        "cloud",
        "bytes",
        "weighted"
    )?;
    for one in of.as_array().into_iter().flatten() {
        let seconds = one["cloud_s"].as_f64().unwrap_or(0.0);
        outln!(
            "{:<8} {:>10} {:>8} {:>10} {:>8} {:>9} {:>10}",
            one["route"].as_str().unwrap_or("-"),
            number(one, "/first_ms", " ms"),
            number(one, "/gap_ms", " ms"),
            number(one, "/total_ms", " ms"),
            format!("{seconds:.1} s"),
            number(one, "/bytes", ""),
            number(one, "/weighted_ms", " ms"),
        )?;
    }
    Ok(())
}

/// Prints the audit of the route, if there was one.
fn audit(audit: &Value) -> anyhow::Result<()> {
    let Some(tokens) = audit["tokens"].as_u64() else { return Ok(()) };
    outln!("\naudit: all routes for an answer of {tokens} tokens")?;
    outlooks("measured", &audit["measured"])?;
    match audit["regret"].as_f64() {
        Some(regret) => outln!("regret: {:.1} % more than the best route", 100.0 * regret)?,
        None => outln!("regret: not known, because a route could not be measured")?,
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
    let text = sent.to_string();
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
    for field in ["tools", "format", "sampling", "refine", "device"] {
        if request[field].is_object() {
            outln!("\n--- {field}\n{}", serde_json::to_string_pretty(&request[field])?)?;
        }
    }
    if sent["continued"].is_object() {
        outln!("\n--- continued\n{}", serde_json::to_string_pretty(&sent["continued"])?)?;
    }
    Ok(())
}
