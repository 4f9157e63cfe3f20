//! Verification: the device drafts the rest of the answer, and the cloud checks the drafts.
//!
//! `shown <= verified <= drafted`: the answer holds verified tokens only, drafts wait behind it. One request
//! is in flight at a time, while the device drafts on. A rejected draft is dropped, with all that was
//! drafted behind it, and the device goes on behind the cloud's token.
//!
//! If the device fails, the cloud writes the rest in its replies.
//!
//! Always: as long as the line holds, each token of the answer is the one that the cloud alone would have
//! written. Without it, the answer goes on unverified, and it is known from which token on.

use super::note::{CloudFault, Note};
use super::outcome::{Ending, Verification};
use super::transcript::Piece;
use super::{RelayCore, RelayEffect, RelayMode, Source};
use crate::local::{EngineCommand, EngineEnd};
use crate::relay::device::DeviceState;
use baton_engine::tokenizer::TokenId;
use baton_generate::planted::{self, Bug};
use baton_pacing::verify::{Acceptance, Buffer, PassCosts, draft_tokens};
use baton_pacing::{Millis, PaceMode};
use baton_protocol::{
    AT_LEAST_MAX, DRAFT_TOKENS_MAX, FirstEvent, VerifyOffer, VerifyPolicy, VerifyReply, VerifyRequest,
    answer_digest,
};

/// The device drafts at most this many times the longest draft ahead.
const DRAFTS_AHEAD: usize = 2;
/// The round trip before one is measured, in milliseconds, if the network is not known.
const TRIP_MS: f64 = 100.0;
/// Share of a new round trip in the estimate.
const TRIP_WEIGHT: f64 = 0.3;
/// A line is lost after this many of its usual round trips without a reply, within the two limits below.
const LOST_TRIPS: f64 = 4.0;
const LOST_MS_MIN: f64 = 1_000.0;
const LOST_MS_MAX: f64 = 5_000.0;
/// The same limit if nothing unverified may be shown.
const LOST_STRICT_MS: f64 = 20_000.0;
/// How long to wait before a request is sent again, in milliseconds.
const AGAIN_MS: f64 = 100.0;
/// Planned gaps are this share of tau, so that what is verified early is a buffer.
const SPACE: f64 = 0.9;

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    drafted: usize,
    /// Tokens that the cloud was asked for, those of the draft included.
    at_least: u32,
    sent_at: Millis,
}

/// What is known of the drafts of one answer.
#[derive(Debug)]
pub(super) struct Verifier {
    offer: VerifyOffer,
    is_strict: bool,
    /// Drafted tokens behind the answer.
    drafts: Vec<TokenId>,
    /// Why the engine wrote no further draft.
    drafts_end: Option<EngineEnd>,
    /// Index behind the last token that the engine has written, or was told to write behind.
    engine_at: usize,
    in_flight: Option<InFlight>,
    /// When to send again after a fault.
    again_at: Option<Millis>,
    /// When the first request was sent that has no reply.
    silent_since: Option<Millis>,
    acceptance: Acceptance,
    trip_ms: f64,
    is_over: bool,
    /// Whether the device writes no more, so that the cloud writes the rest in its replies.
    is_alone: bool,
    figures: Verification,
}

impl Verifier {
    fn new(offer: VerifyOffer, policy: VerifyPolicy, trip_ms: Option<f64>) -> Verifier {
        let trip_ms = trip_ms.filter(|ms| ms.is_finite() && *ms > 0.0).unwrap_or(TRIP_MS);
        Verifier {
            offer,
            is_strict: policy == VerifyPolicy::Strict,
            drafts: Vec::new(),
            drafts_end: None,
            engine_at: 0,
            in_flight: None,
            again_at: None,
            silent_since: None,
            acceptance: Acceptance::default(),
            trip_ms: trip_ms + offer.pass_ms,
            is_over: false,
            is_alone: false,
            figures: Verification::default(),
        }
    }

    /// Returns the length of the next draft.
    fn draft_tokens(&self) -> usize {
        let costs = PassCosts { pass_ms: self.offer.pass_ms, row_ms: self.offer.row_ms };
        let most = (self.offer.draft_max as usize).clamp(1, DRAFT_TOKENS_MAX);
        draft_tokens(self.acceptance.share(), costs, most)
    }

