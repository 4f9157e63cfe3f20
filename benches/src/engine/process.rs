//! Long-lived worker processes: one request a line, one JSON object a line in answer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::machine::{self, Memory};

/// A worker that has loaded its model; killed when dropped.
pub struct Worker {
    /// What tables call it.
    pub name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts the program and waits until it is ready.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
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

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &str) -> Result<Value> {
        writeln!(self.requests, "{request}").with_context(|| format!("ask {} to {request}", self.name))?;
        self.read().with_context(|| format!("{}: {request}", self.name))
    }

    /// Asks for something that takes a time, in seconds.
    pub fn seconds(&mut self, request: &str) -> Result<f64> {
        self.number(request, "seconds")
    }

    /// Asks for the number `key`.
    pub fn number(&mut self, request: &str, key: &str) -> Result<f64> {
        let answer = self.ask(request)?;
        answer[key].as_f64().with_context(|| format!("{} answered {answer} to `{request}`", self.name))
    }

    /// What the process holds now.
    pub fn memory(&self) -> Result<Memory> {
        machine::memory(self.child.id())
    }

    /// The exit status or signal of a worker whose output has ended.
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
        // It may have ended already, and nothing is left to be done about either.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
