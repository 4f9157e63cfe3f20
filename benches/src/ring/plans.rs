//! Compares the ring's tokens with those of one device, under plans of one to four devices and one to eight
//! rounds.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context as _, Result};
use baton_e2e::home::{Home, Planned, Seat, Task};
use baton_synthetic::{Quant, SyntheticModel};
use serde_json::json;

use super::Bench;
use crate::random::Random;

/// Enough layers for eight rounds of four devices with different windows. The model is small, because only
/// the tokens are compared.
const LAYERS: u32 = 34;
const ROUNDS_MAX: usize = 8;
const WORKERS: [&str; 3] = ["desk", "phone", "tablet"];
const TOKENS: usize = 24;
const PLANS_MIN: f64 = 20.0;
const SEED: u64 = 6;

/// Runs all plans and adds the table and the checks.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let path = bench.scratch.join("plans.gguf");
    write_model(&path)?;
    let seat = |at: usize, name: &str| Seat::new(name).on_cpu(at % 2);
    let workers: Vec<Seat> = (1..)
        .zip(WORKERS)
        .map(|(at, name)| seat(at, name).with("--threads").with("1").with("--model").with(&path))
        .collect();
    let home = bench.wait(Home::below(&bench.scratch, path, seat(0, "head"), &workers))?;
    let task = Task::of_tokens(TOKENS);
    let want = bench.alone(&home, &task)?.answer["written"].clone();
    let (mut rows, mut differ, mut lost, mut plans) = (Vec::new(), 0, 0, 0);
    for (devices, rounds) in cases() {
        let shares = shares(devices, rounds);
        let given = Planned::shares(&shares, rounds);
        let figure = bench
            .ring(&home, &task, &given)
            .with_context(|| format!("{devices} devices in {rounds} rounds"))?;
        let equal = figure.answer["written"] == want;
        plans += 1;
        differ += usize::from(!equal);
        lost += figure.recoveries();
        let layers: Vec<String> = shares.iter().map(|(name, layers)| format!("{name} {layers}")).collect();
        eprintln!("{} in {rounds} rounds: {}", layers.join(", "), if equal { "equal" } else { "DIFFERS" });
        let equal = if equal { "yes" } else { "NO" };
        rows.push(vec![
            layers.join(", "),
            rounds.to_string(),
            equal.to_owned(),
            format!("{:.2}", figure.step_ms),
        ]);
    }
    let header = ["layers", "rounds", "one device's tokens", "ms a token"];
    bench.report.table(&format!("{TOKENS} tokens under {plans} plans"), &header, &rows);
    bench.report.check_at_least("plans compared", f64::from(plans), PLANS_MIN);
    bench.report.check_equal("plans whose tokens are not one device's", differ as f64, 0.0);
    bench.report.check_equal("devices lost under these plans", lost as f64, 0.0);
    bench.report.data("plans", json!({ "compared": plans, "tokens_each": TOKENS, "differ": differ }));
    Ok(())
}

fn write_model(path: &Path) -> Result<()> {
    let quant = Quant::find("Q4_K").context("no format Q4_K")?;
    let model =
        SyntheticModel { n_layers: LAYERS, endless: true, ..SyntheticModel::small("llama", quant, SEED) };
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    model.write_to(BufWriter::new(file), |_, _| {}).with_context(|| format!("write {}", path.display()))
}

/// Returns the pairs of numbers of devices and of rounds.
fn cases() -> impl Iterator<Item = (usize, usize)> {
    let several =
        (2..=WORKERS.len() + 1).flat_map(|devices| (1..=ROUNDS_MAX).map(move |rounds| (devices, rounds)));
    std::iter::once((1, 1)).chain(several)
}

/// Draws shares: the head may have no layers; every worker has at least one layer in each round.
fn shares(devices: usize, rounds: usize) -> Vec<(&'static str, usize)> {
    let mut random = Random::new(SEED, devices as u64, rounds as u64);
    let mut workers = WORKERS.to_vec();
    for at in (1..workers.len()).rev() {
        workers.swap(at, random.count((0, at as u32)) as usize);
    }
    workers.truncate(devices - 1);
    let mut left = LAYERS as usize - rounds * workers.len();
    let mut shares = vec![("head", 0)];
    for name in workers {
        let more = random.count((0, left as u32)) as usize;
        left -= more;
        shares.push((name, rounds + more));
    }
    shares[0].1 = left;
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_plans_cover_the_model_and_every_worker_has_a_part_in_each_round() {
        let mut plans = 0;
        for (devices, rounds) in cases() {
            let shares = shares(devices, rounds);
            assert_eq!(shares.len(), devices);
            assert_eq!(shares.iter().map(|(_, layers)| layers).sum::<usize>(), LAYERS as usize);
            assert!(shares[1..].iter().all(|(_, layers)| *layers >= rounds), "{shares:?}");
            plans += 1;
        }
        assert!(f64::from(plans) >= PLANS_MIN);
    }
}
