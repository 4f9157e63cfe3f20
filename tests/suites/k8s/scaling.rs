//! Autoscaling and alerts: the cluster's objects have the same rules as the files that promtool tests.

use baton_cloud::observe::metrics::METRICS;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerBehavior};
use serde_json::Value;

use super::{
    custom::{PrometheusRule, ScaledObject},
    folder, read,
    render::{documents, written},
};

/// Returns the files of rules and the files of their tests, for promtool.
pub(crate) fn rule_files() -> (Vec<String>, Vec<String>) {
    let listed = std::fs::read_dir(folder().join("observability")).expect("list a folder");
    let names = listed.map(|entry| entry.expect("list a folder").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> =
        names.filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml").collect();
    names.sort();
    names.into_iter().partition(|name| !name.ends_with("_test.yaml"))
}

fn object<T: serde::de::DeserializeOwned>(kind: &str) -> T {
    let found = written().into_iter().find(|(_, object)| object["kind"] == kind);
    let (path, object) = found.unwrap_or_else(|| panic!("no {kind}"));
    serde_json::from_value(object).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// Returns the groups of a file of rules.
fn groups(file: &str) -> Vec<Value> {
    let text = read(&folder().join("observability").join(file));
    let mut documents = documents(&text, file);
    assert_eq!(documents.len(), 1, "{file}");
    documents.remove(0)["groups"].as_array().unwrap_or_else(|| panic!("{file} has no groups")).clone()
}

/// Returns the expression of a recording rule of `scaling.yaml`, on one line.
fn recorded(name: &str) -> String {
    let groups = groups("scaling.yaml");
    let mut rules = groups.iter().filter_map(|group| group["rules"].as_array()).flatten();
    let rule = rules.find(|rule| rule["record"] == name).unwrap_or_else(|| panic!("no rule records {name}"));
    one_line(rule["expr"].as_str().unwrap_or_default())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_operators_rules_are_the_files_that_promtool_tests() {
    let rule: PrometheusRule = object("PrometheusRule");
    let want: Vec<Value> = rule_files().0.iter().flat_map(|file| groups(file)).collect();
    let text = serde_norway::to_string(&want).expect("groups are YAML");
    assert!(rule.spec.groups == want, "the groups of prometheusrule.yaml should be:\n{text}");
}

#[test]
fn every_file_of_rules_has_tests() {
    let (rules, tests) = rule_files();
    let want: Vec<String> = rules.iter().map(|name| name.replace(".yaml", "_test.yaml")).collect();
    assert_eq!(tests, want);
    assert!(rules.contains(&"scaling.yaml".to_owned()));
}

#[test]
fn queries_are_the_recorded_sums() {
    let scaled: ScaledObject = object("ScaledObject");
    let rules = ["baton:prefill_backlog_seconds:sum", "baton:kv_cache_usage:sum"];
    assert_eq!(scaled.spec.triggers.len(), rules.len());
    for (trigger, rule) in scaled.spec.triggers.iter().zip(rules) {
        let query = one_line(&trigger.metadata.query);
        assert_eq!(query, recorded(rule), "{}", trigger.name);
        assert!(
            query.starts_with("sum(") && !query.contains("avg"),
            "{}: a sum, never an average",
            trigger.name
        );
        assert_eq!(trigger.metric_type, "AverageValue", "a sum is divided by the replicas");
    }
}

/// Checks the pace: at most one pod up in 180 s, one down in 300 s.
#[track_caller]
fn check_pace(behavior: &HorizontalPodAutoscalerBehavior) {
    for (rules, seconds) in [(&behavior.scale_up, 180), (&behavior.scale_down, 300)] {
        let policies = rules.as_ref().and_then(|rules| rules.policies.clone()).unwrap_or_default();
        let read: Vec<_> =
            policies.iter().map(|one| (one.type_.as_str(), one.value, one.period_seconds)).collect();
        assert_eq!(read, [("Pods", 1, seconds)]);
    }
}

#[test]
fn both_autoscalers_go_by_the_same_figures_at_the_same_pace() {
    let scaled: ScaledObject = object("ScaledObject");
    let hpa: HorizontalPodAutoscaler = object("HorizontalPodAutoscaler");
    let spec = hpa.spec.expect("a spec");
    check_pace(&scaled.spec.advanced.horizontal_pod_autoscaler_config.behavior);
    check_pace(spec.behavior.as_ref().expect("a behaviour"));
    assert_eq!(spec.min_replicas.map(i64::from), Some(i64::from(scaled.spec.min_replica_count)));
    assert_eq!(i64::from(spec.max_replicas), i64::from(scaled.spec.max_replica_count));
    assert!(scaled.spec.min_replica_count >= 2, "one replica is no service");
    assert!(scaled.spec.fallback.replicas >= scaled.spec.min_replica_count);
    let targets: Vec<String> = spec
        .metrics
        .iter()
        .flatten()
        .filter_map(|metric| metric.external.as_ref()?.target.average_value.as_ref())
        .map(|quantity| quantity.0.clone())
        .collect();
    let thresholds: Vec<&str> =
        scaled.spec.triggers.iter().map(|trigger| trigger.metadata.threshold.as_str()).collect();
    assert_eq!((targets, thresholds), (vec!["2".to_owned(), "800m".to_owned()], vec!["2", "0.8"]));
}

#[test]
fn metrics_that_are_named_exist() {
    let files = [
        "components/hpa/horizontalpodautoscaler.yaml",
        "components/inferencepool/inferencepool.yaml",
        "components/keda/scaledobject.yaml",
        "observability/scaling.yaml",
    ];
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let mut seen = 0;
    for file in files {
        let text = read(&folder().join(file));
        for (at, _) in text.match_indices("baton_") {
            let name: String = text[at..].chars().take_while(|&c| is_name(c)).collect();
            assert!(METRICS.iter().any(|(known, ..)| *known == name), "{file}: `{name}` is not a metric");
            seen += 1;
        }
    }
    assert!(seen >= 7, "only {seen} metrics found");
}
