//! Engines elsewhere write the first L tokens, the cloud's own model makes the mask, and the device finishes.
//!
//! A scripted engine replays what real ones were seen to do. If the suite is called by its name, llama.cpp's
//! own server answers a hundred questions too, and vLLM if `BATON_VLLM` has the address of one that serves
//! the demo model. No test checks a time.

#[path = "upstream/faults.rs"]
mod faults;
#[path = "upstream/lacks.rs"]
mod lacks;
#[path = "upstream/real.rs"]
mod real;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use baton_corpus::{Document, Question, document};
use baton_e2e::{
    engine::{Dialect, ScriptedEngine},
    http,
    pair::{self, demo_model},
    process::{CloudProcess, models_folder},
    setting::Setting,
};
use baton_engine::Model;
use baton_protocol::{
    AssistEvent, AssistRequest, EndEvent, EndReason, ErrorBody, FirstEvent, RefineOptions, SentenceMap,
};
use serde_json::{Value, json};

/// Tokens that the engine writes.
const ASSIST_TOKENS: u32 = 20;
/// Share of the document that a mask keeps.
const RATIO: f32 = 0.25;
/// Least share of the sentences with the answer that masks keep.
const RECALL_MIN: f64 = 0.95;

fn model() -> Arc<Model> {
    demo_model("demo-cloud.gguf").expect("the demo model is in the checkout")
}

/// Returns the option that makes the demo model the scorer of the model `chat`.
fn scorer() -> String {
    format!("chat={}", models_folder().join("demo-cloud.gguf").display())
}

/// Starts the cloud before these engines; the demo model is the scorer.
async fn cloud(engines: &[String], more: &[&str]) -> CloudProcess {
    let mut options: Vec<OsString> = Vec::new();
    for engine in engines {
        options.extend(["--upstream".into(), format!("chat={engine}").into()]);
    }
    // A slow machine must not lose a mask.
    options.extend(["--upstream-mask-ms", "60000"].map(OsString::from));
    options.extend(more.iter().map(OsString::from));
    CloudProcess::start(Path::new(&scorer()), &options).await.expect("the cloud starts")
}

/// A question about a document.
struct Asked {
    document: Document,
    question: Question,
}

/// Returns questions of several kinds, about several documents.
fn questions(count: usize) -> Vec<Asked> {
    let mut asked = Vec::new();
    for seed in 1000.. {
        let document = document(seed, 260);
        for question in document.questions.iter().take(5) {
            asked.push(Asked { document: document.clone(), question: question.clone() });
        }
        if asked.len() >= count {
            break;
        }
    }
    asked.truncate(count);
    asked
}

fn answers(asked: &[Asked]) -> Vec<(String, String)> {
    asked.iter().map(|asked| (asked.question.text.clone(), asked.question.answer.clone())).collect()
}

/// Makes the request of a device.
fn request(asked: &Asked) -> AssistRequest {
    let question = pair::Question::about(&asked.document, &asked.question.text, 100);
    AssistRequest {
        request_id: uuid::Uuid::new_v4(),
        tokenizer_sha256: Some(model().tokenizer().digest_hex().to_owned()),
        refine: RefineOptions { ratio: Some(RATIO), mode: None },
        assist_tokens: Some(ASSIST_TOKENS),
        ..question.request("doc-qa")
    }
}

/// What came of a request.
#[derive(Debug, Default)]
struct Reply {
    kept: Option<Vec<bool>>,
    first: Option<FirstEvent>,
    ids: Vec<u32>,
    text: String,
    end: Option<EndEvent>,
    error: Option<ErrorBody>,
}

