//! A folder of models, and the program that pulls into it.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use baton_e2e::process::{Running, cpu_program};
use serde_json::Value;
use tokio::{io::AsyncReadExt, process::Command};

/// Longest time for a program to end or to get somewhere: a guard against hangs, not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// Time between two looks at a file.
const PERIOD: Duration = Duration::from_millis(1);

/// A folder of models.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The JSON objects that it printed.
    pub(crate) events: Vec<Value>,
    pub(crate) stderr: String,
}

impl Ended {
    /// Returns the last object that it printed.
    pub(crate) fn last(&self) -> &Value {
        self.events.last().unwrap_or(&Value::Null)
    }

    /// Returns the texts of its notes.
    pub(crate) fn notes(&self) -> String {
        let texts = self.events.iter().filter(|event| event["event"] == "note");
        texts.map(|event| event["text"].as_str().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    pub(crate) fn good(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        self
    }

    /// Checks that it failed with this kind of error, and that people were told the words.
    #[track_caller]
    pub(crate) fn failed(self, kind: &str, words: &[&str]) -> Self {
        assert_eq!(self.status.code(), Some(1), "{self:?}");
        assert_eq!(
            (&self.last()["event"], &self.last()["kind"]),
            (&"error".into(), &kind.into()),
            "{self:?}"
        );
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in: {}", self.stderr);
        }
        self
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("make a folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the folder of models.
    pub(crate) fn models(&self) -> PathBuf {
        self.path("models")
    }

    /// Returns the path of a file while it is downloaded.
    pub(crate) fn part(&self, name: &str, file: &str) -> PathBuf {
        self.models().join(".partial").join(name).join(format!("{file}.part"))
    }

    /// Makes a command of `baton` that knows this folder, and no setting of this machine.
    pub(crate) fn baton(&self, arguments: &[&str]) -> Command {
        let mut baton = Command::from(cpu_program("baton").expect("the program is built"));
        for setting in ["HF_TOKEN", "HF_ENDPOINT", "PIP_INDEX_URL", "BATON_MODEL", "BATON_CLOUD"] {
            baton.env_remove(setting);
        }
        baton.args(arguments).env("BATON_MODELS", self.models()).env("BATON_CONFIG_DIR", self.path("config"));
        baton.env("NO_PROXY", "127.0.0.1,localhost").stdin(Stdio::null());
        baton
    }

    /// Makes a command that pulls and prints JSON.
    pub(crate) fn pull(&self, source: &str, more: &[&str]) -> Command {
        self.baton(&[&["model", "pull", source, "--json"], more].concat())
    }

    /// Returns what `baton model` prints as JSON.
    pub(crate) async fn model(&self, arguments: &[&str]) -> Value {
        let ended = run(self.baton(&[&["model"], arguments, &["--json"]].concat())).await.good();
        ended.last().clone()
    }
}

/// Starts a program whose output is read by [`end`].
pub(crate) fn start(mut command: Command) -> Running {
    Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped())).expect("the program starts")
}

/// Reads a program's output to its end.
pub(crate) async fn end(mut child: Running) -> Ended {
    let (mut out, mut err) = (String::new(), String::new());
    let (mut stdout, mut stderr) =
        (child.stdout.take().expect("output"), child.stderr.take().expect("errors"));
    let read = async { tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err)) };
    let (out_read, err_read) = tokio::time::timeout(LIMIT, read).await.expect("the program ends in time");
    out_read.and(err_read).expect("its output is text");
    let status = child.wait().await.expect("it has a status");
    let events = serde_json::Deserializer::from_str(&out).into_iter().map_while(Result::ok).collect();
    let ended = Ended { status, events, stderr: err };
    forward_only(&ended.events);
    ended
}

/// Runs a program to its end.
pub(crate) async fn run(command: Command) -> Ended {
    end(start(command)).await
}

/// Checks that progress never runs backwards.
#[track_caller]
fn forward_only(events: &[Value]) {
    let done: Vec<u64> = events.iter().filter_map(|event| event["done"].as_u64()).collect();
    assert!(done.is_sorted(), "{done:?}");
    let of = events.iter().filter_map(|event| Some((event["done"].as_u64()?, event["of"].as_u64()?)));
    assert!(of.into_iter().all(|(done, of)| done <= of), "{events:?}");
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(PERIOD).await;
    }
}

/// Returns the length of a file; 0 if it is not there.
pub(crate) fn len(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.len())
}
