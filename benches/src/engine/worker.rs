//! Baton's engine as a long-lived worker, the counterpart of `peers/llama_cpp.cpp` with the same requests.
//!
//! It reads one request per line from standard input and writes one JSON object per line to standard output.
//! Tokens are pseudo-random and the same in every run. No request finds anything in the prefix cache.
//!
//! Requests that llama.cpp's worker does not have:
//!
//! - `batch N STEPS CONTEXT`: decoding after longer prompts;
//! - `info`: sizes;
//! - `scores N WHICH`: a prompt's last chunk with captured attention;
//! - `perplexity N`: perplexity of the first N tokens of a text.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use baton_engine::engine::KvFormat;
use baton_engine::gguf::{Gguf, TensorInfo};
use baton_engine::{
    Capture, Engine, EngineOptions, HeadId, MeanOver, Model, SeqId, StepSeq, TokenId, Wanted,
};
use serde_json::{Value, json};

use super::machine;

/// Tokens per prefill step, as many as in llama.cpp's default micro-batch.
const CHUNK_TOKENS: usize = 512;
/// Tokens per step when perplexity is computed; the logits of all are held at once.
const PERPLEXITY_TOKENS: usize = 256;
/// Default number of tokens in each sequence before a batched step.
const SMALL_CONTEXT: usize = 16;
/// Number of heads in a calibration, as in that of the demo model.
const CHOSEN_HEADS: usize = 8;
/// Number of queries whose attention is captured: the length of a question.
const WINDOW_TOKENS: usize = 32;

/// Options of the hidden subcommand `engine-worker`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The model file
    model: PathBuf,
    /// Number of threads, pinned to the first CPUs
    #[arg(long)]
    threads: NonZeroUsize,
    /// Format of keys and values: f32, f16, q8 or q4
    #[arg(long, default_value_t = SHIPPED_KV)]
    kv: KvFormat,
    /// Length of the longest sequence in tokens
    #[arg(long)]
    context: usize,
    /// Repack all weights when the model is loaded
    #[arg(long)]
    repack: bool,
}

/// Answers requests until standard input ends.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut worker = Worker::new(args)?;
    worker.prefill(64)?; // Warms up and reads every weight once.
    machine::pin_busiest_threads(args.threads.get(), || worker.prefill(64).map(drop))?;
    worker.forget();
    say(&json!({ "ready": true }))?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("read a request")?;
        let answer = worker.answer(&line).unwrap_or_else(|err| json!({ "error": format!("{err:#}") }));
        say(&answer)?;
    }
    Ok(())
}

fn say(answer: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").context("write an answer")?;
    out.flush().context("write an answer")
}

struct Worker {
    engine: Engine,
    model: Arc<Model>,
    path: PathBuf,
    kv_format: KvFormat,
    drawn: u32,
    /// The last prefill of each length, kept so that decoding after it does not compute it again.
    kept: HashMap<usize, SeqId>,
}

impl Worker {
    fn new(args: &Args) -> Result<Self> {
        let budget = if args.repack { u64::MAX } else { 0 };
        let model = Model::open_repacked(&args.model, budget)
            .with_context(|| format!("open {}", args.model.display()))?;
        let kv_format = args.kv;
        let options = EngineOptions {
            threads: Some(args.threads),
            kv_tokens: 2 * args.context + 4096,
            kv_format,
            ..EngineOptions::default()
        };
        let engine = Engine::new(Arc::clone(&model), options).context("make an engine")?;
        Ok(Self { engine, model, path: args.model.clone(), kv_format, drawn: 0, kept: HashMap::new() })
    }

