//! Filters of texts.

use super::super::args::{Args, Bound};
use super::super::budget::{Budget, Outcome, failed};
use super::super::strings;
use super::super::text::Text;
use super::super::value::Value;
use super::super::write;

/// Applies a filter of texts.
///
/// # Errors
/// If there is no such filter, the arguments do not go with it, or the budget is used up.
pub(super) fn apply(name: &str, value: &Value, args: Args, budget: &Budget) -> Outcome<Value> {
    if !super::is_known(name) {
        return failed(format!("No filter named '{name}'."));
    }
    let text = write::string(value, budget)?;
    budget.charge(text.len())?;
    let names: &[&str] = match name {
        "trim" => &["chars"],
        "replace" => &["old", "new", "count"],
        "indent" => &["width", "first", "blank"],
        "center" => &["width"],
        "truncate" => &["length", "killwords", "end", "leeway"],
        _ => &[],
    };
    let args = args.bind(name, names)?;
    let made = match name {
        "upper" => text.map(str::to_uppercase),
        "lower" => text.map(str::to_lowercase),
        "capitalize" => strings::capitalized(&text),
        "title" => titled(&text),
        "trim" => {
            let chars = args.optional_text(0)?.map(|chars| chars.as_str());
            text.slice(strings::stripped(text.as_str(), chars, true, true))
        }
        "replace" => {
            let from = write::string(args.need(0)?, budget)?;
            let to = write::string(args.need(1)?, budget)?;
            let count = usize::try_from(args.int(2, -1)?).ok();
            strings::replace(&text, &from, &to, count, budget)?
        }
        "indent" => indented(&text, &args, budget)?,
        "center" => {
            let width = Value::Int(args.int(0, 80)?);
            let args = Args { pos: vec![width], named: Vec::new() };
            return strings::call(&std::rc::Rc::new(text), "center", args, budget);
        }
        "truncate" => truncated(text, &args)?,
        "wordcount" => {
            let words = text.as_str().split(|c: char| !(c.is_alphanumeric() || c == '_'));
            return Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128));
        }
        "e" | "escape" if text.is_markup() => text,
        "e" | "escape" | "forceescape" => strings::escaped(&text, budget)?,
        "safe" => text.into_markup(),
        "urlencode" => url(&text, budget)?,
        "striptags" => without_tags(&text),
        // `string`.
        _ => text,
    };
    Ok(Value::made(made))
}

/// The filter `title`, which differs from the method.
fn titled(text: &Text) -> Text {
    let mut out = Text::default();
    let mut is_first = true;
    text.each_char(|c, same, origin| {
        let changed = if is_first { same.to_uppercase() } else { same.to_lowercase() };
        out.push(&changed, origin);
        is_first = strings::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    });
    out
}

fn indented(text: &Text, args: &Bound, budget: &Budget) -> Outcome<Text> {
    let width = match args.get(0) {
        Some(Value::Text(text)) => text.as_str().to_owned(),
        _ => {
            let width = usize::try_from(args.int(0, 4)?.max(0)).unwrap_or(usize::MAX);
            budget.charge(width)?;
            " ".repeat(width)
        }
    };
    let mut lines = strings::lines(text.as_str(), false);
    if text.len() == 0 || text.as_str().ends_with(['\n', '\r']) {
        lines.push(text.len()..text.len());
    }
    budget.charge(lines.len().saturating_mul(width.len()))?;
    let mut out = Text::default();
    for (at, line) in lines.into_iter().enumerate() {
        let is_indented =
            if at == 0 { args.truth(1, false) } else { args.truth(2, false) || !line.is_empty() };
        out.push_str(if at > 0 { "\n" } else { "" });
        out.push_str(if is_indented { &width } else { "" });
        out.append_slice(text, line);
    }
    Ok(out)
}

fn truncated(text: Text, args: &Bound) -> Outcome<Text> {
    let length = usize::try_from(args.int(0, 255)?.max(0)).unwrap_or(usize::MAX);
    let end = args.optional_text(2)?.map_or("...", |end| end.as_str());
    let leeway = usize::try_from(args.int(3, 5)?.max(0)).unwrap_or(usize::MAX);
    let count = text.as_str().chars().count();
    if count <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return failed("the truncated length is shorter than its end");
    };
    let mut cut = text.as_str().char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
    if !args.truth(1, false) {
        cut = text.as_str()[..cut].rfind(' ').unwrap_or(cut);
    }
    let mut out = text.slice(0..cut);
    out.push_str(end);
    Ok(out)
}

fn url(text: &Text, budget: &Budget) -> Outcome<Text> {
    budget.charge(text.len().saturating_mul(3))?;
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'~' | b'/');
    let mut out = Text::default();
    text.each_char(|_, same, origin| {
        let quoted = |byte: u8| {
            if is_kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
        };
        out.push(&same.bytes().map(quoted).collect::<String>(), origin);
    });
    Ok(out)
}

/// Leaves out tags and comments, and joins white space.
fn without_tags(text: &Text) -> Text {
    let whole = text.as_str();
    let mut kept = Text::default();
    let mut at = 0;
    while let Some(open) = whole[at..].find('<').map(|from| at + from) {
        let end = if whole[open..].starts_with("<!--") { "-->" } else { ">" };
        let Some(close) = whole[open..].find(end).map(|from| open + from + end.len()) else { break };
        kept.append_slice(text, at..open);
        at = close;
    }
    kept.append_slice(text, at..whole.len());
    let mut out = Text::default();
    for word in kept.as_str().split(strings::is_space).filter(|word| !word.is_empty()) {
        let start = word.as_ptr() as usize - kept.as_str().as_ptr() as usize;
        out.push_str(if out.len() > 0 { " " } else { "" });
        out.append_slice(&kept, start..start + word.len());
    }
    out
}