/// Asks by HTTP, as a device does, and reads the whole stream.
async fn assist(cloud: &CloudProcess, request: &AssistRequest, key: Option<&str>) -> Reply {
    let mut asked = http::client().post(format!("http://{}/v1/assist", cloud.address())).json(request);
    if let Some(key) = key {
        asked = asked.bearer_auth(key);
    }
    let reply = asked.send().await.expect("the cloud replies");
    let is_fine = reply.status().is_success();
    let text = reply.text().await.expect("the reply is whole");
    let mut told = Reply::default();
    if !is_fine {
        told.error = Some(serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text}")));
        return told;
    }
    for block in text.split("\n\n") {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let (Some(name), Some(data)) = (field("event:"), field("data:")) else { continue };
        match AssistEvent::parse(name, data).unwrap_or_else(|err| panic!("{err}: {block}")) {
            AssistEvent::Mask(mask) => {
                assert!(told.first.is_none(), "the mask comes before the first token");
                let map = SentenceMap::new(&request.segments);
                told.kept = Some(mask.open(&map).expect("the mask fits the prompt"));
            }
            AssistEvent::First(first) => {
                told.ids.push(first.id);
                told.text.push_str(&first.text);
                told.first = Some(*first);
            }
            AssistEvent::Token(token) => {
                assert_eq!(token.index as usize, told.ids.len(), "one event for each index");
                told.ids.push(token.id);
                told.text.push_str(&token.text);
            }
            AssistEvent::End(end) => told.end = Some(end),
            AssistEvent::Error(error) => told.error = Some(error),
            AssistEvent::Progress(_) => {}
        }
    }
    assert!(told.end.is_some() != told.error.is_some(), "exactly one end: {told:?}");
    told
}

/// Returns how many sentences with the answer a mask keeps, and how many there are.
fn recalled(asked: &Asked, request: &AssistRequest, kept: &[bool]) -> (usize, usize) {
    let map = SentenceMap::new(&request.segments);
    let is_kept = |at: usize| {
        let found = map.units().iter().zip(kept).find(|(unit, _)| unit.bytes.contains(&at));
        found.is_some_and(|(_, kept)| *kept)
    };
    let gold = &asked.question.gold;
    (gold.iter().filter(|range| is_kept(range.start)).count(), gold.len())
}

#[tokio::test]
async fn a_hundred_answers_begin_with_the_engines_own_tokens_and_a_mask_of_the_scorer() {
    let asked = questions(100);
    let engine = ScriptedEngine::start(Dialect::Vllm, model(), answers(&asked)).await.expect("an engine");
    let cloud = cloud(&[engine.url()], &[]).await;
    let (mut kept, mut gold) = (0, 0);
    for one in &asked {
        let request = request(one);
        let reply = assist(&cloud, &request, None).await;
        let first = reply.first.as_ref().expect("there is a token");
        assert_eq!(first.tokenizer_sha256.as_deref(), Some(model().tokenizer().digest_hex()));
        let want = engine.answer_ids(&one.question.text);
        let written = want.len().min(ASSIST_TOKENS as usize);
        assert_eq!(reply.ids, want[..written], "{}", one.question.text);
        let is_whole = want.len() < ASSIST_TOKENS as usize;
        let reason = if is_whole { EndReason::Stop } else { EndReason::Cap };
        assert_eq!(reply.end.as_ref().expect("it ends").reason, reason, "{}", one.question.text);
        let mask = reply.kept.as_ref().expect("the scorer makes a mask");
        let (found, all) = recalled(one, &request, mask);
        kept += found;
        gold += all;
    }
    let recall = kept as f64 / gold as f64;
    println!("gold sentences kept at r = {RATIO}: {kept} of {gold} ({recall:.3})");
    assert!(recall >= RECALL_MIN, "{recall}");
    engine.idle().await.expect("no request is left in the engine");
    for body in engine.asked() {
        assert_eq!(body["max_tokens"], ASSIST_TOKENS, "the engine is asked for L tokens");
        assert!(body["prompt"].is_array(), "by ids, because tokenizer and template are equal");
        assert!(body["cache_salt"].as_str().is_some_and(|salt| salt.len() == 32));
    }
}

