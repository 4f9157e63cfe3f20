//! Model files that are damaged, or cut short while in use: the programs report errors and go on running.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use baton_e2e::{
    http::client,
    process::{AgentProcess, CloudProcess, cpu_program, models_folder},
};
use baton_engine::gguf::Gguf;
use baton_synthetic::SyntheticModel;
use serde_json::json;
use tokio::process::Command;

use super::{check_refused, refused};

/// Number of tokens of a long answer.
const ANSWER_TOKENS: u32 = 60_000;
/// Number of tokens that the model can hold: more than that.
const CONTEXT_TOKENS: u32 = 65_000;
/// Longest time of an answer after its model is gone: a guard against hangs, not a measurement.
const HANG: Duration = Duration::from_secs(120);

fn demo() -> PathBuf {
    models_folder().join("demo-device.gguf")
}

/// Writes a model whose answers do not end by themselves.
fn endless(path: &Path) {
    let like = Gguf::open(demo()).expect("the demo model is in the checkout");
    let format = like.tensor("token_embd.weight").expect("every model has one").format;
    let model = SyntheticModel {
        endless: true,
        vocab_len: 320,
        context_len: CONTEXT_TOKENS,
        ..SyntheticModel::small("llama", format, 5)
    };
    std::fs::write(path, model.to_gguf().expect("the shape is right")).expect("write the model");
}

fn question(model: Option<&str>, stream: bool, max_tokens: u32) -> serde_json::Value {
    let message = json!({ "role": "user", "content": "Go on." });
    let mut body = json!({ "messages": [message], "stream": stream, "max_tokens": max_tokens });
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body
}

/// Asks for an endless answer, cuts the model's file short once the answer has begun, and returns what came
/// after.
async fn cut_within_an_answer(url: &str, name: Option<&str>, model: &Path) -> String {
    let asked =
        client().post(format!("{url}/v1/chat/completions")).json(&question(name, true, ANSWER_TOKENS)).send();
    let mut reply = asked.await.expect("a reply");
    assert_eq!(reply.status(), 200);
    let first = reply.chunk().await.expect("the answer begins").expect("it is not empty");
    let mut text = String::from_utf8_lossy(&first).into_owned();
    while !text.contains("content") {
        text += &String::from_utf8_lossy(&reply.chunk().await.expect("it goes on").expect("with words"));
    }
    let file = OpenOptions::new().write(true).open(model).expect("open the model");
    file.set_len(100).expect("cut it short");
    let rest = async {
        let mut rest = String::new();
        while let Ok(Some(chunk)) = reply.chunk().await {
            rest += &String::from_utf8_lossy(&chunk);
        }
        rest
    };
    tokio::time::timeout(HANG, rest).await.expect("the answer ends")
}

#[tokio::test]
async fn a_model_that_is_cut_short_in_an_answer_ends_the_answer_and_not_the_agent() {
    let scratch = tempfile::tempdir().expect("make a folder");
    let (model, log) = (scratch.path().join("endless.gguf"), scratch.path().join("log"));
    endless(&model);
    let mut command = Command::from(cpu_program("baton").expect("the program is built"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud", "--threads", "1", "--memory", "all"]);
    command.arg("--config-dir").arg(scratch.path().join("config")).arg("--model").arg(&model);
    command.args(["--kv-tokens", &CONTEXT_TOKENS.to_string()]);
    command.stderr(Stdio::from(std::fs::File::create(&log).expect("make the log")));
    let mut agent = AgentProcess::start(&mut command).await.expect("the agent starts");
    let rest = cut_within_an_answer(agent.url(), None, &model).await;
    assert!(rest.contains("\"error\""), "the answer does not say that it is not whole: {rest}");
    assert!(agent.ended().expect("the system says").is_none(), "the agent has ended");
    // It keeps refusing, because its memory no longer holds the model.
    let again =
        client().post(format!("{}/v1/chat/completions", agent.url())).json(&question(None, false, 4)).send();
    let again = again.await.expect("a reply");
    assert!(again.status().is_server_error(), "{}", again.status());
    let said = again.text().await.expect("a body");
    let told = said + &std::fs::read_to_string(&log).expect("read the log");
    assert!(told.contains("was cut short") && told.contains("endless.gguf"), "{told}");
}

#[tokio::test]
async fn a_model_that_is_cut_short_in_an_answer_ends_the_answer_and_not_the_cloud() {
    let scratch = tempfile::tempdir().expect("make a folder");
    let model = scratch.path().join("endless.gguf");
    endless(&model);
    let options = ["--kv-tokens".into(), CONTEXT_TOKENS.to_string().into()];
    let cloud = CloudProcess::start(&model, &options).await.expect("the cloud starts");
    let url = format!("http://{}", cloud.address());
    let rest = cut_within_an_answer(&url, Some("endless"), &model).await;
    assert!(rest.contains("\"error\""), "the answer does not say that it is not whole: {rest}");
    let again =
        client().post(format!("{url}/v1/chat/completions")).json(&question(Some("endless"), false, 4)).send();
    let again = again.await.expect("the cloud is there");
    assert!(again.status().is_server_error(), "{}", again.status());
    // A supervisor learns from this to restart the service.
    for path in ["healthz", "readyz"] {
        let said = client().get(format!("{url}/{path}")).send().await.expect("the cloud is there");
        assert_eq!(said.status(), 503, "{path}");
        let said = said.text().await.expect("a body");
        assert!(said.contains("was cut short") && said.contains("endless.gguf"), "{said}");
    }
}

/// Writes the demo model with a scale that is not a number in the middle of its first layer.
fn with_a_bad_scale(path: &Path) {
    let mut bytes = std::fs::read(demo()).expect("the demo model is in the checkout");
    let gguf = Gguf::from_bytes(bytes.clone()).expect("it is a model");
    let file = gguf.parts().next().expect("a file").as_ptr() as usize;
    let at = gguf.tensor("blk.0.attn_q.weight").expect("its queries").data.as_ptr() as usize - file;
    // A block of Q8_0 begins with its scale in 16 bits.
    bytes[at..at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    std::fs::write(path, bytes).expect("write the model");
}

#[tokio::test]
async fn a_damaged_weight_is_an_error_and_not_an_empty_answer() {
    let scratch = tempfile::tempdir().expect("make a folder");
    let [model, document, config] = ["bad.gguf", "doc.md", "config"].map(|name| scratch.path().join(name));
    with_a_bad_scale(&model);
    std::fs::write(&document, "A title\n\nA sentence.").expect("write the document");
    let [path, document, config] = [&model, &document, &config].map(|path| path.display().to_string());
    let ask = ["ask", &document, "What?", "--model", &path, "--no-cloud", "--config-dir", &config];
    check_refused("baton", &ask, "the model gives NaN");
    assert!(refused("baton", &ask).contains("its file is damaged"));
    let cloud = CloudProcess::start(&model, &[]).await.expect("the cloud starts");
    let url = format!("http://{}/v1/chat/completions", cloud.address());
    let reply = client().post(url).json(&question(Some("bad"), false, 4)).send().await.expect("a reply");
    assert!(reply.status().is_server_error(), "{}", reply.status());
}