    fn answer(&mut self, line: &str) -> Result<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> Result<usize> {
            let word = words.get(at).with_context(|| format!("`{line}` lacks a number"))?;
            word.parse().with_context(|| format!("read the number `{word}`"))
        };
        let seconds = match words.first().copied() {
            Some("prefill") => self.timed_prefill(number(1)?)?,
            Some("extend") => self.timed_extend(number(1)?, number(2)?)?,
            Some("decode") => self.timed_decode(number(1)?, number(2)?)?,
            Some("batch") => {
                let context = if words.len() > 3 { number(3)? } else { SMALL_CONTEXT };
                self.timed_batch(number(1)?, number(2)?, context)?
            }
            Some("scores") => self.timed_scores(number(1)?, words.get(2).copied().unwrap_or_default())?,
            Some("perplexity") => return Ok(json!({ "perplexity": self.perplexity(number(1)?)? })),
            Some("info") => return self.info(),
            _ => bail!("request `{line}` is not understood"),
        };
        Ok(json!({ "seconds": seconds }))
    }

    fn token(&mut self) -> TokenId {
        let id = u64::from(self.drawn).wrapping_mul(2_654_435_761) >> 7;
        self.drawn = self.drawn.wrapping_add(1);
        (id % self.model.config().vocab_len as u64) as TokenId
    }

    fn tokens(&mut self, count: usize) -> Vec<TokenId> {
        (0..count).map(|_| self.token()).collect()
    }

    fn prefill(&mut self, tokens: usize) -> Result<SeqId> {
        let ids = self.tokens(tokens);
        let seq = self.engine.create();
        self.extend(seq, &ids, None)?;
        Ok(seq)
    }

    /// Appends `ids` in chunks, with the logits of the last token and the scores of the last chunk.
    fn extend(&mut self, seq: SeqId, ids: &[TokenId], capture: Option<&Capture>) -> Result<()> {
        let chunks = ids.len().div_ceil(CHUNK_TOKENS);
        for (at, chunk) in ids.chunks(CHUNK_TOKENS).enumerate() {
            let last = at + 1 == chunks;
            let logits = if last { Wanted::Last } else { Wanted::None };
            let capture = capture.filter(|_| last);
            self.engine.step(&[StepSeq { seq, ids: chunk, logits, capture }], &mut ()).context("prefill")?;
        }
        Ok(())
    }

    fn forget(&mut self) {
        for (_, seq) in self.kept.drain() {
            self.engine.release(seq);
        }
    }

    /// Keeps a sequence, and releases the previous one of this length.
    fn keep(&mut self, tokens: usize, seq: SeqId) {
        if let Some(old) = self.kept.insert(tokens, seq) {
            self.engine.release(old);
        }
    }

    /// Returns the kept sequence of this many tokens, which is computed if there is none.
    fn kept_prefill(&mut self, tokens: usize) -> Result<SeqId> {
        let seq = match self.kept.get(&tokens) {
            Some(seq) => return Ok(*seq),
            None if tokens == 0 => self.engine.create(),
            None => self.prefill(tokens)?,
        };
        self.keep(tokens, seq);
        Ok(seq)
    }

    fn timed_prefill(&mut self, tokens: usize) -> Result<f64> {
        if let Some(old) = self.kept.remove(&tokens) {
            self.engine.release(old);
        }
        let start = Instant::now();
        let seq = self.prefill(tokens)?;
        let seconds = start.elapsed().as_secs_f64();
        self.keep(tokens, seq);
        Ok(seconds)
    }

    fn timed_decode(&mut self, context: usize, steps: usize) -> Result<f64> {
        let seq = self.kept_prefill(context)?;
        let start = Instant::now();
        for _ in 0..steps {
            let id = [self.token()];
            let batch = [StepSeq { seq, ids: &id, logits: Wanted::Last, capture: None }];
            self.engine.step(&batch, &mut ()).context("decode")?;
        }
        let seconds = start.elapsed().as_secs_f64();
        self.engine.truncate(seq, context).context("cut the sequence")?;
        Ok(seconds)
    }

    /// Times `count` tokens after `context` others.
    fn timed_extend(&mut self, context: usize, count: usize) -> Result<f64> {
        let seq = self.kept_prefill(context)?;
        let ids = self.tokens(count);
        let start = Instant::now();
        self.extend(seq, &ids, None)?;
        let seconds = start.elapsed().as_secs_f64();
        self.engine.truncate(seq, context).context("cut the sequence")?;
        Ok(seconds)
    }

    fn timed_batch(&mut self, seqs: usize, steps: usize, context: usize) -> Result<f64> {
        let all: Vec<SeqId> = (0..seqs).map(|_| self.prefill(context)).collect::<Result<_>>()?;
        let start = Instant::now();
        for _ in 0..steps {
            let ids = self.tokens(seqs);
            let batch: Vec<StepSeq<'_>> = all
                .iter()
                .zip(ids.chunks(1))
                .map(|(seq, ids)| StepSeq { seq: *seq, ids, logits: Wanted::Last, capture: None })
                .collect();
            self.engine.step(&batch, &mut ()).context("batched decode")?;
        }
        let seconds = start.elapsed().as_secs_f64();
        all.into_iter().for_each(|seq| self.engine.release(seq));
        Ok(seconds)
    }

    /// Times the last chunk of a prompt of `tokens` tokens with captured attention of its last tokens.
    /// `which` selects the heads: `none`, `all`, or `chosen` for [`CHOSEN_HEADS`] heads spread over the
    /// layers. The chunks before it are the same in all cases.
    fn timed_scores(&mut self, tokens: usize, which: &str) -> Result<f64> {
        let config = self.model.config();
        let (n_layers, n_heads) = (config.n_layers, config.n_heads);
        let all = (0..n_layers).flat_map(|layer| (0..n_heads).map(move |head| HeadId { layer, head }));
        let heads: Vec<HeadId> = match which {
            "none" => Vec::new(),
            "all" => all.collect(),
            "chosen" => all.step_by((n_layers * n_heads).div_ceil(CHOSEN_HEADS)).collect(),
            _ => bail!("no heads are called `{which}`"),
        };
        let before = tokens.checked_sub(CHUNK_TOKENS).context("the prompt is shorter than a chunk")?;
        let seq = self.kept_prefill(before)?;
        let ids = self.tokens(CHUNK_TOKENS);
        let window = CHUNK_TOKENS - WINDOW_TOKENS..CHUNK_TOKENS;
        let capture = (!heads.is_empty()).then_some(Capture { window, heads, over: MeanOver::Queries });
        let start = Instant::now();
        self.extend(seq, &ids, capture.as_ref())?;
        let seconds = start.elapsed().as_secs_f64();
        self.engine.truncate(seq, before).context("cut the sequence")?;
        Ok(seconds)
    }

    /// Returns the perplexity of the first tokens of the project's architecture document: `exp` of the mean
    /// negative log-probability of every token after the first.
    fn perplexity(&mut self, tokens: usize) -> Result<f64> {
        let mut ids = self.model.tokenizer().encode(include_str!("../../../ARCHITECTURE.md"));
        ids.truncate(tokens);
        if ids.len() < 2 {
            bail!("perplexity of {} tokens, must be at least 2", ids.len());
        }
        let seq = self.engine.create();
        let mut sum = 0.0;
        for (at, chunk) in ids.chunks(PERPLEXITY_TOKENS).enumerate() {
            let batch = [StepSeq { seq, ids: chunk, logits: Wanted::All, capture: None }];
            let logits = self.engine.step(&batch, &mut ()).context("prefill")?.remove(0).logits;
            let next = &ids[at * PERPLEXITY_TOKENS + 1..];
            let rows = logits.chunks(self.model.config().vocab_len);
            sum += rows.zip(next).map(|(row, id)| surprise(row, *id)).sum::<f64>();
        }
        self.engine.release(seq);
        Ok((sum / (ids.len() - 1) as f64).exp())
    }

    /// Returns the bytes that one decoded token reads and the weights that one prefilled token multiplies.
    fn info(&self) -> Result<Value> {
        let gguf = Gguf::open(&self.path).context("read the directory of the model file")?;
        let head = if gguf.has_tensor(OUTPUT) { OUTPUT } else { EMBEDDINGS };
        let (mut weight_bytes, mut layer_weights, mut head_weights) = (0usize, 0u64, 0u64);
        for tensor in read_per_token(&gguf) {
            weight_bytes += tensor.data_len();
            let weights: u64 = tensor.dims().iter().product();
            if tensor.name() == head {
                head_weights = weights;
            } else if tensor.dims().len() > 1 {
                layer_weights += weights;
            }
        }
        let kv_bytes = self.model.config().kv_token_bytes(self.kv_format);
        Ok(json!({
            "weight_bytes": weight_bytes,
            "layer_weights": layer_weights,
            "head_weights": head_weights,
            "kv_bytes_per_token": kv_bytes,
        }))
    }
}

/// The programs' format of keys and values.
pub(crate) const SHIPPED_KV: KvFormat = KvFormat::F16;

const OUTPUT: &str = "output.weight";
const EMBEDDINGS: &str = "token_embd.weight";

/// Returns the tensors that one decoded token reads in full: all but a table of embeddings alone.
pub(crate) fn read_per_token(gguf: &Gguf) -> impl Iterator<Item = &TensorInfo> {
    let untied = gguf.has_tensor(OUTPUT);
    gguf.tensors().filter(move |tensor| !(untied && tensor.name() == EMBEDDINGS))
}

/// Returns the negative logarithm of the probability that `logits` give to `id`.
fn surprise(logits: &[f32], id: TokenId) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_what_the_programs_do() {
        assert_eq!(SHIPPED_KV, EngineOptions::default().kv_format);
    }

    #[test]
    fn surprise_is_minus_the_log_probability() {
        let logits = [1.0, 1.0, 1.0 + 2f32.ln()];
        assert!((surprise(&logits, 2) - 2f64.ln()).abs() < 1e-6);
        assert!((surprise(&logits, 0) - 4f64.ln()).abs() < 1e-6);
    }
}
