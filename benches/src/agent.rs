//! `baton-bench agent`: the agent that a person keeps running, as clients see it.
//!
//! How fast `baton serve` is ready, what its API costs beside the engine, and what it leaves in memory when
//! it has unloaded its model. Which route turns take on emulated devices and networks, and what the others
//! would have cost. How fast the first token of a long cold turn comes through the relay, beside the cloud
//! alone. Then agents' transcripts are played by the SDKs of OpenAI and Anthropic: a
//! long cold turn, a warm one, and one after `kill -9`. The first lines of their system prompts change each
//! time. Texts are compared with those of a program that keeps nothing. The model is the demo's with room
//! for long prompts. Its text means nothing behind 4,096 tokens, but which tokens are computed does not
//! depend on that.

mod grid;
mod relay;
mod served;
mod transcript;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use baton_e2e::clients::{fetched_models, python_for, run as run_client, scripts};
use baton_engine::{BLOCK_TOKENS, Model};
use baton_kernels_cpu::Format;
use baton_pacing::refit::median;
use baton_synthetic::SyntheticModel;
use serde::Deserialize;
use serde_json::json;

use self::served::{KEY, Served};
use self::transcript::{WARM_TURNS, transcript};
use crate::engine::letters::Letters;
use crate::engine::process::Worker;
use crate::host::clients::{Ask, Program, Until, program, tokens_per_s};
use crate::report::Report;

/// Longest time from the start of the program until it listens.
const READY_MAX_MS: f64 = 300.0;
/// Most memory of a program that has unloaded its model.
const IDLE_MAX_MB: f64 = 60.0;
/// Most time that a token takes longer through the API than in a bare loop over the engine.
const OVERHEAD_MAX_US: f64 = 50.0;
/// Tokens of the model's context.
const CONTEXT: u32 = 32_768;
/// Starts of a program.
const STARTS: usize = 5;
/// Answers whose time is measured, and their tokens.
const ANSWERS: usize = 9;
const ANSWER_TOKENS: usize = 512;
/// Letters of their prompts.
const PROMPT: usize = 64;
/// Longest time for one play of an SDK, and for keys and values to reach the disk: guards against hangs.
const PLAY_MAX: Duration = Duration::from_secs(900);
const KEPT_MAX: Duration = Duration::from_secs(60);
/// The SDKs, by the name of their dialect.
const DIALECTS: [&str; 2] = ["openai", "anthropic"];

/// Options of `baton-bench agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Transcripts, each played by both SDKs
    #[arg(long, default_value_t = 6)]
    transcripts: u64,
    /// Tokens of a transcript's first turn
    #[arg(long, default_value_t = 20_000)]
    tokens: usize,
    /// Tokens of each answer
    #[arg(long, default_value_t = 24)]
    answer: usize,
    /// Only the choice of routes, in virtual time
    #[arg(long)]
    routes: bool,
}

/// A turn, as an SDK heard it.
#[derive(Debug, Deserialize)]
struct Heard {
    turn: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    first_ms: f64,
    text: String,
    called: bool,
}

impl Heard {
    fn said(&self) -> (&str, bool) {
        (&self.text, self.called)
    }
}

/// The turns of one transcript by one SDK.
struct Played {
    dialect: &'static str,
    seed: u64,
    turns: Vec<Heard>,
    /// Turns whose text differs from that of a program that keeps nothing.
    differing: usize,
}

impl Played {
    /// Returns the most tokens that a warm turn computed beside the new ones.
    fn excess(&self) -> usize {
        let pairs = self.turns.windows(2);
        pairs
            .map(|pair| pair[0].prompt_tokens.saturating_sub(pair[1].cached_tokens))
            .max()
            .unwrap_or(usize::MAX)
    }
}

/// Measures everything.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("agent");
    grid::measure(&mut report)?;
    if args.routes {
        return Ok(report);
    }
    let folder = tempfile::tempdir().context("make a folder")?;
    let model = folder.path().join("demo-32k.gguf");
    served::with_context(&baton_e2e::process::models_folder().join("demo-device.gguf"), &model, CONTEXT)?;
    ready(&model, &mut report)?;
    idle(&model, &mut report)?;
    overhead(folder.path(), &mut report)?;
    relay::measure(&model, args.tokens, args.answer, &mut report)?;
    match python_for("apis") {
        Ok(programs) => replay(args, &programs.join("python"), &model, folder.path(), &mut report)?,
        Err(why) => report.note(format!("skipped: replay: {why}")),
    }
    Ok(report)
}

