//! Engines that refuse, die, fall silent or send nonsense, and what the device gets then.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use baton_e2e::engine::{Act, Dialect, ScriptedEngine};
use baton_e2e::http;
use baton_e2e::process::{CloudProcess, cpu_program};
use baton_e2e::setting::Setting;
use baton_protocol::{EndReason, ErrorCode};
use serde_json::Value;

use super::{ASSIST_TOKENS, Asked, Reply, answers, assist, cloud, model, questions, request, scorer};

/// A limit that tests wait for on purpose.
const SHORT: &[&str] = &["--upstream-first-token-ms", "2000", "--upstream-silence-ms", "1000"];

/// Tokens before an engine fails.
const BEFORE: usize = 6;

/// Each fault in the middle of an answer, and the code that the device gets.
const FAULTS: &[(Act, ErrorCode)] = &[
    (Act::Die(BEFORE), ErrorCode::Unavailable),
    (Act::Cut(BEFORE), ErrorCode::Unavailable),
    (Act::Silence(BEFORE), ErrorCode::Timeout),
    (Act::Garble(BEFORE), ErrorCode::Unavailable),
];

#[tokio::test]
async fn a_fault_in_the_middle_is_typed_and_no_token_is_lost() {
    let asked = questions(1);
    for dialect in [Dialect::Vllm, Dialect::LlamaCpp] {
        let engine = ScriptedEngine::start(dialect, model(), long(&asked)).await.expect("an engine");
        let cloud = cloud(&[engine.url()], SHORT).await;
        for (act, code) in FAULTS {
            engine.act(act.clone());
            let reply = assist(&cloud, &request(&asked[0]), None).await;
            let want = engine.answer_ids(&asked[0].question.text);
            assert_eq!(reply.ids, want[..BEFORE], "{dialect:?} {act:?}");
            assert_eq!(reply.error.expect("an error").error.code, *code, "{dialect:?} {act:?}");
            engine.idle().await.expect("the connection is closed");
            // Two failures do not make it rest, and the next answer is whole.
            engine.act(Act::Write);
            let whole = assist(&cloud, &request(&asked[0]), None).await;
            assert_eq!(whole.end.expect("an end").reason, EndReason::Cap, "{dialect:?} after {act:?}");
        }
    }
}

/// Returns answers that are longer than L.
pub(super) fn long(asked: &[Asked]) -> Vec<(String, String)> {
    let answers = answers(asked).into_iter();
    answers.map(|(question, answer)| (question, format!("{answer} ").repeat(8))).collect()
}

#[tokio::test]
async fn devices_finish_answers_of_engines_that_fail() {
    let setting = Setting::new(&model(), 4, 900).expect("there is such a document");
    let known = vec![(setting.asked.question.text.clone(), setting.asked.question.answer.clone())];
    let refused = |status| (Act::Refuse { status, retry_after: None }, 0);
    let broken = [Act::Die(BEFORE), Act::Cut(BEFORE), Act::Silence(BEFORE), Act::Garble(BEFORE)];
    let broken = broken.map(|act| (act, BEFORE));
    for (dialect, tells_tokens, acts) in [
        (Dialect::Vllm, true, [&broken[..], &[refused(429), refused(404)]].concat()),
        (Dialect::LlamaCpp, true, broken[..2].to_vec()),
        (Dialect::Vllm, false, broken[..1].to_vec()),
    ] {
        let engine = ScriptedEngine::start_as(dialect, model(), known.clone(), tells_tokens).await;
        let engine = engine.expect("an engine");
        let cloud = cloud(&[engine.url()], SHORT).await;
        let url = format!("http://{}", cloud.address());
        let length = ASSIST_TOKENS.to_string();
        for (act, from_cloud) in acts {
            let what = format!("{dialect:?} {tells_tokens} {act:?}");
            engine.act(act);
            let options = ["--assist-tokens", &length, "--no-resume"];
            let report = setting.ask(&url, &options).await.expect("an answer");
            assert_eq!(report.tokens_from_cloud, from_cloud, "{what}");
            assert!(report.tokens_from_device > 0, "{what}");
            assert!(!report.notes.is_empty(), "{what}: the device says what happened");
            if from_cloud > 0 {
                assert_eq!(report.answer.trim(), setting.asked.question.answer, "{what}");
            }
            engine.idle().await.expect("the connection is closed");
            // A whole answer between, so that the engine does not rest.
            engine.act(Act::Write);
            let whole = setting.ask(&url, &options).await.expect("an answer");
            assert_eq!(whole.answer.trim(), setting.asked.question.answer, "after {what}");
        }
    }
}

