//! Names of people in scripts with capital letters.
//!
//! Words that begin with a capital letter and follow each other are a run. There are three kinds of runs that
//! are names. It stands beside a word for a person; a list of names has its words; or no list has its words.
//! Only the first kind is sure. The others are no names if all their words are words of a dictionary, or if
//! the same text has them in small letters too. The third kind needs two signs, or one at half of its places.

use super::super::{Certainty, push_as};
use super::cues::{self, Cue, has, is_one};
use super::lists::lists;
use super::words::{Language, Shape, Word, small_words};
use crate::privacy::EntityKind;
use crate::privacy::detect::Found;
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Most words of a name.
const WORDS_MAX: usize = 6;
/// Most words of a sentence that are looked at before a name.
const SENTENCE_WORDS_MAX: usize = 12;

/// A run of words that may be a name.
#[derive(Debug)]
struct Candidate {
    words: Range<usize>,
    kind: EntityKind,
    certainty: Certainty,
    /// Signs beside it, of at most two kinds: for a guess.
    signs: usize,
}

/// Finds people, places and organisations that their words and their sentence show.
pub(super) fn find(text: &str, words: &[Word<'_>], found: &mut Vec<Found>) {
    let mut candidates = candidates(words);
    let small = LazyCell::new(|| small_words(text, words));
    candidates.retain(|candidate| {
        let own = || words[candidate.words.clone()].iter().filter(|word| word.shape == Shape::Name);
        let is_term = || own().all(|word| lists().in_dictionary(word.text)) && candidate.signs < SIGNS_MIN;
        candidate.certainty == Certainty::Shown
            || !is_term() && !own().all(|word| small.contains(word.text.to_lowercase().as_str()))
    });
    let shares = LazyCell::new(|| shares(words, &candidates));
    for candidate in &candidates {
        let Candidate { words: run, kind, certainty, signs } = candidate;
        let last = words[run.end - 1].text;
        let is_sure = *certainty > Certainty::Guessed || *signs >= SIGNS_MIN || shares.contains(last);
        if is_sure {
            push_as(found, *certainty, *kind, words[run.start].at..words[run.end - 1].end());
        }
    }
}

/// Fewest signs at one place that make a name of a word that no list has.
const SIGNS_MIN: usize = 2;

/// Returns the last words of guesses that have a sign at half of the places where the word stands.
fn shares<'a>(words: &[Word<'a>], candidates: &[Candidate]) -> HashSet<&'a str> {
    let mut counts: HashMap<&str, [usize; 2]> = HashMap::new();
    for candidate in candidates.iter().filter(|candidate| candidate.certainty == Certainty::Guessed) {
        let [_, signed] = counts.entry(words[candidate.words.end - 1].text).or_default();
        *signed += candidate.signs.min(1);
    }
    for word in words {
        if let Some([places, _]) = counts.get_mut(word.text) {
            *places += 1;
        }
    }
    counts
        .into_iter()
        .filter(|(_, [places, signed])| signed * 2 >= *places && *signed > 0)
        .map(|(word, _)| word)
        .collect()
}

