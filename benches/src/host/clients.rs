//! Clients of both programs, on loopback: starts a program, and reads several streamed answers at once.
//!
//! Each client is one thread that mostly waits. Always: an answer has all the tokens that were asked for;
//! else the measurement fails.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use baton_e2e::process::without_gpu;
use baton_pacing::refit::median;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::engine::http;
use crate::engine::server::{MODEL_NAME, baton_cloud};

/// How many tokens an answer has shown before another client comes later.
const UNDER_WAY: usize = 8;

/// A running program with an OpenAI chat API; killed when dropped.
pub(crate) struct Program {
    address: String,
    /// The name of its model, if requests must say it.
    model: Option<&'static str>,
    _child: Killed,
    /// Its settings, and its output, which stays open so that it can always write.
    _kept: Option<(TempDir, BufReader<ChildStdout>)>,
}

/// A process that ends when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    /// Starts `baton serve` without a cloud.
    pub(crate) fn device(program: &Path, model: &Path, options: &[String]) -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder for settings")?;
        let mut command = Command::new(program);
        without_gpu(&mut command);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud", "--mode", "device", "--config-dir"]);
        command.arg(folder.path()).arg("--model").arg(model).args(options);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = Killed(child.with_context(|| format!("start {}", program.display()))?);
        let mut output = BufReader::new(child.0.stdout.take().context("baton has no standard output")?);
        let address = listening(&mut output)?;
        Ok(Self { address, model: None, _child: child, _kept: Some((folder, output)) })
    }

    /// Starts `baton-cloud serve`.
    pub(crate) fn cloud(program: &Path, model: &Path, options: &[String]) -> Result<Self> {
        let name = ["--model-name", MODEL_NAME].map(str::to_owned);
        let (child, address) = baton_cloud(program, model, &[options, &name].concat())?;
        Ok(Self { address, model: Some(MODEL_NAME), _child: Killed(child), _kept: None })
    }

    /// Returns its address, without a scheme.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Reads the answers to all of `asks`, which begin at the same time.
    pub(crate) fn answers(&self, asks: &[Ask]) -> Result<Vec<Heard>> {
        self.read(asks, None)
    }

    /// As [`Self::answers`], and then to `late`, which begins once all others have shown some tokens. Its
    /// answer is the last one of the result.
    pub(super) fn answers_and_late(&self, asks: &[Ask], late: &Ask) -> Result<Vec<Heard>> {
        self.read(asks, Some(late))
    }

    fn read(&self, asks: &[Ask], late: Option<&Ask>) -> Result<Vec<Heard>> {
        std::thread::scope(|scope| {
            let (under_way, all_under_way) = mpsc::channel();
            let mut running: Vec<_> = asks
                .iter()
                .map(|ask| {
                    let under_way = under_way.clone();
                    scope.spawn(move || self.answer(ask, Some(under_way)))
                })
                .collect();
            drop(under_way);
            if let Some(late) = late {
                // Fewer come if a client fails; its error is the result then.
                let _ = all_under_way.iter().take(asks.len()).count();
                running.push(scope.spawn(move || self.answer(late, None)));
            }
            running.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
        })
    }

    /// Reads one answer; tells `under_way` once, when some tokens are there.
    fn answer(&self, ask: &Ask, mut under_way: Option<mpsc::Sender<()>>) -> Result<Heard> {
        let begun = Instant::now();
        let (mut times, mut text) = (Vec::with_capacity(ask.tokens), String::new());
        let (mut tokens, mut error) = (None, None);
        http::events(&self.address, "/v1/chat/completions", &ask.body(self.model), |event| {
            let piece = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
            if !piece.is_empty() {
                times.push(Instant::now());
                text.push_str(piece);
                if times.len() == UNDER_WAY
                    && let Some(sender) = under_way.take()
                {
                    // Nobody listens if no client comes later.
                    let _ = sender.send(());
                }
            }
            tokens = event["usage"]["completion_tokens"].as_u64().or(tokens);
            if event.get("error").is_some_and(|error| !error.is_null()) {
                error = Some(event.to_string());
            }
        })?;
        if let Some(error) = error {
            bail!("the answer broke off: {error}");
        }
        if tokens != Some(ask.tokens as u64) || times.len() < 2 {
            bail!("{tokens:?} tokens in {} parts, must be {}", times.len(), ask.tokens);
        }
        Ok(Heard { begun, times, text, tokens: ask.tokens })
    }
}

/// Reads the address that `baton serve` prints.
fn listening(output: &mut BufReader<ChildStdout>) -> Result<String> {
    let mut line = String::new();
    loop {
        line.clear();
        if output.read_line(&mut line).context("read the address of baton")? == 0 {
            bail!("baton ended before it listened; its message is above");
        }
        if let Some(address) = line.trim_end().strip_prefix("listening on http://") {
            return Ok(address.to_owned());
        }
    }
}