#[tokio::test]
async fn before_the_first_token_another_engine_is_asked() {
    let asked = questions(100);
    let bad = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    let good = ScriptedEngine::start(Dialect::LlamaCpp, model(), long(&asked)).await.expect("an engine");
    let refuse = |status, retry_after| Act::Refuse { status, retry_after };
    for act in [
        refuse(500, None),
        refuse(404, None),
        refuse(503, None),
        refuse(429, Some(1)),
        Act::Die(0),
        Act::Cut(0),
        Act::Garble(0),
    ] {
        let cloud = cloud(&[bad.url(), good.url()], SHORT).await;
        let before = bad.asked().len();
        bad.act(act.clone());
        // Documents suit one engine or the other; some of these suit the bad one.
        for one in asked.iter().step_by(5) {
            let reply = assist(&cloud, &request(one), None).await;
            assert_eq!(reply.ids.len(), ASSIST_TOKENS as usize, "{act:?}: {:?}", reply.error);
            if bad.asked().len() > before {
                break;
            }
        }
        assert_eq!(bad.asked().len(), before + 1, "{act:?}");
        bad.act(Act::Write);
    }
    // A request that is itself wrong is not sent to every engine.
    let before = bad.asked().len() + good.asked().len();
    let wrong = Act::Refuse { status: 400, retry_after: None };
    bad.act(wrong.clone());
    good.act(wrong);
    let cloud = cloud(&[bad.url(), good.url()], SHORT).await;
    let reply = assist(&cloud, &request(&asked[0]), None).await;
    assert_eq!(reply.error.expect("an error").error.code, ErrorCode::InvalidRequest);
    assert_eq!(bad.asked().len() + good.asked().len(), before + 1);
}

#[tokio::test]
async fn a_slow_engine_is_hedged_and_a_late_one_is_given_up() {
    let asked = questions(1);
    let slow = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    let quick = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    slow.act(Act::Silence(0));
    let hedged = [&["--upstream-hedge-ms", "50"], SHORT].concat();
    let both = cloud(&[slow.url(), quick.url()], &hedged).await;
    // Prompts that begin differently go to different engines; some of these begin with the slow one.
    for one in questions(100).iter().step_by(5) {
        let reply = assist(&both, &request(one), None).await;
        assert!(reply.end.is_some(), "{:?}", reply.error);
    }
    assert!(!slow.asked().is_empty(), "no prompt suited the slow engine");
    slow.idle().await.expect("what was not used is closed");
    let alone = cloud(&[slow.url()], SHORT).await;
    let reply = assist(&alone, &request(&asked[0]), None).await;
    assert_eq!(reply.error.expect("an error").error.code, ErrorCode::Timeout);
    slow.idle().await.expect("the connection is closed");
}

#[tokio::test]
async fn the_engine_is_free_at_l_and_when_the_device_leaves() {
    let asked = questions(1);
    let engine = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    let cloud = cloud(&[engine.url()], &[]).await;
    engine.act(Act::TooMany);
    let reply = assist(&cloud, &request(&asked[0]), None).await;
    assert_eq!(reply.ids.len(), ASSIST_TOKENS as usize, "no token beyond L is passed on");
    engine.idle().await.expect("the connection is closed at L");

    engine.act(Act::Paced(Duration::from_millis(200)));
    let url = format!("http://{}/v1/assist", cloud.address());
    let mut reply = http::client().post(url).json(&request(&asked[0])).send().await.expect("a reply");
    reply.chunk().await.expect("the first bytes come");
    assert_eq!(engine.running(), 1);
    drop(reply);
    engine.idle().await.expect("the device has left, so the engine is free");
}

#[tokio::test]
async fn an_engine_that_is_down_is_told_at_once_and_used_when_it_is_back() {
    let asked = questions(1);
    let engine = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    engine.act(Act::Unhealthy);
    let cloud = cloud(&[engine.url()], SHORT).await;
    let error = assist(&cloud, &request(&asked[0]), None).await.error.expect("an error").error;
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.retry_after_ms.is_some(), "{}", error.message);
    assert!(engine.asked().is_empty(), "nothing is sent to an engine that is down");
    engine.act(Act::Write);
    asked_until(&cloud, &asked[0], true).await;
}

