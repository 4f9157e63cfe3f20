//! Long-lived worker processes: each line is a request, and each answer is a line with a JSON object.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::machine::{self, Memory};

/// A worker that has loaded its model; killed when dropped.
pub(crate) struct Worker {
    /// Its name in tables.
    pub name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts the worker and waits until it is ready.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start the worker {name}"))?;
        let requests = child.stdin.take().context("the worker has no standard input")?;
        let answers = BufReader::new(child.stdout.take().context("the worker has no standard output")?);
        let mut worker = Self { name: name.to_owned(), child, requests, answers };
        worker.read()?;
        Ok(worker)
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Value> {
        writeln!(self.requests, "{request}").with_context(|| format!("ask {} to {request}", self.name))?;
        self.read().with_context(|| format!("{}: {request}", self.name))
    }

    /// Sends a request and returns the `seconds` of the answer.
    pub(crate) fn seconds(&mut self, request: &str) -> Result<f64> {
        self.number(request, "seconds")
    }

    /// Sends a request and returns the number `key` of the answer.
    pub(crate) fn number(&mut self, request: &str, key: &str) -> Result<f64> {
        let answer = self.ask(request)?;
        answer[key].as_f64().with_context(|| format!("{} answered {answer} to `{request}`", self.name))
    }

    /// Returns the memory of the process.
    pub(crate) fn memory(&self) -> Result<Memory> {
        machine::memory(self.child.id())
    }

    /// Returns the exit status or signal of a worker whose output has ended.
    fn how_it_ended(&mut self) -> String {
        self.child
            .wait()
            .map_or_else(|err| format!("its status cannot be read: {err}"), |status| status.to_string())
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("read an answer")?;
        if line.is_empty() {
            let how = self.how_it_ended();
            bail!("the worker {} ended ({how}); its message is above", self.name);
        }
        let answer: Value =
            serde_json::from_str(&line).with_context(|| format!("read the answer `{line}`"))?;
        match answer["error"].as_str() {
            Some(error) => bail!("the worker {} says: {error}", self.name),
            None => Ok(answer),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
