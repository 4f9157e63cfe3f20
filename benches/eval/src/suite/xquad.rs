//! `xquad`: the questions of a file in SQuAD's format (for example XQuAD), over mixes of its paragraphs.
//!
//! The file belongs to the user and is not part of this project. A mix consists of several paragraphs,
//! separated by blank lines, so that the text is long enough to refine. The gold sentences are those that
//! contain the answer's span.

use std::ops::Range;

use serde::Deserialize;

use crate::case::Case;
use crate::metric::{Metric, TextMetric};
use crate::suite::{BRIEF_SYSTEM, QUESTION_PREFIX, SuiteError};

/// Maximum number of tokens in an answer.
const MAX_TOKENS: usize = 32;

#[derive(Deserialize)]
struct SquadFile {
    data: Vec<Article>,
}

#[derive(Deserialize)]
struct Article {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    id: String,
    question: String,
    answers: Vec<Span>,
}

#[derive(Deserialize)]
struct Span {
    /// Start of the answer in the context, in characters.
    answer_start: usize,
    text: String,
}

/// Makes the cases of a file: mixes of `paragraphs` paragraphs, with at most `questions` questions about each
/// mix, or all if it is 0.
///
/// # Errors
/// [`SuiteError::Data`] if `json` is not in SQuAD's format, or an answer is not at its stated position.
pub fn cases(json: &str, paragraphs: usize, questions: usize) -> Result<Vec<Case>, SuiteError> {
    let data = |message: String| SuiteError::Data { suite: "xquad", message };
    let file: SquadFile = serde_json::from_str(json).map_err(|err| data(err.to_string()))?;
    let all: Vec<Paragraph> = file.data.into_iter().flat_map(|article| article.paragraphs).collect();
    let mixes = all.len().div_ceil(paragraphs.max(1));
    let mut cases = Vec::new();
    for mix in 0..mixes {
        // Adjacent paragraphs are about one subject, so a mix takes every `mixes`-th paragraph.
        let chosen: Vec<&Paragraph> = all.iter().skip(mix).step_by(mixes).collect();
        let mut content = String::new();
        let mut asked: Vec<(&Asked, Vec<Range<usize>>)> = Vec::new();
        for paragraph in chosen {
            if !content.is_empty() {
                content.push_str("\n\n");
            }
            let offset = content.len();
            content.push_str(&paragraph.context);
            for question in &paragraph.qas {
                let gold = question.answers.iter().map(|span| place(&paragraph.context, span, offset));
                let gold: Option<Vec<Range<usize>>> = gold.collect();
                let gold = gold.ok_or_else(|| {
                    data(format!("the answer of question `{}` is not where it says", question.id))
                })?;
                asked.push((question, gold));
            }
        }
        let most = if questions == 0 { asked.len() } else { questions };
        let step = asked.len().div_ceil(most.max(1)).max(1);
        for (question, gold) in asked.into_iter().step_by(step) {
            cases.push(Case {
                id: format!("xquad/{paragraphs}/{}", question.id),
                suite: "xquad",
                group: format!("{paragraphs} paragraphs"),
                length: 0,
                cluster: mix as u64,
                system: BRIEF_SYSTEM.to_owned(),
                lead: String::new(),
                content: content.clone(),
                question: format!("{QUESTION_PREFIX}{}", question.question),
                answers: question.answers.iter().map(|span| span.text.clone()).collect(),
                gold,
                metric: Metric::Text(TextMetric::SquadF1),
                classes: Vec::new(),
                max_tokens: MAX_TOKENS,
            });
        }
    }
    Ok(cases)
}

/// Returns the byte range of an answer in the mix, or `None` if the text is different there.
fn place(context: &str, span: &Span, offset: usize) -> Option<Range<usize>> {
    let (start, _) = context.char_indices().nth(span.answer_start)?;
    let holds = context[start..].starts_with(&span.text) && !span.text.is_empty();
    holds.then(|| offset + start..offset + start + span.text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(answer_start: usize) -> String {
        let paragraph = |context: &str, id: &str, start: usize, text: &str| {
            format!(
                r#"{{"context":"{context}","qas":[{{"id":"{id}","question":"Who?","answers":[{{"answer_start":{start},"text":"{text}"}}]}}]}}"#
            )
        };
        let first = paragraph("Ünder it lies Bo.", "a", answer_start, "Bo");
        let second = paragraph("It is Al. And Cy.", "b", 6, "Al");
        format!(r#"{{"data":[{{"paragraphs":[{first}]}},{{"paragraphs":[{second}]}}]}}"#)
    }

    #[test]
    fn answers_are_found_in_the_mix() {
        let cases = cases(&file(14), 2, 0).unwrap();
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[0].content, "Ünder it lies Bo.\n\nIt is Al. And Cy.");
        for case in &cases {
            assert_eq!(case.content[case.gold[0].clone()], case.answers[0]);
        }
        assert_eq!(super::cases(&file(14), 1, 0).unwrap()[1].content, "It is Al. And Cy.");
        assert_eq!(super::cases(&file(14), 2, 1).unwrap().len(), 1);
    }

    #[test]
    fn what_is_not_the_format_is_refused() {
        let refused = |json: &str| cases(json, 2, 0).unwrap_err().to_string();
        assert!(refused("{}").contains("missing field `data`"), "{}", refused("{}"));
        assert!(refused(&file(15)).contains("question `a` is not where it says"), "{}", refused(&file(15)));
        assert!(refused(&file(999)).contains("question `a`"));
    }
}
