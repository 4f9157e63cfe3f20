//! Privacy: replaces personal data with stable placeholders before any text leaves this device.
//!
//! Only [`Redactor`] makes [`Redacted`] text and a [`RedactedRequest`], and the cloud client takes nothing
//! else, so nothing unchecked can be sent. Each text is brought to a normal form, and detectors find values
//! in it. A second pass looks for every value that is known from other messages, options or earlier requests
//! ([`Memory`]). A device that helps the cloud works on the same redacted text, because mask, corrector and
//! takeover must agree; one that answers alone reads the text as it was given. [`Restorer`] puts the values
//! back as the last step before display.
//!
//! Never does I/O, never logs a value. What always holds: `restore(redact(x)) == x` for every string `x`. The
//! same value has the same placeholder within one redactor. A detector that fails makes the whole redaction
//! fail.
//!
//! Names of people, places and organisations are found too, in English, German, Spanish and Chinese
//! (`detect/names.rs`). The user can switch that off, and give a list of texts that are always replaced
//! ([`PrivateNames`]).
//!
//! Covered are values with a recognizable form:
//!
//! - addresses of mail, machines and wallets;
//! - numbers of phones, cards, accounts and identity papers;
//! - keys, passwords after a word for them, and user names in paths.
//!
//! The word may be in the same sentence, or in the field or tag before. It may also be in the header row of a
//! table whose cells are separated by commas, semicolons, tabs or bars.
//!
//! Not covered are dates of birth, and everything that only its meaning makes private. Of names, some are
//! missed: single names that no list has and that nothing in their sentence shows, and foreign names in
//! Chinese text. Also not covered is a secret without a form of its own, if its word comes after it or in
//! another sentence. The same holds if its word is only in the header row of an HTML table or of columns
//! aligned by spaces.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

mod checksum;
mod detect;
mod kind;
mod known;
mod normal;
mod origin;
mod private_names;
mod replaced;
mod request;
mod restore;
mod table;
mod turn;

pub use detect::{BuiltIn, Certainty, DetectError, Detector, Found};
pub use kind::EntityKind;
pub use known::{Memory, REMEMBERED_MAX};
pub use origin::{Origin, Span};
pub use private_names::{OWN_CHARS_MIN, PrivateNames};
pub use replaced::Replaced;
pub use request::{PublicName, RedactedRequest};
pub use restore::{Quoting, Restorer};
pub use table::PlaceholderTable;

use detect::NAMES;
use normal::Normal;

/// Longest text that is checked, in bytes; longer text is refused, never sent unchecked.
pub const TEXT_BYTES_MAX: usize = 8 << 20;
/// Most different values of one kind in one redactor.
pub const ENTITIES_MAX: u32 = 100_000;

/// Why a text was not redacted; then nothing of it may be sent.
#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    /// A detector failed, so the text may still hold private values.
    #[error("privacy detector `{detector}` failed")]
    Detector {
        /// Name of the detector.
        detector: &'static str,
        /// The detector's error.
        #[source]
        err: DetectError,
    },
    /// The text is too long to be checked.
    #[error("text has {len} bytes, privacy check takes at most {max}")]
    TooLong {
        /// Length of the text in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// There are too many different values.
    #[error("more than {max} different private values")]
    TooManyEntities {
        /// The limit.
        max: u32,
    },
    /// A name that would be sent unchanged holds a private value.
    #[error("`{field}` holds a private value, so it cannot be sent to the cloud; choose another name")]
    PrivateName {
        /// The field with the name.
        field: &'static str,
    },
    /// A detector returned a range that is not inside the text or cuts a character.
    #[error("privacy detector `{detector}` returned the bad range {start}..{end}")]
    BadRange {
        /// Name of the detector.
        detector: &'static str,
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
}

/// Text in which every detected value is replaced by a placeholder. Only [`Redactor`] makes one.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted {
    text: String,
    /// Where the parts of the text come from.
    parts: Vec<Span>,
    /// Bytes of the text as it was given.
    given_bytes: usize,
}

impl Redacted {
    /// Returns the text, which may be sent.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text, and where its parts come from if it stands at this place of a request.
    fn at(self, place: impl Into<String>) -> (String, Origin) {
        let origin =
            Origin { text: place.into(), role: None, given_bytes: self.given_bytes, parts: self.parts };
        (self.text, origin)
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redacted({} bytes)", self.text.len())
    }
}

