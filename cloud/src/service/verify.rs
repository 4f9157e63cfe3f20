//! Answers that devices go on with: kept without a slot, and checked draft by draft.
//!
//! A device drafts what follows the cloud's part. Each draft goes through the model in one pass, beside other
//! requests. What the model would have written too is accepted, and the first token that differs is the
//! model's own. Sampling is keyed by seed and index. So what was checked is what the cloud alone would have
//! written, at any temperature.
//!
//! Never: holds a slot between two drafts, or text. Always: an answer belongs to one owner. It is forgotten
//! after [`KEPT`] without a request. If there are too many answers, the owner with the most of them loses the
//! one that was used longest ago, so nobody's answers keep out those of others.

mod check;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use baton_engine::sampling::SamplingParams;
use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, PrefixScope};
use baton_generate::scheduler::CloseReason;
use baton_generate::speculation::K_MAX;
use baton_protocol::{
    AssistRequest, VerifyOffer, VerifyPolicy, VerifyReply, VerifyRequest, VerifyTiming, answer_digest,
};
use tokio::sync::watch;
use uuid::Uuid;

use self::check::{Check, CheckResult, Checked};
use super::{CloudService, Served, ServiceError, Terms};
use crate::gate::Payer;
use crate::observe::metrics::Metrics;
use crate::scene::Scene;
use baton_generate::clock::Clock;

/// How long an answer is kept without a request.
pub(crate) const KEPT: Duration = Duration::from_secs(30);
/// The most answers of one model whose keys and values are kept.
pub(super) const SEQUENCES_MAX: usize = 64;
/// The most answers that are kept in all.
const OPEN_MAX: usize = 1024;

/// An answer by its owner and its request.
type OpenId = (u128, Uuid);

/// What decides how an answer goes on, and what is known of it.
#[derive(Debug)]
pub(crate) struct OpenAnswer {
    served: Weak<Served>,
    /// Name of its model.
    pub(super) model: String,
    tenant: String,
    prompt: Vec<TokenId>,
    prefixes: PrefixScope,
    adapter: Option<AdapterId>,
    sampling: SamplingParams,
    kv_token_bytes: usize,
    /// Ids of tokens are below it.
    vocab_len: usize,
    clock: Clock,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// Whether the device has ended its request.
    is_ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The answer so far, as the model writes it.
    known: Vec<TokenId>,
    /// When it was last asked about.
    used_at: Duration,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// The cloud's first part is not complete.
    #[default]
    Begins,
    /// The device goes on.
    Open,
    /// The answer ends behind the tokens that are known.
    Over,
    /// The first part was cancelled, or has failed.
    Lost,
}

/// What an answer is made of.
pub(super) struct OpenParts<'a> {
    pub(super) served: &'a Arc<Served>,
    pub(super) tenant: String,
    pub(super) prompt: Vec<TokenId>,
    pub(super) prefixes: PrefixScope,
    pub(super) adapter: Option<AdapterId>,
    pub(super) sampling: SamplingParams,
}

impl OpenAnswer {
    pub(super) fn new(parts: OpenParts<'_>) -> OpenAnswer {
        let OpenParts { served, tenant, prompt, prefixes, adapter, sampling } = parts;
        OpenAnswer {
            served: Arc::downgrade(served),
            model: served.name.clone(),
            tenant,
            prompt,
            prefixes,
            adapter,
            sampling,
            kv_token_bytes: served.kv_token_bytes,
            vocab_len: served.model.config().vocab_len,
            clock: served.clock.clone(),
            metrics: served.metrics.clone(),
            state: Mutex::default(),
            is_ended: watch::Sender::new(false),
        }
    }

