//! Drafts that are checked: their way to the cloud and back, the cloud's end, and what they must be.
//!
//! Never: trusts the cloud's or the device's own account of a draft. Both are held to the plain loop.

use std::sync::Arc;

use baton_cloud::gate::Permit;
use baton_cloud::service::{DraftCheck, ServiceError};
use baton_device::local::PromptId;
use baton_device::relay::{CloudFault, RelayEvent};
use baton_engine::tokenizer::TokenId;
use baton_engine::{Detokenizer, Model, StopStrings};
use baton_protocol::{AssistRequest, Segment, VerifyReply, VerifyRequest, answer_digest};
use uuid::Uuid;

use super::accounts::Due;
use super::answer::Answer;
use super::check::{Plain, prompt_ids, sampling};
use super::cloud::unreachable;
use super::device::Device;
use super::engine::{Voice, model};
use super::scenario::{CheckFault, DeviceShape, Fault};
use super::world::{MS, What, World};

/// Counts the drafts of a simulation.
pub(super) type DraftNo = u64;

/// What a device wrote behind an answer that is verified.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) prompt: PromptId,
    /// The prompt that it wrote from.
    pub(super) segments: Option<Arc<[Segment]>>,
    /// The answer before.
    pub(super) answer: Vec<TokenId>,
    /// What it wrote, by index.
    pub(super) ids: Vec<(usize, TokenId)>,
}

impl Run {
    /// Checks every token against the device's own continuation of the answer before it.
    fn check(&self, voice: Voice, model: &Arc<Model>, of: &baton_protocol::Sampling) -> Result<(), String> {
        let Some(segments) = &self.segments else { return Err("I9: a draft without a prompt".to_owned()) };
        let prompt = prompt_ids(model, segments);
        let mut plain = Plain::new(voice, model, sampling(of), &prompt, &self.answer);
        for (index, id) in &self.ids {
            let (at, want) = (plain.answer().len(), plain.next());
            if (*index, *id) != (at, want) {
                return Err(format!(
                    "I9: a draft has {id} at {index}; alone the device writes {want} at {at}"
                ));
            }
            plain.push(want);
        }
        Ok(())
    }
}

/// What the cloud alone writes.
#[derive(Debug)]
pub(super) struct Whole(Plain);

impl Whole {
    pub(super) fn new(voice: Voice, request: &AssistRequest) -> Whole {
        let prompt = prompt_ids(model(), &request.segments);
        Whole(Plain::new(voice, model(), sampling(&request.sampling), &prompt, &[]))
    }

    /// Returns so many tokens from the first on; fewer if the answer ends before. The last one may be the end
    /// token.
    pub(super) fn first(&mut self, tokens: usize) -> &[TokenId] {
        while self.0.answer().len() < tokens && !self.is_over() {
            let next = self.0.next();
            self.0.push(next);
        }
        &self.0.answer()[..tokens.min(self.0.answer().len())]
    }

    fn is_over(&self) -> bool {
        self.0.answer().last().is_some_and(|id| model().tokenizer().is_end(*id))
    }

    /// Returns whether the answer ends behind so many tokens, or with the last of them.
    fn ends_at(&mut self, tokens: usize) -> bool {
        self.first(tokens + 1);
        self.is_over() && self.0.answer().len() <= tokens + 1
    }

    /// Checks a reply to a draft. `limited`: the tenant's day may have no room for more.
    fn check(&mut self, request: &VerifyRequest, reply: &VerifyReply, limited: bool) -> Result<(), String> {
        let (from, accepted) = (request.from as usize, reply.accepted as usize);
        let Some(drafted) = request.draft.get(..accepted) else {
            return Err(format!("I10: {accepted} of {} drafted tokens are accepted", request.draft.len()));
        };
        let told = [drafted, &reply.next[..]].concat();
        let all = from + told.len();
        let whole = self.first(all);
        if whole.get(from..) != Some(&told[..]) {
            return Err(format!("I10: from {from} on {told:?} is told, alone the cloud writes {whole:?}"));
        }
        if answer_digest(whole.iter().copied()) != reply.digest {
            return Err(format!("I10: another digest of {all} tokens"));
        }
        let is_less = reply.next.len() + accepted < request.at_least as usize && !reply.ended;
        let is_missing = is_less && !limited;
        if is_missing || (reply.next.is_empty() && !reply.ended) {
            return Err(format!("I10: only {told:?} is told, {} are wanted", request.at_least));
        }
        match reply.ended && !self.ends_at(all) {
            true => Err(format!("I10: the answer is said to end behind {all} tokens")),
            false => Ok(()),
        }
    }
}

/// A draft in the cloud.
pub(super) struct Checking {
    pub(super) draft: DraftNo,
    question: usize,
    request: Arc<VerifyRequest>,
    of: Arc<AssistRequest>,
    check: DraftCheck,
    /// Whether the reply was known without a pass.
    is_known: bool,
    _permit: Permit,
}