    fn drafts_ahead(&self) -> usize {
        DRAFTS_AHEAD * (self.offer.draft_max as usize).clamp(1, DRAFT_TOKENS_MAX)
    }

    /// Returns whether the engine writes, or has written, all that it can behind the drafts.
    fn is_at_end(&self) -> bool {
        matches!(self.drafts_end, Some(EngineEnd::EndToken | EngineEnd::ContextFull))
    }

    /// Returns how long the line may be silent.
    fn patience_ms(&self, buffer_ms: f64) -> f64 {
        if self.is_strict {
            return LOST_STRICT_MS;
        }
        // Tokens that the cloud was asked to write take it a pass each.
        let writing_ms =
            self.in_flight.as_ref().map_or(0.0, |sent| f64::from(sent.at_least) * self.offer.pass_ms);
        (LOST_TRIPS * self.trip_ms + writing_ms).clamp(LOST_MS_MIN, LOST_MS_MAX).max(buffer_ms)
    }
}

impl RelayCore {
    /// Begins to verify, if the cloud offers it and this answer can be.
    pub(super) fn offered(&mut self, first: &FirstEvent) {
        let policy = self.config.verify;
        let Some(offer) = first.verify.filter(|_| policy != VerifyPolicy::Off) else { return };
        let is_possible = self.config.mode == RelayMode::Relay && !self.cloud.continuing();
        if is_possible && self.cloud.ids_usable && self.guard.is_none() && self.verifier.is_none() {
            let timing = first.timing;
            let own_ms = timing.queue_ms + timing.prefill_ms + timing.refine_ms;
            let trip_ms = self.timeline.ttft_cloud_ms.map(|ms| ms - own_ms);
            self.verifier = Some(Verifier::new(offer, policy, trip_ms));
        }
    }

    /// Returns the verifier, as long as the line holds.
    fn verifying(&self) -> Option<&Verifier> {
        self.verifier.as_ref().filter(|verifier| !verifier.is_over)
    }

    /// Returns whether drafts of this answer are checked now.
    pub(super) fn verifies(&self) -> bool {
        self.verifying().is_some()
    }

    /// Returns whether drafts of this answer are checked, or were until the line was lost.
    pub(super) fn drafts(&self) -> bool {
        self.verifier.is_some()
    }

    /// Returns the planned gap, if verified tokens are a buffer: also for the rest, when all are verified.
    pub(super) fn space_ms(&self) -> Option<f64> {
        let verifier = self.verifier.as_ref().filter(|checks| checks.figures.unverified_from.is_none());
        verifier.map(|_| SPACE * self.timeline.tau_ms)
    }

    /// Returns the time that the first draft and its check take behind the takeover, in milliseconds.
    pub(super) fn first_check_ms(&self) -> f64 {
        self.verifying().map_or(0.0, |verifier| {
            verifier.trip_ms + verifier.draft_tokens() as f64 * self.config.cost.decode_ms
        })
    }

    /// Learns from the device's own choices at the cloud's tokens, and begins to draft.
    pub(super) fn begin_drafts(&mut self, agreed: usize, compared: usize, fx: &mut Vec<RelayEffect>) {
        if let Some(verifier) = &mut self.verifier {
            verifier.acceptance.observe_all(agreed, compared);
        }
        self.device.state = DeviceState::Decoding;
        self.draft(fx);
    }

    /// Tells the engine to write on behind the answer and its drafts.
    fn draft(&mut self, fx: &mut Vec<RelayEffect>) {
        if self.device.state != DeviceState::Decoding {
            return;
        }
        let (Some(verifier), Some(mut answer)) = (&mut self.verifier, self.answer.ids()) else { return };
        answer.extend_from_slice(&verifier.drafts);
        let left = self.spec.tokens_max.saturating_sub(answer.len());
        let ahead = verifier.drafts_ahead().saturating_sub(verifier.drafts.len());
        let tokens_max = if verifier.is_over { left } else { left.min(ahead) };
        if tokens_max == 0 {
            return;
        }
        verifier.drafts_end = None;
        verifier.engine_at = answer.len();
        let prompt = self.device.another_job();
        self.send(EngineCommand::Draft { prompt, answer, tokens_max }, fx);
    }

