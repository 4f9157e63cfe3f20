//! Compares the optimizer's closed form with brute force over `L` and a fine grid of `r`, and checks its
//! verdicts.

use baton_pacing::{
    BoundBy, CloudCost, DeviceCost, InputError, KeepsTau, OptimizerInput, Plan, PromptShape, ScenePolicy,
    SlowDevice, Verdict, optimize, relay,
};
use proptest::prelude::*;

use self::phone::phone;

#[path = "../src/explain/tests/phone.rs"]
mod phone;

/// An independent implementation of the cost model at one `r`.
struct Candidate<'a> {
    input: &'a OptimizerInput,
    kept: f64,
    ttft_c: f64,
    ttft_d: f64,
    alone: f64,
}

impl<'a> Candidate<'a> {
    fn at(input: &'a OptimizerInput, ratio: f64) -> Self {
        let (device, cloud, prompt) = (&input.device, &input.cloud, &input.prompt);
        let whole = f64::from(prompt.fixed_tokens + prompt.content_tokens);
        let ttft_c = cloud.ttft_base_ms
            + cloud.queue_ms
            + cloud.rtt_ms
            + cloud.compress_ms
            + cloud.prefill_ms_per_token * whole;
        // The part of the prefix that is prefilled during the wait, by bisection.
        let cached = f64::from(prompt.cached_tokens.min(prompt.prefix_tokens));
        let fits = |tokens: f64| full(device, tokens) - full(device, cached) <= ttft_c;
        let (mut held, mut high) = (cached, f64::from(prompt.prefix_tokens));
        if fits(high) {
            held = high;
        }
        for _ in 0..60 {
            let middle = f64::midpoint(held, high);
            if fits(middle) { held = middle } else { high = middle }
        }
        let kept = f64::from(prompt.fixed_tokens) + ratio * f64::from(prompt.content_tokens);
        let ttft_d = ttft_c + device.decompress_ms + full(device, kept) - full(device, held);
        let alone = full(device, whole) - full(device, f64::from(prompt.cached_tokens));
        Self { input, kept, ttft_c, ttft_d, alone }
    }

    /// Returns the gap with `count` cloud tokens.
    fn gap(&self, count: u32) -> f64 {
        let device = &self.input.device;
        let verify = full(device, self.kept + f64::from(count)) - full(device, self.kept);
        (self.ttft_d - self.ttft_c + verify) / f64::from(count)
    }

    /// Returns whether `count` satisfies every constraint.
    fn fits(&self, count: u32) -> bool {
        self.gap(count) <= self.input.scene.tau_ms
            && self.ttft_c + f64::from(count - 1) * self.input.cloud.decode_ms <= self.ttft_d
            && self.ttft_d <= self.alone
    }
}

/// Returns the time to prefill `tokens` tokens with an empty cache.
fn full(device: &DeviceCost, tokens: f64) -> f64 {
    device.prefill_ms_per_token * tokens + device.prefill_ms_per_token2 * tokens * tokens
}

/// Finds the smallest `r` on a grid for which some `L` fits, with the smallest such `L`.
fn brute_force(input: &OptimizerInput, steps: u32) -> Option<(f64, u32)> {
    let xi = input.scene.xi;
    (0..=steps).find_map(|step| {
        let ratio = xi + (0.999_999 - xi) * f64::from(step) / f64::from(steps);
        let candidate = Candidate::at(input, ratio);
        (1..COUNT_MAX).find(|&count| candidate.fits(count)).map(|count| (ratio, count))
    })
}

/// The end of the range of `L` in brute force.
const COUNT_MAX: u32 = 3_000;

