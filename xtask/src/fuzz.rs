//! The fuzz targets: each gets a fixed number of inputs from a fixed seed.

use std::{fs, io, path::Path, time::Instant};

use crate::{
    cargo,
    outcome::{Outcome, Stop, out},
    process::{self, Place, command, is_installed},
    run::{Run, Told, logged},
    tools::remove,
};

const MANIFEST: &str = "device/fuzz/Cargo.toml";

/// The targets, each with its options for libFuzzer: frames of the ring, and documents of the device.
const TARGETS: [(&str, [&str; 3]); 2] = [
    ("frames", ["-runs=2000000", "-max_len=4096", "-rss_limit_mb=256"]),
    ("documents", ["-runs=100000", "-max_len=2048", "-rss_limit_mb=512"]),
];

/// The coverage instrumentation that any compiler has.
const INSTRUMENTATION: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// What libFuzzer prints if the target is instrumented. Without the counters its work is no search.
const INSTRUMENTED: &str = "inline 8-bit counters";

/// Builds and runs the targets, and counts each as one test.
///
/// # Errors
/// There is no place for the inputs, or a target cannot be started.
pub(crate) fn fuzz(run: &mut Run) -> Outcome {
    if let Some(lack) = lack() {
        run.skip("fuzz", lack);
        return Ok(());
    }
    if !is_fetched(run)? {
        return Ok(());
    }
    TARGETS.iter().try_for_each(|(name, options)| target(run, name, options))
}

fn target(run: &mut Run, name: &str, options: &[&str]) -> Outcome {
    let begun = Instant::now();
    let folder = cargo::target_folder().join("fuzz");
    if !is_built(&folder, name)? {
        run.fail();
        return Ok(());
    }
    let inputs = folder.join("inputs");
    let failed = |err: io::Error| Stop::failed(format!("inputs in {}: {err}", inputs.display()));
    remove(&inputs).map_err(failed)?;
    fs::create_dir_all(&inputs).map_err(failed)?;
    let mut target = command(folder.join("release").join(name));
    target.arg("-seed=1").args(options).arg(format!("-artifact_prefix={}/", folder.display())).arg(&inputs);
    let (status, log) = logged(&mut target)?;
    let is_well = status.success() && log.contains(INSTRUMENTED);
    if !is_well {
        out(log.trim_end());
    }
    let told = Told { passed: usize::from(is_well), failed: usize::from(!is_well), skipped: 0 };
    run.count(&format!("fuzz {name}"), told, begun);
    remove(&inputs).map_err(failed)
}

/// What keeps the targets from being built here.
fn lack() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        return Some("run on Linux only");
    }
    if !is_installed("c++") {
        return Some("no C++ compiler for libFuzzer");
    }
    None
}

/// Fetches the crates of the targets. If the registry is away, that is said. A lock file that is out of date
/// is a failure.
fn is_fetched(run: &mut Run) -> Outcome<bool> {
    let mut fetch = command("cargo");
    let (status, log) = logged(fetch.args(["fetch", "--locked", "--manifest-path", MANIFEST]))?;
    if status.success() {
        return Ok(true);
    }
    if log.contains("because --locked was passed") {
        out(format!(
            "the lock file of {MANIFEST} is out of date: cargo update --workspace --manifest-path {MANIFEST}"
        ));
        run.fail();
    } else {
        out(log.trim_end());
        run.skip("fuzz", "libfuzzer-sys cannot be had");
    }
    Ok(false)
}

fn is_built(folder: &Path, name: &str) -> Outcome<bool> {
    let mut rustc = cargo::cargo("rustc");
    rustc.args(["--manifest-path", MANIFEST, "--bin", name, "--"]).args(INSTRUMENTATION);
    Ok(process::run(rustc.env("CARGO_TARGET_DIR", folder), Place::Terminal)?.success())
}
