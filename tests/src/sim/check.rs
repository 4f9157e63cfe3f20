//! What an answer must be: computed token by token by the plainest loop there is.
//!
//! Never: uses a scheduler, a host or a cache.

use std::sync::Arc;

use baton_engine::Model;
use baton_engine::prompt::{Prompt, PromptSegment, assemble};
use baton_engine::sampling::{Sampler, SamplingParams};
use baton_engine::tokenizer::TokenId;
use baton_protocol::{AssistEvent, AssistRequest, EndReason, Sampling, Segment, SentenceMap};

use super::engine::{Voice, model, peak};

/// First units in which attention sinks may be.
const SINKS: usize = 2;
/// Scores may be smoothed over so many tokens.
const NEAR: usize = 4;

/// Returns a prompt as the model gets it; none if it cannot be assembled.
fn assembled(model: &Model, segments: &[Segment]) -> Option<Prompt> {
    let parts: Vec<PromptSegment<'_>> =
        segments.iter().map(|s| PromptSegment { role: s.role.as_str(), text: &s.text }).collect();
    assemble(model.tokenizer(), model.template(), &parts).ok()
}

/// Returns the ids of a prompt.
pub(super) fn prompt_ids(model: &Model, segments: &[Segment]) -> Vec<TokenId> {
    assembled(model, segments).map(|prompt| prompt.ids).unwrap_or_default()
}

/// Converts a request's sampling to the engine's.
pub(super) fn sampling(sampling: &Sampling) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        seed: sampling.seed,
        ..SamplingParams::default()
    }
}

/// Returns the unit of the prompt that its scores point at; none if that is not in a document, or too near to
/// the unit's ends to be clear.
fn pointed(voice: Voice, segments: &[Segment], map: &SentenceMap) -> Option<usize> {
    let prompt = assembled(model(), segments)?;
    let peak = peak(voice.state(&prompt.ids), prompt.ids.len());
    let segment = prompt.segments.iter().position(|place| place.tokens.contains(&peak))?;
    let place = &prompt.segments[segment];
    let at = |token: usize| token.checked_sub(place.tokens.start).and_then(|token| place.spans.get(token));
    let unit = |token: usize| {
        let byte = at(token)?.start;
        (0..map.len()).find(|no| map.unit(*no).segment == segment && map.unit(*no).bytes.contains(&byte))
    };
    // The scores of a prompt's first tokens do not count: attention sinks are there.
    let own = unit(peak).filter(|own| *own >= SINKS)?;
    let clear = (peak.saturating_sub(NEAR)..=peak + NEAR).all(|token| unit(token) == Some(own));
    clear.then_some(own)
}

/// An answer that is written without any machinery.
#[derive(Debug)]
pub(super) struct Plain {
    voice: Voice,
    sampler: Sampler,
    model: Arc<Model>,
    /// Prompt and answer.
    ids: Vec<TokenId>,
    prompt_tokens: usize,
}

impl Plain {
    /// Begins an answer behind a prompt and these answer tokens.
    pub(super) fn new(
        voice: Voice,
        model: &Arc<Model>,
        params: SamplingParams,
        prompt: &[TokenId],
        answer: &[TokenId],
    ) -> Plain {
        Plain {
            voice,
            sampler: Sampler::new(params).expect("questions are asked with valid parameters"),
            model: Arc::clone(model),
            ids: [prompt, answer].concat(),
            prompt_tokens: prompt.len(),
        }
    }

    /// Returns the next token of the answer.
    pub(super) fn next(&self) -> TokenId {
        let answer = &self.ids[self.prompt_tokens..];
        let logits = self.voice.logits(&self.ids, self.model.config().vocab_len);
        self.sampler.sample(&logits, answer.len() as u64, answer)
    }

    /// Appends a token to the answer.
    pub(super) fn push(&mut self, id: TokenId) {
        self.ids.push(id);
    }

    /// Returns the answer's tokens.
    pub(super) fn answer(&self) -> &[TokenId] {
        &self.ids[self.prompt_tokens..]
    }
}

/// Checks the events of one answer as the cloud gives them out.
#[derive(Debug)]
pub(super) struct CloudAnswer {
    plain: Plain,
    map: SentenceMap,
    /// Whether a mask must come before the first token.
    refined: bool,
    /// The unit that a mask must keep.
    pointed: Option<usize>,
    prompt_tokens: usize,
    /// Tokens at most, as promised.
    cap: usize,
    tokens: usize,
    mask: bool,
    /// The end token was told, so only the end may follow.
    over: bool,
    ended: bool,
    wanted: Option<u32>,
}

