//! The command line.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use baton_baselines::{Baseline, Ranking};
use baton_engine::{Model, SlidingWindow};
use baton_eval::arm::{Arm, Eviction, is_device_name};
use baton_eval::device::DeviceSpec;
use baton_eval::suite::facts::{self, Kind};
use baton_protocol::Corrector;
use baton_refine::Mode;
use clap::{Args, Parser, Subcommand};

/// Default number of sinks of a sliding window.
const SINKS: usize = 4;
/// Default rankings.
const DEFAULT_RANKINGS: [Ranking; 4] = [
    Ranking::Mode(Mode::Attention),
    Ranking::Mode(Mode::Bm25),
    Ranking::Baseline(Baseline::Paper),
    Ranking::Baseline(Baseline::Random { seed: 0 }),
];

/// Measures the quality of answers by arm: the cloud alone, a device alone, the relay at any r, L and mode,
/// and KV eviction.
#[derive(Debug, Parser)]
#[command(name = "baton-eval", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) suite: Suite,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Suite {
    /// Generated documents with known answers: single values, whole sections, two-hop questions, paraphrases,
    /// distractors
    Facts(FactsArgs),
    /// Prompts that tempt a model to loop, to write garbage or to answer another question
    Badcases(GeneratedArgs),
    /// The tasks of RULER: needles, variable tracking and frequent words
    Ruler(GeneratedArgs),
    /// Generated texts whose questions share no word with the sentence that answers them
    Synonyms {
        /// Number of texts
        #[arg(long, default_value_t = 20)]
        documents: usize,
        /// Number of questions about each text
        #[arg(long, default_value_t = 4)]
        questions: usize,
        /// Seed of the first text; the next texts have the next seeds
        #[arg(long, default_value_t = 2_000_000)]
        seed: u64,
    },
    /// Questions from a file in SQuAD's format, with its paragraphs mixed into long texts
    Xquad {
        /// The JSON file
        file: PathBuf,
        /// Number of paragraphs in one text
        #[arg(long, default_value_t = 30)]
        paragraphs: usize,
        /// Maximum number of questions about one text; 0 for all
        #[arg(long, default_value_t = 0)]
        questions: usize,
    },
    /// Questions from a folder of LongBench's jsonl files; dataset2prompt.json is used if it is in the folder
    Longbench {
        /// The folder
        folder: PathBuf,
        /// Maximum number of cases from each file; 0 for all
        #[arg(long, default_value_t = 0)]
        count: usize,
    },
}

