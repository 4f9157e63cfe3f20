//! The Debian package, by `dpkg-deb`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use super::{files_below, made, remove};
use crate::{
    outcome::{Outcome, out, say},
    process::{self, command, is_installed},
};

/// Makes `baton_VERSION_ARCHITECTURE.deb` of what an archive holds.
///
/// # Errors
/// A file cannot be copied, or `dpkg-deb` fails.
pub(super) fn package(version: &str, target: &str, root: &Path, folder: &Path) -> Outcome {
    if !is_installed("dpkg-deb") {
        say("skipped: dist: no Debian package without dpkg-deb");
        return Ok(());
    }
    let architecture = if target.starts_with("aarch64") { "arm64" } else { "amd64" };
    let tree = root.with_extension("deb-tree");
    remove(&tree)?;
    let mut bytes = 0;
    for name in files_below(root, Path::new(""))? {
        // The licence has its place in Debian's tree.
        let place = name.replace("share/doc/baton/LICENSE", "share/doc/baton/copyright");
        let (from, to) = (root.join(&name), tree.join("usr").join(place));
        if let Some(parent) = to.parent() {
            made(fs::create_dir_all(parent), "make", parent)?;
        }
        bytes += made(fs::copy(&from, &to), "copy", &from)?;
        if name.ends_with("baton.service") {
            let unit = made(fs::read_to_string(&to), "read", &to)?;
            made(fs::write(&to, unit.replace("%h/.local/bin/baton", "/usr/bin/baton")), "write", &to)?;
        }
    }
    let about = tree.join("DEBIAN");
    made(fs::create_dir_all(&about), "make", &about)?;
    made(fs::set_permissions(&about, fs::Permissions::from_mode(0o755)), "change", &about)?;
    let control = about.join("control");
    made(fs::write(&control, control_of(version, architecture, bytes, &needs(root))), "write", &control)?;
    let file = folder.join(format!("baton_{version}_{architecture}.deb"));
    let mut build = command("dpkg-deb");
    build.args(["--build", "--root-owner-group", "-Zxz"]).arg(&tree).arg(&file).env("SOURCE_DATE_EPOCH", "0");
    process::read(&mut build)?;
    out(format!("{}  {}", super::size_of(&file), file.display()));
    remove(&tree)
}

/// The newest version of glibc's symbols that the program asks for; the package depends on it.
fn needs(root: &Path) -> String {
    let program = fs::read(root.join("bin/baton")).unwrap_or_default();
    let text = String::from_utf8_lossy(&program);
    let versions = text.split("GLIBC_2.").skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    versions.max().map_or_else(|| "libc6".to_owned(), |minor| format!("libc6 (>= 2.{minor})"))
}

fn control_of(version: &str, architecture: &str, bytes: u64, needs: &str) -> String {
    format!(
        "Package: baton\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: Baton <baton@localhost>\n\
         Installed-Size: {}\nDepends: {needs}, libstdc++6, libgcc-s1\nSection: utils\nPriority: optional\n\
         Description: Language models on this device, with the help of a cloud\n \
         The cloud begins an answer about a long document, and this device finishes it.\n",
        bytes.div_ceil(1024)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_has_its_fields() {
        let control = control_of("0.1.0", "amd64", 2049, "libc6 (>= 2.36)");
        assert!(control.contains("\nInstalled-Size: 3\n"), "{control}");
        assert!(control.contains("\nDepends: libc6 (>= 2.36), libstdc++6, libgcc-s1\n"), "{control}");
        assert!(control.ends_with("finishes it.\n"), "{control}");
    }
}
