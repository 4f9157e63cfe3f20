//! Every object is read into the API's type and written again. Fields that the type does not know are lost,
//! so a misspelt or misplaced field shows as a difference.

use k8s_openapi::{
    Resource,
    api::{
        apps::v1::Deployment,
        autoscaling::v2::HorizontalPodAutoscaler,
        batch::v1::Job,
        core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Service, ServiceAccount},
        networking::v1::{Ingress, NetworkPolicy},
        policy::v1::PodDisruptionBudget,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    check,
    custom::{HttpRoute, InferencePool, PrometheusRule, ScaledObject, ServiceMonitor},
    render::{renders, title, written},
};

/// Returns why an object does not match its type; `None` if it does.
fn offence(object: &Value) -> Option<String> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    let found = match (version, kind) {
        ("gateway.networking.k8s.io/v1", "HTTPRoute") => again::<HttpRoute>(object),
        ("inference.networking.k8s.io/v1", "InferencePool") => again::<InferencePool>(object),
        ("keda.sh/v1alpha1", "ScaledObject") => again::<ScaledObject>(object),
        ("monitoring.coreos.com/v1", "PrometheusRule") => again::<PrometheusRule>(object),
        ("monitoring.coreos.com/v1", "ServiceMonitor") => again::<ServiceMonitor>(object),
        _ => core(version, kind, object),
    };
    found.err().map(|err| format!("{}: {err}", title(object)))
}

fn core(version: &str, kind: &str, object: &Value) -> Result<(), String> {
    fn is<T: Resource>(version: &str, kind: &str) -> bool {
        version == T::API_VERSION && kind == T::KIND
    }
    macro_rules! one_of {
        ($($type:ty),+) => { $(if is::<$type>(version, kind) { return again::<$type>(object); })+ };
    }
    one_of!(
        ConfigMap,
        Deployment,
        HorizontalPodAutoscaler,
        Ingress,
        Job,
        Namespace,
        NetworkPolicy,
        PersistentVolumeClaim,
        PodDisruptionBudget,
        Service,
        ServiceAccount
    );
    Err(format!("`{version}` has no `{kind}` that this suite knows"))
}

/// Reads and writes an object; the error names the first place where the two differ.
fn again<T: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|err| err.to_string())?;
    let back = serde_json::to_value(&typed).map_err(|err| err.to_string())?;
    difference(object, &back, "").map_or(Ok(()), Err)
}

fn difference(written: &Value, back: &Value, at: &str) -> Option<String> {
    match (written, back) {
        (Value::Object(written), Value::Object(back)) => {
            let lost = written.keys().find(|key| !back.contains_key(*key));
            let added = back.iter().find(|(key, value)| !written.contains_key(*key) && !is_empty(value));
            if let Some(key) = lost {
                return Some(format!("`{at}/{key}` is not a field of its type"));
            }
            if let Some((key, _)) = added {
                return Some(format!("`{at}/{key}` is missing"));
            }
            written.iter().find_map(|(key, value)| difference(value, &back[key], &format!("{at}/{key}")))
        }
        (Value::Array(written), Value::Array(back)) if written.len() == back.len() => {
            let mut pairs = written.iter().zip(back).enumerate();
            pairs.find_map(|(idx, (written, back))| difference(written, back, &format!("{at}/{idx}")))
        }
        _ if written == back => None,
        _ => Some(format!("`{at}` is {written}, its type makes it {back}")),
    }
}

/// Checks for a value that a type writes for a missing field.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[test]
fn what_is_written_is_of_its_types() {
    let written = written();
    assert!(written.len() >= 15, "only {} objects found", written.len());
    let offences: Vec<String> = written
        .iter()
        .filter_map(|(path, object)| offence(object).map(|err| format!("{}: {err}", path.display())))
        .collect();
    check("objects that are not of their types", &offences);
}

#[test]
fn what_is_rendered_is_of_its_types() {
    for render in renders() {
        let offences: Vec<String> = render.objects.iter().filter_map(offence).collect();
        check(&render.name, &offences);
    }
}

#[test]
fn a_misspelt_field_is_found() {
    let (_, mut object) = written()
        .into_iter()
        .find(|(_, object)| object["kind"] == "Deployment")
        .expect("the base has a deployment");
    assert_eq!(offence(&object), None);
    object["spec"]["template"]["spec"]["terminationGracePeriod"] = 5.into();
    let found = offence(&object).expect("the field does not exist");
    assert!(found.contains("terminationGracePeriod` is not a field"), "{found}");
    object["spec"]["template"]["spec"] = serde_json::json!({ "containers": "none" });
    assert!(offence(&object).is_some(), "a list is needed");
}
