//! Lines and blocks: finds the hard boundaries of a text, before sentences are looked for.
//!
//! What always holds: blocks follow each other without a gap and cover the text. Blank lines belong to the
//! block before them, leading ones to the first block.

use std::ops::Range;

use super::tables::{
    TITLE_COLUMNS_MAX, TITLE_WORDS_MAX, WRAP_SLACK, WRAPPED_COLUMNS_MAX, WRAPPED_COLUMNS_MIN, is_cjk,
    is_cjk_terminal, is_closer, is_hangul_label, is_lower, is_opener, is_space, is_spaced_terminal,
    is_unspaced_bullet, is_wordy,
};

/// Level of a plain title line above the whole text.
const LEVEL_DOCUMENT: u8 = 1;
/// Level of any other plain title line.
const LEVEL_PLAIN: u8 = 2;

/// The kind of a block, which decides how it is split into units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// A title line of this level (1 is the highest); it is one unit.
    Title(u8),
    /// Prose; it is split into sentences.
    Prose,
    /// A line of code, a table row or a horizontal rule; it is one unit.
    Line,
}

/// Text between two hard boundaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// Byte range, blank lines after it included.
    pub bytes: Range<usize>,
    pub kind: BlockKind,
    /// Paragraph number, counted from 0. A list without blank lines, a table, and fenced code are one
    /// paragraph each.
    pub paragraph: usize,
    /// Number of lines that are not blank.
    lines: usize,
    item: Item,
    blank_before: bool,
    blank_after: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    No,
    Bullet,
    Numbered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Blank,
    Fence,
    Code,
    Heading(u8),
    Item(Item),
    Row,
    Rule(char),
    Prose,
}

#[derive(Debug)]
struct Line<'a> {
    start: usize,
    end: usize,
    /// The line without its line end.
    text: &'a str,
    kind: LineKind,
}

/// Splits `text` into blocks. Cost: linear in the length of the text.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let lines = classify(text);
    let longest = longest_of_runs(&lines);
    let mut builder = Builder { blocks: Vec::new(), next_start: 0, previous: None, blank: true };
    for (i, line) in lines.iter().enumerate() {
        builder.push(line, i.checked_sub(1).and_then(|p| lines.get(p)), longest[i]);
    }
    let mut blocks = builder.blocks;
    match blocks.last_mut() {
        Some(last) => last.bytes.end = text.len(),
        None if text.is_empty() => {}
        None => blocks.push(Block::new(0..text.len(), BlockKind::Line, 0)),
    }
    mark_titles(text, &mut blocks);
    blocks
}

impl Block {
    fn new(bytes: Range<usize>, kind: BlockKind, paragraph: usize) -> Self {
        Self { bytes, kind, paragraph, lines: 1, item: Item::No, blank_before: false, blank_after: false }
    }
}

struct Builder {
    blocks: Vec<Block>,
    /// Start of the next block while there is no block yet; leading blank lines belong to the first block.
    next_start: usize,
    previous: Option<LineKind>,
    /// The line before was blank, or there is no line before.
    blank: bool,
}

impl Builder {
    fn push(&mut self, line: &Line<'_>, above: Option<&Line<'_>>, longest: usize) {
        match line.kind {
            LineKind::Blank => self.push_blank(line),
            LineKind::Heading(level) => self.open(line, BlockKind::Title(level), true),
            LineKind::Fence => {
                let closing = self.previous == Some(LineKind::Code) || self.previous == Some(LineKind::Fence);
                self.open(line, BlockKind::Line, !closing);
            }
            LineKind::Code => self.open(line, BlockKind::Line, false),
            LineKind::Row => {
                let first = self.blank || self.previous != Some(LineKind::Row);
                self.open(line, BlockKind::Line, first);
            }
            LineKind::Rule(mark) => self.push_rule(line, mark),
            LineKind::Item(_) if self.is_wrapped_number(line, above, longest) => {
                self.push_prose(line, above, longest)
            }
            LineKind::Item(item) => {
                let in_list = !self.blank && self.blocks.last().is_some_and(|b| b.item != Item::No);
                self.open(line, BlockKind::Prose, !in_list);
                if let Some(block) = self.blocks.last_mut() {
                    block.item = item;
                }
            }
            LineKind::Prose => self.push_prose(line, above, longest),
        }
        self.blank = line.kind == LineKind::Blank;
        if !self.blank {
            self.previous = Some(line.kind);
        }
    }

