//! Compares three equations: Eq. (4) as printed, the corrected (4'), and the batched takeover. For each, it
//! computes the smallest `L`, the gap that it promises, and the worst gap if the text is shown at that pace.
//! Estimates are exact and there is no jitter.

use baton_pacing::equations::{Takeover, gap_ms, lower_bound};
use baton_pacing::{AssistBounds, BoundBy, DeviceCost, KeepsTau, Millis, Plan, Predicted, Verdict};

use super::PARAMS;
use super::play::play;
use super::printed::{self, lower_bound_step_by_step, smooth_tpot_step_by_step};
use super::trace::{Event, Trace};
use crate::random::Random;
use crate::report::Report;

/// Lengths of prompts. They give a TTFT_c of 460 to 3,260 ms, with k_c = 0.1 and a fixed part of 60 ms.
const PROMPT_TOKENS: [u32; 4] = [4_000, 8_000, 16_000, 32_000];
const RATIO: f64 = 0.25;
const CLOUD_DECODE_MS: f64 = 30.0;
const DEVICE: DeviceCost =
    DeviceCost { prefill_ms_per_token: 2.5, prefill_ms_per_token2: 0.0, decode_ms: 45.0, decompress_ms: 0.0 };
/// Number of tokens that the device writes.
const OWN_TOKENS: u32 = 100;

/// Adds both tables and their checks.
pub(super) fn side_by_side(report: &mut Report) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for tokens in PROMPT_TOKENS {
        rows.extend(one_prompt(tokens, report)?);
    }
    report.table(
        "k_d 2.5, k_c 0.1, TPOT_d 45, TPOT_c 30, tau 100, r 0.25 (ms)",
        &["equation", "l", "TTFT_c", "TTFT_d", "L", "promised gap", "worst gap when followed"],
        &rows,
    );
    let mut rows = Vec::new();
    for (prefill_ms, step, batched) in [(2_500.0, 47, 26), (5_000.0, 92, 52)] {
        let takeover = takeover(460.0, prefill_ms);
        let by_step = lower_bound_step_by_step(&takeover, PARAMS.tau_ms).unwrap_or(0);
        let at_once = lower_bound(&takeover, PARAMS.tau_ms).unwrap_or(0);
        rows.push(vec![
            format!("{:.0} tokens to prefill", prefill_ms / 2.5),
            by_step.to_string(),
            at_once.to_string(),
            format!("{:.0} %", 100.0 * (1.0 - f64::from(at_once) / f64::from(by_step))),
        ]);
        report.check_equal(
            format!("smallest L step by step, prefill {prefill_ms} ms"),
            f64::from(by_step),
            step.into(),
        );
        report.check_equal(
            format!("smallest L batched, prefill {prefill_ms} ms"),
            f64::from(at_once),
            batched.into(),
        );
    }
    report.table(
        "smallest L at TPOT_d 45, k_d 2.5, tau 100",
        &["", "step by step", "batched", "less"],
        &rows,
    );
    Ok(())
}

fn takeover(ttft_c_ms: f64, remaining_ms: f64) -> Takeover {
    Takeover {
        ttft_c_ms,
        remaining_ms,
        prompt_tokens: remaining_ms / DEVICE.prefill_ms_per_token,
        prefill_ms_per_token: DEVICE.prefill_ms_per_token,
        prefill_ms_per_token2: DEVICE.prefill_ms_per_token2,
        decode_ms: DEVICE.decode_ms,
    }
}