/// Asks again and again until the answer is whole, or until there is none. The limit guards against hangs.
async fn asked_until(cloud: &CloudProcess, asked: &Asked, is_whole: bool) -> Reply {
    for _ in 0..600 {
        let reply = assist(cloud, &request(asked), None).await;
        if reply.end.is_some() == is_whole {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the health of the engine makes no difference");
}

#[tokio::test]
async fn an_engine_that_comes_back_as_another_is_asked_in_another_way() {
    let asked = questions(1);
    let engine = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    let cloud = cloud(&[engine.url()], SHORT).await;
    let before = assist(&cloud, &request(&asked[0]), None).await;
    assert!(before.end.is_some(), "{:?}", before.error);
    engine.act(Act::Unhealthy);
    asked_until(&cloud, &asked[0], false).await;
    engine.hide_tokens();
    engine.act(Act::Write);
    let after = asked_until(&cloud, &asked[0], true).await;
    let bodies = engine.asked();
    assert!(bodies[0]["prompt"].is_array(), "by ids at first");
    let last = bodies.last().expect("it was asked");
    assert!(last["messages"].is_array(), "its tokens are not known any more: {last}");
    assert_eq!(after.first.expect("a token").tokenizer_sha256, None);
}

#[tokio::test]
async fn an_engine_without_the_model_gets_nothing_and_a_slow_one_is_waited_for() {
    let asked = questions(1);
    let engine = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    let other = cloud(&[format!("{}#other", engine.url())], SHORT).await;
    let error = assist(&other, &request(&asked[0]), None).await.error.expect("an error").error;
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(engine.asked().is_empty(), "it has no model of that name");
    engine.act(Act::Slow(Duration::from_millis(300)));
    let own = cloud(&[format!("{}#m", engine.url())], &[]).await;
    let reply = assist(&own, &request(&asked[0]), None).await;
    assert_eq!(reply.end.expect("an end").reason, EndReason::Cap);
    assert!(reply.kept.is_some(), "the scorer was quicker");
    assert_eq!(engine.asked()[0]["model"], "m");
}

#[tokio::test]
async fn keys_salts_and_affinity_reach_the_engine() {
    let asked = questions(2);
    let engine = ScriptedEngine::start(Dialect::Vllm, model(), long(&asked)).await.expect("an engine");
    let folder = tempfile::tempdir().expect("a folder");
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, "engine-secret\n").expect("write the key");
    let database = folder.path().join("cloud.db");
    let key_file = key_file.to_string_lossy().into_owned();
    let options = ["--upstream-key-file", &key_file, "--upstream-affinity-header", "x-affinity"];
    // The keys are made first, so that the service knows them from its start.
    let keys = ["one", "two"].map(|tenant| key_of(&database, tenant));
    let cloud = cloud_on(&database, &engine.url(), &options).await;
    for key in &keys {
        let reply = assist(&cloud, &request(&asked[0]), Some(key)).await;
        assert!(reply.end.is_some(), "{:?}", reply.error);
    }
    let bodies = engine.asked();
    assert_eq!(bodies.len(), 2);
    assert!(bodies.iter().all(|body| body["headers"]["authorization"] == "Bearer engine-secret"));
    assert_ne!(bodies[0]["cache_salt"], bodies[1]["cache_salt"], "tenants are kept apart");
    assert_ne!(bodies[0]["headers"]["x-affinity"], bodies[1]["headers"]["x-affinity"]);
    let again = assist(&cloud, &request(&asked[0]), Some(&keys[0])).await;
    assert!(again.end.is_some());
    let last = engine.asked().pop().expect("it was asked");
    assert_eq!(last["headers"]["x-affinity"], bodies[0]["headers"]["x-affinity"], "the same beginning");
}

pub(super) async fn cloud_on(database: &Path, engine: &str, more: &[&str]) -> CloudProcess {
    let mut options = vec!["--upstream".to_owned(), format!("chat={engine}")];
    options.extend(more.iter().map(|word| (*word).to_owned()));
    let options: Vec<OsString> = options.into_iter().map(OsString::from).collect();
    let database = database.to_string_lossy();
    CloudProcess::start_on(Path::new(&scorer()), &database, &options).await.expect("the cloud starts")
}

/// Makes a tenant and a key of it.
pub(super) fn key_of(database: &Path, tenant: &str) -> String {
    let run = |words: &[&str]| {
        let mut command = cpu_program("baton-cloud").expect("it is built");
        let output = command.args(words).arg("--database").arg(database).output().expect("baton-cloud runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["tenants", "set", tenant]);
    let made = run(&["keys", "create", "--tenant", tenant, "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap_or_else(|err| panic!("{err}: {made}"));
    made["key"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}
