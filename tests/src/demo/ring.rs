//! The demo of a ring. A head and two workers on this machine, none with memory for the model, answer one
//! question over the relay. Then it shows the plan and the ring's own table.
//!
//! The programs are real and pair by their codes. The cloud's speed is emulated unless that is switched off;
//! the devices run at this machine's speed.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use baton_plan::{Plan, Prediction, draw};
use baton_protocol::SceneInfo;
use baton_terminal::{out, outln};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{Demo, Task, emulation::CLOUD};
use crate::home::{Home, Planned, Seat};
use crate::http;
use crate::process::{AgentProcess, CloudProcess, cpu_program};
use crate::proxy::{Cut, Proxy};

/// The devices, the head first.
const NAMES: [&str; 3] = ["laptop", "desk", "phone"];
/// Layers of each device. The planner would leave all layers to the head: reading the small part that does
/// not fit its memory takes less time than a hop.
const LAYERS: [usize; 3] = [1, 2, 2];
/// Memory of each device for weights; the model has 3 MB of them.
const MEMORY: &str = "1200KB";
const SCENE: &str = "doc-qa";
/// A guard against hangs.
const ANSWER: Duration = Duration::from_secs(120);
/// Columns of the drawn plan.
const COLUMNS: usize = 100;

/// The answer, its time and bytes, and the ring's state.
struct Answered {
    text: String,
    ms: f64,
    up: u64,
    down: u64,
    ring: Value,
}

impl Demo {
    /// Runs the ring's programs and prints answer, plan and table, or the JSON object.
    ///
    /// # Errors
    /// The errors of [`Self::run`].
    pub async fn run_ring(&self) -> anyhow::Result<()> {
        let scratch = tempfile::tempdir().context("make a folder for the demo")?;
        let task = self.task(scratch.path()).await?;
        self.say("\n1. three devices pair: a head, and two workers that give the codes on its screen");
        let home = self.home(scratch.path()).await?;
        self.say(&format!(
            "{} heads a ring with {} and {}, {MEMORY} of memory each",
            NAMES[0], NAMES[1], NAMES[2]
        ));
        self.say("\n2. the question goes to the head's agent, whose device side the ring is");
        let cloud = CloudProcess::start(&self.options.cloud_model, &self.speed(CLOUD)).await?;
        let proxy = Proxy::start(cloud.address(), Cut::Never).await?;
        let shares: Vec<(&str, usize)> = NAMES.into_iter().zip(LAYERS).collect();
        let options = ["--yes", "--scene", SCENE, "--mode", "relay", "--cloud", &proxy.url()];
        let agent = home.serve(&Planned::shares(&shares, 1), &options).await?;
        let answered = self.asked(&task, &proxy, &agent).await?;
        let correct = task.expected.as_ref().map(|expected| expected.is(&answered.text));
        if self.options.json {
            outln!(
                "{}",
                json!({
                    "answer": answered.text, "answer_correct": correct, "total_ms": answered.ms,
                    "wire_bytes_up": answered.up, "wire_bytes_down": answered.down,
                    "stats": answered.ring["stats"], "planned": answered.ring["planned"],
                })
            )?;
            return Ok(());
        }
        outln!("{}", answered.text.trim())?;
        let verdict = match correct {
            Some(true) => "; the answer is right",
            Some(false) => "; the answer is wrong",
            None => "",
        };
        self.say(&format!(
            "\n{:.0} ms; {} bytes to the cloud, {} from it{verdict}",
            answered.ms, answered.up, answered.down
        ));
        self.say("\n3. the plan: who computes which layers when, as predicted (given: a model this small is fastest on one)");
        out!("{}", drawn(&answered.ring)?)?;
        self.say("\n4. `baton ring status` on the head");
        status(&home, &agent).await
    }

    async fn home(&self, scratch: &Path) -> anyhow::Result<Home> {
        let seat = |name| Seat::new(name).with("--memory").with(MEMORY);
        let workers = [NAMES[1], NAMES[2]].map(|name| seat(name).with("--threads").with("1"));
        Home::with_copy(scratch, &self.options.device_model, seat(NAMES[0]), &workers).await
    }

    /// Asks like any client of the chat API.
    async fn asked(&self, task: &Task, proxy: &Proxy, agent: &AgentProcess) -> anyhow::Result<Answered> {
        let client = http::client();
        let scene = client.get(format!("{}/v1/scenes/{SCENE}", proxy.url())).send().await?;
        let scene: SceneInfo = scene.error_for_status()?.json().await.context("read the scene")?;
        let document = tokio::fs::read_to_string(&task.document).await.context("read the document")?;
        let text = format!("{document}{}{}", scene.settings.question_prefix, task.question);
        let mut messages = Vec::new();
        if !scene.settings.system.is_empty() {
            messages.push(json!({ "role": "system", "content": scene.settings.system }));
        }
        messages.push(json!({ "role": "user", "content": text }));
        let body = json!({
            "messages": messages, "max_tokens": super::ANSWER_TOKENS_MAX, "seed": self.options.seed,
            "temperature": 0,
        });
        let begun = Instant::now();
        let url = format!("{}/v1/chat/completions", agent.url());
        let answer = client.post(url).json(&body).timeout(ANSWER).send().await.context("ask the agent")?;
        let answer: Value = answer.error_for_status()?.json().await.context("read the answer")?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        let text = answer["choices"][0]["message"]["content"].as_str().context("no answer")?.to_owned();
        let ring = client.get(format!("{}/ring.json", agent.url())).send().await?;
        let ring = ring.error_for_status()?.json().await.context("read the ring's status")?;
        Ok(Answered { text, ms, up: proxy.count().up(), down: proxy.count().down(), ring })
    }
}

/// Draws the plan as text, with a line for its layers.
fn drawn(ring: &Value) -> anyhow::Result<String> {
    let planned = &ring["planned"];
    let plan: Plan = serde_json::from_value(planned["plan"].clone()).context("read the plan")?;
    let prediction: Prediction =
        serde_json::from_value(planned["prediction"].clone()).context("read the prediction")?;
    let layers: Vec<String> =
        plan.shares.iter().map(|share| format!("{} {}", share.device, share.layers)).collect();
    let rounds = if plan.rounds == 1 { "1 round".to_owned() } else { format!("{} rounds", plan.rounds) };
    Ok(format!("layers: {}; {rounds}\n{}", layers.join(", "), draw::text(&plan, &prediction, COLUMNS)))
}

async fn status(home: &Home, agent: &AgentProcess) -> anyhow::Result<()> {
    let address = agent.url().trim_start_matches("http://");
    let status = Command::from(cpu_program("baton")?)
        .args(["ring", "status", "--address", address, "--state"])
        .arg(home.state())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .context("run baton ring status")?;
    if !status.success() {
        bail!("baton ring status ended with {status}");
    }
    Ok(())
}
