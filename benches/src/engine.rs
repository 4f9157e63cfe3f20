//! `baton-bench engine`: compares Baton's engine with llama.cpp on the same model files and the same pinned
//! threads.
//!
//! Both run as long-lived worker processes that take turns, so that a drift of the machine's speed affects
//! both. Figures are medians over alternations, and every ratio is taken within one alternation. For each
//! figure, llama.cpp counts with the better of its two weight layouts (`--repack 0` and `1`). The machine's
//! limits (read bandwidth, int8 arithmetic) are measured between alternations.
//!
//! Nothing of llama.cpp is part of a product: the bench downloads and builds it, or uses a build given with
//! `--peer`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use baton_kernels_cpu::Dispatch;

use crate::make_model;
use crate::report::Report;

mod figure;
pub(crate) mod http;
mod kv;
pub(crate) mod letters;
pub(crate) mod machine;
mod memory;
mod order;
pub(crate) mod peer;
mod perplexity;
pub(crate) mod process;
mod programs;
pub(crate) mod samples;
mod scores;
pub(crate) mod server;
mod speed;
mod streams;
pub(crate) mod worker;

use peer::Peer;

/// Options of `baton-bench engine`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models: names of shapes of `make-model` (made in Q4_K_M with random weights), or GGUF files
    #[arg(long, value_delimiter = ',', default_value = "llama-1b,qwen-0.5b")]
    models: Vec<String>,
    /// Number of measurements of each figure; Baton and llama.cpp alternate
    #[arg(long, default_value_t = 5)]
    alternations: usize,
    /// Number of threads, pinned to the first CPUs
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// Source folder of llama.cpp with a build in `build`; by default the bench makes one under
    /// `target/peers`
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Source folder of ik_llama.cpp with a build of its library in `build`, to compare with it too
    #[arg(long, value_name = "DIR")]
    ik: Option<PathBuf>,
    /// Tokens before which prefill of 512 tokens and decoding are measured too; those that do not fit into a
    /// model's context are left out
    #[arg(long, value_delimiter = ',', default_values_t = [7680, 15_872], value_name = "TOKENS")]
    depths: Vec<usize>,
    /// A short run of a minute or two without checks: one alternation, only prefill of 512 tokens and
    /// decoding at 0
    #[arg(long)]
    quick: bool,
}

/// The name of Baton in tables.
const OURS: &str = "baton";
/// Room for what is measured at any depths: a prompt of 8,192 tokens with scores.
const LONGEST_TOKENS_MIN: usize = 8192 + 64;
/// The model that the checks of streams and scores are for.
const MAIN_MODEL: &str = "llama-1b";

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Speed of the prefill of 512 and 2,048 tokens, and of 512 after the tokens of --depths
    Prefill,
    /// Speed of decoding 64 tokens after 0, 2,048 and the tokens of --depths
    Decode,
    /// Speed of decoding 8 and 16 sequences at once
    Batch,
    /// Each format of keys and values: bytes, speed, perplexity
    Kv,
    /// Eight answers at once over HTTP, compared with llama-server
    Streams,
    /// Cost of capturing attention scores
    Scores,
    /// Unreclaimable memory with a model of 8 billion weights
    Memory,
    /// The cost of a fixed order of additions, at each level of instructions
    Order,
    /// Perplexity, compared with that of the scalar code
    Perplexity,
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        let quick = matches!(part, Part::Prefill | Part::Decode);
        if self.only.is_empty() { quick || !self.quick } else { self.only.contains(&part) }
    }

    fn alternations(&self) -> usize {
        if self.quick { 1 } else { self.alternations }
    }

    /// Returns the length of the longest sequence that is measured.
    fn longest_tokens(&self) -> usize {
        let deepest = self.depths.iter().max().copied().unwrap_or(0);
        (deepest + figure::DEEP_TOKENS).max(LONGEST_TOKENS_MIN)
    }
}

/// Minimum number of alternations for a valid run.
const ALTERNATIONS_MIN: f64 = 5.0;

