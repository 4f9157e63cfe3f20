//! The real programs on a GPU: they write what they write without one, and say what is wrong with a choice.

use std::path::Path;

use baton_corpus::{Document, QuestionKind, document};
use baton_e2e::http::client;
use baton_e2e::process::{CloudProcess, cpu_program, models_folder};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::device;

/// Tokens of an answer.
const TOKENS: usize = 12;
/// Words of a document.
const WORDS: usize = 120;

/// Returns the device of all tests as `--gpu` names it.
fn named() -> Option<String> {
    let device = device()?;
    let facts = device.facts();
    Some(format!("{}:{}", facts.interface, facts.index))
}

fn question(document: &Document) -> &str {
    &document.question(QuestionKind::Long).expect("a document has a long question").text
}

/// A running `baton-cloud serve` with the demo's model, and the folder of its log.
struct Service {
    cloud: CloudProcess,
    folder: tempfile::TempDir,
}

impl Service {
    async fn start(gpu: &str) -> Self {
        let folder = tempfile::tempdir().expect("make a folder");
        let log = std::fs::File::create(folder.path().join("log")).expect("make the log");
        let options = ["--gpu", gpu].map(Into::into);
        let cloud = CloudProcess::start_logged(&models_folder().join("demo-cloud.gguf"), &options, log).await;
        Self { cloud: cloud.expect("the service starts"), folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("read the log")
    }

    async fn asked(&self, route: &str, body: &Value) -> String {
        let url = format!("http://{}{route}", self.cloud.address());
        let reply = client().post(url).json(body).send().await.expect("a reply");
        let (status, text) = (reply.status().as_u16(), reply.text().await.expect("a body"));
        assert_eq!(status, 200, "{text}");
        text
    }

    /// Returns an answer, and how many tokens of its prompt were known.
    async fn chat(&self, document: &Document, question: &str) -> (String, u64) {
        let text = format!("{}\n\nQuestion: {question}", document.text);
        let body = json!({
            "model": "default", "max_tokens": TOKENS, "temperature": 0,
            "messages": [{ "role": "user", "content": text }],
        });
        let reply: Value =
            serde_json::from_str(&self.asked("/v1/chat/completions", &body).await).expect("JSON");
        let known = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        let text = reply["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
        assert!(!text.trim().is_empty(), "{reply}");
        (text, known.expect("a count"))
    }

    /// Returns the mask and the ids of the first tokens.
    async fn assist(&self, document: &Document, question: &str) -> (Value, Vec<Value>) {
        let segment = |text: &str, refine: bool| json!({ "role": "user", "text": text, "refine": refine });
        let question = format!("\n\nQuestion: {question}");
        let body = json!({
            "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "doc-qa", "model": "default",
            "segments": [segment(&document.text, true), segment(&question, false)],
            "refine": { "ratio": 0.4 }, "assist_tokens": TOKENS,
        });
        let text = self.asked("/v1/assist", &body).await;
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = data.map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let mask = events.iter().find(|event| event.get("segmenter").is_some());
        let mask = mask.unwrap_or_else(|| panic!("no mask in {text}"));
        let shown = ["count", "kept", "data"].map(|field| mask[field].clone());
        assert!(shown[1].as_u64() < shown[0].as_u64(), "nothing is left out: {mask}");
        (json!(shown), events.iter().filter_map(|event| event.get("id").cloned()).collect())
    }
}

#[tokio::test]
async fn a_service_on_a_gpu_writes_what_one_without_writes() {
    let Some(gpu) = named() else { return };
    let (with, without) = (Service::start(&gpu).await, Service::start("off").await);
    let documents = [document(31, WORDS), document(32, WORDS), document(33, WORDS)];
    let asks: Vec<(&Document, &str)> =
        documents.iter().map(|document| (document, question(document))).collect();
    let texts = async |service: &Service| -> Vec<String> {
        let chats = asks.iter().map(|(document, question)| service.chat(document, question));
        join_all(chats).await.into_iter().map(|(text, _)| text).collect()
    };
    let want = texts(&without).await;
    assert_eq!(texts(&with).await, want, "answers at the same time");
    // The document is known by now, and the same answer follows.
    let (document, question) = asks[0];
    let (known, again) = (without.chat(document, question).await, with.chat(document, question).await);
    assert!(known.1 > 0, "nothing was known");
    assert_eq!((&again, &again.0), (&known, &want[0]), "with a known prefix");
    let want = without.assist(document, question).await;
    assert_eq!(want.1.len(), TOKENS, "{want:?}");
    assert_eq!(with.assist(document, question).await, want, "a mask and the first tokens");
    let log = with.log();
    assert!(log.contains("a GPU computes layers") && !log.contains("the GPU failed"), "{log}");
    assert!(!without.log().contains("a GPU computes"), "{}", without.log());
}

/// Runs `baton ask` about a document; returns the answer, and what it said beside.
fn asked(folder: &Path, gpu: &str) -> (String, String) {
    let (document, path) = (document(34, WORDS), folder.join("document.md"));
    std::fs::write(&path, &document.text).expect("write the document");
    let mut command = cpu_program("baton").expect("the program is built");
    command.arg("ask").arg(&path).arg(question(&document));
    command.args(["--no-cloud", "--json", "--instant", "--gpu", gpu]);
    command.args(["--max-tokens", &TOKENS.to_string(), "--config-dir"]).arg(folder);
    let out = command.arg("--model").arg(models_folder().join("demo-device.gguf")).output();
    let out = out.expect("it starts");
    let [text, said] = [out.stdout, out.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    assert!(out.status.success(), "{said}");
    let report = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let report = report.unwrap_or_else(|| panic!("no report in {text}"));
    (report["answer"].as_str().expect("an answer").to_owned(), said)
}

#[test]
fn a_question_is_answered_on_a_gpu_as_without() {
    let Some(gpu) = named() else { return };
    let folder = tempfile::tempdir().expect("make a folder");
    let ((with, said), (without, quiet)) = (asked(folder.path(), &gpu), asked(folder.path(), "off"));
    assert!(!without.trim().is_empty() && !quiet.contains("gpu: "), "{without}\n{quiet}");
    assert_eq!(with, without);
    assert!(said.contains("gpu: ") && said.contains("computes all"), "{said}");
}

/// Checks that both programs refuse these options, with this status and words.
#[track_caller]
fn check_refused(options: &[&str], status: i32, want: &str) {
    let folder = tempfile::tempdir().expect("make a folder");
    let document = folder.path().join("document.md");
    std::fs::write(&document, "The key is red.").expect("write the document");
    for (name, model) in [("baton", "demo-device.gguf"), ("baton-cloud", "demo-cloud.gguf")] {
        let mut command = cpu_program(name).expect("the program is built");
        if name == "baton" {
            command.arg("ask").arg(&document).args(["Which colour?", "--no-cloud", "--config-dir"]);
            command.arg(folder.path());
        } else {
            command.args(["serve", "--listen", "127.0.0.1:0", "--database", ":memory:"]);
        }
        let out = command.arg("--model").arg(models_folder().join(model)).args(options).output();
        let out = out.expect("it starts");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{name} {options:?}: {said}");
        assert!(said.contains(want) && out.stdout.is_empty(), "{name} {options:?}: {said}");
    }
}

#[test]
fn wrong_choices_are_refused_with_what_helps() {
    let want = "`rocm` is no choice of a GPU: want auto, off, or a device such as cuda:0";
    check_refused(&["--gpu", "rocm"], 2, want);
    let want = "`lots` is no amount of GPU memory: want a size like 6GB";
    check_refused(&["--gpu", "off", "--vram", "lots"], 2, want);
    check_refused(&["--gpu", "vulkan:1000"], 1, "there is no GPU `vulkan:1000`");
    let Some(gpu) = named() else { return };
    check_refused(&["--gpu", &gpu, "--vram", "1KB"], 1, "not one layer fits into the memory of");
}
