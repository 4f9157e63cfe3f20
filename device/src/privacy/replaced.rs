//! Tells people which private values were replaced.

use super::{EntityKind, PlaceholderTable};
use std::fmt;

/// Private values that were replaced: names as they are, so that a wrong one is seen, all others counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// The first names.
    names: Vec<String>,
    /// Number of different values of each kind, weakest first.
    counts: Vec<(EntityKind, u32)>,
}

/// Most names that a note has.
const NAMES_MAX: usize = 10;
/// Most characters of a name in a note.
const NAME_CHARS_MAX: usize = 60;

impl Replaced {
    /// Returns what a table holds; `None` if nothing.
    pub fn of(table: &PlaceholderTable) -> Option<Self> {
        let line = |name: &str| {
            let words: Vec<&str> = name.split(|c: char| c.is_whitespace() || c.is_control()).collect();
            words.join(" ").chars().take(NAME_CHARS_MAX).collect()
        };
        let names = table.names().into_iter().take(NAMES_MAX).map(line).collect();
        (!table.is_empty()).then(|| Self { names, counts: table.counts() })
    }

    /// Returns the counts alone, for what is kept.
    #[must_use]
    pub fn without_names(&self) -> Self {
        Self { names: Vec::new(), counts: self.counts.clone() }
    }
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_names = |&&(kind, _): &&(EntityKind, u32)| kind.is_name();
        let all: u32 = self.counts.iter().filter(of_names).map(|(_, count)| count).sum();
        let left = (all as usize).saturating_sub(self.names.len());
        let more = if self.names.is_empty() { "" } else { "more " };
        let mut told = self.names.clone();
        let plural = |count: usize| usize::from(count != 1);
        told.extend((left > 0).then(|| format!("{left} {more}{}", EntityKind::Person.words()[plural(left)])));
        let others = self.counts.iter().filter(|of| !of_names(of));
        told.extend(others.map(|(kind, count)| format!("{count} {}", kind.words()[plural(*count as usize)])));
        let hint = if all > 0 { " (--no-names sends names)" } else { "" };
        write!(f, "{}{hint}", told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Redactor;
    use super::*;

    fn told(text: &str) -> String {
        let mut redactor = Redactor::default();
        redactor.redact(text).unwrap();
        Replaced::of(&redactor.table()).map(|replaced| replaced.to_string()).unwrap_or_default()
    }

    #[test]
    fn names_are_told_and_all_others_counted() {
        assert_eq!(
            told("Dear Ms. Maria Keller, call Voltix GmbH: phone 5550143."),
            "Maria Keller, Voltix GmbH, 1 phone (--no-names sends names)"
        );
        assert_eq!(told("a@example.com, b@example.com"), "2 e-mail addresses");
        assert_eq!(told("The sky is blue."), "");
        let many: String = (0..13).map(|n| format!("Dear Ms. Rü{}samen,\n", "a".repeat(n + 1))).collect();
        assert!(told(&many).ends_with(", 3 more names (--no-names sends names)"), "{}", told(&many));
    }

    #[test]
    fn what_is_kept_has_no_name() {
        let mut redactor = Redactor::default();
        redactor.redact("Dear Ms. Keller").unwrap();
        let kept = Replaced::of(&redactor.table()).unwrap().without_names();
        assert_eq!(kept.to_string(), "1 name (--no-names sends names)");
    }
}