    /// Takes a token of the engine; returns it if nobody checks it any more.
    pub(super) fn on_draft(
        &mut self,
        index: usize,
        id: TokenId,
        fx: &mut Vec<RelayEffect>,
    ) -> Option<TokenId> {
        let verifier = self.verifier.as_mut()?;
        verifier.engine_at = index + 1;
        if verifier.is_over {
            return Some(id);
        }
        let verified = self.answer.len();
        if index < verified {
            // The cloud was faster: the draft is right, or the device goes on behind the answer.
            let same = self.answer.ids().is_some_and(|ids| ids[index] == id);
            if !same {
                verifier.drafts.clear();
                self.draft(fx);
            }
        } else if index == verified + verifier.drafts.len() {
            verifier.drafts.push(id);
        }
        None
    }

    /// Takes the end of what the engine writes; returns whether that is the end of the answer.
    pub(super) fn on_drafts_end(&mut self, why: EngineEnd, fx: &mut Vec<RelayEffect>) -> bool {
        let Some(verifier) = &mut self.verifier else { return true };
        verifier.drafts_end = Some(why);
        let is_over = verifier.is_over;
        let goes_on = why == EngineEnd::TokensMax && self.answer.len() < self.spec.tokens_max;
        if (is_over && goes_on) || self.is_passed() {
            self.draft(fx);
        }
        is_over && !goes_on
    }

    /// Returns whether the engine has ended the answer at a place where the cloud goes on.
    fn is_passed(&self) -> bool {
        self.verifier.as_ref().is_some_and(|verifier| {
            verifier.drafts_end == Some(EngineEnd::EndToken) && verifier.engine_at < self.answer.len()
        })
    }

    /// Sends what is due, lets the engine draft on, and gives a silent line up.
    pub(super) fn check_drafts(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        if self.ending.is_some() || self.verifying().is_none() || self.cloud.active() {
            return;
        }
        if self.lost_at().is_some_and(|at| now >= at) {
            let since = self.verifying().and_then(|verifier| verifier.silent_since).unwrap_or(now);
            let waited_ms = (now - since).as_f64() as u64;
            return self.release(CloudFault::Silent { waited_ms }, now, fx);
        }
        self.draft_on(fx);
        self.send_draft(now, fx);
    }

    /// Lets the engine write more drafts, if it has written half of what it may.
    fn draft_on(&mut self, fx: &mut Vec<RelayEffect>) {
        let Some(verifier) = self.verifying() else { return };
        let few = verifier.drafts.len() <= verifier.drafts_ahead() / 2;
        if few && verifier.drafts_end == Some(EngineEnd::TokensMax) {
            self.draft(fx);
        }
    }

    /// Sends a draft if it is long enough, or if the buffer runs low.
    fn send_draft(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        let buffer = self.buffer(now);
        let left = self.spec.tokens_max - self.answer.len();
        let paced = self.config.pace == PaceMode::Paced;
        let (Some(verifier), Some(ids)) = (&mut self.verifier, self.answer.ids()) else { return };
        let is_early = verifier.again_at.is_some_and(|at| now < at);
        if verifier.in_flight.is_some() || is_early || left == 0 {
            return;
        }
        // The reply brings one more token in any case.
        let wanted = verifier.draft_tokens().min(left - 1);
        let is_full = verifier.drafts.len() >= wanted || verifier.is_at_end() || verifier.is_alone;
        let is_due = is_full || (paced && buffer.is_urgent());
        if !is_due {
            return;
        }
        let draft = verifier.drafts[..verifier.drafts.len().min(wanted)].to_vec();
        let least = match verifier.is_alone {
            true => left,
            false if paced => buffer.least_tokens(),
            false => 1,
        };
        let at_least = u32::try_from(least.clamp(1, left)).unwrap_or(AT_LEAST_MAX).min(AT_LEAST_MAX);
        verifier.in_flight = Some(InFlight { drafted: draft.len(), at_least, sent_at: now });
        verifier.again_at = None;
        verifier.silent_since.get_or_insert(now);
        verifier.figures.requests += 1;
        let from = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let digest = answer_digest(ids);
        fx.push(RelayEffect::Check(VerifyRequest { from, digest, draft, at_least }));
    }

