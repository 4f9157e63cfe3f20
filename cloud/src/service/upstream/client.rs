//! HTTP to one engine: answers as a stream of events, and small replies as JSON.
//!
//! Always: replies are bounded, connections are kept and reused, redirects are not followed. Dropping a
//! stream closes its connection, which ends the answer in the engine.

use std::time::Duration;

use baton_protocol::lines::{Lines, TooLarge};
use bytes::Bytes;
use eventsource_stream::{EventStreamError, Eventsource as _};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, stream};
use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Client, RequestBuilder, Response, Url};
use serde_json::Value;

use super::ask::Call;
use super::fault::{Fault, short};
use super::reply::garbled;

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for a small reply.
const SMALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a small reply; metrics of an engine are some tens of KiB.
const SMALL_BYTES_MAX: usize = 4 << 20;
/// Most bytes of one stream, and of a line in it.
const STREAM_BYTES_MAX: u64 = 64 << 20;
const LINE_BYTES_MAX: u64 = 2 << 20;
/// How long a connection is kept that nobody uses. Engines close theirs after 5 s; a request that meets the
/// close is lost.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// Longest time that an engine may ask for before it is asked again.
const RETRY_AFTER_SECS_MAX: u64 = 3600;

/// Why there is no client for an engine.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is no URL.
    #[error("engine address `{0}` is not an http or https URL")]
    Url(String),
    /// The key or the name of a header cannot be sent.
    #[error("{0} cannot be sent in a header")]
    Header(&'static str),
    /// TLS or the pool could not be set up.
    #[error("set up the http client")]
    Setup(#[source] reqwest::Error),
}

/// The events of one reply: the data of each.
pub(super) type Events = BoxStream<'static, Result<String, Fault>>;

/// A client of one engine.
#[derive(Debug, Clone)]
pub(super) struct EngineClient {
    http: Client,
    base: Url,
    affinity: Option<HeaderName>,
}

impl EngineClient {
    /// Makes a client of the engine at `url`; `key` is sent as a bearer token. Each answer's affinity key is
    /// sent in the header `affinity`.
    pub(super) fn new(
        url: &str,
        key: Option<&str>,
        affinity: Option<&str>,
    ) -> Result<EngineClient, ClientError> {
        let bad = || ClientError::Url(url.to_owned());
        let mut base = Url::parse(url).map_err(|_| bad())?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad());
        }
        // People write the address with or without the version of the API.
        let path = base.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        base.set_path(&format!("{path}/"));
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| ClientError::Header("the key of the engines"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let affinity = affinity
            .map(|name| HeaderName::try_from(name).map_err(|_| ClientError::Header("the affinity header")));
        // A second installation fails and leaves the first provider in place.
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .default_headers(headers)
            .user_agent(concat!("baton-cloud/", env!("CARGO_PKG_VERSION")))
            .no_gzip()
            .pool_idle_timeout(IDLE_MAX)
            .tcp_nodelay(true);
        if base.scheme() == "http" {
            builder = builder.tls_certs_only([]);
        }
        Ok(EngineClient {
            http: builder.build().map_err(ClientError::Setup)?,
            base,
            affinity: affinity.transpose()?,
        })
    }

    /// Asks for an answer; returns its events once the engine has accepted it.
    pub(super) async fn begin(&self, call: &Call, affinity: u64) -> Result<Events, Fault> {
        let mut request = self.http.post(self.at(call.path)?).json(&call.body);
        if let Some(name) = &self.affinity {
            request = request.header(name, format!("{affinity:016x}"));
        }
        let mut reply = send(request).await?;
        if !reply.status().is_success() {
            return Err(refused(reply).await);
        }
        check_plain(&reply)?;
        let kind = reply.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if !kind.to_ascii_lowercase().starts_with(b"application/json") {
            return Ok(events(None, reply));
        }
        // Some engines call a stream of events JSON.
        let first = begun(&mut reply).await?;
        if first.trim_ascii_start().first() == Some(&b'{') {
            return whole(first, reply).await;
        }
        Ok(events(Some(first), reply))
    }

    /// Returns the reply to a GET, as text.
    pub(super) async fn get(&self, path: &str) -> Result<String, Fault> {
        self.small(self.http.get(self.at(path)?)).await
    }

    /// Returns the reply to a POST of JSON.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, Fault> {
        let text = self.small(self.http.post(self.at(path)?).json(body)).await?;
        serde_json::from_str(&text).map_err(|err| garbled(&err))
    }

    async fn small(&self, request: RequestBuilder) -> Result<String, Fault> {
        let reply = send(request.timeout(SMALL_TIMEOUT)).await?;
        if !reply.status().is_success() {
            return Err(refused(reply).await);
        }
        check_plain(&reply)?;
        let bytes = bounded(reply).await?;
        String::from_utf8(bytes).map_err(|_| Fault::Garbled { reason: "the reply is not UTF-8".to_owned() })
    }

    fn at(&self, path: &str) -> Result<Url, Fault> {
        self.base.join(path).map_err(|err| Fault::Unreachable { reason: err.to_string() })
    }
}

