//! One run of suites: what each printed, and how many tests passed, failed and were skipped.
//!
//! A suite skips something by a line `skipped: SUITE: REASON`. Such lines are always shown and counted.

use std::{
    env,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use crate::{
    outcome::{Outcome, Stop, out},
    process::{self, Place},
};

const SEED: &str = "PROPTEST_RNG_SEED";

/// What a suite's program is told beside the names of tests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// Its tests run one after another: they start real processes.
    pub(crate) one_thread: bool,
    /// All that it prints is shown, also if no test fails.
    pub(crate) shows_all: bool,
}

/// Counts of the tests of a run.
#[derive(Debug)]
pub(crate) struct Run {
    /// One seed for all property tests, so that what a run found is found again.
    pub(crate) seed: String,
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Run {
    /// A run in which nothing has run yet. Its seed is `PROPTEST_RNG_SEED`, or 1.
    pub(crate) fn new() -> Self {
        let seed = env::var(SEED).ok().filter(|seed| !seed.is_empty());
        Self { seed: seed.unwrap_or_else(|| "1".to_owned()), passed: 0, failed: 0, skipped: 0 }
    }

    /// How many tests have run.
    pub(crate) fn tests(&self) -> usize {
        self.passed + self.failed
    }

    /// Runs a suite's program, shows what it skipped, and all that it printed if it failed. Returns what it
    /// printed.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn suite(&mut self, name: &str, command: &mut Command, manner: Manner) -> Outcome<String> {
        let begun = Instant::now();
        if !has_option(command, "--show-output") {
            command.arg("--show-output");
        }
        if manner.one_thread && !has_option(command, "--test-threads") {
            command.arg("--test-threads=1");
        }
        let (status, log) = logged(command.env(SEED, &self.seed))?;
        let told = Told::of(&log);
        if !status.success() || manner.shows_all {
            out(log.trim_end());
        } else {
            log.lines().filter(|line| is_skip(line)).for_each(out);
        }
        // A program that dies says no result.
        let failed = if status.success() { told.failed } else { told.failed.max(1) };
        self.count(name, Told { failed, ..told }, begun);
        Ok(log)
    }

    /// Prints and adds the counts of a suite.
    pub(crate) fn count(&mut self, name: &str, told: Told, begun: Instant) {
        let Told { passed, failed, skipped } = told;
        if passed + failed > 0 {
            let took_s = begun.elapsed().as_secs();
            let counts = format!("{passed:>4} passed {failed:>3} failed {skipped:>3} skipped");
            out(format!("{name:<22} {counts} {took_s:>5} s"));
        }
        self.passed += passed;
        self.failed += failed;
        self.skipped += skipped;
    }

    /// Says that something is not run here, and why.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        out(format!("skipped: {what}: {why}"));
        self.skipped += 1;
    }

    /// Counts a failure that no test has told; the reason has been printed.
    pub(crate) fn fail(&mut self) {
        self.failed += 1;
    }

    /// Adds what another run counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Prints the counts.
    ///
    /// # Errors
    /// Something failed.
    pub(crate) fn finish(&self) -> Outcome {
        out(format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped));
        if self.failed == 0 { Ok(()) } else { Err(Stop::silent(1)) }
    }
}

/// What a suite's program told of its tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Tests that passed.
    pub(crate) passed: usize,
    /// Tests that failed.
    pub(crate) failed: usize,
    /// Lines `skipped: …`.
    pub(crate) skipped: usize,
}

impl Told {
    /// Reads lines such as `test result: ok. 5 passed; 0 failed; 0 ignored; …`.
    fn of(log: &str) -> Self {
        let mut told = Self::default();
        for line in log.lines() {
            if line.starts_with("test result:") {
                told.passed += number(line, 3);
                told.failed += number(line, 5);
            }
            told.skipped += usize::from(is_skip(line));
        }
        told
    }
}

/// The number that is the word at a place of a line; 0 if there is none.
fn number(line: &str, word_idx: usize) -> usize {
    line.split_whitespace().nth(word_idx).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn has_option(command: &Command, option: &str) -> bool {
    command.get_args().any(|word| word.to_string_lossy().starts_with(option))
}

fn is_skip(line: &str) -> bool {
    line.starts_with("skipped: ")
}

/// Runs a program in a group of its own, without input, and returns what it wrote to standard output and
/// standard error.
///
/// # Errors
/// It cannot be started, or there is no place for what it writes.
pub(crate) fn logged(command: &mut Command) -> Outcome<(ExitStatus, String)> {
    let no_log = |err: io::Error| Stop::failed(format!("keep what a suite prints: {err}"));
    let mut log = nameless_file().map_err(no_log)?;
    command.stdin(Stdio::null());
    command.stdout(log.try_clone().map_err(no_log)?).stderr(log.try_clone().map_err(no_log)?);
    let status = process::run(command, Place::Group)?;
    let mut bytes = Vec::new();
    log.seek(SeekFrom::Start(0)).and_then(|_| log.read_to_end(&mut bytes)).map_err(no_log)?;
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}

/// A file that is gone when nobody has it open any more. A pipe would not do: what a suite leaves behind
/// keeps it open.
fn nameless_file() -> io::Result<File> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (own, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = env::temp_dir().join(format!("baton-suite-{own}-{count}.log"));
    // Of a process that had this number before, and was killed between the next two lines.
    let _ = fs::remove_file(&path);
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = process::command("/bin/sh");
        command.args(["-c", script, "suite"]);
        command
    }

    #[test]
    fn results_are_counted() {
        let log = "running 2 tests\nskipped: a: no b\n skipped: not at the start\n\
            test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s\n\
            test result: FAILED. 4 passed; 2 failed; 0 ignored\n";
        assert_eq!(Told::of(log), Told { passed: 16, failed: 2, skipped: 1 });
        assert_eq!(Told::of("test result:\n"), Told::default());
    }

    #[test]
    fn what_a_program_writes_is_kept_in_its_order() {
        let (status, log) = logged(&mut sh("echo one; echo two >&2; echo three; exit 3")).unwrap();
        assert_eq!((status.code(), log.as_str()), (Some(3), "one\ntwo\nthree\n"));
    }

    #[test]
    fn a_program_that_dies_is_one_failure() {
        let mut run = Run::new();
        run.suite("died", &mut sh("exit 101"), Manner::default()).unwrap();
        assert_eq!((run.tests(), run.failed), (1, 1));
        run.suite("well", &mut sh("echo 'test result: ok. 5 passed; 0 failed;'"), Manner::default()).unwrap();
        assert_eq!((run.tests(), run.failed), (6, 1));
    }

    #[test]
    fn options_are_given_once() {
        let mut run = Run { seed: "7".to_owned(), ..Run::new() };
        let manner = Manner { one_thread: true, shows_all: false };
        let script = r#"echo "$PROPTEST_RNG_SEED $*""#;
        assert_eq!(run.suite("a", &mut sh(script), manner).unwrap(), "7 --show-output --test-threads=1\n");
        let log = run.suite("a", sh(script).arg("--test-threads=2"), manner).unwrap();
        assert_eq!(log, "7 --test-threads=2 --show-output\n");
    }
}
