//! Calls of cargo: every build is locked and optimized.
//!
//! Cargo unites the features of the packages that a call selects. So a call that selects one package may
//! build its dependencies once more, with fewer features. A call that selects the workspace and names targets
//! builds only what these targets need, with the features of the whole workspace. One of the targets must be
//! a test or an example: else the features that tests ask of dependencies are missing. No two such calls
//! build a dependency twice.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    outcome::{Outcome, Stop, out},
    packages::{self, Suite},
    process,
};

/// Every program of the workspace, with the features of the whole workspace.
pub(crate) const PROGRAMS: &[&str] = &["--workspace", "--bins", "--examples"];

/// The programs of the demo, without what it does not need: HiGHS, the import of models, constraints of
/// answers, traces.
pub(crate) const DEMO: &[&str] =
    &["--no-default-features", "-p", "baton-cloud", "-p", "baton-device", "-p", "baton-e2e", "--bins"];

/// A test program that is built.
#[derive(Debug)]
pub(crate) struct Built {
    /// What it is.
    pub(crate) suite: Suite,
    /// Where it is.
    pub(crate) program: PathBuf,
}

/// The folder of what is built.
pub(crate) fn target_folder() -> PathBuf {
    let given = env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    given.map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Where a program of the project is built.
pub(crate) fn program(name: &str) -> PathBuf {
    target_folder().join("release").join(name)
}

/// `cargo VERB`, locked and optimized.
pub(crate) fn cargo(verb: &str) -> Command {
    let mut command = process::command("cargo");
    command.args([verb, "--release", "--locked"]);
    command
}

/// The arguments that select this program's own workspace.
pub(crate) fn own_workspace(command: &mut Command) -> &mut Command {
    let manifest = Path::new(packages::OWN).join("Cargo.toml");
    command.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(target_folder().join(packages::OWN))
}

/// Builds what these arguments select.
///
/// # Errors
/// It does not build; cargo has said why.
pub(crate) fn build(arguments: &[&str]) -> Outcome {
    process::succeed(cargo("build").args(arguments))
}

/// `cargo test` that runs nothing and says in JSON what it has built; for [`tests`].
pub(crate) fn test_build() -> Command {
    let mut command = cargo("test");
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    command
}

/// Builds test programs by a call that [`test_build`] began, in the order in which they run.
///
/// # Errors
/// They do not build; cargo has said why.
pub(crate) fn tests(command: &mut Command, known: &[Suite]) -> Outcome<Vec<Built>> {
    let text = process::read(command)?;
    let mut built = Vec::new();
    // Of hundreds of messages only these can be of test programs.
    for line in text.lines().filter(|line| line.contains(r#""executable":""#)) {
        let message =
            serde_json::from_str(line).map_err(|err| Stop::failed(format!("a message of cargo: {err}")))?;
        built.extend(packages::built_suite(&message, known).map(|(suite, program)| Built { suite, program }));
    }
    built.sort_by(|one, other| one.suite.cmp(&other.suite));
    Ok(built)
}

/// Builds everything, and returns every test program in the order in which they run.
///
/// # Errors
/// Something does not build; cargo has said why.
pub(crate) fn everything(known: &[Suite]) -> Outcome<Vec<Built>> {
    build(&["--workspace", "--all-targets"])?;
    let mut workspace = test_build();
    workspace.args(["--quiet", "--workspace", "--lib", "--bins", "--tests"]);
    let mut built = tests(&mut workspace, known)?;
    built.extend(tests(own_workspace(test_build().arg("--quiet")), known)?);
    Ok(built)
}

/// Prints how long a step took.
pub(crate) fn took(step: &str, begun: std::time::Instant) {
    out(format!("{step} {} s", begun.elapsed().as_secs()));
}
