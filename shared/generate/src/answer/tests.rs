//! Tests answers on made-up logits, against plain loops over the sampler.

mod takeover;
mod verify;
mod writing;

use std::sync::{Arc, LazyLock};

use baton_engine::gguf::Gguf;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_engine::{Sampler, SamplingParams};
use baton_kernels_cpu::Format;
use baton_random::SplitMix64;
use baton_synthetic::SyntheticModel;

use super::*;
use crate::scheduler::JobId;

const ID: JobId = JobId(1);

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let head = SyntheticModel::small("llama", Format::F32, 1).head().unwrap();
    let file = Gguf::from_bytes(head.to_bytes().unwrap()).unwrap();
    Arc::new(Tokenizer::from_gguf(&file).unwrap())
});

/// Returns a tokenizer with a token for every byte.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    TOKENIZER.clone()
}

/// Returns the token of one byte.
pub(crate) fn byte_id(byte: u8) -> TokenId {
    (0..256).find(|&id| TOKENIZER.token_bytes(id) == [byte]).unwrap()
}

/// Returns the text before the stop string that is complete first, of those the longest; and whether there is
/// one.
pub(crate) fn naive_stop<'t>(text: &'t str, stops: &[String]) -> (&'t str, bool) {
    for end in 0..=text.len() {
        let complete = stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        if let Some(longest) = complete.map(String::len).max() {
            return (&text[..end - longest], true);
        }
    }
    (text, false)
}

/// A model whose logits depend on the last tokens of the sequence.
#[derive(Debug, Clone)]
struct FakeModel {
    seed: u64,
    vocab_len: usize,
    likely: Vec<TokenId>,
}

impl FakeModel {
    fn new(seed: u64) -> FakeModel {
        let mut likely: Vec<TokenId> = "ab é日".bytes().map(byte_id).collect();
        likely.push(TOKENIZER.eos().unwrap());
        // A model may have more columns than the tokenizer has tokens.
        FakeModel { seed, vocab_len: TOKENIZER.vocab_len() + 3, likely }
    }

    /// Returns the logits behind this sequence.
    fn logits(&self, sequence: &[TokenId]) -> Vec<f32> {
        let last = &sequence[sequence.len().saturating_sub(2)..];
        let key = last.iter().fold(self.seed, |key, &id| SplitMix64::new(key ^ u64::from(id)).next_u64());
        let mut random = SplitMix64::new(key);
        let mut logits: Vec<f32> = (0..self.vocab_len).map(|_| random.unit() as f32 * 4.0 - 12.0).collect();
        for &id in &self.likely {
            logits[id as usize] = random.unit() as f32 * 4.0;
        }
        logits
    }

    /// Returns the logits of every token from `start` on.
    fn rows(&self, sequence: &[TokenId], start: usize) -> Vec<f32> {
        (start..sequence.len()).flat_map(|at| self.logits(&sequence[..=at])).collect()
    }
}

fn samplers(seed: u64) -> [Sampler; 3] {
    let warm = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
    let all = SamplingParams {
        top_k: Some(9),
        top_p: Some(0.95),
        min_p: Some(0.01),
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        ..warm
    };
    let greedy = SamplingParams { temperature: 0.0, ..warm };
    [greedy, warm, all].map(|params| Sampler::new(params).unwrap())
}

fn prompt(random: &mut SplitMix64) -> Vec<TokenId> {
    (0..1 + random.below(12)).map(|_| random.below(256) as TokenId).collect()
}

/// Returns the options of an answer without text, constraint and window.
fn plain(model: &FakeModel, sampler: &Sampler, prompt: Vec<TokenId>) -> AnswerOptions {
    AnswerOptions {
        tokenizer: tokenizer(),
        vocab_len: model.vocab_len,
        sampler: sampler.clone(),
        prompt,
        continued: Vec::new(),
        max_tokens: 16,
        room_tokens: 1_000,
        text: TextMode::Ids,
        constraint: None,
        logprobs: None,
        window: None,
        evidence: None,
    }
}

/// Takes one row of the next token, computed as a prompt or by the last token alone.
fn take_one(answer: &mut Answer, model: &FakeModel, decode: bool, out: &mut Vec<Written>) -> Outcome {
    let sequence = answer.feed(0..answer.feed_tokens());
    let row = if decode {
        StepRow::Decode { id: ID, proposed: 0 }
    } else {
        StepRow::Prefill { id: ID, tokens: 0..sequence.len(), end: PrefillEnd::Sampled }
    };
    let rows = answer.rows(&row, &[]);
    assert_eq!(rows.ids, sequence[if decode { sequence.len() - 1 } else { 0 }..]);
    answer.took_output(&row, &[], &output_of(rows.logits, model.logits(&sequence)), out)
}

/// Returns what an engine gives that can tell the most probable token without logits.
fn output_of(wanted: Wanted, logits: Vec<f32>) -> SeqOutput {
    if wanted != Wanted::Best {
        return SeqOutput { logits, best: None, scores: None };
    }
    let greedy = Sampler::new(SamplingParams::default()).unwrap();
    let best = check_logits(&logits).map(|()| greedy.sample(&logits, 0, &[]));
    SeqOutput { logits: Vec::new(), best: Some(best), scores: None }
}

/// Writes to the end of the answer; returns the end.
fn write_on(answer: &mut Answer, model: &FakeModel, out: &mut Vec<Written>) -> AnswerEnd {
    loop {
        if let Some(end) = take_one(answer, model, true, out).end {
            return end;
        }
    }
}
