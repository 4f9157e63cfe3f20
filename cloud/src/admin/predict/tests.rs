//! Tests that predictions are the optimizer's own numbers.

use baton_generate::speculation::K_MAX;
use baton_pacing::refit::DeviceReport;
use baton_protocol::VerifyPolicy;
use serde_json::{Value, json};

use super::*;
use crate::learn::coefficients::{ALL, Known};
use crate::learn::cost::Measured;

fn known() -> Coefficients {
    let device = |prefill_ms_per_token, decode_ms| Known {
        value: DeviceReport { prefill_ms_per_token, prefill_ms_per_token2: 1e-5, decode_ms },
        samples: 12,
    };
    Coefficients {
        cloud: Some(Measured { base_ms: 40.0, prefill_ms_per_token: 0.1, decode_ms: 25.0, refine_ms: 2.0 }),
        devices: [(ALL, device(2.0, 45.0)), ("phone", device(2.5, 45.0)), ("tablet", device(0.9, 30.0))]
            .map(|(name, known)| (name.to_owned(), known))
            .into(),
        ..Coefficients::default()
    }
}

fn asked(class: &str, prompt_tokens: u32) -> PredictFor {
    PredictFor { device_class: Some(class.to_owned()), network: None, prompt_tokens: Some(prompt_tokens) }
}

/// Returns the optimizer's input for a class, built by hand.
fn input(settings: &SceneSettings, class: &str, prompt_tokens: u32) -> OptimizerInput {
    let known = known();
    let axes = TableAxes {
        scenes: vec![forecast::table_scene("s", settings, forecast::QUESTION_TOKENS)],
        devices: vec![DeviceClass { name: class.to_owned(), cost: known.class(class) }],
        lengths: vec![prompt_tokens],
        networks: vec![NetworkClass { name: "wifi".to_owned(), rtt_ms: known.network_ms(Some("wifi")) }],
        cloud: forecast::cloud_cost(&known.cloud.unwrap()),
    };
    axes.input(TablePlace { scene: 0, device: 0, length: 0, network: 0 })
}

#[test]
fn numbers_are_those_of_the_optimizer() {
    let free = SceneSettings::with_system("You answer from the document.");
    let fixed = SceneSettings { ratio: Some(0.5), assist_tokens: Some(12), ..free.clone() };
    let whole = SceneSettings { refine: false, ..free.clone() };
    for settings in [&free, &fixed, &whole] {
        for (class, tokens) in [("phone", 4096), ("tablet", 700), ("phone", 20_000)] {
            let got = predict("s", settings, &known(), &asked(class, tokens), None).unwrap();
            let input = input(settings, class, tokens);
            let explained = explain(&input).unwrap();
            assert_eq!(got.plan, PlanView::from(&explained.plan));
            assert_eq!(
                json!(got.plan),
                forecast::plan_value(&explained.plan),
                "as `scenes explain --json` says it"
            );
            assert_eq!(got.relaxations.len(), explained.relaxations.len());
            assert_eq!(got.reason, forecast::reason(&input, &explained.plan));
            let cell =
                got.table.iter().find(|c| c.device_class == class && c.prompt_tokens == tokens).unwrap();
            assert_eq!(cell.plan, got.plan);
            let chosen = |curves: &[Curve], at: f64| curves[0].points.iter().find(|p| p.x == at).unwrap().y;
            assert_eq!(chosen(&got.ttft_d_over_ratio, got.plan.ratio), got.plan.predicted.ttft_d_ms);
            let at = f64::from(got.plan.assist_tokens);
            assert_eq!(chosen(&got.gap_over_assist, at), got.plan.predicted.gap_ms);
        }
    }
}

#[test]
fn what_is_shaded_is_feasible_and_nothing_else() {
    let settings = SceneSettings::with_system("s");
    let got = predict("s", &settings, &known(), &asked("phone", 4096), None).unwrap();
    let input = input(&settings, "phone", 4096);
    let ratio = got.ratio_feasible.unwrap();
    let alone = got.plan.predicted.device_alone_ms;
    for point in &got.ttft_d_over_ratio[0].points {
        let pays = point.x >= ratio.from && point.y <= alone * (1.0 + 1e-9);
        assert_eq!(pays, (ratio.from..=ratio.to + 1e-9).contains(&point.x), "r {}", point.x);
    }
    let assist = got.assist_feasible.unwrap();
    for point in &got.gap_over_assist[0].points {
        let most = f64::from(input.assist_bounds(got.plan.ratio).upper);
        let keeps = point.y <= 100.0 * (1.0 + 1e-9) && point.x >= 4.0 && point.x <= most;
        assert_eq!(keeps, (assist.from..=assist.to).contains(&point.x), "L {}", point.x);
    }
}

