//! The demo's table: a column for each way to answer, a row for each figure.

use std::fmt::Write as _;

use super::{Outcome, Report, Wire};

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0} ms"))
}

fn count(value: Option<usize>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn answer(correct: Option<bool>) -> String {
    match correct {
        Some(true) => "right",
        Some(false) => "wrong",
        None => "-",
    }
    .to_owned()
}

fn wire(wire: Option<Wire>) -> String {
    wire.map_or_else(|| "0 / 0".to_owned(), |wire| format!("{} / {}", wire.up, wire.down))
}

/// A row: its name, and a cell for each of the three ways.
type Row = (&'static str, [String; 3]);

fn rows(outcome: &Outcome) -> Vec<Row> {
    let runs = [&outcome.device_alone, &outcome.cloud_alone, &outcome.relay];
    let each = |cell: fn(&Report) -> String| runs.map(cell);
    vec![
        ("answer", runs.map(|run| answer(outcome.correct(run)))),
        ("TTFT the person saw", each(|run| ms(run.ttft_user_ms))),
        ("TTFT_d (device ready)", each(|run| ms(run.ttft_device_ms))),
        ("largest gap", each(|run| ms(Some(run.gap_max_ms)))),
        ("p99 gap", each(|run| ms(Some(run.gap_p99_ms)))),
        ("total time", each(|run| ms(run.total_ms))),
        ("tokens by the cloud", each(|run| run.tokens_from_cloud.to_string())),
        ("tokens by the device", each(|run| run.tokens_from_device.to_string())),
        ("prompt tokens", each(|run| count(run.prompt_tokens))),
        ("prompt tokens, refined", each(|run| count(run.prompt_tokens_refined))),
        ("mask bytes", each(|run| count(run.mask_bytes))),
        (
            "wire bytes up / down",
            [wire(None), wire(Some(outcome.cloud_alone_wire)), wire(Some(outcome.relay_wire))],
        ),
        ("cloud slot time", each(|run| ms(run.cloud_slot_ms()))),
    ]
}

/// Formats the table, with a line about sentences chosen at random below it.
pub(super) fn render(outcome: &Outcome) -> String {
    let rows = rows(outcome);
    let heads = ["device alone", "cloud alone", "relay"].map(str::to_owned);
    let mut widths = heads.clone().map(|head| head.len());
    for (_, cells) in &rows {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.len());
        }
    }
    let mut out = String::from("\n");
    for (name, cells) in std::iter::once(&("", heads)).chain(&rows) {
        let _ = write!(out, "{name:<22}");
        for (cell, width) in cells.iter().zip(widths) {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
    }
    let _ = writeln!(out, "\ntau {:.0} ms; L = {}", outcome.relay.tau_ms, count(outcome.relay.assist_tokens));
    if let Some(correct) = outcome.random_sentences.as_ref().and_then(|report| outcome.correct(report)) {
        let _ = writeln!(
            out,
            "over as many sentences chosen at random, the device's answer is {}",
            if correct { "right" } else { "wrong" }
        );
    }
    if outcome.emulated {
        out.push_str("phone and cloud are emulated: passes stretched to max(real, model)\n");
    }
    out
}

/// Says whether the relay is faster on this machine without emulation.
pub(super) fn verdict(outcome: &Outcome) -> String {
    let (alone, relay) = (&outcome.device_alone, &outcome.relay);
    match (alone.ttft_user_ms, relay.ttft_user_ms) {
        (Some(alone_ms), Some(relay_ms)) if relay_ms < alone_ms => {
            format!(
                "here the relay shows the first token {:.1} times earlier than the device alone",
                alone_ms / relay_ms
            )
        }
        (Some(alone_ms), Some(relay_ms)) => format!(
            "here the relay does not pay: this machine prefills the whole prompt in {alone_ms:.0} ms, the relay's first token took {relay_ms:.0} ms"
        ),
        _ => "here nothing was shown by one of the two, so they cannot be compared".to_owned(),
    }
}
