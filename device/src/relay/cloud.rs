//! The cloud's side of the relay: its events, its faults, and when its part is complete.

use super::bursts::Bursts;
use super::inbox::Inbox;
use super::note::{AnswerError, CloudFault, Note};
use super::outcome::{CloudMark, CloudTiming, Ending};
use super::transcript::Piece;
use super::{RelayCore, RelayEffect, RelayMode, Source, believed_tau_ms};
use crate::local::EngineCommand;
use baton_generate::planted::{self, Bug};
use baton_pacing::Millis;
use baton_protocol::{
    AssistEvent, Corrector, EndEvent, EndReason, ErrorCode, ErrorDetail, FirstEvent, MaskEvent,
    PROTOCOL_VERSION, TokenEvent,
};
use std::sync::Arc;

/// A cloud counts as silent after this many of its usual intervals, within the two limits below.
const SILENCE_INTERVALS: f64 = 4.0;
const SILENCE_MS_MIN: f64 = 60.0;
const SILENCE_MS_MAX: f64 = 2_000.0;
/// Longest pause that a cloud may ask for.
const RETRY_AFTER_MS_MAX: u64 = 3_600_000;
/// Most characters of a cloud's message that are kept.
const MESSAGE_CHARS_MAX: usize = 400;
/// Most characters that are kept of the word for what limits L.
const BOUND_CHARS_MAX: usize = 64;
/// Most characters that are kept of a name that a cloud tells.
const NAME_CHARS_MAX: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloudState {
    /// Not asked yet.
    Off,
    /// Asked; no token yet.
    Waiting,
    /// The first token has come.
    Streaming,
    /// Ended, lost or cancelled.
    Over,
}

#[derive(Debug)]
pub(super) struct CloudSide {
    state: CloudState,
    inbox: Inbox,
    /// Most tokens that the cloud writes in the current stream.
    pub(super) cap: usize,
    /// Number of answer tokens before this stream: 0, or the number accepted when the cloud was asked to go
    /// on.
    offset: usize,
    /// The fault that makes it useless to ask again for this answer, if there was one.
    refuses: Option<CloudFault>,
    continuing: bool,
    /// All its tokens had come when the device dropped some of them.
    corrected: bool,
    /// Token ids mean the same on both sides, because the tokenizer digests are equal.
    pub(super) ids_usable: bool,
    pub(super) corrector: Corrector,
    /// Time of the last sign of life: a further token of the answer, or progress with the prompt.
    pub(super) last_at: Millis,
    /// The rhythm of its tokens.
    bursts: Bursts,
    pub(super) hedge_at: Option<Millis>,
    disorder_noted: bool,
    mask_noted: bool,
}

impl CloudSide {
    pub(super) fn new(tokens_max: usize, corrector: Corrector) -> Self {
        Self {
            state: CloudState::Off,
            inbox: Inbox::default(),
            cap: tokens_max,
            offset: 0,
            refuses: None,
            continuing: false,
            corrected: false,
            ids_usable: false,
            corrector,
            last_at: Millis::ZERO,
            bursts: Bursts::default(),
            hedge_at: None,
            disorder_noted: false,
            mask_noted: false,
        }
    }

    pub(super) fn asked(&mut self, now: Millis) {
        self.state = CloudState::Waiting;
        self.last_at = now;
        self.bursts.begin();
    }

    pub(super) fn waiting(&self) -> bool {
        self.state == CloudState::Waiting
    }

    pub(super) fn streaming(&self) -> bool {
        self.state == CloudState::Streaming
    }

    /// Returns whether a stream is open.
    pub(super) fn active(&self) -> bool {
        matches!(self.state, CloudState::Waiting | CloudState::Streaming)
    }

    pub(super) fn close(&mut self) {
        self.state = CloudState::Over;
    }

    /// Notes that the device drops some of the cloud's tokens; a complete part stays complete.
    pub(super) fn correct(&mut self) {
        self.corrected = self.active();
    }

