//! Programs that this one starts: how they are found, how they run, and that they end with it.
//!
//! Suites run in process groups of their own. A shell, the guard, is told of every program that starts and
//! ends, and reads that from a pipe. If this program ends first, by Ctrl-C or in any other way, the pipe
//! closes and the guard ends what is left. So no signal has to be handled here.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, Mutex, PoisonError},
};

use crate::outcome::{Outcome, Stop};

/// Reads `+ TARGET` and `- TARGET`; at the end of its input it ends the targets that are left, first
/// politely. A target is what `kill` takes: a process id, or a process group with a minus before it.
const GUARD: &str = r#"
targets=
while read -r sign target; do
  case $sign in
    +) targets="$targets $target" ;;
    -) rest=
       for one in $targets; do [ "$one" = "$target" ] || rest="$rest $one"; done
       targets=$rest ;;
  esac
done
[ -n "$targets" ] || exit 0
for one in $targets; do kill -s TERM -- "$one"; done
sleep 2
for one in $targets; do kill -s KILL -- "$one"; done
"#;

/// Which programs get the Ctrl-C of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The program gets it itself, as cargo and installers expect.
    Terminal,
    /// The program and all that it starts are a process group of their own, which the guard ends.
    Group,
}

/// The top folder of the checkout.
pub(crate) fn top() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// A program to start, without the variables that `cargo run` has set for this one.
///
/// Some build scripts run again if these variables change, and most of the project would be built again after
/// them.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_cargo_run) {
            command.env_remove(&name);
        }
    }
    command
}

fn is_of_cargo_run(variable: &str) -> bool {
    variable == "CARGO" || variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Whether a program of this name can be run, as `command -v` finds it.
pub(crate) fn is_installed(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| is_program(&folder.join(name)))
}

/// Whether this file can be run.
pub(crate) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(command: &mut Command, place: Place) -> Outcome<ExitStatus> {
    Watched::start(command, place)?.wait()
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started, or it fails: then its exit status is ours, and it has said why.
pub(crate) fn succeed(command: &mut Command) -> Outcome {
    ended_well(run(command, Place::Terminal)?)
}

/// Runs a program to its end and returns what it wrote to standard output.
///
/// # Errors
/// As of [`succeed`], or what it wrote is not UTF-8.
pub(crate) fn read(command: &mut Command) -> Outcome<String> {
    let mut watched = Watched::start(command.stdout(Stdio::piped()), Place::Terminal)?;
    let mut text = String::new();
    let taken = watched.child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut text));
    ended_well(watched.wait()?)?;
    match taken {
        Some(Err(err)) => Err(Stop::failed(format!("read what {} prints: {err}", shown(command)))),
        _ => Ok(text),
    }
}

/// Runs a program to its end without its words, and returns whether it succeeded.
pub(crate) fn is_fine(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    run(command, Place::Terminal).is_ok_and(|status| status.success())
}

/// Becomes another program. Returns only if that fails.
pub(crate) fn become_program(program: impl AsRef<OsStr>, arguments: &[OsString]) -> Stop {
    let mut command = command(program);
    let err = command.args(arguments).exec();
    Stop::failed(format!("start {}: {err}", shown(&command)))
}

fn shown(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// The same program with the same arguments and variables, which gives way to all others.
pub(crate) fn yielding(given: &Command) -> Command {
    let mut same = Command::new("nice");
    same.args(["-n", "19"]).arg(given.get_program()).args(given.get_args());
    for (name, value) in given.get_envs() {
        match value {
            Some(value) => same.env(name, value),
            None => same.env_remove(name),
        };
    }
    same
}

/// Whether a program ended well.
///
/// # Errors
/// It failed: its exit status becomes ours.
pub(crate) fn ended_well(status: ExitStatus) -> Outcome {
    if status.success() {
        return Ok(());
    }
    let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Err(Stop::silent(u8::try_from(status).unwrap_or(1)))
}

/// A program that the guard ends if this one ends before it.
struct Watched {
    child: Child,
    /// What `kill` takes.
    target: i64,
}

impl Watched {
    fn start(command: &mut Command, place: Place) -> Outcome<Self> {
        if place == Place::Group {
            command.process_group(0);
        }
        let started = command.spawn();
        let child = started.map_err(|err| Stop::failed(format!("start {}: {err}", shown(command))))?;
        let id = i64::from(child.id());
        let target = if place == Place::Group { -id } else { id };
        tell_guard('+', target);
        Ok(Self { child, target })
    }

    fn wait(mut self) -> Outcome<ExitStatus> {
        let ended = self.child.wait();
        tell_guard('-', self.target);
        ended.map_err(|err| Stop::failed(format!("wait for a program: {err}")))
    }
}

/// Tells the guard of a program that starts (`+`) or has ended (`-`).
fn tell_guard(sign: char, target: i64) {
    static STARTED: LazyLock<Mutex<Option<Child>>> = LazyLock::new(|| Mutex::new(start_guard().ok()));
    let mut guard = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pipe) = guard.as_mut().and_then(|guard| guard.stdin.as_mut()) {
        // Without a guard the programs run all the same.
        let _ = writeln!(pipe, "{sign} {target}");
    }
}

fn start_guard() -> io::Result<Child> {
    let mut shell = command("/bin/sh");
    shell.arg("-c").arg(GUARD).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // In a group of its own: Ctrl-C must not end it.
    shell.process_group(0).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_cargo_run_are_not_passed_on() {
        for variable in ["CARGO", "CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"] {
            assert!(is_of_cargo_run(variable), "{variable}");
        }
        for variable in ["CARGO_TARGET_DIR", "CARGO_INCREMENTAL", "CARGO_HOME", "PROPTEST_RNG_SEED"] {
            assert!(!is_of_cargo_run(variable), "{variable}");
        }
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(is_installed("sh"));
        assert!(!is_installed("a-program-that-nobody-has"));
    }

    #[test]
    fn the_status_of_a_program_is_passed_on() {
        let ended = |script: &str| succeed(command("/bin/sh").args(["-c", script]));
        assert!(ended("exit 0").is_ok());
        assert!(format!("{:?}", ended("exit 101")).contains("status: 101"));
        assert!(format!("{:?}", ended("kill -s KILL $$")).contains("status: 137"));
        assert_eq!(read(command("/bin/sh").args(["-c", "echo a; echo b"])).unwrap(), "a\nb\n");
    }

    #[test]
    fn a_yielding_program_is_the_same_and_has_the_lowest_priority() {
        let mut given = command("/bin/sh");
        given.args(["-c", "echo $0 $A ${HOME-none} $(nice)", "zero"]).env("A", "b c").env_remove("HOME");
        assert_eq!(read(&mut yielding(&given)).unwrap(), "zero b c none 19\n");
    }

    #[test]
    fn the_guard_ends_what_is_left() {
        let mut sleeps = command("sleep").arg("600").process_group(0).spawn().unwrap();
        let mut guard = start_guard().unwrap();
        let mut pipe = guard.stdin.take().unwrap();
        writeln!(pipe, "+ 1234567890\n+ -{}\n- 1234567890", sleeps.id()).unwrap();
        drop(pipe);
        assert_eq!(sleeps.wait().unwrap().signal(), Some(15));
        guard.wait().unwrap();
    }
}
