//! Decodes some tokens with a model of which a part stays in memory, and prints the costs as one JSON object.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use baton_device::machine::disk;
use baton_engine::{BLOCK_TOKENS, Engine, EngineOptions, Model, Residency, SeqId, StepSeq, TokenId, Wanted};
use baton_pacing::refit::median;
use serde_json::{Value, json};

use crate::engine::machine;

/// Bytes of a large block: PIPO finds this size best for disks.
const MERGED_BYTES: usize = 8 << 20;
/// Turns of the reads of a token.
const READS_TURNS: usize = 5;
/// Tokens of a prompt that are computed at once, as in the programs.
const CHUNK_TOKENS: usize = 512;

/// Options of the hidden subcommand `residency-worker`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The model file
    model: PathBuf,
    /// Number of threads
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Bytes of weights that stay in memory; by default the whole file is memory-mapped
    #[arg(long)]
    budget: Option<u64>,
    /// Wait for each read instead of reading ahead
    #[arg(long)]
    no_read_ahead: bool,
    /// Size of one read in bytes
    #[arg(long)]
    read_bytes: Option<usize>,
    /// Number of buffers that reads go into
    #[arg(long)]
    buffers: Option<usize>,
    /// Number of threads that read
    #[arg(long)]
    reading_threads: Option<usize>,
    /// Also measure the reads of a token without computing, beside one run of large blocks over as many bytes
    #[arg(long, requires = "budget")]
    reads_alone: bool,
    /// Number of sequences that are decoded at once
    #[arg(long, default_value = "1")]
    batch: NonZeroUsize,
    /// Lengths of prompts whose time to the first token is measured afterwards
    #[arg(long, value_delimiter = ',')]
    prompts: Vec<usize>,
    /// Number of tokens that are measured
    #[arg(long, default_value_t = 12)]
    tokens: usize,
    /// Number of tokens before them, which are not measured
    #[arg(long, default_value_t = 3)]
    warm: usize,
}

/// Decodes the tokens and prints the costs.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.tokens == 0 {
        bail!("0 tokens to measure, must be at least 1");
    }
    let residency = args.budget.map(|budget_bytes| {
        let usual = Residency::default();
        Residency {
            budget_bytes,
            reads_ahead: !args.no_read_ahead,
            read_bytes: args.read_bytes.unwrap_or(usual.read_bytes),
            buffers: args.buffers.unwrap_or(usual.buffers),
            threads: args.reading_threads.unwrap_or(usual.threads),
            ..usual
        }
    });
    let opened = match &residency {
        Some(residency) => Model::open_within(&args.model, residency),
        None => Model::open(&args.model),
    };
    let model = opened.with_context(|| format!("open {}", args.model.display()))?;
    let longest = args.prompts.iter().max().map_or(0, |tokens| tokens.next_multiple_of(BLOCK_TOKENS));
    let options = EngineOptions {
        threads: Some(args.threads),
        kv_tokens: args.kv_tokens().max(longest),
        ..EngineOptions::default()
    };
    let engine = Engine::new(Arc::clone(&model), options).context("make an engine")?;
    baton_terminal::outln!("{}", Decoder::new(engine, args.batch.get()).measure(args)?)?;
    Ok(())
}

/// Reads what a token reads, as the engine reads it and in one run of large blocks. They take turns.
fn reads_alone(args: &Args, model: &Model) -> Result<Value> {
    let weights = model.streamed().context("everything stays in memory")?;
    let reads: Vec<Range<u64>> = weights
        .reads()
        .into_iter()
        .filter(|(part, _)| *part == 0)
        .map(|(_, bytes)| bytes.start as u64..bytes.end as u64)
        .collect();
    let bytes: u64 = reads.iter().map(|range| range.end - range.start).sum();
    let file = std::fs::metadata(&args.model).context("look at the model")?.len();
    let first = reads.iter().map(|range| range.start).min().unwrap_or(0).min(file - bytes.min(file));
    let blocks = (0..bytes).step_by(MERGED_BYTES);
    let merged: Vec<Range<u64>> =
        blocks.map(|at| first + at..first + bytes.min(at + MERGED_BYTES as u64)).collect();
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..READS_TURNS {
        for (rates, ranges) in rates.iter_mut().zip([&reads, &merged]) {
            rates.push(disk::ranges(&args.model, ranges).context("read the model")?);
        }
    }
    let [own, one_run] = rates.map(|rates| median(rates).unwrap_or(f64::NAN));
    Ok(json!({
        "bytes": bytes,
        "reads": reads.len(),
        "bytes_per_s": own,
        "merged_reads": merged.len(),
        "merged_bytes_per_s": one_run,
    }))
}

impl Args {
    /// Returns the tokens of the cache that decoding takes: whole blocks of each sequence.
    fn kv_tokens(&self) -> usize {
        self.batch.get() * (self.warm + self.tokens).next_multiple_of(BLOCK_TOKENS)
    }
}

struct Decoder {
    engine: Engine,
    seqs: Vec<SeqId>,
    drawn: u32,
    /// FNV-1a digest of the bits of all logits of the first sequence so far. It does not depend on the batch.
    digest: u64,
}

/// Values of the counters at one time.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Bytes that this process has read from disk.
    disk: u64,
    waited_ms: f64,
    reading_ms: f64,
    streamed: u64,
    experts: u64,
    kept_experts: u64,
    reads: u64,
    in_vain: u64,
    faults: Option<u64>,
}

