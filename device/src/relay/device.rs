//! The device's side of the relay: which prompt it prefills, what its engine reports, and the corrector.

use super::note::{AnswerError, Note};
use super::outcome::Ending;
use super::transcript::Piece;
use super::{RelayConfig, RelayCore, RelayEffect, Source};
use crate::local::{Accepted, EngineCommand, EngineEnd, EngineReport, Keep, PromptId, Scope, Verified};
use baton_pacing::{DeviceCost, Millis, TakeoverEstimate};
use baton_protocol::{Corrector, Segment};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum DeviceState {
    /// There is no model, or it must not be used.
    Absent,
    /// Nothing has begun.
    Idle,
    /// Prefills the part of the prompt that no mask can change.
    Prefix,
    /// Prefills a prompt, or waits with a complete one.
    Prompt,
    /// The verification pass was requested.
    Verifying,
    /// Writes the answer.
    Decoding,
    /// Wrote its part, or is not needed any more.
    Over,
    /// It failed; the text says why.
    Failed(String),
}

#[derive(Debug)]
pub(super) struct DeviceSide {
    pub(super) state: DeviceState,
    prompt: PromptId,
    next_prompt: u64,
    /// Segments of the prompt to use.
    segments: Arc<[Segment]>,
    refined: bool,
    /// Number of tokens of the whole prompt; the next field is for its fixed prefix.
    whole_tokens: Option<usize>,
    prefix_tokens: usize,
    done: usize,
    total: usize,
    /// All but the last prompt token is in the KV cache.
    pub(super) ready: bool,
    cost: DeviceCost,
    slowness: f64,
    estimate: Option<TakeoverEstimate>,
    /// When prefill of the prompt began, and how many tokens the KV cache held then.
    begun: (Millis, usize),
    /// If the prompt does not fit: its number of tokens, and the most that fit.
    pub(super) too_long: Option<(usize, usize)>,
}

impl DeviceSide {
    /// Returns whether the prompt is a refined one.
    pub(super) fn is_refined(&self) -> bool {
        self.refined
    }

    pub(super) fn new(config: &RelayConfig, segments: Arc<[Segment]>) -> Self {
        Self {
            state: if config.has_device { DeviceState::Idle } else { DeviceState::Absent },
            prompt: config.first_prompt,
            next_prompt: config.first_prompt.0,
            segments,
            refined: false,
            whole_tokens: None,
            prefix_tokens: 0,
            done: 0,
            total: 0,
            ready: false,
            cost: config.cost,
            slowness: 1.0,
            estimate: None,
            begun: (Millis::ZERO, 0),
            too_long: None,
        }
    }

    /// Updates the ratio of real to estimated time of the prefill so far.
    fn measure(&mut self, now: Millis) {
        let (at, cached) = self.begun;
        let estimated_ms = self.cost.prefill_ms(cached as f64, self.done.saturating_sub(cached) as f64);
        let real_ms = (now - at).as_f64();
        if estimated_ms > 0.0 && real_ms > 0.0 {
            self.slowness = real_ms / estimated_ms;
        }
    }

    pub(super) fn usable(&self) -> bool {
        !matches!(self.state, DeviceState::Absent | DeviceState::Failed(_))
    }

    pub(super) fn writing(&self) -> bool {
        matches!(self.state, DeviceState::Verifying | DeviceState::Decoding)
    }

