//! Tenants with keys of their own, on one service: answers whose drafts are to be checked, keys and values
//! that nobody fetches, and reports of devices that do not exist.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use baton_engine::Model;
use baton_engine::rows::kv_identity;
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use super::streams::{rest, send};
use crate::process::{CloudProcess, cpu_program, models_folder};

/// The command that lets devices get keys and values in place of a prefill.
pub const GIVE_KV: [&str; 5] = ["scenes", "set", "doc-qa", "--kv", "f16"];

/// The option of a service whose KV cache is full after some hundred questions, so that it grows no more.
pub const SMALL_CACHE: &str = "--kv-tokens=4096";

/// The model of every service here.
fn model() -> PathBuf {
    models_folder().join("demo-cloud.gguf")
}

/// A service, its database, and the key of each tenant.
#[derive(Debug)]
pub struct Tenants {
    /// The process.
    pub cloud: CloudProcess,
    /// Where it listens.
    pub server: SocketAddr,
    /// The keys, in the order of the tenants' names.
    pub keys: Vec<String>,
    database: String,
    /// Digest of the model's tokenizer, and the name of its keys and values.
    tokenizer: String,
    kv: String,
}

impl Tenants {
    /// Starts a service with a key for each of these tenants; without names, it needs no keys. Its database
    /// is in `folder`. `before` are commands of `baton-cloud` that run before it starts.
    ///
    /// # Errors
    /// Fails if the program is not built, refuses a command, or does not start.
    pub async fn start(
        folder: &Path,
        names: &[&str],
        before: &[&[&str]],
        options: &[&str],
    ) -> anyhow::Result<Tenants> {
        let database = format!("sqlite://{}", folder.join("tenants.db").display());
        let mut keys = Vec::new();
        for name in names {
            admin(&database, &["tenants", "set", name]).await?;
            let made = admin(&database, &["keys", "create", "--tenant", name, "--scopes", "all"]).await?;
            keys.push(made["key"].as_str().context("no key was made")?.to_owned());
        }
        for words in before {
            admin(&database, words).await?;
        }
        let auth: &[&str] = if names.is_empty() { &[] } else { &["--auth", "keys"] };
        let options: Vec<OsString> = auth.iter().chain(options).map(OsString::from).collect();
        let cloud = CloudProcess::start_on(&model(), &database, &options).await?;
        let server = cloud.address().parse().context("read the service's address")?;
        let model = Model::open(&model()).context("open the model")?;
        let tokenizer = model.tokenizer().digest_hex().to_owned();
        let kv = kv_identity(&model);
        Ok(Tenants { cloud, server, keys, database, tokenizer, kv })
    }

    /// Runs a command of `baton-cloud` on the service's database; returns what it says.
    ///
    /// # Errors
    /// Fails if it refuses.
    pub async fn admin(&self, words: &[&str]) -> anyhow::Result<Value> {
        admin(&self.database, words).await
    }