    /// Returns whether all tokens of the current stream have come; `len` is the length of the answer.
    fn all_there(&self, len: usize) -> bool {
        self.streaming() && (self.corrected || len - self.offset >= self.cap)
    }

    pub(super) fn continuing(&self) -> bool {
        self.continuing
    }

    /// Returns how long a pause may be before the cloud counts as silent. `own_ms` is the time of one token
    /// on this device: a cloud that sends slowly must not delay a faster device.
    pub(super) fn silence_ms(&self, own_ms: f64) -> f64 {
        (SILENCE_INTERVALS * self.bursts.gap_ms(own_ms)).clamp(SILENCE_MS_MIN, SILENCE_MS_MAX)
    }

    /// Returns when its last token is expected, if `have` of its tokens have come.
    pub(super) fn expected_end(&self, have: usize) -> Millis {
        self.last_at + Millis::new(self.cap.saturating_sub(have) as f64 * self.bursts.interval_ms())
    }

    /// Notes that `tokens` further tokens of the answer came. An event without a new token is not a sign of
    /// life.
    fn heard(&mut self, tokens: usize, now: Millis) {
        if tokens == 0 {
            return;
        }
        if self.state == CloudState::Streaming {
            self.bursts.heard(tokens, now);
        }
        self.last_at = now;
    }
}

/// Returns what a cloud answers with, as its first event says.
fn told(first: &FirstEvent) -> CloudMark {
    let short = |text: &Option<String>| {
        let text = text.as_deref()?;
        Some(text.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect())
    };
    CloudMark {
        scene_version: first.scene_version,
        model: short(&first.model),
        adapter: short(&first.adapter),
        tokenizer_sha256: short(&first.tokenizer_sha256),
    }
}

/// Returns the fault that an `error` event or body means.
pub(crate) fn fault_of(status: u16, error: &ErrorDetail) -> CloudFault {
    let message = || error.message.chars().take(MESSAGE_CHARS_MAX).collect::<String>();
    match (status, error.code) {
        (401 | 403, _) | (_, ErrorCode::Unauthorized | ErrorCode::Forbidden) => CloudFault::SignIn { status },
        (429 | 503, _) | (_, ErrorCode::Overloaded | ErrorCode::Unavailable) => {
            let retry_after_ms = error.retry_after_ms.map(|ms| ms.min(RETRY_AFTER_MS_MAX));
            CloudFault::Overloaded { status, reason: message(), retry_after_ms }
        }
        (_, code) => {
            let message = message();
            CloudFault::Refused { status, code: code.to_string(), message }
        }
    }
}

impl RelayCore {
    pub(super) fn on_cloud(&mut self, event: AssistEvent, now: Millis, fx: &mut Vec<RelayEffect>) {
        if !self.cloud.active() {
            return;
        }
        if self.ending.is_some() {
            if let AssistEvent::End(end) = &event {
                self.read_costs(end);
                self.cloud.close();
            }
            return;
        }
        match event {
            AssistEvent::Progress(progress) => self.on_progress(progress, now),
            AssistEvent::Mask(mask) => self.on_mask(&mask, fx),
            AssistEvent::First(first) => self.on_first(*first, now, fx),
            AssistEvent::Token(token) if self.cloud.streaming() => self.on_token(token, now, fx),
            AssistEvent::Token(_) => {
                self.cloud.inbox.disorder_at.get_or_insert(0);
                self.note_disorder(fx);
            }
            AssistEvent::End(end) => self.on_end(&end, now, fx),
            AssistEvent::Error(error) => {
                fx.push(RelayEffect::CancelCloud);
                self.cloud_lost(fault_of(0, &error.error), now, fx);
            }
        }
    }

