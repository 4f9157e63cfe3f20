//! What a redactor does with names: whether it looks for them, and the user's own list.

use super::known::Matcher;
use std::ops::Range;
use std::sync::Arc;

/// Fewest letters and digits of an entry of the user's list; shorter ones would be found everywhere.
pub const OWN_CHARS_MIN: usize = 2;

/// What a redactor does with names.
#[derive(Clone)]
pub struct PrivateNames {
    detected: bool,
    guessed: bool,
    own: Option<Arc<Matcher>>,
}

impl Default for PrivateNames {
    /// Names are looked for, and the user's list is empty.
    fn default() -> Self {
        Self { detected: true, guessed: false, own: None }
    }
}

impl std::fmt::Debug for PrivateNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = self.own.is_some();
        f.debug_struct("PrivateNames")
            .field("detected", &self.detected)
            .field("guessed", &self.guessed)
            .field("own", &own)
            .finish()
    }
}

impl PrivateNames {
    /// Sets whether names of people, places and organisations are looked for, and texts that are always
    /// replaced, in any case of letters. Entries with fewer than [`OWN_CHARS_MIN`] letters and digits are
    /// left out.
    pub fn new<S: AsRef<str>>(detected: bool, own: &[S]) -> Self {
        let long = |text: &&str| text.chars().filter(|c| c.is_alphanumeric()).count() >= OWN_CHARS_MIN;
        let own: Vec<&str> = own.iter().map(|text| text.as_ref().trim()).filter(long).collect();
        Self { detected, guessed: false, own: (!own.is_empty()).then(|| Arc::new(Matcher::of_list(&own))) }
    }

    /// Sets whether words that no list has may be names too, as in conversations. In other texts most such
    /// words are terms.
    #[must_use]
    pub fn guessing(self, guessed: bool) -> Self {
        Self { guessed, ..self }
    }

    /// Returns whether words that no list has may be names.
    pub(super) fn guessed(&self) -> bool {
        self.guessed
    }

    /// Returns whether names are looked for.
    pub fn detected(&self) -> bool {
        self.detected
    }

    /// Returns the ranges of a text in normal form that hold an entry of the user's list.
    pub(super) fn find_own(&self, text: &str) -> Vec<Range<usize>> {
        let found = self.own.iter().flat_map(|own| own.find(text));
        found.map(|(range, _)| range).collect()
    }
}
