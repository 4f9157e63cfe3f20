//! Reads the metrics with a parser that was written from the description of Prometheus' text format.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A series' name, its labels and its value.
type Sample = (String, BTreeMap<String, String>, f64);

/// Returns kinds by name, and samples; panics if a line is not of the format.
fn read(text: &str) -> (BTreeMap<String, String>, Vec<Sample>) {
    let (mut kinds, mut samples) = (BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value = if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap() };
        let (name, labels) = match series.split_once('{') {
            None => (series, BTreeMap::new()),
            Some((name, labels)) => (name, pairs(labels.strip_suffix('}').unwrap())),
        };
        assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'), "{line}");
        samples.push((name.to_owned(), labels, value));
    }
    (kinds, samples)
}

fn pairs(text: &str) -> BTreeMap<String, String> {
    let mut pairs = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap();
        let end = (0..after.len())
            .find(|&at| after.as_bytes()[at] == b'"' && !after[..at].ends_with('\\'))
            .unwrap();
        pairs.insert(name.trim_start_matches(',').to_owned(), after[..end].to_owned());
        rest = &after[end + 1..];
    }
    pairs
}

fn ended(scene: Option<&str>) -> Ended<'_> {
    Ended {
        scene,
        model: "base",
        outcome: "cap",
        disconnected: true,
        prompt_tokens: 600,
        tokens: 5,
        queue: Duration::from_millis(20),
        prefill: Duration::from_millis(300),
        decode: Duration::from_millis(80),
    }
}

fn full() -> Metrics {
    let metrics = Metrics::new();
    metrics.rejected("queue_full");
    metrics.first_token(Some("doc-qa"), "base", Duration::from_millis(320));
    metrics.assisted("doc-qa", 24);
    metrics.refine_elapsed(Duration::from_millis(2));
    metrics.db_operation("scenes", Duration::from_millis(1));
    metrics.database_up(false);
    metrics.database_writable(true);
    metrics.admin_login("wrong");
    let map = baton_protocol::SentenceMap::new(&[baton_protocol::Segment::refinable(
        baton_protocol::Role::User,
        "One. Two.",
    )]);
    let mask = baton_protocol::MaskEvent::new(&map, &vec![true; map.len()], 0.25, 0.5);
    metrics.refined(Some("doc-qa"), &mask, 600);
    metrics.ended(ended(Some("doc-qa")));
    metrics.experiment_answer("shorter", "L8", false);
    metrics.experiment_feedback("taken");
    metrics.engine_fault("base", "silent");
    metrics.engine_mask("base", "made");
    metrics.engine_tokens("base", 100, 50, 10);
    metrics.model_loaded("base", "loaded", Duration::from_secs(2));
    metrics.model_unloaded("base");
    metrics.pair_refused();
    metrics.device_report("noted");
    metrics.verified(8, 6, 1);
    metrics.open_kv("acme", 2e6);
    metrics.kv_handoff("read");
    metrics.kv_handoff_bytes(4096);
    metrics
}

#[test]
fn every_metric_is_there_and_reads_as_what_it_is() {
    let metrics = full();
    let of = |model: &str, running| ModelUsage {
        model: model.into(),
        running,
        kv_usage: 0.5,
        prefix_queries: 9,
        ..ModelUsage::default()
    };
    let engine = EngineUse {
        model: "base".into(),
        engine: "http://e".into(),
        in_flight: 4,
        is_open: true,
        lacks: vec![("seed", true)],
    };
    let usage = Usage {
        engines: vec![engine],
        models: vec![of("base", 2), of("other", 3)],
        scenes: vec![("doc-qa".into(), 3)],
        open_answers: 2,
        handoff_bytes: 4096,
    };
    let (kinds, samples) = read(&metrics.render(&usage));
    let want: BTreeMap<String, String> = METRICS
        .iter()
        .map(|(name, kind, _)| {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram(_) => "histogram",
            };
            ((*name).to_owned(), kind.to_owned())
        })
        .collect();
    assert_eq!(kinds, want);
    let value = |name: &str| {
        samples.iter().find(|(found, ..)| found == name).unwrap_or_else(|| panic!("no {name}")).2
    };
    let running: Vec<_> = samples
        .iter()
        .filter(|(name, ..)| name == "baton_requests_running")
        .map(|(_, labels, value)| (labels["model"].as_str(), *value))
        .collect();
    assert_eq!(BTreeMap::from_iter(running), BTreeMap::from([("base", 2.0), ("other", 3.0)]));
    assert_eq!(value("baton_kv_cache_usage_ratio"), 0.5);
    assert_eq!((value("baton_engine_requests_running"), value("baton_engine_up")), (4.0, 1.0));
    assert_eq!(value("baton_prefix_cache_queries_total"), 9.0);
    assert_eq!(value("baton_scene_config_generation"), 3.0);
    assert_eq!(
        (value("baton_prompt_tokens_total"), value("baton_refined_prompt_tokens_sum")),
        (600.0, 300.0)
    );
    assert!((value("baton_time_per_output_token_seconds_sum") - 0.02).abs() < 1e-9);
    assert!((value("baton_request_duration_seconds_sum") - 0.4).abs() < 1e-9);
    let requests = samples.iter().find(|(name, ..)| name == "baton_requests_total").unwrap();
    assert_eq!((requests.1["scene"].as_str(), requests.1["model"].as_str()), ("doc-qa", "base"));
    // Buckets grow, and the last one contains all samples.
    let buckets: Vec<f64> = samples
        .iter()
        .filter(|(name, ..)| name == "baton_time_to_first_token_seconds_bucket")
        .map(|(_, _, value)| *value)
        .collect();
    assert!(buckets.is_sorted() && buckets.last() == Some(&1.0) && buckets[0] == 0.0, "{buckets:?}");
}

#[test]
fn scenes_and_experiments_are_bounded() {
    let metrics = Metrics::new();
    for at in 0..SCENES_MAX + 50 {
        metrics.ended(ended(Some(&format!("scene-{at}"))));
    }
    metrics.ended(ended(None));
    for at in 0..EXPERIMENTS_MAX + 9 {
        metrics.experiment_answer(&format!("experiment-{at}"), "arm", true);
    }
    let (_, samples) = read(&metrics.render(&Usage::default()));
    let scenes: BTreeSet<&str> = samples
        .iter()
        .filter(|(name, ..)| name == "baton_requests_total")
        .map(|(_, labels, _)| labels["scene"].as_str())
        .collect();
    assert_eq!(scenes.len(), SCENES_MAX + 2);
    let other =
        samples.iter().find(|(name, labels, _)| name == "baton_requests_total" && labels["scene"] == OTHER);
    assert_eq!(other.unwrap().2, 50.0);
    let experiments = samples.iter().filter(|(name, ..)| name == "baton_experiment_answers_total");
    assert_eq!(experiments.count(), EXPERIMENTS_MAX + 1);
}