/// Returns the runs that may be names, in order.
fn candidates(words: &[Word<'_>]) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut at = 0;
    // End of the last person, as a position in `words`.
    let mut last = usize::MAX;
    while at < words.len() {
        if !starts(words, at) {
            at += 1;
            continue;
        }
        let end = run_end(words, at);
        if let Some((kind, certainty)) = thing(words, &(at..end)) {
            let run = without_lead(words, at..end);
            found.push(Candidate { words: run, kind, certainty, signs: 0 });
        } else {
            for part in parts(words, at..end) {
                if let Some(name) = person(words, &part, last) {
                    last = name.words.end;
                    found.push(name);
                }
            }
        }
        at = end;
    }
    found
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

/// Returns what a run is if the sentence shows that it is a place or an organisation.
fn thing(words: &[Word<'_>], run: &Range<usize>) -> Option<(EntityKind, Certainty)> {
    let run = without_lead(words, run.clone());
    let own = &words[run.clone()];
    let language = own[0].language;
    let public = own.iter().all(|word| word.shape != Shape::Name || lists().is_public(word.text));
    if public {
        return None;
    }
    if below_signature(words, &run) {
        return Some((EntityKind::Org, Certainty::Likely));
    }
    let named = label(words, run.start);
    // `address: String` is code.
    let is_term = own.iter().all(|word| word.shape != Shape::Name || lists().in_dictionary(word.text));
    let labelled = if is_term { Certainty::Likely } else { Certainty::Shown };
    if named.is_some_and(|label| has(&cues::PLACE_LABELS, label)) {
        return Some((EntityKind::Place, labelled));
    }
    if named.is_some_and(|label| has(&cues::FIRM_LABELS, label)) {
        return Some((EntityKind::Org, labelled));
    }
    let mut before = sentence(words, run.start);
    let mut nearest = before.next().filter(|word| word.shape != Shape::Mark || word.is(","))?;
    let unknown = own.iter().enumerate().all(|(at, word)| {
        let first = at == 0 && own.len() > 1 && has(&cues::TOWN_FIRST, word.text);
        word.shape != Shape::Name || first || !word.plain && !word.given
    });
    if nearest.is(",") {
        let firm = before.next().is_some_and(|word| has(&cues::FIRM_LABELS, word.text));
        return firm.then_some((EntityKind::Org, Certainty::Likely));
    }
    if has(&cues::FIRM_LABELS, nearest.text) && nearest.spaced {
        return Some((EntityKind::Org, Certainty::Likely));
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
    let noun = language == Language::German && !unknown && !own.iter().any(|word| lists().is_town(word.text));
    if !article && has(&cues::PLACE_PREPOSITIONS, nearest.text) {
        let person = own.iter().any(|word| word.given) && !is_one(&["in", "en"], nearest.text);
        let loose = is_one(&["in", "en", "nach", "aus"], nearest.text);
        let living = says(&cues::LIVING) && nearest.text != "at"
            || loose && later(&["statt", "geboren", "aufgewachsen", "gezogen"]);
        // The verb that is nearest decides between a place and an organisation.
        let work = context.iter().take(3).any(|word| has(&cues::WORKING, word.text));
        if !work && !person && living && (!noun || own.len() > 1) {
            return Some((EntityKind::Place, Certainty::Likely));
        }
        if !work && !person && loose && unknown {
            return Some((EntityKind::Place, Certainty::Guessed));
        }
    }
    if has(&cues::FIRM_PREPOSITIONS, nearest.text)
        && says(&cues::WORKING)
        && !own.iter().any(|word| word.given)
    {
        return unknown.then_some((EntityKind::Org, Certainty::Likely));
    }
    let town = own.len() == 1 && lists().is_town(own[0].text) && !own[0].listed();
    town.then_some((EntityKind::Place, Certainty::Likely))
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
    lists().is_public(word.text)
}

/// Returns the words of a part that are a person's name.
fn person(words: &[Word<'_>], part: &Part, last: usize) -> Option<Candidate> {
    let mut run = part.words.clone();
    let titled = part.titled || title_before(words, run.start);
    let cue = if part.cued { Some(Strength::Role) } else { cue_before(words, &run, last) };
    let left = titled || cue.is_some();
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
    let beside = Beside { cue, right, article };
    let (certainty, signs) = if titled {
        (Certainty::Shown, 0)
    } else if own.len() > 1 {
        several(words, run.start, &names, &beside)?
    } else {
        single(words, run.start, first, &beside)?
    };
    Some(Candidate { words: run, kind: EntityKind::Person, certainty, signs })
}

fn is_article(word: &Word<'_>) -> bool {
    word.shape != Shape::Mark && has(&cues::ARTICLES, word.text)
        || word.language == Language::English && is_one(&["a", "an"], word.text)
}

/// What stands before a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strength {
    /// A word for a person, a greeting, a label, or a list of people.
    Role,
    /// A verb whose object is often a person.
    Verb,
}

/// What stands beside a run.
struct Beside {
    cue: Option<Strength>,
    /// Whether a verb of a person, an age or the colon of a speaker is behind it.
    right: bool,
    article: bool,
}

impl Beside {
    /// Returns how sure a name is that no list has, and its signs.
    fn unlisted(&self, names: &[&Word<'_>], more: bool) -> (Certainty, usize) {
        let is_term = || names.iter().all(|word| lists().in_dictionary(word.text));
        match self.cue {
            // `The user Port` is no person.
            Some(Strength::Role) if is_term() => (Certainty::Guessed, SIGNS_MIN),
            Some(Strength::Role) => (Certainty::Shown, 0),
            cue => {
                let signs = usize::from(cue.is_some()) + usize::from(self.right) + usize::from(more);
                (if signs >= SIGNS_MIN { Certainty::Likely } else { Certainty::Guessed }, signs)
            }
        }
    }
}

/// Decides about a name of several words.
fn several(
    words: &[Word<'_>],
    at: usize,
    names: &[&Word<'_>],
    beside: &Beside,
) -> Option<(Certainty, usize)> {
    let (first, last) = (names[0], names[names.len() - 1]);
    let firm = names.iter().filter(|word| word.firm()).count();
    let is_listed = first.given || last.surname;
    if beside.cue.is_some() || beside.right {
        let certainty = if is_listed { (Certainty::Shown, 0) } else { beside.unlisted(names, false) };
        return (firm > 0 || is_listed).then_some(certainty);
    }
    if beside.article && (!first.given || first.language == Language::English) {
        return None;
    }
    if firm > 0 && first.given && last.surname && names.len() > 1 {
        return Some((Certainty::Shown, 0));
    }
    if first.given && first.firm() || last.surname && last.firm() {
        return Some((Certainty::Likely, 0));
    }
    // Each word is one that no list of names has, or a name that is a word too. German writes nouns so.
    let apart = first.language != Language::German && !begins_sentence(words, at);
    let unknown =
        firm == names.len() && firm <= 4 && !names.iter().any(|word| lists().in_dictionary(word.text));
    let guess = (unknown || firm > 0 && is_listed) && !beside.article;
    guess.then_some((Certainty::Guessed, usize::from(apart)))
}

/// Checks whether a word is the first one of a sentence, a line or a cell.
fn begins_sentence(words: &[Word<'_>], at: usize) -> bool {
    at == 0
        || words[at].first
        || matches!(words[at - 1].text, "." | "!" | "?" | ":" | "\"" | "“" | "„" | "|" | "\t" | "*")
}

/// Decides about a name of one word.
fn single(words: &[Word<'_>], at: usize, word: &Word<'_>, beside: &Beside) -> Option<(Certainty, usize)> {
    let label =
        [&cues::LABELS, &cues::PLACE_LABELS, &cues::FIRM_LABELS].iter().any(|labels| has(labels, word.text));
    let left = beside.cue.is_some();
    if public(word) && !left || label && !word.given || beside.article {
        return None;
    }
    if left {
        let certainty = if word.listed() { (Certainty::Shown, 0) } else { beside.unlisted(&[word], false) };
        return (word.firm() || word.listed()).then_some(certainty);
    }
    let start = begins_sentence(words, at);
    if word.plain {
        return (beside.right && word.listed() && !start).then_some((Certainty::Shown, 0));
    }
    if word.given {
        return Some((if beside.right { Certainty::Shown } else { Certainty::Likely }, 0));
    }
    // A word that no list of given names has.
    let long = word.text.chars().count() >= 4;
    let object = matches!(word.language, Language::English | Language::Spanish)
        && !start
        && words[at - 1].shape == Shape::Lower
        && !is_one(&["and", "or", "y", "o", "e"], words[at - 1].text);
    (beside.right && long).then(|| beside.unlisted(&[word], object))
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

/// Returns which word before a name shows a person.
fn cue_before(words: &[Word<'_>], run: &Range<usize>, last: usize) -> Option<Strength> {
    let at = run.start;
    let before = at.checked_sub(1).map(|at| &words[at])?;
    if before.is("@") && !words[at].spaced {
        return Some(Strength::Role);
    }
    if label(words, at).is_some_and(|label| has(&cues::LABELS, label)) {
        return Some(Strength::Role);
    }
    // A list goes on after a person.
    let joint = matches!(before.text, "," | "&" | "/")
        || is_one(&["and", "und", "y", "e", "or", "oder", "o"], before.text);
    if joint && last != usize::MAX && (last + 1 == at || last + 2 == at && words[last].is(",")) {
        return Some(Strength::Role);
    }
    if before.is("\n") {
        return signature(words, run).then_some(Strength::Role);
    }
    let inner = match before.text {
        "(" | "\"" | "“" | "„" => at.checked_sub(2).map(|at| &words[at]),
        _ => Some(before),
    };
    let word = inner?;
    let lower = word.shape == Shape::Lower;
    let verb = has(&cues::BEFORE_PERSON, word.text)
        && (lower || word.shape == Shape::Name && word.spaced | word.first);
    let role = lower && (has(&cues::ROLES, word.text) || has(&cues::GREETINGS, word.text));
    role.then_some(Strength::Role).or_else(|| verb.then_some(Strength::Verb))
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