    fn on_mask(&mut self, mask: &MaskEvent, fx: &mut Vec<RelayEffect>) {
        if self.config.mode != RelayMode::Relay || self.cloud.continuing || !self.device_can_take_over() {
            return;
        }
        if !self.config.refine {
            return self.note_mask("the scene forbids refinement".into(), fx);
        }
        match mask.open(&self.map) {
            Ok(kept) => {
                self.timeline.mask_bytes = Some(mask.mask_bytes());
                self.timeline.refined_ratio = Some(f64::from(mask.ratio));
                self.timeline.prompt_ratio = Some(f64::from(mask.prompt_ratio));
                let refined = baton_refine::rebuild(&self.spec.segments, &self.map, &kept);
                let refined = (Arc::from(refined), Arc::from(kept));
                self.use_refined_prompt(refined, f64::from(mask.prompt_ratio), fx);
            }
            Err(err) => {
                self.note_mask(err.to_string(), fx);
                self.use_whole_prompt(fx);
            }
        }
    }

    fn on_first(&mut self, first: FirstEvent, now: Millis, fx: &mut Vec<RelayEffect>) {
        if !self.cloud.waiting() {
            self.cloud.inbox.disorder_at.get_or_insert(0);
            return self.note_disorder(fx);
        }
        if first.protocol != PROTOCOL_VERSION {
            fx.push(RelayEffect::CancelCloud);
            let fault = CloudFault::Version { ours: PROTOCOL_VERSION, theirs: first.protocol };
            return self.cloud_lost(fault, now, fx);
        }
        self.cloud.last_at = now;
        self.cloud.state = CloudState::Streaming;
        self.cloud.hedge_at = None;
        self.waiting.forget_cloud();
        let left = self.spec.tokens_max - self.cloud.offset;
        self.cloud.cap = usize::try_from(first.assist_tokens).unwrap_or(left).clamp(1, left.max(1));
        // The mask may have come before, so that the device has begun without knowing L.
        self.device.expect(self.cloud.cap.min(self.spec.tokens_max));
        // Ids are used only after ids: after text it is not known which ids that text would have.
        let same_ids = first.tokenizer_sha256.as_deref() == Some(self.answer.tokenizer().digest_hex());
        self.cloud.ids_usable = same_ids && self.answer.ids().is_some();
        self.timeline.cloud.get_or_insert_with(|| told(&first));
        if !self.cloud.continuing {
            self.cloud.corrector = self.config.corrector_override.unwrap_or(first.corrector);
            self.timeline.tau_ms = believed_tau_ms(f64::from(first.tau_ms));
            self.timeline.ttft_cloud_ms = Some(self.since(now).as_f64());
            self.timeline.assist_tokens = Some(self.cloud.cap);
            let bound_by = first.assist_bound_by.chars().filter(|c| !c.is_control());
            self.timeline.assist_bound_by = Some(bound_by.take(BOUND_CHARS_MAX).collect());
            self.timeline.cloud_timing = Some(CloudTiming { first: first.timing, slot: None });
            self.offered(&first);
            self.timeline.experiment = first.experiment;
            if self.config.mode == RelayMode::Relay {
                self.use_whole_prompt_unless_refined(fx);
                self.consider_kv(first.kv, now, fx);
            }
        }
        if self.cloud.continuing {
            self.cloud.inbox = Inbox::starting_at(first.index);
        }
        self.on_token(TokenEvent { index: first.index, id: first.id, text: first.text }, now, fx);
    }

    fn on_token(&mut self, token: TokenEvent, now: Millis, fx: &mut Vec<RelayEffect>) {
        let ready = self.cloud.inbox.push(token, self.cloud.cap);
        self.note_disorder(fx);
        self.cloud.heard(ready.len(), now);
        for token in ready {
            if let Err(fault) = self.accept(token, fx) {
                fx.push(RelayEffect::CancelCloud);
                return self.cloud_lost(fault, now, fx);
            }
            if self.ending.is_some() {
                return;
            }
        }
        if self.answer.len() >= self.spec.tokens_max {
            self.complete(Ending::Length, "", fx);
        }
    }

