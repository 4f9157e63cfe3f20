//! `./x test targets`: the programs on the systems that people have.
//!
//! Each target is type-checked by clippy: this machine can neither link nor run programs of macOS, Windows or
//! Android. C code (SQLite, and the ciphers of `ring`) is not compiled for that; a script stands in for the
//! compiler and writes empty files. `./x test targets run` then builds what can run here: static Linux
//! programs, which answer a question, and the engine's unit tests for Windows, if wine is installed.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use serde_json::Value;

use crate::{
    cargo,
    outcome::{Outcome, Stop, out},
    packages,
    process::{self, Place, command, is_installed},
    run::{Manner, Run, Told, logged},
    rust_std,
    setup::need,
};

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Type-checks only.
    Check,
    /// Also builds what can run here, and runs it; takes many minutes.
    Run,
}

/// A system that people have.
struct System {
    target: &'static str,
    /// Whether it can be one of the cloud's.
    serves: bool,
    /// Whether programs reach GPUs there. A static program cannot open a driver's library.
    has_gpus: bool,
}

const SYSTEMS: [System; 5] = [
    System { target: "aarch64-apple-darwin", serves: true, has_gpus: true },
    System { target: WINDOWS, serves: false, has_gpus: true },
    System { target: "aarch64-linux-android", serves: true, has_gpus: true },
    System { target: "x86_64-unknown-linux-musl", serves: true, has_gpus: false },
    System { target: "aarch64-unknown-linux-musl", serves: true, has_gpus: false },
];
const WINDOWS: &str = "x86_64-pc-windows-gnu";

/// What stands in for a C compiler: makes the file of its option `-o` empty.
const NO_COMPILER: &str = r#"#!/bin/sh
before=
for word; do
  [ "$before" = -o ] && : > "$word"
  before=$word
done
exit 0
"#;
/// What stands in for `ar FLAGS ARCHIVE FILE...`: makes an empty archive.
const NO_ARCHIVER: &str = "#!/bin/sh\n: > \"$2\"\n";

/// A static Linux program: how its C code is compiled, how it is linked, and how it runs here.
pub(crate) struct Static {
    pub(crate) target: &'static str,
    /// The C compiler, and Debian's package of it.
    compiler: (&'static str, &'static str),
    /// Whether that compiler has a C library of the target, which SQLite needs.
    has_libc: bool,
    linker: Option<&'static str>,
    /// The program that runs it, and Debian's package of that; none on its own machine.
    emulator: Option<(&'static str, &'static str)>,
}

/// The static programs that this machine may be able to build.
pub(crate) const STATIC: [Static; 2] = [
    Static {
        target: "x86_64-unknown-linux-musl",
        compiler: ("musl-gcc", "musl-tools"),
        has_libc: true,
        linker: None,
        emulator: None,
    },
    Static {
        target: "aarch64-unknown-linux-musl",
        compiler: ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        has_libc: false,
        linker: Some("aarch64-linux-gnu-gcc"),
        emulator: Some(("qemu-aarch64", "qemu-user")),
    },
];

/// Checks each target, and runs what can run here if that is asked for.
///
/// # Errors
/// A program cannot be started, or a script cannot be written.
pub(crate) fn targets(run: &mut Run, extent: Extent) -> Outcome {
    let stand_in = StandIn::write(&cargo::target_folder().join("targets"))
        .map_err(|err| Stop::failed(format!("write what stands in for a C compiler: {err}")))?;
    for system in &SYSTEMS {
        check(run, system, &stand_in)?;
    }
    if extent == Extent::Run {
        let mut answers = Vec::new();
        for one in &STATIC {
            answers.extend(static_programs(run, one)?);
        }
        if answers.windows(2).any(|two| two[0] != two[1]) {
            out(format!("the processors do not answer the same: {answers:?}"));
            run.fail();
        }
        windows_tests(run)?;
    }
    Ok(())
}