    /// Waits until the device has ended its request.
    async fn ended(&self) {
        let mut is_ended = self.is_ended.subscribe();
        // The sender lives as long as this.
        let _so = is_ended.wait_for(|is_ended| *is_ended).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the cloud's first part, which has ended for this reason.
    pub(crate) fn begun(&self, tokens: &[TokenId], reason: CloseReason) {
        let mut state = self.state();
        state.known = tokens.to_vec();
        state.phase = match reason {
            CloseReason::Cap => Phase::Open,
            CloseReason::Stop => Phase::Over,
            _ => Phase::Lost,
        };
        state.used_at = self.clock.now();
    }

    /// Counts the keys and values that were kept since the answer was last used, in byte-seconds.
    fn count_kept(&self, state: &mut State) {
        let now = self.clock.now();
        // Behind that time the answer was forgotten.
        let kept = now.saturating_sub(std::mem::replace(&mut state.used_at, now)).min(KEPT);
        if state.phase == Phase::Open {
            let bytes = (self.prompt.len() + state.known.len()) * self.kv_token_bytes;
            self.metrics.open_kv(&self.tenant, bytes as f64 * kept.as_secs_f64());
        }
    }

    /// Returns whether nobody can ask about it any more. An answer that has ended is kept as long as others,
    /// so that a request that is sent again gets its reply.
    fn is_forgotten(&self) -> bool {
        let state = self.state();
        let is_old = self.clock.now().saturating_sub(state.used_at) > KEPT;
        match state.phase {
            Phase::Begins => self.served.strong_count() == 0,
            Phase::Open | Phase::Over => is_old,
            Phase::Lost => true,
        }
    }

    /// Returns when it was last asked about; `None` while the cloud's first part is written.
    fn used_at(&self) -> Option<Duration> {
        let state = self.state();
        (state.phase != Phase::Begins).then_some(state.used_at)
    }

    /// Returns the reply if it is known already, or what of the draft is to be checked.
    fn known_reply(&self, request: &VerifyRequest) -> Result<Known, ServiceError> {
        if let Some(at) = request.draft.iter().position(|id| *id as usize >= self.vocab_len) {
            return Err(ServiceError::UnknownToken { at, id: request.draft[at], vocab_len: self.vocab_len });
        }
        let mut state = self.state();
        if state.phase == Phase::Begins {
            return Err(ServiceError::NotBegun);
        }
        self.count_kept(&mut state);
        let from = request.from as usize;
        let before = state.known.get(..from).ok_or(ServiceError::OtherAnswer { field: "from" })?;
        if answer_digest(before.iter().copied()) != request.digest {
            return Err(ServiceError::OtherAnswer { field: "digest" });
        }
        let rest = &state.known[from..];
        let accepted =
            rest.iter().zip(&request.draft).take_while(|(known, drafted)| known == drafted).count();
        let agrees = accepted == rest.len();
        let is_enough = !agrees && rest.len() >= request.at_least as usize;
        if is_enough || state.phase != Phase::Open {
            let next = rest[accepted..].to_vec();
            return Ok(Known::Reply(reply(request, &state, accepted, next, VerifyTiming::default())));
        }
        let draft = if agrees { request.draft[accepted..].to_vec() } else { Vec::new() };
        let at_least = (request.at_least as usize).saturating_sub(rest.len()).max(1);
        Ok(Known::Until { known: state.known.clone(), accepted, draft, at_least })
    }

    /// Takes what a check has found behind the first `known` tokens; returns the reply.
    fn learn(&self, request: &VerifyRequest, behind: Behind, checked: &Checked) -> VerifyReply {
        let written = checked.tokens.len() - checked.accepted;
        self.metrics.verified(behind.checked, checked.accepted, written);
        let Behind { known, accepted, .. } = behind;
        let mut state = self.state();
        self.count_kept(&mut state);
        // Another request may have learned the same tokens, and more of them, at the same time.
        if known + checked.tokens.len() >= state.known.len() {
            state.known.truncate(known);
            state.known.extend_from_slice(&checked.tokens);
            state.phase = if checked.ended { Phase::Over } else { Phase::Open };
        }
        let accepted = accepted + checked.accepted;
        let from = request.from as usize;
        let next = state.known[from + accepted..].to_vec();
        reply(request, &state, accepted, next, checked.timing)
    }
}

/// Counts what was kept since the last request.
impl Drop for OpenAnswer {
    fn drop(&mut self) {
        self.count_kept(&mut self.state());
    }
}

/// What is known of a draft without a pass.
enum Known {
    /// Everything.
    Reply(VerifyReply),
    /// A part of it, and a pass of the model must find the rest.
    Until {
        known: Vec<TokenId>,
        /// Drafted tokens that are accepted already.
        accepted: usize,
        /// What follows `known` in the draft; nothing if the draft differs before.
        draft: Vec<TokenId>,
        /// Tokens that the pass must bring at least.
        at_least: usize,
    },
}

fn reply(
    request: &VerifyRequest,
    state: &State,
    accepted: usize,
    next: Vec<TokenId>,
    timing: VerifyTiming,
) -> VerifyReply {
    VerifyReply {
        from: request.from,
        accepted: u32::try_from(accepted).unwrap_or(u32::MAX),
        digest: answer_digest(state.known.iter().copied()),
        next,
        ended: state.phase == Phase::Over,
        timing,
    }
}

/// The answers that devices go on with.
#[derive(Debug, Default)]
pub(super) struct OpenAnswers(Mutex<BTreeMap<OpenId, Arc<OpenAnswer>>>);

impl OpenAnswers {
    fn answers(&self) -> MutexGuard<'_, BTreeMap<OpenId, Arc<OpenAnswer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer if there is room for it, or if one would give way; returns whether it does. Whoever
    /// begins the answer calls [`Self::make_room`] then.
    pub(super) fn keep(&self, id: OpenId, answer: Arc<OpenAnswer>) -> bool {
        let mut answers = self.answers();
        answers.retain(|_, answer| !answer.is_forgotten());
        let has_room = answers.len() < OPEN_MAX || gives_way(&answers, id).is_some();
        if has_room {
            answers.insert(id, answer);
        }
        has_room
    }