#[test]
fn a_smaller_ratio_moves_the_gap() {
    let at = |ratio| {
        let settings = SceneSettings { ratio, assist_tokens: Some(30), ..SceneSettings::with_system("s") };
        predict("s", &settings, &known(), &asked("phone", 4096), None).unwrap()
    };
    let (small, large) = (at(Some(0.25)), at(Some(0.5)));
    assert!(small.plan.predicted.gap_ms < large.plan.predicted.gap_ms);
    assert_ne!(small.summary(), large.summary());
    assert!(small.summary().starts_with("r 0.25, L 30: first token "), "{}", small.summary());
}

#[test]
fn what_is_not_known_is_named() {
    let settings = SceneSettings::with_system("s");
    let field = |asked: PredictFor| {
        predict("s", &settings, &known(), &asked, None).unwrap_err().field_name().map(str::to_owned).unwrap()
    };
    assert_eq!(field(asked("watch", 10)), "device_class");
    assert_eq!(field(asked("phone", 0)), "prompt_tokens");
    assert_eq!(field(PredictFor { network: Some("x".into()), ..PredictFor::default() }), "network");
    // If nothing is known, the assumed class is used, and charts are drawn all the same.
    let got = predict("s", &settings, &Coefficients::default(), &PredictFor::default(), None).unwrap();
    assert_eq!((got.device_class.as_str(), got.prompt_tokens), ("assumed", PROMPT_TOKENS));
    for chart in got.charts() {
        assert!(!chart.svg().contains("NaN"), "{}", chart.title);
    }
}

/// Returns a curve with one point at r = 0.25.
fn curve(mode: &str, subset: &str, metric: &str, assist_tokens: Option<u32>, n: u32, score: f64) -> Value {
    json!({"suite": "facts", "subset": subset, "metric": metric, "mode": mode, "arm": "relay",
           "assist_tokens": assist_tokens, "corrector": "cloud",
           "reference": {"n": n, "score": 0.9, "low": 0.85, "high": 0.95},
           "points": [{"r": 0.25, "n": n, "score": score, "low": score - 0.05, "high": score + 0.05,
                       "loss": {"mean": 0.9 - score, "low": -0.1, "high": 0.9}}]})
}

#[test]
fn evaluations_that_speak_of_the_scene_are_drawn() {
    let digest = "0".repeat(64);
    // In the order in which an evaluation writes them: by subset and metric, several modes and L.
    let curves = [
        curve("attention", "all", "contains", Some(8), 12, 0.1),
        curve("attention", "all", "exact_match", Some(8), 50, 0.875),
        curve("attention", "all", "exact_match", Some(100), 50, 0.5),
        curve("bm25", "all", "exact_match", Some(8), 50, 0.7),
        curve("attention", "long/512", "exact_match", Some(8), 12, 0.8),
        curve("attention", "short/512", "exact_match", Some(8), 12, 0.9),
        curve("attention", "two_hop/512", "exact_match", Some(8), 12, 0.6),
    ];
    let file = json!({"format": "baton-quality-curves", "version": 1, "made_by": "t", "seed": 1,
        "cloud_model": {"name": "c", "sha256": digest}, "device_model": {"name": "d", "sha256": digest},
        "curves": curves});
    let curves = QualityCurves::from_json(&file.to_string()).unwrap();
    let settings = SceneSettings { assist_tokens: Some(10), ..SceneSettings::with_system("s") };
    let got = predict("s", &settings, &known(), &PredictFor::default(), Some(&curves)).unwrap();
    let names: Vec<(&str, &str, f64)> = got
        .quality
        .iter()
        .map(|quality| (quality.name.as_str(), quality.metric.as_str(), quality.points[0].score))
        .collect();
    assert_eq!(
        names,
        [
            ("facts/all", "exact_match", 0.875),
            ("facts/two_hop/512", "exact_match", 0.6),
            ("facts/long/512", "exact_match", 0.8),
            ("facts/short/512", "exact_match", 0.9),
            ("facts/all", "contains", 0.1),
        ]
    );
    let charts = got.charts();
    let chart = charts.last().unwrap();
    assert_eq!(chart.title, "Score (exact match) over r");
    assert!(chart.description.contains("50 questions of facts/all"), "{}", chart.description);
    assert!(chart.description.contains("L 8, corrected by cloud"), "{}", chart.description);
    // The first three curves, up to the full prompt at r = 1.
    assert_eq!(
        chart.table_rows(),
        [["0.25", "0.875", "0.600", "0.800"], ["1.00", "0.900", "0.900", "0.900"]]
    );
}