/// Replaces private values with placeholders. One redactor serves one request; a [`Memory`] serves the whole
/// conversation.
pub struct Redactor {
    detectors: Vec<Box<dyn Detector>>,
    table: PlaceholderTable,
    memory: Memory,
    names: PrivateNames,
    /// Names of functions, fields and models of the request, in lower case. They are not private.
    public: HashSet<String>,
    /// Whether only values with a form of their own are replaced, and the user's list.
    only_forms: bool,
}

impl Default for Redactor {
    fn default() -> Self {
        Self::new(BuiltIn::all())
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A value found in the original text.
#[derive(Debug, Clone)]
struct Finding {
    /// Its bytes.
    range: Range<usize>,
    kind: EntityKind,
    certainty: Certainty,
}

/// A part of a text, and what the detectors found in it.
struct Checked<'a> {
    part: &'a str,
    normal: Normal<'a>,
    /// Position of the part in the text, in bytes.
    start: usize,
    /// Findings, as byte ranges in the part.
    found: Vec<Finding>,
}

impl Checked<'_> {
    /// Returns a found value in normal form.
    fn value(&self, found: &Finding) -> (EntityKind, String) {
        (found.kind, Normal::new(&self.part[found.range.clone()]).text().to_owned())
    }

    /// Returns all findings, known values included, as ranges of the whole text. `is_wanted`: whether a known
    /// value of a kind is looked for.
    fn with_known(
        self,
        known: &known::Matcher,
        is_wanted: impl Fn(EntityKind, &str) -> bool,
    ) -> Vec<Finding> {
        let text = self.normal.text();
        let mut again = known.find(text);
        again.retain(|(range, kind)| is_wanted(*kind, &text[range.clone()]));
        let again = again.into_iter().map(|(range, kind)| Finding {
            range: self.normal.original(&range),
            kind,
            certainty: Certainty::Shown,
        });
        let all = self.found.iter().cloned().chain(again);
        let moved = |range: Range<usize>| range.start + self.start..range.end + self.start;
        all.map(|found| Finding { range: moved(found.range), ..found }).collect()
    }
}

/// Returns the range of each text in the concatenation of all.
fn parts(texts: &[&str]) -> Vec<Range<usize>> {
    let mut start = 0;
    let place = |text: &&str| {
        start += text.len();
        start - text.len()..start
    };
    texts.iter().map(place).collect()
}

impl Redactor {
    /// Makes a redactor with these detectors; [`Redactor::default`] has all built-in ones.
    pub fn new(detectors: Vec<Box<dyn Detector>>) -> Self {
        Self {
            detectors,
            table: PlaceholderTable::default(),
            memory: Memory::default(),
            names: PrivateNames::default(),
            public: HashSet::new(),
            only_forms: false,
        }
    }

    /// Makes the redactor also replace the values in `memory`, and add to it the values that it finds.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    /// Sets what it does with names.
    #[must_use]
    pub fn with_names(mut self, names: PrivateNames) -> Self {
        self.names = names;
        self
    }

    /// Replaces every private value of `text`, and everything that already looks like a placeholder.
    ///
    /// # Errors
    /// [`RedactError`] if a detector fails or a limit is exceeded. The table may then hold values of this
    /// text, which is harmless.
    pub fn redact(&mut self, text: &str) -> Result<Redacted, RedactError> {
        Ok(self.redact_all(&[text])?.pop().expect("one text gives one"))
    }

    /// Redacts texts that belong together: a value found in one is replaced in all.
    ///
    /// # Errors
    /// The errors of [`Redactor::redact`].
    pub fn redact_all(&mut self, texts: &[&str]) -> Result<Vec<Redacted>, RedactError> {
        let groups: Vec<&[&str]> = texts.chunks(1).collect();
        Ok(self.redact_groups(&groups)?.into_iter().flatten().collect())
    }

