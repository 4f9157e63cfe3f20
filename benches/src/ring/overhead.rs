//! Measures the overhead of a ring: a ring of one device compared with the engine alone, a hop on loopback,
//! and the speed-up of prefill on two devices.
//!
//! Each device has one thread on its own CPU. Configurations take turns, and every ratio is taken within one
//! turn.

use anyhow::{Context as _, Result};
use baton_e2e::home::{Home, Planned, Seat, Task, alone};
use baton_pacing::refit::median;
use serde_json::json;

use super::{Bench, Figure, evenly, median_ms, shape};
use crate::engine::Subject;

/// The two devices.
pub(super) const NAMES: [&str; 2] = ["head", "desk"];
/// The numbers of rounds that are compared.
pub(super) const ROUNDS: [usize; 4] = [1, 2, 4, 8];
/// Maximum time of a ring of one device, as a multiple of the engine alone.
const ONE_MAX: f64 = 1.02;
/// Maximum milliseconds of a hop without the latency of its link.
pub(super) const HOP_MAX_MS: f64 = 0.3;
const PROMPT: usize = 512;
/// Minimum prefill rate of two devices, as a multiple of one device's.
const PREFILL_MIN: f64 = 1.6;

/// Makes a ring of two devices with one thread and one CPU each. Both have the model file.
pub(super) fn home(bench: &Bench<'_>, subject: &Subject) -> Result<Home> {
    let worker =
        Seat::new(NAMES[1]).on_cpu(1).with("--threads").with("1").with("--model").with(&subject.path);
    let head = Seat::new(NAMES[0]).on_cpu(0);
    let workers = [worker];
    let made = Home::below(&bench.scratch, subject.path.clone(), head, &workers);
    bench.wait(made).context("make a ring of two devices")
}

/// Measures a ring of one device and hops, and adds the table and the checks.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let subject = bench.subject(&bench.args.model)?;
    let layers = shape(&subject)?.layers;
    let home = home(bench, &subject)?;
    let task = Task { prompt: 32, ..Task::of_tokens(bench.args.tokens) };
    let rounds: Vec<usize> = ROUNDS.into_iter().filter(|rounds| rounds * NAMES.len() <= layers).collect();
    let (mut alone, mut one) = (Vec::new(), Vec::new());
    let mut two: Vec<Vec<Figure>> = vec![Vec::new(); rounds.len()];
    for turn in 1..=bench.args.alternations {
        alone.push(bench.alone(&home, &task)?);
        one.push(bench.ring(&home, &task, &Planned::shares(&[("head", layers)], 1))?);
        for (rounds, figures) in rounds.iter().zip(&mut two) {
            figures.push(bench.ring(&home, &task, &Planned::shares(&evenly(&NAMES, layers), *rounds))?);
        }
        let last = |figures: &[Figure]| figures.last().map_or(f64::NAN, |figure| figure.step_ms);
        let each: Vec<String> = two.iter().map(|figures| format!("{:.2}", last(figures))).collect();
        eprintln!(
            "{turn}/{}: alone {:.2}, ring of one {:.2}, of two {} ms",
            bench.args.alternations,
            last(&alone),
            last(&one),
            each.join(", ")
        );
    }
    let ratio = median(one.iter().zip(&alone).map(|(one, alone)| one.step_ms / alone.step_ms));
    let hop_ms = slope_ms(&rounds, &two);
    let mut rows = vec![
        vec!["engine alone".to_owned(), "0".to_owned(), format!("{:.3}", median_ms(&alone))],
        vec!["ring of one".to_owned(), "0".to_owned(), format!("{:.3}", median_ms(&one))],
    ];
    for (rounds, figures) in rounds.iter().zip(&two) {
        let hops = (NAMES.len() * rounds).to_string();
        rows.push(vec![format!("two devices, {rounds} rounds"), hops, format!("{:.3}", median_ms(figures))]);
    }
    let title = format!("{}: one token at a time, a thread for each device", subject.name);
    bench.report.table(&title, &["", "hops", "ms a token"], &rows);
    bench.report.check_at_most("ring of one beside the engine alone", ratio.unwrap_or(f64::NAN), ONE_MAX);
    bench.report.check_at_most("ms of a hop on loopback", hop_ms, HOP_MAX_MS);
    bench.predict("ring of one", &one);
    for (rounds, figures) in rounds.iter().zip(&two) {
        bench.predict(format!("two devices, {rounds} rounds"), figures);
    }
    let of = |figures: &[Figure]| figures.iter().map(|figure| figure.step_ms).collect::<Vec<_>>();
    let two: Vec<_> = two.iter().map(|figures| of(figures)).collect();
    bench.report.data(
        "overhead",
        json!({ "alone_ms": of(&alone), "one_ms": of(&one), "rounds": rounds, "two_ms": two, "hop_ms": hop_ms }),
    );
    Ok(())
}

