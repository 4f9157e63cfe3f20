//! What a program is made of, as CycloneDX 1.5: every crate with version, licence and source, from cargo's
//! own resolution for that target and those features.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    outcome::{Outcome, Stop},
    process::{self, command},
};

/// Returns the list of parts of the agent, as JSON text.
///
/// # Errors
/// Cargo cannot resolve the packages.
pub(super) fn of(version: &str, target: &str, is_static: bool) -> Outcome<String> {
    let mut cargo = command("cargo");
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    cargo.args(["--manifest-path", "device/Cargo.toml"]);
    if is_static {
        cargo.args(["--no-default-features", "--features", "import"]);
    }
    let text = process::read(&mut cargo)?;
    let resolved: Value =
        serde_json::from_str(&text).map_err(|err| Stop::failed(format!("read cargo's metadata: {err}")))?;
    let parts = parts(&resolved);
    if parts.is_empty() {
        return Err(Stop::failed("cargo's metadata does not hold baton-device"));
    }
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "baton",
                "version": version,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
            "properties": [{ "name": "target", "value": target }],
        },
        "components": parts,
    });
    Ok(format!("{list:#}\n"))
}

/// The crates that the agent is linked from. Crates that only build or test it are not part of it.
fn parts(resolved: &Value) -> Vec<Value> {
    let empty = Vec::new();
    let packages = resolved["packages"].as_array().unwrap_or(&empty);
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let nodes = resolved["resolve"]["nodes"].as_array().unwrap_or(&empty);
    let nodes: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let own = by_id.iter().find(|(_, package)| package["name"] == "baton-device").map(|(id, _)| *id);
    let mut open: Vec<&str> = own.into_iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        let below = nodes.get(id).and_then(|node| node["deps"].as_array()).unwrap_or(&empty);
        for one in below {
            let kinds = one["dep_kinds"].as_array().unwrap_or(&empty);
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                open.extend(one["pkg"].as_str());
            }
        }
    }
    let mut parts: Vec<Value> =
        seen.iter().filter_map(|id| by_id.get(id)).map(|package| part(package)).collect();
    parts.sort_by_key(|part| part["bom-ref"].to_string());
    parts
}

fn part(package: &Value) -> Value {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    let (name, version) = (text("name"), text("version"));
    let address = format!("pkg:cargo/{name}@{version}");
    // Old manifests divide licences by a slash, which means "or".
    let licence = text("license").replace('/', " OR ").replace("  ", " ");
    let mut part = json!({
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
    });
    if !licence.is_empty() {
        part["licenses"] = json!([{ "expression": licence }]);
    }
    if let Some(source) = package["repository"].as_str() {
        part["externalReferences"] = json!([{ "type": "vcs", "url": source }]);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_is_linked() {
        let package =
            |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0" });
        let needs = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let resolved = json!({
            "packages": [package("baton-device"), package("a"), package("b"), package("builds"), package("tests")],
            "resolve": { "nodes": [
                { "id": "baton-device", "deps": [
                    needs("a", Value::Null), needs("builds", json!("build")), needs("tests", json!("dev")),
                ] },
                { "id": "a", "deps": [needs("b", Value::Null)] },
                { "id": "b", "deps": [needs("a", Value::Null)] },
            ] },
        });
        let names: Vec<Value> = parts(&resolved).iter().map(|part| part["name"].clone()).collect();
        assert_eq!(names, ["a", "b", "baton-device"]);
        assert_eq!(parts(&resolved)[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    }
}
