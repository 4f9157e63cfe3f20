//! `baton ring bench`: measures a prompt and tokens on this ring, and shows what was predicted.

use baton_terminal::{errln, out, outln};
use std::io::IsTerminal as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, bail};
use baton_engine::engine::KvFormat;
use baton_engine::{EngineOptions, PrefixScope, SeqId, Sequences, StepSeq, Wanted};
use baton_plan::Workload;
use clap::Args;
use serde::Serialize;

use super::head::{Formed, HeadArgs, form};
use super::print_line;
use crate::cli::gpu::{self, GpuArgs};
use crate::cli::values::one_or_more;
use crate::cli::{TOKENS_MAX, token_count};
use crate::machine::ThisMachine;
use crate::machine::profile::KeptProfiles;
use crate::machine::residency::{self, Layers, MemoryFor, Share};
use crate::settings::{CONFIG_DIR_ENV, Settings};
use baton_ring::core::stats::RingStats;
use baton_ring::planning::Planned;

/// Text below the options.
pub(super) const HELP: &str = "\
Runs a prompt of made-up tokens through the model, then decodes greedily, in each step one token of every sequence:
  baton ring bench --model model.gguf --prompt 512 --tokens 32
  baton ring bench --model model.gguf --alone        the same, without the other devices
--json also prints the tokens; a ring writes the same tokens as one device.";

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// GGUF model
    #[arg(long, env = "BATON_MODEL", value_name = "FILE")]
    model: PathBuf,
    /// Number of tokens of the prompt
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = token_count)]
    prompt: usize,
    /// Number of tokens to write
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = token_count)]
    tokens: usize,
    /// Number of sequences computed together
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = token_count)]
    sequences: usize,
    /// Number of compute threads [default: all]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = one_or_more)]
    threads: Option<NonZeroUsize>,
    /// Number format of the KV cache: f32, f16, q8 or q4
    #[arg(long, default_value_t, value_name = "FORMAT")]
    kv: KvFormat,
    /// Memory for the weights of this device's layers: auto, all or a size (2GB), as for `baton ask`
    #[arg(long, env = "BATON_MEMORY", default_value = "auto", value_name = "SIZE")]
    memory: MemoryFor,
    #[command(flatten)]
    gpu: GpuArgs,
    /// Measure this device alone, even if it heads a ring
    #[arg(long)]
    alone: bool,
    /// Folder for settings [default: the platform's]
    #[arg(long, env = CONFIG_DIR_ENV, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    head: HeadArgs,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Answer {
    prompt: usize,
    sequences: usize,
    /// Prompt tokens per second, of all sequences.
    prefill_tokens_per_s: f64,
    /// Median time of a step in milliseconds; a step writes one token of every sequence.
    step_ms: f64,
    /// Time of each step in milliseconds, in order.
    steps_ms: Vec<f64>,
    /// The token ids that each sequence wrote.
    written: Vec<Vec<u32>>,
    /// Only for rings.
    ring: Option<RingStats>,
    /// Only for rings.
    planned: Option<Planned>,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let each = args.prompt + args.tokens;
    // Room for whole cache blocks of every sequence.
    let kv_tokens = args.sequences * (each.next_multiple_of(32) + 32);
    if kv_tokens > TOKENS_MAX {
        bail!(
            "--sequences of --prompt and --tokens are {kv_tokens} tokens, at most {TOKENS_MAX} are possible"
        );
    }
    let layers = if args.alone { Layers::All } else { Layers::Planned };
    let settings = Settings::open(args.config_dir.clone());
    let read_bytes = KeptProfiles::of(&args.model, &settings).read_bytes();
    let reads_ahead = !args.head.ring_no_read_ahead;
    let share = Share { kv_tokens, kv_format: args.kv, layers, reads_ahead, read_bytes };
    let model = residency::open(&args.model, args.memory, 0, &share)
        .with_context(|| format!("open model `{}`", args.model.display()))?;
    let engine =
        EngineOptions { threads: args.threads, kv_tokens, kv_format: args.kv, ..EngineOptions::default() };
    let workload = Workload { context: each, sequences: args.sequences };
    let machine = ThisMachine { memory: args.memory, gpu: args.gpu.open()? };
    let loud = std::io::stderr().is_terminal();
    let answer = if args.alone {
        measure(&mut gpu::engine(&machine.gpu, model, engine)?, args, None)?
    } else {
        let mut said = |what: &str| {
            if loud {
                errln!("{what}");
            }
        };
        let Formed { mut head, handle, current_plan } =
            form(&model, engine, workload, &args.head, machine, &settings, &mut said)?;
        let mut answer = measure(&mut head, args, loud.then_some(&mut said))?;
        answer.ring = Some(handle.stats());
        answer.planned = current_plan.planned();
        answer
    };
    if args.json { print_line(&answer) } else { print(&answer).context("write the table") }
}

