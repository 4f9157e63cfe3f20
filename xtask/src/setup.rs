//! What the builds need of a machine: installed if no password is needed for that, else named.

use std::{env, fs, path::Path, process::Stdio};

use crate::{
    outcome::{Outcome, Stop, say},
    process::{Place, command, is_fine, is_installed, run},
};

/// A C compiler for SQLite: all that the demo needs beside Rust.
///
/// # Errors
/// It is missing and could not be installed; that has been said.
pub(crate) fn compiler() -> Outcome {
    all_here(&[need("cc", "build-essential", "gcc")])
}

/// What the whole workspace needs: HiGHS is built by cmake, a C++ compiler and libclang. Names everything
/// that is missing.
///
/// # Errors
/// Something is missing and could not be installed; that has been said.
pub(crate) fn everything() -> Outcome {
    warn_of_a_full_disk();
    all_here(&[
        need("cc", "build-essential", "gcc"),
        need("cmake", "cmake", "cmake"),
        need("c++", "g++", "gcc"),
        has_libclang() || install("libclang", "libclang-dev", "llvm"),
    ])
}

/// Disk space that the programs and suites take under `target/`, in KiB.
const BUILD_KIB: u64 = 8 << 20;

/// Says how much space a build needs if less is free: without it, a linker dies without a word about disks.
fn warn_of_a_full_disk() {
    let Ok(table) = command("df").args(["-Pk", "."]).stderr(Stdio::null()).output() else { return };
    match free_kib(&String::from_utf8_lossy(&table.stdout)) {
        Some(free) if free < BUILD_KIB => say(format!(
            "note: {:.1} GiB of disk are free here; a build from nothing takes up to {} GiB. If it fails, free \
             space or delete old builds with: rm -r target/release",
            free as f64 / (1u64 << 20) as f64,
            BUILD_KIB >> 20,
        )),
        _ => {}
    }
}

/// Reads the free space of a file system from the table of `df -Pk`.
fn free_kib(table: &str) -> Option<u64> {
    table.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

fn all_here(found: &[bool]) -> Outcome {
    if found.iter().all(|is_here| *is_here) { Ok(()) } else { Err(Stop::silent(1)) }
}

/// Whether a program is here, after it was installed if it was missing. Says what is missing.
pub(crate) fn need(program: &str, debian: &str, homebrew: &str) -> bool {
    is_installed(program) || install(program, debian, homebrew)
}

/// Installs a package, and returns whether that succeeded. If it needs a password, says how to install it.
fn install(what: &str, debian: &str, homebrew: &str) -> bool {
    if is_installed("apt-get") {
        let Some(as_root) = as_root() else {
            say(format!("missing: {what}. Install it with: sudo apt-get install {debian}"));
            return false;
        };
        say(format!("installing {debian} (for {what})"));
        let install = ["install", "-y", debian];
        let with_fresh_lists =
            || is_fine(&mut apt_get(as_root, &["update"])) && succeeds_aloud(&mut apt_get(as_root, &install));
        is_fine(&mut apt_get(as_root, &install)) || with_fresh_lists()
    } else if is_installed("brew") {
        say(format!("installing {homebrew} (for {what})"));
        succeeds_aloud(command("brew").args(["install", homebrew]))
    } else {
        let packages = format!("{debian} on Debian and Ubuntu, {homebrew} in Homebrew");
        say(format!("missing: {what}. Install the package that provides it ({packages})"));
        false
    }
}

/// What is put before a command to run it as root, without a password; `None` if that cannot be done.
pub(crate) fn as_root() -> Option<&'static [&'static str]> {
    let id = command("id").arg("-u").output();
    if id.is_ok_and(|id| id.stdout.trim_ascii() == b"0") {
        return Some(&[]);
    }
    if is_fine(command("sudo").args(["-n", "true"])) { Some(&["sudo"]) } else { None }
}

fn apt_get(as_root: &[&str], arguments: &[&str]) -> std::process::Command {
    let words = [as_root, &["apt-get"], arguments].concat();
    let mut apt_get = command(words[0]);
    apt_get.args(&words[1..]);
    apt_get
}

/// Runs an installer; only its complaints are shown.
fn succeeds_aloud(command: &mut std::process::Command) -> bool {
    run(command.stdout(Stdio::null()), Place::Terminal).is_ok_and(|status| status.success())
}

/// Whether bindgen will find libclang, which has no program to look for.
fn has_libclang() -> bool {
    if cfg!(target_os = "macos") || env::var_os("LIBCLANG_PATH").is_some_and(|path| !path.is_empty()) {
        return true;
    }
    let known = command("ldconfig").arg("-p").stderr(Stdio::null()).output();
    let known = known.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let mut in_llvm = names_in(Path::new("/usr/lib"))
        .into_iter()
        .filter(|name| name.starts_with("llvm-"))
        .flat_map(|name| names_in(&Path::new("/usr/lib").join(name).join("lib")));
    known.lines().any(is_libclang) || in_llvm.any(|name| is_libclang(&name))
}

/// The names in a folder; none if it cannot be read.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Whether a line names `libclang.so` or `libclang-VERSION.so`; libclang-cpp, which other packages bring
/// along, is another library.
fn is_libclang(line: &str) -> bool {
    line.split("libclang").skip(1).any(|rest| {
        let version = rest.strip_prefix('-').and_then(|rest| rest.split_once(".so"));
        let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
        rest.starts_with(".so") || version.is_some_and(|(version, _)| is_number(version))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_read() {
        let table = "Filesystem     1024-blocks     Used Available Capacity Mounted on\n\
                     /dev/vda         263112772 86042424   8561172      92% /\n";
        assert_eq!(free_kib(table), Some(8_561_172));
        assert_eq!(free_kib("df: .: No such file"), None);
    }

    #[test]
    fn libclang_is_told_from_its_neighbours() {
        for line in [
            "libclang.so",
            "\tlibclang-14.so.13 (libc6,x86-64) => /lib/x86_64-linux-gnu/libclang-14.so.13",
            "libclang-19.1.so.1",
        ] {
            assert!(is_libclang(line), "{line}");
        }
        for line in ["libclang-cpp.so.14", "libclang-.so", "libclang-14", "libclang-14.a", "clang.so"] {
            assert!(!is_libclang(line), "{line}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_empty() {
        assert!(names_in(Path::new("/a-folder-that-nobody-has")).is_empty());
        assert!(names_in(crate::process::top()).contains(&"Cargo.toml".to_owned()));
    }
}
