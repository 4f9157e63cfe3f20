//! The command line: `baton ask`, `baton chat`, `baton serve`, `baton model`, `baton profile`,
//! `baton ring`.

mod ask;
mod chat;
mod document;
mod model;
mod open;
mod profile;
mod ring;
mod serve;
mod terminal;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Ask about long documents: the cloud begins, this device finishes.
#[derive(Debug, Parser)]
#[command(name = "baton", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Ask one question about a document
    Ask(ask::AskArgs),
    /// Talk, turn by turn
    Chat(chat::ChatArgs),
    /// Serve the OpenAI chat API to programs on this machine
    Serve(serve::ServeArgs),
    /// Work with model files
    Model(model::ModelArgs),
    /// Measure what this device can do with a model
    Profile(profile::ProfileArgs),
    /// Run one model over several devices
    Ring(ring::RingArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// The cloud begins, this device takes over
    Relay,
    /// The cloud writes all
    Cloud,
    /// This device alone
    Device,
}

/// Options that every command has.
#[derive(Debug, Args)]
struct CommonArgs {
    /// Address of the cloud service, e.g. `https://assist.example.org`
    #[arg(long, env = "BATON_CLOUD", value_name = "URL")]
    cloud: Option<String>,
    /// Key for the cloud service
    #[arg(long, env = "BATON_CLOUD_KEY", value_name = "KEY", hide_env_values = true)]
    cloud_key: Option<String>,
    /// GGUF model of this device [default: models/demo-device.gguf, if found]
    #[arg(long, env = "BATON_MODEL", value_name = "FILE")]
    model: Option<PathBuf>,
    /// Who writes [default: relay with --cloud, else device]
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Allow the cloud without being asked
    #[arg(long, conflicts_with = "no_cloud")]
    yes: bool,
    /// Take over at once where the line to the cloud is cut, in place of going on with its stream within 2 s
    #[arg(long)]
    no_resume: bool,
    /// GGUF file of a LoRA adapter of the device's model, by the name that a scene gives it: the cloud's part and this
    /// device's are then written with it (may be given several times)
    #[arg(long, value_name = "NAME=FILE", value_parser = adapter_file)]
    adapter: Vec<AdapterFile>,
    /// Do not use the cloud, whatever was said before
    #[arg(long)]
    no_cloud: bool,
    /// Folder for settings [default: the platform's]
    #[arg(long, env = crate::settings::CONFIG_DIR_ENV, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Compute threads [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
    /// Memory for copies of weights in an order that is read a few percent faster; 0 reads all from the mapped file
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    repack_mib: u32,
    /// Memory for the model's weights: auto (what the system can give), all (map the whole file), or a size (2GB, 800MB).
    /// What does not fit is read from the disk for every token; --repack-mib then does nothing
    #[arg(long, env = "BATON_MEMORY", default_value = "auto", value_name = "SIZE")]
    memory: crate::residency::MemoryFor,
    /// Compute together with the devices of the ring that this one heads (see `baton ring init`)
    #[arg(long)]
    ring: bool,
    #[command(flatten)]
    head: ring::HeadArgs,
    /// Tokens of prompt and answer that the device holds
    #[arg(long, default_value_t = 8192, value_name = "N")]
    kv_tokens: usize,
    /// Write several tokens in one pass where earlier text or a smaller model proposes them; the answer stays the
    /// same: auto (from earlier text, while that is faster), off, lookup (always), draft=FILE (a smaller GGUF model
    /// with the same tokenizer, while that is faster)
    #[arg(long, env = "BATON_SPECULATE", default_value = "auto", value_name = "HOW")]
    speculate: crate::local::Speculation,
    /// What kind of device this is, for the cloud's optimizer
    #[arg(long, default_value = "desktop", value_name = "CLASS")]
    device_class: String,
    /// What kind of network this is on (wifi, ethernet, 5g, lte, ...), for the cloud's optimizer
    #[arg(long, value_name = "CLASS")]
    network: Option<String>,
    /// EMULATION: each prefill pass takes at least so many milliseconds for each token
    #[arg(long, value_name = "MS")]
    emulate_prefill_ms_per_token: Option<f64>,
    /// EMULATION: each prompt takes at least so many milliseconds besides
    #[arg(long, value_name = "MS")]
    emulate_prefill_base_ms: Option<f64>,
    /// EMULATION: each decode pass takes at least so many milliseconds
    #[arg(long, value_name = "MS")]
    emulate_decode_ms: Option<f64>,
}

