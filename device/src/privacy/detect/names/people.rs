//! Names of people in scripts with capital letters.
//!
//! Words that begin with a capital letter and follow each other are a run. There are three kinds of runs that
//! are names. A list of names has its words; it stands beside a word for a person; or no list has its words.

use super::super::push;
use super::cues::{self, Cue, has, is_one};
use super::words::{Language, Shape, Word};
use crate::privacy::EntityKind;
use crate::privacy::detect::Found;
use std::ops::Range;

/// Most words of a name.
const WORDS_MAX: usize = 6;
/// Most words of a sentence that are looked at before a name.
const SENTENCE_WORDS_MAX: usize = 12;

/// Finds people, places and organisations that their words and their sentence show.
pub(super) fn find(words: &[Word<'_>], found: &mut Vec<Found>) {
    let mut at = 0;
    // End of the last person, as a position in `words`.
    let mut last = usize::MAX;
    while at < words.len() {
        if !starts(words, at) {
            at += 1;
            continue;
        }
        let end = run_end(words, at);
        if let Some(kind) = thing(words, &(at..end)) {
            let run = without_lead(words, at..end);
            push(found, kind, words[run.start].at..words[run.end - 1].end());
        } else {
            for part in parts(words, at..end) {
                if let Some(name) = person(words, &part, last) {
                    push(found, EntityKind::Person, words[name.start].at..words[name.end - 1].end());
                    last = name.end;
                }
            }
        }
        at = end;
    }
}

fn starts(words: &[Word<'_>], at: usize) -> bool {
    words[at].is_name() || words[at].shape == Shape::Initial && initial_end(words, at).is_some()
}

/// Returns the position after the period of an initial, if a name follows there.
fn initial_end(words: &[Word<'_>], at: usize) -> Option<usize> {
    let next = words.get(at + 2)?;
    let dotted = words[at + 1].is(".") && !words[at].code && next.spaced;
    (dotted && (next.is_name() || next.shape == Shape::Initial)).then_some(at + 2)
}

/// Returns the end of the run that starts at `at`.
fn run_end(words: &[Word<'_>], start: usize) -> usize {
    let mut at = start;
    loop {
        at = match words[at].shape {
            Shape::Initial => initial_end(words, at).unwrap_or(at + 1),
            _ => at + 1,
        };
        let follows = |at: usize| words.get(at).is_some_and(|word| word.spaced) && starts(words, at);
        if follows(at) {
            continue;
        }
        let small = |at: usize| {
            words.get(at).is_some_and(|word| {
                word.spaced
                    && word.shape == Shape::Lower
                    && (has(&cues::CONNECTORS, word.text)
                        || !words[start].listed() && has(&cues::TOWN_CONNECTORS, word.text))
            })
        };
        // `y` and `und` join two names as often as two surnames.
        let skip = (1..=2).find(|&skip| (0..skip).all(|n| small(at + n)) && follows(at + skip));
        let plain = words[at - 1].plain;
        let river = skip == Some(2) && words[at].is("an") && words[at + 1].is("der");
        match skip.filter(|_| river || !plain && !is_one(&["y", "an", "am", "im"], words[at].text)) {
            Some(skip) => at += skip,
            None => return at,
        }
    }
}

/// Returns the run without a title, a role or a greeting at its start.
fn without_lead(words: &[Word<'_>], mut run: Range<usize>) -> Range<usize> {
    while run.len() > 1 && is_lead(words[run.start].text) {
        run.start += 1;
    }
    run
}

fn is_lead(word: &str) -> bool {
    has(&cues::TITLES, word)
        || has(&cues::ROLES, word)
        || has(&cues::GREETINGS, word)
        || has(&cues::FIRM_LABELS, word)
}

/// Returns the words before `at`, nearest first, up to the start of the sentence.
fn sentence<'a, 'b>(words: &'b [Word<'a>], at: usize) -> impl Iterator<Item = &'b Word<'a>> {
    let before = words[..at].iter().rev().take(SENTENCE_WORDS_MAX);
    before.take_while(|word| !matches!(word.text, "." | "\n" | "!" | "?" | ":" | ";" | "|" | "\t"))
}

/// Returns the label before a colon, if the run is its value.
fn label<'a>(words: &[Word<'a>], at: usize) -> Option<&'a str> {
    let quote = |word: &Word<'_>| matches!(word.text, "\"" | "'" | "*" | "„" | "“");
    let mut before = words[..at].iter().rev().skip_while(|word| quote(word)).peekable();
    before.next_if(|word| word.is(":") || word.is("="))?;
    before.find(|word| !quote(word)).filter(|word| word.shape != Shape::Mark).map(|word| word.text)
}

/// Checks whether the sentence shows that the run is a place or an organisation.
fn thing(words: &[Word<'_>], run: &Range<usize>) -> Option<EntityKind> {
    let run = without_lead(words, run.clone());
    let own = &words[run.clone()];
    let language = own[0].language;
    let public =
        own.iter().all(|word| word.shape != Shape::Name || super::lists::lists().is_public(word.text));
    if public {
        return None;
    }
    if below_signature(words, &run) {
        return Some(EntityKind::Org);
    }
    let named = label(words, run.start);
    if named.is_some_and(|label| has(&cues::PLACE_LABELS, label)) {
        return Some(EntityKind::Place);
    }
    if named.is_some_and(|label| has(&cues::FIRM_LABELS, label)) {
        return Some(EntityKind::Org);
    }
    let mut before = sentence(words, run.start);
    let mut nearest = before.next().filter(|word| word.shape != Shape::Mark || word.is(","))?;
    let unknown = own.iter().enumerate().all(|(at, word)| {
        let first = at == 0 && own.len() > 1 && has(&cues::TOWN_FIRST, word.text);
        word.shape != Shape::Name || first || !word.plain && !word.given
    });
    if nearest.is(",") {
        let firm = before.next().is_some_and(|word| has(&cues::FIRM_LABELS, word.text));
        return firm.then_some(EntityKind::Org);
    }
    if has(&cues::FIRM_LABELS, nearest.text) && nearest.spaced {
        return Some(EntityKind::Org);
    }
    // Towns have no article.
    let article = is_one(&["la", "the", "der"], nearest.text);
    if article && unknown {
        nearest = before.next()?;
    }
    let context: Vec<&Word<'_>> = before.collect();
    let says = |list: &Cue| context.iter().any(|word| has(list, word.text));
    let after = words[run.end.min(words.len())..]
        .iter()
        .take(8)
        .take_while(|word| !matches!(word.text, "." | "\n" | "," | ";"));
    let later = |list: &[&str]| after.clone().any(|word| is_one(list, word.text));
    let noun = language == Language::German
        && !unknown
        && !own.iter().any(|word| super::lists::lists().is_town(word.text));
    if !article && has(&cues::PLACE_PREPOSITIONS, nearest.text) {
        let person = own.iter().any(|word| word.given) && !is_one(&["in", "en"], nearest.text);
        let loose = is_one(&["in", "en", "nach", "aus"], nearest.text);
        let living = says(&cues::LIVING) && nearest.text != "at"
            || loose && later(&["statt", "geboren", "aufgewachsen", "gezogen"]);
        // The verb that is nearest decides between a place and an organisation.
        let work = context.iter().take(3).any(|word| has(&cues::WORKING, word.text));
        if !work && !person && (living && (!noun || own.len() > 1) || loose && unknown) {
            return Some(EntityKind::Place);
        }
    }
    if has(&cues::FIRM_PREPOSITIONS, nearest.text)
        && says(&cues::WORKING)
        && !own.iter().any(|word| word.given)
    {
        return unknown.then_some(EntityKind::Org);
    }
    let town = own.len() == 1 && super::lists::lists().is_town(own[0].text) && !own[0].listed();
    town.then_some(EntityKind::Place)
}

/// Checks for a line of unknown words below a line with a person, as in signatures.
fn below_signature(words: &[Word<'_>], run: &Range<usize>) -> bool {
    let alone = words.get(run.end).is_none_or(|word| word.is("\n"));
    let unknown =
        words[run.clone()].iter().all(|word| word.shape == Shape::Name && word.firm() && !word.listed());
    if !alone || !unknown || run.start < 3 || !words[run.start - 1].is("\n") {
        return false;
    }
    let mut above = words[..run.start - 1].iter().rev();
    let names = above.by_ref().take(4).take_while(|word| word.shape == Shape::Name).count();
    let start = run.start - 1 - names;
    names > 0 && start > 0 && signature(words, &(start..run.start - 1))
}

/// A part of a run that may be a name, and what stands before it.
struct Part {
    words: Range<usize>,
    titled: bool,
    cued: bool,
}

/// Cuts a run at titles, roles and words that are not names.
fn parts(words: &[Word<'_>], run: Range<usize>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let (mut titled, mut cued) = (false, false);
    let mut open = false;
    for at in run {
        let word = &words[at];
        let small = word.shape != Shape::Name;
        let surname = open && word.surname;
        let title = !small && !surname && has(&cues::TITLES, word.text);
        let name = word.given && !has(&cues::GREETINGS, word.text);
        let lead = !small && !name && is_lead(word.text);
        if title || lead {
            (titled, cued, open) = (titled && !open || title, cued && !open || lead, false);
            continue;
        }
        let after_title = titled && !open && !public(word);
        let out = !small && word.plain && !word.listed() && !after_title;
        if out {
            (titled, cued, open) = (false, false, false);
            continue;
        }
        match parts.last_mut() {
            Some(part) if open => part.words.end = at + 1,
            _ if small && word.shape == Shape::Lower => {}
            _ => {
                parts.push(Part { words: at..at + 1, titled, cued });
                (titled, cued, open) = (false, false, true);
            }
        }
    }
    parts
}

fn public(word: &Word<'_>) -> bool {
    super::lists::lists().is_public(word.text)
}

/// Returns the words of a part that are a person's name.
fn person(words: &[Word<'_>], part: &Part, last: usize) -> Option<Range<usize>> {
    let mut run = part.words.clone();
    let titled = part.titled || title_before(words, run.start);
    let left = titled || part.cued || cue_before(words, &run, last);
    let right = cue_after(words, &run);
    // Names that are also words are taken from the ends, if nothing speaks for them.
    if !left {
        let soft = |word: &Word<'_>| word.shape == Shape::Name && word.plain;
        while run.len() > 1 && soft(&words[run.start]) && !begins_name(words, run.start, run.end) {
            run.start += 1;
        }
        while run.len() > 1 && soft(&words[run.end - 1]) && !words[run.end - 1].surname {
            run.end -= 1;
        }
    }
    while run.len() > 1 && !matches!(words[run.end - 1].shape, Shape::Name) {
        run.end -= 1;
    }
    let own = &words[run.clone()];
    let names: Vec<&Word<'_>> = own.iter().filter(|word| word.shape == Shape::Name).collect();
    let first = names.first()?;
    if names.len() > WORDS_MAX {
        return None;
    }
    let article = run.start > 0 && is_article(&words[run.start - 1]);
    let firm = names.iter().filter(|word| word.firm()).count();
    let is_person = if titled {
        true
    } else if own.len() > 1 {
        several(&names, firm, left || right, article)
    } else {
        single(words, run.start, first, left, right, article)
    };
    is_person.then_some(run)
}

fn is_article(word: &Word<'_>) -> bool {
    word.shape != Shape::Mark && has(&cues::ARTICLES, word.text)
        || word.language == Language::English && is_one(&["a", "an"], word.text)
}

/// Decides about a name of several words.
fn several(names: &[&Word<'_>], firm: usize, cued: bool, article: bool) -> bool {
    let (first, last) = (names[0], names[names.len() - 1]);
    if cued {
        return firm > 0 || first.given || last.surname;
    }
    if article && !first.given {
        return false;
    }
    let listed = first.given || last.surname && names.len() > 1;
    firm > 0 && listed || firm == names.len() && (1..=4).contains(&firm) && !article
}

/// Decides about a name of one word.
fn single(words: &[Word<'_>], at: usize, word: &Word<'_>, left: bool, right: bool, article: bool) -> bool {
    let label =
        [&cues::LABELS, &cues::PLACE_LABELS, &cues::FIRM_LABELS].iter().any(|labels| has(labels, word.text));
    if public(word) && !left || label && !word.given {
        return false;
    }
    if left {
        return !article && (word.firm() || word.given || word.surname);
    }
    if article {
        return false;
    }
    let start = at == 0
        || word.first
        || matches!(words[at - 1].text, "." | "!" | "?" | ":" | "\"" | "“" | "„" | "|" | "\t" | "*");
    if word.plain {
        return right && word.listed() && !start;
    }
    if word.given || right {
        return true;
    }
    // A word in the middle of a sentence that no list has.
    let long = word.text.chars().count() >= 4;
    let object = matches!(word.language, Language::English | Language::Spanish)
        && !start
        && words[at - 1].shape == Shape::Lower
        && !is_one(&["and", "or", "y", "o", "e"], words[at - 1].text);
    let subject = words.get(at + 1).is_some_and(|next| {
        is_one(
            &[
                "has", "hat", "ha", "is", "ist", "está", "was", "refuses", "raised", "will", "sube", "subió",
                "erhöhte",
            ],
            next.text,
        )
    });
    let german = word.language == Language::German && at > 0 && subject && (start || words[at - 1].is(","));
    long && (object || german || word.language != Language::German && subject && start)
}

/// Checks whether a word that is also a common word begins a name: a name that no word is follows it.
fn begins_name(words: &[Word<'_>], at: usize, end: usize) -> bool {
    let next = words[at + 1..end].iter().find(|word| word.shape == Shape::Name);
    let start = words[at].first || at > 0 && words[at - 1].shape == Shape::Mark;
    words[at].given && next.is_some_and(|next| next.firm() && (next.listed() || !start))
}

/// Checks for a title before a name, also one with a period.
fn title_before(words: &[Word<'_>], at: usize) -> bool {
    let mut before = words[..at].iter().rev();
    match before.next() {
        Some(dot) if dot.is(".") && words[at].spaced => {
            before.next().is_some_and(|word| has(&cues::TITLES, word.text) && word.shape != Shape::Mark)
        }
        Some(word) => {
            word.shape == Shape::Lower
                && is_one(
                    &[
                        "don",
                        "doña",
                        "señor",
                        "señora",
                        "profesor",
                        "profesora",
                        "jueza",
                        "juez",
                        "doctor",
                        "doctora",
                    ],
                    word.text,
                )
        }
        None => false,
    }
}

/// Checks for a word before a name that shows a person.
fn cue_before(words: &[Word<'_>], run: &Range<usize>, last: usize) -> bool {
    let at = run.start;
    let Some(before) = at.checked_sub(1).map(|at| &words[at]) else { return false };
    if before.is("@") && !words[at].spaced {
        return true;
    }
    if label(words, at).is_some_and(|label| has(&cues::LABELS, label)) {
        return true;
    }
    // A list goes on after a person.
    let joint = matches!(before.text, "," | "&" | "/")
        || is_one(&["and", "und", "y", "e", "or", "oder", "o"], before.text);
    if joint && last != usize::MAX && (last + 1 == at || last + 2 == at && words[last].is(",")) {
        return true;
    }
    if before.is("\n") {
        return signature(words, run);
    }
    let inner = match before.text {
        "(" | "\"" | "“" | "„" => at.checked_sub(2).map(|at| &words[at]),
        _ => Some(before),
    };
    inner.is_some_and(|word| {
        word.shape == Shape::Lower
            && (has(&cues::ROLES, word.text)
                || has(&cues::BEFORE_PERSON, word.text)
                || has(&cues::GREETINGS, word.text))
            || word.shape == Shape::Name && word.spaced | word.first && has(&cues::BEFORE_PERSON, word.text)
    })
}

/// Checks whether the run is the line after the end of a letter.
fn signature(words: &[Word<'_>], run: &Range<usize>) -> bool {
    let alone = words.get(run.end).is_none_or(|word| matches!(word.text, "\n" | ","));
    let mut before =
        words[..run.start].iter().rev().skip_while(|word| matches!(word.text, "\n" | "," | "!" | "."));
    alone && before.next().is_some_and(|word| has(&cues::CLOSINGS, word.text))
}

/// Checks for a word after a name that shows a person.
fn cue_after(words: &[Word<'_>], run: &Range<usize>) -> bool {
    let Some(next) = words.get(run.end) else { return false };
    let number =
        words.get(run.end + 1).is_some_and(|word| word.shape == Shape::Number && word.text.len() == 2);
    let stamped = run.start > 0 && words[run.start - 1].is("]");
    let talk = words
        .get(run.end + 1)
        .is_some_and(|word| matches!(word.shape, Shape::Lower | Shape::Mark) && !word.is("\n"));
    let speaker = next.is(":") && (stamped || words[run.start].first && talk);
    let says = next.shape == Shape::Lower && has(&cues::AFTER_PERSON, next.text);
    says || number && matches!(next.text, "(" | ",") && !words[run.start].plain || speaker
}
