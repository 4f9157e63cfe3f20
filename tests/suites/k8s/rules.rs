//! The objects are consistent: every selector, name and reference finds its target.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::Service,
    networking::v1::{Ingress, NetworkPolicy, NetworkPolicyPort},
    policy::v1::PodDisruptionBudget,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    check,
    pods::{Pods, pods},
    render::{Render, renders, title},
};

/// The namespace that every overlay puts its objects into.
const NAMESPACE: &str = "baton";
/// Pods from other sources: the endpoint picker of the inference extension.
const FOREIGN_PODS: &[&str] = &["baton-cloud-epp"];

type Labels = BTreeMap<String, String>;

fn typed<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap_or_else(|err| panic!("{}: {err}", title(object)))
}

/// Returns whether every wanted label is there.
pub(crate) fn selects(wanted: &Labels, labels: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Returns the pods that a selector finds; adds an offence if it finds none and no foreign pod is meant.
fn selected<'a>(wanted: &Labels, pods: &'a [Pods], who: &str, offences: &mut Vec<String>) -> Vec<&'a Pods> {
    let found: Vec<&Pods> = pods.iter().filter(|pod| selects(wanted, &pod.labels)).collect();
    let foreign =
        wanted.get("app.kubernetes.io/name").is_some_and(|name| FOREIGN_PODS.contains(&name.as_str()));
    if found.is_empty() && !foreign {
        offences.push(format!("{who} selects no pod: {wanted:?}"));
    }
    found
}

/// Checks one rule on every render; the rule adds its offences.
#[track_caller]
fn hold(rule: &str, offences_of: impl Fn(&Render, &mut Vec<String>)) {
    for render in renders() {
        let mut offences = Vec::new();
        offences_of(render, &mut offences);
        check(&format!("{}: {rule}", render.name), &offences);
    }
}

#[test]
fn every_object_is_in_the_namespace() {
    hold("namespaces", |render, offences| {
        let own: Vec<&str> =
            render.of("Namespace").filter_map(|object| object["metadata"]["name"].as_str()).collect();
        assert_eq!(own, [NAMESPACE], "{}", render.name);
        for object in render.objects.iter().filter(|object| object["kind"] != "Namespace") {
            if object["metadata"]["namespace"] != NAMESPACE {
                offences.push(format!("{} is in {}", title(object), object["metadata"]["namespace"]));
            }
        }
    });
}

#[test]
fn services_lead_to_ports_of_pods() {
    hold("services", |render, offences| {
        let pods = pods(render);
        for object in render.of("Service") {
            let spec = typed::<Service>(object).spec.expect("a Service has a spec");
            let found = selected(&spec.selector.expect("a selector"), &pods, &title(object), offences);
            for port in spec.ports.iter().flatten() {
                let Some(IntOrString::String(target)) = &port.target_port else {
                    offences.push(format!("{}: port {} names no target", title(object), port.port));
                    continue;
                };
                for pod in found.iter().filter(|pod| !pod.port_names().contains(target)) {
                    offences.push(format!("{}: {} has no port `{target}`", title(object), pod.title));
                }
            }
        }
    });
}

#[test]
fn budgets_select_pods_and_let_one_go() {
    hold("disruption budgets", |render, offences| {
        let pods = pods(render);
        assert_eq!(render.of("PodDisruptionBudget").count(), 1, "{}", render.name);
        for object in render.of("PodDisruptionBudget") {
            let spec = typed::<PodDisruptionBudget>(object).spec.expect("a budget has a spec");
            let wanted = spec.selector.and_then(|selector| selector.match_labels).unwrap_or_default();
            let found = selected(&wanted, &pods, &title(object), offences);
            assert!(found.iter().all(|pod| pod.kind == "Deployment"), "{}", render.name);
            assert_eq!(spec.max_unavailable, Some(IntOrString::Int(1)), "{}", render.name);
        }
    });
}

fn ports(list: Option<&Vec<NetworkPolicyPort>>) -> impl Iterator<Item = &IntOrString> {
    list.into_iter().flatten().filter_map(|port| port.port.as_ref())
}

#[test]
fn network_policies_deny_first_and_open_what_is_there() {
    hold("network policies", |render, offences| {
        let pods = pods(render);
        let policies: Vec<(String, NetworkPolicy)> =
            render.of("NetworkPolicy").map(|object| (title(object), typed(object))).collect();
        let denies = |policy: &NetworkPolicy| {
            let spec = policy.spec.as_ref().expect("a policy has a spec");
            let types: BTreeSet<&str> = spec.policy_types.iter().flatten().map(String::as_str).collect();
            spec.pod_selector == Some(Default::default())
                && types == BTreeSet::from(["Egress", "Ingress"])
                && spec.ingress.is_none()
                && spec.egress.is_none()
        };
        assert_eq!(policies.iter().filter(|(_, policy)| denies(policy)).count(), 1, "{}", render.name);
        let mut opened = BTreeSet::new();
        for (name, policy) in policies.iter().filter(|(_, policy)| !denies(policy)) {
            let spec = policy.spec.as_ref().expect("a policy has a spec");
            let selector = spec.pod_selector.clone().unwrap_or_default();
            let found = selected(&selector.match_labels.unwrap_or_default(), &pods, name, offences);
            for rule in spec.ingress.iter().flatten() {
                if rule.from.as_ref().is_none_or(Vec::is_empty) {
                    offences.push(format!("{name} lets everybody in"));
                }
                for port in ports(rule.ports.as_ref()) {
                    let IntOrString::String(port) = port else { continue };
                    opened.insert(port.clone());
                    for pod in found.iter().filter(|pod| !pod.port_names().contains(port)) {
                        offences.push(format!("{name}: {} has no port `{port}`", pod.title));
                    }
                }
            }
        }
        for pod in &pods {
            let shut: Vec<_> = pod.port_names().into_iter().filter(|port| !opened.contains(port)).collect();
            if !shut.is_empty() {
                offences.push(format!("{}: no policy opens {shut:?}", pod.title));
            }
        }
    });
}