impl CloudAnswer {
    /// Knows a request to a cloud of this voice, whose scene has this r.
    pub(super) fn new(voice: Voice, ratio: f32, request: &AssistRequest) -> CloudAnswer {
        let prompt = prompt_ids(model(), &request.segments);
        let accepted = request.continue_from.as_deref().unwrap_or_default();
        let accepted =
            if accepted.is_empty() { Vec::new() } else { model().tokenizer().encode_answer(accepted).0 };
        let map = SentenceMap::new(&request.segments);
        CloudAnswer {
            prompt_tokens: prompt.len() + accepted.len(),
            refined: ratio < 1.0 && request.device.is_some() && accepted.is_empty(),
            pointed: pointed(voice, &request.segments, &map),
            plain: Plain::new(voice, model(), sampling(&request.sampling), &prompt, &accepted),
            map,
            cap: usize::MAX,
            tokens: 0,
            mask: false,
            over: false,
            ended: false,
            wanted: request.assist_tokens,
        }
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens as u64
    }

    /// Returns the tokens that were given out.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens as u64
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// The check that does not hold.
    pub(super) fn heard(&mut self, event: &AssistEvent) -> Result<(), String> {
        if self.ended {
            return Err(format!("I3: the cloud sends {event:?} behind the end"));
        }
        match event {
            AssistEvent::Progress(_) => Ok(()),
            AssistEvent::Mask(mask) => {
                if std::mem::replace(&mut self.mask, true) || self.tokens > 0 {
                    return Err("a mask comes twice or late".to_owned());
                }
                let kept = mask.open(&self.map);
                let kept = kept.map_err(|err| format!("mask: not of this request: {err}"))?;
                match self.pointed {
                    Some(unit) if !kept[unit] => Err(format!("mask: without unit {unit}, the scores' peak")),
                    _ => Ok(()),
                }
            }
            AssistEvent::First(first) => {
                if self.tokens > 0 {
                    return Err("I2: a first token comes twice".to_owned());
                }
                if self.refined && !self.mask {
                    return Err("mask: none comes".to_owned());
                }
                self.cap = first.assist_tokens as usize;
                if self.wanted.is_some_and(|wanted| first.assist_tokens > wanted) {
                    return Err(format!("I4: L is {}, asked for {:?}", first.assist_tokens, self.wanted));
                }
                self.token(first.index, first.id)
            }
            AssistEvent::Token(token) if self.tokens == 0 => {
                Err(format!("I2: token {} comes before the first", token.index))
            }
            AssistEvent::Token(token) => self.token(token.index, token.id),
            AssistEvent::End(end) => {
                self.ended = true;
                if end.usage.completion_tokens != self.tokens as u64 {
                    return Err(format!("I2: {} tokens sent, told {:?}", self.tokens, end.usage));
                }
                if end.reason != EndReason::Cancelled && end.usage.prompt_tokens != self.prompt_tokens as u64
                {
                    return Err(format!(
                        "the prompt has {} tokens, told {:?}",
                        self.prompt_tokens, end.usage
                    ));
                }
                if end.reason == EndReason::Cap && self.tokens < self.cap && !self.is_full() {
                    return Err(format!("I2: {} of {} tokens, then the cap", self.tokens, self.cap));
                }
                Ok(())
            }
            AssistEvent::Error(_) => {
                self.ended = true;
                Ok(())
            }
        }
    }

    /// Whether the context has no room for another token.
    fn is_full(&self) -> bool {
        self.prompt_tokens + self.tokens >= model().config().context_len.min(640)
    }

    fn token(&mut self, index: u32, id: TokenId) -> Result<(), String> {
        let at = self.plain.answer().len();
        if index as usize != at || self.over {
            return Err(format!("I2: token {index} comes, {at} is the next, over: {}", self.over));
        }
        if self.tokens >= self.cap {
            return Err(format!("I4: more than {} tokens", self.cap));
        }
        let want = self.plain.next();
        if id != want {
            return Err(format!("I2: token {index} is {id}, alone it is {want}"));
        }
        self.over = model().tokenizer().is_end(id);
        self.tokens += 1;
        self.plain.push(id);
        Ok(())
    }
}
