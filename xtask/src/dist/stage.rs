//! The files of an archive: where each is.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use super::{PACKAGING, made};
use crate::{
    outcome::{Outcome, Stop},
    process::{self, command},
};

/// Files that stand in the sources, and where they are in the archive.
const FILES: &[(&str, &str)] = &[
    ("README.md", "share/doc/baton/README.md"),
    ("CHANGELOG.md", "share/doc/baton/CHANGELOG.md"),
    ("LICENSE", "share/doc/baton/LICENSE"),
    ("docs/devices.md", "share/doc/baton/devices.md"),
    ("docs/api.md", "share/doc/baton/api.md"),
    ("device/packaging/baton.service", "share/systemd/user/baton.service"),
    ("device/packaging/baton.plist", "share/baton/baton.plist"),
    ("device/packaging/WINDOWS.md", "share/baton/WINDOWS.md"),
    ("device/packaging/termux.sh", "share/baton/termux.sh"),
];

/// Shells, and where each looks for its completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/baton"),
    ("zsh", "share/zsh/site-functions/_baton"),
    ("fish", "share/fish/vendor_completions.d/baton.fish"),
];

/// Puts everything but the list of parts below `root`. `speaker` is the program that runs here, and writes
/// its own manual pages and completions.
///
/// # Errors
/// A file cannot be copied, or the program does not do what it is asked.
pub(super) fn lay_out(root: &Path, program: &Path, speaker: &Path) -> Outcome {
    let name = if program.extension().is_some_and(|end| end == "exe") { "baton.exe" } else { "baton" };
    place(program, &root.join("bin").join(name), 0o755)?;
    for (from, to) in FILES {
        let mode = if to.ends_with(".sh") { 0o755 } else { 0o644 };
        place(Path::new(from), &root.join(to), mode)?;
    }
    debug_assert!(FILES.iter().any(|(from, _)| from.starts_with(PACKAGING)));
    for (shell, to) in COMPLETIONS {
        let script = process::read(command(speaker).args(["completions", shell]))?;
        if script.is_empty() {
            return Err(Stop::failed(format!("{} has no completions for {shell}", speaker.display())));
        }
        write(&root.join(to), script.as_bytes())?;
    }
    let pages = root.join("share/man/man1");
    process::read(command(speaker).args(["man", "--dir"]).arg(&pages)).map(|_| ())
}

fn place(from: &Path, to: &Path, mode: u32) -> Outcome {
    let bytes = made(fs::read(from), "read", from)?;
    write(to, &bytes)?;
    made(fs::set_permissions(to, fs::Permissions::from_mode(mode)), "change", to)
}

fn write(to: &Path, bytes: &[u8]) -> Outcome {
    if let Some(folder) = to.parent() {
        made(fs::create_dir_all(folder), "make", folder)?;
    }
    made(fs::write(to, bytes), "write", to)
}
