//! Text that no training row holds: questions in other words, and documents whose sections all state the same
//! few attributes.
//!
//! For evaluation only; the trainer's program never calls this. Equal arguments give equal results.

use crate::words::{NUMBER_ATTRIBUTES, PARAPHRASE_FRAMES, PERSON_ATTRIBUTES, PHRASE_ATTRIBUTES, SYNONYMS};
use crate::{Document, Question, QuestionKind, Source, write_document};

/// Number of phrase attributes that a crowded document states.
const CROWDED_PHRASES: usize = 5;

/// Rewrites a question with a synonym of the attribute and another frame, so that its words are in neither
/// the document nor a training question. It shares only the subject's name with the sentence that answers it.
/// `pick` chooses the frame.
///
/// Returns `None` for questions that do not ask for one attribute of the subject they name.
pub fn paraphrased(question: &Question, pick: u64) -> Option<Question> {
    let asked = question.asked.as_ref().filter(|_| question.kind == QuestionKind::Short)?;
    let (_, synonym) = SYNONYMS.iter().find(|(attribute, _)| *attribute == asked.attribute)?;
    let frame = PARAPHRASE_FRAMES[(pick % PARAPHRASE_FRAMES.len() as u64) as usize];
    let text = frame.replace("{attribute}", synonym).replace("{name}", &asked.subject);
    Some(Question { text, kind: QuestionKind::Paraphrase, ..question.clone() })
}

/// Writes a document like [`crate::document`], but all sections state the same seven attributes of their
/// subjects. So each fact has a distractor in most other sections.
pub fn crowded(seed: u64, words: usize) -> Document {
    let mut source = Source::new(seed);
    let phrases = source.rng.permutation(PHRASE_ATTRIBUTES.len());
    let person = PERSON_ATTRIBUTES[source.rng.below(PERSON_ATTRIBUTES.len())];
    let number = NUMBER_ATTRIBUTES[source.rng.below(NUMBER_ATTRIBUTES.len())];
    source.attributes = [
        phrases.into_iter().take(CROWDED_PHRASES).map(|index| PHRASE_ATTRIBUTES[index]).collect(),
        vec![person],
        vec![number],
    ];
    write_document(source, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn every_attribute_has_a_synonym_that_no_document_holds() {
        let text = document(5, 20_000).text.to_lowercase();
        let words: HashSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
        let attributes = PHRASE_ATTRIBUTES.iter().chain(&PERSON_ATTRIBUTES).chain(&NUMBER_ATTRIBUTES);
        for attribute in attributes {
            let (_, synonym) =
                SYNONYMS.iter().find(|(of, _)| of == attribute).expect("every attribute has a synonym");
            assert!(!words.contains(synonym), "{synonym} stands in a document");
        }
    }

    #[test]
    fn a_paraphrase_shares_only_the_name_with_its_sentence() {
        let doc = document(11, 600);
        let mut asked = 0;
        for (pick, question) in doc.questions.iter().enumerate() {
            let Some(other) = paraphrased(question, pick as u64) else {
                assert_ne!(question.kind, QuestionKind::Short);
                continue;
            };
            asked += 1;
            let words = |text: &str| -> HashSet<String> {
                let lower = text.to_lowercase();
                lower
                    .split(|c: char| !c.is_alphanumeric())
                    .filter(|w| w.len() > 3)
                    .map(String::from)
                    .collect()
            };
            let shared: Vec<String> =
                words(&other.text).intersection(&words(&doc.text[other.gold[0].clone()])).cloned().collect();
            let name = other.asked.as_ref().expect("it asks for an attribute").subject.to_lowercase();
            assert!(shared.iter().all(|word| *word == name), "{shared:?} in `{}`", other.text);
            assert!(!other.text.contains('{') && other.answer == question.answer);
        }
        assert!(asked > 10, "{asked} paraphrases");
    }

    #[test]
    fn crowded_documents_repeat_their_attributes() {
        let doc = crowded(3, 1_500);
        assert_eq!(doc, crowded(3, 1_500));
        let mut subjects: HashMap<&str, usize> = HashMap::new();
        for question in doc.questions.iter().filter(|question| question.kind == QuestionKind::Short) {
            *subjects.entry(question.asked.as_ref().expect("short questions ask").attribute).or_default() +=
                1;
        }
        assert!(subjects.len() <= CROWDED_PHRASES + 2, "{subjects:?}");
        let facts: usize = subjects.values().sum();
        assert!(facts >= 8 * subjects.len(), "{subjects:?}");
    }
}
