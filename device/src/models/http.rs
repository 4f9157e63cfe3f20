//! The HTTP client of downloads: bounded lists, and files whose bytes arrive unchanged.
//!
//! Redirects are followed, because hubs answer with the address of a store. A token goes only to the hub's
//! own origin. If a source is reached by https, nothing is ever asked by http.

use super::PullError;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderValue};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use std::time::Duration;

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time without a byte.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of a list of files.
const LIST_BYTES_MAX: usize = 64 << 20;
const REDIRECTS_MAX: usize = 10;

/// How long a server is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Patience {
    /// Longest time without progress.
    pub(super) stall: Duration,
    /// Bytes that are progress.
    pub(super) progress_bytes: u64,
    /// Tries in a row that bring no byte before it is given up.
    pub(super) tries: u32,
    /// Whether it is given up as soon as it stalls.
    pub(super) is_short: bool,
}

impl Patience {
    /// With the only server that has the bytes.
    const LONG: Patience = Patience { stall: READ_TIMEOUT, progress_bytes: 1, tries: 5, is_short: false };
    /// With a server if another one has the bytes too.
    const SHORT: Patience =
        Patience { stall: Duration::from_secs(5), progress_bytes: 64 << 10, tries: 1, is_short: true };
}

/// A client of one hub or index.
#[derive(Debug, Clone)]
pub(super) struct Http {
    client: reqwest::Client,
    base: Url,
    token: Option<String>,
    patience: Patience,
}

/// Makes a client whose answers arrive unchanged. If it is `secure`, it never asks by http.
///
/// # Errors
/// The client's, if it cannot be made.
pub(crate) fn client(secure: bool) -> Result<reqwest::Client, reqwest::Error> {
    // A second installation fails and leaves the first provider in place.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(reqwest::redirect::Policy::limited(REDIRECTS_MAX))
            .https_only(secure)
            .user_agent(concat!("baton/", env!("CARGO_PKG_VERSION")))
            .no_gzip()
    };
    match builder().build() {
        // Plain HTTP needs no TLS, so a machine without root certificates must not fail here.
        Err(_) if !secure => builder().tls_certs_only([]).build(),
        built => built,
    }
}

impl Http {
    /// Makes a client of the server at `base`; `token` is sent to its origin alone.
    pub(super) fn new(base: &str, token: Option<String>) -> Result<Self, PullError> {
        let wrong =
            || PullError::Invalid(format!("`{}` is not an http or https address", without_secrets(base)));
        let mut base = Url::parse(base).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong());
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        if token.as_ref().is_some_and(|token| HeaderValue::try_from(token).is_err()) {
            let wrong = "the token holds characters that a header cannot carry";
            return Err(PullError::Invalid(wrong.to_owned()));
        }
        let client = client(base.scheme() == "https").map_err(PullError::Client)?;
        Ok(Self { client, base, token, patience: Patience::LONG })
    }

    /// Returns this client with less patience, because other servers have the same bytes.
    pub(super) fn hasty(&self) -> Self {
        Self { patience: Patience::SHORT, ..self.clone() }
    }

    /// Returns how long the server is waited for.
    pub(super) fn patience(&self) -> Patience {
        self.patience
    }

    /// Waits for a part of a reply as long as patience lasts.
    pub(super) async fn in_time<T>(
        &self,
        url: &Url,
        work: impl Future<Output = reqwest::Result<T>>,
    ) -> Result<T, PullError> {
        let stall = self.patience.stall;
        match tokio::time::timeout(stall, work).await {
            Ok(done) => done.map_err(|err| offline(url, &err)),
            Err(_) => Err(PullError::Offline { host: host_of(url), reason: stalled(stall) }),
        }
    }

    /// Returns the server's name for messages.
    pub(super) fn host(&self) -> String {
        host_of(&self.base)
    }

    /// Whether a token is sent.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the address of a path below the server's address.
    pub(super) fn url<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http address has a path").pop_if_empty().extend(path);
        url
    }

    /// Begins a request. Only the server's own origin gets the token, or the credentials of its address.
    pub(super) fn get(&self, url: &Url) -> RequestBuilder {
        let mut url = url.clone();
        let own = url.origin() == self.base.origin();
        if own && self.token.is_none() && url.username().is_empty() {
            // Both can be set on an http address.
            let _set = url.set_username(self.base.username());
            let _set = url.set_password(self.base.password());
        }
        let request = self.client.get(url).header(ACCEPT_ENCODING, "identity");
        match &self.token {
            Some(token) if own => request.bearer_auth(token),
            _ => request,
        }
    }

    /// Fetches bytes that are not more than `max`.
    pub(super) async fn small(&self, url: &Url, max: usize) -> Result<Vec<u8>, PullError> {
        let read = async {
            let mut response = self.in_time(url, self.get(url).send()).await?;
            if !response.status().is_success() {
                return Err(refused(url, response.status()));
            }
            let mut body = Vec::new();
            while let Some(chunk) = self.in_time(url, response.chunk()).await? {
                if body.len() + chunk.len() > max {
                    let what = format!("it sent more than {max} bytes for `{}`", url.path());
                    return Err(PullError::Reply { host: host_of(url), what });
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        };
        if !self.patience.is_short {
            return read.await;
        }
        // So few bytes are there at once, or their server is slow.
        let stall = self.patience.stall;
        let late = || PullError::Offline { host: host_of(url), reason: stalled(stall) };
        tokio::time::timeout(stall, read).await.unwrap_or_else(|_| Err(late()))
    }

    /// Fetches a list: a body of JSON that is not too long. Returns its headers too.
    pub(super) async fn list(&self, url: &Url, accept: &'static str) -> Result<List, PullError> {
        let request = self.get(url).header(ACCEPT, accept);
        let response = request.send().await.map_err(|err| offline(url, &err))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        if status.is_success() {
            let mut response = response;
            while let Some(chunk) = response.chunk().await.map_err(|err| offline(url, &err))? {
                if body.len() + chunk.len() > LIST_BYTES_MAX {
                    let what = format!("a list of more than {} MiB is not read", LIST_BYTES_MAX >> 20);
                    return Err(PullError::Reply { host: host_of(url), what });
                }
                body.extend_from_slice(&chunk);
            }
        }
        Ok(List { status, headers, body })
    }
}

/// A reply with a list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl List {
    /// Returns a header's text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Reads the body.
    pub(super) fn json<T: for<'a> serde::Deserialize<'a>>(&self, url: &Url) -> Result<T, PullError> {
        serde_json::from_slice(&self.body).map_err(|err| PullError::Reply {
            host: host_of(url),
            what: format!("its list of files is not understood: {err}"),
        })
    }
}