    /// Removes answers beyond the most that are kept, for that of a request that was accepted. A refused one
    /// costs nobody an answer.
    pub(super) fn make_room(&self, id: OpenId) {
        let mut answers = self.answers();
        while answers.len() > OPEN_MAX {
            let Some(least) = gives_way(&answers, id) else { return };
            answers.remove(&least);
        }
    }

    /// Removes the answers that nobody can ask about any more.
    pub(super) fn forget_old(&self) {
        self.answers().retain(|_, answer| !answer.is_forgotten());
    }

    /// Returns the answer of this request, unless it is forgotten.
    fn find(&self, id: OpenId) -> Result<Arc<OpenAnswer>, ServiceError> {
        let mut answers = self.answers();
        let answer = answers.get(&id).ok_or(ServiceError::NotOpen)?;
        if answer.is_forgotten() {
            answers.remove(&id);
            return Err(ServiceError::NotOpen);
        }
        Ok(answer.clone())
    }

    /// Forgets an answer that was not accepted, or that the device has ended. Drafts that are being checked
    /// are given up.
    pub(super) fn forget(&self, id: OpenId) {
        let gone = self.answers().remove(&id);
        if let Some(answer) = gone {
            answer.is_ended.send_replace(true);
        }
    }

    /// Returns the number of answers.
    pub(super) fn len(&self) -> usize {
        self.forget_old();
        self.answers().len()
    }
}

/// Returns the answer that gives way to the `newest`: the one used longest ago of the owner with the most
/// answers. If the newest's own owner has as many, it is one of its own. An answer that the cloud still
/// writes does not give way.
fn gives_way(answers: &BTreeMap<OpenId, Arc<OpenAnswer>>, newest: OpenId) -> Option<OpenId> {
    let mut counts = BTreeMap::<u128, usize>::new();
    for (owner, _) in answers.keys().filter(|id| **id != newest) {
        *counts.entry(*owner).or_default() += 1;
    }
    let most = counts.values().copied().max();
    let has_most = |owner: u128| counts.get(&owner).copied() == most;
    let gives = |owner: u128| if has_most(newest.0) { owner == newest.0 } else { has_most(owner) };
    let used = answers.iter().filter(|((owner, _), _)| gives(*owner));
    let used = used.filter_map(|(id, answer)| Some((answer.used_at()?, *id)));
    used.min().map(|(_, id)| id)
}

/// Returns whether the answer to this request is checked behind L.
pub(super) fn is_verified(served: &Served, scene: &Scene, request: &AssistRequest) -> bool {
    let same_ids = request.tokenizer_sha256.as_deref() == Some(served.model.tokenizer().digest_hex());
    let is_plain = request.tools.is_none() && request.format.is_text() && request.continue_from.is_none();
    let wanted = request.verify && scene.settings.verify != VerifyPolicy::Off;
    wanted && same_ids && is_plain && served.upstream.is_none()
}

/// Returns what a device is told of the checks.
pub(super) fn offer(served: &Served) -> VerifyOffer {
    let measured = served.figures.measured();
    let known = |ms: f64| if ms.is_finite() { ms.max(0.0) } else { 0.0 };
    VerifyOffer {
        draft_max: K_MAX as u32,
        kept_ms: KEPT.as_millis() as u64,
        pass_ms: known(measured.decode_ms),
        row_ms: known(measured.prefill_ms_per_token),
    }
}

impl CloudService {
    /// Forgets answers that no device has asked about for [`KEPT`].
    pub fn forget_old_answers(&self) {
        self.inner.open.forget_old();
    }

