//! The methods of Python's strings and dictionaries that chat templates call.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::runtime::Budget;

/// Calls a method that the template library does not have.
///
/// # Errors
/// If the method is unknown, arguments are wrong, or the budget is used up.
pub(super) fn call(budget: &Budget, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    budget.charge_input(value)?;
    args.iter().try_for_each(|arg| budget.charge_input(arg))?;
    match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(budget, text, name, args),
        (None, ValueKind::Map) => of_map(value, name, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn of_text(budget: &Budget, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let strip = |front: bool, back: bool| -> Result<Value, Error> {
        let chars = opt_text(args, 0)?;
        let is_stripped = |c: char| chars.map_or(c.is_whitespace(), |chars| chars.contains(c));
        let text = if front { text.trim_start_matches(is_stripped) } else { text };
        Ok(Value::from(if back { text.trim_end_matches(is_stripped) } else { text }))
    };
    Ok(match name {
        "strip" => strip(true, true)?,
        "lstrip" => strip(true, false)?,
        "rstrip" => strip(false, true)?,
        "split" => split(text, opt_text(args, 0)?, limit(args, 1)?, false)?,
        "rsplit" => split(text, opt_text(args, 0)?, limit(args, 1)?, true)?,
        "splitlines" => text.lines().map(Value::from).collect(),
        "startswith" => Value::from(any_of(args)?.iter().any(|p| text.starts_with(p.as_str()))),
        "endswith" => Value::from(any_of(args)?.iter().any(|p| text.ends_with(p.as_str()))),
        "replace" => replace(budget, text, text_arg(args, 0)?, text_arg(args, 1)?, limit(args, 2)?)?,
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "capitalize" => Value::from(capitalized(text)),
        "title" => Value::from(titled(text)),
        "join" => join(budget, args.first().unwrap_or(&Value::UNDEFINED), text)?,
        "find" => {
            let at = text.find(text_arg(args, 0)?).map(|byte| text[..byte].chars().count() as i64);
            Value::from(at.unwrap_or(-1))
        }
        "count" => Value::from(text.matches(text_arg(args, 0)?).count()),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

fn of_map(map: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let value_of = |key: &Value| map.get_item(key);
    Ok(match (name, args) {
        ("keys", []) => map.try_iter()?.collect(),
        ("values", []) => map.try_iter()?.map(|key| value_of(&key)).collect::<Result<Value, Error>>()?,
        ("items", []) => {
            let pair = |key: Value| value_of(&key).map(|value| Value::from(vec![key, value]));
            map.try_iter()?.map(pair).collect::<Result<Value, Error>>()?
        }
        ("get", [key, rest @ ..]) if rest.len() <= 1 => {
            let found = value_of(key)?;
            let otherwise = || rest.first().cloned().unwrap_or(Value::from(()));
            if found.is_undefined() { otherwise() } else { found }
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// Returns `between.join(list)`; the result is charged before it is made.
pub(super) fn join(budget: &Budget, list: &Value, between: &str) -> Result<Value, Error> {
    let mut out = String::new();
    for (i, item) in list.try_iter()?.enumerate() {
        budget.charge_input(&item)?;
        if i > 0 {
            budget.charge(between.len() as u64)?;
            out.push_str(between);
        }
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&item.to_string()),
        }
    }
    Ok(Value::from(out))
}

/// Returns `text.replace(from, to, count)`; the result is charged before it is made.
pub(super) fn replace(
    budget: &Budget,
    text: &str,
    from: &str,
    to: &str,
    count: Option<usize>,
) -> Result<Value, Error> {
    let times = text.matches(from).count().min(count.unwrap_or(usize::MAX));
    budget.charge((times as u64).saturating_mul(to.len() as u64).saturating_add(text.len() as u64))?;
    Ok(Value::from(text.replacen(from, to, times)))
}

/// The most spaces of `tojson(indent=…)`.
const INDENT_MAX: usize = 16;

/// Returns `json.dumps(value, ensure_ascii=False, indent=indent)`, as Hugging Face's `tojson` writes values.
///
/// # Errors
/// If the indent is above 16, or JSON cannot hold the value.
pub(super) fn to_json(value: &Value, indent: Option<usize>) -> Result<Value, Error> {
    if indent.is_some_and(|n| n > INDENT_MAX) {
        let text = format!("tojson indents by at most {INDENT_MAX} spaces");
        return Err(Error::new(ErrorKind::InvalidOperation, text));
    }
    let mut out = String::new();
    write_json(value, indent, 1, &mut out)?;
    Ok(Value::from(out))
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(n) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', n * depth));
        }
    };
    let next = if indent.is_some() { "," } else { ", " };
    match (value.as_str(), value.kind()) {
        (Some(text), _) => json_string(text, out),
        (_, ValueKind::None | ValueKind::Undefined) => out.push_str("null"),
        (_, ValueKind::Bool) => out.push_str(if value.is_true() { "true" } else { "false" }),
        (_, ValueKind::Number) => out.push_str(&value.to_string()),
        (_, kind @ (ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)) => {
            let (open, close) = if kind == ValueKind::Map { ('{', '}') } else { ('[', ']') };
            out.push(open);
            let mut is_empty = true;
            for item in value.try_iter()? {
                out.push_str(if is_empty { "" } else { next });
                is_empty = false;
                line(out, depth);
                if kind == ValueKind::Map {
                    json_string(&item.to_string(), out);
                    out.push_str(": ");
                    write_json(&value.get_item(&item)?, indent, depth + 1, out)?;
                } else {
                    write_json(&item, indent, depth + 1, out)?;
                }
            }
            if !is_empty {
                line(out, depth - 1);
            }
            out.push(close);
        }
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "value has no JSON form")),
    }
    Ok(())
}

fn json_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `split`: at a separator, or at runs of white space if there is none.
fn split(text: &str, at: Option<&str>, most: Option<usize>, from_end: bool) -> Result<Value, Error> {
    let parts = most.map_or(usize::MAX, |n| n.saturating_add(1));
    let mut pieces: Vec<&str> = match (at, from_end) {
        (Some(""), _) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        (Some(at), false) => text.splitn(parts, at).collect(),
        (Some(at), true) => text.rsplitn(parts, at).collect(),
        (None, _) if most.is_none() => text.split_whitespace().collect(),
        (None, _) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "split by white space has no limit"));
        }
    };
    if from_end && at.is_some() {
        pieces.reverse();
    }
    Ok(pieces.into_iter().map(Value::from).collect())
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>());
    first.unwrap_or_default() + &chars.as_str().to_lowercase()
}

fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        match in_word {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        in_word = c.is_alphabetic();
    }
    out
}

fn text_arg(args: &[Value], at: usize) -> Result<&str, Error> {
    let wanted = || Error::new(ErrorKind::InvalidOperation, format!("argument {} must be a string", at + 1));
    args.get(at).and_then(Value::as_str).ok_or_else(wanted)
}

/// Returns a string, or `None` if the argument is absent or none.
fn opt_text(args: &[Value], at: usize) -> Result<Option<&str>, Error> {
    match args.get(at) {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(_) => text_arg(args, at).map(Some),
    }
}

/// Returns a count, or `None` if the argument is absent or negative.
fn limit(args: &[Value], at: usize) -> Result<Option<usize>, Error> {
    match args.get(at) {
        None => Ok(None),
        Some(value) => Ok(usize::try_from(i64::try_from(value.clone())?).ok()),
    }
}

/// Returns the first argument: one string or several.
fn any_of(args: &[Value]) -> Result<Vec<String>, Error> {
    match args.first() {
        Some(value) if value.kind() == ValueKind::Seq => {
            Ok(value.try_iter()?.map(|v| v.to_string()).collect())
        }
        _ => Ok(vec![text_arg(args, 0)?.to_owned()]),
    }
}