/// Type-checks the programs for one target.
fn check(run: &mut Run, system: &System, stand_in: &StandIn) -> Outcome {
    let begun = Instant::now();
    let System { target, serves, has_gpus } = *system;
    let name = format!("targets@{target}");
    if !has_library(run, &name, target) {
        return Ok(());
    }
    let mut clippy = cargo::cargo("clippy");
    stand_in.set_for(&mut clippy, target);
    clippy.args(["--target", target, "--lib", "--bins"]).args(selected(system));
    clippy.args(["--", "-D", "warnings"]);
    if target == WINDOWS {
        // Paths are larger there, so errors that hold some pass the bound of this lint on Windows only.
        clippy.args(["-A", "clippy::result_large_err"]);
    }
    let is_well = process::run(&mut clippy, Place::Terminal)?.success();
    let programs = if serves { "baton and baton-cloud" } else { "baton" };
    if is_well {
        let left_out = if has_gpus { "`ilp`" } else { "`ilp`, `cuda` and `wgpu`" };
        let what = format!("{programs}, without {left_out}");
        out(format!("type-checked for {target}: {what}; no C code compiled, nothing run"));
    }
    run.count(&name, one_test(is_well), begun);
    Ok(())
}

/// The packages and features of the programs. HiGHS is left out, which needs a C++ compiler and cmake, and in
/// static programs the GPUs.
fn selected(system: &System) -> Vec<&'static str> {
    let mut words = vec!["--no-default-features"];
    for package in ["baton-kernels-cpu", "baton-engine", "baton-generate", "baton-ring", "baton-device"] {
        words.extend(["-p", package]);
    }
    words.extend(["--features", "baton-device/constrain,baton-device/import"]);
    if system.serves {
        words.extend(["-p", "baton-cloud", "--features", "baton-cloud/constrain,baton-cloud/otlp"]);
    }
    if system.has_gpus {
        words.extend(["--features", "baton-device/cuda,baton-device/wgpu"]);
        if system.serves {
            words.extend(["--features", "baton-cloud/cuda,baton-cloud/wgpu"]);
        }
    }
    words
}

/// Builds the static programs of one target, asks a question, and returns the answer.
fn static_programs(run: &mut Run, one: &Static) -> Outcome<Option<String>> {
    let begun = Instant::now();
    let name = format!("static@{}", one.target);
    if let Some(lack) = one.lack() {
        run.skip(&name, &lack);
        return Ok(None);
    }
    if !has_library(run, &name, one.target) {
        return Ok(None);
    }
    let mut build = cargo::cargo("build");
    build.arg("--bins");
    one.set_for(&mut build);
    let features = "baton-cloud/constrain,baton-cloud/otlp";
    let device = "baton-device/constrain,baton-device/import";
    build.args(["--no-default-features", "-p", "baton-device", "--features", device]);
    if one.has_libc {
        build.args(["-p", "baton-cloud", "--features", features]);
    }
    let (mut is_well, mut answer) = (process::run(&mut build, Place::Terminal)?.success(), None);
    if is_well {
        let folder = cargo::target_folder().join(one.target).join("release");
        answer = one.answer(&folder.join("baton"))?;
        is_well = answer.is_some();
        if one.has_libc {
            is_well &= one.is_static_and_starts(&folder.join("baton-cloud"))?;
        } else {
            run.skip(&format!("{name} baton-cloud"), "no C library of the target, which SQLite needs");
        }
    }
    run.count(&name, one_test(is_well), begun);
    Ok(answer)
}

