//! Tests what the service reports: metrics over HTTP, spans to a collector, and logs without any text of a
//! prompt.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_cloud::observe::metrics::METRICS;
use baton_cloud::observe::trace::Traces;
use baton_cloud::serve::metrics;
use baton_cloud::service::ServiceOptions;
use baton_edge::HttpLimits;
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AttributeValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::client::{HANG, Server};
use crate::program::program;
use crate::world::{document, options, request};

const CANARY: &str = "xylophone-canary-4711";

fn observability(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/observability").join(file)
}

#[tokio::test]
async fn figures_follow_the_requests() {
    let server = Server::start().await;
    let any = "127.0.0.1:0".parse().unwrap();
    let (address, task) = metrics::listen(Some(any), &server.service).await.unwrap().unwrap();
    let body = serde_json::to_value(request("doc-qa", &document(12), 5)).unwrap();
    assert_eq!(server.post("/v1/assist", &body).await.status, 200);
    // A seed whose tokens do not end the answer before its limit.
    let messages = json!([{ "role": "user", "content": "x" }]);
    let chat = json!({ "model": "tiny", "messages": messages, "max_tokens": 3, "seed": 7 });
    assert_eq!(server.post("/v1/chat/completions", &chat).await.status, 200);
    // The reader gets the answer's end a moment before the metrics do.
    let text = async {
        loop {
            let text = scrape(address).await;
            if text.matches("\nbaton_requests_total{").count() == 2 {
                return text;
            }
        }
    };
    let text = tokio::time::timeout(HANG, text).await.expect("both requests are counted");
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    for line in [
        "baton_requests_total{scene=\"doc-qa\",model=\"tiny\",outcome=\"cap\"} 1",
        "baton_requests_total{scene=\"\",model=\"tiny\",outcome=\"cap\"} 1",
        "baton_handoffs_total{outcome=\"cap\"} 1",
        "baton_generation_tokens_total{scene=\"doc-qa\",model=\"tiny\"} 5",
        "baton_time_to_first_token_seconds_count{scene=\"doc-qa\",model=\"tiny\"} 1",
        "baton_refined_prompt_ratio_count{scene=\"doc-qa\"} 1",
        "baton_refine_seconds_count 1",
        "baton_assisted_tokens_sum{scene=\"doc-qa\"} 5",
        "baton_scene_config_generation{scene=\"chat\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in {text}");
    }
    task.abort();
}

async fn scrape(address: std::net::SocketAddr) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Returns the names of metrics in a text, without the endings of histograms.
fn named(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut names = Vec::new();
    for (at, _) in text.match_indices("baton_") {
        let name: String = text[at..].chars().take_while(|&c| is_name(c)).collect();
        let bare = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        names.push(bare.map_or(name.clone(), str::to_owned));
    }
    names
}

#[test]
fn dashboard_and_alerts_name_what_exists() {
    let known: Vec<&str> = METRICS.iter().map(|(name, ..)| *name).collect();
    for file in ["alerts.yaml", "alerts_test.yaml", "dashboard.json"] {
        let text = std::fs::read_to_string(observability(file)).unwrap();
        let names = named(&text);
        assert!(names.len() > 5, "{file} names metrics");
        let unknown: Vec<&String> = names.iter().filter(|name| !known.contains(&name.as_str())).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard = std::fs::read_to_string(observability("dashboard.json")).unwrap();
    let shown = named(&dashboard);
    let hidden: Vec<&&str> = known.iter().filter(|name| !shown.iter().any(|shown| shown == **name)).collect();
    assert!(hidden.is_empty(), "the dashboard does not show {hidden:?}");
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn alerts_fire_when_they_should() {
    let tested = Command::new("promtool")
        .args(["test", "rules", "alerts_test.yaml"])
        .current_dir(observability(""))
        .output();
    match tested {
        Err(err) => println!("skipped: cloud: no promtool (Debian's prometheus): {err}"),
        Ok(output) => assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Starts a collector that accepts one message after the other and keeps their spans.
async fn collector() -> (String, Arc<Mutex<Vec<(String, Span)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let kept: Arc<Mutex<Vec<(String, Span)>>> = Arc::default();
    let into = kept.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let into = into.clone();
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                while stream.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {
                    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
                    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
                    assert!(text.starts_with("post /v1/traces "), "{text}");
                    assert!(text.contains("content-type: application/x-protobuf"), "{text}");
                    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                    let body = &bytes[head + 4..];
                    if body.len() < length.parse::<usize>().unwrap() {
                        continue;
                    }
                    let message = ExportTraceServiceRequest::decode(body).unwrap();
                    for resource in message.resource_spans {
                        let attributes = resource.resource.unwrap().attributes;
                        let service = attributes.iter().find(|pair| pair.key == "service.name").unwrap();
                        let service = format!("{:?}", service.value);
                        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                        into.lock().unwrap().extend(spans.map(|span| (service.clone(), span)));
                    }
                    let reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(reply).await.unwrap();
                    bytes.clear();
                }
            });
        }
    });
    (format!("http://{address}"), kept)
}

