//! The methods of Python's strings. Positions are characters, as in Python; origins of bytes are kept.

use std::ops::Range;
use std::rc::Rc;

use super::args::{Args, Bound};
use super::budget::{Budget, Outcome, failed};
use super::format;
use super::text::Text;
use super::value::{SeqKind, Value};
use super::write;

/// All methods.
pub(super) const METHODS: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// Calls a method.
///
/// # Errors
/// If the arguments are wrong, or the budget is used up.
pub(super) fn call(text: &Rc<Text>, name: &str, args: Args, budget: &Budget) -> Outcome<Value> {
    budget.charge(text.len().saturating_mul(2) + 16)?;
    if name == "format" {
        return format::braces(text, &args, budget).map(Value::made);
    }
    if name.starts_with("is") {
        args.bind(name, &[])?;
        return Ok(Value::Bool(is(name, text.as_str())));
    }
    let names: &[&str] = match name {
        "strip" | "lstrip" | "rstrip" => &["chars"],
        "split" | "rsplit" => &["sep", "maxsplit"],
        "splitlines" => &["keepends"],
        "expandtabs" => &["tabsize"],
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            &["sub", "start", "end"]
        }
        "replace" => &["old", "new", "count"],
        "removeprefix" | "removesuffix" | "partition" | "rpartition" | "join" => &["value"],
        "center" | "ljust" | "rjust" | "zfill" => &["width", "fillchar"],
        _ => &[],
    };
    let args = args.bind(name, names)?;
    match name {
        "capitalize" => Ok(Value::made(capitalized(text))),
        "title" => Ok(Value::made(titled(text))),
        "upper" => Ok(Value::made(text.map(str::to_uppercase))),
        "lower" | "casefold" => Ok(Value::made(text.map(str::to_lowercase))),
        "swapcase" => Ok(Value::made(text.map(swapped))),
        "expandtabs" => Ok(Value::made(expanded(text, args.int(0, 8)?, budget)?)),
        "strip" | "lstrip" | "rstrip" => {
            let chars = args.optional_text(0)?.map(|chars| chars.as_str());
            let kept = stripped(text.as_str(), chars, name != "rstrip", name != "lstrip");
            Ok(Value::made(text.slice(kept)))
        }
        "split" | "rsplit" => split(text, &args, name == "rsplit", budget),
        "splitlines" => {
            let lines = lines(text.as_str(), args.truth(0, false));
            Value::list(lines.into_iter().map(|line| Value::made(text.slice(line))).collect(), budget)
        }
        "join" => join(text, args.need(0)?, budget),
        "replace" => {
            let count = usize::try_from(args.int(2, -1)?).ok();
            replace(text, args.text(0)?, args.text(1)?, count, budget).map(Value::made)
        }
        "removeprefix" => {
            let from = args.text(0)?.as_str();
            let cut = if text.as_str().starts_with(from) { from.len() } else { 0 };
            Ok(Value::made(text.slice(cut..text.len())))
        }
        "removesuffix" => {
            let from = args.text(0)?.as_str();
            let cut = if text.as_str().ends_with(from) { from.len() } else { 0 };
            Ok(Value::made(text.slice(0..text.len() - cut)))
        }
        "partition" | "rpartition" => partition(text, args.text(0)?, name == "rpartition", budget),
        "center" | "ljust" | "rjust" | "zfill" => padded(text, name, &args, budget).map(Value::made),
        _ => search(text, name, &args),
    }
}

/// Whether Python counts a character as white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Returns the bytes that remain without white space, or given characters, at the ends.
pub(super) fn stripped(text: &str, chars: Option<&str>, front: bool, back: bool) -> Range<usize> {
    let is_cut = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
    let end = if back { text.trim_end_matches(is_cut).len() } else { text.len() };
    let start = if front { end - text[..end].trim_start_matches(is_cut).len() } else { 0 };
    start..end
}

fn is(name: &str, text: &str) -> bool {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let cased = |wanted: fn(char) -> bool, other: fn(char) -> bool| {
        text.chars().any(wanted) && !text.chars().any(other)
    };
    match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(|c| is_digit(c) && !is_raised(c)),
        "isdigit" => all(is_digit),
        "isnumeric" => all(char::is_numeric),
        "isprintable" => text.chars().all(write::is_printable),
        "isspace" => all(is_space),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        _ => text.chars().any(char::is_alphabetic) && titled(&Text::plain(text)).as_str() == text,
    }
}

/// Whether a character is a digit, as far as the standard library tells it from other numbers.
fn is_digit(c: char) -> bool {
    let is_other = matches!(c, '\u{bc}'..='\u{be}' | '\u{2150}'..='\u{2189}' | '\u{2469}'..='\u{2473}' | '\u{3000}'..='\u{9fff}');
    c.is_numeric() && !is_other
}

