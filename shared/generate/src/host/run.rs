//! One job to its end on the caller's thread, for whoever measures or evaluates.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_engine::{AttentionScores, Sequences, StepControl};

use super::{Host, NotTaken};
use crate::answer::Answer;
use crate::job::{Job, JobEvent, Opened, Sink};
use crate::scheduler::Closed;

/// A job that has ended.
pub struct Finished {
    /// The answer, with all its tokens.
    pub answer: Answer,
    /// Its end. A job that was to hold, and does, is cancelled.
    pub closed: Closed,
    /// Whether a goal to hold was reached.
    pub held: bool,
    /// The scores of the answer's window.
    pub scores: Option<AttentionScores>,
    /// Tokens of the prompt that were computed, not found in the cache.
    pub computed_tokens: usize,
}

/// What a job gives while it runs.
#[derive(Default)]
struct Gathered {
    end: Option<(Closed, Answer)>,
    held: bool,
    scores: Option<AttentionScores>,
    computed_tokens: usize,
}

/// Keeps everything for [`Host::run`].
struct Gather(Arc<Mutex<Gathered>>);

impl Gather {
    fn with(&self, change: impl FnOnce(&mut Gathered)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Sink for Gather {
    fn opened(&mut self, _opened: Opened) {}

    fn event(&mut self, event: JobEvent) {
        self.with(|gathered| match event {
            JobEvent::Scores(scores) => gathered.scores = Some(scores),
            JobEvent::Computed { tokens, .. } => gathered.computed_tokens += tokens,
            JobEvent::Held => gathered.held = true,
            JobEvent::Begun { .. } | JobEvent::Verified(_) | JobEvent::Written(_) => {}
        });
    }

    fn flush(&mut self, _now: Duration) {}

    fn closed(self: Box<Self>, closed: &Closed, answer: Answer) {
        self.with(|gathered| gathered.end = Some((*closed, answer)));
    }
}

/// Reads nothing, for jobs of [`Host::run`].
impl Sink for () {
    fn opened(&mut self, _opened: Opened) {}

    fn event(&mut self, _event: JobEvent) {}

    fn flush(&mut self, _now: Duration) {}

    fn closed(self: Box<Self>, _closed: &Closed, _answer: Answer) {}
}

impl<S: Sequences> Host<S> {
    /// Runs one job to its end on this thread, alone; a job that is to hold ends when it does. The job's own
    /// sink is not used. `control` may stop the job at any layer; it is then cancelled.
    ///
    /// # Errors
    /// [`NotTaken`] if the job is refused.
    ///
    /// # Panics
    /// If another job is under way.
    pub fn run(&mut self, job: Job, control: &mut dyn StepControl) -> Result<Finished, NotTaken> {
        assert!(self.jobs.is_empty(), "a host runs a job alone");
        let gathered = Arc::new(Mutex::new(Gathered::default()));
        let (cancel, sink) = (job.cancel.clone(), Gather(Arc::clone(&gathered)));
        self.handle.submit(Job { sink: Box::new(sink), ..job })?;
        loop {
            let pass = self.turn_under(control);
            let idle = pass.is_none();
            if let Some(pass) = pass {
                self.conclude(pass);
            }
            let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((closed, answer)) = gathered.end.take() {
                let (held, scores) = (gathered.held, gathered.scores.take());
                let computed_tokens = gathered.computed_tokens;
                return Ok(Finished { answer, closed, held, scores, computed_tokens });
            }
            let held = gathered.held;
            drop(gathered);
            if held {
                cancel.set();
            } else if idle {
                self.handle.sleep(self.seen, None);
            }
        }
    }
}