    /// Sends a request with the key of the tenant at this index, or without one; returns status and body.
    ///
    /// # Errors
    /// Fails if there is no reply.
    pub async fn post(&self, tenant: usize, path: &str, body: &Value) -> anyhow::Result<(u16, String)> {
        let key = self.keys.get(tenant).map(String::as_str);
        let mut stream = send(self.server, &format!("POST {path}"), key, &body.to_string()).await?;
        let reply = rest(&mut stream).await?;
        let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status.with_context(|| format!("no status: {reply}"))?, body.to_owned()))
    }

    /// Asks for an answer of one token whose further tokens this tenant would have checked; returns its id if
    /// the service offers that.
    ///
    /// # Errors
    /// Fails if there is no answer.
    pub async fn begin_verified(&self, tenant: usize) -> anyhow::Result<Option<Uuid>> {
        let id = Uuid::new_v4();
        let question = json!({
            "protocol": 1, "request_id": id, "scene": "doc-qa-full", "model": "default", "verify": true,
            "segments": [{ "role": "user", "text": "Hi", "refine": false }], "assist_tokens": 1,
            "tokenizer_sha256": self.tokenizer,
        });
        let (status, text) = self.post(tenant, "/v1/assist", &question).await?;
        ensure!(status == 200, "{status}: {text}");
        let first = text.split("event: first\n").nth(1).and_then(|rest| rest.split("data: ").nth(1));
        let first = first.and_then(|rest| rest.lines().next()).context("there is no first token")?;
        let first: Value = serde_json::from_str(first).context("read the first token")?;
        Ok(first["verify"].is_object().then_some(id))
    }

    /// Returns whether an answer of this tenant is still kept for checks.
    ///
    /// # Errors
    /// Fails if there is no reply.
    pub async fn is_kept(&self, tenant: usize, id: Uuid) -> anyhow::Result<bool> {
        let draft = json!({ "from": 1, "digest": "0".repeat(64), "draft": [], "at_least": 1 });
        let (status, _) = self.post(tenant, &format!("/v1/assist/{id}/verify"), &draft).await?;
        // 400: it is kept, and has another digest.
        Ok(status == 400)
    }

    /// Asks about a document for keys and values in place of a prefill, and never fetches them; returns their
    /// bytes, or `None` if the service offers none. The scene must give them: [`GIVE_KV`].
    ///
    /// # Errors
    /// Fails if there is no answer.
    pub async fn abandon_handoff(&self, tenant: usize, at: usize) -> anyhow::Result<Option<u64>> {
        let device = json!({ "class": "laptop", "model": "demo", "kv": self.kv });
        let text = self.ask(tenant, at, device).await?;
        let bytes = text.split("\"kv\":{\"bytes\":").nth(1).and_then(|rest| rest.split(',').next());
        Ok(bytes.and_then(|bytes| bytes.parse().ok()))
    }

    /// Asks about a document; returns the events of the answer.
    ///
    /// # Errors
    /// Fails if there is no answer.
    pub async fn ask(&self, tenant: usize, at: usize, device: Value) -> anyhow::Result<String> {
        let sentences = "The harbour keeps a list of all ships, and of their masters. ".repeat(30);
        let question = json!({
            "protocol": 1, "request_id": Uuid::new_v4(), "scene": "doc-qa", "model": "default",
            "segments": [
                { "role": "user", "text": sentences, "refine": true },
                { "role": "user", "text": format!("\n\nQuestion {at}: What does the harbour keep?") },
            ],
            "assist_tokens": 1, "device": device,
        });
        let (status, text) = self.post(tenant, "/v1/assist", &question).await?;
        ensure!(status == 200, "{status}: {text}");
        Ok(text)
    }

    /// Reports as a device of class `phone` that it answers with a pair of one model, and perhaps could not
    /// load another one.
    ///
    /// # Errors
    /// Fails if the service does not say what the device should have.
    pub async fn report(
        &self,
        tenant: usize,
        device: &str,
        active: &str,
        failed: Option<&str>,
    ) -> anyhow::Result<()> {
        let failed: Vec<Value> = failed.iter().map(|model| json!({ "base": model })).collect();
        let report = json!({
            "device": device, "class": "phone", "scene": "*", "active": { "base": active }, "failed": failed,
        });
        let (status, text) = self.post(tenant, "/v1/registry/sync", &report).await?;
        ensure!(status == 200 && text.contains("\"wanted\":{"), "{status}: {text}");
        Ok(())
    }

    /// Waits until the service tells devices which models they should have.
    ///
    /// # Errors
    /// Fails if there is no reply, or it does not in time.
    pub async fn knows_targets(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while let Err(err) = self.report(0, "first", "m@1", None).await {
            ensure!(begun.elapsed() < super::HANG, "{err:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Runs a command of `baton-cloud`; returns what it says.
async fn admin(database: &str, words: &[&str]) -> anyhow::Result<Value> {
    let mut command = Command::from(cpu_program("baton-cloud")?);
    let done = command.args(words).args(["--database", database, "--json"]).output().await;
    let done = done.with_context(|| format!("run baton-cloud {}", words.join(" ")))?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice::<Value>(&done.stdout).context("read what it says")
}