/// Whether a digit stands above or below the line, or in a circle.
fn is_raised(c: char) -> bool {
    matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}'..='\u{2089}' | '\u{2460}'..='\u{24ff}' | '\u{2776}'..='\u{2793}')
}

/// Python's `capitalize`.
pub(super) fn capitalized(text: &Text) -> Text {
    let first = text.as_str().chars().next().map_or(0, char::len_utf8);
    let mut out = text.slice(0..first).map(str::to_uppercase);
    out.append(&text.slice(first..text.len()).map(str::to_lowercase));
    out
}

fn titled(text: &Text) -> Text {
    let mut out = Text::default();
    let mut in_word = false;
    text.each_char(|c, same, origin| {
        let changed = if in_word { same.to_lowercase() } else { same.to_uppercase() };
        out.push(&changed, origin);
        in_word = c.is_alphabetic();
    });
    out
}

fn swapped(text: &str) -> String {
    let swap = |c: char| {
        if c.is_uppercase() { c.to_lowercase().collect::<String>() } else { c.to_uppercase().collect() }
    };
    text.chars().map(swap).collect()
}

fn expanded(text: &Text, size: i128, budget: &Budget) -> Outcome<Text> {
    let size = usize::try_from(size.max(0)).unwrap_or(usize::MAX);
    budget.charge(text.as_str().matches('\t').count().saturating_mul(size))?;
    let mut out = Text::default();
    let mut column = 0;
    text.each_char(|c, same, origin| match c {
        '\t' => {
            let width = if size == 0 { 0 } else { size - column % size };
            column += width;
            out.push(&" ".repeat(width), origin);
        }
        _ => {
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            out.push(same, origin);
        }
    });
    Ok(out)
}

fn split(text: &Rc<Text>, args: &Bound, from_end: bool, budget: &Budget) -> Outcome<Value> {
    let most = usize::try_from(args.int(1, -1)?).unwrap_or(usize::MAX - 1);
    let whole = text.as_str();
    let offset = |piece: &str| piece.as_ptr() as usize - whole.as_ptr() as usize;
    let range = |piece: &str| offset(piece)..offset(piece) + piece.len();
    let ranges: Vec<Range<usize>> = match args.optional_text(0)? {
        Some(at) if at.len() == 0 => return failed("empty separator"),
        Some(at) if from_end => {
            let mut ranges: Vec<_> = whole.rsplitn(most.saturating_add(1), at.as_str()).map(range).collect();
            ranges.reverse();
            ranges
        }
        Some(at) => whole.splitn(most.saturating_add(1), at.as_str()).map(range).collect(),
        None => words(whole, most, from_end),
    };
    budget.charge(ranges.len().saturating_mul(64))?;
    Value::list(ranges.into_iter().map(|range| Value::made(text.slice(range))).collect(), budget)
}

/// Returns the words between white space; after `most` cuts, the rest is one word.
fn words(text: &str, most: usize, from_end: bool) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    if !from_end {
        let mut at = 0;
        while let Some(skipped) = text[at..].find(|c| !is_space(c)) {
            let start = at + skipped;
            if words.len() == most {
                words.push(start..text.len());
                break;
            }
            at = text[start..].find(is_space).map_or(text.len(), |len| start + len);
            words.push(start..at);
        }
        return words;
    }
    let mut end = text.trim_end_matches(is_space).len();
    while end > 0 {
        if words.len() == most {
            words.push(0..end);
            break;
        }
        let start = text[..end].trim_end_matches(|c| !is_space(c)).len();
        words.push(start..end);
        end = text[..start].trim_end_matches(is_space).len();
    }
    words.reverse();
    words
}

