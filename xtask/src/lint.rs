//! Formatting, clippy, documentation, the rules of the suite `tidy`, and published advisories.
//!
//! Covers the workspace and this program, which is a workspace of its own.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    thread::{self, JoinHandle},
    time::Instant,
};

use crate::{
    cargo,
    outcome::{Outcome, out},
    packages,
    process::{self, command, is_fine, is_installed},
    run::{self, Run},
    setup::{self, names_in},
    suites,
};

const DOC_FLAGS: &str = "-D warnings -A rustdoc::private_intra_doc_links";

/// `./x lint`: everything; stops at the first complaint.
///
/// # Errors
/// Something complained, and has said why.
pub(crate) fn lint() -> Outcome {
    setup::everything()?;
    formatted()?;
    code(&mut Run::new(), process::succeed)?;
    let tidy = suites::build_one("tidy")?;
    process::succeed(&mut command(tidy))
}

/// Whether all sources are formatted.
///
/// # Errors
/// They are not; rustfmt has shown where.
pub(crate) fn formatted() -> Outcome {
    process::succeed(command("cargo").args(["fmt", "--all", "--check"]))?;
    let manifest = Path::new(packages::OWN).join("Cargo.toml");
    process::succeed(command("cargo").args(["fmt", "--check", "--manifest-path"]).arg(manifest))
}

/// Begins clippy, documentation and advisories beside suites, of which many leave a core idle. They have the
/// lowest priority, and what they say is shown if they complain. The thread returns what was counted.
pub(crate) fn begin() -> JoinHandle<Run> {
    thread::spawn(|| {
        let (begun, mut run) = (Instant::now(), Run::new());
        if let Err(stop) = code(&mut run, aside) {
            stop.explain();
            run.fail();
        }
        cargo::took("lint", begun);
        run
    })
}

/// Runs a program with the lowest priority; shows what it says if it fails.
fn aside(command: &mut Command) -> Outcome {
    let (status, log) = run::logged(&mut process::yielding(command))?;
    if !status.success() {
        out(log.trim_end());
    }
    process::ended_well(status)
}

/// Clippy, documentation, advisories. `runs` runs one of their programs to its end.
///
/// # Errors
/// One of them complained, and has said why.
fn code(run: &mut Run, runs: fn(&mut Command) -> Outcome) -> Outcome {
    runs(cargo::cargo("clippy").args(["--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // What the demo builds has fewer features, so other code.
    runs(cargo::cargo("clippy").args(cargo::DEMO).args(["--", "-D", "warnings"]))?;
    let mut own_clippy = cargo::cargo("clippy");
    runs(cargo::own_workspace(&mut own_clippy).args(["--all-targets", "--", "-D", "warnings"]))?;
    // With the examples named, rustdoc's dependencies have the features that clippy built them with; else
    // half are built again.
    let mut docs = cargo::cargo("doc");
    docs.args(["--workspace", "--no-deps", "--document-private-items", "--lib", "--bins", "--examples"]);
    runs(docs.env("RUSTDOCFLAGS", DOC_FLAGS))?;
    let mut own_docs = cargo::cargo("doc");
    cargo::own_workspace(&mut own_docs).args(["--no-deps", "--document-private-items"]);
    runs(own_docs.env("RUSTDOCFLAGS", DOC_FLAGS))?;
    advisories(run, runs)
}

/// Published advisories against the locked crates, yanked crates, and crates from elsewhere than the registry
/// (deny.toml). A machine without a network uses the copy of the advisories that it fetched last.
fn advisories(run: &mut Run, runs: fn(&mut Command) -> Outcome) -> Outcome {
    if !is_installed("cargo-deny") {
        run.skip("advisories", "no cargo-deny (cargo install --locked cargo-deny)");
        return Ok(());
    }
    let is_fetched = is_fine(command("cargo").args(["deny", "fetch", "db"]));
    if !is_fetched && names_in(&advisories_folder()).is_empty() {
        run.skip("advisories", "the advisory database cannot be fetched, and there is no copy");
        return Ok(());
    }
    let mut deny = command("cargo");
    deny.args(["deny", "--locked", "check", "--disable-fetch", "advisories", "bans", "sources"]);
    runs(&mut deny)
}

/// Where cargo-deny keeps what it fetched.
fn advisories_folder() -> PathBuf {
    let home = |variable: &str| env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cargo = home("CARGO_HOME").or_else(|| Some(home("HOME")?.join(".cargo")));
    cargo.unwrap_or_default().join("advisory-dbs")
}
