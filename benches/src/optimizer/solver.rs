//! Solves P as a mixed integer program with HiGHS, for linear prefill, to check the closed form.

use anyhow::ensure;
use baton_pacing::{BoundBy, OptimizerInput, Verdict, optimize};
use highs::{HighsModelStatus, RowProblem, Sense};

use super::draw::draw;
use crate::random::Random;
use crate::report::Report;

/// Compares the closed form with HiGHS on `requests` requests for which refining saves time.
pub(super) fn against_programme(requests: usize, seed: u64, report: &mut Report) -> anyhow::Result<()> {
    let (mut worst, mut solved, mut infeasible, mut index) = (0.0_f64, 0_usize, 0_usize, 0_u64);
    while solved + infeasible < requests {
        ensure!(index < 100 * requests as u64, "too few requests for which refining pays");
        let input = linear(&mut Random::new(seed, 4, index));
        index += 1;
        let plan = optimize(&input)?;
        if plan.verdict != Verdict::Relay {
            continue;
        }
        let said = matches!(plan.bound_by, BoundBy::CloudDecode | BoundBy::DeviceTooSlow);
        match integer_programme(&input, plan.predicted.ttft_c_ms, plan.predicted.device_alone_ms)? {
            Some(ratio) => {
                ensure!(!said, "P has a solution that the closed form missed: {input:?}");
                worst = worst.max((ratio - plan.ratio).abs());
                solved += 1;
            }
            None => {
                ensure!(said, "the closed form solved an infeasible P: {input:?}");
                infeasible += 1;
            }
        }
    }
    let name = format!("largest difference in r to HiGHS, {solved} requests (and {infeasible} infeasible)");
    report.check_at_most(name, worst, 1e-4);
    Ok(())
}

/// Draws a request with linear prefill and an empty cache, as the integer program assumes.
fn linear(random: &mut Random) -> OptimizerInput {
    let mut input = draw(random, false);
    (input.prompt.prefix_tokens, input.prompt.cached_tokens) = (0, 0);
    input
}

/// Returns the smallest `r` of P, from a mixed integer program over `r` and `L`, or `None` if it is
/// infeasible.
fn integer_programme(input: &OptimizerInput, ttft_c_ms: f64, alone_ms: f64) -> anyhow::Result<Option<f64>> {
    let per_ratio = input.device.prefill_ms_per_token * f64::from(input.prompt.content_tokens);
    // A(r) = base + per_ratio r. The base includes the whole fixed part, because the cache is empty.
    let base =
        input.device.decompress_ms + input.device.prefill_ms_per_token * f64::from(input.prompt.fixed_tokens);
    let mut problem = RowProblem::new();
    let ratio = problem.add_column(1.0, input.scene.xi..=1.0);
    let tokens = problem.add_integer_column(0.0, 1.0..=100_000.0);
    // A + k_d L <= tau L.
    let slack = input.scene.tau_ms - input.device.prefill_ms_per_token;
    problem.add_row(base.., [(tokens, slack), (ratio, -per_ratio)]);
    // (L - 1) TPOT_c <= A.
    problem.add_row(..=base + input.cloud.decode_ms, [(tokens, input.cloud.decode_ms), (ratio, -per_ratio)]);
    // TTFT_c + A <= prefill_d(l).
    problem.add_row(..=alone_ms - ttft_c_ms - base, [(ratio, per_ratio)]);
    let mut model = problem.optimise(Sense::Minimise);
    model.make_quiet();
    model.set_option("mip_feasibility_tolerance", 1e-9);
    model.set_option("primal_feasibility_tolerance", 1e-9);
    let solved = model.solve();
    match solved.status() {
        HighsModelStatus::Optimal => Ok(Some(solved.get_solution().columns()[0])),
        HighsModelStatus::Infeasible => Ok(None),
        status => anyhow::bail!("optimizer programme: {status:?}"),
    }
}
