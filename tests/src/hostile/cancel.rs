//! Devices that end in the middle of an answer, in every phase of its cloud and by every way out: what is
//! left in the cloud, by its own counters.
//!
//! The programs are real, their speeds are emulated. An answer that nobody ends would keep its cloud busy for
//! longer than any check waits. Always: a point is the same for the same seed, and a cloud is idle before and
//! after it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use baton_engine::Model;
use baton_random::SplitMix64;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::streams::{figures_when, send};
use crate::demo::emulation::{PHONE, Speed};
use crate::process::{AgentProcess, CloudProcess, Running, cpu_program, models_folder};
use crate::proxy::{Cut, Proxy};
use crate::setting::Setting;

/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);
/// Time between two looks at what the device has sent, and at what the cloud keeps.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time from the beginning of a phase to the device's end, in milliseconds.
const WITHIN_MS: u64 = 400;
/// A guard against a cloud that stays busy. It is longer than a cloud waits for a reader, and shorter than
/// what the emulated machines would take for a prompt or an answer.
const FREE_WITHIN: Duration = Duration::from_secs(25);
/// A machine that would take a minute for a prompt, or half a minute for an answer.
const NEVER_READS: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 100.0, decode_ms: 20.0 };
const NEVER_ENDS: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 0.0, decode_ms: 1_600.0 };
/// A machine that writes for half a minute before a waiting answer gets its slot. It looks at its queue
/// between two passes.
const KEEPS_ITS_SLOT: Speed = Speed { decode_ms: 500.0, ..NEVER_ENDS };
/// A device that takes as long for both.
const NEVER: Speed = Speed { decode_ms: NEVER_ENDS.decode_ms, ..NEVER_READS };
/// A cloud that a device with its keys and values does not find silent, and that writes for seconds.
const WRITES_LONG: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 0.0, decode_ms: 40.0 };
/// A cloud whose passes take long enough to end a device between them.
const CHECKS: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 0.0, decode_ms: 40.0 };

/// What the cloud does for the answer when its device ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It has no slot for it yet.
    Queue,
    /// It computes its prompt.
    Prefill,
    /// It writes its first tokens.
    Decode,
    /// It checks the device's drafts.
    Verify,
    /// It offers the prompt's keys and values, and writes.
    Handoff,
}

/// How a device ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Ctrl-C in `baton ask`.
    Interrupt,
    /// SIGTERM to `baton ask`.
    Terminate,
    /// `kill -9` of `baton ask`.
    Kill,
    /// A client of `baton serve` closes its stream, as the page's Stop does.
    CloseStream,
    /// A client of `baton serve` leaves before a reply that is not streamed.
    CloseWhole,
    /// SIGTERM to `baton serve` while it streams.
    TerminateServe,
    /// The device is first, and finishes the answer alone.
    FinishFirst,
}

impl Phase {
    /// All phases.
    pub const ALL: [Phase; 5] = [Phase::Queue, Phase::Prefill, Phase::Decode, Phase::Verify, Phase::Handoff];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Queue => "queue",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Verify => "verify",
            Phase::Handoff => "handoff",
        }
    }

    fn cloud(self) -> Speed {
        match self {
            Phase::Prefill => NEVER_READS,
            // Behind prompts that are never read a request would be refused, and not wait.
            Phase::Queue => KEEPS_ITS_SLOT,
            Phase::Decode => NEVER_ENDS,
            Phase::Handoff => WRITES_LONG,
            Phase::Verify => CHECKS,
        }
    }

    /// Returns the options of its scene.
    fn scene(self) -> &'static [&'static str] {
        match self {
            Phase::Queue | Phase::Prefill | Phase::Decode => &[],
            Phase::Verify => &["--verify", "on"],
            Phase::Handoff => &["--kv", "f16", "--assist-tokens", "160", "--assist-max", "160"],
        }
    }

    /// Returns whether the figures say that an answer is in this phase. `ended_before` requests had ended
    /// before it.
    fn is_reached(self, figures: &Value, ended_before: u64) -> bool {
        match self {
            Phase::Queue => count(figures, "queue_len") == 1,
            Phase::Prefill => {
                count(figures, "slots_used") == 1 && count(figures, "prefill_backlog_tokens") > 0
            }
            Phase::Decode | Phase::Handoff => {
                count(figures, "slots_used") == 1 && count(figures, "prefill_backlog_tokens") == 0
            }
            // The first part has ended, and one check.
            Phase::Verify => count(figures, "requests_ended_total") >= ended_before + 2,
        }
    }
}

