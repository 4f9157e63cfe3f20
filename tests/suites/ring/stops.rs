//! The demo and the bench of rings are told to stop: none of their processes or folders is left.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use baton_e2e::process::{Running, program};

/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

/// Returns the command lines of running processes that contain this folder.
fn processes(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let all = std::fs::read_dir("/proc").expect("list processes").filter_map(Result::ok);
    // A process that has just ended has none.
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&folder)).collect()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < HANG, "{what}: not after {HANG:?}");
        std::thread::sleep(POLL);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("list a folder");
    entries.map(|entry| entry.expect("list a folder").file_name().display().to_string()).collect()
}

/// Starts a program beside copies of the other programs, tells it to stop when `others` processes run, and
/// looks for what it left.
async fn check(name: &str, arguments: &[&str], others: usize, signal: &str, status: i32) {
    let own = program(name).expect("the program is built");
    let scratch = tempfile::tempdir_in(own.parent().expect("a folder")).expect("make a folder");
    let (programs, temporary) = (scratch.path().join("release"), scratch.path().join("temporary"));
    for folder in [&programs, &temporary] {
        std::fs::create_dir(folder).expect("make a folder");
    }
    for name in [name, "baton", "baton-cloud"] {
        let there = program(name).expect("the program is built");
        std::fs::hard_link(there, programs.join(name)).expect("link a program");
    }
    let mut command = tokio::process::Command::new(programs.join(name));
    command.args(arguments).env("TMPDIR", &temporary).stdin(Stdio::null());
    let mut child = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null())).expect("start it");
    wait_until("processes run", || {
        assert!(child.try_wait().expect("look at it").is_none(), "{name} has ended by itself");
        processes(scratch.path()).len() > others
    });
    let pid = child.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status().expect("run kill");
    assert!(sent.success(), "kill -s {signal} {pid}");
    let ended = tokio::time::timeout(HANG, child.wait()).await.expect("it ends").expect("a status");
    assert_eq!(ended.code(), Some(status), "{name} {arguments:?}, {signal}");
    wait_until("no process is left", || processes(scratch.path()).is_empty());
    assert_eq!(names(&temporary), [""; 0], "{name} {arguments:?}, {signal}");
    let made = scratch.path().join("ring");
    if made.is_dir() {
        // The bench keeps the model that it made.
        let kept = names(&made);
        assert!(kept.iter().all(|name| name == "plans.gguf"), "{kept:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_told_to_stop_leaves_nothing() {
    if !cfg!(target_os = "linux") {
        println!("skipped: ring: processes are counted in /proc");
        return;
    }
    check("baton-demo", &["ring"], 1, "INT", 130).await;
    check("baton-demo", &["ring"], 3, "TERM", 143).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_that_is_told_to_stop_leaves_nothing() {
    if !cfg!(target_os = "linux") {
        println!("skipped: ring: processes are counted in /proc");
        return;
    }
    check("baton-bench", &["ring", "--only", "plans", "--json"], 1, "TERM", 143).await;
    check("baton-bench", &["ring", "--only", "plans", "--json"], 3, "INT", 130).await;
}
