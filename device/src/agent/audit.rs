//! Audits of routes: a turn is answered again by the routes that were not chosen, and times are compared.
//!
//! An audit runs behind an answer, while nothing is asked; nobody sees its answers. A new question ends it,
//! and then nothing is kept of it. The routes are compared under what was known when the turn was routed:
//!
//! - The device reuses only the leading tokens of the prompt that it knew then.
//! - If the cloud finds more of the prompt than in its first answer, what it would have computed is added.
//! - All routes count for the length of the answer that was shown. An answer that ends sooner is taken to go
//!   on at its own speed.
//!
//! What always holds: a regret is told only if all routes that were possible were measured. What an audit
//! sends is in the answer's record.

use super::prepare::{Again, Prepared};
use super::record::SentBody;
use super::report::AnswerReport;
use super::route::{OutlookReport, RouteReport};
use super::{Agent, AgentError, Question};
use crate::machine::power::Power;
use crate::receipt::Purpose;
use crate::relay::{RelayMode, Source, Timeline};
use baton_pacing::PaceMode;
use baton_pacing::route::{Outlook, Route};
use baton_terminal::chain;
use serde::Serialize;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

/// Answers of fewer tokens say little about time.
const TOKENS_MIN: usize = 4;

/// The comparison of all routes of one turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouteAudit {
    /// Tokens of the answer that was shown. All times are for this length.
    pub tokens: usize,
    /// What was measured, the chosen route first. Joules are those of the forecast.
    pub measured: Vec<OutlookReport>,
    /// How much more weighted time the chosen route took than the best one, as a share of the best one's. It
    /// is absent if a route could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regret: Option<f64>,
    /// Requests that were sent to the cloud for it.
    pub requests: usize,
}

/// Which turns are audited.
#[derive(Debug)]
pub(super) struct Audits {
    share: f64,
    state: Mutex<State>,
    /// Held while an audit runs.
    busy: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Turns that are to be audited, with the fraction of the next one.
    owed: f64,
    due: Option<Due>,
    /// Ends the audit that runs.
    stop: Option<oneshot::Sender<()>>,
}

/// A turn that waits for its audit.
#[derive(Debug)]
struct Due {
    turn: Turn,
    /// What the chosen route took.
    first: OutlookReport,
    /// Prompt tokens that the cloud did not compute for it, if it was asked.
    found: Option<u64>,
    /// The key of the answer's record.
    record: Option<String>,
}

/// What the routes of a turn are measured by.
#[derive(Debug)]
struct Turn {
    question: Question,
    route: RouteReport,
    /// Tokens of the answer that was shown.
    tokens: usize,
}

/// What an audit has come to.
struct Compared {
    audit: RouteAudit,
    /// The requests.
    sent: Vec<SentBody>,
}

