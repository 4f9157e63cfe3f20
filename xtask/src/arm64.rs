//! `./x test arm64`: the tests of the kernels and the engine on emulated 64-bit ARM CPUs.
//!
//! Never adds an architecture to the system's packages: what is missing is named.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    cargo,
    outcome::{Outcome, out},
    packages,
    process::{command, is_installed},
    run::{Manner, Run},
    rust_std,
    setup::need,
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";

/// CPUs of qemu, and the level of the kernels that is the best on each: without byte dot products, with them,
/// and with matrix products. The last runs the levels below its own too.
const CPUS: [(&str, &str); 3] =
    [("cortex-a72", "neon"), ("cortex-a76", "neon-dotprod"), (EVERYTHING, "neon-i8mm")];
/// The CPU that has everything.
const EVERYTHING: &str = "max";

/// What builds and runs programs for 64-bit ARM here.
struct Emulation {
    /// A compiler with the standard library for that target.
    rustc: &'static str,
    /// Where the emulated programs find their libraries and their loader.
    root: PathBuf,
}

/// Runs the tests on each CPU, or says why they are skipped.
///
/// # Errors
/// A program cannot be started.
pub(crate) fn arm64(run: &mut Run) -> Outcome {
    let emulation = match Emulation::find() {
        Ok(emulation) => emulation,
        Err(lack) => {
            run.skip("arm64", &lack);
            return Ok(());
        }
    };
    let mut build = cargo::test_build();
    build.env("RUSTC", emulation.rustc).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    build.args(["--target", TARGET, "-p", "baton-kernels-cpu", "--lib", "-p", "baton-engine", "--tests"]);
    let built = match cargo::tests(&mut build, &packages::suites(&packages::read()?)) {
        Ok(built) => built,
        Err(stop) => {
            stop.explain();
            run.fail();
            return Ok(());
        }
    };
    for (cpu, level) in CPUS {
        for one in &built {
            let name = one.suite.name();
            if name == "engine" && cpu != EVERYTHING {
                continue;
            }
            let mut program = emulation.program(cpu, &one.program);
            let log = run.suite(&format!("{name}@{cpu}"), &mut program, Manner::default())?;
            let best = format!("best level: {level}");
            if name == "kernels_cpu" && !log.lines().any(|line| line == best) {
                out(format!("the level {level} was not tested on {cpu}"));
                run.fail();
            }
        }
    }
    Ok(())
}

impl Emulation {
    /// Finds what is needed, after installing what can be installed; else returns what is missing.
    fn find() -> Result<Self, String> {
        if !cfg!(target_os = "linux") {
            return Err("emulated on Linux only".to_owned());
        }
        if cfg!(target_arch = "aarch64") {
            return Err("this machine is one, and every other suite runs on it".to_owned());
        }
        if !need("qemu-aarch64", "qemu-user", "qemu") || !is_installed("qemu-aarch64") {
            return Err("no qemu-aarch64 (Debian's qemu-user)".to_owned());
        }
        let no_compiler = || format!("no {LINKER} with its C library (Debian's gcc-aarch64-linux-gnu)");
        if !need(LINKER, "gcc-aarch64-linux-gnu", "gcc") || !is_installed(LINKER) {
            return Err(no_compiler());
        }
        let root = loader_root().ok_or_else(no_compiler)?;
        let rustc = compiler().ok_or_else(|| {
            format!(
                "no Rust standard library for {TARGET} (rustup target add {TARGET}; or Debian's packages \
                 rustc-web, and libstd-rust-web-dev of the architecture arm64)"
            )
        })?;
        Ok(Self { rustc, root })
    }

    /// A program of the emulated CPU. Its C library is that of the cross compiler, whose loader it is, not
    /// one that Debian may hold for programs of this kind.
    fn program(&self, cpu: &str, program: &Path) -> Command {
        let mut library_path = std::ffi::OsString::from("LD_LIBRARY_PATH=");
        library_path.push(self.root.join("lib"));
        let mut emulated = command("timeout");
        emulated.args(["1800", "qemu-aarch64", "-cpu", cpu, "-L"]).arg(&self.root);
        emulated.arg("-E").arg(library_path).arg(program);
        emulated
    }
}

/// The folder above `lib/` that has the loader of the cross compiler's C library.
fn loader_root() -> Option<PathBuf> {
    let named = command(LINKER).arg("-print-file-name=ld-linux-aarch64.so.1").output().ok()?;
    let loader = String::from_utf8(named.stdout).ok()?;
    let (root, _) = loader.trim_end().rsplit_once("/lib/")?;
    Some(PathBuf::from(root)).filter(|root| root.is_dir())
}

/// A compiler that has the standard library for the target: the one in use, or else the system's.
fn compiler() -> Option<&'static str> {
    const OF_THE_SYSTEM: &str = "/usr/bin/rustc";
    if rust_std::is_here(TARGET) {
        return Some(rust_std::IN_USE);
    }
    rust_std::has(OF_THE_SYSTEM, TARGET).then_some(OF_THE_SYSTEM)
}
