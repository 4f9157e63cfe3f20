//! The second opinion: HiGHS on the linear programme of the best gap in hindsight, and on the optimizer's
//! mixed integer programme where prefill is linear.

use anyhow::ensure;
use baton_pacing::{
    BoundBy, CloudCost, DeviceCost, Millis, OptimizerInput, PromptShape, ScenePolicy, SlowDevice, Verdict,
    Verification, optimize,
};
use highs::{HighsModelStatus, RowProblem, Sense};

use super::PARAMS;
use super::random::Random;
use crate::report::Report;

/// `min G` subject to `s_0 = a_0`, `s_i >= a_i`, `0 <= s_i - s_(i-1) <= G`, in milliseconds.
pub fn hindsight_ms(available_at: &[Millis]) -> anyhow::Result<f64> {
    let Some(&first) = available_at.first() else { return Ok(0.0) };
    let mut problem = RowProblem::new();
    let gap = problem.add_column(1.0, 0.0..);
    let mut before = problem.add_column(0.0, 0.0..=0.0);
    for &at in &available_at[1..] {
        let shown = problem.add_column(0.0, (at - first).as_f64()..);
        problem.add_row(0.0.., [(shown, 1.0), (before, -1.0)]);
        problem.add_row(0.0.., [(gap, 1.0), (shown, -1.0), (before, 1.0)]);
        before = shown;
    }
    let mut model = problem.optimise(Sense::Minimise);
    model.make_quiet();
    let solved = model.solve();
    ensure!(solved.status() == HighsModelStatus::Optimal, "hindsight programme: {:?}", solved.status());
    Ok(solved.get_solution().columns()[0])
}

/// Requests solved both ways.
const REQUESTS: u64 = 300;

/// Compares the closed form with HiGHS on P for linear prefill.
pub fn check_optimizer(report: &mut Report, seed: u64) -> anyhow::Result<()> {
    let (mut worst, mut solved, mut infeasible) = (0.0_f64, 0_usize, 0_usize);
    for index in 0..REQUESTS {
        let mut random = Random::new(seed, 1_000, index);
        let input = draw(&mut random);
        let plan = optimize(&input)?;
        if plan.verdict != Verdict::Relay {
            continue;
        }
        match integer_programme(&input, plan.predicted.ttft_c_ms, plan.predicted.device_alone_ms)? {
            Some(ratio) => {
                ensure!(
                    plan.bound_by != BoundBy::CloudDecode,
                    "P has a solution that the closed form missed: {input:?}"
                );
                worst = worst.max((ratio - plan.ratio).abs());
                solved += 1;
            }
            None => {
                ensure!(
                    plan.bound_by == BoundBy::CloudDecode,
                    "the closed form solved an infeasible P: {input:?}"
                );
                infeasible += 1;
            }
        }
    }
    report.check_at_most(
        format!(
            "optimizer: largest difference in r to HiGHS, {solved} requests (and {infeasible} infeasible)"
        ),
        worst,
        1e-4,
    );
    report.check_at_least("optimizer: requests with a solution", solved as f64, 100.0);
    Ok(())
}

/// The smallest `r` of P, as a mixed integer programme over `r` and `L`; `None` where there is none.
fn integer_programme(input: &OptimizerInput, ttft_c_ms: f64, alone_ms: f64) -> anyhow::Result<Option<f64>> {
    let per_ratio = input.device.prefill_ms_per_token * f64::from(input.prompt.content_tokens);
    // A(r) = base + per_ratio r: the fixed part without a prefix, since nothing is held here.
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

/// A request with linear prefill and nothing held; cloud decoding from fast to slower than `tau` bears.
fn draw(random: &mut Random) -> OptimizerInput {
    OptimizerInput {
        prompt: PromptShape {
            fixed_tokens: random.count((20, 200)),
            content_tokens: random.count((500, 8_000)),
            prefix_tokens: 0,
            cached_tokens: 0,
        },
        device: DeviceCost {
            prefill_ms_per_token: random.uniform((0.5, 3.0)),
            prefill_ms_per_token2: 0.0,
            decode_ms: 30.0,
            decompress_ms: PARAMS.decompress_ms,
        },
        cloud: CloudCost {
            ttft_base_ms: PARAMS.cloud_base_ms,
            prefill_ms_per_token: PARAMS.cloud_prefill_ms,
            decode_ms: random.uniform((20.0, 120.0)),
            rtt_ms: 20.0,
            queue_ms: 0.0,
            compress_ms: 1.0,
        },
        scene: ScenePolicy {
            xi: random.uniform((0.05, 0.5)),
            ratio: None,
            assist_tokens: None,
            assist_floor: 1,
            tau_ms: PARAMS.tau_ms,
            answer_tokens_max: 100_000,
            slow_device: SlowDevice::AcceptGap,
        },
        verification: Verification::Batched,
        shed_load: false,
    }
}
