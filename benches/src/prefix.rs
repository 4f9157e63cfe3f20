//! `baton-bench prefix`: measures requests whose prompts share a prefix, with and without the prefix cache.
//!
//! Two services run on the same model, one of them without the prefix cache. Each request goes to both, one
//! after the other and alone, so that a drift of the machine's speed affects both. The mean includes the
//! first request, which finds nothing in the cache.

use anyhow::{Context as _, Result, bail};
use baton_pacing::refit::median;
use serde_json::json;

use crate::cloud::service::{Ask, SYSTEM_TOKENS, Service, TEMPLATE_TOKENS, Took};
use crate::engine::SubjectArgs;
use crate::engine::letters::Letters;
use crate::engine::samples::percentile;
use crate::report::Report;

/// Tokens after the shared prefix, and the maximum ratio of the time to the first token with and without the
/// cache.
const CASES: [(usize, f64); 2] = [(512, 0.45), (256, 1.0 / 3.0)];

/// Options of `baton-bench prefix`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: SubjectArgs,
    /// Length of the prefix that all prompts share, in tokens
    #[arg(long, default_value_t = 1024)]
    prefix: usize,
    /// Number of requests of each case
    #[arg(long, default_value_t = 32)]
    requests: usize,
    /// A short run of a minute or two: four requests, no checks
    #[arg(long)]
    quick: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let requests = if args.quick { 4 } else { args.requests };
    if requests == 0 || args.prefix < 64 {
        bail!("{requests} requests and a prefix of {} tokens, must be at least 1 and 64", args.prefix);
    }
    let subject = args.on.ready()?;
    let start = |percent: &str| {
        let threads = args.on.threads.to_string();
        let kv_tokens = (8 * (args.prefix + 1024)).to_string();
        let options = ["--threads", &threads, "--prefix-cache", percent, "--kv-tokens", &kv_tokens];
        Service::start(&subject.path, &options.map(str::to_owned))
    };
    let (with, without) = (start("100")?, start("0")?);
    let mut report = Report::new("prefix");
    let mut letters = Letters::new(7);
    let mut rows = Vec::new();
    for (own_tokens, limit) in CASES {
        // The prefix consists of the beginning, and the role, the text and the end of the system message.
        let system = letters.prompt(args.prefix - SYSTEM_TOKENS - 1);
        let asks: Vec<Ask> = (0..requests)
            .map(|_| {
                let user = letters.prompt(own_tokens - (TEMPLATE_TOKENS - 1));
                Ask { system: Some(system.clone()), user, tokens: 1 }
            })
            .collect();
        let (mut hits, mut misses) = (Vec::new(), Vec::new());
        for (at, ask) in asks.iter().enumerate() {
            hits.push(with.assist(ask)?);
            misses.push(without.assist(ask)?);
            eprintln!(
                "{own_tokens} own tokens, {}/{requests}: {:?}, {:?} without",
                at + 1,
                hits[at].ttft,
                misses[at].ttft
            );
        }
        check_tokens(args.prefix + own_tokens, args.prefix, &hits, &misses)?;
        let (cached, plain) = (Ttft::of(&hits)?, Ttft::of(&misses)?);
        let ratio = cached.mean_s / plain.mean_s;
        let number = |value: f64| format!("{value:.3}");
        rows.push(vec![
            own_tokens.to_string(),
            number(cached.mean_s),
            number(plain.mean_s),
            number(ratio),
            number(cached.p50_s / plain.p50_s),
            number(cached.p95_s),
            number(plain.p95_s),
        ]);
        report.data(
            &own_tokens.to_string(),
            json!({
                "cached": cached.data(), "plain": plain.data(), "ratio": ratio, "requests": requests,
            }),
        );
        if !args.quick {
            report.check_at_most(
                format!("{own_tokens} own tokens: TTFT, of that without the cache"),
                ratio,
                limit,
            );
        }
    }
    let title = format!("{}: {requests} requests that share {} tokens; TTFT, s", subject.name, args.prefix);
    let header = ["own tokens", "mean", "without", "ratio", "of medians", "p95", "without"];
    report.table(&title, &header, &rows);
    Ok(report)
}

/// Checks that every request but the first found the prefix in the cache, in whole blocks, and that nothing
/// was cached in the other service.
fn check_tokens(whole: usize, prefix: usize, hits: &[Took], misses: &[Took]) -> Result<()> {
    const BLOCK_TOKENS: u64 = 32;
    let least = prefix as u64 - BLOCK_TOKENS;
    let wrong = |took: &&Took| took.prompt_tokens != whole as u64;
    if let Some(took) = hits.iter().chain(misses).find(wrong) {
        bail!("a prompt has {} tokens, must be {whole}", took.prompt_tokens);
    }
    if let Some(took) = hits.iter().skip(1).find(|took| took.cached_tokens < least) {
        bail!("{} tokens came from the cache, must be at least {least}", took.cached_tokens);
    }
    if let Some(took) = misses.iter().find(|took| took.cached_tokens > 0) {
        bail!("{} tokens came from a cache that is off", took.cached_tokens);
    }
    Ok(())
}

struct Ttft {
    mean_s: f64,
    p50_s: f64,
    p95_s: f64,
}

impl Ttft {
    fn of(took: &[Took]) -> Result<Ttft> {
        let seconds: Vec<f64> = took.iter().map(|took| took.ttft.as_secs_f64()).collect();
        Ok(Ttft {
            mean_s: seconds.iter().sum::<f64>() / seconds.len() as f64,
            p50_s: median(seconds.iter().copied()).context("a request was measured")?,
            p95_s: percentile(seconds, 0.95).context("a request was measured")?,
        })
    }

    fn data(&self) -> serde_json::Value {
        json!({ "ttft_mean_s": self.mean_s, "ttft_p50_s": self.p50_s, "ttft_p95_s": self.p95_s })
    }
}
