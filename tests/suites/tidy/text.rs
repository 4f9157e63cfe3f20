//! Comments of Rust sources and prose of Markdown, cut into paragraphs and sentences.
//!
//! Knows as much of Rust as it takes to tell a comment from a string, and as much of Markdown as it takes to
//! pass over code. Block comments are passed over: the project has none.

/// A comment to the end of its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Comment<'a> {
    /// Counted from 0.
    pub line_idx: usize,
    /// Bytes of the line before it.
    pub column: usize,
    /// No code stands before it.
    pub is_alone: bool,
    /// The comment with its slashes.
    pub text: &'a str,
}

impl<'a> Comment<'a> {
    /// `//`, `///` or `//!`, and what follows without the space between.
    fn parts(&self) -> (&'a str, &'a str) {
        let is_doc = |mark: &str| self.text.starts_with(mark) && !self.text.starts_with("////");
        let is_doc = is_doc("//!") || is_doc("///");
        let (slashes, body) = self.text.split_at(if is_doc { 3 } else { 2 });
        (slashes, body.strip_prefix(' ').unwrap_or(body))
    }
}

/// One line of prose: where it is, counted from 0, and what it says.
pub(crate) type Line<'a> = (usize, &'a str);

/// Lines that are one paragraph, one item of a list, one heading, or one cell of a table.
pub(crate) type Paragraph<'a> = Vec<Line<'a>>;

/// Every comment to the end of a line.
pub(crate) fn comments(source: &str) -> Vec<Comment<'_>> {
    let bytes = source.as_bytes();
    let (mut at, mut line_idx, mut line_start) = (0, 0, 0);
    let mut found = Vec::new();
    while at < bytes.len() {
        let end = token_end(bytes, at);
        if bytes[at..].starts_with(b"//") {
            let is_alone = source[line_start..at].trim().is_empty();
            found.push(Comment { line_idx, column: at - line_start, is_alone, text: &source[at..end] });
        }
        let lines = bytes[at..end].iter().filter(|byte| **byte == b'\n').count();
        if lines > 0 {
            line_idx += lines;
            let last = bytes[at..end].iter().rposition(|byte| *byte == b'\n');
            line_start = at + 1 + last.expect("a line ends here");
        }
        at = end;
    }
    found
}

/// The end of the comment, string or character that begins here; else of this byte.
fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let raw = raw_string_mark(bytes, at);
    let len = if rest.starts_with(b"//") {
        rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
    } else if rest.starts_with(b"/*") {
        block_comment_len(rest)
    } else if let Some(mark) = raw {
        raw_string_len(rest, mark)
    } else {
        match rest[0] {
            b'"' => string_len(rest),
            b'\'' => character_len(rest),
            _ => 1,
        }
    };
    at + len
}

/// The hashes and the quote after the `r` of a raw string that begins here.
fn raw_string_mark(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let is_word = |at: usize| bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_' || !bytes[at].is_ascii();
    let prefixed = at > 0 && matches!(bytes[at - 1], b'b' | b'c') && (at == 1 || !is_word(at - 2));
    if bytes[at] != b'r' || (at > 0 && is_word(at - 1) && !prefixed) {
        return None;
    }
    let after = &bytes[at + 1..];
    let hashes = after.iter().take_while(|byte| **byte == b'#').count();
    (after.get(hashes) == Some(&b'"')).then(|| &after[..=hashes])
}

fn raw_string_len(rest: &[u8], mark: &[u8]) -> usize {
    let start = 1 + mark.len();
    let end: Vec<u8> = mark.iter().rev().copied().collect();
    let at = rest[start..].windows(end.len()).position(|part| part == end);
    at.map_or(rest.len(), |at| start + at + end.len())
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// The length of a character; 1 if a lifetime begins here.
fn character_len(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        let end = rest.iter().skip(3).position(|byte| *byte == b'\'');
        return end.map_or(rest.len(), |at| at + 4);
    }
    let bytes = rest.iter().skip(2).take_while(|byte| (0x80..0xc0).contains(*byte)).count() + 1;
    if rest.get(1 + bytes) == Some(&b'\'') { bytes + 2 } else { 1 }
}

