//! Privacy: replaces personal data by stable placeholders before any text leaves this device.
//!
//! [`Redactor::redact`] is the only maker of [`Redacted`], and the cloud client takes no other text, so nothing
//! unchecked can be sent. The device works on the same redacted text as the cloud (mask, corrector and takeover
//! must agree); [`Restorer`] puts the values back as the last step before display.
//! Never does I/O, never logs a value. Always holds: `restore(redact(x)) == x` for every string `x`, the same value
//! has the same placeholder within one redactor, and a detector that fails makes the whole redaction fail.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

mod checksum;
mod detect;
mod restore;

pub use detect::{BuiltIn, DetectError, Detector, Found};
pub use restore::{Escape, Restorer};

/// Longest text that is checked, in bytes; longer text is refused instead of being sent unchecked.
pub const TEXT_BYTES_MAX: usize = 8 << 20;
/// Most different values one redactor remembers.
pub const ENTITIES_MAX: u32 = 100_000;

/// Kind of a replaced value; names the placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntityKind {
    /// Text that already looked like a placeholder, escaped so that it is restored exactly.
    Text,
    /// Telephone number.
    Phone,
    /// IPv4 or IPv6 address.
    Ip,
    /// E-mail address.
    Email,
    /// Payment card number (Luhn checksum).
    Card,
    /// International bank account number (mod 97 checksum).
    Iban,
    /// API key, access token, password assignment or private key.
    Key,
}

impl EntityKind {
    /// Every kind, weakest first: where two findings overlap the later kind names the placeholder.
    pub const ALL: [EntityKind; 7] =
        [Self::Text, Self::Phone, Self::Ip, Self::Email, Self::Card, Self::Iban, Self::Key];

    /// The word inside the placeholder, for example `EMAIL` in `[EMAIL_1]`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Phone => "PHONE",
            Self::Ip => "IP",
            Self::Email => "EMAIL",
            Self::Card => "CARD",
            Self::Iban => "IBAN",
            Self::Key => "KEY",
        }
    }
}

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

/// The values behind the placeholders of one redactor; stays on the device.
#[derive(Clone, Default)]
pub struct PlaceholderTable {
    values: HashMap<String, String>,
    placeholders: HashMap<(EntityKind, String), String>,
    counts: HashMap<EntityKind, u32>,
}

impl PlaceholderTable {
    /// The value behind a placeholder such as `[EMAIL_1]`.
    pub fn value(&self, placeholder: &str) -> Option<&str> {
        self.values.get(placeholder).map(String::as_str)
    }

    /// Number of different values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether nothing was replaced.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// How many different values of each kind there are, in the order of [`EntityKind::ALL`].
    pub fn counts(&self) -> Vec<(EntityKind, u32)> {
        EntityKind::ALL.iter().filter_map(|kind| self.counts.get(kind).map(|&n| (*kind, n))).collect()
    }

    fn placeholder(&mut self, kind: EntityKind, value: &str) -> Result<&str, RedactError> {
        let key = (kind, value.to_owned());
        if !self.placeholders.contains_key(&key) {
            let count = self.counts.entry(kind).or_insert(0);
            if *count >= ENTITIES_MAX {
                return Err(RedactError::TooManyEntities { max: ENTITIES_MAX });
            }
            *count += 1;
            let name = format!("[{}_{}]", kind.label(), count);
            self.values.insert(name.clone(), value.to_owned());
            self.placeholders.insert(key.clone(), name);
        }
        Ok(self.placeholders.get(&key).expect("inserted above when it was missing"))
    }
}

impl fmt::Debug for PlaceholderTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaceholderTable({} values)", self.len())
    }
}

/// Replaces private values by placeholders; one redactor serves one conversation.
pub struct Redactor {
    detectors: Vec<Box<dyn Detector>>,
    table: PlaceholderTable,
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

impl Redactor {
    /// A redactor with its own list of detectors; [`Redactor::default`] has all built-in ones.
    pub fn new(detectors: Vec<Box<dyn Detector>>) -> Self {
        Self { detectors, table: PlaceholderTable::default() }
    }

    /// Replaces every private value of `text`, and everything that already looks like a placeholder.
    ///
    /// # Errors
    /// [`RedactError`] when a detector fails or a limit is passed; the table may then hold values of this text,
    /// which is harmless.
    pub fn redact(&mut self, text: &str) -> Result<Redacted, RedactError> {
        let mut out = String::with_capacity(text.len());
        self.redact_into(text, &mut out)?;
        Ok(Redacted(out))
    }

    /// Checks text that a model wrote from redacted text: this redactor's own placeholders stay as they are,
    /// everything else is treated as in [`Redactor::redact`].
    ///
    /// # Errors
    /// As [`Redactor::redact`].
    pub fn redact_answer(&mut self, text: &str) -> Result<Redacted, RedactError> {
        let mut out = String::with_capacity(text.len());
        let mut from = 0;
        for range in detect::placeholder_ranges(text) {
            if self.table.value(&text[range.clone()]).is_some() {
                self.redact_into(&text[from..range.start], &mut out)?;
                out.push_str(&text[range.clone()]);
                from = range.end;
            }
        }
        self.redact_into(&text[from..], &mut out)?;
        Ok(Redacted(out))
    }

    /// A copy of the table for a [`Restorer`].
    pub fn table(&self) -> Arc<PlaceholderTable> {
        Arc::new(self.table.clone())
    }

    fn redact_into(&mut self, text: &str, out: &mut String) -> Result<(), RedactError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(RedactError::TooLong { len: text.len(), max: TEXT_BYTES_MAX });
        }
        let mut from = 0;
        for (range, kind) in self.find(text)? {
            out.push_str(&text[from..range.start]);
            out.push_str(self.table.placeholder(kind, &text[range.clone()])?);
            from = range.end;
        }
        out.push_str(&text[from..]);
        Ok(())
    }

    /// All findings, merged where they overlap, in order.
    fn find(&self, text: &str) -> Result<Vec<(Range<usize>, EntityKind)>, RedactError> {
        let mut found: Vec<Found> =
            detect::placeholder_ranges(text).map(|range| Found { range, kind: EntityKind::Text }).collect();
        for detector in &self.detectors {
            let from = found.len();
            detector
                .find(text, &mut found)
                .map_err(|err| RedactError::Detector { detector: detector.name(), err })?;
            if let Some(bad) =
                found[from..].iter().find(|f| text.get(f.range.clone()).is_none_or(str::is_empty))
            {
                return Err(RedactError::BadRange {
                    detector: detector.name(),
                    start: bad.range.start,
                    end: bad.range.end,
                });
            }
        }
        found.sort_by_key(|f| (f.range.start, f.range.end));
        let mut merged: Vec<(Range<usize>, EntityKind)> = Vec::new();
        for f in found {
            match merged.last_mut() {
                Some((last, kind)) if f.range.start < last.end => {
                    last.end = last.end.max(f.range.end);
                    *kind = (*kind).max(f.kind);
                }
                _ => merged.push((f.range, f.kind)),
            }
        }
        Ok(merged)
    }
}

#[cfg(test)]
mod tests;
