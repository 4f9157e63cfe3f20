//! Receipts of the real agent against what really left: a proxy between it and the real cloud keeps each
//! byte.
//!
//! Digests and lengths are computed from the capture. Ranges are found again by comparing the document with
//! the text in the captured body, without the receipt.

use std::{io::Read as _, path::Path, process::Stdio};

use baton_corpus::{QuestionKind, document};
use baton_device::conversations::{Conversations, FILE};
use baton_device::privacy::Span;
use baton_device::receipt::{Purpose, Receipt, SentRequest};
use baton_device::relay::Source;
use baton_e2e::{
    http::client,
    process::{AgentProcess, CloudProcess, cpu_program, models_folder},
    proxy::{Cut, Proxy},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncWriteExt as _, process::Command};

const PRIVATE: &str = "Write to anna.kowalska@example.com, or call +49 30 901820.";

/// A body as it left.
struct Captured {
    body: Vec<u8>,
    is_gzip: bool,
}

impl Captured {
    fn json(&self) -> Vec<u8> {
        let mut json = Vec::new();
        if !self.is_gzip {
            return self.body.clone();
        }
        flate2::read::GzDecoder::new(&self.body[..]).read_to_end(&mut json).expect("it inflates");
        json
    }
}

/// Returns the bodies of the assist requests in what was on the wire.
fn captured(proxy: &Proxy) -> Vec<Captured> {
    captured_at(proxy, "/v1/assist")
}

/// Returns the bodies of the requests to a path in what was on the wire.
fn captured_at(proxy: &Proxy, path: &str) -> Vec<Captured> {
    let head = format!("POST {path} HTTP/1.1\r\n").into_bytes();
    let wire = proxy.count().sent();
    let starts = wire.windows(head.len()).enumerate().filter(|(_, at)| *at == head).map(|(at, _)| at);
    let request = |start: usize| {
        let rest = &wire[start..];
        let end = rest.windows(4).position(|at| at == b"\r\n\r\n").expect("a head ends") + 4;
        let head = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a body has a length").parse().expect("a number");
        Captured { body: rest[end..end + length].to_vec(), is_gzip: head.contains("content-encoding: gzip") }
    };
    starts.map(request).collect()
}

fn baton(word: &str, folder: &Path) -> Command {
    let mut baton = Command::from(cpu_program("baton").expect("the program is built"));
    baton.arg(word).arg("--config-dir").arg(folder).stdin(Stdio::null());
    baton
}

/// Makes a command that asks the cloud behind a proxy.
fn asking(word: &str, folder: &Path, proxy: &Proxy, mode: &str) -> Command {
    let mut baton = baton(word, folder);
    baton.arg("--model").arg(models_folder().join("demo-device.gguf"));
    baton.args(["--cloud", &proxy.url(), "--yes", "--mode", mode]);
    // A device that is as fast as this machine might not wait for the cloud.
    baton.args(["--emulate-prefill-ms-per-token", "1", "--emulate-decode-ms", "10"]);
    baton
}

/// Runs a command; returns whether it succeeded and all that it said.
async fn run(command: &mut Command) -> (bool, String) {
    let out = command.output().await.expect("it starts");
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8(said).expect("it prints text"))
}

async fn receipt(folder: &Path, words: &[&str]) -> (bool, String) {
    run(baton("receipt", folder).args(words)).await
}

/// Returns the signed receipt of an answer, after the program has found that it holds.
async fn exported(folder: &Path, id: &str) -> String {
    let (holds, said) = receipt(folder, &["verify", id]).await;
    assert!(holds && said.contains("this device's key"), "{said}");
    let (is_there, signed) = receipt(folder, &["export", id]).await;
    assert!(is_there, "{signed}");
    signed
}

fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Checks a request of a receipt against the captured body of it.
#[track_caller]
fn check_request(told: &SentRequest, proxy: &Proxy, sent: &Captured) -> Value {
    assert_eq!(told.url, format!("{}/v1/assist", proxy.url()));
    assert_eq!((told.body.bytes, told.body.digest.to_string()), (sent.body.len(), hex(&sent.body)));
    assert_eq!(told.encoding.as_deref(), sent.is_gzip.then_some("gzip"));
    let json = sent.json();
    assert_eq!((told.json.bytes, told.json.digest.to_string()), (json.len(), hex(&json)));
    let json: Value = serde_json::from_slice(&json).expect("it is JSON");
    assert_eq!(json["request_id"], told.id.to_string());
    let segments = json["segments"].as_array().expect("segments").len();
    let of_segments = told.texts.iter().filter(|text| text.text.ends_with("/text")).count();
    assert_eq!(of_segments, segments, "the receipt has each text of the prompt");
    for text in &told.texts {
        let sent = json.pointer(&text.text).and_then(Value::as_str).unwrap_or_default();
        let bytes: usize = text.parts.iter().map(Span::sent_bytes).sum();
        assert_eq!(bytes, sent.len(), "{}", text.text);
    }
    json
}

/// Returns which bytes of `given` are in `sent`, whose placeholders stand for others: found by comparing.
fn compared(given: &str, sent: &str) -> Vec<[usize; 2]> {
    let mut ranges = Vec::new();
    let (mut at, mut rest) = (0, sent);
    while !rest.is_empty() {
        let is_placeholder = |text: &str| {
            let inner = text.split_once(']').map_or("", |(inner, _)| inner);
            let parts = inner.strip_prefix('[').and_then(|inner| inner.split_once('_'));
            parts.is_some_and(|(kind, number)| {
                kind.bytes().all(|b| b.is_ascii_uppercase()) && number.parse::<u32>().is_ok()
            })
        };
        let next = rest.match_indices('[').map(|(at, _)| at).find(|at| is_placeholder(&rest[*at..]));
        let (copied, after) = rest.split_at(next.unwrap_or(rest.len()));
        if !copied.is_empty() {
            let start = at + given[at..].find(copied).expect("what was sent is in the document");
            at = start + copied.len();
            ranges.push([start, at]);
        }
        rest = after.split_once(']').map_or("", |(_, rest)| rest);
    }
    ranges
}

/// Checks the ranges of a text that was given against what was sent of it.
#[track_caller]
fn check_ranges(told: &SentRequest, json: &Value, place: &str, given: &str) {
    let sent = json.pointer(place).and_then(Value::as_str).expect("it was sent");
    let text = told.texts.iter().find(|text| text.text == place).expect("it is in the receipt");
    assert_eq!(text.given_bytes, given.len());
    let ranges: Vec<[usize; 2]> = text
        .parts
        .iter()
        .filter_map(|part| match part {
            Span::Sent(range) => Some(*range),
            Span::Replaced { .. } | Span::Added(_) => None,
        })
        .collect();
    assert_eq!(ranges, compared(given, sent), "{place}");
    for part in &text.parts {
        let Span::Replaced { at: [start, end], kind, by } = part else { continue };
        assert!(by.starts_with(&format!("[{}_", kind.label())), "{by}");
        assert!(!sent.contains(&given[*start..*end]), "a value that is said to have stayed was sent");
    }
}

/// Returns how many tokens each side wrote, as the receipt says; the ranges must have no gap.
#[track_caller]
fn written(receipt: &Receipt) -> (usize, usize) {
    let mut next = 0;
    let mut counts = (0, 0);
    for range in &receipt.tokens {
        assert_eq!(range.from, next, "{:?}", receipt.tokens);
        next = range.to;
        match range.by {
            Source::Cloud => counts.0 += range.tokens(),
            Source::Device => counts.1 += range.tokens(),
        }
    }
    counts
}

async fn cloud() -> CloudProcess {
    CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &[]).await.expect("the cloud starts")
}

