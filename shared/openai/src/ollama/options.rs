//! The field `options`: how an answer is sampled. Other options, and those that say how a model is loaded,
//! have no effect.

use serde::Deserialize;

use crate::wire::whole::whole;
use crate::wire::{ChatCompletionRequest, Stop};

/// The options, as clients send them.
#[derive(Debug, Default, Deserialize)]
pub(super) struct OptionsBody {
    temperature: Option<f64>,
    #[serde(default, deserialize_with = "whole")]
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repeat_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    /// -1 for another answer each time.
    #[serde(default, deserialize_with = "whole")]
    seed: Option<i64>,
    stop: Option<Stop>,
    /// Below 0 for as many as fit.
    #[serde(default, deserialize_with = "whole")]
    num_predict: Option<i64>,
    /// Tokens of prompt and answer together for which the client wants room.
    #[serde(default, deserialize_with = "whole")]
    pub(super) num_ctx: Option<i64>,
}

impl OptionsBody {
    /// Puts the options into a request.
    pub(super) fn put_into(self, request: &mut ChatCompletionRequest) {
        request.max_tokens = Some(self.num_predict.unwrap_or(-1));
        request.top_k = self.top_k;
        request.temperature = self.temperature;
        request.top_p = self.top_p;
        request.min_p = self.min_p;
        request.repetition_penalty = self.repeat_penalty;
        request.presence_penalty = self.presence_penalty;
        request.frequency_penalty = self.frequency_penalty;
        request.seed = self.seed.filter(|&seed| seed != -1);
        request.stop = self.stop;
    }
}
