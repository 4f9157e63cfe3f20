//! Finds values in tables whose header row names a column of secrets or numbers. Rows are text with commas,
//! semicolons, tabs or bars.

use super::{Found, digits, key, password, pattern, push};
use crate::privacy::EntityKind;
use std::ops::Range;

// Words in a cell of a header row, by what the cells below hold.
pattern!(
    HEADER,
    concat!(
        r"(?i)(?:(?P<password>pass[ _-]?word|passwd|pass[ _-]?phrase|pwd|passwort|kennwort|mot de passe|contraseña|senha|wachtwoord|hasło|пароль|密码|パスワード)",
        r"|(?P<pin>pin(?:[ _-]?code)?|cvv2?|cvc2?|otp|security[ _-]?code)",
        r"|(?P<key>(?:api|access|secret|private)[ _-]?key|(?:auth|access|api|refresh)[ _-]?token|token|(?:client[ _-]?)?secret)",
        r"|(?P<phone>(?:tele|mobile[ _-]?|cell[ _-]?|work[ _-]?|home[ _-]?)?phone(?:[ _-]?(?:number|no))?|mobile|tel|telefon|téléphone|teléfono|telefone|telefoon|телефон|电话|手机|電話)",
        r"|(?P<id>ssn|social[ _-]?security(?:[ _-]?(?:number|no))?|passport(?:[ _-]?(?:number|no))?|account[ _-]?(?:number|no)|national[ _-]?id|tax[ _-]?id|driv(?:er|ing)(?:'?s)?[ _-]?licen[cs]e(?:[ _-]?(?:number|no))?))"
    )
);
pattern!(LABEL, r"^[\p{L}#][\p{L}\p{N}_./#'()-]{0,24}(?: [\p{L}\p{N}_./#'()-]{1,24}){0,3}$");
pattern!(KEY, r"^[A-Za-z0-9_+/=.~-]{8,}$");
pattern!(PHONE, r"^[+(]{0,2}[0-9][0-9 ()./-]{4,24}[0-9]$");
pattern!(ID, r"^[A-Za-z]{0,5}[ -]?[0-9][0-9A-Za-z ./-]{4,24}$");

/// Longest line of a table, in bytes.
const LINE_BYTES_MAX: usize = 4096;
/// Separators of cells; the rarest in text comes first.
const SEPARATORS: &[u8] = b"\t|;,";

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Password,
    Pin,
    Key,
    Phone,
    Id,
}

pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    let mut read_to = 0;
    for word in HEADER.find_iter(text) {
        if word.start() < read_to {
            continue;
        }
        let start = line_start(text, word.start());
        let header = line(text, start);
        // Each part of a long line is read only once.
        read_to = header.end.max(line(text, word.start()).end);
        if header.end < word.end() {
            continue;
        }
        if let Some(row) = header_row(text, &header) {
            read_to = rows(text, header.end, &row, found);
        }
    }
}

/// A header row.
struct Header {
    /// The separator of its cells.
    separator: u8,
    count: usize,
    /// The known columns, with their positions.
    columns: Vec<(usize, Column)>,
}

/// Reads the line as a header row; returns `None` if it names no known column.
fn header_row(text: &str, header: &Range<usize>) -> Option<Header> {
    let row = &text[header.clone()];
    if row.len() > LINE_BYTES_MAX {
        return None;
    }
    let separator = SEPARATORS.iter().copied().find(|&b| row.as_bytes().contains(&b))?;
    let cells = cells(text, header, separator);
    // Lines of program code are indented, or end as a list does.
    let code = separator != b'|' && (row.starts_with([' ', '\t']) || row.trim_end().ends_with([',', ';']));
    let labels = cells.iter().all(|cell| cell.is_empty() || LABEL.is_match(&text[cell.clone()]));
    let known = cells.iter().enumerate().filter_map(|(at, cell)| Some((at, column(&text[cell.clone()])?)));
    let known: Vec<(usize, Column)> = known.collect();
    let named = cells.iter().filter(|cell| !cell.is_empty()).count();
    let is = labels && !code && named > 1 && !known.is_empty();
    is.then_some(Header { separator, count: cells.len(), columns: known })
}

