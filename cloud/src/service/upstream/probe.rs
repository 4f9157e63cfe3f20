//! Asks an engine what it is, whether it is well, and how much it has to do.
//!
//! Never: takes an engine's word for its tokenizer. Texts with much that tokenizers differ in are tokenized
//! by both, and a conversation is laid out by both; only what is equal counts as common.

use std::collections::BTreeSet;

use baton_constrain::tools;
use baton_engine::Model;
use baton_engine::tokenizer::TokenId;
use baton_protocol::{Role, Segment};
use serde_json::{Value, json};

use super::balance::Load;
use super::client::EngineClient;
use super::facts::{Common, Facts, Kind};
use super::fault::Fault;
use super::reply::garbled;

/// Texts in which tokenizers differ: scripts, numbers, spaces, code, emoji, words of several tokens.
const PROBES: &[&str] = &[
    "The quick brown fox jumps over the lazy dog.",
    "  Indented\n\ttabs and   spaces\r\n\r\n1234567890 3.14159 v2.0-rc.1",
    "Grüße aus München – naïve café, señor; Ελληνικά, Русский, עברית, العربية",
    "机器学习模型可以在设备上运行。日本語のテキスト、한국어 문장.",
    "fn main() { let x: Vec<u8> = vec![0; 1 << 10]; } // 🦀👩‍👩‍👧‍👦🏽",
    "antidisestablishmentarianism's IT'S don't WE'LL https://example.org/?q=a%20b&c=d",
];

