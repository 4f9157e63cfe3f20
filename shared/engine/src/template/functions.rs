//! The functions of the language, and those that Hugging Face adds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::args::Args;
use super::budget::{Budget, Outcome, Stop, failed};
use super::value::{Cycler, Joiner, Namespace, SeqKind, Value};
use super::write;

/// All functions.
const FUNCTIONS: &[&str] =
    &["cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now"];
/// Functions of Jinja2 that this language lacks.
const MISSING: &[&str] = &["lipsum"];
/// The most items of a range; Jinja2's sandbox has the same limit.
const RANGE_MAX: usize = 100_000;
/// The most characters of a refusal that are kept.
const REFUSAL_CHARS_MAX: usize = 500;

/// Returns a function by its name.
pub(super) fn find(name: &str) -> Option<&'static str> {
    FUNCTIONS.iter().find(|known| **known == name).copied()
}

/// Whether Jinja2 has this function and this language does not.
pub(super) fn is_missing(name: &str) -> bool {
    MISSING.contains(&name)
}

/// Calls a function.
///
/// # Errors
/// If the arguments are wrong, the budget is used up, or the function refuses the conversation.
pub(super) fn call(name: &str, args: Args, budget: &Budget) -> Outcome<Value> {
    match name {
        "range" => range(args, budget),
        "dict" => dict(args, budget),
        "namespace" => {
            let made = dict(args, budget)?;
            let Value::Map(map) = &made else { return failed("no dict") };
            if made.changes() {
                return failed("a namespace cannot hold a namespace or a loop");
            }
            let mut fields = Vec::new();
            for (name, value) in map.entries() {
                fields.push((write::string(name, budget)?.as_str().to_owned(), value.clone()));
            }
            Ok(Value::Namespace(Rc::new(Namespace { fields: RefCell::new(fields) })))
        }
        "cycler" if args.pos.is_empty() => failed("at least one item has to be provided"),
        "cycler" => Ok(Value::Cycler(Rc::new(Cycler { items: args.pos, at: Cell::new(0) }))),
        "joiner" => {
            let args = args.bind(name, &["sep"])?;
            let between = args.get(0).cloned().unwrap_or_else(|| Value::text(", "));
            if between.changes() {
                return failed("a joiner joins texts");
            }
            Ok(Value::Joiner(Rc::new(Joiner { between, is_used: Cell::new(false) })))
        }
        "raise_exception" => {
            let args = args.bind(name, &["message"])?;
            let text = write::string(args.need(0)?, budget)?;
            Err(Stop::Raised(text.as_str().chars().take(REFUSAL_CHARS_MAX).collect()))
        }
        _ => {
            let args = args.bind(name, &["format"])?;
            Ok(Value::text(fixed_day(args.text(0)?.as_str())))
        }
    }
}

fn range(args: Args, budget: &Budget) -> Outcome<Value> {
    let bounds = args.bind("range", &["start", "stop", "step"])?;
    let (first, last) = match bounds.get(1) {
        None => (0, bounds.int(0, 0)?),
        Some(_) => (bounds.int(0, 0)?, bounds.int(1, 0)?),
    };
    let step = bounds.int(2, 1)?;
    if step == 0 {
        return failed("range() arg 3 must not be zero");
    }
    let is_within = |at: &i128| if step > 0 { *at < last } else { *at > last };
    let numbers = std::iter::successors(Some(first), |at| at.checked_add(step)).take_while(is_within);
    let items: Vec<Value> = numbers.take(RANGE_MAX + 1).map(Value::Int).collect();
    if items.len() > RANGE_MAX {
        return failed(format!("a range has at most {RANGE_MAX} items"));
    }
    Value::seq(items, SeqKind::Range, budget)
}

fn dict(args: Args, budget: &Budget) -> Outcome<Value> {
    let mut entries = Vec::new();
    match args.pos.as_slice() {
        [] => {}
        [Value::Map(map)] => entries.extend(map.entries().iter().cloned()),
        [list] => {
            for pair in &list.items(budget)?.items {
                match pair.items(budget)?.items.as_slice() {
                    [key, value] => entries.push((key.clone(), value.clone())),
                    _ => return failed("dict() takes pairs"),
                }
            }
        }
        _ => return failed("dict() takes at most one positional argument"),
    }
    entries.extend(args.named.into_iter().map(|(name, value)| (Value::text(name), value)));
    Value::map(entries, budget)
}

/// `strftime` for one fixed day, 26 July 2024, noon, so that prompts do not depend on the time. (Llama 3
/// templates use the same day as default.)
fn fixed_day(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out.push_str(match chars.next() {
            Some('Y') => "2024",
            Some('y') => "24",
            Some('m') => "07",
            Some('d' | 'e') => "26",
            Some('b' | 'h') => "Jul",
            Some('B') => "July",
            Some('a') => "Fri",
            Some('A') => "Friday",
            Some('u' | 'w') => "5",
            Some('j') => "208",
            Some('H' | 'I') => "12",
            Some('M' | 'S') => "00",
            Some('p') => "PM",
            Some('F') => "2024-07-26",
            Some('T') => "12:00:00",
            Some('D') => "07/26/24",
            Some('R') => "12:00",
            Some('-') => {
                // glibc's form without leading zeros.
                match chars.next() {
                    Some('m') => "7",
                    Some('d') => "26",
                    Some('H' | 'I') => "12",
                    Some('M' | 'S') => "0",
                    _ => "",
                }
            }
            Some('%') => "%",
            _ => "",
        });
    }
    out
}
