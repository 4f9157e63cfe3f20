//! The two programs, started with one model, and how they are asked.

use std::path::Path;
use std::time::Duration;

use baton_e2e::http::client;
use baton_e2e::process::{AgentProcess, CloudProcess, cpu_program, models_folder};
use baton_engine::Model;
use baton_engine::template::Message;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::process::Command;

use super::table::RawRow;

/// The key of both programs.
pub(crate) const KEY: &str = "key-of-the-openai-suite";
/// Guards a reply against hangs.
const HANG: Duration = Duration::from_secs(120);

/// A running program, as its clients see it.
pub(crate) struct Program {
    pub name: &'static str,
    pub url: String,
    /// The name of its model.
    pub model: &'static str,
    key: &'static str,
    client: reqwest::Client,
    _process: Option<Process>,
}

/// What ends with the program.
enum Process {
    Cloud { _cloud: CloudProcess },
    Device { _device: AgentProcess, _folder: tempfile::TempDir },
}

/// A whole reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub content_type: String,
    pub text: String,
}

impl Reply {
    /// Returns the body of an answer in one piece.
    #[track_caller]
    pub(crate) fn json(&self, place: &str) -> Value {
        assert_eq!(self.status, 200, "{place}: {self:?}");
        serde_json::from_str(&self.text).unwrap_or_else(|err| panic!("{place}: {err}: {}", self.text))
    }

    /// Returns the chunks of a stream that has come to its end.
    #[track_caller]
    pub(crate) fn chunks(&self, place: &str) -> Vec<Value> {
        assert_eq!(self.status, 200, "{place}: {self:?}");
        let mut data: Vec<&str> = self.text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{place}: {}", self.text);
        let read = |chunk: &str| serde_json::from_str(chunk).unwrap_or_else(|err| panic!("{place}: {err}"));
        data.into_iter().map(read).collect()
    }
}

/// Returns a conversation of one message, and the text that the model's template makes of it.
pub(crate) fn laid_out(question: &str) -> (Value, String) {
    let model = Model::open(&models_folder().join("demo-device.gguf")).expect("open the model");
    let text = model.template().render(&[Message { role: "user", content: question }], true);
    (json!([{ "role": "user", "content": question }]), text.expect("the template takes a question"))
}

/// Starts the cloud service and the device agent, without a connection between them.
pub(crate) async fn start() -> (Program, Program) {
    start_with(&models_folder().join("demo-device.gguf"), "demo-device").await
}

/// As [`start`], with a model file and the name that the cloud gives it.
pub(crate) async fn start_with(model: &Path, name: &'static str) -> (Program, Program) {
    let cloud = CloudProcess::start(model, &["--api-key".into(), KEY.into()]).await;
    let cloud = cloud.expect("the cloud starts");
    let folder = tempfile::tempdir().expect("make a folder");
    let mut command = Command::from(cpu_program("baton").expect("the program is built"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud", "--key", KEY]);
    command.arg("--model").arg(model).arg("--config-dir").arg(folder.path());
    let device = AgentProcess::start(&mut command).await.expect("the agent starts");
    let (cloud_url, device_url) = (format!("http://{}", cloud.address()), device.url().to_owned());
    let device = Process::Device { _device: device, _folder: folder };
    (
        Program::new("cloud", name, cloud_url, Process::Cloud { _cloud: cloud }),
        Program::new("device", "baton", device_url, device),
    )
}

impl Program {
    fn new(name: &'static str, model: &'static str, url: String, process: Process) -> Program {
        Program { name, url, model, key: KEY, client: client(), _process: Some(process) }
    }

    /// The same program, asked with another key.
    pub(crate) fn with_key(&self, key: &'static str) -> Program {
        let (name, url, model) = (self.name, self.url.clone(), self.model);
        Program { name, url, model, key, client: self.client.clone(), _process: None }
    }

    /// Sends a chat request.
    pub(crate) async fn chat(&self, body: &Value) -> Reply {
        let request = self.request(Method::POST, "/v1/chat/completions");
        self.read(request.header("content-type", "application/json").body(body.to_string())).await
    }

    /// Sends a text completion request.
    pub(crate) async fn text(&self, body: &Value) -> Reply {
        let request = self.request(Method::POST, "/v1/completions");
        self.read(request.header("content-type", "application/json").body(body.to_string())).await
    }

    /// Sends what may be no request.
    pub(crate) async fn send(&self, row: &RawRow) -> Reply {
        let request = self.request(row.method.clone(), row.path);
        self.read(request.header("content-type", row.content_type).body(row.body)).await
    }

    /// Posts JSON to a path of any dialect.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        let request = self.request(Method::POST, path);
        self.read(request.header("content-type", "application/json").body(body.to_string())).await
    }

    /// Gets an object.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let reply = self.read(self.request(Method::GET, path)).await;
        assert_eq!(reply.status, 200, "{path} of {}: {}", self.name, reply.text);
        serde_json::from_str(&reply.text).expect("JSON")
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        request.bearer_auth(self.key).timeout(HANG)
    }

    async fn read(&self, request: RequestBuilder) -> Reply {
        let reply = request.send().await.expect("the program replies");
        let status = reply.status().as_u16();
        let content_type = reply.headers().get("content-type").and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        Reply { status, content_type, text: reply.text().await.expect("the reply ends") }
    }
}