/// Sends a request. If there was a connection and no reply that can be read, sends it once more. The engine
/// may have closed an old connection just when the request was written.
async fn send(request: RequestBuilder) -> Result<Response, Fault> {
    let again = request.try_clone();
    let has_no_reply = |err: &reqwest::Error| err.is_request() && !err.is_connect() && !err.is_timeout();
    let sent = match (request.send().await, again) {
        (Err(err), Some(again)) if has_no_reply(&err) => again.send().await,
        (sent, _) => sent,
    };
    sent.map_err(|err| unreachable(&err))
}

/// Reads up to the first bytes that are not blank: gateways send line breaks while an engine is silent.
async fn begun(reply: &mut Response) -> Result<Bytes, Fault> {
    let mut blank = 0;
    while let Some(chunk) = reply.chunk().await.map_err(|err| unreachable(&err))? {
        if !chunk.trim_ascii().is_empty() {
            return Ok(chunk);
        }
        blank += chunk.len();
        if blank > SMALL_BYTES_MAX {
            return Err(Fault::Garbled { reason: format!("more than {SMALL_BYTES_MAX} blank bytes") });
        }
    }
    Ok(Bytes::new())
}

/// Reads a small body.
async fn bounded(mut reply: Response) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while let Some(chunk) = reply.chunk().await.map_err(|err| unreachable(&err))? {
        if bytes.len() + chunk.len() > SMALL_BYTES_MAX {
            return Err(Fault::Garbled { reason: format!("a reply of more than {SMALL_BYTES_MAX} bytes") });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Refuses a compressed reply: a gateway that compresses also holds tokens back.
fn check_plain(reply: &Response) -> Result<(), Fault> {
    match reply.headers().get(CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            let reason = "the reply is compressed, which nobody asked for".to_owned();
            Err(Fault::Garbled { reason })
        }
        _ => Ok(()),
    }
}

/// Reads the reply of an engine that does not stream, as one event. It may be an error under status 200.
async fn whole(first: Bytes, reply: Response) -> Result<Events, Fault> {
    let status = reply.status().as_u16();
    let body = [first.to_vec(), bounded(reply).await?].concat();
    let json: Value = serde_json::from_slice(&body).map_err(|err| garbled(&err))?;
    let is_answer = json.get("choices").is_some() || json.get("content").is_some();
    if !is_answer || json.get("error").is_some_and(|error| !error.is_null()) {
        let code = json["error"]["code"].as_u64().or(json["code"].as_u64());
        let code = code.and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code));
        return Err(Fault::of_reply(code.unwrap_or(status), &body, None));
    }
    Ok(stream::iter([Ok(json.to_string())]).boxed())
}

async fn refused(reply: Response) -> Fault {
    let after = reply.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let after = after.and_then(|text| text.trim().parse::<u64>().ok());
    let after = after.map(|seconds| Duration::from_secs(seconds.min(RETRY_AFTER_SECS_MAX)));
    let status = reply.status().as_u16();
    let body = tokio::time::timeout(SMALL_TIMEOUT, bounded(reply)).await;
    Fault::of_reply(status, &body.ok().and_then(Result::ok).unwrap_or_default(), after)
}

fn unreachable(err: &reqwest::Error) -> Fault {
    // A client without a time limit of its own has this from small requests alone.
    if err.is_timeout() && !err.is_connect() {
        return Fault::Silent { silence: SMALL_TIMEOUT };
    }
    let mut reason = err.to_string();
    let mut source = std::error::Error::source(err);
    while let Some(err) = source {
        reason = format!("{reason}: {err}");
        source = err.source();
    }
    Fault::Unreachable { reason: short(&reason) }
}

/// Why a stream of lines ended early.
enum Broken {
    TooLarge(TooLarge),
    Transport,
}