/// How an answer is written and shown.
#[derive(Debug, Args)]
struct AnswerArgs {
    /// Scene that the question is asked in
    #[arg(long)]
    scene: Option<String>,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 512, value_name = "N")]
    max_tokens: usize,
    /// 0: greedy
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Sample from this many most probable tokens only
    #[arg(long)]
    top_k: Option<u32>,
    /// Sample from the most probable tokens of this mass only
    #[arg(long)]
    top_p: Option<f32>,
    /// Sample only tokens of at least this share of the largest probability
    #[arg(long)]
    min_p: Option<f32>,
    /// Penalty on tokens that the answer already holds; 1: none
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Seed of the randomness
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Text that ends the answer (may be given several times)
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// How the cloud refines the prompt: attention, paper, bm25, random, none
    #[arg(long, value_name = "MODE")]
    refine_mode: Option<baton_refine::Mode>,
    /// Share of the document to keep (r)
    #[arg(long, value_name = "R")]
    ratio: Option<f32>,
    /// Tokens that the cloud writes (L)
    #[arg(long, value_name = "L")]
    assist_tokens: Option<u32>,
    /// Whose token counts where both wrote one: cloud or device
    #[arg(long, value_name = "WHO")]
    corrector: Option<baton_protocol::Corrector>,
    /// Show text at an even pace (default)
    #[arg(long, conflicts_with = "instant")]
    pace: bool,
    /// Show text as it comes
    #[arg(long)]
    instant: bool,
    /// Print a timeline of the answer
    #[arg(long)]
    trace: bool,
}

/// An adapter's file, and the name that scenes give it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AdapterFile {
    name: String,
    path: PathBuf,
}

fn adapter_file(text: &str) -> Result<AdapterFile, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok(AdapterFile { name: name.to_owned(), path: PathBuf::from(path) })
        }
        _ => Err(format!("`{text}` is not NAME=FILE")),
    }
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Anything that keeps the command from being done; the caller prints it.
    pub async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Ask(args) => ask::run(args).await,
            Command::Chat(args) => chat::run(args).await,
            Command::Serve(args) => serve::run(args).await,
            Command::Model(args) => model::run(args).await,
            Command::Profile(args) => profile::run(args).await,
            Command::Ring(args) => ring::run(args).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from([
            "baton",
            "ask",
            "doc.txt",
            "Why?",
            "--refine-mode",
            "bm25",
            "--ratio",
            "0.5",
        ]);
        assert!(cli.is_ok(), "{cli:?}");
        let draft = ["baton", "ask", "d", "q", "--speculate", "draft=small.gguf"];
        assert!(Cli::try_parse_from(draft).is_ok());
        let err = Cli::try_parse_from(["baton", "ask", "d", "q", "--speculate", "fast"]).unwrap_err();
        assert!(err.to_string().contains("want auto, off, lookup or draft=FILE"), "{err}");
        let memory = |size: &str| Cli::try_parse_from(["baton", "ask", "d", "q", "--memory", size]);
        assert!(memory("1500MB").is_ok() && memory("all").is_ok());
        let err = memory("much").unwrap_err();
        assert!(err.to_string().contains("want auto, all or a size like 2GB or 800MB"), "{err}");
        let adapter = ["baton", "ask", "d", "q", "--adapter", "law=a.gguf", "--adapter", "med=b=c.gguf"];
        let Command::Ask(_) = Cli::try_parse_from(adapter).unwrap().command else {
            panic!("the command is ask")
        };
        assert_eq!(adapter_file("med=b=c.gguf").unwrap().path, PathBuf::from("b=c.gguf"));
        let alone =
            ["baton", "model", "adapter", "dir=0.5", "--model", "m.gguf", "--out", "a.gguf", "--force"];
        assert!(Cli::try_parse_from(alone).is_ok());
        let import =
            ["baton", "model", "import", "dir", "--out", "m.gguf", "--quant", "q8_0", "--lora", "a=0.5"];
        assert!(Cli::try_parse_from(import).is_ok());
        for bad in [
            &["baton", "ask", "doc.txt"][..],
            &["baton", "model", "import", "dir"],
            &["baton", "ask", "d", "q", "--refine-mode", "best"],
            &["baton", "ask", "d", "q", "--adapter", "a.gguf"],
            &["baton", "model", "adapter", "dir", "--out", "a.gguf"],
        ] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
