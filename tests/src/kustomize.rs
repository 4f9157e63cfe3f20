//! Renders Kubernetes manifests with kustomize, or the one in kubectl; needs no cluster.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};

/// Why a test is skipped if [`renderer`] finds nothing.
pub const MISSING: &str = "no kustomize and no kubectl with a kustomize of version 5 is on the path";

/// Returns the command to put before the folder; `None` if this machine has no kustomize that knows
/// components.
#[must_use]
pub fn renderer() -> Option<&'static [&'static str]> {
    let says = |words: &[&str]| {
        let out = Command::new(words[0]).args(&words[1..]).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    };
    if says(&["kustomize", "version"]).is_some_and(|text| text.contains("v5.")) {
        return Some(&["kustomize", "build"]);
    }
    let version = says(&["kubectl", "version", "--client"]);
    version.is_some_and(|text| text.contains("Kustomize Version: v5.")).then_some(&["kubectl", "kustomize"])
}

/// Renders the kustomization of a folder to YAML.
///
/// # Errors
/// Fails if it does not render, or renders with a warning.
pub fn render(renderer: &[&str], folder: &Path) -> anyhow::Result<String> {
    let out =
        Command::new(renderer[0]).args(&renderer[1..]).arg(folder).output().context("run the renderer")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{} does not render: {said}", folder.display());
    ensure!(said.trim().is_empty(), "{} renders with a warning: {said}", folder.display());
    String::from_utf8(out.stdout).context("read YAML")
}