#[tokio::test]
async fn spans_of_a_request_reach_the_collector_under_the_devices_trace() {
    let (endpoint, kept) = collector().await;
    let (traces, task) = Traces::start(&endpoint).unwrap();
    let options = ServiceOptions { traces: Some(traces), ..options() };
    let server = Server::with(options, None, HttpLimits::default(), Default::default()).await;
    let body = serde_json::to_vec(&request("doc-qa", &format!("{CANARY}. {}", document(12)), 5)).unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [("content-type", "application/json"), ("traceparent", parent)];
    assert_eq!(server.send("POST", "/v1/assist", &headers, &body).await.status, 200);
    let unsampled = [("content-type", "application/json"), ("traceparent", &parent.replace("-01", "-00"))];
    assert_eq!(server.send("POST", "/v1/assist", &unsampled, &body).await.status, 200);
    let arrived = async {
        while kept.lock().unwrap().len() < 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, arrived).await.expect("the spans arrive");
    let spans = kept.lock().unwrap().clone();
    let mut names: Vec<&str> = spans.iter().map(|(_, span)| span.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["chat", "decode", "prefill", "queue", "refine"], "and none of what is not sampled");
    let whole = &spans.iter().find(|(_, span)| span.name == "chat").unwrap().1;
    assert_eq!(hex::encode(&whole.parent_span_id), "00f067aa0ba902b7");
    for (service, span) in &spans {
        assert!(service.contains("baton-cloud"), "{service}");
        assert_eq!(hex::encode(&span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(span.start_time_unix_nano >= whole.start_time_unix_nano, "{}", span.name);
        assert!(span.end_time_unix_nano <= whole.end_time_unix_nano, "{}", span.name);
        assert!(span.name == "chat" || span.parent_span_id == whole.span_id, "{}", span.name);
    }
    let attribute = |key: &str| {
        let pair = whole.attributes.iter().find(|pair| pair.key == key).unwrap_or_else(|| panic!("no {key}"));
        pair.value.clone().unwrap().value.unwrap()
    };
    assert_eq!(attribute("gen_ai.operation.name"), AttributeValue::StringValue("chat".into()));
    assert_eq!(attribute("gen_ai.request.model"), AttributeValue::StringValue("tiny".into()));
    assert_eq!(attribute("gen_ai.usage.output_tokens"), AttributeValue::IntValue(5));
    assert_eq!(attribute("baton.scene"), AttributeValue::StringValue("doc-qa".into()));
    assert!(!format!("{spans:?}").contains(CANARY), "a span holds text of a prompt");
    drop(server);
    task.abort();
}

#[test]
fn logs_hold_no_text_of_a_prompt_or_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap()).unwrap();
    let mut child = program()
        .args(["serve", "--database", ":memory:", "--listen", "127.0.0.1:0", "--threads", "1", "--json"])
        .args(["--log-format", "json", "--metrics-listen", "127.0.0.1:0", "--model"])
        .arg(&model)
        .env("RUST_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut log = String::new();
        stderr.read_to_string(&mut log).unwrap();
        log
    });
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let hello: Value = serde_json::from_str(&line).unwrap();
    assert!(hello["metrics"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{hello}");
    let address = hello["listening"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let message = json!([{ "role": "user", "content": format!("{CANARY} says hello") }]);
    let answers =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "enum": [CANARY] } } });
    let bad = json!([{ "role": "user", "content": [{ "type": "image_url", "text": CANARY }] }]);
    for (body, status) in [
        (json!({ "model": "tiny", "messages": message, "max_tokens": 4, "stream": true }), 200),
        (json!({ "model": "tiny", "messages": message, "max_tokens": 100, "response_format": answers }), 200),
        (json!({ "model": "tiny", "messages": bad }), 400),
    ] {
        let reply = post(&address, &body.to_string());
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{reply}");
    }
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    let log = log.join().unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended = |line: &&Value| {
        line["fields"]["message"] == "answer ended" && line["fields"]["request"] == "edge-4711"
    };
    let fields = &lines.iter().find(ended).unwrap_or_else(|| panic!("{log}"))["fields"];
    assert_eq!(
        (&fields["tenant"], &fields["model"], &fields["scene"]),
        (&json!("default"), &json!("tiny"), &json!("")),
        "{fields}"
    );
    assert!(!log.contains(CANARY), "the log holds text of a prompt");
    assert!(!log.contains("xylophone"), "the log holds text of a prompt");
}

fn post(address: &str, body: &str) -> String {
    use std::io::Write;

    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         x-request-id: edge-4711\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}
