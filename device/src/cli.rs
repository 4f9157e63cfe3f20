//! The command line: `baton ask`, `baton chat`, `baton serve`, `baton launch`, `baton model`,
//! `baton profile`, `baton ring`, the options that a user keeps, and what shells and `man` know of them all.

mod ask;
mod chat;
mod citations;
mod config;
mod conversations;
mod doctor;
mod document;
mod gpu;
mod interrupts;
mod launch;
mod load;
mod managed;
mod model;
mod open;
mod prefix;
mod profile;
mod receipt;
mod ring;
mod running;
mod secrets;
mod serve;
mod shell;
mod terminal;
mod trace;
mod values;

pub use interrupts::Stopped;

use crate::api::ANSWER_TOKENS_MAX;
use baton_protocol::{RefineOptions, Sampling, limits};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use interrupts::Interrupts;
use reqwest::Url;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Exit status of a wrong command line, the same as clap's.
const WRONG_LINE: u8 = 2;

/// Text below the options of the whole program.
const HELP: &str = "\
Exit status: 0; 1 if something failed; 2 for a wrong command line; 130 after Ctrl-C; 143 after a request to terminate; 141
if the reader of the output is gone. Once `serve`, `ring init` or `ring join` is running, the first signal ends it
cleanly: with 0, unless something failed; a second signal ends it at once, with 130 or 143. On a terminal, control characters
in answers, messages and names are shown as symbols. Files and pipes get them unchanged; --json escapes them.";

/// Headings of the options that most commands share.
mod heading {
    pub(super) const CLOUD: &str = "Cloud";
    pub(super) const MODEL: &str = "This device";
    pub(super) const RING: &str = "Ring";
    pub(super) const SAMPLING: &str = "Sampling";
    pub(super) const RELAY: &str = "Relay";
    pub(super) const SHOWN: &str = "What is shown";
}

/// Ask about long documents: the cloud begins the answer, this device finishes it.
#[derive(Debug, Parser)]
#[command(name = "baton", version, after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Ask one question about a document
    Ask(ask::AskArgs),
    /// Hold a conversation, turn by turn
    #[command(after_help = chat::HELP)]
    Chat(chat::ChatArgs),
    /// List, find and print what `baton chat` has kept
    Conversations(conversations::ConversationsArgs),
    /// Say how the last answers came about, and what was sent for them
    #[command(after_help = trace::HELP)]
    Trace(trace::TraceArgs),
    /// Show and check what left this device for an answer, as a signed receipt
    #[command(after_help = receipt::HELP)]
    Receipt(receipt::ReceiptArgs),
    /// Serve the APIs of OpenAI, Anthropic and Ollama to programs on this machine
    Serve(serve::ServeArgs),
    /// Start a coding agent that asks a running `baton serve`
    #[command(after_help = launch::HELP)]
    Launch(launch::LaunchArgs),
    /// Say what a running `baton serve` has in memory
    Ps(running::RunningArgs),
    /// Free the memory of the model of a running `baton serve`
    Stop(running::RunningArgs),
    /// Look at everything that an answer needs, and say what is wrong and what to do
    #[command(after_help = doctor::HELP)]
    Doctor(doctor::DoctorArgs),
    /// Get and keep models, make GGUF files and adapters
    Model(model::ModelArgs),
    /// Measure what this device can do with a model
    Profile(profile::ProfileArgs),
    /// Run one model on several devices together
    Ring(ring::RingArgs),
    /// Keep options that every command then takes, such as a default model
    #[command(after_help = config::HELP)]
    Config(config::ConfigArgs),
    /// Say whether the keys of this device are encrypted with a passphrase, or end that
    #[command(after_help = secrets::HELP)]
    Passphrase(secrets::PassphraseCommandArgs),
    /// Print the script by which a shell completes commands and options
    #[command(after_help = shell::COMPLETIONS_HELP)]
    Completions(shell::CompletionsArgs),
    /// Print the manual page, or write one of each command into a folder
    #[command(after_help = shell::MAN_HELP)]
    Man(shell::ManArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// Each turn goes the way that keeps the reader waiting least, as far as it can be foreseen: by this
    /// device, by the cloud, or by both. The cloud is asked only if it shortens the wait much
    Auto,
    /// The cloud begins the answer, this device takes over
    Relay,
    /// The cloud writes the whole answer
    Cloud,
    /// This device writes the whole answer
    Device,
}

