//! `baton-bench engine`: Baton's engine and llama.cpp on the same model files and the same pinned threads.
//!
//! Both run as long-lived worker processes that answer one request at a time, alternately, so that a machine whose
//! speed drifts does so for both; figures are medians over alternations, and every ratio is one of the same
//! alternation. llama.cpp counts with the better of its two weight layouts (`--repack 0` and `1`), chosen for each
//! figure. What the machine can do at most (read bandwidth, int8 arithmetic) is measured between alternations.
//!
//! Nothing of llama.cpp is part of a product: the bench fetches and builds it, or takes a build with `--peer`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::make_model;
use crate::report::Report;

pub mod http;
pub mod letters;
pub mod machine;
mod memory;
pub mod peer;
mod perplexity;
pub mod process;
pub mod samples;
mod scores;
pub mod server;
mod speed;
mod streams;
pub mod worker;

use peer::Peer;

/// Options of `baton-bench engine`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shapes as make-model knows them (in Q4_K_M), or GGUF files
    #[arg(long, value_delimiter = ',', default_value = "llama-1b,qwen-0.5b")]
    models: Vec<String>,
    /// How often each figure is measured
    #[arg(long, default_value_t = 5)]
    alternations: usize,
    /// Threads, pinned to the first CPUs
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// A llama.cpp source folder with a build in `build`, in place of one made under `target/peers`
    #[arg(long)]
    peer: Option<PathBuf>,
    /// A look, in a minute or two: one alternation, no checks; of the first parts only prefill 512 and decode at 0
    #[arg(long)]
    quick: bool,
}

/// What tables call Baton.
const OURS: &str = "baton";
/// The model of whose streams and scores something is required.
const MAIN_MODEL: &str = "llama-1b";

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A prompt of 512, 2,048 and 8,192 tokens
    Prefill,
    /// 64 tokens after 0, 2,048 and 8,192 others
    Decode,
    /// One token of 8 and of 16 sequences at a time
    Batch,
    /// Eight answers at once, beside llama-server
    Streams,
    /// What handing out attention scores costs
    Scores,
    /// Unreclaimable memory of a file of 8 billion weights
    Memory,
    /// Perplexity beside the scalar code's
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
}

/// Fewer are no measurement.
const ALTERNATIONS_MIN: f64 = 5.0;

/// What a bench of the service runs on.
#[derive(Debug, clap::Args)]
pub struct SubjectArgs {
    /// A shape as make-model knows it (in Q4_K_M), or a GGUF file whose tokens are letters
    #[arg(long, default_value = "llama-1b")]
    model: String,
    /// Threads, bound to the first CPUs
    #[arg(long, default_value = "2")]
    pub threads: NonZeroUsize,
}

impl SubjectArgs {
    /// Binds this program to the CPUs; the model, which is made where it is a shape.
    pub fn ready(&self) -> Result<Subject> {
        machine::bound_to_first_cpus(self.threads.get())?;
        subject(&self.model, &target_folder()?)
    }
}

/// A model of the run.
pub struct Subject {
    /// Its shape, which decides what is required of it.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<Report> {
    let target = target_folder()?;
    let peer = Peer::ready(args.peer.as_deref(), &target)?;
    let mut report = Report::new("engine");
    report.note(format!("{} threads, each on a CPU of its own; compared with {}", args.threads, peer::NAME));
    report.data("threads", args.threads.get());
    report.data("alternations", args.alternations());
    for model in &args.models {
        let subject = subject(model, &target)?;
        speed::measure(args, &subject, &peer, &target, &mut report)?;
        if args.wants(Part::Scores) && subject.name == MAIN_MODEL {
            scores::measure(args, &subject, &mut report)?;
        }
        if args.wants(Part::Streams) && subject.name == MAIN_MODEL {
            streams::measure(args, &subject, &peer, &mut report)?;
        }
    }
    if args.wants(Part::Memory) {
        memory::measure(args, &target, &mut report)?;
    }
    if args.wants(Part::Perplexity) {
        perplexity::measure(args, &target, &mut report)?;
    }
    if !args.quick {
        report.check_at_least("alternations", args.alternations() as f64, ALTERNATIONS_MIN);
    }
    Ok(report)
}

/// The build's own folder, where what is fetched and made is kept.
pub fn target_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the running program")?;
    let folder = own.parent().and_then(Path::parent).context("the running program has no build folder")?;
    Ok(folder.to_owned())
}

/// The model file of a shape, made where it is not there yet, or the file itself.
pub fn subject(model: &str, target: &Path) -> Result<Subject> {
    subject_in(model, &target.join("models"))
}

/// The same with the folder where the files of shapes are.
pub fn subject_in(model: &str, folder: &Path) -> Result<Subject> {
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
