//! Log probabilities of an answer's tokens, passed separately from its events.
//!
//! Always: there is one entry for each `first` and `token` event, in their order, recorded before the event
//! is sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use baton_engine::sampling::Sampler;
use baton_engine::tokenizer::TokenId;
use baton_generate::hooks::LogprobSink;
use baton_openai::logprobs::{PlaceLogprobs, TokenLogprob};

/// A list that the engine's thread writes and the reader of the answer takes from. Clones share the list.
#[derive(Debug, Clone)]
pub struct Logprobs {
    top: usize,
    places: Arc<Mutex<VecDeque<PlaceLogprobs>>>,
}

impl Logprobs {
    /// Makes a list with the `top` most probable tokens at each position.
    pub fn new(top: usize) -> Logprobs {
        Logprobs { top, places: Arc::default() }
    }

    /// Takes the next position; `None` before its event was sent.
    pub fn take(&self) -> Option<PlaceLogprobs> {
        self.places.lock().expect(POISONED).pop_front()
    }
}

impl LogprobSink for Logprobs {
    fn record(&mut self, sampler: &Sampler, logits: &[f32], id: TokenId) {
        let chosen = TokenLogprob { id, logprob: sampler.logprob(logits, id) };
        let top = sampler.top_logprobs(logits, self.top);
        let top = top.into_iter().map(|(id, logprob)| TokenLogprob { id, logprob }).collect();
        self.places.lock().expect(POISONED).push_back(PlaceLogprobs { chosen, top });
    }
}

const POISONED: &str = "nothing panics while the list is locked";

#[cfg(test)]
mod tests {
    use super::*;
    use baton_engine::sampling::SamplingParams;

    #[test]
    fn places_come_out_in_order() {
        let sampler = Sampler::new(SamplingParams::default()).unwrap();
        let mut list = Logprobs::new(1);
        let reader = list.clone();
        assert!(reader.take().is_none());
        list.record(&sampler, &[0.0, 1.0, f32::NEG_INFINITY], 0);
        list.record(&sampler, &[0.0, 1.0, f32::NEG_INFINITY], 2);
        let first = reader.take().unwrap();
        assert_eq!((first.chosen.id, first.top.len(), first.top[0].id), (0, 1, 1));
        assert!(
            (first.chosen.logprob + 1.313_26).abs() < 1e-4 && (first.top[0].logprob + 0.313_26).abs() < 1e-4
        );
        assert_eq!(reader.take().unwrap().chosen.logprob, f32::NEG_INFINITY);
        assert!(reader.take().is_none());
    }
}