/// Options that every command has.
#[derive(Debug, Args)]
struct CommonArgs {
    /// Address of the cloud service, e.g. `https://assist.example.org`
    ///
    /// An address without a scheme gets https, or http if it is this machine's own.
    #[arg(long, env = "BATON_CLOUD", value_name = "URL", value_parser = cloud_address, help_heading = heading::CLOUD)]
    cloud: Option<String>,
    #[command(flatten)]
    secrets: secrets::SecretArgs,
    /// Who writes the answer [default: auto with --cloud, or relay if an option of the relay is given;
    /// otherwise device]
    #[arg(long, value_enum, help_heading = heading::CLOUD)]
    mode: Option<ModeArg>,
    /// Bytes that are sent cost money: with --mode auto, the cloud is then asked less often
    #[arg(long, help_heading = heading::CLOUD)]
    metered: bool,
    /// Keep no record of how answers came about and what was sent (see `baton trace`)
    #[arg(long, hide_short_help = true, help_heading = heading::CLOUD)]
    no_record: bool,
    /// Allow the cloud for this run without asking; the choice is not stored
    ///
    /// Without it you are asked on the terminal, and your answer is stored for that scheme, host and port.
    /// Recognized addresses, numbers, keys, passwords and names are replaced. Some names are not recognized,
    /// and birth dates are not replaced.
    #[arg(long, conflicts_with = "no_cloud", help_heading = heading::CLOUD)]
    yes: bool,
    /// Text that is always replaced before anything goes to the cloud, in any case of letters (may be
    /// repeated)
    #[arg(long, value_name = "TEXT", value_parser = values::private_name, help_heading = heading::CLOUD)]
    private_name: Vec<String>,
    /// Send names of people, places and organisations unchanged; values with a form of their own, and
    /// --private-name, are still replaced
    #[arg(long, env = "BATON_NO_NAMES", help_heading = heading::CLOUD)]
    no_names: bool,
    /// Do not use the cloud, even if it was allowed before
    #[arg(long, help_heading = heading::CLOUD)]
    no_cloud: bool,
    /// Take over at once if the connection to the cloud is cut, without 2 s of trying to resume the stream
    #[arg(long, hide_short_help = true, help_heading = heading::CLOUD)]
    no_resume: bool,
    /// Name of this device for experiments of the cloud: a random text of 8 to 128 characters that stays
    ///
    /// With it the cloud may try other settings of a scene on this device, and is told times and agreement of
    /// those answers, no text. Without it no name is sent.
    #[arg(long, env = "BATON_DEVICE_ID", value_name = "TEXT", hide_short_help = true, help_heading = heading::CLOUD)]
    device_id: Option<String>,
    /// Kind of this device, for the cloud's optimizer
    #[arg(long, default_value = "desktop", value_name = "CLASS", hide_short_help = true, help_heading = heading::CLOUD)]
    device_class: String,
    /// Kind of this device's network (wifi, ethernet, 5g, lte, ...), for the cloud's optimizer
    #[arg(long, value_name = "CLASS", hide_short_help = true, help_heading = heading::CLOUD)]
    network: Option<String>,
    /// Model to run on this device: a GGUF file, or the name of a pulled one (see `baton model pull`)
    ///
    /// There is no default: `baton config set model NAME` keeps one for every command.
    #[arg(long, env = "BATON_MODEL", value_name = "FILE|NAME", help_heading = heading::MODEL)]
    model: Option<PathBuf>,
    /// Folder of the pulled models [default: the platform's folder for data]
    #[arg(long, env = crate::models::MODELS_DIR_ENV, value_name = "DIR", hide_short_help = true, help_heading = heading::MODEL)]
    models_dir: Option<PathBuf>,
    /// Run the models that the cloud's registry has for this class of devices, in place of --model
    ///
    /// They are fetched at the first start. While `baton serve` runs, newer ones are fetched behind the
    /// answers and used as soon as they load; the ones before are kept, and the cloud can go back to them.
    #[arg(long, env = "BATON_MANAGED", conflicts_with_all = ["model", "adapter", "ring"], requires_all = ["cloud", "registry_key"], hide_short_help = true, help_heading = heading::MODEL)]
    managed: bool,
    /// Public key that signs the registry's versions (may be repeated)
    #[arg(long, env = "BATON_REGISTRY_KEY", value_name = "KEY", value_delimiter = ' ', hide_short_help = true, help_heading = heading::MODEL)]
    registry_key: Vec<baton_registry::envelope::PublicKey>,
    /// Another `baton serve` of the home that is asked for these models before the internet, as
    /// http://HOST:PORT (may be repeated)
    ///
    /// It gives out what it has from a registry itself. Every byte is checked by the registry's signature.
    #[arg(long, env = "BATON_PEER", value_name = "URL", value_delimiter = ' ', value_parser = values::peer, hide_short_help = true, help_heading = heading::MODEL)]
    peer: Vec<baton_registry::layout::Location>,
    /// The key of these devices (`baton serve --key`)
    #[arg(long, env = "BATON_PEER_KEY", value_name = "KEY", hide_env_values = true, hide_short_help = true, help_heading = heading::MODEL)]
    peer_key: Option<String>,
    /// Scene whose models --managed runs, if the registry has some for it alone
    ///
    /// `*` is the models of all other scenes.
    #[arg(long, env = "BATON_MODELS_OF", default_value = baton_registry::sync::ANY_SCENE, value_name = "SCENE", hide_short_help = true, help_heading = heading::MODEL)]
    models_of: String,
    /// LoRA adapter (a GGUF file) for both programs' models, by a scene's name for it (may be repeated)
    #[arg(long, value_name = "NAME=FILE", value_parser = values::adapter_file, hide_short_help = true, help_heading = heading::MODEL)]
    adapter: Vec<values::AdapterFile>,
    /// Number of compute threads [default: all]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = values::one_or_more, help_heading = heading::MODEL)]
    threads: Option<NonZeroUsize>,
    /// Memory for the model's weights: auto, all, or a size like 2GB
    ///
    /// auto uses what the system can give; all maps the whole file. What does not fit is read from the disk
    /// for every token; --repack-mib then has no effect.
    #[arg(long, env = "BATON_MEMORY", default_value = "auto", value_name = "SIZE", help_heading = heading::MODEL)]
    memory: crate::machine::residency::MemoryFor,
    #[command(flatten)]
    gpu: gpu::GpuArgs,
    #[command(flatten)]
    offload: gpu::OffloadArgs,
    /// Most tokens of prompt and answer [default: the model's context, if memory allows; 8192 with --ring]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = token_count, help_heading = heading::MODEL)]
    kv_tokens: Option<usize>,
    /// Number format of the KV cache: f32, f16, q8 or q4, each of about half the size; q4 is less exact
    #[arg(long, default_value_t, value_name = "FORMAT", help_heading = heading::MODEL)]
    kv: baton_engine::engine::KvFormat,
    /// Memory in MiB for copies of weights in a layout that is read a few percent faster; 0 makes no copies
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_name = "MIB", value_parser = values::whole::<u32>(0, u32::MAX.into()), hide_short_help = true, help_heading = heading::MODEL)]
    repack_mib: u32,
    /// Propose several tokens and check them in one pass; the answer stays the same. With auto they come from
    /// earlier text while that is faster, with lookup always. With draft=FILE they come from a smaller GGUF
    /// model with the same tokenizer, while that is faster. With off none are proposed
    #[arg(long, env = "BATON_SPECULATE", default_value = "auto", value_name = "HOW", hide_short_help = true, help_heading = heading::MODEL)]
    speculate: baton_generate::speculation::Speculation,
    #[command(flatten)]
    prefixes: prefix::PrefixArgs,
    /// Folder for settings [default: the platform's]
    #[arg(long, env = crate::settings::CONFIG_DIR_ENV, value_name = "DIR", hide_short_help = true, help_heading = heading::MODEL)]
    config_dir: Option<PathBuf>,
    /// Compute together with the other devices of the ring that this device heads (see `baton ring init`)
    #[arg(long, help_heading = heading::RING)]
    ring: bool,
    #[command(flatten)]
    head: ring::HeadArgs,
    /// EMULATION: each prefill pass takes at least this many milliseconds per token
    #[arg(long, value_name = "MS", hide = true)]
    emulate_prefill_ms_per_token: Option<f64>,
    /// EMULATION: each prompt takes at least this many milliseconds more
    #[arg(long, value_name = "MS", hide = true)]
    emulate_prefill_base_ms: Option<f64>,
    /// EMULATION: each decode pass takes at least this many milliseconds
    #[arg(long, value_name = "MS", hide = true)]
    emulate_decode_ms: Option<f64>,
}

