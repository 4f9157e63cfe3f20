//! Homebrew's formula: the archives' addresses and digests in `device/packaging/formula.rb`.

use std::{fs, path::Path};

use super::{Archive, PACKAGING, made};
use crate::outcome::Outcome;

/// What the formula asks before it takes an archive.
const SYSTEMS: &[(&str, &str)] = &[
    ("aarch64-apple-darwin", "OS.mac? && Hardware::CPU.arm?"),
    ("x86_64-apple-darwin", "OS.mac? && Hardware::CPU.intel?"),
    ("x86_64-unknown-linux-gnu", "OS.linux? && Hardware::CPU.intel?"),
    ("aarch64-unknown-linux-musl", "OS.linux? && Hardware::CPU.arm?"),
];

/// Writes the formula.
///
/// # Errors
/// It cannot be read or written.
pub(super) fn write(version: &str, archives: &[Archive], address: &str, folder: &Path) -> Outcome {
    let source = Path::new(PACKAGING).join("formula.rb");
    let text = made(fs::read_to_string(&source), "read", &source)?;
    let file = folder.join("baton.rb");
    made(fs::write(&file, filled(&text, version, archives, address)), "write", &file)
}

fn filled(text: &str, version: &str, archives: &[Archive], address: &str) -> String {
    let mut sources = String::new();
    for (target, question) in SYSTEMS {
        let Some(archive) = archives.iter().find(|archive| archive.target == *target) else { continue };
        sources.push_str(&format!(
            "\n  if {question}\n    url \"{address}/{}\"\n    sha256 \"{}\"\n  end\n",
            archive.name, archive.sha256
        ));
    }
    text.replace("@VERSION@", version).replace("@SOURCES@\n", &sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_names_the_archives_that_were_made() {
        let archive = |target: &str| Archive {
            target: target.to_owned(),
            name: format!("baton-1.2.3-{target}.tar.gz"),
            sha256: "a".repeat(64),
        };
        let archives = [archive("aarch64-apple-darwin"), archive("x86_64-unknown-linux-musl")];
        let text = fs::read_to_string(crate::process::top().join(PACKAGING).join("formula.rb")).unwrap();
        let filled = filled(&text, "1.2.3", &archives, "https://d.example");
        assert!(filled.contains("version \"1.2.3\""), "{filled}");
        assert!(
            filled.contains("url \"https://d.example/baton-1.2.3-aarch64-apple-darwin.tar.gz\""),
            "{filled}"
        );
        assert!(filled.contains(&"a".repeat(64)) && !filled.contains('@'), "{filled}");
        assert_eq!(filled.matches("url ").count(), 1, "{filled}");
    }
}