    fn push_blank(&mut self, line: &Line<'_>) {
        if let Some(block) = self.blocks.last_mut() {
            block.bytes.end = line.end;
            block.blank_after = true;
        }
    }

    /// Checks whether a number with a stop at the start of a line is part of a wrapped sentence ("in\n14. of
    /// May"), not a list item.
    fn is_wrapped_number(&self, line: &Line<'_>, above: Option<&Line<'_>>, longest: usize) -> bool {
        let in_prose = self.blocks.last().is_some_and(|b| b.kind == BlockKind::Prose && b.item == Item::No);
        let number = line.text.trim_start_matches(is_space).bytes().take_while(u8::is_ascii_digit).count();
        let wrapped = || above.is_some_and(|above| is_soft_wrap(above.text, line.text, longest));
        !self.blank && in_prose && number > 0 && wrapped()
    }

    fn push_prose(&mut self, line: &Line<'_>, above: Option<&Line<'_>>, longest: usize) {
        let goes_on = match (above, self.blocks.last_mut()) {
            (Some(above), Some(block)) if !self.blank && block.kind == BlockKind::Prose => {
                let soft = is_soft_wrap(above.text, line.text, longest);
                if soft {
                    block.bytes.end = line.end;
                    block.lines += 1;
                }
                soft
            }
            _ => false,
        };
        if !goes_on {
            self.open(line, BlockKind::Prose, true);
        }
    }

    /// A line of `===` or `---` makes the single line directly above it a heading; otherwise it is a block of
    /// its own.
    fn push_rule(&mut self, line: &Line<'_>, mark: char) {
        if let (false, Some(block)) = (self.blank, self.blocks.last_mut())
            && matches!(mark, '=' | '-')
            && block.kind == BlockKind::Prose
            && block.lines == 1
            && block.item == Item::No
        {
            block.kind = BlockKind::Title(if mark == '=' { 1 } else { 2 });
            block.bytes.end = line.end;
            return;
        }
        self.open(line, BlockKind::Line, true);
    }

    fn open(&mut self, line: &Line<'_>, kind: BlockKind, new_paragraph: bool) {
        let paragraph = match self.blocks.last() {
            Some(last) => last.paragraph + usize::from(new_paragraph),
            None => 0,
        };
        let start = if self.blocks.is_empty() { self.next_start } else { line.start };
        let mut block = Block::new(start..line.end, kind, paragraph);
        block.blank_before = self.blank;
        self.blocks.push(block);
    }
}

/// Splits at line ends (`\n`, `\r\n`, `\r`) and finds the kind of each line.
fn classify(text: &str) -> Vec<Line<'_>> {
    let bytes = text.as_bytes();
    let mut lines = Vec::new();
    let mut fence: Option<(u8, usize)> = None;
    let mut start = 0;
    while start < bytes.len() {
        let stop =
            bytes[start..].iter().position(|b| matches!(b, b'\n' | b'\r')).map_or(bytes.len(), |p| start + p);
        let end = match bytes.get(stop..) {
            Some([b'\r', b'\n', ..]) => stop + 2,
            Some([_, ..]) => stop + 1,
            _ => stop,
        };
        let line = &text[start..stop];
        let kind = kind_of(line, &mut fence);
        lines.push(Line { start, end, text: line, kind });
        start = end;
    }
    lines
}

