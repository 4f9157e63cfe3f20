//! Measures eight answers at once over HTTP from Baton's cloud service and llama-server, as real processes on
//! loopback.
//!
//! llama-server runs with the flags that gave the highest throughput in a short test before. Prompts are
//! random letters, one token each; they differ in their first letters, so that no prefix cache helps. Both
//! servers are bound to the same CPUs, and the client uses almost no CPU time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use baton_pacing::refit::median;
use serde_json::json;

use super::letters::Letters;
use super::peer::Peer;
use super::samples::{Samples, percentile};
use super::server::Server;
use super::{Args, OURS, Subject, machine};
use crate::report::Report;

const PEER: &str = "llama-server";
const STREAMS: usize = 8;
const PROMPT_TOKENS: usize = 512;
const ANSWER_TOKENS: usize = 64;
/// KV cache of each server in tokens, for all streams together, with room for rounding to blocks.
const KV_TOKENS: usize = STREAMS * 1024;
/// Flags besides `-np 8`. Each set is tried together with the best flags of the sets before it.
const FLAG_SETS: [&[&[&str]]; 3] = [
    &[&["--repack"], &["--no-repack"]],
    &[&["--no-kv-unified"], &["--kv-unified"]],
    &[&["-b", "2048", "-ub", "512"], &["-b", "512", "-ub", "512"], &["-b", "256", "-ub", "256"]],
];

/// The figures over all streams of a run.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Tokens of prompts and answers per second, from the first request to the last token.
    tokens_per_s: f64,
    ttft_p50_s: f64,
    ttft_p95_s: f64,
    /// The longest gap between tokens of a stream, as a multiple of its median gap while all streams decode.
    longest_gap_steps: f64,
    longest_gap_s: f64,
}

/// Measures both servers and adds the table and the checks.
pub(super) fn measure(args: &Args, subject: &Subject, peer: &Peer, report: &mut Report) -> Result<()> {
    let threads = args.threads.get();
    machine::bound_to_first_cpus(threads)?;
    let own = std::env::current_exe().context("find the running program")?;
    let program = own.with_file_name("baton-cloud");
    let flags = best_flags(subject, peer, threads)?;
    let ours = Server::baton(&program, &subject.path, threads, STREAMS, KV_TOKENS)?;
    let theirs = start_peer(subject, peer, threads, &flags)?;
    let mut letters = Letters::new(1);
    run(&ours, 2, &mut letters)?; // Warms up.
    let mut samples = Samples::default();
    for at in 0..args.alternations() {
        let both = [(OURS, &ours), (PEER, &theirs)];
        for turn in 0..2 {
            let (name, server) = both[(at + turn) % 2];
            let seen = run(server, STREAMS, &mut letters)?;
            eprintln!(
                "{} {}/{}: {STREAMS} streams: {name} {seen:?}",
                subject.name,
                at + 1,
                args.alternations()
            );
            for (figure, value) in seen.figures() {
                samples.add(figure, name, at, value);
            }
        }
    }
    table(subject, &flags, &samples, report);
    if !args.quick {
        checks(subject, &samples, report);
    }
    Ok(())
}

const THROUGHPUT: &str = "tokens/s, prompts and answers";
const TTFT_P50: &str = "time to first token p50, s";
const TTFT_P95: &str = "time to first token p95, s";
const GAP_STEPS: &str = "longest gap, steps";
const GAP: &str = "longest gap, s";

impl Seen {
    fn figures(self) -> [(&'static str, f64); 5] {
        [
            (THROUGHPUT, self.tokens_per_s),
            (TTFT_P50, self.ttft_p50_s),
            (TTFT_P95, self.ttft_p95_s),
            (GAP_STEPS, self.longest_gap_steps),
            (GAP, self.longest_gap_s),
        ]
    }
}

fn start_peer(subject: &Subject, peer: &Peer, threads: usize, flags: &[&str]) -> Result<Server> {
    let flags = [&["-np", "8"], flags].concat();
    Server::llama_cpp(&peer.server(), &subject.path, threads, KV_TOKENS, &flags)
}

/// Finds the flags that give llama-server the highest throughput, one set after another.
fn best_flags(subject: &Subject, peer: &Peer, threads: usize) -> Result<Vec<&'static str>> {
    let mut letters = Letters::new(2);
    let mut chosen: Vec<&'static str> = Vec::new();
    let mut best = 0.0;
    for set in FLAG_SETS {
        let before = chosen.clone();
        for (at, flags) in set.iter().enumerate() {
            let tried = [before.as_slice(), flags].concat();
            if at == 0 && best > 0.0 {
                chosen = tried; // These are its defaults, which the previous set has measured.
                continue;
            }
            let server = start_peer(subject, peer, threads, &tried)?;
            let seen = run(&server, STREAMS, &mut letters)?;
            eprintln!("llama-server {}: {:.1} tokens/s", tried.join(" "), seen.tokens_per_s);
            if seen.tokens_per_s > best {
                (best, chosen) = (seen.tokens_per_s, tried);
            }
        }
    }
    Ok(chosen)
}

/// Runs `streams` answers at once.
fn run(server: &Server, streams: usize, letters: &mut Letters) -> Result<Seen> {
    let prompts: Vec<String> =
        (0..streams).map(|_| letters.prompt(PROMPT_TOKENS - server.template_tokens())).collect();
    let start = Instant::now();
    let times: Vec<Vec<Instant>> = std::thread::scope(|scope| {
        let running: Vec<_> = prompts.iter().map(|prompt| scope.spawn(move || one(server, prompt))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("a stream's thread does not panic"))
            .collect::<Result<_>>()
    })?;
    let times: Vec<Vec<Duration>> =
        times.iter().map(|stream| stream.iter().map(|at| at.duration_since(start)).collect()).collect();
    seen(&times).context("a stream showed too few tokens")
}