/// Comments in the lines one below another that begin at one column with the same slashes.
pub(crate) fn comment_blocks(source: &str) -> Vec<Vec<Line<'_>>> {
    let mut blocks: Vec<Vec<Line<'_>>> = Vec::new();
    let mut before: Option<Comment<'_>> = None;
    for comment in comments(source) {
        let (slashes, body) = comment.parts();
        let goes_on = before.is_some_and(|before| {
            let is_next = before.line_idx + 1 == comment.line_idx && before.column == comment.column;
            is_next && before.is_alone && comment.is_alone && before.parts().0 == slashes
        });
        match blocks.last_mut() {
            Some(block) if goes_on => block.push((comment.line_idx, body)),
            _ => blocks.push(vec![(comment.line_idx, body)]),
        }
        before = Some(comment);
    }
    blocks
}

/// The paragraphs of Markdown, without code.
pub(crate) fn paragraphs<'a>(lines: &[Line<'a>]) -> Vec<Paragraph<'a>> {
    let mut done = Vec::new();
    let mut open: Paragraph<'a> = Vec::new();
    let mut in_code = false;
    for &(line_idx, line) in lines {
        let text = line.trim();
        let is_fence = text.starts_with("```") || text.starts_with("~~~");
        let item = item_of_list(text);
        let is_row = text.starts_with('|');
        let is_break = text.is_empty() || is_fence || is_row || is_heading(text) || is_rule(text);
        if is_break || item.is_some() {
            done.push(std::mem::take(&mut open));
        }
        in_code ^= is_fence;
        let is_code = in_code || is_fence || (open.is_empty() && item.is_none() && line.starts_with("    "));
        if is_code || text.is_empty() {
            continue;
        }
        if is_row {
            done.extend(text.trim_matches('|').split('|').map(|cell| vec![(line_idx, cell)]));
        } else if is_break {
            done.push(vec![(line_idx, text)]);
        } else {
            open.push((line_idx, item.unwrap_or(text).trim_start_matches(['>', ' '])));
        }
    }
    done.push(open);
    done.retain(|paragraph| !paragraph.is_empty());
    done
}

fn is_heading(text: &str) -> bool {
    let after = text.trim_start_matches('#');
    after.len() < text.len() && after.starts_with(' ')
}

/// A line across the page, or below a heading.
fn is_rule(text: &str) -> bool {
    text.len() >= 3 && (text.chars().all(|c| c == '-') || text.chars().all(|c| c == '='))
}

/// What an item of a list says, if the line begins one.
fn item_of_list(text: &str) -> Option<&str> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let marks: &[char] = if digits == 0 { &['-', '*', '+'] } else { &['.', ')'] };
    text[digits..].strip_prefix(marks)?.strip_prefix(' ')
}

/// A sentence: how many words it has, and how it reads with code as one word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// A code span, a number and a URL are a word each.
    pub words: usize,
    /// Its text on one line.
    pub text: String,
}

/// After these a full stop ends no sentence.
const ABBREVIATIONS: &[&str] = &["e.g", "i.e", "vs", "cf", "eq", "fig", "sec", "approx", "resp", "ca"];