fn kind_of(line: &str, fence: &mut Option<(u8, usize)>) -> LineKind {
    let trimmed = line.trim_matches(is_space);
    if let Some((mark, len)) = *fence {
        if trimmed.len() >= len && trimmed.bytes().all(|b| b == mark) {
            *fence = None;
            return LineKind::Fence;
        }
        return if trimmed.is_empty() { LineKind::Blank } else { LineKind::Code };
    }
    if trimmed.is_empty() {
        return LineKind::Blank;
    }
    let indent = line.len() - line.trim_start_matches(' ').len();
    for mark in [b'`', b'~'] {
        let len = trimmed.bytes().take_while(|&b| b == mark).count();
        if len >= 3 && indent <= 3 && !trimmed[len..].contains('`') {
            *fence = Some((mark, len));
            return LineKind::Fence;
        }
    }
    if let Some(mark) = rule_mark(trimmed) {
        return LineKind::Rule(mark);
    }
    if let Some(level) = heading_level(trimmed) {
        return LineKind::Heading(level);
    }
    if is_row(trimmed) {
        return LineKind::Row;
    }
    match item_len(trimmed) {
        Some((item, _)) => LineKind::Item(item),
        None => LineKind::Prose,
    }
}

/// Returns the mark of a horizontal rule: three or more of one of `-*_=`, white space between them allowed.
fn rule_mark(trimmed: &str) -> Option<char> {
    let mark = trimmed.chars().next().filter(|c| matches!(c, '-' | '*' | '_' | '='))?;
    let mut count = 0;
    for c in trimmed.chars().filter(|&c| !is_space(c)) {
        if c != mark {
            return None;
        }
        count += 1;
    }
    (count >= 3).then_some(mark)
}

/// Returns the level of a heading that starts with `# ` to `###### `.
fn heading_level(trimmed: &str) -> Option<u8> {
    let level = trimmed.bytes().take_while(|&b| b == b'#').count();
    let after = trimmed[level..].chars().next();
    let level = u8::try_from(level).ok().filter(|l| (1..=6).contains(l))?;
    after.is_some_and(is_space).then_some(level)
}

/// Checks whether the line is a row of a table: it starts with a bar, or holds two spaced bars or a tab.
fn is_row(trimmed: &str) -> bool {
    (trimmed.starts_with('|') && trimmed.len() > 1)
        || trimmed.matches(" | ").take(2).count() == 2
        || trimmed.contains('\t')
}

/// Returns the kind of list item that the line starts, and the length of its marker in bytes.
fn item_len(trimmed: &str) -> Option<(Item, usize)> {
    let mut chars = trimmed.chars();
    let first = chars.next()?;
    let spaced = |len: usize| trimmed[len..].chars().next().is_some_and(is_space);
    if matches!(first, '-' | '*' | '+' | '•' | '‣' | '◦' | '–' | '▪' | '●') {
        return spaced(first.len_utf8()).then_some((Item::Bullet, first.len_utf8()));
    }
    if is_unspaced_bullet(first) {
        let rest = chars.next();
        return rest.is_some_and(|next| next != first).then_some((Item::Bullet, first.len_utf8()));
    }
    let (open, rest) = match first {
        '(' | '（' => (first.len_utf8(), &trimmed[first.len_utf8()..]),
        _ => (0, trimmed),
    };
    let label = label_len(rest)?;
    let mark = rest[label..].chars().next()?;
    let len = open + label + mark.len_utf8();
    let western = matches!(mark, '.' | ')') && spaced(len);
    let eastern = matches!(mark, '、' | '）' | '．');
    (western || eastern).then_some((Item::Numbered, len))
}

/// Returns the length in bytes of a list number: up to 3 digits, one letter, one syllable of the Korean
/// order, or up to 4 Chinese numerals.
fn label_len(rest: &str) -> Option<usize> {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 {
        return (digits <= 3).then_some(digits);
    }
    if rest.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        return Some(1);
    }
    if rest.chars().next().is_some_and(is_hangul_label) {
        return Some(3);
    }
    let wide = rest.chars().take_while(|c| matches!(c, '０'..='９')).count();
    if wide > 0 {
        return (wide <= 3).then_some(wide * 3);
    }
    let numerals = rest.chars().take_while(|c| "一二三四五六七八九十百".contains(*c)).count();
    (1..=4).contains(&numerals).then_some(numerals * 3)
}

