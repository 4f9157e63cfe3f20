//! Real text whose names people have marked: how many of them the redactor replaces, and how much of what it
//! replaces touches no marked name. It is told and not checked, because such corpora also mark names that are
//! not private.
//!
//! A file has one word a line, with columns separated by tabs or spaces. The tag is the first column that is
//! `O` or begins with `B-` or `I-`; the word is the column before it. An empty line ends a sentence.

use std::fs;
use std::ops::Range;

use anyhow::{Context, ensure};
use serde_json::json;

use super::score::{Scene, findings};
use crate::report::Report;

/// The kinds of names in such files, and what the table calls them.
const KINDS: [(&str, &str); 3] = [("PER", "people"), ("ORG", "organisations"), ("LOC", "places")];

/// A sentence, and its names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sentence {
    text: String,
    names: Vec<(String, Range<usize>)>,
}

/// Measures the redactor on a file, given as `FILE:LANG`.
///
/// # Errors
/// Fails if the file cannot be read or holds no names.
pub(super) fn measure(report: &mut Report, option: &str) -> anyhow::Result<()> {
    let (path, language) = option.rsplit_once(':').with_context(|| format!("`{option}`: want FILE:LANG"))?;
    let text = fs::read_to_string(path).with_context(|| format!("read `{path}`"))?;
    let sentences = sentences(&text, language == "zh");
    let marked: usize = sentences.iter().map(|sentence| sentence.names.len()).sum();
    ensure!(marked > 0, "`{path}` marks no name: want lines of a word and its IOB2 tag");
    let mut hits = [(0u32, 0u32); KINDS.len()];
    let (mut found_count, mut right) = (0u32, 0u32);
    for sentence in &sentences {
        let found = findings(&sentence.text, Scene::Conversation)
            .with_context(|| format!("a sentence of `{path}`"))?;
        for (kind, name) in &sentence.names {
            let Some(at) = KINDS.iter().position(|(tag, _)| tag == kind) else { continue };
            let mut letters = sentence.text[name.clone()].char_indices().filter(|(_, c)| c.is_alphanumeric());
            let covered = letters.all(|(at, _)| found.iter().any(|f| f.range.contains(&(at + name.start))));
            hits[at] = (hits[at].0 + u32::from(covered), hits[at].1 + 1);
        }
        for finding in found.iter().filter(|f| matches!(f.label.as_str(), "PERSON" | "PLACE" | "ORG")) {
            found_count += 1;
            let touches =
                |name: &Range<usize>| finding.range.start < name.end && name.start < finding.range.end;
            right += u32::from(sentence.names.iter().any(|(_, name)| touches(name)));
        }
    }
    let rate = |hits: u32, of: u32| f64::from(hits) / f64::from(of.max(1));
    let precision = rate(right, found_count);
    let mut rows: Vec<Vec<String>> = KINDS
        .iter()
        .zip(hits)
        .map(|((_, name), (hit, of))| {
            vec![format!("recall of {name}"), format!("{:.3} of {of}", rate(hit, of))]
        })
        .collect();
    rows.push(vec![
        "findings that touch a marked name".to_owned(),
        format!("{precision:.3} of {found_count}"),
    ]);
    report.table(
        &format!("real text, {language}: {} sentences", sentences.len()),
        &["figure", "value"],
        &rows,
    );
    let recall: Vec<_> = KINDS
        .iter()
        .zip(hits)
        .map(|((_, name), (hit, of))| json!({ "kind": name, "values": of, "recall": rate(hit, of) }))
        .collect();
    report.data(
        &format!("real {language}"),
        json!({ "sentences": sentences.len(), "recall": recall, "findings": found_count, "precision": precision }),
    );
    Ok(())
}

/// Reads the sentences of a file. Words are joined by spaces, but not Chinese ones, and not before marks.
fn sentences(text: &str, joined: bool) -> Vec<Sentence> {
    let mut all = vec![Sentence::default()];
    let mut open = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_tag = |column: &&str| *column == "O" || column.starts_with("B-") || column.starts_with("I-");
        let tagged = columns.iter().position(is_tag).filter(|&at| at > 0);
        let Some(at) = tagged else {
            if all.last().is_some_and(|sentence| !sentence.text.is_empty()) {
                all.push(Sentence::default());
            }
            open.clear();
            continue;
        };
        let (word, tag) = (columns[at - 1], columns[at]);
        let Some(Sentence { text, names }) = all.last_mut() else { continue };
        let mark = word.chars().all(|c| ".,!?:;)”“%".contains(c)) || matches!(word, "'s" | "’s" | "n't");
        if !joined && !text.is_empty() && !mark && !text.ends_with(['(', '„']) {
            text.push(' ');
        }
        let start = text.len();
        text.push_str(word);
        match (tag.strip_prefix("I-"), tag.strip_prefix("B-")) {
            (Some(kind), _) if kind == open => {
                if let Some((_, name)) = names.last_mut() {
                    name.end = text.len();
                }
            }
            (Some(kind), _) | (_, Some(kind)) => {
                names.push((kind.to_owned(), start..text.len()));
                kind.clone_into(&mut open);
            }
            _ => open.clear(),
        }
    }
    all.retain(|sentence| !sentence.text.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_sentences_with_names() {
        let text =
            "# id = 1\n1\tAnna\tB-PER\t-\n2\tKeller\tI-PER\t-\n3\tleft\tO\t-\n4\t.\tO\t-\n\nOslo B-LOC\n";
        let read = sentences(text, false);
        let first = Sentence { text: "Anna Keller left.".into(), names: vec![("PER".into(), 0..11)] };
        let second = Sentence { text: "Oslo".into(), names: vec![("LOC".into(), 0..4)] };
        assert_eq!(read, [first, second]);
    }
}
