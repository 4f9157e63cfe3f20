//! The clients: devices as processes, each with its own document, and callers of the chat API, all through
//! the proxy.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use baton_e2e::{demo::ask::Report, http, process::models_folder, setting::Setting};
use baton_engine::Model;
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::task::JoinSet;

use super::replicas::{Cluster, wait_until};

/// Documents whose questions the demo models answer correctly, so that a wrong answer means a lost or doubled
/// token.
const SEEDS: [u64; 2] = [3, 4];

/// Least tokens of a document.
const DOCUMENT_TOKENS_MIN: usize = 900;

/// The results of all clients.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Answers that failed, and why.
    pub failed: Vec<String>,
    /// The right answer, and the device's report.
    pub reports: Vec<(String, Report)>,
    /// Number of chat streams that ended normally.
    pub chats: usize,
}

impl Told {
    fn merge(&mut self, other: Told) {
        self.failed.extend(other.failed);
        self.reports.extend(other.reports);
        self.chats += other.chats;
    }

    /// Checks that every answer is whole, and correct if the cloud began it.
    pub(crate) fn check_answers(&self) {
        for (right, report) in &self.reports {
            assert!(!report.answer.trim().is_empty(), "an empty answer: {:?}", report.notes);
            if report.tokens_from_cloud > 0 {
                assert_eq!(report.answer.trim(), right, "notes: {:?}", report.notes);
            }
        }
    }
}

/// The running clients.
pub(crate) struct Agents {
    tasks: JoinSet<Told>,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
}

fn settings(count: usize) -> Vec<Setting> {
    let model =
        Model::open(&models_folder().join("demo-cloud.gguf")).expect("the demo model is in the checkout");
    let setting = |idx: usize| Setting::new(&model, SEEDS[idx % SEEDS.len()], DOCUMENT_TOKENS_MIN);
    (0..count).map(|idx| setting(idx).expect("the generator has such a document")).collect()
}

/// Asks on a device.
async fn ask(setting: &Setting, url: &str, key: &str, assist_tokens: usize) -> anyhow::Result<Report> {
    setting.ask(url, &["--cloud-key", key, "--assist-tokens", &assist_tokens.to_string()]).await
}

/// Asks one question each, all at the same time.
pub(crate) fn ask_at_once(cluster: &Cluster, devices: usize, assist_tokens: usize) -> Agents {
    let mut tasks = JoinSet::new();
    for setting in settings(devices) {
        let (url, key) = (cluster.balancer.url(), cluster.key.clone());
        tasks.spawn(async move {
            let mut told = Told::default();
            match ask(&setting, &url, &key, assist_tokens).await {
                Ok(report) => told.reports.push((setting.asked.question.answer.clone(), report)),
                Err(err) => told.failed.push(format!("{err:#}")),
            }
            told
        });
    }
    Agents { tasks, stop: Arc::default(), answers: Arc::default() }
}

impl Agents {
    /// Starts clients that ask again and again until they are stopped; the cloud writes this many tokens for
    /// devices.
    pub(crate) fn start(cluster: &Cluster, devices: usize, chats: usize, assist_tokens: usize) -> Self {
        let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = JoinSet::new();
        for setting in settings(devices) {
            let (stop, answers) = (stop.clone(), answers.clone());
            let (url, key) = (cluster.balancer.url(), cluster.key.clone());
            tasks.spawn(async move {
                let mut told = Told::default();
                while !stop.load(Ordering::Relaxed) {
                    match ask(&setting, &url, &key, assist_tokens).await {
                        Ok(report) => told.reports.push((setting.asked.question.answer.clone(), report)),
                        Err(err) => told.failed.push(format!("{err:#}")),
                    }
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                told
            });
        }
        for _ in 0..chats {
            let (stop, answers) = (stop.clone(), answers.clone());
            let (url, key) = (cluster.balancer.url(), cluster.key.clone());
            tasks.spawn(async move {
                let mut told = Told::default();
                while !stop.load(Ordering::Relaxed) {
                    match chat(&url, &key).await {
                        Ok(()) => told.chats += 1,
                        Err(err) => told.failed.push(format!("chat: {err:#}")),
                    }
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                told
            });
        }
        Self { tasks, stop, answers }
    }

    /// Waits for this many more answers, good or bad.
    pub(crate) async fn answers_more(&self, count: usize) {
        let want = self.answers.load(Ordering::Relaxed) + count;
        wait_until("answers come", async || self.answers.load(Ordering::Relaxed) >= want).await;
    }

    /// Stops all clients after their current answer.
    pub(crate) async fn stop(self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        self.finish().await
    }

    /// Waits for the end of all clients.
    pub(crate) async fn finish(mut self) -> Told {
        let mut told = Told::default();
        while let Some(one) = self.tasks.join_next().await {
            told.merge(one.expect("an agent does not panic"));
        }
        told
    }
}

/// Runs one streamed chat; fails unless it ends normally.
async fn chat(url: &str, key: &str) -> anyhow::Result<()> {
    let body = json!({
        "model": "default",
        "messages": [{ "role": "user", "content": "Tell me about the harbour." }],
        "max_tokens": 12,
        "stream": true,
    });
    let request = http::client().post(format!("{url}/v1/chat/completions")).bearer_auth(key).json(&body);
    let reply = request.send().await?;
    let status = reply.status();
    let mut text = Vec::new();
    let mut stream = reply.bytes_stream();
    while let Some(bytes) = stream.next().await {
        text.extend_from_slice(&bytes?);
    }
    let text = String::from_utf8_lossy(&text);
    anyhow::ensure!(status.is_success(), "{status}: {text}");
    anyhow::ensure!(text.contains("data: [DONE]"), "the stream has no end: {text}");
    anyhow::ensure!(!text.contains("\"error\""), "the stream holds an error: {text}");
    Ok(())
}
