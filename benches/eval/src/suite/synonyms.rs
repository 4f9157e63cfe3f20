//! `synonyms`: generated texts whose questions share no content word with the sentence that answers them.
//!
//! A ranking by words cannot find such a sentence; a model that knows the language can. Each text has one
//! sentence for each row of [`ROWS`], in random order and with random values.

use baton_random::SplitMix64;

use crate::case::Case;
use crate::metric::{Metric, TextMetric};
use crate::suite::{BRIEF_SYSTEM, QUESTION_PREFIX};

/// Maximum number of tokens in an answer.
const MAX_TOKENS: usize = 16;
/// Sentences of a paragraph.
const PARAGRAPH: usize = 4;
/// What stands for the value in a sentence.
const VALUE: &str = "{}";

/// A sentence with a place for its value, the kind of value, and a question in other words.
type Row = (&'static str, Kind, &'static str);

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A whole number.
    Number,
    /// A person's name.
    Person,
    /// A town.
    Town,
    /// A colour.
    Colour,
}
use Kind::{Colour, Number, Person, Town};

const ROWS: [Row; 32] = [
    (
        "The skipper purchased a vessel for {} crowns.",
        Number,
        "How much money did a sailor pay to own his boat?",
    ),
    (
        "The physician who treats children is called {}.",
        Person,
        "What is the name of a doctor caring about kids?",
    ),
    ("Her automobile was painted {} last spring.", Colour, "Which shade has that woman's car?"),
    (
        "The bakery hands out {} loaves to poor families every week.",
        Number,
        "How much bread goes to people in need?",
    ),
    ("Our instructor in mathematics grew up in {}.", Town, "Where did a teacher of algebra spend childhood?"),
    (
        "The orchard yielded {} baskets of apples.",
        Number,
        "What amount of fruit came from trees this harvest?",
    ),
    ("The monarch was crowned in {}.", Town, "At which place did a king begin his reign?"),
    (
        "Firefighters rescued {} tenants from the blaze.",
        Number,
        "How many residents were saved when a building burned?",
    ),
    (
        "The attorney defending the suspect was {}.",
        Person,
        "Which lawyer spoke in court to protect someone accused?",
    ),
    ("The canine in the yard wears a {} collar.", Colour, "What tint is around a dog's neck?"),
    (
        "The mountaineers reached the summit after {} hours.",
        Number,
        "How long did it take climbers before standing on top?",
    ),
    ("A novel about pirates was written by {}.", Person, "Who is an author of some book on sea robbers?"),
    (
        "Most tourists arriving by train get off in {}.",
        Town,
        "Where do visitors leave their railway carriage?",
    ),
    ("The chef prefers {} plates.", Colour, "Which hue of dishes does a cook like best?"),
    (
        "The thief stole {} necklaces from a jeweller.",
        Number,
        "How many pieces of gold did some burglar take?",
    ),
    ("The infant was named {} by its parents.", Person, "What do mother and father call their newborn baby?"),
    (
        "The corporation moved its headquarters to {}.",
        Town,
        "In which city has a company its main office now?",
    ),
    ("The river flooded {} cellars.", Number, "How many basements were under water?"),
    ("The bride chose {} flowers.", Colour, "What did blossoms look like at a wedding?"),
    (
        "The astronomer {} discovered a comet.",
        Person,
        "Who looked through a telescope and found an object with a tail?",
    ),
    ("The soldiers marched {} miles before dawn.", Number, "How far did an army walk during one night?"),
    ("The violinist gives concerts in {} only.", Town, "Where can people hear some musician play?"),
    ("The fence behind our cottage is {}.", Colour, "How was wood around a small house painted?"),
    ("The apprentice of the blacksmith is {}.", Person, "Who learns to work with iron?"),
    ("The clinic vaccinated {} patients in March.", Number, "How many sick persons got an injection?"),
    ("The explorers vanished near {}.", Town, "Close to which settlement were travellers lost?"),
    ("The curtains of the theatre are {}.", Colour, "Which pigment has cloth hanging in front of a stage?"),
    (
        "The mayor who built the bridge was {}.",
        Person,
        "Which head of government let folk cross over that stream?",
    ),
    ("The farmer owns {} cattle.", Number, "How big is a herd of cows?"),
    (
        "The museum keeps the oldest coin of {}.",
        Town,
        "What community does an ancient piece of money come from?",
    ),
    ("The knight carried a {} shield.", Colour, "What did armour of some warrior on horseback look like?"),
    ("The champion in chess was beaten by {}.", Person, "Who won against a master of that board game?"),
];

