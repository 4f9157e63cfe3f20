//! llama.cpp in a process of its own, as a reference for the engine: tokens, continuations and logits.
//!
//! The script `tests/clients/llama/reference.py` answers one line for each request. What always holds: the
//! process has ended when its handle is dropped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::clients::scripts;

/// The number format in which the reference keeps keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceKv {
    /// As it does by itself.
    F16,
    /// Floats.
    F32,
}

/// The running reference, with one model.
#[derive(Debug)]
pub struct Reference {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The file through which logits come.
    rows: PathBuf,
    _folder: tempfile::TempDir,
}

impl Reference {
    /// Starts the reference with the model at `path`; `programs` is the folder of Python's programs.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(programs: &Path, path: &Path, context: usize, kv: ReferenceKv) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let kv = if kv == ReferenceKv::F32 { "f32" } else { "f16" };
        let mut command = Command::new(programs.join("python"));
        command.arg(scripts().join("llama/reference.py")).arg(path);
        command.args([&context.to_string(), &threads.to_string(), kv]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start the reference")?;
        let asks = child.stdin.take().context("the reference has no input")?;
        let answers = BufReader::new(child.stdout.take().context("the reference has no output")?);
        let folder = tempfile::tempdir().context("make a folder")?;
        Ok(Self { child, asks, answers, rows: folder.path().join("rows.f32"), _folder: folder })
    }

    fn ask(&mut self, request: &Value) -> Result<Value> {
        writeln!(self.asks, "{request}").context("ask the reference")?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).context("read the reference's answer")? == 0 {
            bail!("the reference has ended; its last words are above");
        }
        serde_json::from_str(&line).context("understand the reference")
    }

    /// Returns the tokens of each text. With `special`, texts of control tokens become control tokens.
    ///
    /// # Errors
    /// The reference fails.
    pub fn tokenize(&mut self, texts: &[String], special: bool) -> Result<Vec<Vec<u32>>> {
        let answer = self.ask(&json!({ "tokenize": texts, "special": special, "bos": false }))?;
        serde_json::from_value(answer).context("understand the tokens")
    }

    /// Continues `ids` by `tokens` most probable tokens, or until a token ends the text.
    ///
    /// # Errors
    /// The reference fails.
    pub fn greedy(&mut self, ids: &[u32], tokens: usize) -> Result<Vec<u32>> {
        let answer = self.ask(&json!({ "greedy": ids, "tokens": tokens }))?;
        serde_json::from_value(answer).context("understand the continuation")
    }

    /// Returns the logits after each of `ids` from number `from` on, `[rows, vocabulary]`.
    ///
    /// # Errors
    /// The reference fails.
    pub fn logits(&mut self, ids: &[u32], from: usize) -> Result<Vec<f32>> {
        self.ask(&json!({ "logits": ids, "from": from, "file": self.rows }))?;
        let bytes = std::fs::read(&self.rows).context("read the logits")?;
        Ok(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
