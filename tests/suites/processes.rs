//! The real programs as processes. Tests the relay over a socket, a connection cut at chosen events, a killed
//! cloud, several models and an adapter. Also private values over several turns, models that are damaged or
//! cut short in use, bad input, interrupts and terminals.
//!
//! Speeds are emulated, so that a cut happens in the middle of an answer; no test checks a time.

#[cfg(target_os = "linux")]
#[path = "processes/chat.rs"]
mod chat;
#[path = "processes/conversations.rs"]
mod conversations;
#[path = "processes/damaged.rs"]
mod damaged;
#[path = "processes/doctor.rs"]
mod doctor;
#[path = "processes/experiments.rs"]
mod experiments;
#[path = "processes/handoff.rs"]
mod handoff;
#[path = "processes/limits.rs"]
mod limits;
#[path = "processes/models.rs"]
mod models;
#[path = "processes/privacy.rs"]
mod privacy;
#[path = "processes/route.rs"]
mod route;
#[path = "processes/terminal.rs"]
mod terminal;
#[path = "processes/tools.rs"]
mod tools;

use std::{io::Read as _, path::Path, process::Output};

use baton_e2e::{
    demo::emulation::CLOUD,
    process::{CloudProcess, cpu_program, models_folder},
    proxy::{Cut, Proxy},
    setting::Setting,
};
use baton_engine::Model;

const ASSIST_TOKENS: usize = 20;

fn setting(seed: u64, tokens: usize) -> Setting {
    let model =
        Model::open(&models_folder().join("demo-cloud.gguf")).expect("the demo model is in the checkout");
    Setting::new(&model, seed, tokens).expect("the generator has such a document")
}

async fn cloud() -> CloudProcess {
    CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &CLOUD.options())
        .await
        .expect("the cloud starts")
}

#[tokio::test]
async fn a_relay_over_real_sockets_is_right_and_by_both() {
    let (setting, cloud) = (setting(3, 900), cloud().await);
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let report = setting.ask(&proxy.url(), &[]).await.expect("an answer");
    assert_eq!(report.answer.trim(), setting.asked.question.answer);
    assert_eq!(Some(report.tokens_from_cloud), report.assist_tokens);
    assert!(report.tokens_from_device > 0, "the device writes the rest");
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    assert!(proxy.count().up() > 0 && proxy.count().down() > 0, "the bytes went through the proxy");
    assert!(proxy.count().up() < setting.asked.document.text.len() as u64, "a long body is sent compressed");
    let ratio = report.refined_ratio.expect("the prompt was refined");
    assert!(ratio <= 0.25, "kept {ratio} of the content");
}