impl Decoder {
    fn new(mut engine: Engine, batch: usize) -> Self {
        let seqs = (0..batch).map(|_| engine.create()).collect();
        Self { engine, seqs, drawn: 0, digest: 0xcbf2_9ce4_8422_2325 }
    }

    /// Returns a pseudo-random token.
    fn id(&self, number: u32) -> TokenId {
        let vocab = self.engine.model().config().vocab_len as u64;
        ((u64::from(number).wrapping_mul(2_654_435_761) >> 7) % vocab) as TokenId
    }

    /// Computes the next token of each sequence, and returns the milliseconds.
    fn token(&mut self) -> Result<f64> {
        // The first sequence has the same tokens in batches of any size.
        let ids: Vec<TokenId> =
            (0..self.seqs.len() as u32).map(|seq| self.id(self.drawn + 1000 * seq)).collect();
        self.drawn += 1;
        let batch: Vec<StepSeq<'_>> = (self.seqs.iter().zip(ids.chunks(1)))
            .map(|(seq, ids)| StepSeq { seq: *seq, ids, logits: Wanted::Last, capture: None })
            .collect();
        let begun = Instant::now();
        let logits = self.engine.step(&batch, &mut ()).context("decode")?.remove(0).logits;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        for logit in logits {
            self.digest = (self.digest ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
        Ok(ms)
    }

    /// Returns the milliseconds until the first token after a prompt is known.
    fn prompt(&mut self, tokens: usize) -> Result<f64> {
        let ids: Vec<TokenId> = (0..tokens as u32).map(|at| self.id(at)).collect();
        let seq = self.engine.create();
        let begun = Instant::now();
        for (at, chunk) in ids.chunks(CHUNK_TOKENS).enumerate() {
            let ends = (at + 1) * CHUNK_TOKENS >= tokens;
            let logits = if ends { Wanted::Last } else { Wanted::None };
            self.engine
                .step(&[StepSeq { seq, ids: chunk, logits, capture: None }], &mut ())
                .context("prefill")?;
        }
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        self.engine.release(seq);
        Ok(ms)
    }

    fn read(&self) -> Result<Reading> {
        let stats = self.engine.model().streamed().map(|weights| weights.stats());
        let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
        Ok(Reading {
            disk: machine::read_bytes(std::process::id())?,
            waited_ms: stats.map_or(0.0, |stats| ms(stats.waited)),
            reading_ms: stats.map_or(0.0, |stats| ms(stats.reading)),
            streamed: stats.map_or(0, |stats| stats.bytes_read),
            experts: stats.map_or(0, |stats| stats.expert_bytes),
            kept_experts: stats.map_or(0, |stats| stats.kept_expert_bytes),
            reads: stats.map_or(0, |stats| stats.reads),
            in_vain: stats.map_or(0, |stats| stats.reads_in_vain),
            faults: stats.and_then(|stats| stats.major_faults),
        })
    }

    fn measure(mut self, args: &Args) -> Result<Value> {
        let first_ms = (0..args.warm).map(|_| self.token()).collect::<Result<Vec<_>>>()?;
        let before = self.read()?;
        let mut ms = (0..args.tokens).map(|_| self.token()).collect::<Result<Vec<_>>>()?;
        let after = self.read()?;
        let memory = machine::memory(std::process::id())?;
        let config = self.engine.model().config();
        let token_bytes = EngineOptions::default().kv_format.token_bytes(config.d_head);
        let kv_bytes = config.n_layers * config.n_kv_heads * token_bytes * args.kv_tokens();
        let n = args.tokens as f64;
        let mean_ms = ms.iter().sum::<f64>() / n;
        ms.sort_by(f64::total_cmp);
        let a_token = |before: u64, after: u64| (after - before) as f64 / n;
        let mut figures = json!({
            "ms_per_token": ms[ms.len() / 2],
            "mean_ms_per_token": mean_ms,
            "first_ms": first_ms,
            "disk_bytes_per_token": a_token(before.disk, after.disk),
            "unreclaimable_bytes": memory.unreclaimable,
            "kv_bytes": kv_bytes,
            "digest": format!("{:016x}", self.digest),
        });
        if let Some(experts) = &config.experts {
            figures["experts"] = json!({ "used": experts.used, "count": experts.count });
        }
        if let Some(stats) = self.engine.model().streamed().map(|weights| weights.stats()) {
            figures["streamed"] = json!({
                "weight_bytes": stats.weight_bytes,
                "resident_bytes": stats.resident_bytes,
                "streamed_bytes": stats.streamed_bytes,
                "all_expert_bytes": stats.all_expert_bytes,
                "kept_bytes": stats.kept_bytes,
                "bytes_per_token": a_token(before.streamed, after.streamed),
                "expert_bytes_per_token": a_token(before.experts, after.experts),
                "kept_expert_bytes_per_token": a_token(before.kept_experts, after.kept_experts),
                "reads_per_token": a_token(before.reads, after.reads),
                "reads_in_vain_per_token": a_token(before.in_vain, after.in_vain),
                "waited_ms_per_token": (after.waited_ms - before.waited_ms) / n,
                "reading_ms_per_token": (after.reading_ms - before.reading_ms) / n,
                "major_faults_per_token": before.faults.zip(after.faults).map(|(before, after)| a_token(before, after)),
                "direct": stats.direct,
            });
        }
        if args.reads_alone {
            figures["reads_alone"] = reads_alone(args, self.engine.model())?;
        }
        self.seqs.drain(..).for_each(|seq| self.engine.release(seq));
        for tokens in &args.prompts {
            figures["first_token_ms"][tokens.to_string()] = json!(self.prompt(*tokens)?);
        }
        Ok(figures)
    }
}
