//! Runs prima.cpp's ring of two devices from a folder with a build of it: one process per device, over
//! loopback.
//!
//! The layer windows are set by options. prima.cpp's profiler reads the memory of a container from the
//! system's first process, not from the control group of its own process.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::{Child, Command};

/// Maximum time of one run: a hang guard.
const LIMIT: Duration = Duration::from_secs(600);
const PROMPT: &str = "Which of the harbours that the report names lies furthest to the north of all of them?";

/// A build of prima.cpp.
pub(super) struct Prima {
    program: PathBuf,
}

/// One run on two devices.
pub(super) struct Run<'a> {
    pub model: &'a Path,
    /// Layers per round on each device.
    pub windows: [usize; 2],
    /// Number of tokens that it writes; its own figure leaves out the first five.
    pub tokens: usize,
    /// The command-line words before the program, for each process.
    pub launchers: [Vec<OsString>; 2],
}

impl Prima {
    /// # Errors
    /// If the program is missing.
    pub(super) fn ready(folder: &Path) -> Result<Self> {
        let program = folder.join("llama-cli");
        if !program.is_file() {
            bail!("{} is not there: run `make llama-cli` in prima.cpp's folder", program.display());
        }
        Ok(Self { program: program.canonicalize().context("find prima.cpp's program")? })
    }

    /// Returns the milliseconds of a token that its head prints.
    ///
    /// # Errors
    /// If a process does not start, or the head fails, takes too long, or does not print the figure.
    pub(super) async fn token_ms(&self, run: &Run<'_>) -> Result<f64> {
        let ports = [free_pair()?, free_pair()?];
        let _worker = self.start(run, 1, ports)?;
        let head = self.start(run, 0, ports)?;
        let out = tokio::time::timeout(LIMIT, head.wait_with_output());
        let out = out.await.context("prima.cpp hangs")?.context("wait for prima.cpp")?;
        let text =
            [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).join("\n");
        let told = || {
            let last: Vec<&str> = text.lines().rev().take(5).collect();
            format!("prima.cpp ended with {} and said {last:?}", out.status)
        };
        if !out.status.success() {
            bail!(told());
        }
        printed_ms(&text).with_context(told)
    }

    fn start(&self, run: &Run<'_>, rank: usize, ports: [u16; 2]) -> Result<Child> {
        let mut words = run.launchers[rank].clone();
        words.push(self.program.clone().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("-m").arg(run.model);
        command.args(["--world", "2", "--rank", &rank.to_string(), "--master", "127.0.0.1"]);
        command.args(["--next", "127.0.0.1", "--prefetch", "-t", "1"]);
        command.args(["--data-port", &ports[0].to_string(), "--signal-port", &ports[1].to_string()]);
        if rank == 0 {
            let windows = run.windows.map(|layers| layers.to_string()).join(",");
            command.args(["-lw", &windows, "-c", "512", "-n", &run.tokens.to_string(), "-p", PROMPT]);
            command.args(["--temp", "0", "--ignore-eos"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        } else {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command.stdin(Stdio::null()).kill_on_drop(true).spawn().context("start prima.cpp")
    }
}

/// Reads the figure in the line `eval time`, which is not the line `prompt eval time`.
fn printed_ms(text: &str) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.contains("eval time") && !line.contains("prompt"))?;
    let (before, _) = line.split_once(" ms per token")?;
    before.rsplit(['(', ' ']).next()?.parse().ok()
}

/// Finds two free consecutive ports. prima.cpp adds the number of the device to the first port.
fn free_pair() -> Result<u16> {
    let bind = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    for _ in 0..100 {
        let first = bind(0).context("find a free port")?;
        let port = first.local_addr().context("find a free port")?.port();
        if port.checked_add(1).is_some_and(|next| bind(next).is_ok()) {
            return Ok(port);
        }
    }
    bail!("no two free ports in a row")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints_is_read() {
        let text = "llama_perf_context_print: prompt eval time =     100.00 ms /    18 tokens (    5.56 ms per token)\n\
                    llama_perf_context_print:        eval time =    1234.50 ms /     9 runs   (  137.17 ms per token,     7.29 tokens per second)\n\
                    llama_perf_context_print:       total time =    2000.00 ms /    27 tokens\n";
        assert_eq!(printed_ms(text), Some(137.17));
        assert_eq!(printed_ms("prompt eval time = 1 ms (  1.00 ms per token"), None);
        assert_eq!(printed_ms(""), None);
    }
}