prop_compose! {
    fn requests()(
        (fixed, prefix_share, content) in (20_u32..400, 0.0..1.0_f64, 200_u32..6_000),
        (k_d, q_d, decode) in (0.3..4.0_f64, prop_oneof![Just(0.0), 1e-6..3e-4_f64], 10.0..60.0_f64),
        (base, k_c, tpot_c) in (20.0..300.0_f64, 0.02..0.3_f64, 5.0..140.0_f64),
        (xi, tau) in (0.05..0.9_f64, 40.0..200.0_f64),
    ) -> OptimizerInput {
        let mut input = phone();
        input.prompt = PromptShape {
            fixed_tokens: fixed,
            content_tokens: content,
            prefix_tokens: (prefix_share * f64::from(fixed)) as u32,
            cached_tokens: 0,
        };
        input.device =
            DeviceCost { prefill_ms_per_token: k_d, prefill_ms_per_token2: q_d, decode_ms: decode, decompress_ms: 2.0 };
        input.cloud.ttft_base_ms = base;
        input.cloud.prefill_ms_per_token = k_c;
        input.cloud.decode_ms = tpot_c;
        input.scene.xi = xi;
        input.scene.tau_ms = tau;
        input.scene.assist_floor = 1;
        input.scene.answer_tokens_max = 100_000;
        input
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn closed_form_is_as_good_as_brute_force(input in requests()) {
        let plan = optimize(&input).unwrap();
        let optimal = plan.verdict == Verdict::Relay
            && matches!(plan.bound_by, BoundBy::Tau | BoundBy::CloudOccupancy);
        if let Some((ratio, count)) = brute_force(&input, 300) {
            // The grid may miss the exact step, but cannot be better.
            prop_assert!(optimal, "brute force has r {ratio} L {count}, plan {plan:?}");
            prop_assert!(plan.ratio <= ratio + 1e-9, "brute force has r {ratio}, plan {plan:?}");
            if (plan.ratio - ratio).abs() < 1e-12 {
                prop_assert_eq!(plan.bounds.lower, Some(count));
            }
        }
        if optimal {
            // The plan satisfies the constraints. They are checked slightly above `r`, because `r` may lie
            // exactly on a step of the upper bound.
            let lower = plan.bounds.lower.unwrap();
            let ours = Candidate::at(&input, plan.ratio + 1e-9);
            prop_assert!(ours.gap(lower) <= input.scene.tau_ms * (1.0 + 1e-6), "{plan:?}");
            prop_assert!(ours.ttft_c + f64::from(lower - 1) * input.cloud.decode_ms <= ours.ttft_d * (1.0 + 1e-9));
            prop_assert!(ours.ttft_d <= ours.alone * (1.0 + 1e-6), "{plan:?}");
            prop_assert!(lower == 1 || Candidate::at(&input, plan.ratio).gap(lower - 1) > input.scene.tau_ms * (1.0 - 1e-6));
        }
    }

    #[test]
    fn the_prediction_is_the_model(input in requests()) {
        let plan = optimize(&input).unwrap();
        prop_assert!(plan.assist_tokens >= 1);
        prop_assert!(plan.ratio > 0.0 && plan.ratio <= 1.0);
        if plan.verdict == Verdict::Relay {
            let ours = Candidate::at(&input, plan.ratio);
            let gap = ours.gap(plan.assist_tokens);
            prop_assert!((gap - plan.predicted.gap_ms).abs() < 1e-6 * gap);
            prop_assert!((ours.ttft_d - plan.predicted.ttft_d_ms).abs() < 1e-6 * ours.ttft_d);
            prop_assert!(plan.predicted.ttft_d_ms <= plan.predicted.device_alone_ms * (1.0 + 1e-9));
            let keeps = gap <= input.scene.tau_ms * (1.0 + 1e-9) && input.device.decode_ms < input.scene.tau_ms;
            prop_assert_eq!(plan.keeps_tau == KeepsTau::Yes, keeps);
        }
    }

    #[test]
    fn no_number_panics(bits in proptest::array::uniform14(any::<u64>()), tokens in proptest::array::uniform8(any::<u32>())) {
        let f = |i: usize| f64::from_bits(bits[i]);
        let mut input = phone();
        input.device = DeviceCost {
            prefill_ms_per_token: f(0), prefill_ms_per_token2: f(1), decode_ms: f(2), decompress_ms: f(3),
        };
        input.cloud = CloudCost {
            ttft_base_ms: f(4), prefill_ms_per_token: f(5), decode_ms: f(6), rtt_ms: f(7), queue_ms: f(8), compress_ms: f(9),
        };
        input.scene.xi = f(10).abs().min(1.0);
        input.scene.ratio = (tokens[0] % 2 == 0).then(|| f(11));
        input.scene.tau_ms = f(12);
        input.scene.assist_tokens = (tokens[1] % 3 == 0).then_some(tokens[2]);
        input.scene.answer_tokens_max = tokens[3];
        input.prompt = PromptShape {
            fixed_tokens: tokens[4], content_tokens: tokens[5], prefix_tokens: tokens[6] % tokens[4].max(1), cached_tokens: tokens[7] % 7,
        };
        if let Ok(plan) = optimize(&input) {
            prop_assert!(plan.assist_tokens >= 1 && plan.ratio > 0.0 && plan.ratio <= 1.0);
        }
    }
}

#[test]
fn margin_within_the_upper_bound() {
    let plan = optimize(&phone()).unwrap();
    assert_eq!(plan.verdict, Verdict::Relay);
    assert_eq!(plan.ratio, 0.25);
    // A = 2 + 2.5 x (40 + 1,000) = 2,602 ms: the prefix of 60 is prefilled during the wait.
    assert_eq!(plan.bounds.lower, Some(27));
    assert_eq!(plan.bounds.upper, 87);
    assert_eq!((plan.assist_tokens, plan.bound_by), (36, BoundBy::Tau));
    assert_eq!(plan.keeps_tau, KeepsTau::Yes);
}

#[test]
fn a_kept_prefix_leaves_less_to_prefill() {
    let mut slow = phone();
    slow.prompt.prefix_tokens = 100;
    slow.device.prefill_ms_per_token = 10.0;
    let waited = optimize(&slow).unwrap();
    slow.prompt.cached_tokens = 100;
    let kept = optimize(&slow).unwrap();
    // 49.1 of the 100 tokens are prefilled during 491 ms of waiting; cached tokens save the other 50.9.
    let saved = waited.predicted.ttft_d_ms - kept.predicted.ttft_d_ms;
    assert!((saved - 509.0).abs() < 1e-6, "saved {saved}");
}

#[track_caller]
fn check(change: impl Fn(&mut OptimizerInput), verdict: Verdict, bound_by: BoundBy, assist_tokens: u32) {
    let mut input = phone();
    change(&mut input);
    let plan = optimize(&input).expect("the numbers are in range");
    assert_eq!(
        (plan.verdict, plan.bound_by, plan.assist_tokens),
        (verdict, bound_by, assist_tokens),
        "{plan:?}"
    );
}

#[test]
fn what_decides_the_number_of_tokens() {
    check(|i| i.cloud.decode_ms = 80.0, Verdict::Relay, BoundBy::CloudOccupancy, 33);
    check(|i| i.cloud.decode_ms = 130.0, Verdict::Relay, BoundBy::CloudDecode, 21);
    check(|i| i.scene.assist_floor = 50, Verdict::Relay, BoundBy::Floor, 50);
    check(|i| i.load = 1.0, Verdict::Relay, BoundBy::Load, 4);
    // Half of the 32 tokens above the minimum of 4 are kept.
    check(|i| i.load = 0.5, Verdict::Relay, BoundBy::Load, 20);
    check(|i| i.load = 0.01, Verdict::Relay, BoundBy::Tau, 36);
    check(|i| (i.scene.assist_floor, i.load) = (50, 1.0), Verdict::Relay, BoundBy::Floor, 50);
    check(|i| i.scene.assist_tokens = Some(12), Verdict::Relay, BoundBy::Fixed, 12);
    check(|i| i.scene.answer_tokens_max = 8, Verdict::Relay, BoundBy::AnswerLength, 8);
    check(|i| i.scene.tau_ms = 2.5, Verdict::Relay, BoundBy::DeviceTooSlow, 87);
}

#[test]
fn no_refinement_starts_at_zero() {
    let mut input = phone();
    input.scene.xi = 1.0;
    let plan = optimize(&input).unwrap();
    assert_eq!((plan.verdict, plan.ratio), (Verdict::NoRefinement, 1.0));
    // Prefill of all 4,100 tokens starts at t = 0; the cloud's first token comes after 491 ms.
    assert!((plan.predicted.ttft_d_ms - 10_250.0).abs() < 1e-9);
    assert_eq!(plan.bounds.lower, Some(101));
    // The same verdict if xi is so high that refining costs more than it saves.
    input.scene.xi = 0.99;
    assert_eq!(optimize(&input).unwrap().verdict, Verdict::NoRefinement);
}

#[test]
fn a_wait_changes_nothing_for_a_device_that_waits_for_its_mask() {
    let at = |queue_ms: f64, ratio: Option<f64>| {
        let mut input = phone();
        input.cloud.queue_ms = queue_ms;
        input.scene.ratio = ratio;
        input
    };
    for ratio in [None, Some(0.3)] {
        let prompt = relay(&at(0.0, ratio)).unwrap();
        assert_eq!(prompt, optimize(&at(0.0, ratio)).unwrap());
        for queue_ms in [100.0, 8_000.0, 60_000.0] {
            let waited = relay(&at(queue_ms, ratio)).unwrap();
            let of = |plan: &Plan| (plan.ratio, plan.assist_tokens, plan.bound_by, plan.keeps_tau);
            assert_eq!(of(&waited), of(&prompt), "{queue_ms} ms");
            // The verdict only says what would have been best from the start.
            assert_eq!(waited.verdict, optimize(&at(queue_ms, ratio)).unwrap().verdict, "{queue_ms} ms");
        }
        // From t = 0, prefilling the whole prompt or working alone would have been faster.
        assert_eq!(optimize(&at(8_000.0, ratio)).unwrap().verdict, Verdict::NoRefinement);
        assert_eq!(optimize(&at(60_000.0, ratio)).unwrap().verdict, Verdict::DeviceAlone);
    }
    // Without refinement the device began at t = 0, so it works during every wait.
    let whole = |queue_ms| relay(&at(queue_ms, Some(1.0))).unwrap().assist_tokens;
    assert!(whole(2_000.0) < whole(0.0), "{} and {}", whole(2_000.0), whole(0.0));
}

#[test]
fn a_relay_says_what_decided_l_though_the_device_alone_would_have_been_faster() {
    for ratio in [None, Some(0.3), Some(1.0)] {
        let mut input = phone();
        input.scene.ratio = ratio;
        input.device.prefill_ms_per_token = 0.1;
        let plan = relay(&input).unwrap();
        assert_eq!(plan.verdict, Verdict::DeviceAlone, "{ratio:?}");
        assert_eq!(plan.bound_by, BoundBy::Floor, "{ratio:?}: L is the scene's least");
    }
}

#[test]
fn no_benefit_is_an_answer() {
    let mut input = phone();
    input.device.prefill_ms_per_token = 0.1;
    let plan = optimize(&input).unwrap();
    assert_eq!((plan.verdict, plan.bound_by), (Verdict::DeviceAlone, BoundBy::Verdict));
    assert!(plan.predicted.device_alone_ms <= plan.predicted.ttft_c_ms);
}

#[test]
fn a_device_that_cannot_keep_tau_is_named() {
    let mut input = phone();
    input.scene.tau_ms = 40.0;
    assert_eq!(optimize(&input).unwrap().keeps_tau, KeepsTau::DecodeTooSlow { decode_ms: 45.0 });
    input.scene.slow_device = SlowDevice::UseCloud;
    let plan = optimize(&input).unwrap();
    assert_eq!((plan.verdict, plan.assist_tokens), (Verdict::CloudAlone, 2_048));
    input.scene.tau_ms = 25.0;
    // The cloud cannot keep `tau` either, so the verdict is a relay.
    assert_eq!(optimize(&input).unwrap().verdict, Verdict::Relay);
    let mut slow = phone();
    slow.device.prefill_ms_per_token = 120.0;
    let plan = optimize(&slow).unwrap();
    assert_eq!(plan.keeps_tau, KeepsTau::PrefillTooSlow { prefill_ms_per_token: 120.0 });
    assert_eq!(plan.bounds.lower, None);
    let mut fixed = phone();
    fixed.scene.assist_tokens = Some(12);
    assert!(
        matches!(optimize(&fixed).unwrap().keeps_tau, KeepsTau::AssistTooShort { gap_ms } if gap_ms > 200.0)
    );
}

#[test]
fn odd_requests_are_named() {
    let mut input = phone();
    input.device.decode_ms = f64::NAN;
    let err = optimize(&input).unwrap_err();
    assert!(matches!(err, InputError::OutOfRange { name: "decode_ms", .. }));
    let mut input = phone();
    input.scene.xi = 0.0;
    assert!(optimize(&input).is_err());
    let mut input = phone();
    input.prompt.prefix_tokens = 101;
    assert_eq!(
        optimize(&input).unwrap_err().to_string(),
        "`prefix_tokens` is 101, the prompt allows at most 100"
    );
}
