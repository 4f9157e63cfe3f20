//! Privacy: replaces personal data by stable placeholders before any text leaves this device.
//!
//! [`Redactor`] is the only maker of [`Redacted`] text and of a [`RedactedRequest`], and the cloud client takes nothing
//! else, so nothing unchecked can be sent. Each text is brought to a normal form, detectors find values in it, and a
//! second pass looks for every value that is known from anywhere: other messages, options, earlier requests
//! ([`Memory`]). The device works on the same redacted text as the cloud (mask, corrector and takeover must agree);
//! [`Restorer`] puts the values back as the last step before display.
//! Never does I/O, never logs a value. Always holds: `restore(redact(x)) == x` for every string `x`, the same value
//! has the same placeholder within one redactor, and a detector that fails makes the whole redaction fail.
//!
//! Covered are values with a form: addresses of mail, machines and wallets, numbers of phones, cards, accounts and
//! identity papers, keys, passwords after a word for them, user names in paths. The word may stand in the same
//! sentence, in the field or tag before, or in the header row of a table whose cells are parted by commas,
//! semicolons, tabs or bars. Not covered are names of people, streets and places, dates of birth, and whatever else
//! only its meaning makes private. Nor is a secret without a form of its own whose word stands behind it, in another
//! sentence, or only in the header row of a table of HTML or of columns aligned by spaces.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

mod checksum;
mod detect;
mod kind;
mod known;
mod normal;
mod request;
mod restore;
mod table;

pub use detect::{BuiltIn, DetectError, Detector, Found};
pub use kind::EntityKind;
pub use known::{Memory, REMEMBERED_MAX};
pub use request::{PublicName, RedactedRequest};
pub use restore::Restorer;
pub use table::PlaceholderTable;

use normal::Normal;

/// Longest text that is checked, in bytes; longer text is refused instead of being sent unchecked.
pub const TEXT_BYTES_MAX: usize = 8 << 20;
/// Most different values of one kind in one redactor.
pub const ENTITIES_MAX: u32 = 100_000;

/// Why a text was not redacted; nothing of it may be sent then.
#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    /// A detector failed, so that the text cannot be called clean.
    #[error("privacy detector `{detector}` failed")]
    Detector {
        /// Name of the detector.
        detector: &'static str,
        /// What it said.
        #[source]
        err: DetectError,
    },
    /// The text is longer than what is checked.
    #[error("text has {len} bytes, privacy check takes at most {max}")]
    TooLong {
        /// Bytes of the text.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Too many different values.
    #[error("more than {max} different private values")]
    TooManyEntities {
        /// The limit.
        max: u32,
    },
    /// A name that is sent as it is holds a private value.
    #[error("`{field}` holds a private value, so it cannot be sent to the cloud; choose another name")]
    PrivateName {
        /// What the name names.
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

/// Text in which every detected value is a placeholder. Only [`Redactor`] makes one.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted(String);

impl Redacted {
    /// The text as it may be sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redacted({} bytes)", self.0.len())
    }
}

/// Replaces private values by placeholders; one redactor serves one request, a [`Memory`] the whole conversation.
pub struct Redactor {
    detectors: Vec<Box<dyn Detector>>,
    table: PlaceholderTable,
    memory: Memory,
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

/// A finding in the original text.
type Finding = (Range<usize>, EntityKind);

/// A part of a text with what the detectors found in it.
struct Checked<'a> {
    part: &'a str,
    normal: Normal<'a>,
    /// Byte of the text at which the part begins.
    start: usize,
    /// In the part.
    found: Vec<Finding>,
}

impl Checked<'_> {
    /// A found value in normal form.
    fn value(&self, (range, kind): &Finding) -> (EntityKind, String) {
        (*kind, Normal::new(&self.part[range.clone()]).text().to_owned())
    }

    /// Everything that is found, as ranges of the whole text.
    fn with_known(self, known: &known::Matcher) -> Vec<Finding> {
        let again = known.find(self.normal.text());
        let again = again.into_iter().map(|(range, kind)| (self.normal.original(&range), kind));
        let all = self.found.iter().cloned().chain(again);
        all.map(|(range, kind)| (range.start + self.start..range.end + self.start, kind)).collect()
    }
}

/// Where each of these texts lies in all of them together.
fn parts(texts: &[&str]) -> Vec<Range<usize>> {
    let mut start = 0;
    let place = |text: &&str| {
        start += text.len();
        start - text.len()..start
    };
    texts.iter().map(place).collect()
}

impl Redactor {
    /// A redactor with its own list of detectors; [`Redactor::default`] has all built-in ones.
    pub fn new(detectors: Vec<Box<dyn Detector>>) -> Self {
        Self { detectors, table: PlaceholderTable::default(), memory: Memory::default() }
    }

    /// The same redactor, which also replaces what `memory` knows, and adds to it what it finds.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    /// Replaces every private value of `text`, and everything that already looks like a placeholder.
    ///
    /// # Errors
    /// [`RedactError`] when a detector fails or a limit is passed; the table may then hold values of this text,
    /// which is harmless.
    pub fn redact(&mut self, text: &str) -> Result<Redacted, RedactError> {
        Ok(self.redact_all(&[text])?.pop().expect("one text gives one"))
    }

