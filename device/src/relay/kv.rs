//! The cloud's keys and values in place of a prefill: when they are fetched, given up and used.
//!
//! The prefill goes on while they come, and whichever is ready first is used. So the choice costs at most the
//! bytes. Always: until the engine has taken them, the prompt before stays in force, whatever comes or does
//! not come.

use baton_pacing::Millis;
use baton_protocol::KvTicket;

use super::device::DeviceState;
use super::event::{KvNews, RelayEffect};
use super::outcome::KvTrace;
use super::{RelayCore, RelayMode};
use crate::local::{EngineCommand, EngineReport, PromptId};

/// Bytes behind the first frame, and milliseconds after it, from which on the line's rate is known well
/// enough to give a fetch up. What comes before the first frame is no part of the rate.
const MEASURED_BYTES: u64 = 64 << 10;
const MEASURED_MS: f64 = 50.0;
/// A fetch is not begun, or given up, if it would take so many times as long as the prefill, and so many
/// milliseconds. A forecast may be wrong by as much, and a fetch too many costs only bytes.
const SLOWER: f64 = 1.5;
const SLOWER_MS: f64 = 50.0;

/// On which terms keys and values are taken.
#[derive(Debug, Clone, PartialEq)]
pub struct KvTerms {
    /// Why this device takes none, if so.
    pub refused: Option<String>,
    /// Name of this device's model.
    pub model: String,
    /// Name of the ids of the whole prompt, and how many they are.
    pub prompt_sha256: String,
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// Bytes a second that lately came over the line, if that is known.
    pub line_bytes_per_s: Option<f64>,
}

impl KvTerms {
    /// Returns the terms of a device that takes none.
    pub fn refusing(reason: impl Into<String>) -> KvTerms {
        KvTerms {
            refused: Some(reason.into()),
            model: String::new(),
            prompt_sha256: String::new(),
            prompt_tokens: 0,
            line_bytes_per_s: None,
        }
    }

    /// Returns why the ticket's keys and values are of no use here, if they are not.
    fn objection(&self, ticket: &KvTicket) -> Option<&'static str> {
        let tokens = usize::try_from(ticket.tokens).unwrap_or(usize::MAX);
        match () {
            () if self.model != ticket.model => Some("the cloud computes with another model"),
            () if self.prompt_sha256 != ticket.prompt_sha256 => Some("the cloud has another prompt"),
            () if tokens >= self.prompt_tokens => Some("there are more tokens than the prompt has"),
            () => None,
        }
    }
}

/// How far it is with keys and values.
#[derive(Debug, Default)]
pub(super) enum KvState {
    /// None are expected.
    #[default]
    Off,
    /// They come.
    Fetching {
        bytes: u64,
        began: Millis,
        /// When the first frame had come, and its bytes.
        first: Option<(Millis, u64)>,
    },
    /// The engine was told to take them for this prompt.
    Taking(PromptId),
}

/// Returns whether a fetch of so many milliseconds can hardly be first.
fn is_hopeless(line_ms: f64, prefill_ms: f64) -> bool {
    line_ms > SLOWER * prefill_ms + SLOWER_MS
}

impl KvState {
    /// Returns whether they are on the way.
    pub(super) fn is_fetching(&self) -> bool {
        matches!(self, Self::Fetching { .. })
    }

    /// Returns whether the engine may be taking them now.
    pub(super) fn is_taking(&self) -> bool {
        matches!(self, Self::Taking(_))
    }
}

impl RelayCore {
    /// Decides about what the first event offers.
    pub(super) fn consider_kv(&mut self, ticket: Option<KvTicket>, now: Millis, fx: &mut Vec<RelayEffect>) {
        let Some(terms) = &self.config.kv else { return };
        let (is_verified, cites) = (self.drafts(), self.spec.cites.is_some());
        let trace = self.timeline.kv.insert(KvTrace::default());
        let Some(ticket) = ticket else {
            let none = || "the cloud offered none".to_owned();
            trace.reason = Some(terms.refused.clone().unwrap_or_else(none));
            return;
        };
        trace.format = Some(ticket.format.as_str());
        (trace.bytes, trace.tokens) = (ticket.bytes, ticket.tokens as usize);
        let left_ms = self.device.prefill_left_ms(self.timeline.prompt_ratio.unwrap_or(1.0));
        let line_ms = terms.line_bytes_per_s.map(|rate| ticket.bytes as f64 / rate * 1e3);
        let waits = matches!(self.device.state, DeviceState::Prefix | DeviceState::Prompt);
        let reason = match (&terms.refused, terms.objection(&ticket), line_ms) {
            (Some(reason), _, _) => Some(reason.clone()),
            (None, Some(objection), _) => Some(objection.to_owned()),
            // Drafts and citations go back to tokens that were not moved.
            _ if is_verified => Some("the answer is verified".to_owned()),
            _ if cites => Some("the answer cites sentences".to_owned()),
            _ if !waits => Some("the device prefills nothing".to_owned()),
            (_, _, Some(line_ms)) if is_hopeless(line_ms, left_ms) => {
                Some(format!("the line would take {line_ms:.0} ms, the prefill {left_ms:.0} ms"))
            }
            _ => None,
        };
        if reason.is_some() {
            trace.reason = reason;
            return;
        }
        self.kv = KvState::Fetching { bytes: ticket.bytes, began: now, first: None };
        fx.push(RelayEffect::FetchKv(ticket));
    }