/// Reads events: those in the `first` bytes, which were read before, and the rest.
fn events(first: Option<Bytes>, reply: Response) -> Events {
    let mut lines = Lines::new(STREAM_BYTES_MAX, LINE_BYTES_MAX);
    let first = stream::iter(first.map(|bytes| Some(Ok(bytes))));
    let chunks = first.chain(reply.bytes_stream().map(Some)).chain(stream::iter([None]));
    let pieces = chunks.flat_map(move |chunk| {
        let pieces = match chunk {
            Some(Err(_)) => vec![Err(Broken::Transport)],
            Some(Ok(bytes)) => {
                lines.pieces(Some(&bytes)).into_iter().map(|piece| piece.map_err(Broken::TooLarge)).collect()
            }
            None => lines.pieces(None).into_iter().map(|piece| piece.map_err(Broken::TooLarge)).collect(),
        };
        stream::iter(pieces)
    });
    let data = pieces.eventsource().map(|event| match event {
        Ok(event) => Ok(event.data),
        Err(EventStreamError::Transport(Broken::TooLarge(err))) => {
            Err(Fault::Garbled { reason: err.to_string() })
        }
        Err(EventStreamError::Transport(Broken::Transport)) => Err(Fault::CutOff),
        Err(EventStreamError::Utf8(_)) => {
            Err(Fault::Garbled { reason: "the stream is not UTF-8".to_owned() })
        }
        Err(EventStreamError::Parser(_)) => {
            Err(Fault::Garbled { reason: "the stream is not server-sent events".to_owned() })
        }
    });
    data.boxed()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::ask::ReplyForm;
    use super::*;

    /// Reads one request: its head, and a body as long as the head says. Returns `None` if there is no more.
    async fn request(socket: &mut TcpStream) -> Option<()> {
        let mut text = Vec::new();
        let end = loop {
            socket.read_buf(&mut text).await.ok().filter(|read| *read > 0)?;
            if let Some(at) = text.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |text| text.trim().parse().unwrap());
        let mut rest = vec![0; (end + length).saturating_sub(text.len())];
        socket.read_exact(&mut rest).await.ok().map(drop)
    }

    /// Starts an engine that answers its requests in order: with a body, or by closing the connection.
    pub(in super::super) async fn engine(script: &'static [Option<&'static str>]) -> EngineClient {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let asked = Arc::new(AtomicUsize::new(0));
            while let Ok((mut socket, _)) = listener.accept().await {
                let asked = asked.clone();
                tokio::spawn(async move {
                    while request(&mut socket).await.is_some() {
                        let Some(body) = script[asked.fetch_add(1, Ordering::SeqCst)] else { return };
                        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                        socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                    }
                });
            }
        });
        EngineClient::new(&url, None, None).unwrap()
    }

    #[tokio::test]
    async fn blanks_before_a_reply_are_passed_over() {
        for (pieces, want) in [(&["\n", " \r\n", "{\"a\":1}"][..], "{\"a\":1}"), (&["\n"][..], "")] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move {
                let (mut socket, _) = listener.accept().await.unwrap();
                request(&mut socket).await.unwrap();
                socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
                for piece in pieces {
                    let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
                    socket.write_all(chunk.as_bytes()).await.unwrap();
                }
                socket.write_all(b"0\r\n\r\n").await.unwrap();
            });
            let client = EngineClient::new(&url, None, None).unwrap();
            let mut reply = send(client.http.get(client.at("reply").unwrap())).await.unwrap();
            assert_eq!(begun(&mut reply).await.unwrap(), want);
        }
    }

    #[tokio::test]
    async fn a_request_that_meets_the_close_of_an_old_connection_gets_a_new_one() {
        let client = engine(&[Some("well"), None, Some("data: first\n\n"), None, None]).await;
        assert_eq!(client.get("health").await.as_deref(), Ok("well"));
        let form = ReplyForm::OpenAi { ids: false };
        let body = serde_json::json!({});
        let call = Call { path: "v1/completions", body, reply: form, replaceable: BTreeSet::new() };
        let mut events = client.begin(&call, 0).await.unwrap();
        assert_eq!(events.next().await, Some(Ok("first".to_owned())));
        assert_eq!(events.next().await, None);
        // An engine that closes twice is at fault.
        let twice = client.begin(&call, 0).await.err();
        assert!(matches!(twice, Some(Fault::Unreachable { .. })), "{twice:?}");
    }
}
