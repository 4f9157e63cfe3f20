//! Tests of the scheduler in virtual time, and of the writing of answers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod admission;
mod drafts;
mod evidence;
mod fairness;
mod host;
mod orders;
mod proposals;
mod scheduler;
mod world;

use std::collections::HashMap;
use std::time::Duration;

use baton_generate::scheduler::{
    AnswerEnd, BacklogBound, Event, Goal, JobId, JobSpec, Limits, MixedTokens, Outcome, SchedulerCore, Share,
    StepBudget,
};

/// A token that does not end its answer.
const ONE: Outcome = Outcome { proposed: 0, accepted: 0, written: 1, end: None };
/// A token that is the last one allowed.
const LAST: Outcome = Outcome { end: Some(AnswerEnd::Cap), ..ONE };
/// An end token.
const END: Outcome = Outcome { written: 0, end: Some(AnswerEnd::Stop), ..ONE };

/// Limits of a scheduler of one sequence, without proposals.
const LIMITS: Limits = Limits {
    slots: 1,
    queue: 0,
    backlog: BacklogBound::NONE,
    kv_tokens: 1024,
    kv_block: 1,
    budget: StepBudget { chunk_tokens: 512, mixed: MixedTokens::MaxStall(5.0) },
    admit_tokens: 1,
    logit_rows: 64,
    speculation: None,
};

/// Returns the end of a pass on a machine of its own.
fn done(outcomes: Vec<(JobId, Outcome)>) -> Event {
    Event::StepDone { outcomes, waited: Duration::ZERO }
}

/// Returns a request without bytes, deadline or tenant, whose cap is not lowered.
fn plain(id: u64, prompt_tokens: usize, max_tokens: usize, tail_tokens: usize) -> JobSpec {
    JobSpec {
        id: JobId(id),
        prompt_tokens,
        max_tokens,
        floor_tokens: max_tokens,
        tail_tokens,
        pass_tokens: usize::MAX,
        bytes: 0,
        deadline: None,
        share: Share::default(),
        goal: Goal::Write,
    }
}

/// Returns the outcome of a pass that brings a sequence one more token: it ends at its cap.
fn token(core: &SchedulerCore, written: &mut HashMap<JobId, usize>, id: JobId) -> (JobId, Outcome) {
    let tokens = written.entry(id).or_default();
    *tokens += 1;
    let cap = core.max_tokens(id).is_some_and(|most| *tokens >= most);
    (id, if cap { LAST } else { ONE })
}
