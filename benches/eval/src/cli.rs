//! The command line.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use baton_engine::{Model, SlidingWindow};
use baton_eval::arm::{Arm, Eviction, is_device_name};
use baton_eval::device::DeviceSpec;
use baton_eval::suite::facts::{self, Kind};
use baton_protocol::Corrector;
use baton_refine::Mode;
use clap::{Args, Parser, Subcommand};

/// Sinks of a sliding window that says nothing of them.
const SINKS: usize = 4;

/// How good answers are, by arm: cloud alone, device alone, the relay at any r, L and mode, KV eviction.
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
    /// Generated documents: values, sections, links, paraphrases, distractors
    Facts(FactsArgs),
    /// Prompts on which answers loop, turn to garbage or answer another question
    Badcases(GeneratedArgs),
    /// Needles, variable tracking and frequent words, as RULER has them
    Ruler(GeneratedArgs),
    /// A file in SQuAD's format, its paragraphs mixed to long texts
    Xquad {
        /// The file
        file: PathBuf,
        /// Paragraphs of one text
        #[arg(long, default_value_t = 30)]
        paragraphs: usize,
        /// Most questions about one text; 0: all
        #[arg(long, default_value_t = 0)]
        questions: usize,
    },
    /// A folder of LongBench's jsonl files (and its dataset2prompt.json, if it is there)
    Longbench {
        /// The folder
        folder: PathBuf,
        /// Most cases of each file; 0: all
        #[arg(long, default_value_t = 0)]
        count: usize,
    },
}

impl Suite {
    /// Seed of what is generated.
    pub(crate) fn seed(&self) -> u64 {
        match self {
            Self::Facts(args) => args.generated.seed,
            Self::Badcases(args) | Self::Ruler(args) => args.seed,
            Self::Xquad { .. } | Self::Longbench { .. } => 0,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct GeneratedArgs {
    /// Tokens of a text, about
    #[arg(long, value_delimiter = ',', default_values_t = [512, 1024, 2048])]
    pub(crate) lengths: Vec<usize>,
    /// Texts of each length
    #[arg(long, default_value_t = 20)]
    pub(crate) documents: usize,
    /// Seed of the first text
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct FactsArgs {
    #[command(flatten)]
    pub(crate) generated: GeneratedArgs,
    /// Most questions of a kind about one document
    #[arg(long, default_value_t = 4)]
    pub(crate) questions: usize,
    /// short, long, two_hop, paraphrase, distractor
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
    /// Model of the cloud
    #[arg(long, global = true, default_value = "models/demo-cloud.gguf")]
    pub(crate) cloud: PathBuf,
    /// Heads calibrated for it
    #[arg(long, global = true)]
    pub(crate) heads: Option<PathBuf>,
    /// A device: NAME=FILE, or NAME=FILE,window=TOKENS[,sinks=TOKENS] for sliding-window attention; repeatable
    #[arg(long = "device", global = true)]
    pub(crate) devices: Vec<DeviceArg>,
    /// The refiner's modes
    #[arg(long, global = true, value_delimiter = ',', default_values_t = [Mode::Attention, Mode::Bm25, Mode::Paper, Mode::Random { seed: 0 }])]
    pub(crate) modes: Vec<Mode>,
    /// r: shares of the content that are kept
    #[arg(long, global = true, value_delimiter = ',', default_values_t = [0.1, 0.25, 0.5])]
    pub(crate) ratios: Vec<f32>,
    /// L: the cloud's tokens
    #[arg(long, global = true, value_delimiter = ',', default_values_t = [1, 8])]
    pub(crate) assist: Vec<usize>,
    /// Whose token counts where cloud and device differ: cloud, device
    #[arg(long, global = true, value_delimiter = ',', value_parser = corrector, default_value = "cloud")]
    pub(crate) correctors: Vec<Corrector>,
    /// KV eviction on the devices without a window: snapkv, h2o, streaming
    #[arg(long, global = true, value_delimiter = ',', value_parser = eviction)]
    pub(crate) evict: Vec<Eviction>,
    /// Only these arms, by name, in place of all that the options above give
    #[arg(long, global = true, value_delimiter = ',')]
    pub(crate) arms: Vec<Arm>,
    /// Results file: a run that was interrupted goes on where it ended
    #[arg(long, global = true)]
    pub(crate) results: Option<PathBuf>,
    /// Print the figures as one JSON object in place of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write a page with tables and plots
    #[arg(long, global = true)]
    pub(crate) html: Option<PathBuf>,
    /// Write quality over r of the first device, for `baton-cloud scenes fit-xi`
    #[arg(long, global = true)]
    pub(crate) curves: Option<PathBuf>,
    /// Workers, a thread each; as many as the machine has CPUs where not given
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

/// A device as it is given.
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
    /// The device, by what opens a model.
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

    /// All arms that the options give. Curves need the relay over the full prompt, so it is among them.
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
        let mut masks: Vec<(Mode, f32)> = Vec::new();
        for &mode in self.modes.iter().filter(|mode| **mode != Mode::None) {
            masks.extend(self.ratios.iter().map(|&ratio| (mode, ratio)));
        }
        let mut arms = vec![Arm::Cloud];
        arms.extend(masks.iter().map(|&(mode, ratio)| Arm::Mask { mode, ratio }));
        for spec in devices {
            let device = &spec.name;
            arms.push(Arm::device(device));
            for &(mode, ratio) in std::iter::once(&(Mode::None, 1.0)).chain(&masks) {
                for &assist_tokens in &self.assist {
                    for &corrector in &self.correctors {
                        let device = device.clone();
                        arms.push(Arm::Relay { device, mode, ratio, assist_tokens, corrector });
                    }
                }
            }
            let windowed = spec.window.is_some();
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
