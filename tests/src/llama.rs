//! llama.cpp's own server, as a process, for suites and benches that compare with it or stand before it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::{clients, http};

/// Longest time for the server to be ready: a guard against hangs.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A running server of llama.cpp on one thread, killed when dropped.
#[derive(Debug)]
pub struct LlamaServer {
    _process: Child,
    url: String,
}

impl LlamaServer {
    /// Starts the server with a model file, and waits until it is ready. `slots` answers share `tokens`
    /// tokens of KV cache.
    ///
    /// # Errors
    /// Python or its registry is missing, or the server does not start; the message says which.
    pub async fn start(model: &Path, slots: usize, tokens: usize) -> Result<LlamaServer, String> {
        let python = clients::llama()?.join("python");
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .map_err(|err| err.to_string())?
            .port();
        let mut process = Command::new(python)
            .arg(clients::scripts().join("llama/server.py"))
            .arg(model)
            .args([port.to_string(), slots.to_string(), tokens.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|err| err.to_string())?;
        let url = format!("http://127.0.0.1:{port}");
        // It listens before the model is there.
        let is_ready = async || {
            let reply = http::client().get(format!("{url}/health")).send().await;
            reply.is_ok_and(|reply| reply.status().is_success())
        };
        let ready = async {
            while !is_ready().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            ready = tokio::time::timeout(START_LIMIT, ready) => ready.map_err(|_| "it is not ready in time".to_owned())?,
            ended = process.wait() => return Err(format!("llama.cpp's server ended: {ended:?}")),
        }
        Ok(LlamaServer { _process: process, url })
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}
