//! Tests whether a tenant can learn another tenant's prompts from response times. It guesses a code in these
//! prompts, in turn rightly and wrongly.
//!
//! A right guess would be answered faster if the other tenant's prompt were found in the cache. The times of
//! right and wrong guesses are compared by a permutation test on their ranks. By chance, one p-value in
//! twenty is below 0.05, so the median of three rounds counts. The same guesses by the tenant itself show
//! that the test detects a cached prompt.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use baton_e2e::hostile::streams::{form, look};
use baton_e2e::hostile::tenants::Tenants;
use baton_pacing::refit::median;
use serde_json::json;

use crate::random::Random;
use crate::report::Report;

/// Number of guesses in one round; half of them are right.
const GUESSES: usize = 200;
const ROUNDS: usize = 3;
const SHUFFLES: usize = 10_000;
/// Minimum p-value for another tenant's guesses: no effect is detected.
const P_MIN: f64 = 0.05;
/// Maximum p-value for the tenant's own guesses: the effect is detected.
const P_SEEN: f64 = 0.001;

/// The results of one round of guesses.
#[derive(Debug)]
struct Round {
    /// Milliseconds to the first token for right guesses.
    right: Vec<f64>,
    wrong: Vec<f64>,
    /// Tokens that the service reported as cached.
    cached: u64,
    p: f64,
}

/// Runs the test and adds it to the report.
pub(super) async fn run(report: &mut Report, quick: bool) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let Tenants { cloud: _cloud, server, keys, .. } =
        Tenants::start(folder.path(), &["one", "other"], &[], &[]).await?;
    let [victim, stranger] = &keys[..] else { bail!("two tenants have two keys") };
    let (guesses, rounds) = if quick { (20, 1) } else { (GUESSES, ROUNDS) };
    let mut turn = 0;
    let mut stranger_s = Vec::new();
    for round in 0..rounds {
        stranger_s.push(guess(server, [victim, stranger], guesses, &mut turn).await?);
        eprintln!("guesses {}/{rounds}", round + 1);
    }
    let own = guess(server, [victim, victim], guesses / 2, &mut turn).await?;
    let row = |name: &str, round: &Round| -> Result<Vec<String>> {
        let p50 = |ms: &[f64]| median(ms.iter().copied()).context("a guess was measured");
        let (right, wrong) = (p50(&round.right)?, p50(&round.wrong)?);
        let all = round.right.len() + round.wrong.len();
        Ok(vec![
            name.to_owned(),
            all.to_string(),
            format!("{right:.1}"),
            format!("{wrong:.1}"),
            round.cached.to_string(),
            format!("{:.4}", round.p),
        ])
    };
    let mut rows = stranger_s.iter().map(|round| row("another tenant", round)).collect::<Result<Vec<_>>>()?;
    rows.push(row("the same tenant", &own)?);
    report.table(
        "guesses at a prompt: time to the first token, ms (median), and what ranks say",
        &["by", "guesses", "right", "wrong", "cached tokens told", "p"],
        &rows,
    );
    let ps: Vec<f64> = stranger_s.iter().map(|round| round.p).collect();
    let cached: u64 = stranger_s.iter().map(|round| round.cached).sum();
    report.data("probe", json!({ "p": ps, "own_p": own.p, "cached_tokens": cached, "guesses": guesses }));
    report.check_equal("cached tokens told to a tenant that guesses another's prompt", cached as f64, 0.0);
    if !quick {
        let p = median(ps).context("there were rounds")?;
        report.check_at_least("p of right guesses' times beside wrong ones', another tenant's", p, P_MIN);
        report.check_at_most("the same within a tenant: the probe can see", own.p, P_SEEN);
    }
    Ok(())
}

/// Runs one round: for each guess, `victim` sends a form with a code, then `guesser` sends the same form with
/// this code or another one.
async fn guess(
    server: SocketAddr,
    [victim, guesser]: [&str; 2],
    guesses: usize,
    turn: &mut usize,
) -> Result<Round> {
    let mut random = Random::new(7, 0, *turn as u64);
    let mut round = Round { right: Vec::new(), wrong: Vec::new(), cached: 0, p: 0.0 };
    for at in 0..guesses {
        *turn += 1;
        let code = random.count((10_000, 99_998));
        look(server, victim, &form(*turn, code)).await?;
        let right = at % 2 == 0;
        let seen = look(server, guesser, &form(*turn, if right { code } else { code + 1 })).await?;
        let times = if right { &mut round.right } else { &mut round.wrong };
        times.push(seen.ttft.as_secs_f64() * 1e3);
        round.cached += seen.cached_tokens;
    }
    round.p = p_sooner(&round.right, &round.wrong, &mut random);
    Ok(round)
}

/// Returns the one-sided p-value of a permutation test: the share of shuffled labels with a rank sum of
/// `sooner` at most as large as the measured one.
fn p_sooner(sooner: &[f64], later: &[f64], random: &mut Random) -> f64 {
    let mut all: Vec<(f64, bool)> =
        sooner.iter().map(|&ms| (ms, true)).chain(later.iter().map(|&ms| (ms, false))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut labels: Vec<bool> = all.into_iter().map(|(_, first)| first).collect();
    let ranks = |labels: &[bool]| {
        labels.iter().enumerate().filter(|(_, first)| **first).map(|(rank, _)| rank).sum::<usize>()
    };
    let seen = ranks(&labels);
    let mut as_low = 1;
    for _ in 0..SHUFFLES {
        for at in (1..labels.len()).rev() {
            labels.swap(at, random.count((0, at as u32)) as usize);
        }
        as_low += usize::from(ranks(&labels) <= seen);
    }
    as_low as f64 / (SHUFFLES + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_tell_times_apart() {
        let mut random = Random::new(1, 2, 3);
        let ms = |from: f64, random: &mut Random| -> Vec<f64> {
            (0..60).map(|_| random.uniform((from, from + 10.0))).collect()
        };
        let (a, b, sooner) = (ms(5.0, &mut random), ms(5.0, &mut random), ms(2.0, &mut random));
        assert!(p_sooner(&a, &b, &mut random) > 0.05);
        assert!(p_sooner(&sooner, &a, &mut random) < 0.001);
        assert!(p_sooner(&a, &sooner, &mut random) > 0.99, "later is not sooner");
    }
}
