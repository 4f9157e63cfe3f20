//! Comments and documents are short: lines, sentences, and no name that was given up.

use super::{
    check, files, rust_sources,
    text::{Line, comment_blocks, comments, paragraphs, sentences},
    top,
};

/// Characters of a line with a comment: what rustfmt allows code, which does not look at comments.
const COMMENT_WIDTH_MAX: usize = 110;

const SENTENCE_WORDS_MAX: usize = 30;

/// Identifiers that were given up, and what is said now. A name is added when its last use goes.
const RETIRED: &[(&str, &str)] = &[
    ("Asker", "Requester"),
    ("Complaints", "ResponderErrors"),
    ("Departing", "Deviation"),
    ("EchoOf", "EchoData"),
    ("EdgeBook", "Ways"),
    ("EdgeTable", "Ways"),
    ("InForce", "PublishedSettings"),
    ("Larder", "PieceServer"),
    ("Neighbourhood", "DeviceFinder"),
    ("NextNode", "Node"),
    ("NodeAddress", "Node"),
    ("OF_ONE_ADDRESS", "PER_ADDRESS_MAX"),
    ("OF_ONE_KIND", "PER_KIND_MAX"),
    ("Office", "AdminService"),
    ("Outgoing", "HeadSender"),
    ("Owed", "TokensToRebuild"),
    ("PIECES_TOLD", "PIECES_PER_REPORT"),
    ("PairedHome", "PairedDevices"),
    ("PieceOf", "PieceData"),
    ("PlanBoard", "CurrentPlan"),
    ("Pulse", "LoadHistory"),
    ("RingWatch", "WeakRingHandle"),
    ("Shelf", "ModelFile"),
    ("Singles", "SingleRowTimes"),
    ("StoredWay", "StoredEdge"),
    ("TOLD_MAX", "REPORTED_MAX"),
    ("Unable", "PartFailure"),
    ("WayTo", "MeasuredLink"),
];

/// Statements of documents and help texts that were not so, and what is so. A use or a document may bring one
/// back only with the code that makes it true.
const UNTRUE: &[(&str, &str)] = &[
    ("run or wait, one of them at work", "`--answers` of them are computed at the same time"),
    ("only pass on the data of other devices", "plans leave such a device out"),
    ("very figure that the project claims", "benches measure what the table of benches/README.md says"),
    ("organisations no longer reach the cloud", "those that are found are replaced"),
    ("scheme is that of the paper PIPO", "what stays where is chosen otherwise"),
    ("exact search, Halda (HiGHS), rules of thumb", "a ring runs by the exact search alone"),
    ("sentences are ranked: attention (default)", "the mode `attention` also ranks by words"),
];

/// The lines with comments that are wider, counted from 1, and how wide they are.
fn wide_comments(source: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let widths = comments(source).into_iter().map(|comment| {
        let line = lines.get(comment.line_idx).copied().unwrap_or_default();
        (comment.line_idx + 1, line.chars().count())
    });
    widths.filter(|(_, width)| *width > COMMENT_WIDTH_MAX).collect()
}

/// The sentences that are longer, each with the line in which its paragraph begins.
fn long_sentences(lines: &[Line<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in paragraphs(lines) {
        for sentence in sentences(&paragraph) {
            if sentence.words > SENTENCE_WORDS_MAX {
                found.push(format!("{}: {} words: {}", paragraph[0].0 + 1, sentence.words, sentence.text));
            }
        }
    }
    found
}

/// The retired names in a line, each with what is said now.
fn retired_names(line: &str, retired: &[(&str, &str)]) -> Vec<String> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let found = words.filter_map(|word| retired.iter().find(|(name, _)| *name == word));
    found.map(|(name, instead)| format!("`{name}` is called `{instead}` now")).collect()
}

#[test]
fn comments_are_narrow() {
    let mut offences = Vec::new();
    for (path, text) in rust_sources() {
        for (line, width) in wide_comments(&text) {
            offences.push(format!("{}:{line}: {width} characters", path.display()));
        }
    }
    check("a line with a comment over 110 characters", &offences);
}

#[test]
fn sentences_are_short() {
    let mut offences = Vec::new();
    for path in files() {
        let Ok(text) = std::fs::read_to_string(top().join(&path)) else { continue };
        let blocks = match path.extension().and_then(|ext| ext.to_str()) {
            Some("rs") => comment_blocks(&text),
            Some("md") => vec![text.lines().enumerate().collect()],
            _ => continue,
        };
        let long = blocks.iter().flat_map(|lines| long_sentences(lines));
        offences.extend(long.map(|sentence| format!("{}:{sentence}", path.display())));
    }
    check("a sentence over 30 words", &offences);
}

#[test]
fn retired_names_stay_away() {
    let mut offences = Vec::new();
    // This file has the list.
    let others = rust_sources().into_iter().filter(|(path, _)| !path.ends_with("tidy/wording.rs"));
    for (path, text) in others {
        for (line_idx, line) in text.lines().enumerate() {
            let found = retired_names(line, RETIRED).into_iter();
            offences.extend(found.map(|what| format!("{}:{}: {what}", path.display(), line_idx + 1)));
        }
    }
    check("a name that was given up", &offences);
}

#[test]
fn what_was_not_so_is_not_said_again() {
    let mut offences = Vec::new();
    for path in files().iter().filter(|path| !path.ends_with("tidy/wording.rs")) {
        let Ok(text) = std::fs::read_to_string(top().join(path)) else { continue };
        for (untrue, so) in UNTRUE.iter().filter(|(untrue, _)| text.contains(untrue)) {
            offences.push(format!("{}: `{untrue}`: {so}", path.display()));
        }
    }
    check("a statement that is not so", &offences);
}

#[test]
fn wide_comments_are_found() {
    let (wide, narrow) = ("w".repeat(COMMENT_WIDTH_MAX - 2), "n".repeat(COMMENT_WIDTH_MAX - 3));
    let source = format!("// {narrow}\n// {wide}\nlet text = \"{wide}\";\n{narrow} // a\n");
    assert_eq!(wide_comments(&source), [(2, 111), (4, 112)]);
}

#[test]
fn long_sentences_are_found() {
    let (long, short) = ("Word ".repeat(31), "Word ".repeat(30));
    let lines = [format!("A heading: {short}"), String::new(), format!("Short. {short}."), long];
    let lines: Vec<Line<'_>> = lines.iter().map(String::as_str).enumerate().collect();
    let found = long_sentences(&lines);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("1: 32 words: A heading"), "{found:?}");
    assert!(found[1].starts_with("3: 31 words: Word"), "{found:?}");
}

#[test]
fn retired_names_are_whole_words() {
    let retired = [("Larder", "PieceServer")];
    let found = retired_names("let larder = Larder::new();", &retired);
    assert_eq!(found, ["`Larder` is called `PieceServer` now"]);
    assert!(retired_names("Larders, my_Larder, larder", &retired).is_empty());
}