/// Streams one answer and returns the times at which its tokens came.
fn one(server: &Server, prompt: &str) -> Result<Vec<Instant>> {
    let mut times = Vec::with_capacity(ANSWER_TOKENS);
    let (prompt_tokens, answer_tokens) = server.answer(prompt, ANSWER_TOKENS, |at| times.push(at))?;
    if (prompt_tokens, answer_tokens) != (PROMPT_TOKENS as u64, ANSWER_TOKENS as u64) {
        bail!("{prompt_tokens} + {answer_tokens} tokens, must be {PROMPT_TOKENS} + {ANSWER_TOKENS}");
    }
    Ok(times)
}

/// Computes the figures of streams whose tokens came at `times` after the first request, or returns `None` if
/// a stream has fewer than two tokens.
fn seen(times: &[Vec<Duration>]) -> Option<Seen> {
    let firsts: Vec<f64> = times.iter().filter_map(|stream| Some(stream.first()?.as_secs_f64())).collect();
    let end = times.iter().filter_map(|stream| stream.last()).max()?.as_secs_f64();
    let all_run = firsts.iter().copied().reduce(f64::max)?;
    let gaps = |stream: &[Duration]| -> Vec<(f64, f64)> {
        let gap = |pair: &[Duration]| (pair[0].as_secs_f64(), (pair[1] - pair[0]).as_secs_f64());
        stream.windows(2).map(gap).collect()
    };
    // Once the last stream has started, every step only decodes.
    let decoding = |stream: &[Duration]| -> Vec<f64> {
        gaps(stream).into_iter().filter(|(from, _)| *from >= all_run).map(|(_, gap)| gap).collect()
    };
    let of_all = median(times.iter().flat_map(|stream| decoding(stream)))?;
    let (mut longest_gap_steps, mut longest_gap_s) = (0.0f64, 0.0f64);
    for stream in times {
        let step = median(decoding(stream)).unwrap_or(of_all); // It may end before the last one starts.
        let longest = gaps(stream).into_iter().map(|(_, gap)| gap).reduce(f64::max)?;
        longest_gap_steps = longest_gap_steps.max(longest / step);
        longest_gap_s = longest_gap_s.max(longest);
    }
    Some(Seen {
        tokens_per_s: (times.len() * (PROMPT_TOKENS + ANSWER_TOKENS)) as f64 / end,
        ttft_p50_s: median(firsts.iter().copied())?,
        ttft_p95_s: percentile(firsts, 0.95)?,
        longest_gap_steps,
        longest_gap_s,
    })
}

fn table(subject: &Subject, flags: &[&str], samples: &Samples, report: &mut Report) {
    let text = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
    let mut data = Vec::new();
    let rows: Vec<Vec<String>> = [THROUGHPUT, TTFT_P50, TTFT_P95, GAP_STEPS, GAP]
        .into_iter()
        .map(|figure| {
            let (ours, theirs) = (samples.median(figure, OURS), samples.median(figure, PEER));
            let ratio = samples.ratio(figure, OURS, &[PEER]);
            data.push(json!({ "figure": figure, "baton": ours, "llama_server": theirs, "ratio": ratio }));
            vec![figure.to_owned(), text(ours), text(theirs), text(ratio)]
        })
        .collect();
    let title = format!("{}: {STREAMS} streams of {PROMPT_TOKENS} + {ANSWER_TOKENS} tokens", subject.name);
    report.table(&title, &["median", OURS, PEER, "ratio"], &rows);
    report.note(format!("llama-server -np 8 {}", flags.join(" ")));
    report
        .data(&format!("{} streams", subject.name), json!({ "figures": data, "llama_server_flags": flags }));
}

fn checks(subject: &Subject, samples: &Samples, report: &mut Report) {
    let name = |what: &str| format!("{} {STREAMS} streams: {what}", subject.name);
    let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let ratio = |figure| number(samples.ratio(figure, OURS, &[PEER]));
    report.check_at_least(name("throughput, ratio to llama-server"), ratio(THROUGHPUT), 1.6);
    let ttft = ratio(TTFT_P95);
    report.check(name("TTFT p95, ratio to llama-server"), ttft, "< 1", ttft < 1.0);
    let gap = number(samples.median(GAP_STEPS, OURS));
    report.check_at_most(name("longest gap of a running stream, decode-only steps"), gap, 6.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: &[u64]) -> Vec<Duration> {
        millis.iter().map(|millis| Duration::from_millis(*millis)).collect()
    }

    #[test]
    fn gaps_are_counted_in_steps_of_decoding_only() {
        // The second stream starts at 500 ms; then steps take 10 ms. Before, the first one waited 60 ms.
        let seen = seen(&[at(&[400, 440, 500, 510, 520]), at(&[500, 510, 520, 530])]).unwrap();
        assert!((seen.longest_gap_steps - 6.0).abs() < 1e-9, "{seen:?}");
        assert!((seen.longest_gap_s - 0.06).abs() < 1e-9, "{seen:?}");
        assert!((seen.ttft_p50_s - 0.45).abs() < 1e-9 && (seen.ttft_p95_s - 0.5).abs() < 1e-9, "{seen:?}");
        assert!((seen.tokens_per_s - 2.0 * 576.0 / 0.53).abs() < 1e-6, "{seen:?}");
    }
}