/// Returns what a header cell says its column holds, if the cell says nothing else.
fn column(cell: &str) -> Option<Column> {
    let caps = HEADER.captures(cell)?;
    let word = caps.get(0)?;
    let rest = cell.len() - word.len();
    let inside = |c: char| c.is_ascii_alphanumeric();
    if cell[..word.start()].ends_with(inside) || cell[word.end()..].starts_with(inside) {
        return None;
    }
    let named = [
        ("password", Column::Password),
        ("pin", Column::Pin),
        ("key", Column::Key),
        ("phone", Column::Phone),
        ("id", Column::Id),
    ];
    named
        .into_iter()
        .find(|(name, _)| caps.name(name).is_some())
        .map(|(_, column)| column)
        .filter(|_| rest <= 16)
}

/// Finds the values in the rows that begin at `at` and have as many cells as their header; returns where
/// these rows end.
fn rows(text: &str, at: usize, header: &Header, found: &mut Vec<Found>) -> usize {
    let mut end = at;
    loop {
        let row = line(text, after_break(text, end));
        if row.is_empty() || row.start == end || row.len() > LINE_BYTES_MAX {
            return end;
        }
        let cells = cells(text, &row, header.separator);
        if cells.len() != header.count {
            return end;
        }
        for &(at, column) in &header.columns {
            let cell = cells[at].clone();
            if let Some(kind) = kind(column, &text[cell.clone()]) {
                push(found, kind, cell);
            }
        }
        end = row.end;
    }
}

/// Returns the kind of a cell's value; `None` if the value is not private.
fn kind(column: Column, value: &str) -> Option<EntityKind> {
    let count = digits(value).len();
    let is = match column {
        Column::Password => password::stands_in_column(value),
        Column::Pin => (3..=8).contains(&value.len()) && count == value.len(),
        Column::Key => KEY.is_match(value) && key::is_secret(value),
        Column::Phone => (6..=15).contains(&count) && PHONE.is_match(value) && !value.contains(". "),
        Column::Id => (6..=20).contains(&count) && ID.is_match(value),
    };
    is.then_some(match column {
        Column::Password | Column::Pin => EntityKind::Password,
        Column::Key => EntityKind::Key,
        Column::Phone => EntityKind::Phone,
        Column::Id => EntityKind::Id,
    })
}

/// Returns where the line that holds `at` begins. An escaped line break ends a line too.
fn line_start(text: &str, at: usize) -> usize {
    let head = super::head(text, at, LINE_BYTES_MAX);
    let plain = head.rfind('\n').map_or(0, |i| i + 1);
    let escaped = head.rfind("\\n").map_or(0, |i| i + 2);
    at - head.len() + plain.max(escaped)
}

/// Returns the line that begins at `start`, without its break; a line that is too long is cut.
fn line(text: &str, start: usize) -> Range<usize> {
    let rest = &text[start..];
    let rest = &rest[..rest.floor_char_boundary(LINE_BYTES_MAX + 4)];
    let plain = rest.find('\n').unwrap_or(rest.len());
    start..start + rest[..plain].find("\\n").unwrap_or(plain)
}

/// Returns where the line after the one that ends at `end` begins; `end` if there is none.
fn after_break(text: &str, end: usize) -> usize {
    let rest = &text[end..];
    let slashes = rest.bytes().take(8).take_while(|&b| b == b'\\').count();
    match rest.as_bytes().get(slashes) {
        Some(b'\n') if slashes == 0 => end + 1,
        Some(b'n') if slashes > 0 => end + slashes + 1,
        _ => end,
    }
}

/// Returns the cells of a row, without spaces, quotes and marks around them. A bar at either end of the row
/// is not a separator.
fn cells(text: &str, row: &Range<usize>, separator: u8) -> Vec<Range<usize>> {
    let around = |c: char| matches!(c, ' ' | '\t' | '"' | '\'' | '`' | '\\' | '\r');
    let mut cells = Vec::new();
    let (mut start, mut quoted) = (row.start, false);
    for (i, byte) in text.as_bytes()[row.clone()].iter().enumerate() {
        quoted ^= *byte == b'"' && separator == b',';
        if *byte == separator && !quoted {
            cells.push(start..row.start + i);
            start = row.start + i + 1;
        }
    }
    cells.push(start..row.end);
    let trim = |cell: &Range<usize>| {
        let whole = &text[cell.clone()];
        let end = cell.start + whole.trim_end_matches(around).len();
        let start = end - text[cell.start..end].trim_start_matches(around).len();
        start..end
    };
    let mut cells: Vec<Range<usize>> = cells.iter().map(trim).collect();
    if separator == b'|' && cells.len() > 2 && cells[0].is_empty() && cells[cells.len() - 1].is_empty() {
        cells.pop();
        cells.remove(0);
    }
    cells
}
