//! Formatting, clippy, documentation, the rules of the suite `tidy`, and published advisories.
//!
//! Covers the workspace and this program, which is a workspace of its own.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{
    cargo,
    outcome::Outcome,
    packages,
    process::{self, command, is_fine, is_installed},
    run::Run,
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
    code(&mut Run::new())?;
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

/// Clippy, documentation, advisories.
///
/// # Errors
/// One of them complained, and has said why.
pub(crate) fn code(run: &mut Run) -> Outcome {
    process::succeed(cargo::cargo("clippy").args(["--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // What the demo builds has fewer features, so other code.
    process::succeed(cargo::cargo("clippy").args(cargo::DEMO).args(["--", "-D", "warnings"]))?;
    let mut own_clippy = cargo::cargo("clippy");
    process::succeed(cargo::own_workspace(&mut own_clippy).args(["--all-targets", "--", "-D", "warnings"]))?;
    // With the examples named, rustdoc's dependencies have the features that clippy built them with; else
    // half are built again.
    let mut docs = cargo::cargo("doc");
    docs.args(["--workspace", "--no-deps", "--document-private-items", "--lib", "--bins", "--examples"]);
    process::succeed(docs.env("RUSTDOCFLAGS", DOC_FLAGS))?;
    let mut own_docs = cargo::cargo("doc");
    cargo::own_workspace(&mut own_docs).args(["--no-deps", "--document-private-items"]);
    process::succeed(own_docs.env("RUSTDOCFLAGS", DOC_FLAGS))?;
    advisories(run)
}

/// Published advisories against the locked crates, yanked crates, and crates from elsewhere than the registry
/// (deny.toml). A machine without a network uses the copy of the advisories that it fetched last.
fn advisories(run: &mut Run) -> Outcome {
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
    process::succeed(&mut deny)
}

/// Where cargo-deny keeps what it fetched.
fn advisories_folder() -> PathBuf {
    let home = |variable: &str| env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cargo = home("CARGO_HOME").or_else(|| Some(home("HOME")?.join(".cargo")));
    cargo.unwrap_or_default().join("advisory-dbs")
}
