//! The only generator of documents. The trainer, the tests, the benches and the demo all ask about its texts.
//!
//! A document is readable English in Markdown: a title, then sections of a heading and a paragraph. A section
//! has one subject, and each of its sentences holds the subject's invented name. Other sections state the
//! same attributes of other subjects, so an answer needs the name and the attribute. An answer is a value
//! (short), the whole paragraph word for word (long), or a value in a section that another section links to
//! (two hops).
//!
//! Pure: reads no clock, file or environment. What always holds:
//!
//! - Equal arguments give equal documents.
//! - Every sentence ends in `.` and holds the name of its section's subject.
//! - A short answer is `The` and then the end of its gold sentence, word for word; a long answer is its gold
//!   sentences joined. So answers have the same tokens as the document.

mod held_out;
mod refined;
mod words;

pub use held_out::{crowded, paraphrased};
pub use refined::{Refined, refined};

use std::ops::Range;

use baton_random::SplitMix64;
use words::{
    ADJECTIVES, FAMILY_NAMES, FILLER_HEADS, FILLER_TAILS, FIRST_NAMES, KINDS, LEADS, NAME_HEADS, NAME_TAILS,
    NOUNS, NUMBER_ATTRIBUTES, PERSON_ATTRIBUTES, PHRASE_ATTRIBUTES,
};

/// A bit that is set in every seed that the trainer uses, and in no seed that an evaluation uses.
pub const TRAINING_SEED_BIT: u64 = 1 << 63;

/// A generated document and the questions about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The title without its `# ` mark.
    pub title: String,
    /// The whole text: title line, then the sections, separated by blank lines; no newline at the end.
    pub text: String,
    /// The sections in order.
    pub sections: Vec<Section>,
    /// All questions, in an order drawn from the seed; at least one long and one short.
    pub questions: Vec<Question>,
}

impl Document {
    /// Returns the first question of a kind, if there is one.
    pub fn question(&self, kind: QuestionKind) -> Option<&Question> {
        self.questions.iter().find(|question| question.kind == kind)
    }
}

/// A heading and its paragraph. All ranges are byte ranges in the document's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The subject's name, unique in documents of up to 1,536 sections.
    pub name: String,
    /// The heading line with its `## ` mark, without the newline.
    pub heading: Range<usize>,
    /// The paragraph, without the newlines around it.
    pub body: Range<usize>,
    /// The paragraph's sentences, each from its first letter to its full stop.
    pub sentences: Vec<Range<usize>>,
}

/// What an answer looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuestionKind {
    /// A value from one sentence: `The toys of Velgard are ...`.
    Short,
    /// A whole section, word for word.
    Long,
    /// A value from a second section, which a sentence of the first section names.
    TwoHop,
    /// A value from one sentence, asked for in other words. A document's own questions never have this kind
    /// (see [`paraphrased`]).
    Paraphrase,
}

impl QuestionKind {
    /// Returns the kind's name in files: `short`, `long`, `two_hop` or `paraphrase`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
            Self::TwoHop => "two_hop",
            Self::Paraphrase => "paraphrase",
        }
    }
}

/// A question with its only correct answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The question, without the `Question: ` that a prompt puts before it.
    pub text: String,
    /// The answer, word for word as in the document; a short answer has `The` before it.
    pub answer: String,
    /// What the answer looks like.
    pub kind: QuestionKind,
    /// The sentences that must be read to answer: byte ranges in the document's text, in reading order.
    pub gold: Vec<Range<usize>>,
    /// What is asked for; `None` if the answer is a whole section.
    pub asked: Option<Asked>,
}

/// One attribute of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The subject that the question names; for a two-hop question the answer is about another subject.
    pub subject: String,
    /// The attribute, e.g. `toys`.
    pub attribute: &'static str,
    /// The value: the end of the answer without its full stop.
    pub value: String,
}

