//! Engines that do not have what their kind has, or write replies in forms of their own: they answer, and
//! what they lack is remembered and told.

use std::ffi::OsString;
use std::path::Path;

use baton_e2e::engine::{Act, Dialect, ScriptedEngine};
use baton_e2e::http;
use baton_e2e::process::CloudProcess;
use baton_engine::detokenize::Detokenizer;
use baton_protocol::{EndReason, ErrorCode};
use serde_json::{Value, json};

use super::faults::{cloud_on, key_of, long};
use super::{ASSIST_TOKENS, Asked, Reply, assist, cloud, model, questions, request, scorer};

/// What an engine might say in an error: words of the request.
const CANARY: &str = "the lease of Mrs Canary-7741";

async fn engine(dialect: Dialect, asked: &[Asked]) -> ScriptedEngine {
    ScriptedEngine::start(dialect, model(), long(asked)).await.expect("an engine")
}

#[track_caller]
fn is_whole(reply: &Reply, what: &str) {
    let end = reply.end.as_ref().unwrap_or_else(|| panic!("{what}: {:?}", reply.error));
    assert_eq!(end.reason, EndReason::Cap, "{what}");
    assert_eq!(reply.ids.len(), ASSIST_TOKENS as usize, "{what}");
}

/// A cloud before one engine, with its log in a file.
struct Logged {
    cloud: CloudProcess,
    folder: tempfile::TempDir,
}

