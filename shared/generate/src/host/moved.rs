//! Keys and values that leave the engine, and jobs that begin with those of another engine.
//!
//! Never: makes an answer wait for what leaves. A pass is held up by at most [`BYTES_A_PASS`], and an export
//! ends as soon as an answer needs its room. Always: a job that cannot take what came goes on with its own
//! prompt.

use std::collections::VecDeque;

use baton_engine::{KvError, RowsError, SeqId, Sequences};
use tracing::debug;

use super::{Host, chain};
use crate::hooks::Fault;
use crate::job::{Export, JobEvent, Take};
use crate::planted::{self, Bug};
use crate::scheduler::{Event, Goal, JobId};

/// Bytes that leave between two passes.
const BYTES_A_PASS: usize = 4 << 20;

/// One export under way.
struct Leaving {
    /// A fork of the prompt.
    seq: SeqId,
    export: Export,
    /// The next part.
    next: usize,
}

/// The exports under way, the oldest first.
#[derive(Default)]
pub(super) struct Exports(VecDeque<Leaving>);

impl Exports {
    /// Returns whether something is to leave.
    pub(super) fn are_under_way(&self) -> bool {
        !self.0.is_empty()
    }

    /// Ends the newest export; returns whether there was one.
    pub(super) fn give_up(&mut self, engine: &mut impl Sequences) -> bool {
        let newest = self.0.pop_back();
        if let Some(leaving) = &newest {
            debug!("an export gives way to an answer");
            engine.release(leaving.seq);
        }
        newest.is_some()
    }
}

impl<S: Sequences> Host<S> {
    /// Begins to give away keys and values of a sequence, whose prompt has so many tokens.
    pub(super) fn begin_export(&mut self, seq: SeqId, prompt_tokens: usize, export: Export) {
        match self.engine.fork(seq, prompt_tokens.saturating_sub(1)) {
            Ok(seq) => self.exports.0.push_back(Leaving { seq, export, next: 0 }),
            Err(err) => debug!(err = chain(&err), "nothing leaves of a prompt"),
        }
    }

    /// Gives the next rows to whoever wants them.
    pub(super) fn export_some(&mut self) {
        let mut left = BYTES_A_PASS;
        while left > 0 {
            let Some(leaving) = self.exports.0.front_mut() else { return };
            let Leaving { seq, export, next } = leaving;
            let part = export.parts.get(*next).filter(|_| export.taker.wants()).cloned();
            let Some((layer, range)) = part else {
                self.end_export();
                continue;
            };
            if planted::is(Bug::RowsTwice)
                && let [.., before, last] = &mut export.positions[..]
            {
                *last = *before;
            }
            let positions = export.positions.get(range).unwrap_or_default();
            let mut rows = Vec::new();
            match self.engine.export_rows(*seq, layer, positions, export.format, &mut rows) {
                Ok(()) => {
                    left = left.saturating_sub(rows.len().max(1));
                    export.taker.take(&rows);
                    *next += 1;
                }
                Err(err) => {
                    debug!(err = chain(&err), "an export ends");
                    self.end_export();
                }
            }
        }
    }

    /// Ends the oldest export.
    fn end_export(&mut self) {
        if let Some(leaving) = self.exports.0.pop_front() {
            self.engine.release(leaving.seq);
        }
    }

    /// Lets a job go on from keys and values that came from elsewhere.
    pub(super) fn take_rows(&mut self, id: JobId, take: Take) -> Result<(), Fault> {
        let Some(entry) = self.jobs.get_mut(&id) else { return Ok(()) };
        let Take { ids, rows, max_tokens, pass_tokens } = take;
        entry.cancel.replaced();
        let (prompt_tokens, upto) = (ids.len(), ids.len().saturating_sub(1));
        let holds = matches!(entry.goal, Goal::Hold { .. });
        let made = match entry.seq {
            Some(old) if holds => loop {
                let known = &ids[..upto];
                match self.engine.import_rows(entry.scope, entry.adapter, known, &rows) {
                    Err(RowsError::Kv(KvError::KvFull { .. })) if self.idle.give_up(&mut self.engine) => {}
                    made => break made.map(|seq| (old, seq)).map_err(|err| chain(&err)),
                }
            },
            Some(_) => Err("the answer is decided already".to_owned()),
            None => Err("the answer has no slot now".to_owned()),
        };
        let (old, seq) = match made {
            Ok(made) => made,
            Err(reason) => {
                entry.sink.not_taken(reason);
                let now = self.handle.now();
                self.flush(id, now);
                return Ok(());
            }
        };
        let goal = Goal::Hold { upto };
        entry.answer.set_prompt(ids, None);
        entry.sink.another_prompt();
        (entry.goal, entry.max_tokens, entry.begun, entry.told) = (goal, max_tokens, false, false);
        (entry.seq, entry.is_thin) = (Some(seq), true);
        entry.sink.event(JobEvent::Begun { tokens: prompt_tokens, cached: upto });
        self.engine.release(old);
        self.told(id, Event::Prompt { id, prompt_tokens, max_tokens, pass_tokens, kept: upto, goal });
        Ok(())
    }
}
