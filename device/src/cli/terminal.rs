//! Shows an answer on the terminal: text on standard output as it comes, notes on standard error, and a
//! progress line until there is text.

mod progress;

use super::interrupts::{Interrupts, Signal};
use super::open::Opened;
use crate::agent::{AnswerEvent, AnswerReport, Question};
use crate::api::ANSWER_TOKENS_MAX;
use crate::relay::{Note, Source};
use anyhow::Context;
use baton_terminal::{errln, out, outln};
use progress::ProgressLine;
use std::io::Write;
use tokio::sync::mpsc;

/// Most events that may wait for the terminal.
const EVENTS_MAX: usize = 256;

/// An answer that was shown.
pub(super) struct Shown {
    pub(super) report: AnswerReport,
    /// The signal that stopped it, if one did.
    pub(super) stopped: Option<Signal>,
}

/// Asks the question and shows the answer. Ctrl-C cancels the answer (cloud and device) and leaves the
/// terminal on a new line.
pub(super) async fn show(
    opened: &Opened,
    question: Question,
    quiet: bool,
    interrupts: &Interrupts,
) -> anyhow::Result<Shown> {
    let tokens_max = question.tokens_max;
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let mut watch = interrupts.watch();
    let progress = ProgressLine::begin();
    let answer = opened.agent.answer(question, sender);
    let print = async {
        let mut stopped = None;
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                signal = watch.signal(), if stopped.is_none() => {
                    stopped = Some(signal);
                    // Events that already came may still be read; no new ones are accepted.
                    events.close();
                    continue;
                }
            };
            let Some(event) = event else { return Ok(stopped) };
            if let Err(err) = print_event(event, quiet, &progress) {
                // Nobody reads the output, so the cloud and the device need not go on.
                events.close();
                return Err(err);
            }
        }
    };
    let (report, printed) = tokio::join!(answer, print);
    baton_terminal::clear_status();
    let stopped = printed.context("write the answer")?;
    let mut report = report?;
    if !quiet {
        outln!().context("write the answer")?;
    }
    if let Some(note) = cut(&report, tokens_max) {
        errln!("note: {note}");
        report.notes.push(note);
    }
    Ok(Shown { report, stopped })
}

/// Returns the note on an answer that was cut before its end.
fn cut(report: &AnswerReport, tokens_max: usize) -> Option<Note> {
    let tokens = report.timeline.shown.len();
    let is_cut = report.ending == "length";
    let largest = usize::try_from(ANSWER_TOKENS_MAX).unwrap_or(usize::MAX);
    is_cut.then(|| match tokens >= tokens_max && tokens < largest {
        true => Note::CutAtLimit { tokens, more: tokens.saturating_mul(4).min(largest) },
        false => Note::CutForRoom { tokens },
    })
}

fn print_event(event: AnswerEvent, quiet: bool, progress: &ProgressLine) -> std::io::Result<()> {
    match event {
        AnswerEvent::Note(note) => errln!("note: {note}"),
        AnswerEvent::Text { text, .. } if !quiet => {
            out!("{text}")?;
            baton_terminal::stdout().flush()?;
        }
        AnswerEvent::Text { .. } => {}
        AnswerEvent::Progress(far) => progress.show(&far),
    }
    Ok(())
}

/// Prints the report as one JSON object on one line.
pub(super) fn print_json(report: &AnswerReport) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string(report).context("write the report")?).context("write the report")
}

/// Prints the timeline of an answer, for a person.
pub(super) fn print_trace(report: &AnswerReport) {
    let t = &report.timeline;
    let ms = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.0} ms"));
    let number = |value: Option<usize>| value.map_or("-".to_owned(), |v| v.to_string());
    errln!("-- timeline (milliseconds since the question)");
    errln!("first token shown        {}", ms(t.ttft_user_ms));
    errln!("cloud's first token      {}", ms(t.ttft_cloud_ms));
    errln!("device has the prompt    {}", ms(t.prompt_ready_ms));
    errln!("device's own first token {}", ms(t.ttft_device_ms));
    errln!("last token               {}", ms(t.total_ms));
    errln!(
        "gaps                     max {:.0}  p99 {:.0}  sd {:.1} ms (tau {:.0})",
        report.gap_max_ms,
        report.gap_p99_ms,
        report.gap_sd_ms,
        t.tau_ms
    );
    errln!(
        "tokens                   cloud {} (L {}, bound by {})  device {}",
        report.tokens_from_cloud,
        number(t.assist_tokens),
        t.assist_bound_by.as_deref().unwrap_or("-"),
        report.tokens_from_device
    );
    errln!(
        "prompt tokens            {} -> {} (cached {})  mask {} bytes",
        number(t.prompt_tokens),
        number(t.prompt_tokens_refined),
        number(t.prompt_tokens_cached),
        number(t.mask_bytes)
    );
    if let Some(agreement) = t.agreement {
        errln!("agreement                {:.0} % of the cloud's tokens", agreement * 100.0);
    }
    if let Some(s) = report.speculation.filter(|s| s.passes > 0) {
        errln!(
            "speculation              {} tokens in {} passes, {} of {} proposals accepted{}",
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
        errln!("{:>8.0}  +{:<5.0} {:>4}  {who}", shown.at_ms, gap, shown.index);
        last = Some(shown.at_ms);
    }
}
