//! Several answers at once on a device: `baton serve` with 1 to 8 clients, beside the bare engine.
//!
//! All clients come at once, with prompts that differ from their first letter on. In a second run a client
//! comes while three answers are being written: what it waits for its first token, and what the others wait
//! for their next one.

use std::process::Command;

use anyhow::{Context as _, Result};
use baton_pacing::refit::median;
use serde_json::json;

use super::clients::{Ask, Program, Until, program, tokens_per_s};
use super::{Bench, RATE};
use crate::engine::letters::Letters;
use crate::engine::process::Worker;
use crate::engine::samples::Samples;
use crate::engine::worker::SHIPPED_KV;
use crate::report::Report;

/// Answers at once.
const ANSWERS: [usize; 4] = [1, 2, 4, 8];
/// Sequences of the bare engine; between 3 and 5 its kernels change their way.
const BARE: [usize; 6] = [1, 2, 3, 4, 5, 8];
/// Letters of a prompt.
const PROMPT: usize = 64;
/// Minimum rate of 4 answers, as a multiple of one's.
const FOUR_MIN: f64 = 2.2;
/// Minimum rate of 8 answers, as a multiple of 4's.
const EIGHT_MIN: f64 = 1.0;
/// Minimum rate of the program, as a share of the bare engine's.
const HOST_SHARE_MIN: f64 = 0.95;
/// Most decode passes that a client's first token may come later beside three others than alone.
const LATE_STEPS_MAX: f64 = 6.0;

/// The figures of the second run, one of each turn.
#[derive(Debug, Default)]
struct Late {
    first_s: Vec<f64>,
    alone_s: Vec<f64>,
    /// How much later than alone, in decode passes of one answer.
    later_steps: Vec<f64>,
    /// Longest gap of the others, in passes of three answers.
    gap_steps: Vec<f64>,
    gap_s: Vec<f64>,
}

/// Measures and adds the tables and the checks.
pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let answers_max = ANSWERS.iter().max().context("answers are measured")?;
    let options = [
        ("--answers", answers_max.to_string()),
        ("--threads", bench.threads.to_string()),
        ("--speculate", "off".to_owned()),
        ("--kv-tokens", (answers_max * 1024).to_string()),
    ];
    let options: Vec<String> =
        options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
    let device = Program::device(&program("baton", None)?, bench.model, &options)?;
    let mut bare = bare(bench)?;
    let mut letters = Letters::new(21);
    let mut ask = || Ask { prompt: letters.prompt(PROMPT), tokens: bench.tokens, temperature: 0.0, seed: 1 };
    device.answers(&[ask(), ask()])?; // Warms up.
    let (mut samples, mut late) = (Samples::default(), Late::default());
    for at in 0..bench.alternations {
        let mut lone = (f64::NAN, f64::NAN);
        for turn in 0..ANSWERS.len() {
            let count = ANSWERS[(at + turn) % ANSWERS.len()];
            let asks: Vec<Ask> = (0..count).map(|_| ask()).collect();
            let heard = device.answers(&asks)?;
            let rate =
                tokens_per_s(&heard, Until::FirstEnd).context("the answers were not written at once")?;
            samples.add(RATE, &host_name(count), at, rate);
            if count == 1 {
                lone = (heard[0].first_s(), heard[0].step_s(heard[0].last()).context("no pass was seen")?);
            }
        }
        for count in BARE {
            let seconds = bare.seconds(&format!("batch {count} {} {PROMPT}", bench.tokens))?;
            samples.add(RATE, &bare_name(count), at, (count * bench.tokens) as f64 / seconds);
        }
        late.turn(&device, &mut ask, lone)?;
        progress(&samples, at, bench.alternations);
    }
    let weight_bytes = bare.number("info", "weight_bytes")?;
    tables(bench, &samples, &late, weight_bytes, report)?;
    if !bench.quick {
        checks(&samples, &late, report);
    }
    Ok(())
}

/// Starts the bare engine, with the KV format of the programs.
fn bare(bench: &Bench<'_>) -> Result<Worker> {
    let mut command = Command::new(std::env::current_exe().context("find the running program")?);
    command.arg("engine-worker").arg(bench.model).args(["--kv", SHIPPED_KV.name()]);
    command.args(["--threads", &bench.threads.to_string(), "--context", "4096"]);
    Worker::start("engine", &mut command)
}

fn host_name(count: usize) -> String {
    format!("{count} answers")
}

fn bare_name(count: usize) -> String {
    format!("bare batch of {count}")
}