    fn accept(&mut self, token: TokenEvent, fx: &mut Vec<RelayEffect>) -> Result<(), CloudFault> {
        let piece = if self.cloud.ids_usable {
            let tokenizer = self.answer.tokenizer();
            if token.id as usize >= tokenizer.vocab_len() {
                let reason = format!("token id {}, the vocabulary has {}", token.id, tokenizer.vocab_len());
                return Err(CloudFault::Malformed { reason });
            }
            if tokenizer.is_end(token.id) {
                self.check_end()?;
                self.complete(Ending::Stop, "", fx);
                return Ok(());
            }
            Piece::Id(token.id)
        } else {
            Piece::Text(token.text)
        };
        self.check_form(&piece)?;
        self.answer.push(piece, Source::Cloud);
        if self.answer.stopped() {
            self.complete(Ending::Stop, "", fx);
        }
        Ok(())
    }

    /// Checks that the answer still has its form with one more piece.
    fn check_form(&mut self, piece: &Piece) -> Result<(), CloudFault> {
        let Some(guard) = self.guard.as_mut().filter(|_| !self.cloud.continuing) else { return Ok(()) };
        let answer = match (piece, self.answer.ids()) {
            (Piece::Id(id), Some(ids)) => [ids, vec![*id]].concat(),
            (Piece::Id(_), None) => return Ok(()),
            (Piece::Text(text), _) => {
                self.answer.tokenizer().encode_answer(&(self.answer.model_text() + text)).0
            }
        };
        if guard.takes(&answer) { Ok(()) } else { Err(CloudFault::Form { at: self.answer.len() }) }
    }

    /// Checks that an answer of its form may end here.
    fn check_end(&mut self) -> Result<(), CloudFault> {
        let Some(guard) = self.guard.as_mut().filter(|_| !self.cloud.continuing) else { return Ok(()) };
        if guard.may_end(self.answer.tokenizer()) {
            Ok(())
        } else {
            Err(CloudFault::Form { at: self.answer.len() })
        }
    }

    /// Stores the costs that the cloud reports.
    fn read_costs(&mut self, end: &EndEvent) {
        self.timeline.cloud_usage = Some(end.usage);
        if let Some(timing) = &mut self.timeline.cloud_timing {
            timing.slot = end.timing;
        }
    }

    fn on_end(&mut self, end: &EndEvent, now: Millis, fx: &mut Vec<RelayEffect>) {
        self.read_costs(end);
        if end.reason == EndReason::Cancelled {
            return self.cloud_lost(CloudFault::Cancelled, now, fx);
        }
        if self.cloud.corrected {
            // All its tokens had come, and its end belongs to the part that the device dropped.
            self.cloud.close();
            return self.cloud_part_over(false, now, fx);
        }
        if let (EndReason::Stop, Err(fault)) = (end.reason, self.check_end()) {
            return self.cloud_lost(fault, now, fx);
        }
        let got = self.answer.len() - self.cloud.offset;
        let said = end.usage.completion_tokens as usize;
        let hole = got < said.min(self.cloud.cap) && !planted::is(Bug::HoleIgnored);
        self.cloud.close();
        if end.reason == EndReason::Stop && !hole {
            return self.complete(Ending::Stop, "", fx);
        }
        if hole || got < self.cloud.cap {
            fx.push(RelayEffect::Note(Note::TokenCount { want: said.max(self.cloud.cap), got }));
        }
        self.cloud_part_over(hole, now, fx);
    }

    /// Handles a cloud that was lost, usually before its part was complete.
    pub(super) fn cloud_lost(&mut self, fault: CloudFault, now: Millis, fx: &mut Vec<RelayEffect>) {
        if !self.cloud.active() || self.ending.is_some() {
            self.cloud.close();
            return;
        }
        let broke_off = self.cloud.streaming();
        let all_there = self.cloud.all_there(self.answer.len());
        self.cloud.close();
        if all_there {
            return self.cloud_part_over(false, now, fx);
        }
        self.not_checked();
        if self.device_can_take_over() {
            self.cloud.refuses = fault.is_final().then(|| fault.clone());
            return fx.push(RelayEffect::Note(Note::WithoutCloud { fault, at: self.answer.len() }));
        }
        match self.device.failure() {
            None => self.fail(AnswerError::Cloud(fault), fx),
            // The cloud answered a moment ago, so only that stream was lost.
            Some(reason) if broke_off && !self.cloud.continuing && !fault.is_final() => {
                self.continue_in_cloud(reason, now, fx);
            }
            Some(reason) => self.fail(AnswerError::DeviceAndCloud { reason, fault }, fx),
        }
    }

