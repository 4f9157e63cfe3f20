//! Adapters at run time beside a model whose weights were merged with them, and batches beside sequences
//! alone.
//!
//! The merged model is an F32 file and the adapter is F16, so both sides compute with exact weights and F32
//! keys. They still add in another order: `W x + s B (A x)` beside `(W + s B A) x`. Logits therefore have a
//! tolerance; greedy tokens have none. What rounding to the default format changes is shown beside it.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use baton_engine::adapter::targets;
use baton_engine::gguf::{Gguf, TensorInfo};
use baton_engine::{Adapter, Engine, EngineOptions, Model, StepSeq, TokenId, Wanted};
use baton_import::ADAPTER_FORMAT;
use baton_kernels_cpu::{Format, KvFormat};
use baton_synthetic::SyntheticModel;
use serde_json::json;

use super::{ADAPTERS, RANK, SEQUENCES, adapter_bytes, opened};
use crate::copied::{numbers_of, with_metadata};
use crate::report::Report;

/// Tokens that both sides write.
const TOKENS: usize = 256;
/// Tokens of each sequence of the batch that is compared bit by bit.
const BATCH_TOKENS: usize = 24;
/// The most that a logit may differ, as a share of the largest logit of its position.
const DIFFERENCE_MAX: f64 = 1e-4;

/// Compares on a model of random weights and on the file `real`.
pub(super) fn measure(real: &Path, report: &mut Report) -> Result<()> {
    let random = SyntheticModel { n_layers: 6, ..SyntheticModel::small("llama", Format::F32, 11) };
    let random = random.to_gguf().context("make a model")?;
    let file = Gguf::open(real).context("open the real model")?;
    let name = real.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let subjects = [("random weights".to_owned(), Gguf::from_bytes(random)?), (name, file)];
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for (name, file) in subjects {
        let found = compare(&file).with_context(|| format!("compare on {name}"))?;
        rows.push(vec![
            name.clone(),
            format!("{} of {TOKENS}", found.equal_tokens),
            format!("{:.1e}", found.difference),
            format!("{} of {TOKENS}", found.changed_tokens),
            found.other_logits.to_string(),
            format!("{} of {TOKENS}", found.rounded_tokens),
            format!("{:.1e}", found.rounded_difference),
        ]);
        data.push(json!({
            "model": name, "equal_tokens": found.equal_tokens, "difference": found.difference,
            "changed_tokens": found.changed_tokens, "batch_other_logits": found.other_logits,
            "rounded": ADAPTER_FORMAT.name(), "rounded_equal_tokens": found.rounded_tokens,
            "rounded_difference": found.rounded_difference,
        }));
        report.check_equal(
            format!("{name}: greedy tokens equal to merged weights"),
            found.equal_tokens as f64,
            TOKENS as f64,
        );
        let most = format!("{name}: largest difference of a logit, share of the largest logit");
        report.check_at_most(most, found.difference, DIFFERENCE_MAX);
        let bits = format!("{name}: logits of a batch over {ADAPTERS} adapters that differ from alone");
        report.check_equal(bits, found.other_logits as f64, 0.0);
        let changed = format!("{name}: tokens that the adapter changes");
        report.check_at_least(changed, found.changed_tokens as f64, 1.0);
    }
    report.table(
        &format!("beside merged weights (F32), {TOKENS} greedy tokens, rank {RANK}"),
        &[
            "",
            "equal tokens",
            "logits differ",
            "changed by the adapter",
            "batch: other logits",
            "rounded: equal tokens",
            "logits differ",
        ],
        &rows,
    );
    report.data("equal", data);
    Ok(())
}

struct Found {
    equal_tokens: usize,
    /// Largest difference of a logit, as a share of the largest one of its position.
    difference: f64,
    /// Positions at which the model without the adapter would have written another token.
    changed_tokens: usize,
    /// Logits of the batch that differ in a bit.
    other_logits: usize,
    /// With the adapter in the default format: tokens equal to those in F16, and the largest difference of a
    /// logit before they split.
    rounded_tokens: usize,
    rounded_difference: f64,
}

