//! A client of a running service's admin API, logged in as one of its users.

use anyhow::{Context, ensure};
use reqwest::{Method, RequestBuilder, header};
use serde_json::{Value, json};

use crate::http;

/// A user's session: its cookie, and the CSRF token that each change needs.
#[derive(Debug, Clone)]
pub struct AdminSession {
    client: reqwest::Client,
    base: String,
    /// The cookie as `name=value`.
    pub cookie: String,
    /// The token for the header `x-csrf-token`.
    pub csrf: String,
}

impl AdminSession {
    /// Logs in at the service at `host:port`.
    ///
    /// # Errors
    /// Fails if the service does not answer, or refuses.
    pub async fn log_in(address: &str, name: &str, password: &str) -> anyhow::Result<Self> {
        let (client, base) = (http::client(), format!("http://{address}/admin/api/v1"));
        let body = json!({ "name": name, "password": password });
        let reply = client.post(format!("{base}/session")).json(&body).send().await.context("log in")?;
        ensure!(reply.status().is_success(), "{name} may not log in: {}", reply.status());
        let cookie = reply.headers().get(header::SET_COOKIE).context("a log-in sets no cookie")?;
        let cookie = cookie.to_str().context("read the cookie")?.split(';').next().unwrap_or_default();
        let cookie = cookie.to_owned();
        let session: Value = reply.json().await.context("read the session")?;
        let csrf = session["csrf_token"].as_str().context("a session has no CSRF token")?.to_owned();
        Ok(Self { client, base, cookie, csrf })
    }

    /// Makes a request to a path below `/admin/api/v1`, with the session's cookie and token.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        request.header(header::COOKIE, &self.cookie).header("x-csrf-token", &self.csrf)
    }
}
