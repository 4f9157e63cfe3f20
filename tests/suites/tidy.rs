//! What a machine can check of the project's own rules.
//!
//! These are: the walls between packages, licences, where `unsafe` and SQL may stand, sizes, names, the
//! length of sentences, and that the documents name what exists.

#[path = "tidy/packages.rs"]
mod packages;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/sources.rs"]
mod sources;
#[path = "tidy/text.rs"]
mod text;
#[path = "tidy/wording.rs"]
mod wording;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The top folder of the checkout.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_owned()
}

/// Every file that git knows or would add, relative to the top; outside a git checkout, every file of the
/// sources.
fn files() -> Vec<PathBuf> {
    let out = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(top())
        .output()
        .expect("run git ls-files");
    assert!(out.status.success(), "git ls-files failed: the tidy suite needs a git checkout");
    let list = String::from_utf8(out.stdout).expect("file names are UTF-8");
    let files: Vec<PathBuf> =
        list.lines().map(PathBuf::from).filter(|path| top().join(path).is_file()).collect();
    assert!(files.len() > 50, "only {} files found: the checkout is not whole", files.len());
    files
}

/// The Rust sources with their text.
fn rust_sources() -> Vec<(PathBuf, String)> {
    files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .map(|path| {
            let text = std::fs::read_to_string(top().join(&path)).expect("read a source file");
            (path, text)
        })
        .collect()
}

/// Fails with one line for each offence.
#[track_caller]
fn check(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}