#[tokio::test]
async fn devices_finish_what_engines_begin() {
    let settings = [3, 4].map(|seed| Setting::new(&model(), seed, 900).expect("there is such a document"));
    let known: Vec<_> = settings
        .iter()
        .map(|setting| (setting.asked.question.text.clone(), setting.asked.question.answer.clone()))
        .collect();
    for (dialect, tells_tokens) in [(Dialect::Vllm, true), (Dialect::LlamaCpp, true), (Dialect::Vllm, false)]
    {
        let engine = ScriptedEngine::start_as(dialect, model(), known.clone(), tells_tokens).await;
        let engine = engine.expect("an engine");
        let cloud = cloud(&[engine.url()], &[]).await;
        let url = format!("http://{}", cloud.address());
        for setting in &settings {
            let length = ASSIST_TOKENS.to_string();
            let report = setting.ask(&url, &["--assist-tokens", &length]).await.expect("an answer");
            assert!(report.notes.is_empty(), "{dialect:?} {tells_tokens}: {:?}", report.notes);
            assert_eq!(report.answer.trim(), setting.asked.question.answer, "{dialect:?} {tells_tokens}");
            assert_eq!(report.tokens_from_cloud, ASSIST_TOKENS as usize, "{dialect:?} {tells_tokens}");
            assert!(report.tokens_from_device > 0, "{dialect:?} {tells_tokens}");
            assert!(report.refined_ratio.is_some_and(|ratio| ratio <= 0.25), "the scorer's mask is used");
        }
        engine.idle().await.expect("no request is left in the engine");
        let is_chat = engine.asked().iter().all(|body| body["messages"].is_array());
        assert_eq!(is_chat, !tells_tokens, "messages only if tokens are not common");
    }
}

#[tokio::test]
async fn the_chat_api_is_answered_by_engines_too() {
    let asked = questions(3);
    let engine = ScriptedEngine::start(Dialect::LlamaCpp, model(), answers(&asked)).await.expect("an engine");
    let cloud = cloud(&[engine.url()], &[]).await;
    let url = format!("http://{}/v1/chat/completions", cloud.address());
    for one in &asked {
        let body = json!({ "model": "chat", "messages": [{ "role": "user", "content": one.question.text }] });
        let reply = http::client().post(&url).json(&body).send().await.expect("a reply");
        let reply: Value = reply.json().await.expect("JSON");
        assert_eq!(reply["choices"][0]["message"]["content"], *one.question.answer, "{reply}");
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
    // What the engine cannot be held to is refused by name.
    for (extra, field) in [
        (json!({ "logprobs": true }), "logprobs"),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "f" } }], "tool_choice": "required" }),
            "tool_choice",
        ),
    ] {
        let mut body = json!({ "model": "chat", "messages": [{ "role": "user", "content": "Go." }] });
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let reply = http::client().post(&url).json(&body).send().await.expect("a reply");
        assert_eq!(reply.status(), 400);
        let reply: Value = reply.json().await.expect("JSON");
        assert_eq!(reply["error"]["param"], field, "{reply}");
    }
}

#[tokio::test]
async fn clients_of_vllm_find_what_they_know() {
    let cloud = cloud(&[], &[]).await;
    let (client, url) = (http::client(), format!("http://{}", cloud.address()));
    let health = client.get(format!("{url}/health")).send().await.expect("a reply");
    assert!(health.status().is_success());
    let tokenize = |body: Value| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            let reply = client.post(format!("{url}/tokenize")).json(&body).send().await.expect("a reply");
            (reply.status().as_u16(), reply.json::<Value>().await.expect("JSON"))
        }
    };
    let text = "Where is the harbour of Ostend?";
    let (status, reply) = tokenize(json!({ "model": "chat", "prompt": text })).await;
    assert_eq!((status, &reply["tokens"]), (200, &json!(model().tokenizer().encode(text))));
    let (status, chat) = tokenize(json!({ "messages": [{ "role": "user", "content": text }] })).await;
    let more = chat["count"].as_u64().expect("a count") > reply["count"].as_u64().expect("a count");
    assert!(status == 200 && more, "the template adds tokens: {chat}");
    assert_eq!(tokenize(json!({ "model": "chat" })).await.0, 400);
    let body = json!({
        "model": "chat", "messages": [{ "role": "user", "content": text }], "max_tokens": 4, "ignore_eos": true,
        "stream": true, "stream_options": { "include_usage": true, "continuous_usage_stats": true },
    });
    let reply = client.post(format!("{url}/v1/chat/completions")).json(&body).send().await.expect("a reply");
    assert!(reply.status().is_success(), "{:?}", reply.text().await);
}