/// How an answer is written and shown.
#[derive(Debug, Args)]
struct AnswerArgs {
    /// Scene of the question [default: doc-qa; for `baton chat`: chat]
    #[arg(long)]
    scene: Option<String>,
    /// Most tokens of an answer, 1 to 65536
    #[arg(long, allow_negative_numbers = true, default_value = "512", value_name = "N", value_parser = values::whole::<u64>(1, ANSWER_TOKENS_MAX))]
    max_tokens: u64,
    /// Text that ends the answer (may be given several times)
    #[arg(long, value_name = "TEXT", value_parser = values::stop)]
    stop: Vec<String>,
    /// Sampling temperature; 0 always takes the most probable token
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.0, value_parser = values::number(limits::TEMPERATURE), help_heading = heading::SAMPLING)]
    temperature: f32,
    /// Sample only from this many most probable tokens
    #[arg(long, allow_negative_numbers = true, value_parser = values::count(limits::TOP_K), hide_short_help = true, help_heading = heading::SAMPLING)]
    top_k: Option<u32>,
    /// Sample only from the most probable tokens that together have this probability
    #[arg(long, allow_negative_numbers = true, value_parser = values::number(limits::TOP_P), hide_short_help = true, help_heading = heading::SAMPLING)]
    top_p: Option<f32>,
    /// Sample only tokens whose probability is at least this share of the largest one
    #[arg(long, allow_negative_numbers = true, value_parser = values::number(limits::MIN_P), hide_short_help = true, help_heading = heading::SAMPLING)]
    min_p: Option<f32>,
    /// Penalty on tokens that the answer already holds; 1 means no penalty
    #[arg(long, allow_negative_numbers = true, default_value_t = 1.0, value_parser = values::number(limits::REPETITION_PENALTY), hide_short_help = true, help_heading = heading::SAMPLING)]
    repetition_penalty: f32,
    /// Seed of the random numbers
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_parser = values::whole::<u64>(0, u64::MAX), help_heading = heading::SAMPLING)]
    seed: u64,
    /// How the cloud refines the prompt: attention (with words), bm25 (words alone) or none [default: the
    /// scene's]
    #[arg(long, value_name = "MODE", value_parser = values::mode, hide_short_help = true, help_heading = heading::RELAY)]
    refine_mode: Option<baton_refine::Mode>,
    /// Share of the document that the cloud keeps (r)
    #[arg(long, allow_negative_numbers = true, value_name = "R", value_parser = values::number(limits::RATIO), help_heading = heading::RELAY)]
    ratio: Option<f32>,
    /// Number of tokens that the cloud writes before this device takes over (L)
    #[arg(long, allow_negative_numbers = true, value_name = "L", value_parser = values::count(limits::ASSIST_TOKENS), help_heading = heading::RELAY)]
    assist_tokens: Option<u32>,
    /// Whose token is used if cloud and device wrote different ones: cloud or device
    #[arg(long, value_name = "WHO", hide_short_help = true, help_heading = heading::RELAY)]
    corrector: Option<baton_protocol::Corrector>,
    /// Show text at an even pace (default)
    #[arg(long, conflicts_with = "instant", hide_short_help = true, help_heading = heading::SHOWN)]
    pace: bool,
    /// Show text as soon as it comes
    #[arg(long, help_heading = heading::SHOWN)]
    instant: bool,
    /// Print a timeline of the answer
    #[arg(long, help_heading = heading::SHOWN)]
    trace: bool,
    /// Name the sentences of the document that each sentence of the answer stands on
    #[arg(long, help_heading = heading::SHOWN)]
    citations: bool,
}

