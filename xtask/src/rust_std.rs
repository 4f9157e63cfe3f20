//! Rust's standard library for targets other than this machine's: whether it is here, and how it comes.

use std::path::Path;

use crate::{
    outcome::say,
    process::{command, is_fine, is_installed},
    setup::names_in,
};

/// The compiler in use.
pub(crate) const IN_USE: &str = "rustc";

/// Whether the compiler in use has the standard library of a target, for which rustup may fetch it.
pub(crate) fn is_here(target: &str) -> bool {
    has(IN_USE, target) || (fetched(target) && has(IN_USE, target))
}

/// Whether this compiler has the standard library of a target.
pub(crate) fn has(rustc: &str, target: &str) -> bool {
    let named = command(rustc).args(["--print", "target-libdir", "--target", target]).output();
    named.is_ok_and(|named| {
        let folder = String::from_utf8_lossy(&named.stdout).trim_end().to_owned();
        let is_std = |name: &String| name.starts_with("libstd-") && name.ends_with(".rlib");
        !folder.is_empty() && names_in(Path::new(&folder)).iter().any(is_std)
    })
}

fn fetched(target: &str) -> bool {
    if !is_installed("rustup") {
        return false;
    }
    say(format!("installing Rust's standard library for {target}"));
    is_fine(command("timeout").args(["120", "rustup", "target", "add", target]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_of_this_machine_is_here_and_that_of_no_machine_is_not() {
        let own = command(IN_USE).arg("-vV").output().unwrap();
        let own = String::from_utf8(own.stdout).unwrap();
        let host = own.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        assert!(has(IN_USE, host), "{host}");
        assert!(!has(IN_USE, "no-such-machine"));
    }
}