/// Returns for each line the width of the longest line in its run of adjacent prose lines, in columns.
fn longest_of_runs(lines: &[Line<'_>]) -> Vec<usize> {
    let mut longest = vec![0; lines.len()];
    let prose = |i: usize| matches!(lines[i].kind, LineKind::Prose | LineKind::Item(_));
    let mut start = 0;
    while start < lines.len() {
        let mut end = start + 1;
        if prose(start) {
            while end < lines.len() && prose(end) {
                end += 1;
            }
            let most = lines[start..end].iter().map(|l| columns(l.text)).max().unwrap_or(0);
            longest[start..end].fill(most);
        }
        start = end;
    }
    longest
}

/// Returns the width in columns. CJK characters take two; trailing white space does not count.
fn columns(text: &str) -> usize {
    text.trim_end_matches(is_space).chars().map(|c| if is_cjk(c) { 2 } else { 1 }).sum()
}

/// Checks whether the line end between two prose lines is only there because the next word did not fit.
fn is_soft_wrap(above: &str, line: &str, longest: usize) -> bool {
    if line.starts_with('\u{3000}') {
        return false;
    }
    let words = line.trim_start_matches(is_space);
    let first = words.chars().find(|&c| !is_opener(c));
    if first.is_some_and(is_lower) {
        return true;
    }
    let width = columns(above);
    if width < WRAPPED_COLUMNS_MIN {
        return false;
    }
    let word: usize = match words.chars().next() {
        Some(c) if is_cjk(c) => 2,
        _ => words.chars().take_while(|&c| !is_space(c) && !is_cjk(c)).count(),
    };
    let full = longest <= WRAPPED_COLUMNS_MAX && width + 1 + word + WRAP_SLACK > longest;
    // A line that is too long for a title and has no end mark goes on, whatever the reason for the line end.
    full || (width > TITLE_COLUMNS_MAX && !ends_closed(above))
}

/// Checks whether a line ends with a mark that ends a sentence or introduces a list.
fn ends_closed(line: &str) -> bool {
    let line = line.trim_end_matches(|c| is_space(c) || is_closer(c) || c == '"' || c == '\'');
    line.chars()
        .next_back()
        .is_some_and(|c| is_spaced_terminal(c) || is_cjk_terminal(c) || matches!(c, ':' | '：'))
}

/// Finds plain title lines: short single lines without an end mark, with a block after them.
fn mark_titles(text: &str, blocks: &mut [Block]) {
    for i in 0..blocks.len().saturating_sub(1) {
        let (block, next) = (&blocks[i], &blocks[i + 1]);
        if block.kind != BlockKind::Prose || block.lines != 1 {
            continue;
        }
        let line = text[block.bytes.clone()].trim_matches(is_space);
        let is_title = match block.item {
            Item::No => is_titlelike(line),
            Item::Bullet => false,
            Item::Numbered => {
                let alone = block.blank_before && block.blank_after;
                let after_marker =
                    item_len(line).map_or("", |(_, len)| line[len..].trim_start_matches(is_space));
                alone && next.kind == BlockKind::Prose && next.item == Item::No && is_titlelike(after_marker)
            }
        };
        if is_title {
            blocks[i].kind = BlockKind::Title(LEVEL_PLAIN);
        }
    }
    if let [first, second, ..] = blocks
        && first.kind == BlockKind::Title(LEVEL_PLAIN)
        && second.kind == BlockKind::Title(LEVEL_PLAIN)
    {
        first.kind = BlockKind::Title(LEVEL_DOCUMENT);
    }
}

fn is_titlelike(line: &str) -> bool {
    // A character takes at most 4 bytes and at least one column.
    if line.len() > 4 * TITLE_COLUMNS_MAX {
        return false;
    }
    let end = line.trim_end_matches(|c| is_closer(c) || c == '"' || c == '\'').chars().next_back();
    let ends_open = end.is_some_and(|c| {
        !is_spaced_terminal(c)
            && !is_cjk_terminal(c)
            && !matches!(c, ',' | ';' | ':' | '，' | '：' | '、' | '-' | '—')
    });
    let first = line.chars().find(|&c| !is_opener(c));
    let words = line.split(is_space).filter(|w| !w.is_empty()).count()
        + line.chars().filter(|&c| is_cjk(c)).count() / 2;
    ends_open
        && first.is_some_and(|c| !is_lower(c))
        && line.chars().any(is_wordy)
        && words <= TITLE_WORDS_MAX
        && columns(line) <= TITLE_COLUMNS_MAX
}