/// The model and threads of a bench of the service.
#[derive(Debug, clap::Args)]
pub(crate) struct SubjectArgs {
    /// Model: the name of a shape of `make-model` (made in Q4_K_M with random weights), or a GGUF file whose
    /// tokens are letters
    #[arg(long, default_value = "llama-1b")]
    model: String,
    /// Number of threads, bound to the first CPUs
    #[arg(long, default_value = "2")]
    pub threads: NonZeroUsize,
}

impl SubjectArgs {
    /// Binds this program to the first CPUs, and returns the model; the file of a shape is made if it is
    /// missing.
    pub(crate) fn ready(&self) -> Result<Subject> {
        machine::bound_to_first_cpus(self.threads.get())?;
        subject(&self.model, &target_folder()?)
    }
}

/// A model that is measured.
pub(crate) struct Subject {
    /// The name of its shape, which decides which checks apply.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
}

/// The programs that Baton's engine is compared with, and the probe of the machine's limits.
struct Peers {
    llama: Peer,
    ik: Option<Peer>,
    probe: PathBuf,
}

impl Peers {
    fn ready(args: &Args, target: &Path) -> Result<Self> {
        Ok(Self {
            llama: Peer::ready(args.peer.as_deref(), target)?,
            ik: args.ik.as_deref().map(|folder| Peer::ik(folder, target)).transpose()?,
            probe: peer::probe(target)?,
        })
    }

    /// Returns each peer with the names of its variants.
    fn all(&self) -> Vec<(&Peer, [&'static str; 2])> {
        let ik = self.ik.as_ref().map(|peer| (peer, programs::IK));
        [(&self.llama, programs::LLAMA)].into_iter().chain(ik).collect()
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let target = target_folder()?;
    let peers = Peers::ready(args, &target)?;
    let mut report = Report::new("engine");
    report.note(format!(
        "{} threads, each on a CPU of its own, at kernel level {}; compared with {}{}",
        args.threads,
        Dispatch::current().name(),
        peer::NAME,
        if peers.ik.is_some() { " and ik_llama.cpp" } else { "" }
    ));
    report.data("threads", args.threads.get());
    report.data("alternations", args.alternations());
    for model in &args.models {
        let subject = subject(model, &target)?;
        speed::measure(args, &subject, &peers, &mut report)?;
        if args.wants(Part::Kv) {
            kv::measure(args, &subject, &mut report)?;
        }
        if args.wants(Part::Scores) && subject.name == MAIN_MODEL {
            scores::measure(args, &subject, &mut report)?;
        }
        if args.wants(Part::Streams) && subject.name == MAIN_MODEL {
            streams::measure(args, &subject, &peers.llama, &mut report)?;
        }
    }
    if args.wants(Part::Memory) {
        memory::measure(args, &target, &mut report)?;
    }
    if args.wants(Part::Perplexity) {
        perplexity::measure(args, &target, &mut report)?;
    }
    // The last part, because it binds this program to one CPU.
    if args.wants(Part::Order) {
        order::measure(args, &mut report)?;
    }
    if !args.quick {
        report.check_at_least("alternations", args.alternations() as f64, ALTERNATIONS_MIN);
    }
    Ok(report)
}

/// Returns the build folder, which keeps downloads and made files.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the running program")?;
    let folder = own.parent().and_then(Path::parent).context("the running program has no build folder")?;
    Ok(folder.to_owned())
}

/// Returns the model file of a shape, which is made if it is missing, or the given GGUF file.
pub(crate) fn subject(model: &str, target: &Path) -> Result<Subject> {
    subject_in(model, &target.join("models"))
}

/// As [`subject`], with the folder that contains the files of shapes.
pub(crate) fn subject_in(model: &str, folder: &Path) -> Result<Subject> {
    let given = PathBuf::from(model);
    if model.ends_with(".gguf") {
        let stem = given.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = stem.strip_suffix("-Q4_K_M").unwrap_or(&stem).to_owned();
        return Ok(Subject { name, path: given });
    }
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let path = folder.join(format!("{model}-Q4_K_M.gguf"));
    if !path.is_file() {
        make_model::write(model, "Q4_K_M", None, 1, &path)?;
    }
    Ok(Subject { name: model.to_owned(), path })
}