fn compare(file: &Gguf) -> Result<Found> {
    let model = Model::from_gguf(Gguf::from_bytes(in_f32(file, None)?)?).context("open the F32 model")?;
    ensure!(model.config().context_len > TOKENS + 16, "the model's context is too short");
    let bytes = || adapter_bytes(&model, RANK, Format::F16, 0);
    let adapter = opened(&model, bytes()?)?;
    let lora = Gguf::from_bytes(bytes()?)?;
    let change = Merge { lora: &lora, model: &model };
    let merged = Model::from_gguf(Gguf::from_bytes(in_f32(file, Some(&change))?)?).context("open merged")?;
    let ids: Vec<TokenId> = prompt(0, &model);
    let have = greedy(&model, Some(&adapter), &ids, TOKENS)?;
    let want = greedy(&merged, None, &ids, TOKENS)?;
    let plain = greedy(&model, None, &ids, TOKENS)?;
    let equal = |a: &[Written], b: &[Written]| a.iter().zip(b).filter(|(a, b)| a.token == b.token).count();
    // Later logits of texts that have split say nothing.
    let difference = |other: &[Written]| {
        let together = have.iter().zip(other).take_while(|(have, other)| have.token == other.token);
        together.map(|(have, other)| difference(&have.logits, &other.logits)).fold(0.0, f64::max)
    };
    let rounded = opened(&model, adapter_bytes(&model, RANK, ADAPTER_FORMAT, 0)?)?;
    let rounded = greedy(&model, Some(&rounded), &ids, TOKENS)?;
    Ok(Found {
        equal_tokens: equal(&have, &want),
        difference: difference(&want),
        changed_tokens: TOKENS - equal(&have, &plain),
        other_logits: other_in_batch(&model)?,
        rounded_tokens: equal(&have, &rounded),
        rounded_difference: difference(&rounded),
    })
}

/// Returns how many logits of a batch differ from those of the same sequences alone.
fn other_in_batch(model: &Arc<Model>) -> Result<usize> {
    let adapters = (0..ADAPTERS as u64)
        .map(|seed| opened(model, adapter_bytes(model, RANK, ADAPTER_FORMAT, seed)?))
        .collect::<Result<Vec<_>>>()?;
    let mut engine = engine(model)?;
    let seqs = (0..SEQUENCES)
        .map(|at| {
            let id = engine.add_adapter(Arc::clone(&adapters[at % ADAPTERS]))?;
            Ok(engine.create_with(Some(id))?)
        })
        .collect::<Result<Vec<_>>>()?;
    let mut next: Vec<Vec<TokenId>> = (0..SEQUENCES).map(|at| prompt(at, model)).collect();
    let mut have: Vec<Vec<Written>> = (0..SEQUENCES).map(|_| Vec::new()).collect();
    for _ in 0..BATCH_TOKENS {
        let batch: Vec<StepSeq<'_>> = seqs
            .iter()
            .zip(&next)
            .map(|(seq, ids)| StepSeq { seq: *seq, ids, logits: Wanted::Last, capture: None })
            .collect();
        let outputs = engine.step(&batch, &mut ()).context("compute a batch")?;
        for ((output, next), have) in outputs.into_iter().zip(&mut next).zip(&mut have) {
            let written = Written::of(output.logits);
            *next = vec![written.token];
            have.push(written);
        }
    }
    let mut other = 0;
    for (at, have) in have.iter().enumerate() {
        let alone = greedy(model, Some(&adapters[at % ADAPTERS]), &prompt(at, model), BATCH_TOKENS)?;
        let logits = |written: &[Written]| -> Vec<u32> {
            written.iter().flat_map(|written| &written.logits).map(|logit| logit.to_bits()).collect()
        };
        other += logits(have).iter().zip(logits(&alone)).filter(|(have, alone)| *have != alone).count();
    }
    Ok(other)
}

/// Returns ids of some text, for a model of any vocabulary; another text for each number.
fn prompt(at: usize, model: &Model) -> Vec<TokenId> {
    model.tokenizer().encode(&format!("In the year {at} the keeper of the gate wrote down what he had seen."))
}

