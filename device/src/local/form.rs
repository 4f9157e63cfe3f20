//! The form of one answer, as it goes to the engine with the answer.

use baton_generate::hooks::Constraint;
use std::sync::{Arc, Mutex, PoisonError};

/// The form of one answer, until the answer takes it.
#[derive(Clone)]
pub struct OnceForm(Arc<Mutex<Option<Box<dyn Constraint>>>>);

impl OnceForm {
    /// Makes the form of one answer.
    pub fn new(constraint: impl Constraint + 'static) -> OnceForm {
        OnceForm(Arc::new(Mutex::new(Some(Box::new(constraint)))))
    }

    /// Returns the constraint; `None` if another answer took it.
    pub(super) fn take(&self) -> Option<Box<dyn Constraint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A form equals its clones only.
impl PartialEq for OnceForm {
    fn eq(&self, other: &OnceForm) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for OnceForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnceForm").finish_non_exhaustive()
    }
}
