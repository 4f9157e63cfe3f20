//! Runs `baton-cloud serve` as a process, and measures single assist requests as a client.

use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::engine::http;
use crate::engine::server::baton_cloud;

/// Tokens that the chat template of synthetic models adds to a prompt of one user message: the beginning, the
/// role, the message's end, the role of the answer.
pub(crate) const TEMPLATE_TOKENS: usize = 4;
/// Tokens that the chat template adds for a system message: its role and its end.
pub(crate) const SYSTEM_TOKENS: usize = 2;

/// A running service, killed when dropped.
pub(crate) struct Service {
    child: Child,
    address: String,
    asked: AtomicU64,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// A system message, if any.
    pub system: Option<String>,
    /// The user's message.
    pub user: String,
    /// L.
    pub tokens: usize,
}

/// The times and token counts of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    /// Time to the first token, as seen by the client.
    pub ttft: Duration,
    /// How long it held a slot, as reported by the service.
    pub slot: Duration,
    /// Tokens of its prompt, as counted by the service.
    pub prompt_tokens: u64,
    /// Tokens of its prompt that came from the prefix cache.
    pub cached_tokens: u64,
}

impl Service {
    /// Starts `baton-cloud serve` with `options`; the program is in the folder of the running one.
    pub(crate) fn start(model: &Path, options: &[String]) -> Result<Self> {
        let own = std::env::current_exe().context("find the running program")?;
        let program = own.with_file_name("baton-cloud");
        let (child, address) = baton_cloud(&program, model, options)?;
        Ok(Self { child, address, asked: AtomicU64::new(1) })
    }

    /// Sends a request without refinement and waits for the whole answer, which must have all its tokens.
    pub(crate) fn assist(&self, ask: &Ask) -> Result<Took> {
        let body = self.body(ask);
        let begun = Instant::now();
        let (mut first, mut end, mut error) = (None, None, None);
        http::events(&self.address, "/v1/assist", &body, |event| {
            if event.get("error").is_some() {
                error = Some(event);
            } else if event.get("reason").is_some() {
                end = Some(event);
            } else {
                first.get_or_insert_with(|| begun.elapsed());
            }
        })?;
        if let Some(error) = error {
            bail!("the service broke off: {error}");
        }
        let (first, end) = (first.context("no token came")?, end.context("no end came")?);
        let count =
            |name: &str| end["usage"][name].as_u64().with_context(|| format!("the end has no {name}"));
        let written = count("completion_tokens")?;
        if written != ask.tokens as u64 {
            bail!("{written} tokens were written, must be {}", ask.tokens);
        }
        let slot_ms = end["timing"]["slot_ms"].as_f64().context("the end has no slot time")?;
        Ok(Took {
            ttft: first,
            slot: Duration::from_secs_f64(slot_ms / 1e3),
            prompt_tokens: count("prompt_tokens")?,
            cached_tokens: count("cached_prefix_tokens")?,
        })
    }

    fn body(&self, ask: &Ask) -> Value {
        let segment = |role: &str, text: &str| json!({ "role": role, "text": text, "refine": false });
        let system = ask.system.as_deref().map(|text| segment("system", text));
        let segments: Vec<Value> = system.into_iter().chain([segment("user", &ask.user)]).collect();
        let id = self.asked.fetch_add(1, Ordering::Relaxed);
        json!({
            "protocol": 1, "request_id": format!("00000000-0000-4000-8000-{id:012x}"), "scene": "doc-qa-full",
            "model": "default", "segments": segments, "assist_tokens": ask.tokens,
            "sampling": { "temperature": 0, "seed": 1 },
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
