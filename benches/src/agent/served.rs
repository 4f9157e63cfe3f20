//! A running `baton serve`, with its own settings, and what is seen of it from outside.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use baton_e2e::process::program;
use serde_json::json;
use tempfile::TempDir;

use crate::engine::http;

/// The key that clients send.
pub(super) const KEY: &str = "key-of-the-agent-bench";

/// The program; killed when dropped.
pub(super) struct Served {
    child: Child,
    address: String,
    /// From its start until it listened.
    pub(super) ready: Duration,
    settings: Option<TempDir>,
    _output: BufReader<ChildStdout>,
}

impl Served {
    /// Starts it without a cloud, and waits until it listens.
    pub(super) fn start(model: &Path, options: &[&str], settings: TempDir) -> Result<Self> {
        Self::start_by(model, &[&["--no-cloud"], options].concat(), settings)
    }

    /// As [`Self::start`]; `options` say which cloud there is.
    pub(super) fn start_by(model: &Path, options: &[&str], settings: TempDir) -> Result<Self> {
        let mut command = Command::new(program("baton")?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config-dir"]).arg(settings.path());
        command.arg("--model").arg(model).args(options).env("BATON_GPU", "off");
        // Each client sends a key or none; the bench's own requests send none.
        for name in ["BATON_PREFIX_MEMORY", "BATON_PREFIX_DIR", "BATON_KEEP_ALIVE", "BATON_KEY"] {
            command.env_remove(name);
        }
        let begun = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start baton")?;
        let mut output = BufReader::new(child.stdout.take().context("baton has no standard output")?);
        let mut line = String::new();
        output.read_line(&mut line).context("read the address of baton")?;
        let ready = begun.elapsed();
        let Some(address) = line.trim_end().strip_prefix("listening on http://").map(str::to_owned) else {
            let _ = child.kill();
            bail!("baton printed `{}` instead of its address", line.trim_end());
        };
        Ok(Self { child, address, ready, settings: Some(settings), _output: output })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Asks for an answer behind about so many words, and returns the milliseconds to its first token.
    pub(super) fn say(&mut self, words: usize, tokens: usize) -> Result<f64> {
        let body = json!({
            "messages": [{ "role": "user", "content": "river ".repeat(words) }], "max_tokens": tokens,
            "temperature": 0, "stream": true,
        });
        let (begun, mut first) = (Instant::now(), None);
        http::events(&self.address, "/v1/chat/completions", &body, |event| {
            if event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) {
                first.get_or_insert_with(|| begun.elapsed());
            }
        })?;
        Ok(first.unwrap_or_else(|| begun.elapsed()).as_secs_f64() * 1e3)
    }

    /// Returns its resident memory in MB.
    pub(super) fn memory_mb(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in its status")?;
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().context("read VmRSS")?;
        Ok(kilobytes * 1024.0 / 1e6)
    }

    /// Kills it as a crash does, and returns its settings.
    pub(super) fn kill(mut self) -> Result<TempDir> {
        self.child.kill().context("kill baton")?;
        self.child.wait().context("wait for baton")?;
        self.settings.take().context("its settings are there")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Errors are ignored, because it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of files in the folders of this folder.
pub(super) fn files(folder: &Path) -> usize {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let inside = |entry: std::fs::DirEntry| {
        entries(&entry.path()).filter(|file| file.path().extension().is_none()).count()
    };
    entries(folder).map(inside).sum()
}

/// Returns a model of SmolLM2 in this folder.
pub(super) fn find_gguf(folder: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let named = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        name.contains("smollm2") && name.ends_with(".gguf")
    };
    files.filter(named).min()
}

/// Copies a model, and gives the copy room for so many tokens.
pub(super) fn with_context(from: &Path, to: &Path, tokens: u32) -> Result<()> {
    let mut bytes = std::fs::read(from).with_context(|| format!("read {}", from.display()))?;
    let key = b"llama.context_length";
    let at =
        bytes.windows(key.len()).position(|window| window == key).context("no context_length")? + key.len();
    // The type of the value, and the value: an unsigned integer of 32 bits.
    let value = bytes.get_mut(at..at + 8).filter(|value| value[..4] == 4_u32.to_le_bytes());
    value.context("context_length has another type")?[4..].copy_from_slice(&tokens.to_le_bytes());
    std::fs::write(to, bytes).with_context(|| format!("write {}", to.display()))
}