fn measure(
    engine: &mut dyn Sequences,
    args: &BenchArgs,
    mut said: Option<&mut dyn FnMut(&str)>,
) -> anyhow::Result<Answer> {
    let mut say = |what: &str| {
        if let Some(said) = &mut said {
            said(what);
        }
    };
    let vocab_len = engine.model().config().vocab_len;
    // Made-up tokens, different from the start for every sequence, so that no prefix is shared.
    let id = |sequence: usize, at: usize| {
        ((at as u64 + 1).wrapping_mul(2_654_435_761).wrapping_add(sequence as u64 * 40_503) >> 7) as usize
            % vocab_len
    };
    let mut seqs = Vec::new();
    let mut next = Vec::new();
    say("prefilling");
    let begun = Instant::now();
    for sequence in 0..args.sequences {
        let seq = engine.create_in(PrefixScope::default(), None)?;
        let ids: Vec<u32> = (0..args.prompt).map(|at| id(sequence, at) as u32).collect();
        let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
        let output = engine.step(&[step], &mut ())?;
        next.push(best(&output[0].logits));
        seqs.push(seq);
    }
    let prefill_s = begun.elapsed().as_secs_f64();
    say("writing");
    let mut written: Vec<Vec<u32>> = next.iter().map(|id| vec![*id]).collect();
    let mut steps = Vec::new();
    for _ in 1..args.tokens {
        let begun = Instant::now();
        step(engine, &seqs, &mut written)?;
        steps.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let mut sorted = steps.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(Answer {
        prompt: args.prompt,
        sequences: args.sequences,
        prefill_tokens_per_s: (args.prompt * args.sequences) as f64 / prefill_s,
        step_ms: sorted.get(sorted.len() / 2).copied().unwrap_or(0.0),
        steps_ms: steps,
        written,
        ring: None,
        planned: None,
    })
}

/// Writes one token of every sequence.
fn step(engine: &mut dyn Sequences, seqs: &[SeqId], written: &mut [Vec<u32>]) -> anyhow::Result<()> {
    let last: Vec<[u32; 1]> = written.iter().filter_map(|ids| ids.last().map(|id| [*id])).collect();
    let entry = |(seq, ids): (&SeqId, &'_ [u32; 1])| (*seq, *ids);
    let entries: Vec<(SeqId, [u32; 1])> = seqs.iter().zip(&last).map(entry).collect();
    let batch: Vec<StepSeq<'_>> = entries
        .iter()
        .map(|(seq, ids)| StepSeq { seq: *seq, ids, logits: Wanted::Last, capture: None })
        .collect();
    for (output, ids) in engine.step(&batch, &mut ())?.iter().zip(written) {
        ids.push(best(&output.logits));
    }
    Ok(())
}

/// Returns the index of the largest logit; the first one if several are equal.
fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (at, value) in logits.iter().enumerate() {
        if *value > logits[best] {
            best = at;
        }
    }
    best as u32
}

fn print(answer: &Answer) -> std::io::Result<()> {
    outln!(
        "prompt of {} tokens: {:.1} tokens/s; {} sequence{}: {:.1} ms a step",
        answer.prompt,
        answer.prefill_tokens_per_s,
        answer.sequences,
        if answer.sequences == 1 { "" } else { "s" },
        answer.step_ms
    )?;
    if let Some(stats) = &answer.ring {
        out!("{}", super::status::table(stats, answer.planned.as_ref()))?;
    }
    Ok(())
}
