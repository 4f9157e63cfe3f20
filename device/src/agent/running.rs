//! Answers under way, with the text that their readers have: it may come back in another question.
//!
//! Private values that an answer restored must be known before the next question is redacted. An answer that
//! has ended is in the redactor's memory; this holds the others. Always: text is noted before it is shown.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::privacy::PlaceholderTable;

/// One answer, with its private values and the text shown so far.
struct Shown {
    id: u64,
    table: Arc<PlaceholderTable>,
    text: String,
}

#[derive(Default)]
struct All {
    answers: Vec<Shown>,
    next_id: u64,
}

/// All answers under way that have private values.
#[derive(Clone, Default)]
pub(super) struct RunningAnswers(Arc<Mutex<All>>);

impl RunningAnswers {
    /// Adds an answer; it counts as under way until the result is dropped.
    pub(super) fn begin(&self, table: Arc<PlaceholderTable>) -> Running {
        let mut all = self.lock();
        let id = all.next_id;
        all.next_id += 1;
        all.answers.push(Shown { id, table, text: String::new() });
        drop(all);
        Running { id, all: self.clone() }
    }

    /// Returns the values and the text so far of each answer.
    pub(super) fn shown(&self) -> Vec<(Arc<PlaceholderTable>, String)> {
        self.lock().answers.iter().map(|shown| (Arc::clone(&shown.table), shown.text.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for RunningAnswers {
    /// Shows no text: it is private.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RunningAnswers").field(&self.lock().answers.len()).finish()
    }
}

/// An answer under way.
pub(super) struct Running {
    id: u64,
    all: RunningAnswers,
}

impl Running {
    /// Notes text that is about to be shown.
    pub(super) fn shows(&self, text: &str) {
        if let Some(shown) = self.all.lock().answers.iter_mut().find(|shown| shown.id == self.id) {
            shown.text.push_str(text);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.all.lock().answers.retain(|shown| shown.id != self.id);
    }
}
