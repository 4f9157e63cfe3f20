//! `baton-bench upstream`: what it costs to stand before an engine that exists, and what its slots gain.
//!
//! The engine is llama.cpp's own server on one thread, with a random model whose answers do not end. The
//! service is asked like a device would. Its scorer is a random model of the same vocabulary with less than a
//! fiftieth of the work, as a model of .5 billion weights is before one of 32. The peer is the same
//! engine asked directly. All prompts have the same length and begin differently, so that no cache helps
//! either side.
//!
//! The cost of one token is measured with an engine that computes nothing, because on two cores an engine's
//! own time would hide it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use baton_e2e::engine::{Dialect, ScriptedEngine};
use baton_e2e::llama::LlamaServer;
use baton_e2e::pair::{Question, demo_model, messages};
use baton_pacing::refit::median;
use baton_protocol::AssistRequest;
use baton_random::SplitMix64;
use baton_synthetic::{Quant, SyntheticModel};
use serde_json::{Value, json};

use crate::engine::http;
use crate::engine::server::MODEL_NAME;
use crate::host::clients::{Program, program};
use crate::report::Report;

/// Most milliseconds that the service adds to the first token.
const FIRST_MS_MAX: f64 = 5.0;
/// Most microseconds that it adds to each token.
const TOKEN_US_MAX: f64 = 50.0;
/// Least share of the bound: the requests that the engine answers if it is asked for L tokens directly.
const BOUND_SHARE_MIN: f64 = 0.85;
/// Share of a document that masks keep.
const RATIO: f32 = 0.25;
/// L in the comparison of first tokens.
const L: usize = 30;
/// Values of L in the closed loop, and the tokens of a whole answer.
const LENGTHS: [usize; 3] = [10, 30, 100];
const WHOLE: usize = 300;
/// Slots of the engine, and clients in the closed loop.
const SLOTS: usize = 4;
/// Room of a slot.
const SLOT_TOKENS: usize = 4096;
/// Tokens of the answers whose cost is measured by the token.
const LONG: usize = 2000;
/// Words of the document; the random models have about a token for each letter.
const WORDS: usize = 150;

/// Options of `baton-bench upstream`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prompts of each way in the comparison of first tokens
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    prompts: u32,
    /// Answers of each way in the comparison of tokens
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    answers: u32,
    /// Requests of each client in the closed loop
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// One document with a number before it: no beginning is known, and all have the same length.
struct Documents(AtomicU64);

impl Documents {
    fn next(&self) -> AssistRequest {
        let seed = self.0.fetch_add(1, Ordering::Relaxed);
        let document = baton_corpus::document(1, WORDS);
        let mut question = Question::about(&document, "What is it about?", WHOLE);
        question.segments[0].text =
            format!("{:016x} {}", SplitMix64::new(seed).next_u64(), question.segments[0].text);
        let request_id = serde_json::from_value(json!(format!("{seed:032x}")));
        AssistRequest { request_id: request_id.expect("hex digits are an id"), ..question.request("doc-qa") }
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
    let folder = tempfile::tempdir().context("make a folder")?;
    let (big, small) = models(folder.path())?;
    let llama = runtime.block_on(LlamaServer::start(&big, SLOTS, SLOTS * SLOT_TOKENS));
    let llama = llama.map_err(|why| anyhow!("llama.cpp's server is needed: {why}"))?;
    let service = before(&[llama.url()], &small)?;
    let documents = Documents(AtomicU64::new(1));
    let mut report = Report::new("upstream");
    let direct = llama.url().trim_start_matches("http://");
    first_token(args, direct, &service, &documents, &mut report)?;
    closed_loop(args, direct, &service, &documents, &mut report)?;
    drop((service, llama));
    each_token(args, &runtime, &mut report)?;
    Ok(report)
}

/// Writes the engine's model and the scorer, of one vocabulary.
fn models(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let shape = |d_model: u32, n_layers: u32| SyntheticModel {
        d_model,
        n_layers,
        n_heads: d_model / 64,
        n_kv_heads: d_model / 64,
        d_head: 64,
        d_ff: 3 * d_model,
        vocab_len: 1024,
        context_len: SLOT_TOKENS as u32,
        endless: true,
        ..SyntheticModel::small("llama", Quant::Q4KM, 7)
    };
    let (big, small) = (folder.join("engine.gguf"), folder.join("scorer.gguf"));
    for (path, model) in [(&big, shape(320, 6)), (&small, shape(64, 1))] {
        std::fs::write(path, model.to_gguf().context("make a model")?).context("write a model")?;
    }
    Ok((big, small))
}

/// Starts the service before these engines.
fn before(engines: &[&str], scorer: &Path) -> Result<Program> {
    let mut options: Vec<String> = ["--threads", "1", "--slots", "16"].map(str::to_owned).to_vec();
    for engine in engines {
        options.extend(["--upstream".to_owned(), format!("{MODEL_NAME}={engine}")]);
    }
    Program::cloud(&program("baton-cloud", None)?, scorer, &options)
}

/// What one answer took, in milliseconds.
struct Took {
    first: f64,
    last: f64,
    tokens: usize,
    has_mask: bool,
}

/// Asks the engine directly, for the same messages.
fn ask_engine(address: &str, request: &AssistRequest, tokens: usize) -> Result<Took> {
    let messages = messages(&request.segments);
    let body = json!({ "model": "default", "messages": messages, "max_tokens": tokens, "temperature": 0,
        "stream": true });
    read(address, "/v1/chat/completions", &body, |event| {
        event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty())
    })
}