/// Makes everything that is known of an engine. `named` is the model to use there, if there are several.
///
/// # Errors
/// [`Fault`] if it does not answer, or does not have the model.
pub(super) async fn facts(
    client: &EngineClient,
    named: Option<&str>,
    scorer: &Model,
) -> Result<Facts, Fault> {
    let models = match (client.get("v1/models").await, named) {
        // Not every gateway has this path. Whoever named the model knows it.
        (Err(Fault::Refused { status: 404 | 405, .. }), Some(named)) => {
            let reason = "it lists no models".to_owned();
            return Ok(Facts { model: named.to_owned(), reason, ..Facts::default() });
        }
        (models, _) => models?,
    };
    let models: Value = serde_json::from_str(&models).map_err(|err| garbled(&err))?;
    let listed = models["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_it = |model: &&Value| named.is_none_or(|named| model["id"] == named);
    // llama.cpp answers to any name.
    let is_llama = listed.iter().any(|model| model["owned_by"] == "llamacpp");
    let model = listed.iter().find(is_it).or_else(|| listed.first().filter(|_| is_llama));
    let Some(model) = model else {
        let ids: Vec<&str> = listed.iter().filter_map(|model| model["id"].as_str()).take(8).collect();
        let reason = match named {
            Some(named) => format!("the engine has no model `{named}`; it has: {}", ids.join(", ")),
            None => "the engine lists no model: name one behind its address, as in `URL#MODEL`".to_owned(),
        };
        return Err(Fault::Garbled { reason });
    };
    let kind = Kind::of_owner(model["owned_by"].as_str().unwrap_or_default());
    let name = named.or(model["id"].as_str()).unwrap_or_default().to_owned();
    let context = model["max_model_len"].as_u64().or(model["meta"]["n_ctx"].as_u64());
    let (common, reason) = common(client, kind, &name, scorer).await?;
    let context_tokens = context.and_then(|tokens| usize::try_from(tokens).ok());
    Ok(Facts { kind, model: name, common, reason, lacks: BTreeSet::new(), context_tokens })
}

/// Compares the engine's tokenizer and template with the scorer's. What the engine refuses to tell is not
/// common; if it does not reply, nothing is known. Also returns why no more is common.
async fn common(
    client: &EngineClient,
    kind: Kind,
    name: &str,
    scorer: &Model,
) -> Result<(Common, String), Fault> {
    let untold = |fault: Fault| format!("it does not tell its tokens: {fault}");
    if kind == Kind::OpenAi {
        return Ok((Common::Text, "an engine of this kind does not tell its tokens".to_owned()));
    }
    for text in PROBES {
        let mut theirs = match tokenized(client, kind, name, text).await {
            Ok(theirs) => theirs,
            Err(fault @ Fault::Unreachable { .. }) => return Err(fault),
            Err(fault) => return Ok((Common::Text, untold(fault))),
        };
        // Some engines put a token for the beginning before every text.
        if theirs.first().is_some_and(|first| Some(*first) == scorer.tokenizer().bos()) {
            theirs.remove(0);
        }
        if theirs != scorer.tokenizer().encode(text) {
            return Ok((Common::Text, "its tokenizer is another one".to_owned()));
        }
    }
    let segments = [
        Segment::fixed(Role::System, "Answer briefly."),
        Segment::fixed(Role::User, "What is 1 + 1?  Tell me."),
    ];
    let ours =
        tools::prompt(scorer.tokenizer(), scorer.template(), &segments, &[]).ok().map(|prompt| prompt.ids);
    match (laid_out(client, kind, name, &segments).await, ours) {
        (Ok(theirs), Some(ours)) if theirs == ours => Ok((Common::Prompts, String::new())),
        (Err(fault @ Fault::Unreachable { .. }), _) => Err(fault),
        (Err(fault), _) => Ok((Common::Tokens, untold(fault))),
        (Ok(_), _) => Ok((Common::Tokens, "its chat template is another one".to_owned())),
    }
}

async fn tokenized(client: &EngineClient, kind: Kind, name: &str, text: &str) -> Result<Vec<TokenId>, Fault> {
    let body = match kind {
        Kind::LlamaCpp => json!({ "content": text, "add_special": false, "parse_special": false }),
        _ => json!({ "model": name, "prompt": text, "add_special_tokens": false }),
    };
    ids_in(&client.post("tokenize", &body).await?)
}

/// Has the engine lay out a conversation by its own template, as ids.
async fn laid_out(
    client: &EngineClient,
    kind: Kind,
    name: &str,
    segments: &[Segment],
) -> Result<Vec<TokenId>, Fault> {
    let message = |segment: &Segment| json!({ "role": segment.role.as_str(), "content": segment.text });
    let messages: Vec<Value> = segments.iter().map(message).collect();
    let body = match kind {
        Kind::LlamaCpp => {
            let prompt = client.post("apply-template", &json!({ "messages": messages })).await?;
            // As the server itself does it: with a token for the beginning, if the model wants one.
            json!({ "content": prompt["prompt"], "add_special": true, "parse_special": true })
        }
        _ => json!({ "model": name, "messages": messages, "add_generation_prompt": true }),
    };
    ids_in(&client.post("tokenize", &body).await?)
}

fn ids_in(reply: &Value) -> Result<Vec<TokenId>, Fault> {
    let id = |value: &Value| value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    let ids = reply["tokens"].as_array().and_then(|tokens| tokens.iter().map(id).collect());
    ids.ok_or_else(|| Fault::Garbled { reason: "/tokenize has no list of ids in `tokens`".to_owned() })
}

/// Returns what a well engine has to do, if its metrics say so. If it does not reply, it is asked a second
/// time, because this machine may have slept while the first check waited.
///
/// # Errors
/// [`Fault`] if the engine is not well.
pub(super) async fn health(client: &EngineClient) -> Result<Option<Load>, Fault> {
    match check(client).await {
        Err(Fault::Unreachable { .. } | Fault::Silent { .. }) => check(client).await?,
        checked => checked?,
    };
    Ok(client.get("metrics").await.ok().and_then(|text| load_in(&text)))
}

async fn check(client: &EngineClient) -> Result<String, Fault> {
    match client.get("health").await {
        // Not every engine has these paths. It replies, so it is there.
        Err(Fault::Refused { status: 404 | 405, .. }) => match client.get("v1/models").await {
            Err(Fault::Refused { status: 404 | 405, .. }) => Ok(String::new()),
            checked => checked,
        },
        checked => checked,
    }
}

/// Reads how many requests run and wait, from metrics in Prometheus' text format.
fn load_in(metrics: &str) -> Option<Load> {
    const RUNNING: &[&str] =
        &["vllm:num_requests_running", "llamacpp:requests_processing", "sglang:num_running_reqs"];
    const WAITING: &[&str] =
        &["vllm:num_requests_waiting", "llamacpp:requests_deferred", "sglang:num_queue_reqs"];
    let sum = |names: &[&str]| {
        let lines = metrics.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            let bare = name.split('{').next().unwrap_or(name);
            names.contains(&bare).then(|| value.parse::<f64>().ok()).flatten()
        });
        lines
            .filter(|value| value.is_finite() && *value >= 0.0)
            .map(|value| value as usize)
            .reduce(|a, b| a + b)
    };
    Some(Load { running: sum(RUNNING)?, waiting: sum(WAITING).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_read_from_the_metrics_of_each_engine() {
        let vllm = "# HELP vllm:num_requests_running x\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 1.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\"} 9.0\n";
        assert_eq!(load_in(vllm), Some(Load { running: 4, waiting: 2 }));
        let llama = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n";
        assert_eq!(load_in(llama), Some(Load { running: 2, waiting: 5 }));
        assert_eq!(load_in("process_cpu_seconds_total 9\n"), None);
        assert_eq!(load_in("vllm:num_requests_running NaN\n"), None);
    }

    #[tokio::test]
    async fn one_failed_check_is_not_enough() {
        use super::super::client::tests::engine;
        const LOAD: Option<&str> = Some("llamacpp:requests_processing 2\n");
        let load = Some(Load { running: 2, waiting: 0 });
        assert_eq!(health(&engine(&[Some("well"), LOAD]).await).await, Ok(load));
        // Each check is sent twice if its connection closes.
        assert_eq!(health(&engine(&[None, Some("well"), LOAD]).await).await, Ok(load));
        assert_eq!(health(&engine(&[None, None, Some("well"), LOAD]).await).await, Ok(load));
        assert!(health(&engine(&[None, None, None, None]).await).await.is_err());
    }

    #[test]
    fn ids_are_read_or_refused() {
        assert_eq!(ids_in(&json!({ "tokens": [1, 2] })), Ok(vec![1, 2]));
        for wrong in [json!({}), json!({ "tokens": ["a"] }), json!({ "tokens": [-1] }), json!([1])] {
            assert!(ids_in(&wrong).is_err(), "{wrong}");
        }
    }
}