/// The drafts in the cloud.
#[derive(Default)]
pub(super) struct Drafts {
    pub(super) checking: Vec<Checking>,
    /// What came of them: the question, the draft, and the reply.
    checked: Vec<(usize, DraftNo, Result<VerifyReply, CloudFault>)>,
}

impl Drafts {
    /// Returns the drafts that a pass is needed for.
    pub(super) fn live(&self) -> usize {
        self.checking.iter().filter(|checking| !checking.is_known).count()
    }

    /// Returns whether a draft of this answer is being checked.
    pub(super) fn are_checked_of(&self, request: Uuid) -> bool {
        self.checking.iter().any(|checking| checking.of.request_id == request)
    }

    /// Keeps a draft whose check has begun.
    pub(super) fn begin(
        &mut self,
        (question, draft): (usize, DraftNo),
        (of, request): (&Arc<AssistRequest>, &Arc<VerifyRequest>),
        (mut check, permit): (DraftCheck, Permit),
    ) {
        let is_known = check.try_reply().is_some();
        let (of, request) = (Arc::clone(of), Arc::clone(request));
        self.checking.push(Checking { draft, question, request, of, check, is_known, _permit: permit });
    }

    /// Forgets a draft, which ends its check; returns what that may cost.
    pub(super) fn forget(&mut self, draft: DraftNo) -> Due {
        let Some(at) = self.checking.iter().position(|checking| checking.draft == draft) else {
            return Due::default();
        };
        let checking = self.checking.remove(at);
        Due { least: 0, most: checking.cost_max() }
    }

    /// Takes the replies that are there, and checks them; returns what they must have cost.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn pull(
        &mut self,
        (voice, limited): (Voice, bool),
        refused: impl Fn(&ServiceError) -> CloudFault,
    ) -> Result<Due, String> {
        let mut cost = Due::default();
        let mut at = 0;
        while at < self.checking.len() {
            let Some(reply) = self.checking[at].check.try_reply() else {
                at += 1;
                continue;
            };
            let checking = self.checking.remove(at);
            if let Ok(reply) = &reply {
                Whole::new(voice, &checking.of).check(&checking.request, reply, limited)?;
            }
            let due = checking.due(&reply);
            cost = Due { least: cost.least + due.least, most: cost.most + due.most };
            self.checked.push((checking.question, checking.draft, reply.map_err(|err| refused(&err))));
        }
        Ok(cost)
    }
}

impl Checking {
    /// Returns the most tokens that a pass may charge.
    fn cost_max(&self) -> u64 {
        let tokens = self.request.draft.len() + self.request.at_least as usize + 1;
        if self.is_known { 0 } else { tokens as u64 }
    }

    /// Returns what the check must have cost: a token at least, which the model wrote itself.
    fn due(&self, reply: &Result<VerifyReply, ServiceError>) -> Due {
        let wrote = reply.as_ref().is_ok_and(|reply| !reply.next.is_empty()) && !self.is_known;
        Due { least: u64::from(wrote), most: self.cost_max() }
    }
}

impl World {
    /// Sends a draft to the cloud.
    pub(super) fn send_draft(&mut self, number: usize, request: VerifyRequest) {
        let voice = self.scenario.cloud.voice;
        let draft = self.new_draft();
        let latency = self.latency(number, draft << 8);
        let Some(answer) = self.answers.get_mut(&number) else { return };
        let nth = answer.drafts;
        answer.drafts += 1;
        if answer.draft.replace(draft).is_some() {
            return self.fail(format!("I10: question {number} sends a second draft at the same time"));
        }
        let of = Arc::clone(&answer.request);
        let from = request.from as usize;
        let digest = answer_digest(Whole::new(voice, &of).first(from).iter().copied());
        if digest != request.digest {
            return self
                .fail(format!("I10: question {number} goes on behind {from} tokens of another answer"));
        }
        self.trace.add("draft", &[self.now, number as u64, from as u64, request.draft.len() as u64]);
        let (question, request) = (number, Arc::new(request));
        let fault = self.check_fault(number, nth);
        self.tell(|| format!("question {number} drafts {:?} behind {from}: {fault:?}", request.draft));
        if fault == Some(CheckFault::Lost) {
            let checked = Err(CloudFault::Disconnected);
            return self.at(self.now + 2 * latency, What::Checked { question, draft, checked });
        }
        if fault == Some(CheckFault::Twice) {
            let draft = self.new_draft();
            let (of, request) = (Arc::clone(&of), Arc::clone(&request));
            self.at(self.now + latency + MS, What::Draft { question, draft, nth, of, request });
        }
        self.at(self.now + latency, What::Draft { question, draft, nth, of, request });
    }

