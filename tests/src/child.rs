//! Runs external programs to their end, with a time limit, and keeps their output in files.
//!
//! What always holds: a program that does not end in time is killed together with everything that it started.
//! The error names the program, the limit and the files with its output.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// Time between two looks at a running program.
const PERIOD: Duration = Duration::from_millis(20);

/// A program that has ended by itself.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// Runs a program for at most `limit`, a guard against hangs. Its output goes to `NAME.out` and `NAME.err` in
/// `folder` and stays there.
///
/// # Errors
/// Fails if it is not there, or it does not end in time.
pub fn run(command: &mut Command, name: &str, limit: Duration, folder: &Path) -> anyhow::Result<Ended> {
    run_until(command, name, limit, folder, |begun| begun.elapsed() > limit)
}

/// Like [`run`], but `over` decides when the limit has passed.
fn run_until(
    command: &mut Command,
    name: &str,
    limit: Duration,
    folder: &Path,
    over: impl Fn(Instant) -> bool,
) -> anyhow::Result<Ended> {
    std::fs::create_dir_all(folder).with_context(|| format!("make `{}`", folder.display()))?;
    let [out, err] = ["out", "err"].map(|end| folder.join(format!("{name}.{end}")));
    let program = command.get_program().to_string_lossy().into_owned();
    // A process group of its own, so that its children can be killed with it.
    command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&err)?).process_group(0);
    let mut child = command.spawn().with_context(|| format!("no {program}"))?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().with_context(|| format!("wait for {name}"))? {
            return Ok(Ended { status, stdout: words(&out), stderr: words(&err) });
        }
        if over(begun) {
            kill_group(&mut child);
            let said = last_line(&words(&err)).or_else(|| last_line(&words(&out)));
            bail!(
                "{name} did not end within {} s and was killed; its words are in `{}` and beside it, the last: {}",
                limit.as_secs(),
                out.display(),
                said.as_deref().unwrap_or("none")
            );
        }
        std::thread::sleep(PERIOD);
    }
}

/// Returns the last line that is not blank.
#[must_use]
pub fn last_line(text: &str) -> Option<String> {
    text.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned)
}

fn file(path: &PathBuf) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("make `{}`", path.display()))
}

fn words(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn kill_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    if let Err(err) = Command::new("kill").args(["-KILL", "--", &group]).status() {
        eprintln!("the group of a program that hangs is not killed: {err}");
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn sh(script: &str, folder: &tempfile::TempDir) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(folder.path());
        command
    }

    #[test]
    fn what_it_says_is_read_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = sh("echo one; echo two >&2; exit 3", &folder);
        let ended = run(&mut command, "script", LIMIT, folder.path()).unwrap();
        assert_eq!(
            (ended.status.code(), ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(3), "one\n", "two\n")
        );
        assert_eq!(std::fs::read_to_string(folder.path().join("script.out")).unwrap(), "one\n");
        let missing = run(&mut Command::new("no-such-program"), "x", LIMIT, folder.path());
        assert!(missing.unwrap_err().to_string().contains("no no-such-program"));
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let script = "sleep 1000 & echo $! >child; echo waiting; wait";
        let folder = tempfile::tempdir().unwrap();
        let (mut command, out) = (sh(script, &folder), folder.path().join("script.out"));
        // The limit passes as soon as the script waits, however long it took to get there.
        let waits = |_| words(&out) == "waiting\n";
        let ended = run_until(&mut command, "script", LIMIT, folder.path(), waits);
        let err = ended.unwrap_err().to_string();
        assert!(err.contains("script did not end within 60 s and was killed"), "{err}");
        assert!(err.ends_with("the last: waiting"), "{err}");
        let child = std::fs::read_to_string(folder.path().join("child")).unwrap();
        let gone = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            state.map_or(true, |state| state.contains(") Z "))
        };
        let begun = Instant::now();
        while !gone() {
            assert!(begun.elapsed() < Duration::from_secs(120), "{child} lives");
            std::thread::sleep(PERIOD);
        }
    }
}