#[test]
fn the_database_can_be_reached_where_it_is_elsewhere() {
    let open_ports = |render: &Render| -> BTreeSet<i32> {
        let policies = render.of("NetworkPolicy").map(typed::<NetworkPolicy>);
        let rules = policies.flat_map(|policy| policy.spec.and_then(|spec| spec.egress).unwrap_or_default());
        let ports = rules.flat_map(|rule| rule.ports.unwrap_or_default());
        ports
            .filter_map(|port| match port.port {
                Some(IntOrString::Int(port)) => Some(port),
                _ => None,
            })
            .collect()
    };
    for render in renders().iter().filter(|render| render.name.starts_with("overlays/")) {
        let postgres = open_ports(render).contains(&5432);
        assert_eq!(postgres, render.name.ends_with("postgres"), "{}", render.name);
        assert!(open_ports(render).contains(&53), "{} cannot look names up", render.name);
    }
}

/// Returns name and number of every port of a Service.
fn service_ports(render: &Render, service: &str) -> Vec<(String, i64)> {
    let found = render.of("Service").find(|object| object["metadata"]["name"] == service);
    let ports = found.and_then(|object| object["spec"]["ports"].as_array()).into_iter().flatten();
    ports
        .map(|port| {
            (port["name"].as_str().unwrap_or_default().to_owned(), port["port"].as_i64().unwrap_or(0))
        })
        .collect()
}

#[test]
fn routes_lead_to_services() {
    hold("routes", |render, offences| {
        for object in render.of("Ingress") {
            for rule in typed::<Ingress>(object).spec.and_then(|spec| spec.rules).unwrap_or_default() {
                for path in rule.http.map(|http| http.paths).unwrap_or_default() {
                    let service = path.backend.service.expect("a backend is a Service");
                    let port = service.port.and_then(|port| port.name).unwrap_or_default();
                    if !service_ports(render, &service.name).iter().any(|(name, _)| *name == port) {
                        offences
                            .push(format!("Ingress leads to `{}:{port}`, which is not there", service.name));
                    }
                }
            }
        }
        let rules = render.of("HTTPRoute").flat_map(|object| object["spec"]["rules"].as_array()).flatten();
        for backend in rules.filter_map(|rule| rule["backendRefs"].as_array()).flatten() {
            let name = backend["name"].as_str().unwrap_or_default();
            let there = match backend["kind"].as_str() {
                Some("Service") => service_ports(render, name)
                    .iter()
                    .any(|(port, number)| port == "http" && backend["port"] == *number),
                Some(kind) => render.of(kind).any(|object| object["metadata"]["name"] == name),
                None => false,
            };
            if !there {
                offences.push(format!("HTTPRoute leads to {backend}, which is not there"));
            }
        }
    });
}

/// Returns every path that an Ingress or a route lets through.
fn routed(render: &Render) -> Vec<String> {
    let ingress = render.of("Ingress").flat_map(|object| object["spec"]["rules"].as_array()).flatten();
    let ingress =
        ingress.filter_map(|rule| rule["http"]["paths"].as_array()).flatten().map(|path| &path["path"]);
    let routes = render.of("HTTPRoute").flat_map(|object| object["spec"]["rules"].as_array()).flatten();
    let routes =
        routes.filter_map(|rule| rule["matches"].as_array()).flatten().map(|one| &one["path"]["value"]);
    ingress.chain(routes).filter_map(|path| path.as_str().map(str::to_owned)).collect()
}

#[test]
fn only_the_api_is_routed() {
    hold("routed paths", |render, offences| {
        for path in routed(render) {
            if path != "/v1" && !path.starts_with("/v1/") {
                offences.push(format!("`{path}` is open to the world"));
            }
        }
    });
}

#[test]
fn scrapes_and_pools_find_their_ports() {
    hold("monitors and pools", |render, offences| {
        let pods = pods(render);
        for object in render.of("ServiceMonitor") {
            let wanted: Labels = typed(&object["spec"]["selector"]["matchLabels"]);
            let services: Vec<&Value> = render
                .of("Service")
                .filter(|service| selects(&wanted, &typed::<Labels>(&service["metadata"]["labels"])))
                .collect();
            assert_eq!(services.len(), 1, "{}: a monitor finds one service", render.name);
            let name = services[0]["metadata"]["name"].as_str().unwrap_or_default();
            for endpoint in object["spec"]["endpoints"].as_array().into_iter().flatten() {
                if !service_ports(render, name).iter().any(|(port, _)| endpoint["port"] == **port) {
                    offences.push(format!("{}: {name} has no port {}", title(object), endpoint["port"]));
                }
            }
        }
        for object in render.of("InferencePool") {
            let wanted: Labels = typed(&object["spec"]["selector"]["matchLabels"]);
            let number = object["spec"]["targetPorts"][0]["number"].as_i64();
            for pod in selected(&wanted, &pods, &title(object), offences) {
                if pod.port("http") != number {
                    offences.push(format!("{}: the API is not on port {number:?}", title(object)));
                }
            }
        }
    });
}

#[test]
fn a_selector_that_finds_nothing_is_told() {
    let labels = |pairs: &[(&str, &str)]| -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let pod = labels(&[("app", "a"), ("part", "b")]);
    assert!(selects(&labels(&[("app", "a")]), &pod));
    assert!(!selects(&labels(&[("app", "b")]), &pod));
    assert!(!selects(&labels(&[("app", "a"), ("more", "c")]), &pod));
}