impl Exit {
    /// All ways out.
    pub const ALL: [Exit; 7] = [
        Exit::Interrupt,
        Exit::CloseStream,
        Exit::Terminate,
        Exit::TerminateServe,
        Exit::CloseWhole,
        Exit::Kill,
        Exit::FinishFirst,
    ];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Exit::Interrupt => "Ctrl-C",
            Exit::Terminate => "SIGTERM",
            Exit::Kill => "kill -9",
            Exit::CloseStream => "stream closed",
            Exit::CloseWhole => "client left",
            Exit::TerminateServe => "SIGTERM of serve",
            Exit::FinishFirst => "device first",
        }
    }

    /// Returns whether the device can tell its cloud.
    #[must_use]
    pub fn is_told(self) -> bool {
        self != Exit::Kill
    }

    fn serves(self) -> bool {
        matches!(self, Exit::CloseStream | Exit::CloseWhole | Exit::TerminateServe)
    }
}

/// One end of a device.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// The cloud's phase.
    pub phase: Phase,
    /// How the device ends.
    pub exit: Exit,
    /// How long after the phase has begun.
    pub after: Duration,
}

/// Returns so many points. The first five are of all phases, the first seven of all ways out.
#[must_use]
pub fn points(seed: u64, number: usize) -> Vec<Point> {
    let mut random = SplitMix64::new(seed);
    let point = |at: usize| {
        let exit = Exit::ALL[at % Exit::ALL.len()];
        let phase = match exit {
            // A cloud that has begun to write is not too slow.
            Exit::FinishFirst => Phase::ALL[at / Exit::ALL.len() % 2],
            // The part of a handoff ends by itself while the server drains.
            Exit::TerminateServe => Phase::ALL[(at / Exit::ALL.len() + 3) % 4],
            _ => Phase::ALL[at % Phase::ALL.len()],
        };
        Point { phase, exit, after: Duration::from_millis(random.next_u64() % WITHIN_MS) }
    };
    (0..number).map(point).collect()
}

/// What was left of an answer after its device's end.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    /// How long the cloud was busy with it.
    pub busy: Duration,
    /// Whether the device has ended its request in the cloud.
    pub was_told: bool,
    /// Whether the cloud keeps nothing of the answer for its device. It is not known if the device has told
    /// no id.
    pub is_forgotten: bool,
}

/// A cloud for one phase, with one slot.
#[derive(Debug)]
pub struct Stage {
    phase: Phase,
    cloud: CloudProcess,
    server: SocketAddr,
    setting: Setting,
    /// Documents that were asked about. Each is another one, so that the cloud has no prefix of it.
    documents: AtomicUsize,
}

impl Stage {
    /// Starts the cloud of this phase.
    ///
    /// # Errors
    /// Fails if a program is not built, or does not start.
    pub async fn start(phase: Phase) -> anyhow::Result<Stage> {
        let model = Model::open(&models_folder().join("demo-cloud.gguf")).context("open the demo model")?;
        let setting = Setting::new(&model, 11, 600)?;
        let database = setting.scratch.path().join("cloud.db").display().to_string();
        if !phase.scene().is_empty() {
            let mut set = Command::from(cpu_program("baton-cloud")?);
            set.args(["scenes", "set", "doc-qa", "--database", &database]).args(phase.scene());
            let set = set.output().await.context("run baton-cloud scenes set")?;
            ensure!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
        }
        let mut options = phase.cloud().options();
        options.extend(["--slots=1", "--threads=1"].map(OsString::from));
        let cloud =
            CloudProcess::start_on(&models_folder().join("demo-cloud.gguf"), &database, &options).await?;
        let server = cloud.address().parse().context("read the service's address")?;
        Ok(Stage { phase, cloud, server, setting, documents: AtomicUsize::new(0) })
    }