    fn new_draft(&mut self) -> DraftNo {
        self.next_draft += 1;
        self.next_draft
    }

    fn check_fault(&self, number: usize, nth: usize) -> Option<CheckFault> {
        self.scenario.faults.iter().find_map(|fault| match fault {
            Fault::Check { question, request, what } if (*question, *request) == (number, nth) => Some(*what),
            _ => None,
        })
    }

    /// A draft arrives at the cloud.
    pub(super) fn post_draft(
        &mut self,
        (question, draft): (usize, DraftNo),
        nth: usize,
        (of, request): (&Arc<AssistRequest>, &Arc<VerifyRequest>),
    ) {
        let taken = self.cloud.verify((question, draft), (of, request));
        self.tell(|| format!("cloud takes draft {draft} of question {question}: {:?}", taken.as_ref().err()));
        if let Err(fault) = taken {
            self.reply((question, draft), nth, Err(fault));
        }
    }

    /// Sends the replies that are there.
    pub(super) fn feed_checked(&mut self) {
        let Some(up) = &mut self.cloud.up else { return };
        for (question, draft, checked) in std::mem::take(&mut up.drafts.checked) {
            let nth = self.answers.get(&question).map_or(0, |answer| answer.drafts.saturating_sub(1));
            self.reply((question, draft), nth, checked);
        }
    }

    fn reply(
        &mut self,
        (question, draft): (usize, DraftNo),
        nth: usize,
        checked: Result<VerifyReply, CloudFault>,
    ) {
        let mut at = self.now + self.latency(question, draft << 8 | 1);
        let checked = match self.check_fault(question, nth) {
            Some(CheckFault::Silence) => return,
            Some(CheckFault::ReplyLost) => Err(CloudFault::Disconnected),
            Some(CheckFault::Late(ms)) => {
                at += ms * MS;
                checked
            }
            _ => checked,
        };
        self.at(at, What::Checked { question, draft, checked });
    }

    /// What came of a draft arrives at the device.
    pub(super) fn checked(
        &mut self,
        number: usize,
        draft: DraftNo,
        checked: Result<VerifyReply, CloudFault>,
    ) {
        let Some(answer) = self.answers.get_mut(&number) else { return };
        if answer.draft != Some(draft) || answer.finished() {
            return;
        }
        answer.draft = None;
        self.tell(|| format!("question {number} hears of draft {draft}: {checked:?}"));
        let known = checked.as_ref().map_or(u64::MAX, |reply| u64::from(reply.accepted));
        self.trace.add("checked", &[self.now, number as u64, known]);
        self.relay(number, RelayEvent::Checked(checked));
    }

    /// The device waits for its draft no longer.
    pub(super) fn drop_draft(&mut self, number: usize) {
        let Some(draft) = self.answers.get_mut(&number).and_then(|answer| answer.draft.take()) else {
            return;
        };
        // Behind the request, if that is still under way.
        let at = self.now + 2 * self.latency(number, draft << 8);
        self.at(at, What::DraftGone(draft));
    }

    /// The cloud ends: whoever waits for a draft is told.
    pub(super) fn break_drafts(&mut self) {
        let Some(up) = &mut self.cloud.up else { return };
        let waiting: Vec<(usize, DraftNo)> =
            up.drafts.checking.drain(..).map(|checking| (checking.question, checking.draft)).collect();
        for (question, draft) in waiting {
            let at = self.now + self.latency(question, draft << 8 | 1);
            self.at(at, What::Checked { question, draft, checked: Err(unreachable()) });
        }
    }

    /// Checks that what was verified is what the cloud alone writes, and the rest what the device writes.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn check_verified(&self, answer: &Answer, shape: &DeviceShape) -> Result<(), String> {
        let (seen, question) = (&answer.seen, &answer.question);
        let model = Device::model(shape);
        for run in &seen.runs {
            run.check(shape.voice, model, &question.sampling)?;
        }
        let outcome = seen.outcome.as_ref();
        let Some(figures) = outcome.and_then(|outcome| outcome.timeline.verification) else { return Ok(()) };
        let voice = self.scenario.cloud.voice;
        let Some(at) = figures.unverified_from else {
            return seen.check_whole(question, voice, model, &answer.first_request().segments);
        };
        // All of it that is not held back.
        let mut whole = Whole::new(voice, answer.first_request());
        let mut stop = StopStrings::new(&question.sampling.stop).map_err(|err| err.to_string())?;
        let mut characters = Detokenizer::new(Arc::clone(model.tokenizer()));
        let pieces = whole.first(at).iter().map(|id| stop.push(&characters.push(*id)).text);
        let verified = pieces.collect::<String>();
        match seen.text().starts_with(&verified) || verified.starts_with(seen.text()) {
            true => Ok(()),
            false => Err(format!("I10: {:?} is shown, {verified:?} was verified", seen.text())),
        }
    }
}
