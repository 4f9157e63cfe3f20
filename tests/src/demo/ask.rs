//! Runs `baton ask` as a process and reads its report.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use baton_protocol::SlotTiming;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::process::cpu_program;

/// The part of the report of `baton ask --report` that the demo uses.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The answer as it was shown.
    pub answer: String,
    /// The notes of the device.
    pub notes: Vec<serde_json::Value>,
    /// Time from the request to the first shown token.
    pub ttft_user_ms: Option<f64>,
    /// Time from the request until the device has its own KV cache; absent if the device wrote nothing.
    pub ttft_device_ms: Option<f64>,
    /// Largest gap between two shown tokens.
    pub gap_max_ms: f64,
    /// 99th percentile of the gaps.
    pub gap_p99_ms: f64,
    /// Largest gap that the scene tolerates.
    pub tau_ms: f64,
    /// Time from the request to the last shown token.
    pub total_ms: Option<f64>,
    /// Tokens of the answer that the cloud wrote.
    pub tokens_from_cloud: usize,
    /// Tokens of the answer that the device wrote.
    pub tokens_from_device: usize,
    /// L, as the cloud announced it.
    pub assist_tokens: Option<usize>,
    /// Prompt tokens before refinement.
    pub prompt_tokens: Option<usize>,
    /// Prompt tokens that the device prefilled.
    pub prompt_tokens_refined: Option<usize>,
    /// Share of the content tokens that was kept.
    pub refined_ratio: Option<f64>,
    /// Bytes of the mask before base64.
    pub mask_bytes: Option<usize>,
    /// The times that the cloud reported.
    pub cloud_timing: Option<CloudTiming>,
    /// What became of the cloud's keys and values; null in a scene that offers none.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub kv: serde_json::Value,
    /// The choice of who answers; null if the mode was given.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub route: serde_json::Value,
}

/// The part of the cloud's times that the demo shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CloudTiming {
    /// How long the request waited and held a slot; absent if the stream was cut before its end.
    pub slot: Option<SlotTiming>,
}

impl Report {
    /// Returns how long the request held a slot of the cloud.
    #[must_use]
    pub fn cloud_slot_ms(&self) -> Option<f64> {
        Some(self.cloud_timing.as_ref()?.slot?.slot_ms)
    }
}

/// What to ask, and with which files and options.
#[derive(Debug)]
pub struct Ask<'a> {
    /// The file with the document.
    pub document: &'a Path,
    /// The question.
    pub question: &'a str,
    /// The device's model.
    pub model: &'a Path,
    /// A folder for the run's configuration and report.
    pub scratch: &'a Path,
    /// More options of `baton ask`.
    pub options: Vec<OsString>,
    /// Whether the answer is printed on this program's standard output as it comes.
    pub live: bool,
}

impl Ask<'_> {
    /// Runs the program to its end.
    ///
    /// # Errors
    /// Fails if the program is not built, fails, or writes no report.
    pub async fn run(&self) -> anyhow::Result<Report> {
        let report: PathBuf = self.scratch.join("report.json");
        let stdout = if self.live { Stdio::inherit() } else { Stdio::null() };
        // If nothing is sent, no consent is needed.
        let sends = !self.options.iter().any(|option| option == "--no-cloud");
        let status = Command::from(cpu_program("baton")?)
            .args([OsStr::new("ask"), self.document.as_os_str(), OsStr::new(self.question)])
            .args([OsStr::new("--model"), self.model.as_os_str(), OsStr::new("--report"), report.as_os_str()])
            .args([OsStr::new("--config-dir"), self.scratch.as_os_str()])
            .args(sends.then_some("--yes"))
            .args(&self.options)
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(if self.live { Stdio::inherit() } else { Stdio::piped() })
            .kill_on_drop(true)
            .spawn()
            .context("start baton")?
            .wait_with_output()
            .await
            .context("wait for baton")?;
        if !status.status.success() {
            // Its messages to the user were already shown.
            let said = String::from_utf8_lossy(&status.stderr);
            let why = if said.trim().is_empty() { String::new() } else { format!(": {}", said.trim()) };
            bail!("baton ask failed ({}){why}", status.status);
        }
        let text = tokio::fs::read_to_string(&report).await.context("read the report of baton ask")?;
        serde_json::from_str(&text).context("understand the report of baton ask")
    }
}