impl Static {
    /// Makes cargo build for this target, with its C compiler and its linker.
    pub(crate) fn set_for(&self, build: &mut Command) {
        build.args(["--target", self.target]);
        let variable = self.target.replace('-', "_");
        build.env(format!("CC_{variable}"), self.compiler.0);
        if let Some(linker) = self.linker {
            build.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), linker);
        }
    }

    /// What keeps the programs from being built or run here, after installing what can be installed.
    pub(crate) fn lack(&self) -> Option<String> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Some("built on x86-64 Linux only".to_owned());
        }
        [Some(self.compiler), self.emulator].into_iter().flatten().find_map(|(program, package)| {
            let is_here = need(program, package, package) && is_installed(program);
            (!is_here).then(|| format!("no {program} (Debian's {package})"))
        })
    }

    /// This program, as it runs here.
    fn started(&self, program: &Path) -> Command {
        match self.emulator {
            None => command(program),
            Some((emulator, _)) => {
                let mut started = command(emulator);
                started.arg(program);
                started
            }
        }
    }

    /// Whether the program needs no other file, and tells its version. Else it has been said what is wrong.
    fn is_static_and_starts(&self, program: &Path) -> Outcome<bool> {
        let image = fs::read(program).map_err(|err| Stop::failed(format!("read a program: {err}")))?;
        if loader_of(&image) != Some(false) {
            out(format!("{} is not static", program.display()));
            return Ok(false);
        }
        let version = self.printed(program, &["--version"])?;
        Ok(version.is_some_and(|version| version.starts_with("baton")))
    }

    /// What a static `baton` answers to a question, with the demo model of this repository; `None` if it does
    /// not, and it has been said why.
    fn answer(&self, program: &Path) -> Outcome<Option<String>> {
        if !self.is_static_and_starts(program)? {
            return Ok(None);
        }
        let ask = ["ask", "rust-toolchain.toml", "Which channel?", "--json", "--instant"];
        let words = [&ask[..], &["--model", "models/demo-device.gguf", "--max-tokens", "8"]].concat();
        let Some(log) = self.printed(program, &words)? else { return Ok(None) };
        let report = log.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let answer = report.and_then(|report| Some(report["answer"].as_str()?.to_owned()));
        let answer = answer.filter(|answer| !answer.is_empty());
        if answer.is_none() {
            out(format!("{} does not answer:\n{}", program.display(), log.trim_end()));
        }
        Ok(answer)
    }

    /// What the program prints, if it succeeds with these arguments; else that is shown.
    fn printed(&self, program: &Path, arguments: &[&str]) -> Outcome<Option<String>> {
        // Settings of the person who runs this are not touched.
        let settings = cargo::target_folder().join("targets/settings");
        let mut started = self.started(program);
        let (status, log) = logged(started.args(arguments).env("BATON_CONFIG_DIR", settings))?;
        if status.success() {
            return Ok(Some(log));
        }
        out(format!("{} {}: {status}\n{}", program.display(), arguments.join(" "), log.trim_end()));
        Ok(None)
    }
}

