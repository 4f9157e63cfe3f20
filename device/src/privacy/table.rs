//! The table of placeholders and their values.

use super::{ENTITIES_MAX, EntityKind, RedactError};
use std::collections::HashMap;
use std::fmt;

/// The values behind the placeholders of one redactor; it stays on the device.
#[derive(Clone, Default)]
pub struct PlaceholderTable {
    values: HashMap<String, String>,
    placeholders: HashMap<(EntityKind, String), String>,
    counts: HashMap<EntityKind, u32>,
}

impl PlaceholderTable {
    /// Returns the value of a placeholder such as `[EMAIL_1]`, which may also be written `[email_1]` or
    /// `[EMAIL\_1]`.
    pub fn value(&self, placeholder: &str) -> Option<&str> {
        let value = self.values.get(placeholder);
        let canonical = || placeholder.replace('\\', "").to_ascii_uppercase();
        value.or_else(|| self.values.get(&canonical())).map(String::as_str)
    }

    /// Returns the number of different values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether nothing was replaced.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Counts the different values of each kind, in the order of [`EntityKind::ALL`].
    pub fn counts(&self) -> Vec<(EntityKind, u32)> {
        EntityKind::ALL.iter().filter_map(|kind| self.counts.get(kind).map(|&n| (*kind, n))).collect()
    }

    /// Returns the names of people, places and organisations, in the order in which they were found.
    pub fn names(&self) -> Vec<&str> {
        let number = |placeholder: &str| {
            let digits = placeholder.trim_end_matches(']').rsplit('_').next();
            digits.and_then(|digits| digits.parse::<u32>().ok())
        };
        let names = self.placeholders.iter().filter(|((kind, _), _)| kind.is_name());
        let mut names: Vec<_> =
            names.map(|((kind, value), by)| (*kind, number(by), value.as_str())).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, _, value)| value).collect()
    }

    /// Returns kind and value of each entry, in no particular order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (EntityKind, &str)> {
        self.placeholders
            .keys()
            .filter(|(kind, _)| *kind != EntityKind::Text)
            .map(|(kind, value)| (*kind, value.as_str()))
    }

    /// Returns the placeholder of a value, if it has one.
    pub(super) fn placeholder_of(&self, kind: EntityKind, value: &str) -> Option<&str> {
        self.placeholders.get(&(kind, value.to_owned())).map(String::as_str)
    }

    pub(super) fn placeholder(&mut self, kind: EntityKind, value: &str) -> Result<&str, RedactError> {
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