/// Asks about a document; returns its report and the receipt.
async fn ask(folder: &Path, proxy: &Proxy, mode: &str, document: &str) -> (Value, Receipt) {
    let path = folder.join("document.md");
    std::fs::write(&path, document).expect("write the document");
    let mut ask = asking("ask", folder, proxy, mode);
    ask.arg(path).args(["Whom may I write to at jo.quill@example.org?", "--json", "--instant"]);
    ask.args(["--max-tokens", "16"]).args((mode == "relay").then_some("--assist-tokens=6"));
    let out = ask.output().await.expect("it starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).expect("it prints JSON");
    let receipt = Receipt::read(exported(folder, "1").await.as_bytes()).expect("it is a receipt");
    let count = |key: &str| report[key].as_u64().expect("a number") as usize;
    assert_eq!(written(&receipt), (count("tokens_from_cloud"), count("tokens_from_device")));
    (report, receipt)
}

#[tokio::test]
async fn a_receipt_of_a_document_is_what_left_byte_for_byte() {
    let cloud = cloud().await;
    let long = format!("# Rivers\n\n{}\n\n{PRIVATE}\n", "Rivers are long, and they are wet. ".repeat(200));
    for (mode, document, is_gzip) in
        [("relay", long.as_str(), true), ("cloud", PRIVATE, false), ("device", PRIVATE, false)]
    {
        let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
        let folder = tempfile::tempdir().expect("make a folder");
        let (report, made) = ask(folder.path(), &proxy, mode, document).await;
        let sent = captured(&proxy);
        assert_eq!(made.requests.len(), sent.len(), "{mode}");
        assert_eq!(made.requests.len(), usize::from(mode != "device"), "{mode}");
        assert_eq!(made.cloud.is_some(), mode != "device");
        assert_eq!(made.device.model.is_some(), mode != "cloud");
        assert!(report["tokens_from_cloud"].as_u64() > Some(0) || mode == "device", "{report}");
        let checked = ["verify", "1", "--document", &folder.path().join("document.md").display().to_string()];
        let (holds, said) = receipt(folder.path(), &checked).await;
        let (is_there, shown) = receipt(folder.path(), &["show"]).await;
        assert!(is_there);
        let (Some(told), Some(sent)) = (made.requests.first(), sent.first()) else {
            assert!(!holds && said.contains("no text that was sent"), "{said}");
            assert!(shown.contains("nothing was sent"), "{shown}");
            continue;
        };
        assert_eq!((told.purpose, sent.is_gzip), (Purpose::Answer, is_gzip));
        let json = check_request(told, &proxy, sent);
        let place = |text: &str| {
            let segments = json["segments"].as_array().expect("segments");
            let nth = segments
                .iter()
                .position(|segment| segment["text"].as_str().is_some_and(|sent| sent.contains(text)));
            format!("/segments/{}/text", nth.expect("it was sent"))
        };
        check_ranges(told, &json, &place("Write to"), document);
        let kinds: Vec<(&str, usize)> =
            told.replaced().into_iter().map(|(kind, times)| (kind.label(), times)).collect();
        assert_eq!(kinds, [("PHONE", 1), ("EMAIL", 2)], "of the document and of the question");
        assert!(holds && said.contains("make, of this document, the text that was sent"), "{said}");
        assert!(shown.contains("stayed here (EMAIL), sent as [EMAIL_1]"), "{shown}");
        assert!(shown.contains(&told.body.digest.to_string()) && !shown.contains("kowalska"), "{shown}");
    }
}

#[tokio::test]
async fn a_verified_answer_is_the_clouds_and_its_receipt_has_each_draft() {
    let folder = tempfile::tempdir().expect("make a folder");
    let database = folder.path().join("cloud.db").display().to_string();
    let mut set = Command::from(cpu_program("baton-cloud").expect("the program is built"));
    set.args(["scenes", "set", "doc-qa", "--database", &database, "--verify", "on"]);
    let (is_set, said) = run(&mut set).await;
    assert!(is_set, "{said}");
    let model = models_folder().join("demo-cloud.gguf");
    let cloud = CloudProcess::start_on(&model, &database, &[]).await.expect("the cloud starts");
    let document = document(7_100_000, 200);
    let path = folder.path().join("document.md");
    std::fs::write(&path, &document.text).expect("write the document");
    let asked = document.question(QuestionKind::Long).expect("a document has a long question");
    let (mut answers, mut drafts) = (Vec::new(), 0);
    for mode in ["cloud", "relay"] {
        let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
        let folder = tempfile::tempdir().expect("make a folder");
        let mut ask = asking("ask", folder.path(), &proxy, mode);
        ask.arg(&path).args([asked.text.as_str(), "--json", "--instant", "--no-names", "--max-tokens", "48"]);
        ask.args((mode == "relay").then_some("--assist-tokens=6"));
        let out = ask.output().await.expect("it starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).expect("it prints JSON");
        answers.push(report["answer"].as_str().expect("a text").to_owned());
        let receipt = Receipt::read(exported(folder.path(), "1").await.as_bytes()).expect("it is a receipt");
        let (first, rest) = receipt.requests.split_first().expect("the question was sent");
        check_request(first, &proxy, &captured(&proxy)[0]);
        let sent = captured_at(&proxy, &format!("/v1/assist/{}/verify", first.id));
        assert_eq!(rest.len(), sent.len(), "{mode}");
        for (told, sent) in rest.iter().zip(&sent) {
            assert_eq!((told.purpose, &told.texts[..]), (Purpose::Verify, &[][..]));
            assert_eq!((told.body.bytes, told.body.digest.to_string()), (sent.body.len(), hex(&sent.body)));
        }
        drafts += rest.len();
        let by_device = receipt.tokens.iter().filter(|range| range.by == Source::Device);
        assert!(
            by_device.clone().all(|range| range.verified_by == Some(Source::Cloud)),
            "{:?}",
            receipt.tokens
        );
        assert_eq!(by_device.count() > 0, mode == "relay", "{:?}", receipt.tokens);
        let unverified = &report["verification"]["unverified_from"];
        assert!(unverified.is_null(), "{report}");
    }
    assert!(drafts > 0, "the relay has drafts checked");
    assert_eq!(answers[0], answers[1], "the relay shows what the cloud alone would have written");
}

#[tokio::test]
async fn each_turn_of_a_chat_and_of_an_application_has_a_receipt() {
    let (cloud, folder) = (cloud().await, tempfile::tempdir().expect("make a folder"));
    let turns = [PRIVATE, "And what is the number of anna.kowalska@example.com?"];
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let mut chat = asking("chat", folder.path(), &proxy, "cloud");
    chat.args(["--instant", "--max-tokens", "8"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut chat = chat.kill_on_drop(true).spawn().expect("it starts");
    let mut input = chat.stdin.take().expect("it has an input");
    input.write_all(format!("{}\n", turns.join("\n")).as_bytes()).await.expect("it reads");
    drop(input);
    assert!(chat.wait_with_output().await.expect("it ends").status.success());
    let sent = captured(&proxy);
    assert_eq!(sent.len(), turns.len());
    for (nth, sent) in sent.iter().enumerate() {
        let id = (nth + 1).to_string();
        let receipt = Receipt::read(exported(folder.path(), &id).await.as_bytes()).expect("it is a receipt");
        assert_eq!((receipt.asked_by.as_str(), receipt.requests.len()), ("baton chat", 1));
        let json = check_request(&receipt.requests[0], &proxy, sent);
        let last = json["segments"].as_array().expect("segments").len() - 1;
        check_ranges(&receipt.requests[0], &json, &format!("/segments/{last}/text"), turns[nth]);
    }

    // An application, over a line that is cut once: the stream is resumed, and no text is sent again.
    let proxy = Proxy::start(cloud.address(), Cut::OnceBeforeEvent(3)).await.expect("a proxy");
    let mut serve = asking("serve", folder.path(), &proxy, "relay");
    serve.args(["--listen", "127.0.0.1:0"]);
    let agent = AgentProcess::start(&mut serve).await.expect("it listens");
    let body = json!({ "messages": [{ "role": "user", "content": PRIVATE }], "max_tokens": 12 });
    let answer = client().post(format!("{}/v1/chat/completions", agent.url())).json(&body).send().await;
    let answer: Value = answer.expect("an answer").json().await.expect("it is JSON");
    let key = answer["baton"]["record"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let get = async |path: &str| {
        let reply = client().get(format!("{}{path}", agent.url())).send().await.expect("it replies");
        (reply.status().as_u16(), reply.text().await.expect("a text"))
    };
    let (status, signed) = get(&format!("/answers/{key}/receipt")).await;
    assert_eq!((status, format!("{signed}\n")), (200, exported(folder.path(), "3").await));
    let receipt = Receipt::read(signed.as_bytes()).expect("it is a receipt");
    let sent = captured(&proxy);
    assert_eq!((proxy.count().cuts(), sent.len(), receipt.requests.len()), (1, 1, 1));
    check_request(&receipt.requests[0], &proxy, &sent[0]);
    let count = |key: &str| answer["baton"]["source"][key].as_u64().expect("a number") as usize;
    assert_eq!(written(&receipt), (count("cloud_tokens"), count("device_tokens")));
    assert_eq!(get("/answers/0123456789abcdef0123456789abcdef/receipt").await.0, 404);
}

#[tokio::test]
async fn what_was_changed_is_found_and_named() {
    let (cloud, folder) = (cloud().await, tempfile::tempdir().expect("make a folder"));
    let folder = folder.path();
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let (report, _) = ask(folder, &proxy, "cloud", PRIVATE).await;
    let signed = exported(folder, "1").await;
    let path = folder.join("receipt.json");
    let verified = async |bytes: &[u8], more: &[&str]| {
        std::fs::write(&path, bytes).expect("write the receipt");
        let path = path.display().to_string();
        receipt(folder, &[&["verify", &path], more].concat()).await
    };
    assert!(verified(signed.as_bytes(), &[]).await.0);
    for at in 0..signed.len() {
        let mut changed = signed.clone().into_bytes();
        changed[at] ^= 1 << (at % 8);
        assert!(Receipt::read(&changed).is_err(), "byte {at}");
    }
    // A bit of the signed bytes, of the signature, and of the name of a field.
    let payload = signed.find("\"payload\":\"").expect("it has signed bytes") + 60;
    let signature = signed.find("\"sig\":\"").expect("it has a signature") + 20;
    for (at, what) in [(payload, "receipt"), (signature, "changed"), (3, "no receipt")] {
        let mut changed = signed.clone().into_bytes();
        changed[at] ^= 1;
        let (holds, said) = verified(&changed, &[]).await;
        assert!(!holds && said.contains(what), "{said}");
    }
    // Another device trusts it only by its key.
    let other = tempfile::tempdir().expect("make a folder");
    std::fs::write(&path, &signed).expect("write the receipt");
    let file = path.display().to_string();
    let (_, key) = receipt(folder, &["key"]).await;
    let (holds, said) = receipt(other.path(), &["verify", &file]).await;
    assert!(!holds && said.contains("another device signed it") && said.contains(key.trim()), "{said}");
    let (holds, said) = receipt(other.path(), &["verify", &file, "--key", key.trim()]).await;
    assert!(holds, "{said}");
    // A record that somebody changed later.
    let document = folder.join("document.md").display().to_string();
    std::fs::write(&document, PRIVATE.replace("call", "ring")).expect("write the document");
    let (holds, said) = receipt(folder, &["verify", "--document", &document]).await;
    assert!(!holds && said.contains("the document was changed"), "{said}");
    let (_, shown) = receipt(folder, &["show", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown).expect("it prints JSON");
    assert_eq!(shown["key"], key.trim());
    let kept = Conversations::open(&folder.join(FILE)).await.expect("the records are there");
    let record = report["record"].as_str().expect("it was recorded");
    kept.record_audit(record, &json!({ "regret": 0 }), None, |_, _| None).await.expect("it is changed");
    let (holds, said) = receipt(folder, &["verify"]).await;
    assert!(!holds && said.contains("the report in the record was changed"), "{said}");
}