/// Returns the program `name` in `folder`, or beside the running one.
pub(crate) fn program(name: &str, folder: Option<&Path>) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the running program")?;
    let path = folder.map_or_else(|| own.with_file_name(name), |folder| folder.join(name));
    if !path.is_file() {
        bail!("{} is not there", path.display());
    }
    Ok(path)
}

/// What a client asks for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub prompt: String,
    /// Tokens of the answer.
    pub tokens: usize,
    pub temperature: f64,
    pub seed: u64,
}

impl Ask {
    fn body(&self, model: Option<&str>) -> Value {
        let mut body = json!({
            "messages": [{ "role": "user", "content": self.prompt }], "max_tokens": self.tokens,
            "temperature": self.temperature, "seed": self.seed, "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(model) = model {
            body["model"] = json!(model);
        }
        body
    }
}

/// An answer, as a client heard it.
#[derive(Debug)]
pub(crate) struct Heard {
    pub begun: Instant,
    /// When each part of the text came.
    pub times: Vec<Instant>,
    pub text: String,
    pub tokens: usize,
}

impl Heard {
    /// Returns the seconds to the first token.
    pub(super) fn first_s(&self) -> f64 {
        self.times[0].duration_since(self.begun).as_secs_f64()
    }

    /// Returns the longest time between two parts, the second of which came after `from`, in seconds.
    pub(super) fn longest_gap_s(&self, from: Instant) -> f64 {
        let gaps = self.times.windows(2).filter(|pair| pair[1] > from);
        gaps.map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default().as_secs_f64()
    }

    /// Returns the median time between two parts that came before `until`, in seconds.
    pub(super) fn step_s(&self, until: Instant) -> Option<f64> {
        let early = self.times.windows(2).filter(|pair| pair[1] <= until);
        median(early.map(|pair| pair[1].duration_since(pair[0]).as_secs_f64()))
    }

    pub(super) fn last(&self) -> Instant {
        self.times[self.times.len() - 1]
    }

    /// Returns how many tokens came after `from` and up to `until`. A part with several tokens counts as an
    /// equal share of the answer.
    fn tokens_in(&self, from: Instant, until: Instant) -> f64 {
        let parts = self.times.iter().filter(|time| **time > from && **time <= until).count();
        parts as f64 * self.tokens as f64 / self.times.len() as f64
    }
}

/// Up to when the tokens of answers at once count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The end of the first answer that ends: all are being written.
    FirstEnd,
    /// The end of all.
    LastEnd,
}

/// Returns the tokens per second of all answers, from the moment at which the last of them has its first
/// token. Returns `None` if there is no such time.
pub(crate) fn tokens_per_s(heard: &[Heard], until: Until) -> Option<f64> {
    let from = heard.iter().map(|heard| heard.times[0]).max()?;
    let ends = heard.iter().map(Heard::last);
    let until = match until {
        Until::FirstEnd => ends.min()?,
        Until::LastEnd => ends.max()?,
    };
    let seconds = until.checked_duration_since(from).filter(|time| *time > Duration::ZERO)?.as_secs_f64();
    Some(heard.iter().map(|heard| heard.tokens_in(from, until)).sum::<f64>() / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_what_came_while_all_were_written() {
        let begun = Instant::now();
        let at = |ms: &[u64]| Heard {
            begun,
            times: ms.iter().map(|ms| begun + Duration::from_millis(*ms)).collect(),
            text: String::new(),
            tokens: ms.len(),
        };
        // From 100 ms to 300 ms: two tokens of the first, four of the second.
        let both = [at(&[50, 100, 200, 300]), at(&[100, 150, 200, 250, 300, 400, 500])];
        assert_eq!(tokens_per_s(&both, Until::FirstEnd), Some(6.0 / 0.2));
        assert_eq!(tokens_per_s(&both, Until::LastEnd), Some(8.0 / 0.4));
        // Parts of two tokens.
        let pairs = [Heard { tokens: 8, ..at(&[50, 100, 200, 300]) }];
        assert_eq!(tokens_per_s(&pairs, Until::LastEnd), Some(6.0 / 0.25));
        assert_eq!(tokens_per_s(&[at(&[50])], Until::LastEnd), None);
        let later = begun + Duration::from_millis(260);
        assert!((both[0].first_s() - 0.05).abs() < 1e-9 && (both[0].longest_gap_s(begun) - 0.1).abs() < 1e-9);
        assert!((both[1].step_s(later).unwrap() - 0.05).abs() < 1e-9);
        assert!((both[1].longest_gap_s(later) - 0.1).abs() < 1e-9);
    }
}
