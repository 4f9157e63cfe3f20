//! What handing out attention scores costs, as a share of a prompt's prefill.
//!
//! Scores are of the prompt's last tokens only, so every chunk but the last is the same with and without them: the
//! last one is timed each way, in turn, and the difference set against the whole prompt.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::samples::median;
use super::speed::start_ours;
use super::worker::SHIPPED_KV;
use super::{Args, Subject};
use crate::report::Report;

const PROMPT_TOKENS: usize = 8192;
/// Measurements of each way within an alternation.
const REPEATS: usize = 3;

/// Measures and adds the table and the checks.
pub fn measure(args: &Args, subject: &Subject, report: &mut Report) -> Result<()> {
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