    /// Returns the name of the model that writes this answer.
    ///
    /// # Errors
    /// [`ServiceError::NotOpen`] if the answer is not kept here.
    pub fn verified_by(&self, owner: u128, id: Uuid) -> Result<String, ServiceError> {
        Ok(self.inner.open.find((owner, id))?.model.clone())
    }

    /// Begins to check a draft of an answer that the device goes on with. A request that is sent again gets
    /// the same tokens.
    ///
    /// # Errors
    /// [`ServiceError`] if the answer is not kept, the draft belongs to another answer, or there is no room.
    pub fn verify(
        &self,
        id: Uuid,
        request: VerifyRequest,
        terms: Terms,
        payer: Option<&Payer>,
    ) -> Result<DraftCheck, ServiceError> {
        let open = self.inner.open.find((terms.owner, id))?;
        let (known, accepted, draft, at_least) = match open.known_reply(&request)? {
            Known::Reply(reply) => return Ok(DraftCheck(Progress::Known(Box::new(reply)))),
            Known::Until { known, accepted, draft, at_least } => (known, accepted, draft, at_least),
        };
        let served = open.served.upgrade().ok_or(ServiceError::NotOpen)?;
        let check = Check::begin(&served, &open, (&known, &draft), at_least, payer)?;
        let (job, orders, result) = check.into_job(terms, self.deadline());
        let (job_id, checked) = (job.spec.id, draft.len());
        served.handle.submit(job).map_err(|refused| self.refused(refused))?;
        orders.into_iter().for_each(|order| served.handle.order(job_id, order));
        let behind = Behind { known: known.len(), accepted, checked };
        Ok(DraftCheck(Progress::Runs { open, request, behind, result }))
    }
}

/// Where the tokens that are checked begin.
#[derive(Debug, Clone, Copy)]
struct Behind {
    /// Answer tokens before them.
    known: usize,
    /// Drafted tokens before them that are accepted.
    accepted: usize,
    /// Their number.
    checked: usize,
}

/// A draft that is being checked. Dropping it ends the check.
#[derive(Debug)]
pub struct DraftCheck(Progress);

#[derive(Debug)]
enum Progress {
    /// The reply was known.
    Known(Box<VerifyReply>),
    /// A pass of the model finds it.
    Runs { open: Arc<OpenAnswer>, request: VerifyRequest, behind: Behind, result: CheckResult },
}

impl DraftCheck {
    /// Waits for the reply.
    ///
    /// # Errors
    /// [`ServiceError`] if the deadline passed, the engine failed, or the service is stopping.
    pub async fn reply(self) -> Result<VerifyReply, ServiceError> {
        match self.0 {
            Progress::Known(reply) => Ok(*reply),
            Progress::Runs { open, request, behind, mut result } => {
                let checked = tokio::select! {
                    checked = result.wait() => checked?,
                    () = open.ended() => return Err(ServiceError::NotOpen),
                };
                Ok(open.learn(&request, behind, &checked))
            }
        }
    }

    /// Returns the reply if it is there; for callers that drive the engine themselves.
    pub fn try_reply(&mut self) -> Option<Result<VerifyReply, ServiceError>> {
        match &mut self.0 {
            Progress::Known(reply) => Some(Ok((**reply).clone())),
            Progress::Runs { open, request, behind, result } => {
                let checked = result.look()?;
                Some(checked.map(|checked| open.learn(request, *behind, &checked)))
            }
        }
    }
}