    /// Returns the engine's message, if the device failed.
    pub(super) fn failure(&self) -> Option<String> {
        match &self.state {
            DeviceState::Failed(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Stops the device; returns whether the engine must be told.
    pub(super) fn stop(&mut self) -> bool {
        let working = !matches!(
            self.state,
            DeviceState::Absent | DeviceState::Idle | DeviceState::Over | DeviceState::Failed(_)
        );
        if working {
            self.state = DeviceState::Over;
        }
        working
    }

    /// Returns an id that no prompt has yet.
    pub(super) fn free_prompt(&mut self) -> PromptId {
        self.next_prompt += 1;
        PromptId(self.next_prompt - 1)
    }

    fn new_prompt(&mut self) -> PromptId {
        self.prompt = self.free_prompt();
        self.ready = false;
        self.estimate = None;
        self.prompt
    }

    /// Returns a new id for what the engine writes behind the same prompt.
    pub(super) fn another_job(&mut self) -> PromptId {
        self.prompt = PromptId(self.next_prompt);
        self.next_prompt += 1;
        self.prompt
    }

    /// Goes over to a prompt whose keys and values have come: `cached` of its tokens are in the cache.
    pub(super) fn switch(&mut self, prompt: PromptId, (tokens, cached): (usize, usize), now: Millis) {
        (self.prompt, self.state) = (prompt, DeviceState::Prompt);
        (self.ready, self.refined) = (false, true);
        (self.total, self.done, self.begun) = (tokens, cached, (now, cached));
        self.estimate = Some(TakeoverEstimate::new(self.cost, now, cached, tokens));
    }

    /// Returns how long the prefill still takes, in milliseconds. `prompt_ratio`: the share of the whole
    /// prompt that is prefilled, until the engine says how many tokens that is.
    pub(super) fn prefill_left_ms(&self, prompt_ratio: f64) -> f64 {
        let whole = self.whole_tokens.unwrap_or(0) as f64;
        let (done, total) = match self.estimate {
            Some(_) => (self.done as f64, self.total as f64),
            None => (self.prefix_tokens as f64, prompt_ratio * whole),
        };
        if self.ready { 0.0 } else { self.slowness * self.cost.prefill_ms(done, (total - done).max(0.0)) }
    }

    /// Returns the tokens in the KV cache, the tokens of the whole prompt, and when the device's own first
    /// token is expected.
    pub(super) fn progress(&self, now: Millis) -> Option<(u64, u64, Millis)> {
        let ready_at = self.estimate.as_ref()?.ready_at(now);
        Some((self.done as u64, self.total as u64, ready_at))
    }

    /// Returns the predicted time of the verification pass over `accepted` tokens, in milliseconds.
    pub(super) fn verify_ms(&self, accepted: usize) -> f64 {
        self.slowness * self.cost.prefill_ms(self.done as f64, (accepted + 1) as f64)
    }

    /// Says how many of the cloud's tokens the verification pass will take.
    pub(super) fn expect(&mut self, tokens: usize) {
        if let Some(estimate) = &mut self.estimate {
            estimate.set_target(self.total + tokens);
        }
    }

    /// Returns when the device's own first token is expected. `cloud_end` is the time at which the cloud's
    /// `expected` tokens have come.
    pub(super) fn handover_at(&self, expected: usize, cloud_end: Millis, now: Millis) -> Option<Millis> {
        match self.state {
            DeviceState::Prompt | DeviceState::Verifying => {}
            _ => return None,
        }
        let after_cloud = cloud_end.max(now) + Millis::new(self.verify_ms(expected));
        match (&self.estimate, self.ready) {
            (Some(estimate), false) => Some(estimate.ready_at(now).max(after_cloud)),
            (Some(_), true) => Some(after_cloud),
            (None, _) => None,
        }
    }
}

impl RelayCore {
    /// Starts the engine's work; `prefix_only` while a mask may still come.
    pub(super) fn open(&mut self, prefix_only: bool, fx: &mut Vec<RelayEffect>) {
        if self.device.state != DeviceState::Idle {
            return;
        }
        let prompt = self.device.new_prompt();
        self.device.state = if prefix_only { DeviceState::Prefix } else { DeviceState::Prompt };
        let scope = if prefix_only { Scope::Prefix } else { Scope::Whole };
        self.send(EngineCommand::Open { prompt, spec: self.spec.clone(), scope }, fx);
    }

    /// Prefills the whole prompt, unless a prompt was already chosen.
    pub(super) fn use_whole_prompt(&mut self, fx: &mut Vec<RelayEffect>) {
        match self.device.state {
            DeviceState::Idle => self.open(false, fx),
            DeviceState::Prefix => {
                let prompt = self.device.new_prompt();
                self.device.state = DeviceState::Prompt;
                let segments = self.spec.segments.clone();
                self.send(EngineCommand::Prefill { prompt, segments, kept: None }, fx);
            }
            _ => {}
        }
    }

    pub(super) fn use_whole_prompt_unless_refined(&mut self, fx: &mut Vec<RelayEffect>) {
        if !self.device.refined {
            self.use_whole_prompt(fx);
        }
    }

    /// Prefills the refined prompt, unless the whole prompt (begun as a hedge) is closer to its end.
    pub(super) fn use_refined_prompt(
        &mut self,
        (refined, kept): (Arc<[Segment]>, Arc<[bool]>),
        prompt_ratio: f64,
        fx: &mut Vec<RelayEffect>,
    ) {
        if self.device.refined {
            return;
        }
        if self.device.state == DeviceState::Idle {
            self.open(true, fx);
        }
        if let (DeviceState::Prompt, Some(whole)) = (&self.device.state, self.device.whole_tokens) {
            let left = self.device.total.saturating_sub(self.device.done) as f64;
            let refined_left = whole as f64 * prompt_ratio - self.device.prefix_tokens as f64;
            if self.device.total > 0 && left <= refined_left {
                return;
            }
        }
        let prompt = self.device.new_prompt();
        self.device.state = DeviceState::Prompt;
        self.device.refined = true;
        self.device.segments = refined.clone();
        self.send(EngineCommand::Prefill { prompt, segments: refined, kept: Some(kept) }, fx);
    }

    /// Requests the verification pass as soon as the cloud's part is complete.
    pub(super) fn maybe_verify(&mut self, fx: &mut Vec<RelayEffect>) {
        let hedge_won = self.cloud.waiting() && self.device.ready && self.device.state == DeviceState::Prompt;
        let due = hedge_won || (self.cloud_complete() && !self.cloud.continuing());
        // Until it is known which prompt is in force, the cloud's part waits.
        let is_open = self.kv.is_taking() || (self.kv.is_fetching() && !self.device.ready);
        if self.ending.is_some() || !self.device_can_take_over() || !due || is_open {
            return;
        }
        self.drop_kv("the prompt was prefilled first", fx);
        if hedge_won {
            self.cloud_too_slow(fx);
        }
        self.use_whole_prompt(fx);
        let accepted = match self.answer.ids() {
            Some(ids) => Accepted::Ids(ids),
            None => Accepted::Text(self.answer.model_text()),
        };
        self.device.state = DeviceState::Verifying;
        if let Some(estimate) = &mut self.device.estimate {
            estimate.set_target(self.device.total + 1 + self.answer.len());
        }
        self.send(EngineCommand::Verify { prompt: self.device.prompt, accepted }, fx);
    }

    pub(super) fn on_report(&mut self, report: EngineReport, now: Millis, fx: &mut Vec<RelayEffect>) {
        if self.ending.is_some() {
            return;
        }
        if report.prompt() != self.device.prompt {
            return self.on_kv_report(&report, now);
        }
        let drafts_prompt = matches!(
            report,
            EngineReport::Prompt { .. } | EngineReport::Progress { .. } | EngineReport::Ready { .. }
        );
        if drafts_prompt && self.device.state == DeviceState::Decoding {
            return;
        }
        match report {
            EngineReport::Opened { tokens, prefix_tokens, .. } => {
                self.device.whole_tokens = Some(tokens);
                self.device.prefix_tokens = prefix_tokens;
                self.timeline.prompt_tokens = Some(tokens);
                if let (Some(hedge), Some(begun)) = (self.cloud.hedge_at, self.begun_at) {
                    let own_ms = self.device.cost.prefill_ms(0.0, tokens as f64);
                    self.cloud.hedge_at = Some(hedge.min(begun + Millis::new(own_ms)));
                }
            }
            EngineReport::Prompt { tokens, cached, shortened, .. } => {
                self.on_prompt(tokens, cached, shortened, now, fx)
            }
            EngineReport::Progress { done, total, .. } => {
                self.device.done = done;
                self.device.total = total;
                self.waiting.refresh();
                if let Some(estimate) = &mut self.device.estimate {
                    estimate.progress(done, now);
                }
                self.device.measure(now);
            }
            EngineReport::Ready { .. } => {
                self.device.ready = true;
                self.drop_kv("the prompt was prefilled first", fx);
                let at_ms = self.since(now).as_f64();
                self.timeline.prompt_ready_ms.get_or_insert(at_ms);
            }
            // Only a prompt that is not in force yet is refused.
            EngineReport::NotTaken { .. } => {}
            EngineReport::Verified { verified, .. } => self.on_verified(verified, now, fx),
            EngineReport::Token { index, id, .. } if self.drafts() => {
                if let Some(id) = self.on_draft(index, id, fx) {
                    self.on_own_token(index, id, None, fx);
                }
            }
            EngineReport::Token { index, id, text, .. } => self.on_own_token(index, id, text, fx),
            EngineReport::Ended { why, .. } if self.drafts() && !self.on_drafts_end(why, fx) => {}
            EngineReport::Ended { why, text, .. } => {
                self.device.state = DeviceState::Over;
                let ending = if why == EngineEnd::EndToken { Ending::Stop } else { Ending::Length };
                self.complete(ending, &text, fx);
            }
            EngineReport::TooLong { tokens, limit, .. } => {
                self.device.too_long = Some((tokens, limit));
                let reason = format!("its context holds {limit} tokens of a prompt, this one has {tokens}");
                self.on_failed(reason, now, fx);
            }
            EngineReport::Failed { reason, .. } => self.on_failed(reason, now, fx),
        }
    }

    fn on_prompt(
        &mut self,
        tokens: usize,
        cached: usize,
        shortened: Option<(usize, usize)>,
        now: Millis,
        fx: &mut Vec<RelayEffect>,
    ) {
        self.device.total = tokens;
        self.device.done = cached;
        self.waiting.refresh();
        self.device.begun = (now, cached);
        if self.device.state == DeviceState::Prefix {
            return;
        }
        let expected =
            if self.cloud.active() { self.cloud.cap.min(self.spec.tokens_max) } else { self.answer.len() };
        let cost = self.device.cost;
        self.device.estimate = Some(TakeoverEstimate::new(cost, now, cached, tokens + expected));
        self.timeline.prompt_tokens_refined = Some(tokens);
        self.timeline.prompt_tokens_cached = Some(cached);
        if let Some((whole, limit)) = shortened {
            let taker = Source::Device;
            fx.push(RelayEffect::Note(Note::PromptShortened { taker, tokens: whole, limit, kept: tokens }));
        }
    }

    fn on_verified(&mut self, verified: Verified, now: Millis, fx: &mut Vec<RelayEffect>) {
        if self.device.state != DeviceState::Verifying {
            return;
        }
        let at_ms = self.since(now).as_f64();
        self.timeline.prompt_ready_ms.get_or_insert(at_ms);
        self.timeline.ttft_device_ms.get_or_insert(at_ms);
        if verified.compared > 0 {
            self.timeline.agreement = Some(verified.agreed as f64 / verified.compared as f64);
        }
        if self.drafts() {
            return self.begin_drafts(verified.agreed, verified.compared, fx);
        }
        let (keep, len) = self.correct(&verified);
        if len < self.answer.len() {
            fx.push(RelayEffect::Note(Note::Corrected { at: len, tokens: self.answer.len() - len }));
            self.answer.truncate(len);
            self.cloud.correct();
        }
        self.device.state = DeviceState::Decoding;
        self.send(EngineCommand::Decode { prompt: self.device.prompt, keep, index: len }, fx);
    }

    /// Decides as the corrector how much of the cloud's part stays. Shown tokens always stay.
    fn correct(&self, verified: &Verified) -> (Keep, usize) {
        let len = self.answer.len();
        let all = (Keep::All, len);
        if self.cloud.corrector == Corrector::Cloud {
            return all;
        }
        let shown = self.display.shown();
        if let Some(ids) = self.answer.ids() {
            let differs = (shown..len).find(|&i| verified.own.get(i).is_some_and(|own| *own != ids[i]));
            return differs.map_or(all, |i| (Keep::Tokens(i), i));
        }
        // With text, the device's boundary must also be a boundary of the cloud's tokens, so that no token is
        // cut in half.
        let differs = verified.differs_at_bytes.iter().find_map(|&bytes| {
            (shown..len).find(|&i| self.answer.model_bytes(i) == bytes).map(|i| (Keep::Bytes(bytes), i))
        });
        differs.unwrap_or(all)
    }

    fn on_own_token(&mut self, index: usize, id: u32, text: Option<String>, fx: &mut Vec<RelayEffect>) {
        if self.device.state != DeviceState::Decoding || index < self.answer.len() {
            return;
        }
        if index > self.answer.len() {
            let reason = format!("engine wrote token {index}, the answer has {}", self.answer.len());
            return self.fail(AnswerError::Device { reason }, fx);
        }
        let piece = match text {
            Some(text) => Piece::Text(text),
            None => Piece::Id(id),
        };
        self.answer.push(piece, Source::Device);
        if self.answer.stopped() {
            self.complete(Ending::Stop, "", fx);
        } else if self.answer.len() >= self.spec.tokens_max {
            self.complete(Ending::Length, "", fx);
        }
    }

    /// Handles the end of the engine's thread.
    pub(super) fn engine_lost(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        if self.ending.is_none() && self.device.usable() && self.device.state != DeviceState::Over {
            self.on_failed("the engine has ended".into(), now, fx);
        }
    }

    /// Handles a failure of the device: the cloud goes on alone, or is asked to go on, or the answer fails.
    fn on_failed(&mut self, reason: String, now: Millis, fx: &mut Vec<RelayEffect>) {
        // Commands sent before the first failure was known fail too.
        if !self.device.usable() {
            return;
        }
        self.device.state = DeviceState::Failed(reason.clone());
        if !self.cloud_complete() {
            return;
        }
        if self.cloud.active() {
            self.cloud.close();
            fx.push(RelayEffect::CancelCloud);
        }
        self.cloud_goes_on(reason, now, fx);
    }
}