impl Suite {
    /// Returns the seed of the generated texts; 0 for suites that generate none.
    pub(crate) fn seed(&self) -> u64 {
        match self {
            Self::Facts(args) => args.generated.seed,
            Self::Badcases(args) | Self::Ruler(args) => args.seed,
            Self::Synonyms { seed, .. } => *seed,
            Self::Xquad { .. } | Self::Longbench { .. } => 0,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct GeneratedArgs {
    /// Approximate lengths of the texts, in tokens
    #[arg(long, value_delimiter = ',', default_values_t = [512, 1024, 2048])]
    pub(crate) lengths: Vec<usize>,
    /// Number of texts of each length
    #[arg(long, default_value_t = 20)]
    pub(crate) documents: usize,
    /// Seed of the first text; the next texts have the next seeds
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct FactsArgs {
    #[command(flatten)]
    pub(crate) generated: GeneratedArgs,
    /// Maximum number of questions of one kind about one document
    #[arg(long, default_value_t = 4)]
    pub(crate) questions: usize,
    /// Kinds of questions: a value in one sentence (short), a whole section (long), a value behind a link
    /// (two_hop), other words (paraphrase), many similar values (distractor)
    #[arg(long, value_delimiter = ',', value_parser = kind, default_values = ["short", "long", "two_hop", "paraphrase", "distractor"])]
    pub(crate) kinds: Vec<Kind>,
}

fn kind(name: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
    found.ok_or_else(|| "must be short, long, two_hop, paraphrase or distractor".to_owned())
}

impl FactsArgs {
    pub(crate) fn options(&self) -> facts::Options {
        facts::Options {
            kinds: self.kinds.clone(),
            lengths: self.generated.lengths.clone(),
            documents: self.generated.documents,
            questions: self.questions,
            seed: self.generated.seed,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Models, arms and results")]
pub(crate) struct RunArgs {
    /// Model file of the cloud
    #[arg(long, global = true, default_value = "models/demo-cloud.gguf")]
    pub(crate) cloud: PathBuf,
    /// File with the attention heads calibrated for the cloud's model
    #[arg(long, global = true)]
    pub(crate) heads: Option<PathBuf>,
    /// A device and its model file: NAME=FILE, or NAME=FILE,window=TOKENS[,sinks=TOKENS] for sliding-window
    /// attention; can be repeated
    #[arg(long = "device", global = true)]
    pub(crate) devices: Vec<DeviceArg>,
    /// Rankings of sentences: the refiner's modes attention, bm25 and none; the baselines paper, tokens,
    /// gemfilter, chunk, streaming, perplexity, random and random:SEED
    #[arg(long, global = true, value_delimiter = ',', default_values_t = DEFAULT_RANKINGS)]
    pub(crate) modes: Vec<Ranking>,
    /// Values of r, the share of the content that is kept
    #[arg(long, global = true, value_delimiter = ',', default_values_t = [0.1, 0.25, 0.5])]
    pub(crate) ratios: Vec<f32>,
    /// Values of L, the number of the cloud's tokens
    #[arg(long, global = true, value_delimiter = ',', default_values_t = [1, 8])]
    pub(crate) assist: Vec<usize>,
    /// The side whose token counts if cloud and device differ: cloud, device
    #[arg(long, global = true, value_delimiter = ',', value_parser = corrector, default_value = "cloud")]
    pub(crate) correctors: Vec<Corrector>,
    /// Policies of KV eviction on the devices without a window: snapkv, h2o, streaming
    #[arg(long, global = true, value_delimiter = ',', value_parser = eviction)]
    pub(crate) evict: Vec<Eviction>,
    /// Also measure how probable the right answer is on each device, and how much of the cloud's answer it
    /// would have written. Of use if answers are too rarely right
    #[arg(long, global = true)]
    pub(crate) predict: bool,
    /// Run only these arms, by name, instead of all arms that the options above give
    #[arg(long, global = true, value_delimiter = ',')]
    pub(crate) arms: Vec<Arm>,
    /// File that keeps all results; an interrupted run continues from it
    #[arg(long, global = true)]
    pub(crate) results: Option<PathBuf>,
    /// Print the figures as one JSON object instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write an HTML page with tables and plots
    #[arg(long, global = true)]
    pub(crate) html: Option<PathBuf>,
    /// Write the quality over r on the first device to a file, for `baton-cloud scenes fit-xi`
    #[arg(long, global = true)]
    pub(crate) curves: Option<PathBuf>,
    /// Number of worker threads; by default the number of CPUs
    #[arg(long, global = true)]
    workers: Option<NonZeroUsize>,
}

fn corrector(name: &str) -> Result<Corrector, String> {
    match name {
        "cloud" => Ok(Corrector::Cloud),
        "device" => Ok(Corrector::Device),
        _ => Err("must be cloud or device".to_owned()),
    }
}

fn eviction(name: &str) -> Result<Eviction, String> {
    let found = Eviction::ALL.into_iter().find(|policy| policy.as_str() == name);
    found.ok_or_else(|| "must be snapkv, h2o or streaming".to_owned())
}

/// A device as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceArg {
    name: String,
    file: PathBuf,
    window: Option<SlidingWindow>,
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = || "must be NAME=FILE or NAME=FILE,window=TOKENS[,sinks=TOKENS]".to_owned();
        let (name, rest) = text.split_once('=').ok_or_else(wanted)?;
        let mut parts = rest.split(',');
        let file = parts.next().filter(|file| !file.is_empty() && is_device_name(name)).ok_or_else(wanted)?;
        let (mut tokens, mut sinks) = (None, None);
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(wanted)?;
            let number: usize = value.parse().map_err(|_| wanted())?;
            match key {
                "window" if number > 0 => tokens = Some(number),
                "sinks" => sinks = Some(number),
                _ => return Err(wanted()),
            }
        }
        if tokens.is_none() && sinks.is_some() {
            return Err(wanted());
        }
        let window = tokens.map(|tokens| SlidingWindow { tokens, sinks: sinks.unwrap_or(SINKS) });
        Ok(Self { name: name.to_owned(), file: file.into(), window })
    }
}

impl DeviceArg {
    /// Makes the device; `open` opens a model file.
    pub(crate) fn open(
        &self,
        open: &dyn Fn(&Path) -> anyhow::Result<Arc<Model>>,
    ) -> anyhow::Result<DeviceSpec> {
        Ok(DeviceSpec { name: self.name.clone(), model: open(&self.file)?, window: self.window })
    }
}

impl RunArgs {
    pub(crate) fn workers(&self) -> NonZeroUsize {
        self.workers.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }

    /// Returns all arms that the options give. They include the relay over the full prompt, which curves
    /// need.
    pub(crate) fn arms(&self, devices: &[DeviceSpec]) -> anyhow::Result<Vec<Arm>> {
        if let Some(ratio) = self.ratios.iter().find(|ratio| !(**ratio > 0.0 && **ratio <= 1.0)) {
            bail!("r is {ratio}, must be over 0 and at most 1");
        }
        if self.assist.contains(&0) {
            bail!("L is 0, must be at least 1: the first token is the cloud's");
        }
        if !self.arms.is_empty() {
            return Ok(self.arms.clone());
        }
        let whole = Ranking::Mode(Mode::None);
        let mut masks: Vec<(Ranking, f32)> = Vec::new();
        for &ranking in self.modes.iter().filter(|ranking| **ranking != whole) {
            masks.extend(self.ratios.iter().map(|&ratio| (ranking, ratio)));
        }
        let mut arms = vec![Arm::Cloud];
        arms.extend(masks.iter().map(|&(ranking, ratio)| Arm::Mask { ranking, ratio }));
        for spec in devices {
            let device = &spec.name;
            arms.push(Arm::device(device));
            for &(ranking, ratio) in std::iter::once(&(whole, 1.0)).chain(&masks) {
                for &assist_tokens in &self.assist {
                    for &corrector in &self.correctors {
                        let device = device.clone();
                        arms.push(Arm::Relay { device, ranking, ratio, assist_tokens, corrector });
                    }
                }
            }
            let windowed = spec.window.is_some();
            for &(ranking, ratio) in
                std::iter::once(&(whole, 1.0)).chain(&masks).filter(|_| self.predict && !windowed)
            {
                arms.push(Arm::Predict { device: device.clone(), ranking, ratio });
            }
            for &policy in self.evict.iter().filter(|_| !windowed) {
                let arm = |&ratio: &f32| Arm::Evict { device: device.clone(), policy, ratio };
                arms.extend(self.ratios.iter().map(arm));
            }
        }
        Ok(arms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from([
            "baton-eval",
            "facts",
            "--lengths",
            "512,1024",
            "--kinds",
            "short,two_hop",
            "--cloud",
            "c.gguf",
            "--device",
            "p=d.gguf,window=512",
            "--evict",
            "snapkv",
            "--modes",
            "bm25,random:3",
            "--ratios",
            "0.25",
        ])
        .unwrap();
        let Suite::Facts(args) = &cli.suite else { panic!("facts") };
        assert_eq!((args.options().lengths, args.kinds.len()), (vec![512, 1024], 2));
        assert_eq!(cli.run.devices[0].window, Some(SlidingWindow { tokens: 512, sinks: 4 }));
        let arms: Vec<String> = cli.run.arms(&[]).unwrap().iter().map(Arm::to_string).collect();
        assert_eq!(arms, ["cloud", "mask:bm25@0.25", "mask:random:3@0.25"]);
    }

    #[test]
    fn devices_are_read_or_refused() {
        let read = |text: &str| text.parse::<DeviceArg>();
        assert_eq!(
            read("p=d.gguf,window=9,sinks=0").unwrap().window,
            Some(SlidingWindow { tokens: 9, sinks: 0 })
        );
        for bad in ["p", "p=", "a b=x", "p=x,window=0", "p=x,sinks=2", "p=x,window", "p=x,tall=3"] {
            assert!(read(bad).unwrap_err().contains("NAME=FILE"), "{bad}");
        }
    }
}