    /// Handles the end of the cloud's part; `hole`: some of its tokens are missing. If the device cannot go
    /// on, the cloud is asked to.
    fn cloud_part_over(&mut self, hole: bool, now: Millis, fx: &mut Vec<RelayEffect>) {
        if self.device_can_take_over() || self.device.writing() {
            return;
        }
        match self.device.failure() {
            Some(reason) if !self.cloud.continuing => self.cloud_goes_on(reason, now, fx),
            failure if hole => {
                let fault = CloudFault::Malformed { reason: "tokens in its middle are missing".into() };
                let error = match failure {
                    Some(reason) => AnswerError::DeviceAndCloud { reason, fault },
                    None => AnswerError::Cloud(fault),
                };
                self.fail(error, fx);
            }
            _ => self.complete(Ending::Length, "", fx),
        }
    }

    /// Lets the cloud go on, because the device cannot: draft by draft if it verifies the answer, so that the
    /// text stays the cloud's own.
    pub(super) fn cloud_goes_on(&mut self, reason: String, now: Millis, fx: &mut Vec<RelayEffect>) {
        if !self.writes_by_checks(&reason, fx) {
            self.continue_in_cloud(reason, now, fx);
        }
    }

    /// Asks the cloud once to go on after the accepted text; `reason` says why the device cannot.
    pub(super) fn continue_in_cloud(&mut self, reason: String, now: Millis, fx: &mut Vec<RelayEffect>) {
        if !self.config.may_continue || self.config.mode == RelayMode::DeviceOnly {
            return self.fail(AnswerError::Device { reason }, fx);
        }
        if let Some(fault) = self.cloud.refuses.clone() {
            return self.fail(AnswerError::DeviceAndCloud { reason, fault }, fx);
        }
        // An incomplete character is not part of the text after which the cloud goes on.
        self.answer.drop_incomplete();
        let offset = self.answer.len();
        self.cloud.inbox = Inbox::default();
        self.cloud.offset = offset;
        (self.cloud.continuing, self.cloud.corrected) = (true, false);
        self.cloud.hedge_at = None;
        self.cloud.cap = self.spec.tokens_max - offset;
        self.cloud.asked(now);
        self.waiting.forget_cloud();
        fx.push(RelayEffect::Note(Note::CloudContinues { at: offset, reason }));
        fx.push(RelayEffect::AskToContinue {
            accepted: self.answer.model_text(),
            tokens_max: self.spec.tokens_max - offset,
        });
    }

    /// Returns whether the cloud's part is complete: all its tokens have come, or no more will come.
    pub(super) fn cloud_complete(&self) -> bool {
        !self.cloud.active() || self.cloud.all_there(self.answer.len())
    }

    fn note_mask(&mut self, reason: String, fx: &mut Vec<RelayEffect>) {
        if !std::mem::replace(&mut self.cloud.mask_noted, true) {
            fx.push(RelayEffect::Note(Note::MaskIgnored { reason }));
        }
    }

    fn note_disorder(&mut self, fx: &mut Vec<RelayEffect>) {
        if let Some(at) = self.cloud.inbox.disorder_at
            && !self.cloud.disorder_noted
        {
            self.cloud.disorder_noted = true;
            fx.push(RelayEffect::Note(Note::Disorder { at }));
        }
    }

    /// Cancels the cloud, because the device had its first token earlier.
    pub(super) fn cloud_too_slow(&mut self, fx: &mut Vec<RelayEffect>) {
        self.cloud.close();
        fx.push(RelayEffect::CancelCloud);
        fx.push(RelayEffect::Note(Note::CloudTooSlow));
    }

    pub(super) fn send(&self, command: EngineCommand, fx: &mut Vec<RelayEffect>) {
        fx.push(RelayEffect::Engine(command));
    }
}