/// The fact that one sentence states, before it has a place in the text.
#[derive(Debug, Clone)]
struct Fact {
    attribute: &'static str,
    value: String,
}

/// One planned sentence: its text, and the fact or the link in it.
struct Planned {
    text: String,
    fact: Option<Fact>,
    link: Option<usize>,
}

/// Returns the random stream of a seed, from which documents are drawn. It differs from that of
/// [`SplitMix64::new`].
pub fn stream(seed: u64) -> SplitMix64 {
    SplitMix64::new(seed ^ 0x6a09_e667_f3bc_c909)
}

/// Draws values, names and sentences; hands out each value and name once, until all have been used.
struct Source {
    rng: SplitMix64,
    /// Attributes that facts may state: of phrases, of persons and of numbers.
    attributes: [Vec<&'static str>; 3],
    adjectives: Vec<usize>,
    nouns: Vec<usize>,
    heads: Vec<usize>,
    tails: Vec<usize>,
    firsts: Vec<usize>,
    families: Vec<usize>,
    endings: Vec<usize>,
    values_drawn: usize,
    names_drawn: usize,
    persons_drawn: usize,
    numbers_drawn: usize,
}

impl Source {
    fn new(seed: u64) -> Self {
        let mut rng = stream(seed);
        Self {
            adjectives: rng.permutation(ADJECTIVES.len()),
            nouns: rng.permutation(NOUNS.len()),
            heads: rng.permutation(NAME_HEADS.len()),
            tails: rng.permutation(NAME_TAILS.len()),
            firsts: rng.permutation(FIRST_NAMES.len()),
            families: rng.permutation(FAMILY_NAMES.len()),
            endings: rng.permutation(100),
            rng,
            attributes: [PHRASE_ATTRIBUTES.to_vec(), PERSON_ATTRIBUTES.to_vec(), NUMBER_ATTRIBUTES.to_vec()],
            values_drawn: 0,
            names_drawn: 0,
            persons_drawn: 0,
            numbers_drawn: 0,
        }
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.rng.below(items.len())]
    }

    /// Returns the next adjective and noun. Nouns repeat in a cycle. The step of the adjective is coprime to
    /// their number, so a pair comes back only after all 8,192 have been used.
    fn value(&mut self) -> String {
        let (k, n) = (self.values_drawn, NOUNS.len());
        self.values_drawn += 1;
        let adjective = self.adjectives[(k % n + 5 * (k / n)) % ADJECTIVES.len()];
        format!("{} {}", ADJECTIVES[adjective], NOUNS[self.nouns[k % n]])
    }

    /// Returns the next invented name. Heads repeat in a cycle; a pair comes back only after all 1,536 have
    /// been used.
    fn name(&mut self) -> String {
        let (k, n) = (self.names_drawn, NAME_HEADS.len());
        self.names_drawn += 1;
        let tail = self.tails[(k % n + k / n) % NAME_TAILS.len()];
        format!("{}{}", NAME_HEADS[self.heads[k % n]], NAME_TAILS[tail])
    }

    /// Returns the next person. Family names repeat in a cycle; a pair comes back only after all 576 have
    /// been used.
    fn person(&mut self) -> String {
        let (k, n) = (self.persons_drawn, FAMILY_NAMES.len());
        self.persons_drawn += 1;
        let first = FIRST_NAMES[self.firsts[(k % n + k / n) % FIRST_NAMES.len()]];
        format!("{first} {}", FAMILY_NAMES[self.families[k % n]])
    }

    /// Returns the next number of four digits, from 1100 to 1999; its last two digits repeat in a cycle.
    fn number(&mut self) -> String {
        let ending = self.endings[self.numbers_drawn % self.endings.len()];
        self.numbers_drawn += 1;
        (1_100 + 100 * self.rng.below(9) + ending).to_string()
    }