impl Logged {
    async fn start(engine: &ScriptedEngine) -> Logged {
        let folder = tempfile::tempdir().expect("a folder");
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let options = ["--upstream", &format!("chat={}", engine.url()), "--upstream-mask-ms", "60000"];
        let options = options.map(OsString::from);
        let cloud = CloudProcess::start_logged(Path::new(&scorer()), &options, log).await;
        Logged { cloud: cloud.expect("the cloud starts"), folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("the log")
    }

    /// Returns what the operator was told that the engine lacks, each as often as it was told.
    fn lacks(&self) -> Vec<String> {
        let log = self.log();
        let words = log.split("lack=\"").skip(1).filter_map(|rest| rest.split('"').next());
        words.map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn an_engine_without_token_ids_answers_by_text() {
    let asked = questions(2);
    for dialect in [Dialect::Vllm, Dialect::LlamaCpp] {
        let engine = engine(dialect, &asked).await;
        let logged = Logged::start(&engine).await;
        engine.act(Act::NoIds);
        for one in &asked {
            let reply = assist(&logged.cloud, &request(one), None).await;
            is_whole(&reply, &format!("{dialect:?}"));
            assert_eq!(reply.first.as_ref().expect("a token").tokenizer_sha256, None, "{dialect:?}: no ids");
            assert!(reply.kept.is_some(), "{dialect:?}: the mask is the scorer's");
            let mut detokenizer = Detokenizer::new(model().tokenizer().clone());
            let ids = engine.answer_ids(&one.question.text);
            let want: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
            assert!(want.starts_with(&reply.text), "{dialect:?}: {} of {want}", reply.text);
        }
        assert_eq!(engine.asked().len(), asked.len(), "{dialect:?}: each is asked once");
        assert_eq!(logged.lacks(), ["answer_ids"], "{dialect:?}");
        engine.idle().await.expect("no request is left in the engine");
    }
}

#[tokio::test]
async fn an_engine_with_no_path_but_those_of_answers_is_used_by_the_name_of_its_model() {
    let asked = questions(1);
    let engine = engine(Dialect::Vllm, &asked).await;
    engine.act(Act::Bare);
    let named = cloud(&[format!("{}#m", engine.url())], &[]).await;
    is_whole(&assist(&named, &request(&asked[0]), None).await, "named");
    let last = engine.asked().pop().expect("it was asked");
    assert_eq!((&last["model"], last["messages"].is_array()), (&json!("m"), true), "{last}");
    let nameless = cloud(&[engine.url()], &[]).await;
    let error = assist(&nameless, &request(&asked[0]), None).await.error.expect("an error");
    assert_eq!(error.error.code, ErrorCode::Unavailable);
}

#[tokio::test]
async fn ids_that_stop_coming_are_missed_once() {
    let asked = questions(1);
    let engine = engine(Dialect::Vllm, &asked).await;
    let cloud = cloud(&[engine.url()], &[]).await;
    engine.act(Act::NoIdsAfter(6));
    let reply = assist(&cloud, &request(&asked[0]), None).await;
    assert_eq!(reply.ids.len(), 6);
    assert_eq!(reply.error.expect("an error").error.code, ErrorCode::Unavailable);
    is_whole(&assist(&cloud, &request(&asked[0]), None).await, "the second answer");
}

#[tokio::test]
async fn what_an_engine_refuses_is_asked_in_another_form_and_remembered() {
    let asked = questions(2);
    let cases: [(&'static [&'static str], &[&str]); 3] = [
        (&["cache_salt"], &["cache_salt"]),
        (&["return_token_ids"], &["answer_ids"]),
        (&["stream_options", "seed", "cache_salt"], &["cache_salt", "seed", "stream_options"]),
    ];
    for (fields, lacks) in cases {
        let engine = engine(Dialect::Vllm, &asked).await;
        let logged = Logged::start(&engine).await;
        engine.act(Act::Strict(fields));
        for one in &asked {
            is_whole(&assist(&logged.cloud, &request(one), None).await, &format!("{fields:?}"));
        }
        let bodies = engine.asked();
        assert_eq!(bodies.len(), fields.len() + asked.len(), "{fields:?}: a refusal each, then no more");
        let last = bodies.last().expect("it was asked");
        assert!(fields.iter().all(|field| last.get(*field).is_none()), "{last}");
        // What it refuses besides is the request's fault, and is not remembered.
        engine.act(Act::Refuse { status: 400, retry_after: None });
        let error = assist(&logged.cloud, &request(&asked[0]), None).await.error.expect("an error");
        assert_eq!(error.error.code, ErrorCode::InvalidRequest);
        let mut told = logged.lacks();
        told.sort_unstable();
        assert_eq!(told, lacks, "{fields:?}: told once each");
    }
}

#[tokio::test]
async fn tenants_stay_apart_in_engines_without_salts() {
    let asked = questions(1);
    for (dialect, act) in [(Dialect::Vllm, Act::Strict(&["cache_salt"])), (Dialect::LlamaCpp, Act::Write)] {
        let engine = engine(dialect, &asked).await;
        engine.act(act);
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("cloud.db");
        let keys = ["one", "two"].map(|tenant| key_of(&database, tenant));
        let cloud = cloud_on(&database, &engine.url(), &[]).await;
        for key in &keys {
            is_whole(&assist(&cloud, &request(&asked[0]), Some(key)).await, &format!("{dialect:?}"));
        }
        let bodies = engine.asked();
        let bodies = &bodies[bodies.len() - 2..];
        if dialect == Dialect::LlamaCpp {
            assert!(bodies.iter().all(|body| body["cache_prompt"] == false), "its cache is off");
            continue;
        }
        let message =
            |body: &Value, at: usize| body["messages"][at]["content"].as_str().expect("a text").to_owned();
        assert_eq!(message(&bodies[0], 0), message(&bodies[1], 0), "the scene's own text is shared");
        let [one, two] = [message(&bodies[0], 1), message(&bodies[1], 1)];
        assert_ne!(one[..15], two[..15], "what follows begins with the tenant's mark");
        assert_eq!(one[15..], two[15..], "the rest is the same question");
    }
}

#[tokio::test]
async fn what_an_engine_says_is_marked_for_the_client_and_not_logged() {
    let asked = questions(1);
    let engine = engine(Dialect::Vllm, &asked).await;
    let mut logged = Logged::start(&engine).await;
    let error = r#"{"error":{"message":"the lease of Mrs Canary-7741 is wrong","code":400}}"#;
    let stream = "data: {\"error\":{\"message\":\"the lease of Mrs Canary-7741\"}}\n\n";
    let unread = "data: {\"choices\":[\"the lease of Mrs Canary-7741\"]}\n\n";
    for (status, kind, body, is_said) in [
        (400, "application/json", error, true),
        (500, "application/json", error, true),
        (200, "application/json", error, true),
        (200, "application/json", stream, true),
        (200, "text/event-stream", stream, true),
        (200, "text/event-stream", unread, false),
    ] {
        engine.act(Act::Say { status, kind, body });
        let message =
            assist(&logged.cloud, &request(&asked[0]), None).await.error.expect("an error").error.message;
        assert_eq!(
            message.contains("; it said: \"") && message.contains(CANARY),
            is_said,
            "{status}: {message}"
        );
        // A whole answer between, so that the engine does not rest.
        engine.act(Act::Write);
        is_whole(&assist(&logged.cloud, &request(&asked[0]), None).await, "after an error");
    }
    logged.cloud.terminate().await.expect("it stops");
    let log = logged.log();
    assert!(log.contains("an engine did not begin to write"), "{log}");
    assert!(!log.contains("Canary"), "{log}");
}

#[tokio::test]
async fn replies_of_other_forms_are_read() {
    let asked = questions(1);
    let engine = engine(Dialect::Vllm, &asked).await;
    let cloud = cloud(&[engine.url()], &[]).await;
    engine.act(Act::Ragged);
    is_whole(&assist(&cloud, &request(&asked[0]), None).await, "ragged");
    engine.act(Act::Compressed);
    let error = assist(&cloud, &request(&asked[0]), None).await.error.expect("an error").error;
    assert!(error.message.contains("compressed"), "{}", error.message);
    // An engine that does not stream gives its whole text at once, without ids.
    engine.act(Act::Whole);
    let body =
        json!({ "model": "chat", "messages": [{ "role": "user", "content": asked[0].question.text }] });
    let url = format!("http://{}/v1/chat/completions", cloud.address());
    let reply: Value =
        http::client().post(&url).json(&body).send().await.expect("a reply").json().await.expect("JSON");
    let answer = reply["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{reply}"));
    assert!(answer.contains(&asked[0].question.answer), "{reply}");
}