/// Asks the service as a device does.
fn ask_service(address: &str, request: &AssistRequest, tokens: usize, ratio: f32) -> Result<Took> {
    let mut body = serde_json::to_value(request).context("write the request")?;
    body["refine"]["ratio"] = ratio.into();
    body["assist_tokens"] = tokens.into();
    read(address, "/v1/assist", &body, |event| event["text"].is_string() && event["id"].is_u64())
}

fn read(address: &str, path: &str, body: &Value, is_token: impl Fn(&Value) -> bool) -> Result<Took> {
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1e3;
    let (mut first, mut last, mut tokens, mut has_mask, mut failed) = (None, 0.0, 0, false, None);
    http::events(address, path, body, |event| {
        if event["error"].is_object() {
            failed = Some(event["error"].to_string());
        }
        has_mask |= event["segmenter"].is_string();
        if is_token(&event) {
            last = ms();
            first.get_or_insert(last);
            tokens += 1;
        }
    })?;
    if let Some(failed) = failed {
        return Err(anyhow!("an answer failed: {failed}"));
    }
    Ok(Took { first: first.context("an answer has no token")?, last, tokens, has_mask })
}

/// Compares the times to the first token, both ways in turn.
fn first_token(
    args: &Args,
    direct: &str,
    service: &Program,
    documents: &Documents,
    report: &mut Report,
) -> Result<()> {
    let (mut alone, mut through, mut whole, mut masks) = (Vec::new(), Vec::new(), Vec::new(), 0_u32);
    for turn in 0..args.prompts {
        // The order turns round: what drifts falls on all ways alike.
        for way in 0..3 {
            let request = documents.next();
            match (way + turn) % 3 {
                0 => alone.push(ask_engine(direct, &request, L)?.first),
                1 => whole.push(ask_service(service.address(), &request, L, 1.0)?.first),
                _ => {
                    let took = ask_service(service.address(), &request, L, RATIO)?;
                    through.push(took.first);
                    masks += u32::from(took.has_mask);
                }
            }
        }
    }
    let quantile = |values: &[f64], share: f64| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * share).round() as usize]
    };
    let row = |name: &str, values: &[f64]| {
        vec![
            name.to_owned(),
            format!("{:.1}", quantile(values, 0.5)),
            format!("{:.1}", quantile(values, 0.9)),
        ]
    };
    report.table(
        "time to the first token, ms",
        &["asked", "median", "p90"],
        &[
            row("engine alone", &alone),
            row("through the service, no mask (r = 1)", &whole),
            row("through the service, with mask", &through),
        ],
    );
    let more = quantile(&through, 0.5) - quantile(&alone, 0.5);
    report.check_at_most("first token: the service adds, median ms", more, FIRST_MS_MAX);
    report.check_equal("first token: answers with a mask", f64::from(masks), f64::from(args.prompts));
    report.data("first_token_ms", json!({ "alone": alone, "whole": whole, "through": through }));
    Ok(())
}