    /// Draws facts with different attributes: four of five have a phrase as value, the others a person or a
    /// number.
    fn facts(&mut self, count: usize) -> Vec<Fact> {
        let mut facts: Vec<Fact> = Vec::with_capacity(count);
        while facts.len() < count {
            let sort = self.rng.below(10);
            let of_sort = &self.attributes[match sort {
                0 => 1,
                1 => 2,
                _ => 0,
            }];
            let attribute = of_sort[self.rng.below(of_sort.len())];
            if facts.iter().any(|fact| fact.attribute == attribute) {
                continue;
            }
            let value = match sort {
                0 => self.person(),
                1 => self.number(),
                _ => self.value(),
            };
            facts.push(Fact { attribute, value });
        }
        facts
    }

    /// Plans the sentences of a section: an opening unlike any other sentence, then facts, filler and a link
    /// in random order. No two of them begin with the same words.
    fn section(
        &mut self,
        name: &str,
        facts: usize,
        fillers: usize,
        link: Option<(usize, &str)>,
    ) -> Vec<Planned> {
        let mut rest: Vec<Planned> = Vec::new();
        let mut leads = self.rng.permutation(LEADS.len()).into_iter().cycle().map(|lead| LEADS[lead]);
        let mut lead = || leads.next().expect("a cycle of 16 leads has no end");
        for fact in self.facts(facts) {
            let text = format!("{} {} of {name} {} {}.", lead(), fact.attribute, verb(&fact), fact.value);
            rest.push(Planned { text, fact: Some(fact), link: None });
        }
        let heads = self.rng.permutation(FILLER_HEADS.len());
        for head in heads.into_iter().take(fillers) {
            let (head, tail) = (FILLER_HEADS[head], self.pick(&FILLER_TAILS));
            rest.push(Planned {
                text: format!("{head} {name} {tail} {}.", self.value()),
                fact: None,
                link: None,
            });
        }
        if let Some((target, other)) = link {
            let text = format!("{} partner of {name} is {other} with {}.", lead(), self.value());
            rest.push(Planned { text, fact: None, link: Some(target) });
        }
        self.rng.shuffle(&mut rest);
        let opening = format!("At {name} a {} keeps {}.", self.pick(&KINDS), self.value());
        rest.insert(0, Planned { text: opening, fact: None, link: None });
        rest
    }
}

/// Writes a document of about `words` words. It has at least one section and ends with the first section that
/// reaches the target.
///
/// Paragraphs have 6 to 9 sentences, or 2 to 4 in documents under 150 words. Cost: linear in `words`.
///
/// ```
/// use baton_corpus::{QuestionKind, document};
/// let doc = document(7, 300);
/// let question = doc.question(QuestionKind::Long).expect("every document has a long question");
/// assert!(doc.text.contains(&question.answer));
/// assert_eq!(doc, document(7, 300));
/// ```
pub fn document(seed: u64, words: usize) -> Document {
    write_document(Source::new(seed), words)
}

fn write_document(mut source: Source, words: usize) -> Document {
    let title = format!("The Book of {}", source.name());
    let plan = plan(&mut source, words);
    let mut text = format!("# {title}");
    let mut sections = Vec::with_capacity(plan.len());
    for (name, sentences) in &plan {
        sections.push(write_section(&mut text, name, sentences.iter().map(|planned| planned.text.as_str())));
    }
    let mut questions = questions(&mut source, &plan, &sections, &text);
    source.rng.shuffle(&mut questions);
    Document { title, text, sections, questions }
}