    /// The same for texts that belong together: a value found in one is replaced in all.
    ///
    /// # Errors
    /// As [`Redactor::redact`].
    pub fn redact_all(&mut self, texts: &[&str]) -> Result<Vec<Redacted>, RedactError> {
        let groups: Vec<&[&str]> = texts.chunks(1).collect();
        Ok(self.redact_groups(&groups)?.into_iter().flatten().collect())
    }

    /// Checks text that a model wrote from redacted text: this redactor's own placeholders stay as they are,
    /// everything else is treated as in [`Redactor::redact`].
    ///
    /// # Errors
    /// As [`Redactor::redact`].
    pub fn redact_answer(&mut self, text: &str) -> Result<Redacted, RedactError> {
        let own: Vec<Range<usize>> = placeholder_ranges(text)
            .filter(|range| self.table.value(&text[range.clone()]).is_some())
            .collect();
        let ends = own.iter().map(|range| range.start).chain([text.len()]);
        let starts = [0].into_iter().chain(own.iter().map(|range| range.end));
        let between: Vec<&str> = starts.zip(ends).map(|(start, end)| &text[start..end]).collect();
        let mut out = String::with_capacity(text.len());
        let mut placeholders = own.iter();
        for redacted in self.redact_all(&between)? {
            out.push_str(redacted.as_str());
            out.push_str(placeholders.next().map_or("", |range| &text[range.clone()]));
        }
        Ok(Redacted(out))
    }

    /// A copy of the table for a [`Restorer`].
    pub fn table(&self) -> Arc<PlaceholderTable> {
        Arc::new(self.table.clone())
    }

    /// Redacts groups of texts. The texts of a group follow each other without a gap: values are found in each text and
    /// across their borders, and each text gets its part of such a value.
    fn redact_groups(&mut self, groups: &[&[&str]]) -> Result<Vec<Vec<Redacted>>, RedactError> {
        let joined: Vec<String> = groups.iter().map(|texts| texts.concat()).collect();
        let mut checked = Vec::with_capacity(groups.len());
        for (text, texts) in joined.iter().zip(groups) {
            let parts = parts(texts);
            // A text that ends with a letter would hide a value at the beginning of the next one.
            let whole = (parts.len() != 1).then_some(0..text.len());
            let views = whole.into_iter().chain(parts);
            checked.push(views.map(|view| self.check(text, view)).collect::<Result<Vec<_>, _>>()?);
        }
        let values =
            checked.iter().flatten().flat_map(|view| view.found.iter().map(|found| view.value(found)));
        let known = self.memory.learn(values);
        let mut out = Vec::with_capacity(groups.len());
        for ((views, text), texts) in checked.into_iter().zip(&joined).zip(groups) {
            let found = merged(views.into_iter().flat_map(|view| view.with_known(&known)).collect());
            let parts = parts(texts).into_iter();
            out.push(parts.map(|part| self.replace(text, &part, &found)).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(out)
    }

    /// The part of `text` with its findings replaced.
    fn replace(
        &mut self,
        text: &str,
        part: &Range<usize>,
        found: &[Finding],
    ) -> Result<Redacted, RedactError> {
        let mut out = String::with_capacity(part.len());
        let mut from = part.start;
        let first = found.partition_point(|(range, _)| range.end <= part.start);
        for (range, kind) in &found[first..] {
            if range.start >= part.end {
                break;
            }
            let range = range.start.max(part.start)..range.end.min(part.end);
            out.push_str(&text[from..range.start]);
            out.push_str(self.table.placeholder(*kind, &text[range.clone()])?);
            from = range.end;
        }
        out.push_str(&text[from..part.end]);
        Ok(Redacted(out))
    }

    /// What the detectors find in a part of a text, and what looks like a placeholder there.
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
        found.extend(placeholder_ranges(text).map(|range| (range, EntityKind::Text)));
        Ok(Checked { part: text, normal, start, found: merged(found) })
    }

    /// What the detectors find in a text, as ranges of the original.
    fn detect(&self, normal: &Normal<'_>) -> Result<Vec<Finding>, RedactError> {
        let mut found = Vec::new();
        for detector in &self.detectors {
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
        Ok(found.into_iter().map(|f| (normal.original(&f.range), f.kind)).collect())
    }
}

/// Findings in order, united where they overlap; the stronger kind names what is united.
fn merged(mut found: Vec<Finding>) -> Vec<Finding> {
    found.sort_by_key(|(range, _)| (range.start, range.end));
    let mut merged: Vec<Finding> = Vec::with_capacity(found.len());
    for (range, kind) in found {
        match merged.last_mut() {
            Some((last, last_kind)) if range.start < last.end => {
                last.end = last.end.max(range.end);
                *last_kind = (*last_kind).max(kind);
            }
            _ => merged.push((range, kind)),
        }
    }
    merged
}

/// Ranges of text that already looks like a placeholder.
fn placeholder_ranges(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    restore::pattern().find_iter(text).map(|m| m.range())
}

#[cfg(test)]
mod tests;
