//! Words that show that a name stands beside them, in English, German and Spanish. They are in
//! `lists/cues.txt`.

use std::collections::HashSet;
use std::sync::LazyLock;

/// A set of words in lower case.
pub(super) type Cue = LazyLock<HashSet<&'static str>>;

/// Returns the words of a section of the file.
fn section(name: &str) -> HashSet<&'static str> {
    let rest = include_str!("lists/cues.txt").split_once(name).map_or("", |(_, rest)| rest);
    rest.split("\n[").next().unwrap_or_default().split_whitespace().collect()
}

/// Frequent words of English.
pub(super) static ENGLISH: Cue = LazyLock::new(|| section("[english]\n"));

/// Frequent words of German.
pub(super) static GERMAN: Cue = LazyLock::new(|| section("[german]\n"));

/// Frequent words of Spanish.
pub(super) static SPANISH: Cue = LazyLock::new(|| section("[spanish]\n"));

/// Titles before a name.
pub(super) static TITLES: Cue = LazyLock::new(|| section("[titles]\n"));

/// Words for people before a name: family, work, law and medicine.
pub(super) static ROLES: Cue = LazyLock::new(|| section("[roles]\n"));

/// Words with which a letter or a message begins.
pub(super) static GREETINGS: Cue = LazyLock::new(|| section("[greetings]\n"));

/// Last words of the line before a signature.
pub(super) static CLOSINGS: Cue = LazyLock::new(|| section("[closings]\n"));

/// Labels before a colon, or headers of a field, whose value is a person.
pub(super) static LABELS: Cue = LazyLock::new(|| section("[labels]\n"));

/// Words before a person, besides roles: verbs with a person as their object, and prepositions.
pub(super) static BEFORE_PERSON: Cue = LazyLock::new(|| section("[before_person]\n"));

/// Verbs after a person.
pub(super) static AFTER_PERSON: Cue = LazyLock::new(|| section("[after_person]\n"));

/// Articles and similar words; a name rarely stands after them.
pub(super) static ARTICLES: Cue = LazyLock::new(|| section("[articles]\n"));

/// Small words inside names.
pub(super) static CONNECTORS: Cue = LazyLock::new(|| section("[connectors]\n"));

/// Small words inside names of towns.
pub(super) static TOWN_CONNECTORS: Cue = LazyLock::new(|| section("[town_connectors]\n"));

/// First words of names of towns.
pub(super) static TOWN_FIRST: Cue = LazyLock::new(|| section("[town_first]\n"));

/// Words of a sentence that say where somebody is or was, so that a name after a preposition is a place.
pub(super) static LIVING: Cue = LazyLock::new(|| section("[living]\n"));

/// Prepositions before a place.
pub(super) static PLACE_PREPOSITIONS: Cue = LazyLock::new(|| section("[place_prepositions]\n"));

/// Labels whose value is a place.
pub(super) static PLACE_LABELS: Cue = LazyLock::new(|| section("[place_labels]\n"));

/// Labels and words whose value is an organisation.
pub(super) static FIRM_LABELS: Cue = LazyLock::new(|| section("[firm_labels]\n"));

/// Words of a sentence that say that an organisation follows `for`, `at`, `by`, `with`, `bei`, `en`.
pub(super) static WORKING: Cue = LazyLock::new(|| section("[working]\n"));

/// Prepositions before an organisation.
pub(super) static FIRM_PREPOSITIONS: Cue = LazyLock::new(|| section("[firm_prepositions]\n"));

/// Words at the start of a sentence that are not a part of a company's name.
pub(super) static LEADS: Cue = LazyLock::new(|| section("[leads]\n"));

/// Endings of inflected words.
pub(super) static ENDINGS: Cue = LazyLock::new(|| section("[endings]\n"));

/// Endings that names rarely have.
pub(super) static NOUN_ENDINGS: Cue = LazyLock::new(|| section("[noun_endings]\n"));

/// Checks whether a set holds a word, whatever its case.
pub(super) fn has(cue: &Cue, word: &str) -> bool {
    if word.chars().any(char::is_uppercase) {
        cue.contains(word.to_lowercase().as_str())
    } else {
        cue.contains(word)
    }
}

/// Checks for one of a few words, whatever their case.
pub(super) fn is_one(words: &[&str], word: &str) -> bool {
    words.contains(&word.to_lowercase().as_str())
}