/// One greedy token, and what it was chosen from.
struct Written {
    token: TokenId,
    logits: Vec<f32>,
}

impl Written {
    fn of(logits: Vec<f32>) -> Written {
        let best = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
        let token = (0..logits.len()).reduce(best).unwrap_or(0) as TokenId;
        Written { token, logits }
    }
}

fn engine(model: &Arc<Model>) -> Result<Engine> {
    let options = EngineOptions {
        threads: NonZeroUsize::new(2),
        kv_tokens: SEQUENCES * (TOKENS + 64),
        kv_format: KvFormat::F32,
        ..EngineOptions::default()
    };
    Engine::new(Arc::clone(model), options).context("make an engine")
}

/// Writes `count` tokens, also after an end token.
fn greedy(
    model: &Arc<Model>,
    adapter: Option<&Arc<Adapter>>,
    ids: &[TokenId],
    count: usize,
) -> Result<Vec<Written>> {
    let mut engine = engine(model)?;
    let id = adapter.map(|adapter| engine.add_adapter(Arc::clone(adapter))).transpose()?;
    let seq = engine.create_with(id)?;
    let (mut written, mut next) = (Vec::with_capacity(count), ids.to_vec());
    for _ in 0..count {
        let batch = [StepSeq { seq, ids: &next, logits: Wanted::Last, capture: None }];
        let mut outputs = engine.step(&batch, &mut ()).context("write a token")?;
        let token = Written::of(outputs.remove(0).logits);
        next = vec![token.token];
        written.push(token);
    }
    Ok(written)
}

fn difference(have: &[f32], want: &[f32]) -> f64 {
    let largest = want.iter().map(|logit| f64::from(logit.abs())).fold(f64::MIN_POSITIVE, f64::max);
    let gap = have.iter().zip(want).map(|(have, want)| f64::from((have - want).abs())).fold(0.0, f64::max);
    gap / largest
}

/// An adapter to be merged.
struct Merge<'a> {
    lora: &'a Gguf,
    model: &'a Model,
}

impl Merge<'_> {
    /// Adds `s B A` to the numbers of a tensor, if the adapter changes it. The sums are in f64.
    fn add(&self, tensor: &TensorInfo, numbers: &mut [f32]) -> Result<()> {
        let halves = ["lora_a", "lora_b"].map(|half| format!("{}.{half}", tensor.name()));
        if !self.lora.has_tensor(&halves[0]) {
            return Ok(());
        }
        let known = targets(self.model.config());
        ensure!(known.iter().any(|target| tensor.name().contains(target.name)), "an unknown target");
        let (a, b) = (numbers_of(self.lora, &halves[0])?, numbers_of(self.lora, &halves[1])?);
        let scale = f64::from(self.lora.metadata().f32("adapter.lora.alpha")?) / f64::from(RANK);
        let cols = tensor.dims()[0] as usize;
        for (row, numbers) in numbers.chunks_mut(cols).enumerate() {
            let own = &b[row * RANK as usize..(row + 1) * RANK as usize];
            for (col, number) in numbers.iter_mut().enumerate() {
                let products = own.iter().enumerate();
                let sum: f64 = products.map(|(r, b)| f64::from(*b) * f64::from(a[r * cols + col])).sum();
                *number = (f64::from(*number) + scale * sum) as f32;
            }
        }
        Ok(())
    }
}

/// Returns the model as a file of F32 weights, with an adapter merged if one is given.
fn in_f32(file: &Gguf, merge: Option<&Merge<'_>>) -> Result<Vec<u8>> {
    let mut writer = with_metadata(file)?;
    for tensor in file.tensors() {
        let mut numbers = numbers_of(file, tensor.name())?;
        if let Some(merge) = merge {
            merge.add(tensor, &mut numbers)?;
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        writer.tensor(tensor.name(), tensor.dims(), Format::F32, bytes)?;
    }
    Ok(writer.to_bytes()?)
}
