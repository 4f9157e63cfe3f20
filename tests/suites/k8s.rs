//! The Kubernetes manifests: every overlay and every component renders, is what the API's types say, fits together, and
//! is true to the program.
//!
//! Never speaks to a cluster or the network. What a machine lacks (a renderer, promtool, the two Python checkers) is said
//! in a line `skipped: k8s: TOOL: reason`; the types, the rules and the program's options are checked without any of them.

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

/// The folder of the manifests.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").join("k8s")
}

/// The version that this checkout builds.
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