/// Returns the error of a status that has no other meaning.
pub(super) fn refused(url: &Url, status: StatusCode) -> PullError {
    PullError::Reply { host: host_of(url), what: format!("status {status} for `{}`", url.path()) }
}

/// Returns a server's name, with its port if that is not the usual one.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns an address as it may be shown and stored: without credentials.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _set = url.set_username("");
    let _set = url.set_password(None);
    url.set_query(None);
    url.to_string()
}

/// Returns a text that is no address without what may be a password.
fn without_secrets(text: &str) -> &str {
    text.rsplit('@').next().unwrap_or(text)
}

/// Returns the last server that was asked: the one that a redirect led to.
pub(super) fn asked(response: &Response) -> String {
    host_of(response.url())
}

/// Makes the error of a request that failed, without the address, which may hold credentials.
pub(super) fn offline(url: &Url, err: &reqwest::Error) -> PullError {
    let host = err.url().map_or_else(|| host_of(url), host_of);
    PullError::Offline { host, reason: reason(err) }
}

/// Says that a server made no progress.
pub(super) fn stalled(stall: Duration) -> String {
    format!("no progress within {stall:?}")
}

/// Says why a request or a body failed.
pub(super) fn reason(err: &reqwest::Error) -> String {
    let mut causes = vec![
        if err.is_timeout() {
            "timed out"
        } else if err.is_connect() {
            "no connection"
        } else if err.is_redirect() {
            "a redirect is not followed"
        } else {
            "the line was cut"
        }
        .to_owned(),
    ];
    let mut source = std::error::Error::source(err);
    while let Some(cause) = source {
        let text = cause.to_string();
        if !causes.contains(&text) {
            causes.push(text);
        }
        source = cause.source();
    }
    causes.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_to_their_own_origin_and_are_not_shown() {
        let address = "http://ann:pw@a.example:8080/simple";
        for (token, want) in [(Some("secret".to_owned()), "Bearer secret"), (None, "Basic YW5uOnB3")] {
            let http = Http::new(address, token).unwrap();
            let sent = |url: &str| {
                let request = http.get(&Url::parse(url).unwrap()).build().unwrap();
                request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned())
            };
            assert_eq!(sent("http://a.example:8080/x").as_deref(), Some(want));
            for other in ["http://b.example:8080/x", "http://a.example/x", "https://a.example:8080/x"] {
                assert_eq!(sent(other), None, "{other}");
            }
        }
        let http = Http::new(address, None).unwrap();
        assert_eq!(http.host(), "a.example:8080");
        assert_eq!(shown(&http.url(["m"])), "http://a.example:8080/simple/m");
        for bad in ["", "ftp://ann:pw@x", "ann:pw@x", "file:///etc/passwd"] {
            let said = Http::new(bad, None).unwrap_err().to_string();
            assert!(!said.contains("pw"), "{said}");
        }
        assert!(Http::new("http://a", Some("a\nb".into())).is_err());
    }

    #[test]
    fn paths_are_escaped() {
        let http = Http::new("http://a.example", None).unwrap();
        assert_eq!(http.url(["x y", "ü?#.gguf"]).as_str(), "http://a.example/x%20y/%C3%BC%3F%23.gguf");
    }
}
