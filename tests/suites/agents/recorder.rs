//! A proxy between an agent and the program that records what was asked and with which status it was
//! answered.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::task::JoinHandle;

/// A request and its reply.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub method: String,
    pub path: String,
    pub body: String,
    pub status: u16,
    /// The names of fields without effect, as the reply told them.
    pub ignored: String,
    /// The beginning of a reply that is no success.
    pub refusal: String,
}

/// A running proxy; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Exchange>>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone)]
struct Target {
    url: String,
    client: reqwest::Client,
    seen: Arc<Mutex<Vec<Exchange>>>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorder {
    /// Starts a proxy before the program at this URL.
    pub(crate) async fn start(url: &str) -> Recorder {
        let seen: Arc<Mutex<Vec<Exchange>>> = Arc::default();
        let target = Target { url: url.to_owned(), client: baton_e2e::http::client(), seen: seen.clone() };
        let app = Router::new().fallback(pass).with_state(target);
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("bind the proxy");
        let address = listener.local_addr().expect("the proxy has an address");
        let task = tokio::spawn(async move {
            // It ends when the recorder is dropped.
            let _ = axum::serve(listener, app).await;
        });
        Recorder { address, seen, task }
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns what was exchanged since the last call.
    pub(crate) fn take(&self) -> Vec<Exchange> {
        std::mem::take(&mut *self.seen.lock().expect("no holder of this lock panics"))
    }
}

async fn pass(
    State(target): State<Target>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut asked = target.client.request(method.clone(), format!("{}{path}", target.url));
    for (name, value) in &headers {
        if ![header::HOST, header::CONNECTION, header::CONTENT_LENGTH].contains(name) {
            asked = asked.header(name, value);
        }
    }
    let reply = match asked.body(body.clone()).send().await {
        Ok(reply) => reply,
        Err(err) => return (StatusCode::BAD_GATEWAY, err.to_string()).into_response(),
    };
    let status = reply.status();
    let mut response = Response::builder().status(status);
    for name in [header::CONTENT_TYPE.as_str(), "x-baton-ignored", "retry-after"] {
        if let Some(value) = reply.headers().get(name) {
            response = response.header(name, value);
        }
    }
    let ignored = reply.headers().get("x-baton-ignored").and_then(|value| value.to_str().ok());
    let mut exchange = Exchange {
        method: method.to_string(),
        path,
        body: String::from_utf8_lossy(&body).into_owned(),
        status: status.as_u16(),
        ignored: ignored.unwrap_or_default().to_owned(),
        refusal: String::new(),
    };
    let body = match status.is_success() {
        true => Body::from_stream(reply.bytes_stream()),
        false => {
            let text = reply.text().await.unwrap_or_default();
            exchange.refusal = text.chars().take(400).collect();
            Body::from(text)
        }
    };
    target.seen.lock().expect("no holder of this lock panics").push(exchange);
    response.body(body).expect("a reply has a status")
}