/// Returns the lines, with or without their ends.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<Range<usize>> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut start = 0;
    while let Some(at) = text[start..].find(is_end).map(|at| start + at) {
        let width = if text[at..].starts_with("\r\n") {
            2
        } else {
            text[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(start..if keep_ends { at + width } else { at });
        start = at + width;
    }
    if start < text.len() {
        lines.push(start..text.len());
    }
    lines
}

/// Returns `between.join(list)`.
///
/// # Errors
/// If an item is no text, or the budget is used up.
fn join(between: &Text, list: &Value, budget: &Budget) -> Outcome<Value> {
    let mut out = Text::default();
    for (at, item) in list.items(budget)?.items.iter().enumerate() {
        let Some(text) = item.as_text() else {
            return failed(format!("sequence item {at}: expected str instance, {} found", item.type_name()));
        };
        budget.charge(text.len() + between.len())?;
        if at > 0 {
            out.append(between);
        }
        out.append(text);
    }
    Ok(Value::made(out))
}

/// Returns `text.replace(from, to, count)`.
///
/// # Errors
/// If the budget is used up.
pub(super) fn replace(
    text: &Text,
    from: &Text,
    to: &Text,
    count: Option<usize>,
    budget: &Budget,
) -> Outcome<Text> {
    let most = count.unwrap_or(usize::MAX);
    let times = text.as_str().matches(from.as_str()).count().min(most);
    budget.charge(times.saturating_mul(to.len()).saturating_add(text.len()))?;
    let mut out = Text::default();
    let mut at = 0;
    for (found, same) in text.as_str().match_indices(from.as_str()).take(most) {
        out.append_slice(text, at..found);
        out.append(to);
        at = found + same.len();
    }
    out.append_slice(text, at..text.len());
    Ok(out)
}

fn partition(text: &Rc<Text>, at: &Text, from_end: bool, budget: &Budget) -> Outcome<Value> {
    if at.len() == 0 {
        return failed("empty separator");
    }
    let whole = text.as_str();
    let found = if from_end { whole.rfind(at.as_str()) } else { whole.find(at.as_str()) };
    let empty = || Value::text("");
    let parts = match found {
        Some(found) => {
            let end = found + at.len();
            [0..found, found..end, end..text.len()].map(|range| Value::made(text.slice(range))).to_vec()
        }
        None if from_end => vec![empty(), empty(), Value::Text(text.clone())],
        None => vec![Value::Text(text.clone()), empty(), empty()],
    };
    Value::seq(parts, SeqKind::Tuple, budget)
}

fn padded(text: &Text, name: &str, args: &Bound, budget: &Budget) -> Outcome<Text> {
    let width = usize::try_from(args.int(0, 0)?.max(0)).unwrap_or(usize::MAX);
    let fill = match (name, args.optional_text(1)?) {
        ("zfill", _) => "0".to_owned(),
        (_, Some(fill)) if fill.as_str().chars().count() == 1 => fill.as_str().to_owned(),
        (_, Some(_)) => return failed("the fill character must be exactly one character long"),
        (_, None) => " ".to_owned(),
    };
    let len = text.as_str().chars().count();
    let missing = width.saturating_sub(len);
    budget.charge(missing.saturating_mul(4))?;
    let before = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let sign = usize::from(name == "zfill" && text.as_str().starts_with(['+', '-']));
    let mut out = text.slice(0..sign);
    out.push_str(&fill.repeat(before));
    out.append_slice(text, sign..text.len());
    out.push_str(&fill.repeat(missing - before));
    Ok(out)
}

/// The methods that look for a text within bounds.
fn search(text: &Text, name: &str, args: &Bound) -> Outcome<Value> {
    let whole = text.as_str();
    let count = whole.chars().count() as i128;
    let bound = |at: usize, default: i128| -> Outcome<i128> {
        let given = args.int(at, default)?;
        Ok(if given < 0 { (given + count).max(0) } else { given })
    };
    let byte = |at: i128| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        whole.char_indices().nth(at).map_or(whole.len(), |(byte, _)| byte)
    };
    let start = bound(1, 0)?;
    let end = bound(2, count)?;
    let is_within = start <= count && start <= end;
    let within = if is_within { &whole[byte(start)..byte(end)] } else { "" };
    if matches!(name, "startswith" | "endswith") {
        let ends = |one: &Value| match one.as_str() {
            Some(one) if name == "startswith" => Ok(is_within && within.starts_with(one)),
            Some(one) => Ok(is_within && within.ends_with(one)),
            None => failed(format!("{name} expects str or a tuple of str, not {}", one.type_name())),
        };
        return match args.need(0)? {
            Value::Seq(seq) if seq.kind == SeqKind::Tuple => {
                let mut is_any = false;
                for one in &seq.items {
                    is_any |= ends(one)?;
                }
                Ok(Value::Bool(is_any))
            }
            one => ends(one).map(Value::Bool),
        };
    }
    let wanted = args.text(0)?.as_str();
    if name == "count" {
        return Ok(Value::Int(if is_within { within.matches(wanted).count() as i128 } else { 0 }));
    }
    let found = match name {
        "find" | "index" => within.find(wanted),
        _ => within.rfind(wanted),
    };
    match found.filter(|_| is_within) {
        Some(at) => Ok(Value::Int(start + within[..at].chars().count() as i128)),
        None if matches!(name, "index" | "rindex") => failed("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

/// Returns the text with HTML's characters escaped, as markup.
///
/// # Errors
/// If the budget is used up.
pub(super) fn escaped(text: &Text, budget: &Budget) -> Outcome<Text> {
    budget.charge(text.len().saturating_mul(4))?;
    let mut out = Text::default();
    text.each_char(|c, same, origin| {
        let changed = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '"' => "&#34;",
            '\'' => "&#39;",
            _ => same,
        };
        out.push(changed, origin);
    });
    Ok(out.into_markup())
}