impl Late {
    /// Lets a client come while three answers are being written. `lone` has the seconds to the first token
    /// and those of a pass of a client alone.
    fn turn(
        &mut self,
        device: &Program,
        ask: &mut impl FnMut() -> Ask,
        (alone_s, step_s): (f64, f64),
    ) -> Result<()> {
        let others = [ask(), ask(), ask()];
        let heard = device.answers_and_late(&others, &ask())?;
        let (last, others) = heard.split_last().context("nobody was heard")?;
        let first_s = last.first_s();
        let came = last.begun;
        // Gaps before all three write come from their own prompts.
        let gap_s = others.iter().map(|other| other.longest_gap_s(came)).fold(0.0, f64::max);
        let three_s = median(others.iter().filter_map(|other| other.step_s(came)));
        self.first_s.push(first_s);
        self.alone_s.push(alone_s);
        self.later_steps.push((first_s - alone_s) / step_s);
        self.gap_s.push(gap_s);
        self.gap_steps.push(gap_s / three_s.unwrap_or(step_s));
        Ok(())
    }
}

fn progress(samples: &Samples, at: usize, alternations: usize) {
    let rate = |name: String| samples.rate(RATE, &name, at).unwrap_or(f64::NAN);
    let each = |names: Vec<String>| {
        names.into_iter().map(|name| format!("{:.1}", rate(name))).collect::<Vec<_>>().join(", ")
    };
    let host = each(ANSWERS.map(host_name).into());
    let bare = each(ANSWERS.map(bare_name).into());
    eprintln!("device {}/{alternations}: {host} tokens/s; bare engine {bare}", at + 1);
}

fn tables(
    bench: &Bench<'_>,
    samples: &Samples,
    late: &Late,
    weight_bytes: f64,
    report: &mut Report,
) -> Result<()> {
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for count in BARE {
        let (host, bare) = (host_name(count), bare_name(count));
        let rate = |name: &str| samples.median(RATE, name);
        let over_one = |name: &str, one: &str| samples.ratio(RATE, name, &[one]);
        let share = samples.ratio(RATE, &host, &[&bare]);
        let gains = (over_one(&host, &host_name(1)), over_one(&bare, &bare_name(1)));
        let text = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
        let bare_rate = rate(&bare).context("the bare engine was measured")?;
        // A pass writes one token of each answer, and reads all weights.
        let read_share = bare_rate / count as f64 * weight_bytes / bench.read_bytes_per_s;
        let cells = [rate(&host), gains.0, Some(bare_rate), gains.1, share, Some(read_share)];
        rows.push([vec![count.to_string()], cells.map(text).to_vec()].concat());
        data.push(json!({ "answers": count, "tokens_per_s": rate(&host), "gain": gains.0,
            "bare_tokens_per_s": bare_rate,
            "bare_gain": gains.1, "share": share, "read_share": read_share }));
    }
    let title = format!(
        "{}: answers at once on a device; weights are read at most {:.1} times a second",
        bench.name,
        bench.read_bytes_per_s / weight_bytes
    );
    let header = ["answers", "tokens/s", "of one's", "bare batch", "of one's", "host / bare", "of bandwidth"];
    report.table(&title, &header, &rows);
    let middle = |values: &[f64]| median(values.iter().copied()).unwrap_or(f64::NAN);
    let row = |name: &str, values: &[f64], digits: usize| {
        vec![name.to_owned(), format!("{:.digits$}", middle(values))]
    };
    let rows = [
        row("first token of a client alone, s", &late.alone_s, 3),
        row("first token of a fourth client, s", &late.first_s, 3),
        row("later, decode passes", &late.later_steps, 1),
        row("longest gap of the other three, s", &late.gap_s, 3),
        row("longest gap, passes of three", &late.gap_steps, 1),
    ];
    report.table("a client that comes beside three others", &["", "median"], &rows);
    report.data(
        "device",
        json!({ "rates": data, "weight_bytes": weight_bytes, "late_first_s": late.first_s,
        "alone_first_s": late.alone_s, "later_passes": late.later_steps, "gap_s": late.gap_s,
            "gap_passes": late.gap_steps }),
    );
    Ok(())
}

fn checks(samples: &Samples, late: &Late, report: &mut Report) {
    let ratio =
        |of: usize, to: usize| samples.ratio(RATE, &host_name(of), &[&host_name(to)]).unwrap_or(f64::NAN);
    report.check_at_least("device: tokens/s of 4 answers, of one's", ratio(4, 1), FOUR_MIN);
    report.check_at_least("device: tokens/s of 8 answers, of those of 4", ratio(8, 4), EIGHT_MIN);
    for count in ANSWERS {
        let share = samples.ratio(RATE, &host_name(count), &[&bare_name(count)]).unwrap_or(f64::NAN);
        report.check_at_least(format!("device: {count} answers, of the bare batch"), share, HOST_SHARE_MIN);
    }
    let later = median(late.later_steps.iter().copied()).unwrap_or(f64::NAN);
    report.check_at_most("device: first token of a fourth client, passes later", later, LATE_STEPS_MAX);
}
