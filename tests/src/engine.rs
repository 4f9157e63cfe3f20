//! A scripted engine: speaks the APIs of vLLM or llama.cpp's server, writes answers that it was given, and
//! misbehaves on command as real engines were seen to do.
//!
//! Tokens are real: it lays prompts out and tokenizes with a model's own template and tokenizer. Always: a
//! request counts as running from its first byte until its reply has ended, or its connection is closed.

mod script;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use baton_engine::{Model, tokenizer::TokenId};
use baton_protocol::{Role, Segment};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub use self::script::{Act, Dialect};
use self::script::{Reply, frames};

/// Tokens of a context, as the engine tells them.
const CONTEXT_TOKENS: usize = 4096;

/// What the engine was asked, and what it is to do.
#[derive(Debug)]
struct Inner {
    dialect: Dialect,
    model: Arc<Model>,
    /// Texts that a prompt holds, and the answer to such a prompt.
    answers: Vec<(String, String)>,
    act: Mutex<Act>,
    /// Bodies of the requests for answers, in order.
    asked: Mutex<Vec<Value>>,
    running: AtomicUsize,
    /// Whether its tokenizer is told. If not, it is an engine that is known to speak OpenAI's API only.
    tells_tokens: AtomicBool,
}

/// A running engine; it ends when dropped.
#[derive(Debug)]
pub struct ScriptedEngine {
    address: SocketAddr,
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ScriptedEngine {
    /// Starts an engine with this model's tokenizer and template. `answers` has a text that a prompt holds,
    /// such as the question, and the answer to it.
    ///
    /// # Errors
    /// Fails if no port could be bound.
    pub async fn start(
        dialect: Dialect,
        model: Arc<Model>,
        answers: Vec<(String, String)>,
    ) -> anyhow::Result<Self> {
        Self::start_as(dialect, model, answers, true).await
    }

    /// Like [`Self::start`]; it may not tell its tokens.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_as(
        dialect: Dialect,
        model: Arc<Model>,
        answers: Vec<(String, String)>,
        tells_tokens: bool,
    ) -> anyhow::Result<Self> {
        let inner = Arc::new(Inner {
            dialect,
            model,
            answers,
            act: Mutex::new(Act::Write),
            asked: Mutex::default(),
            running: AtomicUsize::new(0),
            tells_tokens: AtomicBool::new(tells_tokens),
        });
        let app = Router::new()
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .route("/v1/models", get(models))
            .route("/tokenize", post(tokenize))
            .route("/apply-template", post(apply_template))
            .route("/v1/chat/completions", post(chat))
            .route("/v1/completions", post(complete))
            .route("/completion", post(complete))
            .with_state(Arc::clone(&inner));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.context("bind the engine")?;
        let address = listener.local_addr().context("read the engine's address")?;
        let task = tokio::spawn(async move {
            // It ends when the engine is dropped.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, inner, task })
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on it does this with requests for answers.
    pub fn act(&self, act: Act) {
        *self.inner.act.lock().expect("no holder of this lock panics") = act;
    }

    /// From now on it is an engine that does not tell its tokens.
    pub fn hide_tokens(&self) {
        self.inner.tells_tokens.store(false, Ordering::SeqCst);
    }

    /// Returns the bodies of the requests for answers so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Value> {
        self.inner.asked.lock().expect("no holder of this lock panics").clone()
    }

    /// Returns how many requests run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.inner.running.load(Ordering::SeqCst)
    }

    /// Waits until no request runs. The limit is a guard against hangs.
    ///
    /// # Errors
    /// Fails if one still runs after a minute.
    pub async fn idle(&self) -> anyhow::Result<()> {
        let idle = async {
            while self.running() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), idle).await.context("a request does not end")
    }

    /// Returns the ids of the answer to a prompt that holds this text.
    #[must_use]
    pub fn answer_ids(&self, text: &str) -> Vec<TokenId> {
        self.inner.answer(text)
    }
}

impl Inner {
    fn act(&self) -> Act {
        self.act.lock().expect("no holder of this lock panics").clone()
    }

    fn answer(&self, prompt: &str) -> Vec<TokenId> {
        let known = self.answers.iter().find(|(text, _)| prompt.contains(text.as_str()));
        let answer = known.map_or("There is no answer to that.", |(_, answer)| answer);
        let (ids, _) = self.model.tokenizer().encode_answer(answer);
        ids
    }

    /// Returns the prompt of a request as text, and its ids.
    fn prompt(&self, body: &Value) -> Result<(String, Vec<TokenId>), String> {
        let tokenizer = self.model.tokenizer();
        match (&body["prompt"], &body["messages"]) {
            (Value::String(text), _) => Ok((text.clone(), tokenizer.encode_template(text))),
            (Value::Array(ids), _) => {
                let ids: Option<Vec<TokenId>> =
                    ids.iter().map(|id| id.as_u64().and_then(|id| TokenId::try_from(id).ok())).collect();
                let ids = ids.ok_or("the prompt has something else than ids")?;
                let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).to_vec()).collect();
                Ok((String::from_utf8_lossy(&bytes).into_owned(), ids))
            }
            (_, Value::Array(_)) => {
                let ids = self.laid_out(body)?;
                let texts = body["messages"].as_array().into_iter().flatten();
                let text: Vec<&str> = texts.filter_map(|message| message["content"].as_str()).collect();
                Ok((text.join("\n"), ids))
            }
            _ => Err("there is no prompt".to_owned()),
        }
    }

    fn laid_out(&self, body: &Value) -> Result<Vec<TokenId>, String> {
        let segment = |message: &Value| {
            let role = match message["role"].as_str()? {
                "system" => Role::System,
                "assistant" => Role::Assistant,
                _ => Role::User,
            };
            Some(Segment::fixed(role, message["content"].as_str()?))
        };
        let messages = body["messages"].as_array().ok_or("there are no messages")?;
        let segments: Option<Vec<Segment>> = messages.iter().map(segment).collect();
        let segments = segments.ok_or("a message has no text")?;
        let prompt =
            baton_constrain::tools::prompt(self.model.tokenizer(), self.model.template(), &segments, &[]);
        prompt.map(|prompt| prompt.ids).map_err(|err| err.to_string())
    }
}