    /// Returns how far the reader is from the end of what is verified.
    fn buffer(&self, now: Millis) -> Buffer {
        let tau_ms = self.timeline.tau_ms;
        let unshown = self.answer.len().saturating_sub(self.display.shown()) as f64;
        let since_ms = (now - self.display.last_at()).as_f64().min(tau_ms);
        let (trip_ms, tokens) =
            self.verifying().map_or((TRIP_MS, 1), |verifier| (verifier.trip_ms, verifier.draft_tokens()));
        let draft_ms = tokens as f64 * self.config.cost.decode_ms;
        Buffer { left_ms: (unshown + 1.0) * SPACE * tau_ms - since_ms, tau_ms, trip_ms, draft_ms }
    }

    /// Returns when a line without a reply is given up.
    fn lost_at(&self) -> Option<Millis> {
        let verifier = self.verifying()?;
        let since = verifier.silent_since?;
        let buffer_ms = self.answer.len().saturating_sub(self.display.shown()) as f64 * self.timeline.tau_ms;
        Some(since + Millis::new(verifier.patience_ms(buffer_ms)))
    }

    /// Returns when the next draft may be due although nothing happens.
    pub(super) fn check_at(&self, now: Millis) -> Option<Millis> {
        let verifier = self.verifying().filter(|_| self.ending.is_none() && !self.cloud.active())?;
        if verifier.in_flight.is_some() {
            return self.lost_at();
        }
        let slack_ms = self.buffer(now).slack_ms().max(1.0);
        let waits = verifier.again_at.is_some() || self.config.pace != PaceMode::Paced;
        let urgent_at = (!waits).then(|| now + Millis::new(slack_ms));
        [verifier.again_at, urgent_at, self.lost_at()].into_iter().flatten().reduce(Millis::min)
    }

    /// Takes the reply to a request, or what went wrong with it.
    pub(super) fn on_checked(
        &mut self,
        checked: Result<VerifyReply, CloudFault>,
        now: Millis,
        fx: &mut Vec<RelayEffect>,
    ) {
        if self.ending.is_some() || self.verifying().is_none() {
            return;
        }
        let Some(verifier) = &mut self.verifier else { return };
        let Some(InFlight { drafted, sent_at, .. }) = verifier.in_flight.take() else { return };
        let reply = match checked {
            Ok(reply) => reply,
            Err(fault) if is_passing(&fault) => {
                let wait_ms = match &fault {
                    CloudFault::Overloaded { retry_after_ms: Some(ms), .. } => *ms as f64,
                    _ => AGAIN_MS,
                };
                verifier.again_at = Some(now + Millis::new(wait_ms.clamp(1.0, LOST_MS_MAX)));
                return;
            }
            Err(fault) => return self.release(fault, now, fx),
        };
        let before = self.answer.ids().unwrap_or_default();
        if let Err(reason) = reply.check(&before, &verifier.drafts[..drafted.min(verifier.drafts.len())]) {
            return self.release(CloudFault::Malformed { reason: reason.to_owned() }, now, fx);
        }
        let trip_ms = (now - sent_at).as_f64();
        verifier.trip_ms += TRIP_WEIGHT * (trip_ms - verifier.trip_ms);
        verifier.silent_since = None;
        verifier.acceptance.observe(reply.accepted as usize, drafted);
        verifier.figures.took(&reply, drafted);
        self.take_reply(&reply, fx);
    }

