//! Two models in one cloud, and a scene with an adapter that the device has too.

use std::{ffi::OsString, path::Path, sync::Arc};

use baton_e2e::{
    http::client,
    process::{CloudProcess, cpu_program, models_folder},
};
use baton_engine::{
    Adapter, Detokenizer, Engine, EngineOptions, Model, PromptSegment, StepSeq, Wanted, gguf::Gguf,
    prompt::assemble,
};
use baton_synthetic::SyntheticAdapter;
use serde_json::{Value, json};

use super::{Setting, setting};

/// Number of tokens of the scene's answers that the cloud writes.
const ASSIST_TOKENS: usize = 8;
/// Least tokens of an answer, so that both sides write.
const ANSWER_TOKENS_MIN: usize = 24;
const TOKENS_MAX: usize = 160;

/// Returns what the model alone answers to the question, greedily, and the number of tokens.
fn alone(model: &Arc<Model>, adapter: Option<&Arc<Adapter>>, setting: &Setting) -> (String, usize) {
    let question = format!("\n\nQuestion: {}", setting.asked.question.text);
    let texts =
        [("system", SYSTEM), ("user", setting.asked.document.text.as_str()), ("user", question.as_str())];
    let parts = texts.map(|(role, text)| PromptSegment { role, text });
    let mut ids = assemble(model.tokenizer(), model.template(), &parts).expect("a prompt").ids;
    let mut engine = Engine::new(model.clone(), EngineOptions::default()).expect("an engine");
    let adapter = adapter.map(|adapter| engine.add_adapter(adapter.clone()).expect("of this model"));
    let seq = engine.create_with(adapter).expect("of this engine");
    let (mut text, mut tokens) = (String::new(), 0);
    let mut detokenizer = Detokenizer::new(model.tokenizer().clone());
    while tokens < TOKENS_MAX {
        let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
        let logits = engine.step(&[step], &mut ()).expect("a pass").remove(0).logits;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        let best = best.expect("there are logits") as u32;
        if model.tokenizer().is_end(best) {
            break;
        }
        text.push_str(&detokenizer.push(best));
        tokens += 1;
        ids = vec![best];
    }
    text.push_str(&detokenizer.finish());
    (text, tokens)
}

const SYSTEM: &str = "You answer from the document.";

/// Finds the weakest random adapter that changes this answer and leaves it long; returns its file and the
/// answer with it.
fn telling_adapter(model: &Arc<Model>, setting: &Setting, plain: &str) -> (Vec<u8>, String) {
    for step in 1..40 {
        let synthetic =
            SyntheticAdapter { strength: 0.02 * f64::from(step), ..SyntheticAdapter::of_seed(11) };
        let bytes = synthetic.to_gguf(model.config()).expect("any dense model has adapters");
        let gguf = Gguf::from_bytes(bytes.clone()).expect("a file");
        let adapter = Adapter::from_gguf(gguf, model).expect("of this model");
        let (text, tokens) = alone(model, Some(&adapter), setting);
        if text != plain && tokens >= ANSWER_TOKENS_MIN {
            return (bytes, text);
        }
    }
    panic!("no strength changes the answer and leaves it long");
}

/// Makes a database with the published scene.
fn database(scratch: &Path) -> String {
    let path = scratch.join("cloud.db").display().to_string();
    let length = ASSIST_TOKENS.to_string();
    let set = cpu_program("baton-cloud")
        .expect("the program is built")
        .args(["scenes", "set", "law", "--database", &path, "--model", "small", "--adapter", "law"])
        .args([
            "--system",
            SYSTEM,
            "--question-prefix",
            "\n\nQuestion: ",
            "--refine",
            "false",
            "--ratio",
            "1",
        ])
        .args(["--xi", "1", "--assist-tokens", &length])
        .output()
        .expect("the program starts");
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    path
}

#[tokio::test]
async fn a_scene_with_an_adapter_is_relayed_and_models_are_chosen_by_name() {
    let setting = setting(8, 400);
    let (small, big) = (models_folder().join("demo-device.gguf"), models_folder().join("demo-cloud.gguf"));
    let model = Model::open(&small).expect("the demo model is in the checkout");
    let (plain, _) = alone(&model, None, &setting);
    let (adapter, want) = telling_adapter(&model, &setting, &plain);
    let file = setting.scratch.path().join("law.gguf");
    std::fs::write(&file, adapter).expect("write the adapter");
    let of = |prefix: &str, path: &Path, suffix: &str| {
        OsString::from(format!("{prefix}={}{suffix}", path.display()))
    };
    let options =
        [OsString::from("--model"), of("small", &small, ""), "--adapter".into(), of("law", &file, "@small")];
    let cloud = CloudProcess::start_on(&big, &database(setting.scratch.path()), &options).await;
    let cloud = cloud.expect("the cloud starts with two models");
    let url = format!("http://{}", cloud.address());

    // Cloud and device have the same model and adapter, so together they write what that model alone would
    // write.
    let on_device = format!("law={}", file.display());
    let report = setting.ask(&url, &["--scene", "law", "--adapter", &on_device]).await.expect("an answer");
    assert_eq!(report.answer, want);
    assert!(report.tokens_from_cloud > 0 && report.tokens_from_device > 0, "both wrote: {report:?}");
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    // A device without the adapter's file goes on with its model alone, and says so.
    let report = setting.ask(&url, &["--scene", "law"]).await.expect("an answer");
    assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
    assert_eq!(report.notes[0]["code"], "adapter_missing");
    assert!(report.tokens_from_cloud > 0);
    lists_and_scenes_say_both(&url).await;
    chats_choose_a_model(&url).await;
}

async fn lists_and_scenes_say_both(url: &str) {
    let get = async |path: &str| -> Value {
        let reply = client().get(format!("{url}{path}")).send().await.expect("a reply");
        serde_json::from_str(&reply.text().await.expect("a body")).expect("JSON")
    };
    let models = get("/v1/models").await;
    let named: Vec<(&str, &Value)> = models["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| (model["id"].as_str().expect("a name"), &model["adapters"]))
        .collect();
    assert_eq!(named, [("demo-cloud", &json!([])), ("small", &json!(["law"]))]);
    let scene = get("/v1/scenes/law").await;
    assert_eq!((&scene["model"], &scene["adapter"]), (&json!("small"), &json!("law")));
}

async fn chats_choose_a_model(url: &str) {
    let chat = async |model: &str| -> (u16, Value) {
        let message = json!({ "role": "user", "content": "Hello" });
        let body = json!({ "model": model, "max_tokens": 4, "messages": [message] });
        let request = client().post(format!("{url}/v1/chat/completions")).body(body.to_string());
        let reply = request.header("content-type", "application/json").send().await.expect("a reply");
        let status = reply.status().as_u16();
        (status, serde_json::from_str(&reply.text().await.expect("a body")).expect("JSON"))
    };
    for name in ["small", "demo-cloud"] {
        let (status, reply) = chat(name).await;
        assert_eq!((status, &reply["model"]), (200, &json!(name)), "{reply}");
    }
    let (status, reply) = chat("law").await;
    assert_eq!((status, &reply["error"]["code"]), (404, &json!("model_not_found")), "{reply}");
}