/// Measures the time until the program listens: with the demo's model, and with a real one if it was fetched.
fn ready(model: &Path, report: &mut Report) -> Result<()> {
    let real = fetched_models();
    if let Err(why) = &real {
        report.note(format!("skipped: SmolLM2-135M-Instruct: {why}"));
    }
    let real = real.ok().and_then(|folder| served::find_gguf(&folder));
    let mut rows = Vec::new();
    for (name, path) in [("the demo's", Some(model)), ("SmolLM2-135M-Instruct", real.as_deref())] {
        let Some(path) = path else { continue };
        let start = |_| Ok(Served::start(path, &[], tempfile::tempdir()?)?.ready.as_secs_f64() * 1e3);
        let times = (0..STARTS).map(start).collect::<Result<Vec<f64>>>()?;
        let longest = times.iter().copied().fold(0.0, f64::max);
        rows.push(vec![
            name.to_owned(),
            format!("{:.0}", median(times).unwrap_or(f64::NAN)),
            format!("{longest:.0}"),
        ]);
        report.check_at_most(
            format!("ready with {name} model, ms, the longest of {STARTS} starts"),
            longest,
            READY_MAX_MS,
        );
    }
    report.table(
        "from the start of `baton serve` until it listens, ms",
        &["model", "median", "longest"],
        &rows,
    );
    Ok(())
}

/// Measures the memory of a program that has unloaded its model.
fn idle(model: &Path, report: &mut Report) -> Result<()> {
    let real = fetched_models().ok().and_then(|folder| served::find_gguf(&folder));
    let mut rows = Vec::new();
    for (name, path) in [("the demo's", Some(model)), ("SmolLM2-135M-Instruct", real.as_deref())] {
        let Some(path) = path else { continue };
        let mut served = Served::start(path, &["--keep-alive", "1s"], tempfile::tempdir()?)?;
        served.say(2000, 16)?;
        let loaded = served.memory_mb()?;
        // The first look is half a second after a second without questions.
        let begun = Instant::now();
        let mut left = loaded;
        while begun.elapsed() < Duration::from_secs(6) {
            std::thread::sleep(Duration::from_millis(200));
            left = left.min(served.memory_mb()?);
        }
        let again = served.say(2000, 16)?;
        rows.push(vec![name.to_owned(), format!("{loaded:.0}"), format!("{left:.0}"), format!("{again:.0}")]);
        report.check_at_most(format!("memory with {name} model unloaded, MB"), left, IDLE_MAX_MB);
    }
    let header = ["model", "loaded, MB", "unloaded, MB", "next answer's first token, ms"];
    report.table("memory of `baton serve` (resident)", &header, &rows);
    Ok(())
}

/// Measures what a token takes longer through the API, with a model so small that the rest shows.
fn overhead(folder: &Path, report: &mut Report) -> Result<()> {
    let path = folder.join("small.gguf");
    let small = SyntheticModel { context_len: 4096, ..SyntheticModel::small("llama", Format::F32, 1) };
    std::fs::write(&path, small.to_gguf().context("make a small model")?).context("write a small model")?;
    let options = ["--threads", "1", "--speculate", "off", "--kv-tokens", "4096"].map(str::to_owned);
    let device = Program::device(&program("baton", None)?, &path, &options)?;
    let mut command = Command::new(std::env::current_exe().context("find the running program")?);
    command.arg("engine-worker").arg(&path).args(["--kv", "f16", "--threads", "1", "--context", "4096"]);
    let mut bare = Worker::start("engine", &mut command)?;
    let (mut letters, mut api, mut engine, mut tried) = (Letters::new(5), Vec::new(), Vec::new(), 0);
    while api.len() < ANSWERS {
        tried += 1;
        ensure!(tried < 10 * ANSWERS, "answers of the small model end early");
        let ask = Ask { prompt: letters.prompt(PROMPT), tokens: ANSWER_TOKENS, temperature: 0.0, seed: 1 };
        let Ok(heard) = device.answers(std::slice::from_ref(&ask)) else { continue };
        let rate = tokens_per_s(&heard, Until::FirstEnd).context("no token was heard")?;
        api.push(1e6 / rate);
        engine.push(bare.seconds(&format!("batch 1 {ANSWER_TOKENS} {PROMPT}"))? * 1e6 / ANSWER_TOKENS as f64);
    }
    let [api, engine] = [api, engine].map(|times| median(times).unwrap_or(f64::NAN));
    let rows = [vec![format!("{api:.0}"), format!("{engine:.0}"), format!("{:.0}", api - engine)]];
    report.table(
        "a token of a very small model, us",
        &["through the API", "bare engine", "difference"],
        &rows,
    );
    report.check_at_most(
        "API: a token takes longer than in the bare engine by, us",
        api - engine,
        OVERHEAD_MAX_US,
    );
    Ok(())
}