impl AnswerArgs {
    fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            stop: self.stop.clone(),
        }
    }

    fn refine(&self) -> RefineOptions {
        RefineOptions { ratio: self.ratio, mode: self.refine_mode.map(|mode| mode.to_string()) }
    }

    /// Returns an error if an option is given too many times.
    fn wrong(&self) -> Option<String> {
        let (stops, most) = (self.stop.len(), limits::STOPS_MAX);
        (stops > most).then(|| format!("--stop is given {stops} times, at most {most} are allowed"))
    }

    /// Returns the given options that have an effect only with a cloud.
    fn for_a_cloud(&self) -> Vec<&'static str> {
        let options = [
            ("--refine-mode", self.refine_mode.is_some()),
            ("--ratio", self.ratio.is_some()),
            ("--assist-tokens", self.assist_tokens.is_some()),
            ("--corrector", self.corrector.is_some()),
        ];
        options.into_iter().filter_map(|(name, given)| given.then_some(name)).collect()
    }
}

/// Returns an error if the line has an option of a ring's head but not `--ring`: the option would do nothing.
/// Values from the environment are ignored, because they may be meant for other commands.
fn without_ring(matches: &ArgMatches) -> Option<String> {
    if matches.get_flag("ring") {
        return None;
    }
    let mut ids = matches.ids().map(|id| id.as_str()).filter(|id| id.starts_with("ring_"));
    let option = ids.find(|id| matches.value_source(id) == Some(ValueSource::CommandLine))?;
    Some(format!("--{} does nothing without --ring", option.replace('_', "-")))
}