/// Compares requests a second with all slots in use.
fn closed_loop(
    args: &Args,
    direct: &str,
    service: &Program,
    documents: &Documents,
    report: &mut Report,
) -> Result<()> {
    let per_second = |tokens: usize, through: bool| -> Result<f64> {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let client = |_| {
                scope.spawn(move || -> Result<()> {
                    for _ in 0..args.rounds {
                        let request = documents.next();
                        match through {
                            true => ask_service(service.address(), &request, tokens, RATIO)?,
                            false => ask_engine(direct, &request, tokens)?,
                        };
                    }
                    Ok(())
                })
            };
            let clients: Vec<_> = (0..SLOTS).map(client).collect();
            clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
        })?;
        Ok((SLOTS as u32 * args.rounds) as f64 / begun.elapsed().as_secs_f64())
    };
    let whole = per_second(WHOLE, false)?;
    let mut rows = vec![vec![
        format!("whole ({WHOLE})"),
        format!("{whole:.2}"),
        String::new(),
        String::new(),
        "1.0".to_owned(),
    ]];
    for tokens in LENGTHS {
        let bound = per_second(tokens, false)?;
        let through = per_second(tokens, true)?;
        rows.push(vec![
            tokens.to_string(),
            format!("{bound:.2}"),
            format!("{through:.2}"),
            format!("{:.2}", through / bound),
            format!("{:.1}", through / whole),
        ]);
        report.check_at_least(
            format!("requests/s at L = {tokens}, share of the bound"),
            through / bound,
            BOUND_SHARE_MIN,
        );
    }
    report.table(
        &format!("requests/s with {SLOTS} clients on {SLOTS} slots; the bound is the engine asked for L tokens directly"),
        &["tokens", "bound", "through the service", "share", "times whole answers"],
        &rows,
    );
    Ok(())
}

/// Measures what the service adds to each token, before an engine that computes nothing.
fn each_token(args: &Args, runtime: &tokio::runtime::Runtime, report: &mut Report) -> Result<()> {
    let model = demo_model("demo-cloud.gguf")?;
    let answer = "the harbour of Ostend and its ships ".repeat(LONG);
    let engine = ScriptedEngine::start(Dialect::Vllm, Arc::clone(&model), vec![("story".to_owned(), answer)]);
    let engine = runtime.block_on(engine)?;
    let url = engine.url();
    let service = before(&[&url], &baton_e2e::process::models_folder().join("demo-cloud.gguf"))?;
    let ask = |address: &str, model: &str| -> Result<f64> {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "Tell a story." }],
            "max_tokens": LONG, "temperature": 0, "stream": true });
        let took = read(address, "/v1/chat/completions", &body, |event| {
            event["choices"][0]["delta"]["content"].is_string()
        })?;
        anyhow::ensure!(took.tokens + 200 >= LONG, "{} tokens came", took.tokens);
        Ok((took.last - took.first) * 1e3 / (LONG - 1) as f64)
    };
    let (mut alone, mut through) = (Vec::new(), Vec::new());
    for _ in 0..args.answers {
        alone.push(ask(url.trim_start_matches("http://"), "m")?);
        through.push(ask(service.address(), MODEL_NAME)?);
    }
    let (alone, through) =
        (median(alone).context("nothing was measured")?, median(through).context("nothing was measured")?);
    report.table(
        &format!("time per token of {LONG}, us, an engine that computes nothing"),
        &["asked", "median"],
        &[
            vec!["engine alone".to_owned(), format!("{alone:.1}")],
            vec!["through the service".to_owned(), format!("{through:.1}")],
        ],
    );
    report.check_at_most("each token: the service adds, us", through - alone, TOKEN_US_MAX);
    Ok(())
}