/// The sentences of a paragraph. One ends at a full stop, a question mark or an exclamation mark, unless a
/// small letter follows; a colon or a semicolon ends none.
pub(crate) fn sentences(paragraph: &[Line<'_>]) -> Vec<Sentence> {
    let text: Vec<&str> = paragraph.iter().map(|(_, text)| *text).collect();
    let text = without_code_and_targets(&text.join(" "));
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut found = Vec::new();
    let mut start = 0;
    for (idx, word) in words.iter().enumerate() {
        let next = words.get(idx + 1);
        let goes_on = next.is_some_and(|next| next.starts_with(char::is_lowercase));
        if next.is_none() || (ends_sentence(word) && !goes_on) {
            let own = &words[start..=idx];
            let is_word = |word: &&&str| word.contains(char::is_alphanumeric);
            found.push(Sentence { words: own.iter().filter(is_word).count(), text: own.join(" ") });
            start = idx + 1;
        }
    }
    found
}

fn ends_sentence(word: &str) -> bool {
    let word = word.trim_end_matches(['"', '\'', ')', ']', '}', '*', '_', '”', '’', '»']);
    let Some(before) = word.strip_suffix('.') else { return word.ends_with(['!', '?']) };
    let before = before.trim_start_matches(['(', '"', '[', '*', '_']).to_lowercase();
    !ABBREVIATIONS.contains(&before.as_str())
}

/// The text with `X` for every code span, and without the targets of links.
fn without_code_and_targets(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', ']']) {
        let (before, found) = rest.split_at(at);
        out.push_str(before);
        let after_ticks = found.trim_start_matches('`');
        let ticks = &found[..found.len() - after_ticks.len()];
        rest = if let Some(target) = found.strip_prefix("](") {
            out.push(']');
            target.split_once(')').map_or(target, |(_, after)| after)
        } else if let Some((_, after)) = after_ticks.split_once(ticks).filter(|_| !ticks.is_empty()) {
            out.push('X');
            after
        } else {
            out.push_str(&found[..ticks.len().max(1)]);
            &found[ticks.len().max(1)..]
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_told_from_strings() {
        let source = [
            r##"let a = "// no"; // one"##,
            r##"let b = '"'; let c: &'static str = r#""##,
            r##"// no " "#;"##,
            r##"    /// two"##,
            r##"/* // no /* // no */ */ let d = b'\''; //! three"##,
            r##"let e = 'é'; let f = br"\"; // four"##,
            r##"let r#type = "\\"; // five"##,
        ];
        let source = source.join("\n");
        let found: Vec<(usize, bool, &str)> =
            comments(&source).iter().map(|found| (found.line_idx, found.is_alone, found.text)).collect();
        let want = [
            (0, false, "// one"),
            (3, true, "/// two"),
            (4, false, "//! three"),
            (5, false, "// four"),
            (6, false, "// five"),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn comments_of_one_kind_are_one_block() {
        let source = "//! a\n//! b\n\n/// c\n// d\n    // e\nlet x; // f\n// g\n//// h\n";
        let mut blocks = Vec::new();
        for block in comment_blocks(source) {
            blocks.push(block.into_iter().map(|(_, text)| text).collect::<Vec<&str>>());
        }
        assert_eq!(blocks, [vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"], vec!["f"], vec!["g", "// h"]]);
    }

    #[test]
    fn markdown_is_cut_into_paragraphs() {
        let text = "# Head\nOne\ntwo.\n- item\n  goes on\n* other\n\n    code\n1. first\n```\ncode\n```\n\
            | a | b |\n|---|---|\nlast";
        let lines: Vec<Line<'_>> = text.lines().enumerate().collect();
        let found: Vec<String> = paragraphs(&lines)
            .iter()
            .map(|paragraph| paragraph.iter().map(|(_, text)| text.trim()).collect::<Vec<_>>().join(" "))
            .filter(|text| text.contains(char::is_alphabetic))
            .collect();
        assert_eq!(found, ["# Head", "One two.", "item goes on", "other", "first", "a", "b", "last"]);
    }

    /// The words of each sentence.
    #[track_caller]
    fn check(text: &str, want: &[usize]) {
        let found: Vec<usize> = sentences(&[(0, text)]).iter().map(|sentence| sentence.words).collect();
        assert_eq!(found, want, "{text}");
    }

    #[test]
    fn sentences_end_at_full_stops() {
        check("One two. Three four five! Six? Seven", &[2, 3, 1, 1]);
        check("One, e.g. two; three: four.", &[5]);
        check("Version 1.2 of a.b.c goes on. (Like this.) And so on.", &[6, 2, 3]);
        check("It ends etc. and goes on.", &[6]);
        check("A dash - and + are no words.", &[6]);
        check("", &[]);
    }

    #[test]
    fn code_and_targets_of_links_are_no_words() {
        check("See `a. B c` and ``d ` e``. Then [the text](https://a.b/c_d) here.", &[4, 4]);
        check("An open ` tick, a[i] goes on.", &[6]);
        check("See [`Code::span`] and [x]: y.", &[5]);
    }

    #[test]
    fn sentences_go_over_lines() {
        assert_eq!(sentences(&[(0, "One `two"), (1, "three` four")])[0].text, "One X four");
    }
}