    /// Redacts text that a model wrote from redacted text. This redactor's own placeholders stay as they are;
    /// everything else is treated as in [`Redactor::redact`].
    ///
    /// # Errors
    /// The errors of [`Redactor::redact`].
    pub fn redact_answer(&mut self, text: &str) -> Result<Redacted, RedactError> {
        let own: Vec<Range<usize>> = placeholder_ranges(text)
            .filter(|range| self.table.value(&text[range.clone()]).is_some())
            .collect();
        let ends = own.iter().map(|range| range.start).chain([text.len()]);
        let starts = [0].into_iter().chain(own.iter().map(|range| range.end));
        let between: Vec<Range<usize>> = starts.zip(ends).map(|(start, end)| start..end).collect();
        let texts: Vec<&str> = between.iter().map(|range| &text[range.clone()]).collect();
        let mut out = Replacing::default();
        let mut placeholders = own.iter();
        for (redacted, range) in self.redact_all(&texts)?.into_iter().zip(&between) {
            out.text.push_str(&redacted.text);
            redacted.parts.into_iter().for_each(|part| out.part(part.moved(range.start)));
            placeholders.next().into_iter().for_each(|range| out.copy(text, range.clone(), 0));
        }
        Ok(out.ended(text.len()))
    }

    /// Returns a copy of the table, for a [`Restorer`].
    pub fn table(&self) -> Arc<PlaceholderTable> {
        Arc::new(self.table.clone())
    }

    /// Redacts groups of texts. The texts of a group follow each other without a gap. Values are found in
    /// each text and across their borders; each text then has its part of such a value replaced.
    fn redact_groups(&mut self, groups: &[&[&str]]) -> Result<Vec<Vec<Redacted>>, RedactError> {
        let joined: Vec<String> = groups.iter().map(|texts| texts.concat()).collect();
        let mut checked = Vec::with_capacity(groups.len());
        for (text, texts) in joined.iter().zip(groups) {
            let parts = parts(texts);
            // Each text is also checked alone, because a text that ends with a letter would hide a value at
            // the start of the next one.
            let whole = (parts.len() != 1).then_some(0..text.len());
            let views = whole.into_iter().chain(parts);
            checked.push(views.map(|view| self.check(text, view)).collect::<Result<Vec<_>, _>>()?);
        }
        let least = if self.names.guessed() { Certainty::Likely } else { Certainty::Shown };
        let values = checked.iter().flatten().flat_map(|view| {
            let sure = view.found.iter().filter(move |found| found.certainty >= least);
            sure.map(move |found| view.value(found))
        });
        let known = self.memory.learn(values);
        let names = self.finds_names();
        let is_wanted =
            |kind: EntityKind, value: &str| (names || !kind.is_name()) && !self.is_public(kind, value);
        let mut out = Vec::with_capacity(groups.len());
        let mut replaced = Vec::with_capacity(groups.len());
        for views in checked {
            let found = views.into_iter().flat_map(|view| view.with_known(&known, is_wanted)).collect();
            replaced.push(merged(found));
        }
        for ((found, text), texts) in replaced.into_iter().zip(&joined).zip(groups) {
            let parts = parts(texts).into_iter();
            out.push(parts.map(|part| self.replace(text, &part, &found)).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(out)
    }

    /// Returns the part of `text` with its findings replaced.
    fn replace(
        &mut self,
        text: &str,
        part: &Range<usize>,
        found: &[Finding],
    ) -> Result<Redacted, RedactError> {
        let mut out = Replacing { text: String::with_capacity(part.len()), ..Replacing::default() };
        let mut from = part.start;
        let first = found.partition_point(|found| found.range.end <= part.start);
        for Finding { range, kind, .. } in &found[first..] {
            if range.start >= part.end {
                break;
            }
            let range = range.start.max(part.start)..range.end.min(part.end);
            out.copy(text, from..range.start, part.start);
            let placeholder = self.table.placeholder(*kind, &text[range.clone()])?;
            out.text.push_str(placeholder);
            let at = [range.start - part.start, range.end - part.start];
            out.part(Span::Replaced { at, kind: *kind, by: placeholder.to_owned() });
            from = range.end;
        }
        out.copy(text, from..part.end, part.start);
        Ok(out.ended(part.len()))
    }

    /// Finds values in a part of a text, and what looks like a placeholder there.
    fn check<'a>(&self, text: &'a str, part: Range<usize>) -> Result<Checked<'a>, RedactError> {
        let (text, start) = (&text[part.clone()], part.start);
        if text.len() > TEXT_BYTES_MAX {
            return Err(RedactError::TooLong { len: text.len(), max: TEXT_BYTES_MAX });
        }
        let normal = Normal::new(text);
        let mut found = self.detect(&normal)?;
        if let Some(encoded) = Normal::with_encoded_spaces(text) {
            found.extend(self.detect(&encoded)?);
        }
        found.extend(placeholder_ranges(text).map(|range| Finding {
            range,
            kind: EntityKind::Text,
            certainty: Certainty::Shown,
        }));
        Ok(Checked { part: text, normal, start, found: merged(found) })
    }

