//! Programs that one suite needs beside the project's own. If one cannot be had, the suite says so in a
//! `skipped:` line.

use std::{
    ffi::OsString,
    fs, io,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    cargo, gpu,
    outcome::say,
    process::{self, Place, command, is_fine, is_installed},
    setup::{names_in, need},
};

/// What the checkers of the manifests are locked to.
const REQUIREMENTS: &str = "tests/k8s/requirements.txt";

/// Installs what a suite needs, as far as that goes here. Returns why something that is fetched for tests
/// alone cannot be had.
pub(crate) fn install_for(suite: &str) -> Vec<String> {
    if suite == "gpu" {
        return once_for_gpu();
    }
    if matches!(suite, "console" | "page") {
        // The browser comes with its driver.
        need("chromedriver", "chromium-driver", "chromedriver");
    }
    if !cfg!(target_os = "linux") {
        return Vec::new();
    }
    match suite {
        "cluster" => {
            need("haproxy", "haproxy", "haproxy");
            // Debian does not put PostgreSQL's own programs on the path.
            let versions = Path::new("/usr/lib/postgresql");
            if !names_in(versions).iter().any(|version| versions.join(version).join("bin/initdb").is_file()) {
                need("initdb", "postgresql", "postgresql");
            }
        }
        "dist" => {
            need("debootstrap", "debootstrap", "debootstrap");
            need("musl-gcc", "musl-tools", "musl-tools");
        }
        "image" => {
            for program in ["buildah", "podman", "runc", "catatonit"] {
                need(program, program, program);
            }
        }
        "k8s" => {
            if let Err(err) = install_checkers() {
                say(format!("install the checkers of the manifests: {err}"));
            }
        }
        _ => {}
    }
    Vec::new()
}

/// The variables that a suite's program is started with.
pub(crate) fn variables_for(suite: &str) -> Vec<(&'static str, OsString)> {
    match suite {
        "gpu" => gpu::variables(),
        "image" => gpu::variables().into_iter().filter(|(name, _)| *name == gpu::LIBRARY).collect(),
        _ => Vec::new(),
    }
}

/// Further variables of a suite that was named, and not run with all others. `gpu` then fetches model files
/// (430 MB) and computes whole real models, which takes longer than all of its other tests.
pub(crate) fn variables_if_named(suite: &str) -> Vec<(&'static str, &'static str)> {
    match suite {
        "gpu" => vec![("BATON_TEST_FETCH", "1"), ("BATON_TEST_ALL", "1")],
        "agents" | "clients" | "documents" | "hostile" | "ring" | "templates" | "upstream" => {
            vec![("BATON_TEST_ALL", "1")]
        }
        _ => Vec::new(),
    }
}

/// Installs for all suites `gpu` when the first of them comes; there are several of that name.
fn once_for_gpu() -> Vec<String> {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.swap(true, Ordering::Relaxed) { Vec::new() } else { gpu::install() }
}

/// The checkers of the manifests: two from PyPI, locked with all they stand on, and promtool. A renderer
/// (kubectl or kustomize) is not in Debian: it is used if it is there.
fn install_checkers() -> io::Result<()> {
    let folder = cargo::target_folder().join("k8s-tools");
    let stamp = folder.join("stamp");
    let wanted = fs::read(REQUIREMENTS)?;
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    remove(&folder)?;
    say(format!("installing kubernetes-validate and checkov into {}", folder.display()));
    if is_fine(command("python3").args(["-m", "venv"]).arg(&folder)) && install_by_pip(&folder) {
        fs::write(stamp, wanted)?;
    } else {
        remove(&folder)?;
    }
    if !is_installed("promtool") && !promtool_from_package(&folder) {
        say("promtool cannot be had (Debian's prometheus)");
    }
    Ok(())
}

fn install_by_pip(folder: &Path) -> bool {
    let mut pip = command(folder.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-deps", "-r", REQUIREMENTS]).stdout(io::stderr());
    process::run(&mut pip, Place::Terminal).is_ok_and(|status| status.success())
}

/// Takes promtool out of its package: to install that would start a server.
fn promtool_from_package(folder: &Path) -> bool {
    let (programs, package) = (folder.join("bin"), folder.join("package"));
    let is_made = |folder: &Path| fs::create_dir_all(folder).is_ok();
    if !is_installed("apt-get") || !is_made(&programs) || !is_made(&package) {
        return false;
    }
    let run = |command: &mut Command| is_fine(command.current_dir(&package).stdin(Stdio::null()));
    let taken = run(command("apt-get").args(["download", "prometheus"]))
        && names_in(&package)
            .iter()
            .find(|name| name.starts_with("prometheus_"))
            .is_some_and(|file| run(command("dpkg-deb").args(["-x", file, "."])))
        && fs::rename(package.join("usr/bin/promtool"), programs.join("promtool")).is_ok();
    let removed = remove(&package);
    taken && removed.is_ok()
}

/// Removes a folder, if it is there.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}
