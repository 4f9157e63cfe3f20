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
//! identity papers, keys, passwords after a word for them, user names in paths. Not covered are names of people,
//! streets and places, dates of birth, and whatever else only its meaning makes private.

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
pub use restore::{Escape, Restorer};
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

/// A text with what was found in it.
struct Checked<'a> {
    normal: Normal<'a>,
    found: Vec<Finding>,
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

    /// Redacts groups of texts. The texts of a group follow each other without a gap: values are found across their
    /// borders, and each text gets its part of such a value.
    fn redact_groups(&mut self, groups: &[&[&str]]) -> Result<Vec<Vec<Redacted>>, RedactError> {
        let joined: Vec<String> = groups.iter().map(|texts| texts.concat()).collect();
        let checked = joined.iter().map(|text| self.check(text)).collect::<Result<Vec<_>, _>>()?;
        let values = checked.iter().zip(&joined).flat_map(|(checked, text)| {
            checked
                .found
                .iter()
                .map(|(range, kind)| (*kind, Normal::new(&text[range.clone()]).text().to_owned()))
        });
        let known = self.memory.learn(values);
        let mut out = Vec::with_capacity(groups.len());
        for ((checked, text), texts) in checked.into_iter().zip(&joined).zip(groups) {
            let Checked { normal, mut found } = checked;
            found.extend(
                known.find(normal.text()).into_iter().map(|(range, kind)| (normal.original(&range), kind)),
            );
            let found = merged(found);
            let mut start = 0;
            let mut redacted = Vec::with_capacity(texts.len());
            for part in *texts {
                redacted.push(self.replace(text, &(start..start + part.len()), &found)?);
                start += part.len();
            }
            out.push(redacted);
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

    /// What the detectors find, and what looks like a placeholder.
    fn check<'a>(&self, text: &'a str) -> Result<Checked<'a>, RedactError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(RedactError::TooLong { len: text.len(), max: TEXT_BYTES_MAX });
        }
        let normal = Normal::new(text);
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
        let mut found: Vec<Finding> =
            found.into_iter().map(|f| (normal.original(&f.range), f.kind)).collect();
        found.extend(placeholder_ranges(text).map(|range| (range, EntityKind::Text)));
        Ok(Checked { normal, found: merged(found) })
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
