//! The field `options`: how an answer is sampled, and how a model is loaded.
//!
//! Always: an option that would change the answer and is not supported is refused by name, unless it asks for
//! nothing.

use serde::Deserialize;
use serde_json::Value;

use crate::error::FieldError;
use crate::wire::unknown::NoOther;
use crate::wire::{ChatCompletionRequest, Stop};

/// The options, as clients send them.
#[derive(Debug, Default, Deserialize)]
pub(super) struct OptionsBody {
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repeat_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    /// -1 for another answer each time.
    seed: Option<i64>,
    stop: Option<Stop>,
    /// -1 or -2 for as many as fit.
    num_predict: Option<i64>,
    /// Tokens of prompt and answer together that there must be room for.
    pub(super) num_ctx: Option<u64>,
    repeat_last_n: Option<i64>,
    num_keep: Option<i64>,
    typical_p: Option<f64>,
    tfs_z: Option<f64>,
    mirostat: Option<i64>,
    penalize_newline: Option<bool>,
    vocab_only: Option<bool>,
    embedding_only: Option<bool>,
    logits_all: Option<bool>,
    /// No effect without `mirostat`.
    #[serde(rename = "mirostat_tau")]
    _mirostat_tau: Option<f64>,
    /// No effect without `mirostat`.
    #[serde(rename = "mirostat_eta")]
    _mirostat_eta: Option<f64>,
    // These say how a model is loaded; they have no effect.
    #[serde(rename = "numa")]
    _numa: Option<Value>,
    #[serde(rename = "num_batch")]
    _num_batch: Option<Value>,
    #[serde(rename = "num_gpu")]
    _num_gpu: Option<Value>,
    #[serde(rename = "main_gpu")]
    _main_gpu: Option<Value>,
    #[serde(rename = "num_thread")]
    _num_thread: Option<Value>,
    #[serde(rename = "low_vram")]
    _low_vram: Option<Value>,
    #[serde(rename = "f16_kv")]
    _f16_kv: Option<Value>,
    #[serde(rename = "use_mmap")]
    _use_mmap: Option<Value>,
    #[serde(rename = "use_mlock")]
    _use_mlock: Option<Value>,
    #[serde(flatten)]
    _other: NoOther,
}

impl OptionsBody {
    /// Puts the options into a request. `tokens_max` stands for as many tokens as fit.
    pub(super) fn put_into(
        self,
        request: &mut ChatCompletionRequest,
        tokens_max: Option<u64>,
    ) -> Result<(), FieldError> {
        self.refuse()?;
        let limit = match self.num_predict {
            None | Some(-1 | -2) => tokens_max,
            Some(count) => Some(u64::try_from(count).map_err(|_| {
                FieldError::new("options.num_predict", format!("is {count}, must be at least 1, or -1"))
            })?),
        };
        request.max_tokens = limit;
        // Too many are refused by their range.
        let top_k = self.top_k.filter(|&count| count > 0);
        request.top_k = top_k.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        request.temperature = self.temperature;
        request.top_p = self.top_p;
        request.min_p = self.min_p;
        request.repetition_penalty = self.repeat_penalty;
        request.presence_penalty = self.presence_penalty;
        request.frequency_penalty = self.frequency_penalty;
        request.seed = self.seed.filter(|&seed| seed != -1);
        request.stop = self.stop;
        Ok(())
    }

    fn refuse(&self) -> Result<(), FieldError> {
        let is_off = |value: Option<f64>| value.is_none_or(|value| value == 1.0);
        let is_false = |value: Option<bool>| value != Some(true);
        let whole = "only -1 is supported: the penalty counts the whole answer";
        let rules = [
            ("repeat_last_n", self.repeat_last_n.is_none_or(|count| count == -1), whole),
            ("num_keep", self.num_keep.is_none_or(|count| count == 0), "only 0 is supported"),
            ("typical_p", is_off(self.typical_p), "only 1 is supported"),
            ("tfs_z", is_off(self.tfs_z), "only 1 is supported"),
            ("mirostat", self.mirostat.is_none_or(|kind| kind == 0), "only 0 is supported"),
            ("penalize_newline", self.penalize_newline != Some(false), "must not be false"),
            ("vocab_only", is_false(self.vocab_only), "is not supported"),
            ("embedding_only", is_false(self.embedding_only), "is not supported"),
            ("logits_all", is_false(self.logits_all), "is not supported"),
        ];
        match rules.into_iter().find(|(_, fine, _)| !fine) {
            Some((name, _, message)) => Err(FieldError::new(format!("options.{name}"), message)),
            None => Ok(()),
        }
    }
}
