//! The field `options`: how an answer is sampled. Other options, and those that say how a model is loaded,
//! have no effect.

use baton_protocol::{NumberRange, limits};
use serde::Deserialize;

use crate::ignored::Ignored;
use crate::request::{PENALTY, TEMPERATURE};
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
    /// Below 1 for as many as fit.
    #[serde(default, deserialize_with = "whole")]
    num_predict: Option<i64>,
    /// Tokens of prompt and answer together for which the client wants room.
    #[serde(default, deserialize_with = "whole")]
    pub(super) num_ctx: Option<i64>,
}

impl OptionsBody {
    /// Puts the options into a request. A value outside its range counts as the nearest one inside, and is
    /// named.
    pub(super) fn put_into(self, request: &mut ChatCompletionRequest, ignored: &mut Ignored) {
        let mut within = |name: &str, value: Option<f64>, range: NumberRange| {
            let nearest = value.map(|value| value.clamp(range.min, range.max));
            if nearest != value {
                ignored.add_at("options", name);
            }
            nearest
        };
        request.temperature = within("temperature", self.temperature, TEMPERATURE);
        request.top_p = within("top_p", self.top_p, limits::TOP_P);
        request.min_p = within("min_p", self.min_p, limits::MIN_P);
        request.presence_penalty = within("presence_penalty", self.presence_penalty, PENALTY);
        request.frequency_penalty = within("frequency_penalty", self.frequency_penalty, PENALTY);
        // A divisor of 0 or less is none.
        let divisor = self.repeat_penalty.filter(|&divisor| divisor > 0.0);
        request.repetition_penalty = within("repeat_penalty", divisor, limits::REPETITION_PENALTY);
        if divisor != self.repeat_penalty {
            ignored.add_at("options", "repeat_penalty");
        }
        request.max_tokens = Some(self.num_predict.filter(|&tokens| tokens > 0).unwrap_or(-1));
        request.top_k = self.top_k;
        request.seed = self.seed.filter(|&seed| seed != -1);
        request.stop = self.stop;
    }
}