    /// Takes news of the fetch.
    pub(super) fn on_kv(&mut self, news: KvNews, now: Millis, fx: &mut Vec<RelayEffect>) {
        let KvState::Fetching { bytes, began, first } = &mut self.kv else { return };
        if self.ending.is_some() || self.config.mode != RelayMode::Relay {
            return;
        }
        let (bytes, trace) = (*bytes, self.timeline.kv.get_or_insert_default());
        trace.fetch_ms = (now - *began).as_f64();
        let come = match &news {
            KvNews::Come { bytes: come } => *come,
            KvNews::Whole(_) => bytes,
            KvNews::Failed { .. } => trace.fetched_bytes,
        };
        trace.fetched_bytes = come;
        let (first_at, first_bytes) = *first.get_or_insert((now, come));
        let (since_ms, more) = ((now - first_at).as_f64(), come.saturating_sub(first_bytes));
        if more >= MEASURED_BYTES && since_ms > 0.0 {
            trace.line_bytes_per_s = Some(more as f64 / since_ms * 1e3);
        }
        match news {
            KvNews::Come { .. } => {
                let left_ms = self.device.prefill_left_ms(self.timeline.prompt_ratio.unwrap_or(1.0));
                let rate = trace.line_bytes_per_s.filter(|_| since_ms >= MEASURED_MS);
                let rest_ms = rate.map(|rate| bytes.saturating_sub(come) as f64 / rate * 1e3);
                if let Some(rest_ms) = rest_ms.filter(|rest_ms| is_hopeless(*rest_ms, left_ms)) {
                    let reason =
                        format!("the line would take {rest_ms:.0} ms more, the prefill {left_ms:.0} ms");
                    self.drop_kv(&reason, fx);
                }
            }
            KvNews::Whole(rows) => {
                let waits = matches!(self.device.state, DeviceState::Prefix | DeviceState::Prompt);
                if !waits || self.device.ready {
                    return self.drop_kv("the prompt was prefilled first", fx);
                }
                let prompt = self.device.free_prompt();
                self.kv = KvState::Taking(prompt);
                self.send(EngineCommand::Take { prompt, rows }, fx);
            }
            KvNews::Failed { reason } => {
                trace.reason = Some(reason);
                self.kv = KvState::Off;
            }
        }
    }

    /// Takes a report about a prompt that is not in force.
    pub(super) fn on_kv_report(&mut self, report: &EngineReport, now: Millis) {
        let KvState::Taking(prompt) = self.kv else { return };
        if report.prompt() != prompt {
            return;
        }
        let trace = self.timeline.kv.get_or_insert_default();
        match report {
            EngineReport::Prompt { tokens, cached, .. } => {
                trace.used = true;
                let moved = trace.tokens;
                self.kv = KvState::Off;
                self.device.switch(prompt, (*tokens, *cached), now);
                let more = if self.cloud.active() { self.cloud.cap } else { self.answer.len() };
                self.device.expect(more.min(self.spec.tokens_max));
                self.timeline.prompt_tokens_refined = Some(moved + 1);
                self.timeline.prompt_tokens_cached = Some(moved);
            }
            EngineReport::NotTaken { reason, .. } => {
                trace.reason = Some(reason.clone());
                self.kv = KvState::Off;
            }
            _ => {}
        }
    }

    /// Gives up a fetch, if there is one.
    pub(super) fn drop_kv(&mut self, reason: &str, fx: &mut Vec<RelayEffect>) {
        if matches!(self.kv, KvState::Fetching { .. }) {
            self.kv = KvState::Off;
            self.timeline.kv.get_or_insert_default().reason = Some(reason.to_owned());
            fx.push(RelayEffect::DropKv);
        }
    }
}