impl Audits {
    fn new(share: f64) -> Self {
        Self { share, state: Mutex::default(), busy: tokio::sync::Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a turn; returns whether it is one of the share.
    fn draws(&self) -> bool {
        let mut state = self.state();
        state.owed += self.share;
        let is_drawn = state.owed >= 1.0;
        state.owed -= f64::from(u8::from(is_drawn));
        is_drawn
    }
}

impl Due {
    /// Makes a turn ready for its audit; `None` if there is nothing to compare.
    fn new(question: Question, report: &AnswerReport) -> Option<Self> {
        let route = report.route.clone().filter(RouteReport::is_compared)?;
        let (chosen, tokens) = (route.chosen(), report.timeline.shown.len());
        if tokens < TOKENS_MIN || !matches!(report.ending, "stop" | "length") {
            return None;
        }
        let bytes = route.forecast(chosen)?.bytes;
        let turn = Turn { question, route, tokens };
        Some(Self {
            first: turn.measured(chosen, &report.timeline, bytes, None)?,
            found: found(&report.timeline).filter(|_| chosen.asks_cloud()),
            record: report.record.clone(),
            turn,
        })
    }
}

/// Returns how many tokens of the prompt the cloud had computed before, as it says.
fn found(timeline: &Timeline) -> Option<u64> {
    timeline.cloud_usage.map(|usage| usage.cached_prefix_tokens)
}

impl Turn {
    /// Returns what a route took, for the length of the answer that was shown; `None` if the route did not
    /// come about. `known`: tokens that the cloud had computed before the turn, if it was asked already.
    fn measured(
        &self,
        route: Route,
        timeline: &Timeline,
        bytes: f64,
        known: Option<u64>,
    ) -> Option<OutlookReport> {
        if (timeline.tokens_from(Source::Cloud) > 0) != route.asks_cloud() {
            return None;
        }
        let shown = &timeline.shown;
        let (first, last) = (shown.first()?.at_ms, shown.last()?.at_ms);
        let (steps, wanted) = (shown.len() as f64 - 1.0, self.tokens as f64 - 1.0);
        if steps < 1.0 {
            return None;
        }
        let more = found(timeline).zip(known).map_or(0, |(found, known)| found.saturating_sub(known));
        let unread_ms = more as f64 * self.route.cloud_ms_per_token;
        let outlook = Outlook {
            first_ms: first + unread_ms,
            gap_ms: timeline.gaps_ms().into_iter().fold(0.0, f64::max),
            total_ms: last + unread_ms + (last - first) * (wanted - steps) / steps,
            cloud_ms: self.cloud_ms(route, timeline) + unread_ms,
            bytes,
            joules: self.route.forecast(route)?.joules,
        };
        let tau_ms = (self.question.pace == PaceMode::Paced).then_some(timeline.tau_ms);
        let weighted_ms = self.route.weights.of(route, &outlook, tau_ms, self.tokens as f64);
        Some(OutlookReport::new(route, &outlook, weighted_ms))
    }

    /// Returns how long the cloud computed, as it says itself.
    fn cloud_ms(&self, route: Route, timeline: &Timeline) -> f64 {
        let Some(timing) = timeline.cloud_timing.filter(|_| route.asks_cloud()) else { return 0.0 };
        let written = match route {
            Route::Cloud => self.tokens,
            Route::Device | Route::Relay => timeline.tokens_from(Source::Cloud),
        };
        timing.first.prefill_ms + written.saturating_sub(1) as f64 * timing.first.decode_ms
    }
}

impl Agent {
    /// Makes the agent audit this share of the turns that it routes, when [`Self::audit`] is called.
    #[must_use]
    pub fn with_audits(mut self, share: f64) -> Self {
        self.audits = Some(Audits::new(share));
        self
    }

    /// Returns a copy of the question if its turn is one that is audited.
    pub(super) fn drawn(&self, question: &Question, mode: RelayMode) -> Option<Question> {
        let audits = self.audits.as_ref().filter(|_| mode == RelayMode::Relay && self.routes.is_some())?;
        audits.draws().then(|| question.clone())
    }

    /// Lets a turn wait for its audit.
    pub(super) fn audit_later(&self, question: Question, report: &AnswerReport) {
        let Some(audits) = &self.audits else { return };
        let due = Due::new(question, report);
        audits.state().due = due;
    }

    /// Ends an audit, and forgets the one that waits: caches change with each question.
    pub(super) async fn end_audit(&self) {
        let Some(audits) = &self.audits else { return };
        let stop = {
            let mut state = audits.state();
            state.due = None;
            state.stop.take()
        };
        if let Some(stop) = stop {
            // It may have ended by itself.
            let _ended = stop.send(());
            drop(audits.busy.lock().await);
        }
    }

    /// Audits the last turn, if it is to be audited and nothing else is computed. Returns the comparison,
    /// which is in the answer's record too.
    pub async fn audit(&self) -> Option<RouteAudit> {
        let audits = self.audits.as_ref()?;
        if audits.state().due.is_none() || !self.reading_has_ended() || self.should_rest() {
            return None;
        }
        let device = self.device.as_ref()?;
        let all = u32::try_from(device.worker.answers()).unwrap_or(u32::MAX);
        let _turns = self.turn.try_acquire_many(all).ok()?;
        let _busy = audits.busy.lock().await;
        let (due, stopped) = {
            let mut state = audits.state();
            let due = state.due.take()?;
            let (stop, stopped) = oneshot::channel();
            state.stop = Some(stop);
            (due, stopped)
        };
        let compared = tokio::select! {
            biased;
            _ = stopped => return None,
            compared = self.compare(&due) => compared,
        };
        audits.state().stop = None;
        self.record_audit(due.record.as_deref(), &compared.audit, compared.sent).await;
        Some(compared.audit)
    }

    /// Returns whether this device computes and sends only what somebody waits for.
    fn should_rest(&self) -> bool {
        let is_metered = self.routes.as_ref().is_some_and(|routes| routes.options().is_metered);
        is_metered || Power::read(Path::new("/")).rests_when_idle()
    }

    /// Answers a turn by each route that was not chosen.
    async fn compare(&self, due: &Due) -> Compared {
        let Due { turn, first, .. } = due;
        let mut audit =
            RouteAudit { tokens: turn.tokens, measured: vec![first.clone()], regret: None, requests: 0 };
        let mut sent: Vec<SentBody> = Vec::new();
        let mut known = due.found;
        for route in turn.route.others() {
            let (prepared, timeline) = match self.answered_again(turn, route).await {
                Ok(answered) => answered,
                Err(err) => {
                    debug!(route = route.as_str(), err = chain(&err), "a route is not audited");
                    continue;
                }
            };
            let more = self.sent_bodies(&prepared, Some(Purpose::Audit));
            audit.requests += usize::from(!more.is_empty());
            sent.extend(more);
            let bytes = prepared.text_bytes.filter(|_| route.asks_cloud()).unwrap_or(0) as f64;
            audit.measured.extend(turn.measured(route, &timeline, bytes, known));
            known = known.or_else(|| found(&timeline));
        }
        if audit.measured.len() == turn.route.forecasts.len() {
            let best = audit.measured.iter().map(|of| of.weighted_ms).fold(f64::INFINITY, f64::min);
            audit.regret = (best > 0.0).then(|| first.weighted_ms / best - 1.0);
        }
        Compared { audit, sent }
    }

    /// Answers a turn by a route, unheard.
    async fn answered_again(&self, turn: &Turn, route: Route) -> Result<(Prepared, Timeline), AgentError> {
        self.load().await?;
        let question = Question { tokens_max: turn.tokens, ..turn.question.clone() };
        let again = Again { route, known: turn.route.cached_tokens };
        let mut prepared = self.prepare(question, RelayMode::Relay, Some(again)).await?;
        let (events, mut unheard) = mpsc::channel(64);
        let listen = async {
            while unheard.recv().await.is_some() {}
            std::future::pending::<Timeline>().await
        };
        let mut notes = Vec::new();
        let answer = async {
            let (outcome, _) = self.drive(&mut prepared, &events, &mut notes, None).await;
            outcome.timeline
        };
        let timeline = tokio::select! {
            timeline = answer => timeline,
            timeline = listen => timeline,
        };
        Ok((prepared, timeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tests::question;
    use crate::relay::{CloudTiming, Shown};
    use baton_protocol::{Timing, Usage};

    /// A turn of ten tokens that could go all ways.
    fn turn() -> Turn {
        let outlook = Outlook {
            first_ms: 0.0,
            gap_ms: 0.0,
            total_ms: 0.0,
            cloud_ms: 0.0,
            bytes: 70.0,
            joules: Some(2.0),
        };
        let route = RouteReport {
            chosen: "relay",
            why: "least",
            prompt_tokens: 200,
            cached_tokens: 32,
            answer_tokens: 10.0,
            forecasts: Route::ALL.map(|route| OutlookReport::new(route, &outlook, 1.0)).to_vec(),
            metered: false,
            power: crate::machine::power::Power::default(),
            weights: baton_pacing::route::Weights::default(),
            cloud_ms_per_token: 0.5,
        };
        Turn { question: question("Say it.", RelayMode::Relay), route, tokens: 10 }
    }

    /// An answer whose tokens came at these times, by a cloud that knew some of the prompt, or by the device.
    fn answer(at_ms: &[f64], cloud_knew: Option<u64>) -> Timeline {
        let source = if cloud_knew.is_some() { Source::Cloud } else { Source::Device };
        let shown = at_ms.iter().enumerate().map(|(index, at_ms)| Shown { index, at_ms: *at_ms, source });
        let first = Timing { prefill_ms: 90.0, decode_ms: 10.0, ..Timing::default() };
        Timeline {
            shown: shown.collect(),
            cloud_usage: cloud_knew.map(|known| Usage { cached_prefix_tokens: known, ..Usage::default() }),
            cloud_timing: cloud_knew.map(|_| CloudTiming { first, slot: None }),
            tau_ms: 100.0,
            ..Timeline::default()
        }
    }

    #[test]
    fn what_the_cloud_has_read_for_another_route_counts_as_unread() {
        let found = answer(&[100.0, 110.0, 130.0], Some(120));
        let as_it_was = turn().measured(Route::Cloud, &found, 70.0, None).unwrap();
        assert_eq!((as_it_was.first_ms, as_it_was.gap_ms), (100.0, 20.0));
        // Nine steps at 15 ms.
        assert_eq!((as_it_was.total_ms, as_it_was.cloud_s), (235.0, 0.18));
        let fresh = turn().measured(Route::Cloud, &found, 70.0, Some(20)).unwrap();
        assert_eq!((fresh.first_ms, fresh.total_ms, fresh.cloud_s), (150.0, 285.0, 0.23));
        assert_eq!((fresh.bytes, fresh.joules), (70.0, Some(2.0)));
        // 285 ms of waiting, 3.4 times, and a tenth of the cloud's 230 ms.
        assert!((fresh.weighted_ms - (3.4 * 285.0 + 23.0)).abs() < 1e-9, "{fresh:?}");
    }

    #[test]
    fn a_route_that_did_not_come_about_is_not_measured() {
        let (device, cloud) = (answer(&[10.0, 20.0], None), answer(&[10.0, 20.0], Some(0)));
        let measured = |route, timeline| turn().measured(route, timeline, 0.0, None);
        assert!(measured(Route::Device, &device).is_some() && measured(Route::Relay, &cloud).is_some());
        assert_eq!(measured(Route::Device, &cloud), None);
        assert_eq!(measured(Route::Relay, &device), None);
        assert_eq!(measured(Route::Device, &answer(&[10.0], None)), None, "one token has no speed");
    }

    #[test]
    fn a_share_of_the_turns_is_drawn() {
        let drawn = |share: f64| {
            let audits = Audits::new(share);
            (0..1000).filter(|_| audits.draws()).count()
        };
        assert_eq!([0.0, 0.25, 1.0].map(drawn), [0, 250, 1000]);
    }
}
