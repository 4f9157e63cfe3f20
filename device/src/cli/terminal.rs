//! Shows an answer on the terminal: text on standard output as it comes, notes on standard error.

use super::open::Opened;
use crate::agent::{AnswerEvent, AnswerReport, Question};
use crate::relay::Source;
use anyhow::Context;
use std::io::Write;
use tokio::sync::mpsc;

/// Text events that may wait for the terminal.
const EVENTS_MAX: usize = 256;

/// Asks and shows; Ctrl-C cancels the answer (cloud and device) and leaves the terminal on a fresh line.
pub(super) async fn show(opened: &Opened, question: Question, quiet: bool) -> anyhow::Result<AnswerReport> {
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let answer = opened.agent.answer(question, sender);
    let print = async {
        let mut interrupted = false;
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                signal = tokio::signal::ctrl_c(), if !interrupted => {
                    signal.context("listen for ctrl-c")?;
                    interrupted = true;
                    // What is already there may still be read; nothing new is wanted.
                    events.close();
                    continue;
                }
            };
            match event {
                None => return anyhow::Ok(()),
                Some(AnswerEvent::Note(note)) => eprintln!("note: {note}"),
                Some(AnswerEvent::Text { text, .. }) if !quiet => {
                    let mut out = std::io::stdout().lock();
                    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("write the answer")?;
                }
                Some(AnswerEvent::Text { .. }) => {}
            }
        }
    };
    let (report, printed) = tokio::join!(answer, print);
    if !quiet {
        println!();
    }
    printed?;
    Ok(report?)
}

/// One JSON object on one line.
pub(super) fn print_json(report: &AnswerReport) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(report).context("write the report")?);
    Ok(())
}

/// The timeline of an answer, for a person.
pub(super) fn print_trace(report: &AnswerReport) {
    let t = &report.timeline;
    let ms = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.0} ms"));
    let number = |value: Option<usize>| value.map_or("-".to_owned(), |v| v.to_string());
    eprintln!("-- timeline (milliseconds since the question)");
    eprintln!("first token shown        {}", ms(t.ttft_user_ms));
    eprintln!("cloud's first token      {}", ms(t.ttft_cloud_ms));
    eprintln!("device has the prompt    {}", ms(t.prompt_ready_ms));
    eprintln!("device's own first token {}", ms(t.ttft_device_ms));
    eprintln!("last token               {}", ms(t.total_ms));
    eprintln!(
        "gaps                     max {:.0}  p99 {:.0}  sd {:.1} ms (tau {:.0})",
        report.gap_max_ms, report.gap_p99_ms, report.gap_sd_ms, t.tau_ms
    );
    eprintln!(
        "tokens                   cloud {} (L {}, bound by {})  device {}",
        report.tokens_from_cloud,
        number(t.assist_tokens),
        t.assist_bound_by.as_deref().unwrap_or("-"),
        report.tokens_from_device
    );
    eprintln!(
        "prompt tokens            {} -> {} (cached {})  mask {} bytes",
        number(t.prompt_tokens),
        number(t.prompt_tokens_refined),
        number(t.prompt_tokens_cached),
        number(t.mask_bytes)
    );
    if let Some(agreement) = t.agreement {
        eprintln!("agreement                {:.0} % of the cloud's tokens", agreement * 100.0);
    }
    if let Some(s) = report.speculation.filter(|s| s.passes > 0) {
        eprintln!(
            "speculation              {} tokens in {} passes, {} of {} proposed right{}",
            s.tokens,
            s.passes,
            s.accepted,
            s.proposed,
            s.speed_up.map_or(String::new(), |x| format!(", {x:.2} times as fast"))
        );
    }
    let mut last = None;
    for shown in &t.shown {
        let gap = last.map_or(0.0, |at| shown.at_ms - at);
        let who = if shown.source == Source::Cloud { "cloud" } else { "device" };
        eprintln!("{:>8.0}  +{:<5.0} {:>4}  {who}", shown.at_ms, gap, shown.index);
        last = Some(shown.at_ms);
    }
}
