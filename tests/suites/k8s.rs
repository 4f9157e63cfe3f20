//! The Kubernetes manifests: every overlay and component renders, matches the API's types, is consistent, and
//! agrees with the program.
//!
//! Never uses a cluster or the network. If a tool is missing (a renderer, promtool, the two Python checkers),
//! a line `skipped: k8s: TOOL: reason` says so. The types, the rules and the program's options are checked
//! without these tools.

#[path = "k8s/custom.rs"]
mod custom;
#[path = "k8s/options.rs"]
mod options;
#[path = "k8s/page.rs"]
mod page;
#[path = "k8s/pods.rs"]
mod pods;
#[path = "k8s/render.rs"]
mod render;
#[path = "k8s/rules.rs"]
mod rules;
#[path = "k8s/scaling.rs"]
mod scaling;
#[path = "k8s/tools.rs"]
mod tools;
#[path = "k8s/typed.rs"]
mod typed;

use std::path::{Path, PathBuf};

/// Returns the folder of the manifests.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").join("k8s")
}

/// Returns the version that this checkout builds.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|err| panic!("read {}: {err}", path.display()))
}

/// Fails with one line for each offence.
#[track_caller]
fn check(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}