/// Returns the milliseconds of one more hop: the median over turns of the least-squares slope.
pub(super) fn slope_ms(rounds: &[usize], figures: &[Vec<Figure>]) -> f64 {
    let turns = figures.first().map_or(0, Vec::len);
    let hops: Vec<f64> = rounds.iter().map(|rounds| (NAMES.len() * rounds) as f64).collect();
    let middle = hops.iter().sum::<f64>() / hops.len() as f64;
    let slopes = (0..turns).map(|turn| {
        let with = |at: usize| figures[at][turn].step_ms;
        let up: f64 = hops.iter().enumerate().map(|(at, hops)| (hops - middle) * with(at)).sum();
        up / hops.iter().map(|hops| (hops - middle).powi(2)).sum::<f64>()
    });
    median(slopes).unwrap_or(f64::NAN)
}

/// Measures a prompt and adds the table and the check. One device with as many threads as both is measured
/// for comparison; it shows the maximum of these two CPUs.
pub(super) fn prefill(bench: &mut Bench<'_>) -> Result<()> {
    let subject = bench.subject(&bench.args.model)?;
    let layers = shape(&subject)?.layers;
    let home = home(bench, &subject)?;
    let task = Task { prompt: PROMPT, ..Task::of_tokens(2) };
    let (mut one, mut two, mut most) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=bench.args.alternations {
        one.push(bench.alone(&home, &task)?.prefill_tokens_per_s);
        let shares = Planned::shares(&evenly(&NAMES, layers), 1);
        two.push(bench.ring(&home, &task, &shares)?.prefill_tokens_per_s);
        let both = Task { threads: NAMES.len(), ..task };
        most.push(Figure::of(bench.wait(alone(&subject.path, &both))?)?.prefill_tokens_per_s);
        let (one, two, most) = (one[turn - 1], two[turn - 1], most[turn - 1]);
        eprintln!(
            "{turn}/{}: one device {one:.1}, two {two:.1}, one of two threads {most:.1} tokens/s",
            bench.args.alternations
        );
    }
    let ratio = median(two.iter().zip(&one).map(|(two, one)| two / one)).unwrap_or(f64::NAN);
    let rate = |rates: &[f64]| format!("{:.1}", median(rates.iter().copied()).unwrap_or(f64::NAN));
    let row = |name: &str, rates: &[f64]| vec![name.to_owned(), rate(rates)];
    let rows = [row("one device", &one), row("two devices", &two), row("one device, two threads", &most)];
    let title = format!("{}: a prompt of {PROMPT} tokens, a thread for each device", subject.name);
    bench.report.table(&title, &["", "tokens/s"], &rows);
    bench.report.check_at_least("rate of a prompt on two devices, by one's", ratio, PREFILL_MIN);
    bench
        .report
        .data("prefill", json!({ "prompt": PROMPT, "one": one, "two": two, "one_of_two_threads": most }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_is_the_slope_over_hops() {
        let figure = |step_ms| Figure { step_ms, prefill_tokens_per_s: 1.0, answer: json!({}) };
        // 50 ms plus 0.2 ms per hop; the whole second turn is slower.
        let at = |rounds: f64| vec![figure(50.0 + 0.4 * rounds), figure(60.0 + 0.4 * rounds)];
        let figures: Vec<_> = [1.0, 2.0, 4.0, 8.0].map(at).into();
        assert!((slope_ms(&ROUNDS, &figures) - 0.2).abs() < 1e-9);
    }
}
