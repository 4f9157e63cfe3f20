//! `./x test loaded`: the suites while the machine has other work. What depends on a wall clock fails here
//! first.

use std::{
    collections::BTreeMap,
    hint::black_box,
    io::{self, Read as _},
    process::{Child, Stdio},
    thread,
    time::Instant,
};

use crate::{
    cargo::{self, Built},
    outcome::{Outcome, Stop, out, say},
    packages, process,
    run::Run,
    setup, suites, tools,
};

const RUNS: usize = 10;
/// What is left free of the memory that is available.
const FREE_KIB: u64 = 4 << 20;

/// Runs every suite, as often as the words say, beside a busy loop for each core and with little memory left.
///
/// # Errors
/// A suite failed, or the load cannot be made.
pub(crate) fn loaded(words: &[String]) -> Outcome {
    let runs = runs_of(words)?;
    if !cfg!(target_os = "linux") {
        return Err(Stop::usage("the load is made on Linux only"));
    }
    setup::everything()?;
    let built = cargo::everything(&packages::suites(&packages::read()?))?;
    for one in &built {
        tools::install_for(&one.suite.name()).into_iter().for_each(say);
    }
    let (mut memory, held_kib) = hold_memory()?;
    say(format!("{} busy loops, {} GiB held", keep_cores_busy(), held_kib >> 20));
    let mut run = Run::new();
    let done = repeat(&mut run, &built, runs);
    let _ = memory.kill();
    let _ = memory.wait();
    done?;
    run.finish()
}

/// How many times the suites run.
fn runs_of(words: &[String]) -> Outcome<usize> {
    match words {
        [] => Ok(RUNS),
        [one] => {
            let number = one.parse::<usize>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| Stop::usage(format!("how many times? `{one}` is no number from 1")))
        }
        [_, more, ..] => {
            Err(Stop::usage(format!("./x test loaded does not take `{more}` (./x test --help)")))
        }
    }
}

/// Runs the suites `runs` times, each time with another seed, and prints the slowest run of each.
fn repeat(run: &mut Run, built: &[Built], runs: usize) -> Outcome {
    let mut slowest_s: BTreeMap<String, u64> = BTreeMap::new();
    for number in 1..=runs {
        run.seed = number.to_string();
        out(format!("run {number} of {runs}, PROPTEST_RNG_SEED={number}"));
        for one in built {
            let begun = Instant::now();
            suites::run_one(run, one, &[])?;
            let slowest = slowest_s.entry(one.suite.name()).or_default();
            *slowest = begun.elapsed().as_secs().max(*slowest);
        }
    }
    out(format!("the slowest of {runs} runs:"));
    let mut slowest: Vec<(String, u64)> = slowest_s.into_iter().collect();
    slowest.sort_by_key(|(_, seconds)| std::cmp::Reverse(*seconds));
    for (name, seconds) in slowest {
        out(format!("{name:<22} {seconds:>5} s"));
    }
    Ok(())
}

/// Starts a loop that never waits for each core, and returns how many. The loops end with this program.
fn keep_cores_busy() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..cores {
        thread::spawn(never_wait);
    }
    cores
}

fn never_wait() {
    loop {
        black_box(());
    }
}

/// Starts a program that holds the memory, and returns it with the KiB that it holds. If memory runs out, the
/// system ends that program and not this one. `tail` keeps what it has read of a line until its input ends,
/// at the latest with this program.
fn hold_memory() -> Outcome<(Child, u64)> {
    let about = std::fs::read_to_string("/proc/meminfo");
    let about = about.map_err(|err| Stop::failed(format!("read /proc/meminfo: {err}")))?;
    let hold_kib = available_kib(&about).saturating_sub(FREE_KIB);
    let started = process::command("tail").stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut tail = started.map_err(|err| Stop::failed(format!("start tail: {err}")))?;
    if let Err(err) = fill(&mut tail, hold_kib << 10) {
        let _ = tail.kill();
        let _ = tail.wait();
        return Err(Stop::failed(format!("hold {hold_kib} KiB of memory: {err}")));
    }
    Ok((tail, hold_kib))
}

/// Writes zeros to a program, and leaves its input open.
fn fill(program: &mut Child, bytes: u64) -> io::Result<()> {
    let Some(pipe) = program.stdin.as_mut() else { return Ok(()) };
    io::copy(&mut io::repeat(0).take(bytes), pipe).map(drop)
}

/// `MemAvailable` of `/proc/meminfo`; 0 if it is not there.
fn available_kib(about: &str) -> u64 {
    let line = about.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_runs_is_read() {
        let runs = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            runs_of(&words).ok()
        };
        assert_eq!(runs(&[]), Some(10));
        assert_eq!(runs(&["3"]), Some(3));
        for words in [&["0"][..], &["-1"], &["x"], &["3", "4"]] {
            assert_eq!(runs(words), None, "{words:?}");
        }
    }

    #[test]
    fn available_memory_is_read() {
        let about = "MemTotal:       32780676 kB\nMemAvailable:   30456128 kB\nBuffers: 1 kB\n";
        assert_eq!(available_kib(about), 30_456_128);
        assert_eq!(available_kib(""), 0);
    }
}