/// Whether a 64-bit ELF image names a program that loads libraries for it; `None` if it is no such image.
fn loader_of(image: &[u8]) -> Option<bool> {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, bytes: usize| {
        let found = image.get(at..at + bytes)?;
        Some(found.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if !image.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for header in 0..count {
        let at = usize::try_from(first.checked_add(header * size)?).ok()?;
        if number(at, 4)? == u64::from(INTERPRETER) {
            return Some(true);
        }
    }
    Some(false)
}

/// Runs the engine's unit tests as programs of Windows. Nothing is installed: wine brings many packages.
fn windows_tests(run: &mut Run) -> Outcome {
    const COMPILER: &str = "x86_64-w64-mingw32-gcc";
    let name = format!("wine@{WINDOWS}");
    let wine = ["wine", "wine64", "/usr/lib/wine/wine64"].into_iter();
    let Some(wine) = wine.clone().find(|name| is_installed(name) || process::is_program(Path::new(name)))
    else {
        run.skip(&name, "no wine (Debian's wine64)");
        return Ok(());
    };
    if !is_installed(COMPILER) {
        run.skip(&name, &format!("no {COMPILER} (Debian's gcc-mingw-w64-x86-64)"));
        return Ok(());
    }
    if !has_library(run, &name, WINDOWS) {
        return Ok(());
    }
    let mut build = cargo::test_build();
    build.args(["--target", WINDOWS, "--lib", "-p", "baton-engine"]);
    let built = match cargo::tests(&mut build, &packages::suites(&packages::read()?)) {
        Ok(built) => built,
        Err(stop) => {
            stop.explain();
            run.fail();
            return Ok(());
        }
    };
    for one in &built {
        let mut program = command(wine);
        program.arg(&one.program).env("WINEDEBUG", "-all");
        program.env("WINEPREFIX", cargo::target_folder().join("targets/wine"));
        run.suite(&format!("{}@wine", one.suite.name()), &mut program, Manner::default())?;
    }
    Ok(())
}

/// Whether Rust's standard library of a target is here; else a line says that it is skipped.
fn has_library(run: &mut Run, name: &str, target: &str) -> bool {
    let is_here = rust_std::is_here(target);
    if !is_here {
        run.skip(name, &format!("no Rust standard library for it (rustup target add {target})"));
    }
    is_here
}

fn one_test(is_well: bool) -> Told {
    Told { passed: usize::from(is_well), failed: usize::from(!is_well), skipped: 0 }
}

/// Scripts that build scripts of crates take for a C compiler and an archiver.
struct StandIn {
    folder: PathBuf,
}

impl StandIn {
    fn write(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let folder = folder.canonicalize()?;
        for (name, text) in [("no-cc", NO_COMPILER), ("no-ar", NO_ARCHIVER)] {
            let path = folder.join(name);
            // Build scripts run again if it changes.
            if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
                continue;
            }
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { folder })
    }

    fn set_for(&self, cargo: &mut Command, target: &str) {
        let target = target.replace('-', "_");
        for kind in ["CC", "CXX"] {
            cargo.env(format!("{kind}_{target}"), self.folder.join("no-cc"));
        }
        cargo.env(format!("AR_{target}"), self.folder.join("no-ar"));
        // Else the programs of Xcode are asked for it.
        cargo.env("SDKROOT", &self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_for_a_compiler_writes_empty_files() {
        let folder = std::env::temp_dir().join(format!("baton-stand-in-{}", std::process::id()));
        let stand_in = StandIn::write(&folder).unwrap();
        let made = |script: &str, words: &[&str], name: &str| {
            let path = folder.join(name);
            let words = words.iter().map(|word| word.replace("FILE", &path.display().to_string()));
            let status = command(stand_in.folder.join(script)).args(words).status().unwrap();
            status.success() && fs::read(path).is_ok_and(|bytes| bytes.is_empty())
        };
        assert!(made("no-cc", &["-O3", "-c", "a.c", "-o", "FILE"], "a.o"));
        assert!(made("no-cc", &["-o", "FILE", "-c", "b.c"], "b.o"));
        assert!(made("no-ar", &["cq", "FILE", "a.o"], "a.a"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_static_programs_are_checked_without_gpus() {
        for system in &SYSTEMS {
            let words = selected(system).join(" ");
            for package in ["baton-device", "baton-cloud"] {
                let has_gpus = words.contains(&format!("{package}/cuda,{package}/wgpu"));
                let is_checked = words.contains(&format!("-p {package}"));
                assert_eq!(has_gpus, is_checked && !system.target.ends_with("-musl"), "{words}");
            }
        }
    }

    #[test]
    fn programs_that_need_a_loader_are_known() {
        let image = |kinds: &[u32]| {
            let mut image = vec![0; 64];
            image[..6].copy_from_slice(b"\x7fELF\x02\x01");
            (image[32], image[54], image[56]) = (64, 56, kinds.len() as u8);
            for kind in kinds {
                image.extend(kind.to_le_bytes());
                image.extend([0; 52]);
            }
            image
        };
        assert_eq!(loader_of(&image(&[1, 3, 1])), Some(true));
        assert_eq!(loader_of(&image(&[1, 2])), Some(false));
        assert_eq!(loader_of(&image(&[1, 3])[..100]), None);
        assert_eq!(loader_of(b"MZ"), None);
    }
}