#[tokio::test]
async fn a_line_cut_at_an_event_leaves_a_whole_answer() {
    let (setting, cloud) = (setting(4, 900), cloud().await);
    for cut in [0, 1, 7, ASSIST_TOKENS - 1] {
        let proxy = Proxy::start(cloud.address(), Cut::BeforeEvent(cut)).await.expect("a proxy");
        let length = ASSIST_TOKENS.to_string();
        let report =
            setting.ask(&proxy.url(), &["--assist-tokens", &length, "--no-resume"]).await.expect("an answer");
        assert_eq!(report.tokens_from_cloud, cut, "tokens before the cut at {cut}");
        assert!(!report.notes.is_empty(), "a cut line is noted");
        assert!(report.tokens_from_device > 0, "the device goes on after a cut at {cut}");
        if cut > 0 {
            assert_eq!(report.answer.trim(), setting.asked.question.answer, "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn a_line_cut_once_is_mended_by_the_clouds_own_stream() {
    let (setting, cloud) = (setting(4, 900), cloud().await);
    let length = ASSIST_TOKENS.to_string();
    for cut in [1, 7, ASSIST_TOKENS - 1] {
        let proxy = Proxy::start(cloud.address(), Cut::OnceBeforeEvent(cut)).await.expect("a proxy");
        let report = setting.ask(&proxy.url(), &["--assist-tokens", &length]).await.expect("an answer");
        assert_eq!(proxy.count().cuts(), 1, "the line was cut at {cut}");
        assert_eq!(report.tokens_from_cloud, ASSIST_TOKENS, "all of the cloud's tokens came, cut at {cut}");
        assert!(report.notes.is_empty(), "{:?}", report.notes);
        assert_eq!(report.answer.trim(), setting.asked.question.answer, "cut at {cut}");
    }
    // Before the first token there is nothing to resume, so the device answers.
    let proxy = Proxy::start(cloud.address(), Cut::OnceBeforeEvent(0)).await.expect("a proxy");
    let report = setting.ask(&proxy.url(), &["--assist-tokens", &length]).await.expect("an answer");
    assert_eq!((report.tokens_from_cloud, report.notes.is_empty()), (0, false));
}

#[tokio::test]
async fn a_cloud_that_is_not_there_leaves_the_device_alone() {
    let (setting, mut cloud) = (setting(5, 300), cloud().await);
    let url = format!("http://{}", cloud.address());
    cloud.kill().await.expect("kill the cloud");
    let report = setting.ask(&url, &[]).await.expect("an answer without the cloud");
    assert_eq!(report.tokens_from_cloud, 0);
    assert!(report.tokens_from_device > 0);
    assert!(!report.notes.is_empty(), "it is noted that the cloud was not there");
}

/// Returns the sent bytes as text. Gzip members are found by their magic number, so that compressed bodies
/// can be read too.
fn readable(sent: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(sent).into_owned();
    for start in
        sent.windows(3).enumerate().filter(|(_, magic)| *magic == [0x1f, 0x8b, 8]).map(|(start, _)| start)
    {
        let mut body = String::new();
        // A body split by chunk headers does not inflate; the part that inflates is searched.
        let _ = flate2::read::GzDecoder::new(&sent[start..]).read_to_string(&mut body);
        text.push_str(&body);
    }
    text
}

#[tokio::test]
async fn private_values_do_not_cross_the_line() {
    let (setting, cloud) = (setting(6, 300), cloud().await);
    let text = format!(
        "{}\n\nWrite to anna.kowalska@example.com or call +49 30 901820.",
        setting.asked.document.text
    );
    std::fs::write(&setting.document, text).expect("write the document");
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    setting.ask(&proxy.url(), &[]).await.expect("an answer");
    let sent = readable(&proxy.count().sent());
    assert!(sent.contains("Write to "), "the body can be read: the check below would be empty");
    for private in ["anna.kowalska", "901820"] {
        assert!(!sent.contains(private), "`{private}` left the device");
    }
}

/// Runs a program that must refuse; returns its message.
fn refused(name: &str, arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = cpu_program(name)
        .expect("the program is built")
        .args(arguments)
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "`{name} {arguments:?}` did not refuse");
    assert!(status.code().is_some_and(|code| code != 101), "`{name} {arguments:?}` panicked: {said}");
    assert!(!said.trim().is_empty(), "`{name} {arguments:?}` refused without a word");
    said
}

#[track_caller]
fn check_refused(name: &str, arguments: &[&str], word: &str) {
    let said = refused(name, arguments);
    assert!(said.contains(word), "`{name} {arguments:?}` does not name `{word}`: {said}");
}

#[test]
fn bad_input_is_refused_with_its_name() {
    let scratch = tempfile::tempdir().expect("make a folder");
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let model = models_folder().join("demo-device.gguf");
    let bytes = std::fs::read(&model).expect("read the demo model");
    std::fs::write(path("cut.gguf"), &bytes[..bytes.len() / 2]).expect("write half a model");
    std::fs::write(path("not.gguf"), b"this is not a model").expect("write no model");
    std::fs::write(path("doc.md"), "A title\n\nA sentence.").expect("write a document");
    std::fs::write(path("doc.bin"), [0xff, 0xfe, 0x00, 0x01]).expect("write a binary file");
    let (model, config) = (model.display().to_string(), path("config"));
    let ask = |doc: &str, model: &str| {
        let arguments = ["ask", doc, "What?", "--model", model, "--no-cloud", "--config-dir", &config];
        arguments.map(str::to_owned)
    };
    let cases = [
        (ask(&path("missing.md"), &model), "missing.md"),
        (ask(&path("doc.bin"), &model), "doc.bin"),
        (ask(&path("doc.md"), &path("cut.gguf")), "cut.gguf"),
        (ask(&path("doc.md"), &path("not.gguf")), "not.gguf"),
    ];
    for (arguments, word) in &cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        check_refused("baton", &arguments, word);
    }
    for name in ["cut.gguf", "not.gguf", "missing.gguf"] {
        check_refused("baton-cloud", &["serve", "--model", &path(name), "--listen", "127.0.0.1:0"], name);
    }
    check_refused(
        "baton-cloud",
        &["scenes", "set", "doc-qa", "--ratio", "1.5", "--database", &path("db")],
        "ratio",
    );
    check_refused(
        "baton-cloud",
        &["scenes", "show", "no-such-scene", "--database", &path("db")],
        "no-such-scene",
    );
    assert!(Path::new(&path("doc.md")).is_file(), "the document is left alone");
}

#[test]
fn the_programs_teach_their_options() {
    for (name, arguments, word) in [
        ("baton", &["--help"][..], "ask"),
        ("baton", &["ask", "--help"], "--cloud"),
        ("baton-cloud", &["serve", "--help"], "--model"),
        ("baton-cloud", &["scenes", "--help"], "show"),
    ] {
        let out =
            cpu_program(name).expect("the program is built").args(arguments).output().expect("it starts");
        assert!(out.status.success());
        assert!(
            String::from_utf8_lossy(&out.stdout).contains(word),
            "`{name} {arguments:?}` does not name `{word}`"
        );
    }
}