    fn finds_names(&self) -> bool {
        self.names.detected() && !self.only_forms
    }

    /// Runs all detectors on a text; returns ranges of the original.
    fn detect(&self, normal: &Normal<'_>) -> Result<Vec<Finding>, RedactError> {
        let mut found = Vec::new();
        let detectors =
            self.detectors.iter().filter(|detector| self.finds_names() || detector.name() != NAMES);
        for detector in detectors {
            let from = found.len();
            detector
                .find(normal.text(), &mut found)
                .map_err(|err| RedactError::Detector { detector: detector.name(), err })?;
            let bad = |f: &&Found| normal.text().get(f.range.clone()).is_none_or(str::is_empty);
            if let Some(bad) = found[from..].iter().find(bad) {
                let Range { start, end } = bad.range;
                return Err(RedactError::BadRange { detector: detector.name(), start, end });
            }
        }
        let least = if self.names.guessed() { Certainty::Guessed } else { Certainty::Likely };
        found.retain(|f| f.certainty >= least && !self.is_public(f.kind, &normal.text()[f.range.clone()]));
        let own = self.names.find_own(normal.text()).into_iter();
        found.extend(own.map(|range| Found { range, kind: EntityKind::Name, certainty: Certainty::Shown }));
        Ok(found
            .into_iter()
            .map(|f| Finding { range: normal.original(&f.range), kind: f.kind, certainty: f.certainty })
            .collect())
    }

    /// Checks whether a finding is a word that the request uses as the name of a function, a field or a
    /// model. Only kinds that a plain word can be taken for count: a key or a number is never public.
    fn is_public(&self, kind: EntityKind, value: &str) -> bool {
        let wordlike = kind.is_name() || matches!(kind, EntityKind::User | EntityKind::Password);
        wordlike
            && !self.public.is_empty()
            && !value.contains(|c: char| c.is_ascii_digit())
            && value.split_whitespace().all(|word| self.public.contains(&word.to_lowercase()))
    }
}

/// A text while its values are replaced.
#[derive(Default)]
struct Replacing {
    text: String,
    parts: Vec<Span>,
}

impl Replacing {
    /// Appends bytes of `text`, in which the text that was given begins at `start`.
    fn copy(&mut self, text: &str, range: Range<usize>, start: usize) {
        self.text.push_str(&text[range.clone()]);
        self.part(Span::Sent([range.start - start, range.end - start]));
    }

    /// Notes where the next part comes from.
    fn part(&mut self, part: Span) {
        match (self.parts.last_mut(), part) {
            (Some(Span::Sent([_, end])), Span::Sent([start, next])) if *end == start => *end = next,
            (_, Span::Sent([start, end])) if start == end => {}
            (_, part) => self.parts.push(part),
        }
    }

    fn ended(self, given_bytes: usize) -> Redacted {
        Redacted { text: self.text, parts: self.parts, given_bytes }
    }
}

/// Sorts the findings and merges those that overlap; a merged finding has the stronger kind.
fn merged(mut found: Vec<Finding>) -> Vec<Finding> {
    found.sort_by_key(|found| (found.range.start, found.range.end));
    let mut merged: Vec<Finding> = Vec::with_capacity(found.len());
    for next in found {
        match merged.last_mut() {
            Some(last) if next.range.start < last.range.end => {
                last.range.end = last.range.end.max(next.range.end);
                last.kind = last.kind.max(next.kind);
                last.certainty = last.certainty.max(next.certainty);
            }
            _ => merged.push(next),
        }
    }
    merged
}

/// Returns what looks like a placeholder in a text, in order.
pub fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    restore::pattern().find_iter(text).map(|found| found.as_str())
}

/// Finds the ranges of text that already look like a placeholder.
fn placeholder_ranges(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    restore::pattern().find_iter(text).map(|m| m.range())
}

#[cfg(test)]
mod tests;
