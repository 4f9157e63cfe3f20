//! `badcases`: prompts on which answers have faults that other scores hide. The score is 1 if no detector
//! finds a fault.
//!
//! Groups:
//!
//! - `absent`: a subject that is not in the text;
//! - `everything`: a long copy, which often ends in a loop;
//! - `again`: the same section three times;
//! - `fragment`: a text of one sentence.

use baton_corpus::{QuestionKind, document, stream};
use baton_engine::Tokenizer;

use crate::case::Case;
use crate::metric::Metric;
use crate::suite::{QUESTION_PREFIX, SYSTEM};

/// Maximum number of tokens in an answer; large enough for a loop to show.
const MAX_TOKENS: usize = 256;

/// Makes the cases: `documents` texts of each of `lengths` (approximate, in tokens), in four groups.
pub fn cases(lengths: &[usize], documents: usize, seed: u64, tokenizer: &Tokenizer) -> Vec<Case> {
    let mut cases = Vec::new();
    for &length in lengths {
        for index in 0..documents as u64 {
            let seed = seed.wrapping_add(index) & !baton_corpus::TRAINING_SEED_BIT;
            let words = length * 100 / tokenizer.encode(&document(seed, 100).text).len().max(1);
            let main = document(seed, words);
            let other = document(seed ^ 0x5eed, 400);
            let case = |group: &str, content: String, question: String| Case {
                id: format!("badcases/{group}/{length}/{seed}"),
                suite: "badcases",
                group: group.to_owned(),
                length,
                cluster: seed,
                system: SYSTEM.to_owned(),
                lead: String::new(),
                content,
                question: format!("{QUESTION_PREFIX}{question}"),
                answers: Vec::new(),
                gold: Vec::new(),
                metric: Metric::Sound,
                classes: Vec::new(),
                max_tokens: MAX_TOKENS,
            };
            let known = |name: &str| main.sections.iter().any(|section| section.name == name);
            let absent = other.sections.iter().map(|section| section.name.as_str()).find(|name| !known(name));
            let everything = main.question(QuestionKind::Long).expect("every document has a long question");
            let short = main.question(QuestionKind::Short).expect("every document has a short question");
            let name = absent.unwrap_or("Nowhere");
            cases.push(case("absent", main.text.clone(), format!("Tell everything about {name}.")));
            cases.push(case("everything", main.text.clone(), everything.text.clone()));
            let section = &main.sections[stream(seed).below(main.sections.len())];
            let part = &main.text[section.heading.start..section.body.end];
            let again = [part, part, part].join("\n\n");
            cases.push(case("again", again, format!("Describe all of {}.", section.name)));
            let fragment = main.text[short.gold[0].clone()].to_owned();
            cases.push(case("fragment", fragment, short.text.clone()));
        }
    }
    cases
}
