//! The fields that these manifests use of kinds outside of Kubernetes itself: KEDA, the Prometheus operator,
//! the Gateway API and its inference extension. A field that is not listed here is refused: it is misspelt or
//! new, and then its definition must be looked up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The parts that every object has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Object<S> {
    api_version: String,
    kind: String,
    metadata: Metadata,
    /// The object's own part.
    pub spec: S,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

/// gateway.networking.k8s.io/v1
pub(crate) type HttpRoute = Object<HttpRouteSpec>;
/// inference.networking.k8s.io/v1
pub(crate) type InferencePool = Object<InferencePoolSpec>;
/// monitoring.coreos.com/v1
pub(crate) type PrometheusRule = Object<PrometheusRuleSpec>;
/// keda.sh/v1alpha1
pub(crate) type ScaledObject = Object<ScaledObjectSpec>;
/// monitoring.coreos.com/v1
pub(crate) type ServiceMonitor = Object<ServiceMonitorSpec>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct HttpRouteSpec {
    parent_refs: Vec<ParentRef>,
    hostnames: Vec<String>,
    rules: Vec<RouteRule>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ParentRef {
    group: String,
    kind: String,
    name: String,
    section_name: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RouteRule {
    matches: Vec<RouteMatch>,
    timeouts: RouteTimeouts,
    backend_refs: Vec<BackendRef>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteMatch {
    path: RoutePath,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoutePath {
    #[serde(rename = "type")]
    form: PathForm,
    value: String,
}

#[derive(Debug, Serialize, Deserialize)]
enum PathForm {
    Exact,
    PathPrefix,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RouteTimeouts {
    request: String,
    backend_request: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendRef {
    group: String,
    kind: String,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    weight: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct InferencePoolSpec {
    selector: LabelMatch,
    target_ports: [PortNumber; 1],
    endpoint_picker_ref: EndpointPicker,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LabelMatch {
    match_labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortNumber {
    number: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct EndpointPicker {
    group: String,
    kind: String,
    name: String,
    port: PortNumber,
    failure_mode: FailureMode,
}

#[derive(Debug, Serialize, Deserialize)]
enum FailureMode {
    FailOpen,
    FailClose,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrometheusRuleSpec {
    /// The groups, as in a file of rules, which promtool checks.
    pub groups: Vec<Value>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServiceMonitorSpec {
    selector: LabelMatch,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Endpoint {
    port: String,
    path: String,
    interval: String,
    scrape_timeout: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ScaledObjectSpec {
    scale_target_ref: ScaleTarget,
    /// Replicas if nothing waits.
    pub min_replica_count: u32,
    /// Most replicas.
    pub max_replica_count: u32,
    polling_interval: u32,
    cooldown_period: u32,
    /// The setting while the figures are missing.
    pub fallback: Fallback,
    /// How fast it scales.
    pub advanced: Advanced,
    /// The figures by which it scales.
    pub triggers: Vec<Trigger>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ScaleTarget {
    api_version: String,
    kind: String,
    name: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Fallback {
    failure_threshold: u32,
    /// Least replicas.
    pub replicas: u32,
    behavior: FallbackBehavior,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum FallbackBehavior {
    CurrentReplicasIfHigher,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Advanced {
    /// Settings of the autoscaler that KEDA makes.
    pub horizontal_pod_autoscaler_config: AutoscalerConfig,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AutoscalerConfig {
    /// The API's own type, checked like any other.
    pub behavior: k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerBehavior,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Trigger {
    #[serde(rename = "type")]
    form: TriggerForm,
    /// Its name in KEDA's own metrics.
    pub name: String,
    /// `AverageValue` divides a sum by the number of replicas.
    pub metric_type: String,
    /// The query and its threshold.
    pub metadata: PrometheusTrigger,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TriggerForm {
    Prometheus,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PrometheusTrigger {
    server_address: String,
    /// The query in PromQL.
    pub query: String,
    /// The threshold for each replica.
    pub threshold: String,
    ignore_null_values: String,
}
