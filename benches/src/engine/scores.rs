//! Measures the cost of capturing attention scores, as a share of a prompt's prefill time.
//!
//! Only the scores of the prompt's last tokens are captured, so all chunks but the last are the same with and
//! without them. The last chunk is timed in turn with and without scores, and the difference is divided by
//! the time of the whole prompt.

use anyhow::{Context as _, Result};
use baton_pacing::refit::median;
use serde_json::json;

use super::programs::start_ours;
use super::worker::SHIPPED_KV;
use super::{Args, Subject};
use crate::report::Report;

const PROMPT_TOKENS: usize = 8192;
/// Number of measurements of each variant within an alternation.
const REPEATS: usize = 3;

/// Measures the cost and adds the table and the checks.
pub(super) fn measure(args: &Args, subject: &Subject, report: &mut Report) -> Result<()> {
    let mut worker = start_ours(args, subject, SHIPPED_KV)?;
    let prompt_s = worker.seconds(&format!("prefill {PROMPT_TOKENS}"))?;
    worker.seconds(&format!("scores {PROMPT_TOKENS} none"))?; // Computes the chunks before the last one.
    let (mut all, mut chosen) = (Vec::new(), Vec::new());
    for at in 0..args.alternations() * REPEATS {
        let mut seconds = |which: &str| worker.seconds(&format!("scores {PROMPT_TOKENS} {which}"));
        let plain = seconds("none")?;
        all.push((seconds("all")? - plain) / prompt_s);
        chosen.push((seconds("chosen")? - plain) / prompt_s);
        eprintln!("{}: scores {}/{}", subject.name, at + 1, args.alternations() * REPEATS);
    }
    let cost = |shares: Vec<f64>| median(shares).context("nothing was measured");
    let (all, chosen) = (cost(all)?, cost(chosen)?);
    let rows = [("all heads of all layers", all), ("8 chosen heads", chosen)]
        .map(|(what, share)| vec![what.to_owned(), format!("{:.2} %", 100.0 * share)]);
    let title = format!("{}: window scores, cost in prefill of {PROMPT_TOKENS} tokens", subject.name);
    report.table(&title, &["", "median"], &rows);
    report.data(&format!("{} scores", subject.name), json!({ "all": all, "chosen": chosen }));
    if !args.quick {
        let name = |what: &str| format!("{} window scores of {what}: % of prefill", subject.name);
        report.check_at_most(name("all layers"), 100.0 * all, 2.0);
        report.check_at_most(name("the chosen heads"), 100.0 * chosen, 0.5);
    }
    Ok(())
}