    /// Lets a device ask, ends it at this point, and waits until the cloud is free.
    ///
    /// # Errors
    /// Fails if the phase is not reached, or the cloud stays busy.
    pub async fn run(&self, point: Point) -> anyhow::Result<Left> {
        ensure!(point.phase == self.phase, "{point:?} is of another stage");
        let idle = figures_when(self.server, |now| is_free(now, 0)).await?;
        let before = count(&idle, "requests_ended_total");
        let blocker = match self.phase {
            Phase::Queue => Some(self.block().await?),
            _ => None,
        };
        let slots = u64::from(blocker.is_some());
        let proxy = Proxy::start(self.cloud.address(), Cut::Never).await?;
        let folder = tempfile::tempdir().context("make a folder")?;
        let mut device = self.device(point.exit, &proxy.url(), folder.path()).await?;
        if point.exit != Exit::FinishFirst {
            let reached = |now: &Value| self.phase.is_reached(now, before);
            figures_when(self.server, reached).await.with_context(|| format!("{point:?} is not reached"))?;
            tokio::time::sleep(point.after).await;
        }
        device.end(point.exit).await.with_context(|| format!("{point:?}"))?;
        let ended = Instant::now();
        let told = match point.exit.is_told() {
            true => told_id(&proxy).await.with_context(|| format!("{point:?}"))?,
            false => ended_request(&proxy.count().sent()),
        };
        let is_idle = |now: &Value| is_free(now, slots);
        let free = tokio::time::timeout(FREE_WITHIN, figures_when(self.server, is_idle)).await;
        free.with_context(|| format!("the cloud is busy after {point:?}"))??;
        let busy = ended.elapsed();
        let is_forgotten = match told.as_deref() {
            Some(id) => self.is_forgotten(id).await?,
            None => false,
        };
        drop(blocker);
        figures_when(self.server, |now| is_free(now, 0)).await?;
        Ok(Left { busy, was_told: told.is_some(), is_forgotten })
    }

    /// Takes the only slot until the result is dropped.
    async fn block(&self) -> anyhow::Result<TcpStream> {
        let text = "The harbour keeps a list of all ships. ".repeat(20);
        let body = json!({
            "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "doc-qa-full", "model": "default",
            "segments": [{ "role": "user", "text": text, "refine": false }], "assist_tokens": 64,
        });
        let blocker = send(self.server, "POST /v1/assist", None, &body.to_string()).await?;
        figures_when(self.server, |now| count(now, "slots_used") == 1).await?;
        Ok(blocker)
    }