type Engine = State<Arc<Inner>>;

async fn health(State(inner): Engine) -> Response {
    match inner.act() {
        Act::Unhealthy => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Act::Bare => StatusCode::NOT_FOUND.into_response(),
        _ => "".into_response(),
    }
}

async fn metrics(State(inner): Engine) -> String {
    let running = inner.running.load(Ordering::SeqCst);
    match inner.dialect {
        Dialect::Vllm => format!(
            "vllm:num_requests_running{{engine=\"0\"}} {running}.0\nvllm:num_requests_waiting{{engine=\"0\"}} 0.0\n"
        ),
        Dialect::LlamaCpp => {
            format!("llamacpp:requests_processing {running}\nllamacpp:requests_deferred 0\n")
        }
    }
}

async fn models(State(inner): Engine) -> Response {
    if inner.act() == Act::Bare {
        return StatusCode::NOT_FOUND.into_response();
    }
    let card = match inner.dialect {
        Dialect::Vllm => json!({ "id": "m", "owned_by": "vllm", "max_model_len": CONTEXT_TOKENS }),
        Dialect::LlamaCpp => {
            json!({ "id": "m", "owned_by": "llamacpp", "meta": { "n_ctx": CONTEXT_TOKENS } })
        }
    };
    axum::Json(json!({ "object": "list", "data": [card] })).into_response()
}

async fn tokenize(State(inner): Engine, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if !inner.tells_tokens.load(Ordering::SeqCst) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let tokenizer = inner.model.tokenizer();
    let text = body["prompt"].as_str().or(body["content"].as_str());
    let ids = match text {
        Some(text) if body["parse_special"] == true => tokenizer.encode_template(text),
        Some(text) => tokenizer.encode(text),
        None => inner.laid_out(&body).unwrap_or_default(),
    };
    axum::Json(json!({ "count": ids.len(), "tokens": ids })).into_response()
}

async fn apply_template(State(inner): Engine, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let tokenizer = inner.model.tokenizer();
    let ids = inner.laid_out(&body).unwrap_or_default();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).to_vec()).collect();
    axum::Json(json!({ "prompt": String::from_utf8_lossy(&bytes) })).into_response()
}

async fn chat(engine: Engine, headers: HeaderMap, body: Bytes) -> Response {
    write(engine, &headers, &body, true)
}

async fn complete(engine: Engine, headers: HeaderMap, body: Bytes) -> Response {
    write(engine, &headers, &body, false)
}

/// Counts a request as long as it lives.
struct InFlight(Arc<Inner>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn write(State(inner): Engine, headers: &HeaderMap, body: &[u8], is_chat: bool) -> Response {
    let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
    let asked = body.clone();
    // What came with it, for tests of keys and affinity.
    for name in [header::AUTHORIZATION.as_str(), "x-affinity"] {
        if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) {
            body["headers"][name] = value.into();
        }
    }
    inner.asked.lock().expect("no holder of this lock panics").push(body);
    let act = inner.act();
    if let Act::Refuse { status, retry_after } = act {
        let status = StatusCode::from_u16(status).expect("tests name real statuses");
        let error = json!({ "error": { "message": "refused on command", "code": status.as_u16() } });
        let mut reply = (status, axum::Json(error)).into_response();
        if let Some(seconds) = retry_after {
            reply.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        return reply;
    }
    if let Act::Say { status, kind, body } = act {
        let status = StatusCode::from_u16(status).expect("tests name real statuses");
        return (status, [(header::CONTENT_TYPE, kind)], body).into_response();
    }
    if let Act::Strict(fields) = act
        && let Some(field) = fields.iter().find(|field| asked.get(**field).is_some())
    {
        let message = format!(
            "[{{'type': 'extra_forbidden', 'loc': ('body', '{field}'), 'msg': 'Extra inputs are not permitted'}}]"
        );
        let error = json!({ "error": { "message": message, "type": "BadRequestError", "code": 400 } });
        return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
    }
    let (text, prompt) = match inner.prompt(&asked) {
        Ok(prompt) => prompt,
        Err(message) => {
            return (StatusCode::BAD_REQUEST, axum::Json(json!({ "error": { "message": message } })))
                .into_response();
        }
    };
    let reply = Reply {
        dialect: inner.dialect,
        is_chat,
        ids: act != Act::NoIds && (asked["return_token_ids"] == true || asked["return_tokens"] == true),
        max_tokens: asked["max_tokens"].as_u64().or(asked["n_predict"].as_u64()).unwrap_or(16) as usize,
        prompt,
        answer: inner.answer(&text),
        tokenizer: inner.model.tokenizer().clone(),
    };
    if act == Act::Whole {
        return axum::Json(reply.whole()).into_response();
    }
    let is_compressed = act == Act::Compressed;
    inner.running.fetch_add(1, Ordering::SeqCst);
    let in_flight = InFlight(Arc::clone(&inner));
    let mut response = Response::new(Body::from_stream(frames(reply, act, in_flight)));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    if is_compressed {
        response.headers_mut().insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
    }
    response
}