fn one_prompt(tokens: u32, report: &mut Report) -> anyhow::Result<Vec<Vec<String>>> {
    let ttft_c_ms = PARAMS.cloud_base_ms + PARAMS.cloud_prefill_ms * f64::from(tokens);
    let prefill_ms = DEVICE.prefill_ms(0.0, RATIO * f64::from(tokens));
    let one = takeover(ttft_c_ms, prefill_ms);
    let tau_ms = PARAMS.tau_ms;
    let bounds = printed::lower_bound(prefill_ms, ttft_c_ms, DEVICE.decode_ms, tau_ms)
        .zip(lower_bound_step_by_step(&one, tau_ms))
        .zip(lower_bound(&one, tau_ms));
    let Some(((printed, by_step), batched)) = bounds else { anyhow::bail!("tau {tau_ms} leaves no L") };
    let wanted = (batched * 13).div_ceil(10);
    let ours_ms = gap_ms(&one, batched);
    let by_step_ms = smooth_tpot_step_by_step(&one, by_step);
    let printed_ms = printed::smooth_tpot(prefill_ms, ttft_c_ms, DEVICE.decode_ms, printed);
    let own_at = |count: u32| one.ttft_d_ms() + DEVICE.decode_ms * f64::from(count);
    let worst_printed = follow(&one, printed, printed_ms, own_at(printed));
    let worst_by_step = follow(&one, by_step, by_step_ms, own_at(by_step));
    let worst_ours = follow(&one, batched, ours_ms, ttft_c_ms + one.takeover_ms(batched));
    let controlled = controlled(&one, wanted);
    let name = |what: &str| format!("{what}, l {tokens}");
    report.check_at_least(
        name("worst gap by Eq. (4) as printed is TTFT_c + TPOT_d"),
        worst_printed,
        ttft_c_ms + DEVICE.decode_ms - 1e-6,
    );
    report.check_at_most(name("worst gap by (4')"), worst_by_step, tau_ms + 1e-6);
    report.check_at_most(name("worst gap batched"), worst_ours, tau_ms + 1e-6);
    report.check_at_most(name("worst gap batched, L with margin, by the controller"), controlled, tau_ms);
    let row = |equation: &str, count: u32, promised: f64, worst: f64| {
        vec![
            equation.to_owned(),
            tokens.to_string(),
            format!("{ttft_c_ms:.0}"),
            format!("{:.0}", one.ttft_d_ms()),
            count.to_string(),
            format!("{promised:.1}"),
            format!("{worst:.1}"),
        ]
    };
    Ok(vec![
        row("(4) as printed", printed, printed_ms, worst_printed),
        row("(4') step by step", by_step, by_step_ms, worst_by_step),
        row("ours, batched", batched, ours_ms, worst_ours),
        row("ours, L x 1.3, controller", wanted, gap_ms(&one, wanted), controlled),
    ])
}

/// Returns the worst gap if the cloud's tokens are shown every `gap_ms` and the device's when they arrive.
fn follow(takeover: &Takeover, count: u32, gap_ms: f64, own_from_ms: f64) -> f64 {
    let mut worst = 0.0_f64;
    let mut shown = takeover.ttft_c_ms;
    for index in 1..count + OWN_TOKENS {
        let next = if index < count {
            let arrives = takeover.ttft_c_ms + CLOUD_DECODE_MS * f64::from(index);
            (takeover.ttft_c_ms + gap_ms * f64::from(index)).max(arrives)
        } else {
            own_from_ms + takeover.decode_ms * f64::from(index - count)
        };
        worst = worst.max(next - shown);
        shown = shown.max(next);
    }
    worst
}

/// Returns the worst gap with the real controller.
fn controlled(takeover: &Takeover, count: u32) -> f64 {
    let prompt_tokens = takeover.prompt_tokens.round() as usize;
    let target_tokens = prompt_tokens + count as usize;
    let first_at = Millis::new(takeover.ttft_c_ms);
    let ready_at = first_at + Millis::new(takeover.takeover_ms(count));
    let mut available_at: Vec<Millis> =
        (0..count).map(|i| first_at + Millis::new(CLOUD_DECODE_MS * f64::from(i))).collect();
    available_at.extend((0..OWN_TOKENS).map(|i| ready_at + Millis::new(DEVICE.decode_ms * f64::from(i))));
    let mut events: Vec<(Millis, Event)> = (1..=PARAMS.chunks)
        .map(|chunk| {
            let tokens = target_tokens * chunk / PARAMS.chunks;
            (first_at + Millis::new(DEVICE.prefill_ms(0.0, tokens as f64)), Event::Progress(tokens))
        })
        .collect();
    events.extend(available_at.iter().enumerate().map(|(i, &at)| (at, Event::Available(i + 1))));
    events.sort_by(|a, b| a.0.as_f64().total_cmp(&b.0.as_f64()));
    let predicted = Predicted {
        ttft_c_ms: takeover.ttft_c_ms,
        ttft_d_ms: takeover.ttft_d_ms(),
        takeover_ms: ready_at.as_f64(),
        gap_ms: gap_ms(takeover, count),
        device_alone_ms: takeover.remaining_ms / RATIO,
    };
    let trace = Trace {
        plan: Plan {
            ratio: RATIO,
            assist_tokens: count,
            bound_by: BoundBy::Tau,
            verdict: Verdict::Relay,
            keeps_tau: KeepsTau::Yes,
            bounds: AssistBounds { lower: Some(count), upper: count },
            predicted,
        },
        estimate: DEVICE,
        prefill_start: first_at,
        held_tokens: 0,
        target_tokens,
        events,
        available_at,
        cloud_tokens: count as usize,
        factors: (1.0, 1.0),
        stall_ms: 0.0,
        recovery_ms: 0.0,
    };
    play(&trace, &mut Random::new(0, 0, 0)).gaps.max_ms
}