/// Returns the r and L that the service gives a device of this class.
fn given(settings: &SceneSettings, class: &str, prompt_tokens: u32) -> (f64, u32) {
    let known = known();
    let input = input(settings, class, prompt_tokens);
    let device = baton_protocol::DeviceInfo {
        class: class.to_owned(),
        model: String::new(),
        pair: None,
        kv: None,
        prefill_ms_per_token: None,
        prefill_ms_per_token2: 0.0,
        decode_ms: None,
        network: Some("wifi".to_owned()),
        network_ms: None,
    };
    let content = input.prompt.content_tokens as usize;
    let whole = input.prompt.fixed_tokens as usize + content;
    let situation = crate::learn::planning::Situation {
        device: Some(&device),
        known: &known,
        cloud: known.cloud.unwrap(),
        backlog_tokens: 0,
        backlog_ms: 0.0,
        prompt_tokens: whole,
        content_tokens: content,
        prefix_tokens: input.prompt.prefix_tokens as usize,
        room_tokens: 65_536,
        draft_tokens: (settings.verify != VerifyPolicy::Off).then_some(K_MAX),
    };
    let planned =
        crate::learn::planning::plan(settings, crate::learn::planning::Wish::default(), situation).unwrap();
    (f64::from(planned.ratio), planned.assist_tokens)
}

#[test]
fn a_scene_that_verifies_shows_what_that_costs() {
    let plain = SceneSettings::with_system("You answer from the document.");
    let verified = SceneSettings { verify: VerifyPolicy::On, ..plain.clone() };
    let predicted =
        |settings: &SceneSettings| predict("s", settings, &known(), &asked("phone", 4096), None).unwrap();
    let (plain, got) = (predicted(&plain), predicted(&verified));
    assert_eq!(plain.slot_over_assist, None);
    assert!(plain.charts().iter().all(|chart| chart.id != "slot"));
    assert!(got.plan.predicted.ttft_d_ms > plain.plan.predicted.ttft_d_ms, "the first draft and its check");
    let slots = got.slot_over_assist.as_ref().unwrap();
    assert_eq!(slots.released.len(), slots.verified.len());
    for (released, verified) in slots.released.iter().zip(&slots.verified) {
        assert_eq!((released.x, released.y), (verified.x, 25.0 * released.x));
        assert!(released.y <= verified.y && verified.y <= slots.whole_ms + 1e-9, "{verified:?}");
    }
    assert_eq!(slots.verified.last().map(|last| last.y), Some(slots.whole_ms));
    let chart = got.charts().into_iter().find(|chart| chart.id == "slot").unwrap();
    let (assist, slot_ms, _) = chart.chosen.unwrap();
    assert_eq!(assist, f64::from(got.plan.assist_tokens));
    assert!(slots.verified.iter().any(|point| (point.x, point.y) == (assist, slot_ms)));
}

#[test]
fn what_is_shown_is_what_the_service_gives() {
    let free = SceneSettings::with_system("You answer from the document.");
    let pinned = |ratio| SceneSettings { ratio: Some(ratio), xi: 0.25, ..free.clone() };
    let late = SceneSettings { xi: 0.98, ..free.clone() };
    let (whole, fixed) = (
        SceneSettings { refine: false, ..free.clone() },
        SceneSettings { assist_tokens: Some(7), ..pinned(0.4) },
    );
    let mut verdicts = std::collections::BTreeSet::new();
    let verified = SceneSettings { verify: VerifyPolicy::On, ..free.clone() };
    for settings in
        [&free, &pinned(0.25), &pinned(0.3), &pinned(0.99), &pinned(1.0), &late, &whole, &fixed, &verified]
    {
        for (class, tokens) in
            [("phone", 40), ("phone", 4096), ("tablet", 128), ("tablet", 700), ("phone", 20_000)]
        {
            let shown = predict("s", settings, &known(), &asked(class, tokens), None).unwrap().plan;
            let (ratio, assist_tokens) = given(settings, class, tokens);
            assert!((shown.ratio - ratio).abs() < 1e-6, "{class} {tokens}: {shown:?}, given {ratio}");
            assert_eq!(shown.assist_tokens, assist_tokens, "{class} {tokens}: {shown:?}");
            verdicts.insert(shown.verdict);
        }
    }
    assert!(verdicts.len() >= 2, "the cases differ: {verdicts:?}");
    // Two fixed ratios have different summaries also if refining saves nothing.
    let summary =
        |ratio| predict("s", &pinned(ratio), &known(), &asked("tablet", 700), None).unwrap().summary();
    assert!(summary(0.25).starts_with("r 0.25, ") && summary(0.3).starts_with("r 0.3, "), "{}", summary(0.3));
}