/// Most tokens that can be asked for: more than any model's context, and bounded because room for tokens
/// costs memory.
const TOKENS_MAX: usize = 1 << 24;

/// Reads a number of tokens to make room for.
fn token_count(text: &str) -> Result<usize, String> {
    let wrong = || format!("want 1 to {TOKENS_MAX} tokens");
    text.parse().ok().filter(|count| (1..=TOKENS_MAX).contains(count)).ok_or_else(wrong)
}

/// Reads the address of a service. `host:port` gets a scheme: https, but http for this machine itself.
fn cloud_address(text: &str) -> Result<String, String> {
    let wrong =
        || format!("`{text}` is not the address of a service: want https://HOST or https://HOST:PORT");
    let with_scheme = |scheme: &str| Url::parse(&format!("{scheme}://{text}")).map_err(|_| wrong());
    let url = match text.split_once("://") {
        Some(_) => Url::parse(text).map_err(|_| wrong())?,
        None => {
            let url = with_scheme("https")?;
            let own = match url.host_str().map(|host| host.trim_matches(['[', ']'])) {
                Some("localhost") => true,
                Some(host) => host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
                None => false,
            };
            if own { with_scheme("http")? } else { url }
        }
    };
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong());
    }
    // Addresses are shown and stored in files, so they must not hold credentials.
    if !url.username().is_empty() || url.password().is_some() {
        let wrong = "the address of the cloud holds a user name or password; give credentials by --cloud-key";
        return Err(wrong.to_owned());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

impl Cli {
    /// Reads the command line. If it asks for help or is wrong, prints the text and returns the exit status.
    ///
    /// # Errors
    /// The exit status, if the program has nothing more to do.
    pub fn read() -> Result<Self, u8> {
        Self::of(std::env::args_os()).map_err(|err| {
            let help = matches!(err.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            if help && std::io::stdout().is_terminal() {
                // clap prints its own text, with colours.
                drop(err.print());
                return 0;
            }
            // An argument may be a file name, which may hold any characters, so the text goes through the
            // terminal filter.
            let text = err.render().to_string();
            if err.use_stderr() {
                baton_terminal::err!("{text}");
                return WRONG_LINE;
            }
            match baton_terminal::out!("{text}") {
                Err(err) if baton_terminal::is_closed(&err) => baton_terminal::CLOSED_STATUS,
                Err(_) => 1,
                Ok(()) => 0,
            }
        })
    }

    /// Reads a command line, with the options that the user keeps; refuses one whose options contradict each
    /// other.
    fn of<T: Into<OsString> + Clone>(line: impl IntoIterator<Item = T>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
        let kept = config::kept(&command, &line).map_err(|err| {
            let words = baton_terminal::chain(&err).to_string();
            command.error(ErrorKind::Io, words)
        })?;
        let read = command.try_get_matches_from_mut(kept.with(&line));
        let matches = read.map_err(|err| kept.explain(err))?;
        let cli = Self::from_arg_matches(&matches).map_err(|err| err.format(&mut command))?;
        let Some(words) = cli.wrong(&matches) else { return Ok(cli) };
        let name = matches.subcommand_name().unwrap_or_default();
        Err(match command.find_subcommand_mut(name) {
            Some(named) => named.error(ErrorKind::ValueValidation, words),
            None => command.error(ErrorKind::ValueValidation, words),
        })
    }

    /// Returns why a line is refused although each of its options is valid.
    fn wrong(&self, matches: &ArgMatches) -> Option<String> {
        let (_, options) = matches.subcommand()?;
        match &self.command {
            Command::Ask(args) => args.answer.wrong().or_else(|| without_ring(options)),
            Command::Chat(args) => args.answer.wrong().or_else(|| without_ring(options)),
            Command::Serve(_) => without_ring(options),
            Command::Ring(args) => args.wrong(),
            Command::Model(args) => args.wrong(options),
            Command::Doctor(_)
            | Command::Profile(_)
            | Command::Conversations(_)
            | Command::Trace(_)
            | Command::Receipt(_)
            | Command::Launch(_)
            | Command::Ps(_)
            | Command::Stop(_)
            | Command::Config(_)
            | Command::Passphrase(_)
            | Command::Completions(_)
            | Command::Man(_) => None,
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// The error that stopped the command; the caller prints it.
    ///
    /// Not `async`: so this crate compiles the whole command, and no program or test that calls it compiles
    /// it again.
    #[inline(never)]
    pub fn run(self, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
        runtime.block_on(self.command_run())
    }

    async fn command_run(self) -> anyhow::Result<()> {
        let interrupts = Interrupts::listen();
        match self.command {
            Command::Ask(args) => ask::run(args, &interrupts).await,
            Command::Chat(args) => chat::run(args, &interrupts).await,
            Command::Serve(args) => serve::run(args, &interrupts).await,
            Command::Model(args) => model::run(args, &interrupts).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Profile(args) => profile::run(args).await,
            Command::Ring(args) => ring::run(args, &interrupts).await,
            Command::Conversations(args) => conversations::run(args).await,
            Command::Trace(args) => trace::run(args).await,
            Command::Receipt(args) => receipt::run(args).await,
            Command::Launch(args) => launch::run(args).await,
            Command::Ps(args) => running::ps(args).await,
            Command::Stop(args) => running::stop(args).await,
            Command::Config(args) => config::run(args),
            Command::Passphrase(args) => secrets::run(args),
            Command::Completions(args) => shell::completions(&args),
            Command::Man(args) => shell::man(&args),
        }
    }
}

#[cfg(test)]
mod tests;