/// Plans the names and sentences of all sections.
fn plan(source: &mut Source, words: usize) -> Vec<(String, Vec<Planned>)> {
    let small = words < 150;
    let mut shapes = Vec::new();
    let mut planned_words = 5;
    while shapes.is_empty() || planned_words < words {
        let facts = if small { 1 + source.rng.below(2) } else { 4 + source.rng.below(2) };
        let fillers = source.rng.below(2) + usize::from(!small);
        shapes.push((source.name(), facts, fillers, source.rng.percent(30)));
        planned_words += 10 + 8 * facts + 6 * fillers;
    }
    let names: Vec<String> = shapes.iter().map(|(name, ..)| name.clone()).collect();
    let mut plan = Vec::with_capacity(shapes.len());
    for (index, (name, facts, fillers, linked)) in shapes.into_iter().enumerate() {
        let target = (index + 1 + source.rng.below(names.len().max(2) - 1)) % names.len();
        let link = (linked && target != index).then(|| (target, names[target].as_str()));
        let sentences = source.section(&name, facts, fillers, link);
        plan.push((name, sentences));
    }
    plan
}

/// Appends a section to the text: a blank line, the heading, the paragraph.
fn write_section<'a>(text: &mut String, name: &str, sentences: impl Iterator<Item = &'a str>) -> Section {
    text.push_str("\n\n");
    let heading_start = text.len();
    text.push_str("## ");
    text.push_str(name);
    let heading = heading_start..text.len();
    text.push('\n');
    let body_start = text.len();
    let mut ranges = Vec::new();
    for sentence in sentences {
        if text.len() > body_start {
            text.push(' ');
        }
        let start = text.len();
        text.push_str(sentence);
        ranges.push(start..text.len());
    }
    Section { name: name.to_owned(), heading, body: body_start..text.len(), sentences: ranges }
}

fn statement(name: &str, fact: &Fact) -> String {
    format!("The {} of {name} {} {}.", fact.attribute, verb(fact), fact.value)
}

/// Returns `are` for attributes whose value is an adjective and a noun, because these are plural.
fn verb(fact: &Fact) -> &'static str {
    if PHRASE_ATTRIBUTES.contains(&fact.attribute) { "are" } else { "is" }
}

fn asks_for(fact: &Fact) -> &'static str {
    if PERSON_ATTRIBUTES.contains(&fact.attribute) { "Who" } else { "What" }
}

fn asked(subject: &str, fact: &Fact) -> Asked {
    Asked { subject: subject.to_owned(), attribute: fact.attribute, value: fact.value.clone() }
}

/// Makes every question that the document answers.
fn questions(
    source: &mut Source,
    plan: &[(String, Vec<Planned>)],
    sections: &[Section],
    text: &str,
) -> Vec<Question> {
    let mut questions = Vec::new();
    for ((name, sentences), section) in plan.iter().zip(sections) {
        let ask = if source.rng.percent(75) { "Tell everything about" } else { "Describe all of" };
        questions.push(Question {
            text: format!("{ask} {name}."),
            answer: text[section.body.clone()].to_owned(),
            kind: QuestionKind::Long,
            gold: section.sentences.clone(),
            asked: None,
        });
        for (planned, range) in sentences.iter().zip(&section.sentences) {
            if let Some(fact) = &planned.fact {
                questions.push(Question {
                    text: format!("{} {} the {} of {name}?", asks_for(fact), verb(fact), fact.attribute),
                    answer: statement(name, fact),
                    kind: QuestionKind::Short,
                    gold: vec![range.clone()],
                    asked: Some(asked(name, fact)),
                });
            }
            if let Some(target) = planned.link {
                let facts = plan[target].1.iter().zip(&sections[target].sentences);
                let Some((fact, gold)) = facts.filter_map(|(p, r)| p.fact.as_ref().map(|f| (f, r))).next()
                else {
                    continue;
                };
                let mut gold = vec![range.clone(), gold.clone()];
                gold.sort_by_key(|range| range.start);
                questions.push(Question {
                    text: format!(
                        "{} {} the {} of the partner of {name}?",
                        asks_for(fact),
                        verb(fact),
                        fact.attribute
                    ),
                    answer: statement(&plan[target].0, fact),
                    kind: QuestionKind::TwoHop,
                    gold,
                    asked: Some(asked(name, fact)),
                });
            }
        }
    }
    questions
}

#[cfg(test)]
mod tests;