/// Plays the transcripts.
fn replay(args: &Args, python: &Path, model: &Path, folder: &Path, report: &mut Report) -> Result<()> {
    let opened = Model::open(model).context("open the model")?;
    let mut all = Vec::new();
    for seed in 0..args.transcripts {
        let path = folder.join(format!("transcript-{seed}.json"));
        std::fs::write(&path, transcript(seed, args.tokens, opened.tokenizer()).to_string())?;
        for dialect in DIALECTS {
            let player = Player { python, path: &path, dialect, answer: args.answer, model };
            let played = player.play(seed)?;
            eprintln!(
                "transcript {seed} by {dialect}: {} tokens computed beside the new ones",
                played.excess()
            );
            all.push(played);
        }
    }
    let row = |played: &Played| {
        let turn = |turn: usize| {
            let heard = &played.turns[turn];
            [
                heard.prompt_tokens.to_string(),
                heard.cached_tokens.to_string(),
                format!("{:.0}", heard.first_ms),
            ]
        };
        let cells = [0, 1, 2].into_iter().flat_map(turn);
        [played.seed.to_string(), played.dialect.to_owned()].into_iter().chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let header = [
        "transcript",
        "SDK",
        "cold: tokens",
        "known",
        "first, ms",
        "warm: tokens",
        "known",
        "first, ms",
        "after kill -9: tokens",
        "known",
        "first, ms",
    ];
    report.table(
        "transcripts of agents with tools, and a system prompt that begins in another way each turn",
        &header,
        &rows,
    );
    let excess = all.iter().map(Played::excess).max().unwrap_or(usize::MAX);
    let differing: usize = all.iter().map(|played| played.differing).sum();
    report.check_at_most(
        "warm turns: most tokens computed beside the new ones",
        excess as f64,
        BLOCK_TOKENS as f64,
    );
    report.check_equal(
        "turns whose text differs from that of a program that keeps nothing",
        differing as f64,
        0.0,
    );
    report.check_at_least("transcripts played", all.len() as f64, (args.transcripts * 2) as f64);
    report.data(
        "first_ms",
        json!(
            all.iter()
                .map(|played| played.turns.iter().map(|heard| heard.first_ms).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        ),
    );
    Ok(())
}

/// One SDK with one transcript.
struct Player<'a> {
    python: &'a Path,
    path: &'a Path,
    dialect: &'static str,
    answer: usize,
    model: &'a Path,
}

impl Player<'_> {
    fn play(&self, seed: u64) -> Result<Played> {
        let settings = tempfile::tempdir().context("make a folder for settings")?;
        let place: PathBuf = settings.path().join("prefixes");
        let served = Served::start(self.model, &[], settings)?;
        let mut turns = self.turns(&served, 0, WARM_TURNS - 1)?;
        let whole = turns.iter().map(|heard| heard.prompt_tokens / BLOCK_TOKENS).max().unwrap_or(0);
        let begun = Instant::now();
        while served::files(&place) < whole {
            ensure!(begun.elapsed() < KEPT_MAX, "keys and values do not reach the disk");
            std::thread::sleep(Duration::from_millis(20));
        }
        let settings = served.kill()?;
        let served = Served::start(self.model, &[], settings)?;
        turns.extend(self.turns(&served, WARM_TURNS, WARM_TURNS)?);
        drop(served);
        let mut differing = 0;
        for turn in [1, WARM_TURNS] {
            let plain = Served::start(self.model, &["--prefix-memory", "off"], tempfile::tempdir()?)?;
            let want = self.turns(&plain, turn, turn)?;
            ensure!(want[0].cached_tokens == 0, "a new program knew {} tokens", want[0].cached_tokens);
            differing += usize::from(want[0].said() != turns[turn].said());
        }
        Ok(Played { dialect: self.dialect, seed, turns, differing })
    }

    /// Plays some turns.
    fn turns(&self, served: &Served, first: usize, last: usize) -> Result<Vec<Heard>> {
        let mut command = Command::new(self.python);
        command
            .arg(scripts().join("apis/replay.py"))
            .arg(served.url())
            .args([KEY, self.dialect])
            .arg(self.path);
        command.args([first, last, self.answer].map(|number| number.to_string()));
        let ended = run_client(&mut command, "replay", PLAY_MAX).map_err(anyhow::Error::msg)?;
        ensure!(ended.status.success(), "replay.py failed: {}", ended.stderr);
        let lines =
            ended.stdout.lines().map(|line| serde_json::from_str(line).context("read what replay.py prints"));
        let turns = lines.collect::<Result<Vec<Heard>>>()?;
        let expected = (first..=last).eq(turns.iter().map(|heard| heard.turn));
        ensure!(expected, "replay.py played {} turns, not {first} to {last}", turns.len());
        Ok(turns)
    }
}