    /// Waits until the cloud keeps nothing of an answer; returns whether that comes to pass.
    async fn is_forgotten(&self, id: &str) -> anyhow::Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < HANG {
            if self.kept_status(id).await? == 410 {
                return Ok(true);
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(false)
    }

    /// Asks for what the cloud may keep of an answer; returns the status.
    async fn kept_status(&self, id: &str) -> anyhow::Result<u16> {
        let client = crate::http::client();
        let url = format!("http://{}/v1/assist/{id}", self.server);
        let sent = match self.phase {
            Phase::Verify => {
                let draft = json!({ "from": 1, "digest": "0".repeat(64), "draft": [], "at_least": 1 });
                client.post(format!("{url}/verify")).json(&draft).send().await
            }
            Phase::Handoff => client.get(format!("{url}/kv")).send().await,
            Phase::Queue | Phase::Prefill | Phase::Decode => client.get(url).send().await,
        };
        Ok(sent.context("ask the cloud")?.status().as_u16())
    }

    /// Starts the device, which asks at once.
    async fn device(&self, exit: Exit, cloud: &str, folder: &Path) -> anyhow::Result<Device> {
        let model = if self.phase == Phase::Handoff { "demo-cloud.gguf" } else { "demo-device.gguf" };
        // Only these go on without the cloud.
        let speed = match (self.phase, exit) {
            (Phase::Verify, _) | (_, Exit::FinishFirst) => PHONE,
            _ => NEVER,
        };
        let mut options = speed.options();
        options.extend(["--cloud", cloud, "--yes", "--mode", "relay", "--model"].map(OsString::from));
        options.push(models_folder().join(model).into());
        options.extend([OsString::from("--config-dir"), folder.into()]);
        let mut command = Command::from(cpu_program("baton")?);
        command.env("RUST_LOG", "error").stdin(Stdio::null()).stderr(Stdio::null());
        if exit.serves() {
            command.args(["serve", "--listen", "127.0.0.1:0", "--scene", "doc-qa"]).args(options);
            let agent = AgentProcess::start(&mut command).await?;
            let body = self.chat(exit != Exit::CloseWhole)?;
            let url = format!("{}/v1/chat/completions", agent.url());
            let client = tokio::spawn(async move {
                let sent = crate::http::client().post(url).json(&body).send().await;
                // The reply is read until the client is aborted.
                let _reply = sent?.bytes().await?;
                anyhow::Ok(())
            });
            return Ok(Device::Serve { agent, client });
        }
        let document = folder.join("document.txt");
        std::fs::write(&document, self.document()?).context("write the document")?;
        command.arg("ask").arg(document).arg(&self.setting.asked.question.text);
        command.args(["--json", "--max-tokens", "160"]).args(options);
        if self.phase != Phase::Handoff {
            command.args(["--assist-tokens", "20"]);
        }
        Ok(Device::Ask(Running::start(command.stdout(Stdio::piped()))?))
    }

    /// Returns the text of a new document.
    fn document(&self) -> anyhow::Result<String> {
        let text = std::fs::read_to_string(&self.setting.document).context("read the document")?;
        let number = self.documents.fetch_add(1, Ordering::Relaxed);
        Ok(format!("This is copy {number}.\n\n{text}"))
    }

    /// Returns a chat request with the document and its question.
    fn chat(&self, streams: bool) -> anyhow::Result<Value> {
        let document = self.document()?;
        let question = &self.setting.asked.question.text;
        let text = format!("{document}\n\nQuestion: {question}");
        Ok(json!({
            "messages": [{ "role": "user", "content": text }], "max_tokens": 160, "temperature": 0, "stream": streams,
        }))
    }
}

/// A device that has asked.
enum Device {
    Ask(Running),
    Serve { agent: AgentProcess, client: tokio::task::JoinHandle<anyhow::Result<()>> },
}

impl Device {
    /// Ends it, and waits for its end.
    async fn end(&mut self, exit: Exit) -> anyhow::Result<()> {
        match (self, exit) {
            (Device::Ask(program), Exit::FinishFirst) => {
                let mut report = String::new();
                let mut out = program.stdout.take().context("the program has an output")?;
                let read = tokio::io::AsyncReadExt::read_to_string(&mut out, &mut report);
                tokio::time::timeout(HANG, read).await.context("the device does not finish")??;
                ensure!(report.contains("cloud_too_slow"), "the device was not first: {report}");
                wait(program, Some(0)).await
            }
            (Device::Ask(program), Exit::Interrupt) => {
                signal(program.id(), "-INT").await?;
                wait(program, Some(130)).await
            }
            (Device::Ask(program), Exit::Terminate) => {
                signal(program.id(), "-TERM").await?;
                wait(program, Some(143)).await
            }
            (Device::Ask(program), Exit::Kill) => {
                signal(program.id(), "-KILL").await?;
                wait(program, None).await
            }
            (Device::Serve { client, .. }, Exit::CloseStream | Exit::CloseWhole) => {
                client.abort();
                let aborted = client.await;
                ensure!(aborted.is_err(), "the answer has ended before: {aborted:?}");
                Ok(())
            }
            (Device::Serve { agent, .. }, Exit::TerminateServe) => {
                signal(agent.pid().ok(), "-TERM").await?;
                let ended = agent.wait().await?;
                ensure!(ended.success(), "baton serve ended with {ended}");
                Ok(())
            }
            (_, exit) => bail!("{exit:?} is not for this program"),
        }
    }
}

async fn signal(pid: Option<u32>, name: &str) -> anyhow::Result<()> {
    let pid = pid.context("the program has ended already")?.to_string();
    Command::new("kill").args([name, &pid]).status().await.context("run kill").map(drop)
}

/// Waits for the end of a program, which must have this status.
async fn wait(program: &mut Running, want: Option<i32>) -> anyhow::Result<()> {
    let ended = tokio::time::timeout(HANG, program.wait()).await.context("the program does not end")??;
    ensure!(ended.code() == want, "the program ended with {ended}");
    Ok(())
}

fn count(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or(u64::MAX)
}

/// Returns whether nothing waits or is computed but in so many slots.
fn is_free(figures: &Value, slots: u64) -> bool {
    let backlog = count(figures, "prefill_backlog_tokens");
    let waits = count(figures, "queue_len") + count(figures, "parked");
    waits == 0 && count(figures, "slots_used") == slots && (slots > 0 || backlog == 0)
}

/// Waits until the device has ended a request; returns its id.
async fn told_id(proxy: &Proxy) -> anyhow::Result<Option<String>> {
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        let id = ended_request(&proxy.count().sent());
        if id.is_some() {
            return Ok(id);
        }
        tokio::time::sleep(LOOK).await;
    }
    bail!("the cloud is not told")
}

/// Returns the id of the request that the device has ended, if it has.
fn ended_request(sent: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(sent);
    let id = text.split("DELETE /v1/assist/").nth(1)?.split(' ').next()?;
    Some(id.to_owned())
}