    /// Adds what the cloud has verified and written to the answer.
    fn take_reply(&mut self, reply: &VerifyReply, fx: &mut Vec<RelayEffect>) {
        let Some(verifier) = &mut self.verifier else { return };
        let rejected = usize::from(planted::is(Bug::RejectedShown));
        let shown = (reply.accepted as usize + rejected).min(verifier.drafts.len());
        let mut accepted = verifier.drafts.drain(..shown).collect::<Vec<_>>();
        // The cloud may know more tokens than were asked for.
        let left = self.spec.tokens_max.saturating_sub(self.answer.len());
        accepted.truncate(left);
        let next = &reply.next[..reply.next.len().min(left - accepted.len())];
        let mut drafts = std::mem::take(&mut verifier.drafts).into_iter();
        let mut differs = false;
        for id in accepted {
            self.answer.push(Piece::Id(id), Source::Device);
        }
        for &id in next {
            let drafted = if differs { None } else { drafts.next() };
            differs |= drafted.is_some_and(|drafted| drafted != id);
            let source = if drafted == Some(id) { Source::Device } else { Source::Cloud };
            self.answer.push(Piece::Id(id), source);
        }
        if self.answer.stopped() {
            return self.complete(Ending::Stop, "", fx);
        }
        if self.answer.len() >= self.spec.tokens_max {
            return self.complete(Ending::Length, "", fx);
        }
        if reply.ended {
            return self.complete(Ending::Stop, "", fx);
        }
        let Some(verifier) = &mut self.verifier else { return };
        if differs {
            verifier.figures.rejected += 1;
        } else {
            verifier.drafts = drafts.collect();
        }
        if differs || self.is_passed() {
            self.draft(fx);
        }
    }

    /// Goes on without verification.
    fn release(&mut self, fault: CloudFault, now: Millis, fx: &mut Vec<RelayEffect>) {
        let at = self.answer.len();
        let Some(verifier) = &mut self.verifier else { return };
        verifier.is_over = true;
        verifier.figures.unverified_from = Some(at);
        if verifier.in_flight.take().is_some() {
            fx.push(RelayEffect::DropCheck);
        }
        let drafts = std::mem::take(&mut verifier.drafts);
        let end = verifier.drafts_end;
        let is_behind = verifier.engine_at < at;
        fx.push(RelayEffect::Note(Note::Unverified { fault, at }));
        for id in drafts {
            self.answer.push(Piece::Id(id), Source::Device);
        }
        if self.answer.stopped() || (end == Some(EngineEnd::EndToken) && !is_behind) {
            return self.complete(Ending::Stop, "", fx);
        }
        if self.answer.len() >= self.spec.tokens_max || end == Some(EngineEnd::ContextFull) {
            return self.complete(Ending::Length, "", fx);
        }
        if let Some(reason) = self.device.failure() {
            return self.continue_in_cloud(reason, now, fx);
        }
        if end.is_some() || is_behind {
            self.draft(fx);
        }
    }

    /// Lets the cloud write the rest in its replies, if it verifies the answer; returns whether it does.
    pub(super) fn writes_by_checks(&mut self, reason: &str, fx: &mut Vec<RelayEffect>) -> bool {
        let at = self.answer.len();
        let Some(verifier) = self.verifier.as_mut().filter(|verifier| !verifier.is_over) else {
            return false;
        };
        verifier.is_alone = true;
        fx.push(RelayEffect::Note(Note::CloudContinues { at, reason: reason.to_owned() }));
        true
    }

    /// Checks no drafts, because the cloud's own part broke off and its answer is gone.
    pub(super) fn not_checked(&mut self) {
        if let Some(verifier) = &mut self.verifier {
            verifier.is_over = true;
            verifier.figures.unverified_from = Some(self.answer.len());
        }
    }

    /// Ends verification, and notes what came of it.
    pub(super) fn end_checks(&mut self, fx: &mut Vec<RelayEffect>) {
        let Some(verifier) = &mut self.verifier else { return };
        if verifier.in_flight.take().is_some() {
            fx.push(RelayEffect::DropCheck);
        }
        verifier.is_over = true;
        self.timeline.verification = Some(verifier.figures);
    }
}

/// Returns whether a request may be sent again after this fault.
fn is_passing(fault: &CloudFault) -> bool {
    matches!(fault, CloudFault::Unreachable { .. } | CloudFault::Disconnected | CloudFault::Overloaded { .. })
}