const PERSONS: [&str; 12] = [
    "Alden", "Brisa", "Corwin", "Delphine", "Edric", "Farah", "Gideon", "Hollis", "Imre", "Jorun", "Kaspar",
    "Lysa",
];
const TOWNS: [&str; 12] = [
    "Arvika", "Brno", "Cadiz", "Dakar", "Erfurt", "Fargo", "Galway", "Hanoi", "Izmir", "Jaipur", "Kyoto",
    "Lagos",
];
const COLOURS: [&str; 8] = ["red", "green", "blue", "yellow", "purple", "orange", "brown", "white"];

/// Makes the cases: `documents` texts, with `questions` questions about each.
pub fn cases(documents: usize, questions: usize, seed: u64) -> Vec<Case> {
    (0..documents as u64).flat_map(|index| of_text(seed.wrapping_add(index), questions)).collect()
}

fn of_text(seed: u64, questions: usize) -> Vec<Case> {
    let mut random = SplitMix64::new(seed);
    let mut content = String::new();
    let mut asked = Vec::new();
    for (at, row) in random.permutation(ROWS.len()).into_iter().enumerate() {
        let (sentence, kind, question) = ROWS[row];
        let value = match kind {
            Number => (20 + random.below(900)).to_string(),
            Person => PERSONS[random.below(PERSONS.len())].to_owned(),
            Town => TOWNS[random.below(TOWNS.len())].to_owned(),
            Colour => COLOURS[random.below(COLOURS.len())].to_owned(),
        };
        if at > 0 {
            content.push_str(if at.is_multiple_of(PARAGRAPH) { "\n\n" } else { " " });
        }
        let start = content.len();
        content.push_str(&sentence.replace(VALUE, &value));
        asked.push((question, value, start..content.len()));
    }
    random.shuffle(&mut asked);
    let case = |(at, (question, value, gold)): (usize, (&str, String, std::ops::Range<usize>))| Case {
        id: format!("synonyms/{seed}/{at}"),
        suite: "synonyms",
        group: "synonyms".to_owned(),
        length: 0,
        cluster: seed,
        system: BRIEF_SYSTEM.to_owned(),
        lead: String::new(),
        content: content.clone(),
        question: format!("{QUESTION_PREFIX}{question}"),
        answers: vec![value],
        gold: vec![gold],
        metric: Metric::Text(TextMetric::SquadF1),
        classes: Vec::new(),
        max_tokens: MAX_TOKENS,
    };
    asked.into_iter().take(questions).enumerate().map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Words without a meaning of their own, which sentences and questions may share.
    const COMMON: [&str; 24] = [
        "a", "an", "the", "of", "in", "on", "to", "by", "for", "with", "is", "was", "were", "are", "did",
        "do", "does", "has", "who", "which", "what", "its", "from", "at",
    ];

    fn words(text: &str) -> HashSet<String> {
        let words = text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
        words.filter(|word| !word.is_empty() && !COMMON.contains(&word.as_str())).collect()
    }

    #[test]
    fn no_question_shares_a_word_with_its_sentence() {
        for (sentence, _, question) in ROWS {
            assert_eq!(sentence.matches(VALUE).count(), 1, "{sentence}");
            let shared: Vec<String> = words(sentence).intersection(&words(question)).cloned().collect();
            assert!(shared.is_empty(), "`{question}` shares {shared:?} with `{sentence}`");
        }
    }

    #[test]
    fn gold_sentences_hold_the_values_and_seeds_decide() {
        let all = cases(3, 8, 7);
        assert_eq!(all.len(), 24);
        for case in &all {
            assert!(case.content[case.gold[0].clone()].contains(&case.answers[0]), "{case:?}");
        }
        assert_eq!(all, cases(3, 8, 7));
        assert_ne!(all[0].content, cases(1, 8, 8)[0].content);
    }
}
