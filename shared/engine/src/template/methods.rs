//! The methods of Python's dictionaries and lists, and which methods there are.

use super::args::Args;
use super::budget::{Budget, Outcome, Stop, failed};
use super::strings;
use super::value::{SeqKind, Value};

/// Methods of dictionaries; those that change one are refused by the sandbox of Hugging Face too.
const OF_MAPS: &[&str] = &["copy", "get", "items", "keys", "values"];
/// Methods of lists and tuples.
const OF_SEQUENCES: &[&str] = &["copy", "count", "index"];
/// Methods of `loop`.
const OF_LOOPS: &[&str] = &["changed", "cycle"];
/// Methods of a cycler.
const OF_CYCLERS: &[&str] = &["next", "reset"];
/// Methods that Python has and this language lacks.
const MISSING: &[&str] = &["encode", "format_map", "fromkeys", "isidentifier", "maketrans", "translate"];

/// Returns a method of a value by its name.
pub(super) fn find(value: &Value, name: &str) -> Option<&'static str> {
    let list = match value {
        Value::Text(_) => strings::METHODS,
        Value::Map(_) => OF_MAPS,
        Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Range) => {
            OF_SEQUENCES
        }
        Value::Loop(_) => OF_LOOPS,
        Value::Cycler(_) => OF_CYCLERS,
        _ => &[],
    };
    list.iter().find(|known| **known == name).copied()
}

/// Whether Python's values have this method and this language does not.
pub(super) fn is_missing(name: &str) -> bool {
    MISSING.contains(&name)
}

/// Calls a method that [`find`] has found.
///
/// # Errors
/// If the arguments are wrong, or the budget is used up.
pub(super) fn call(receiver: &Value, name: &'static str, args: Args, budget: &Budget) -> Outcome<Value> {
    match receiver {
        Value::Text(text) => strings::call(text, name, args, budget),
        Value::Map(_) => of_map(receiver, name, args, budget),
        Value::Seq(seq) => of_sequence(&seq.items, seq.kind, name, args, budget),
        Value::Loop(of) => {
            if name == "cycle" {
                return match args.pos.get(of.index.checked_rem(args.pos.len()).unwrap_or(0)) {
                    Some(value) => Ok(value.clone()),
                    None => failed("no items for cycling given"),
                };
            }
            let mut last = of.last.borrow_mut();
            let mut is_same = last.as_ref().is_some_and(|last| last.len() == args.pos.len());
            for (old, new) in last.iter().flatten().zip(&args.pos) {
                is_same = is_same && old.equals(new, budget)?;
            }
            if args.pos.iter().any(Value::changes) {
                return failed("a loop cannot remember a namespace or a loop");
            }
            *last = Some(args.pos);
            Ok(Value::Bool(!is_same))
        }
        Value::Cycler(of) => {
            let at = of.at.get();
            of.at.set(if name == "next" { (at + 1) % of.items.len() } else { 0 });
            Ok(if name == "next" { of.items[at].clone() } else { Value::None })
        }
        _ => Err(Stop::Failed(format!("{} has no method {name}", receiver.type_name()))),
    }
}

fn of_map(map: &Value, name: &str, args: Args, budget: &Budget) -> Outcome<Value> {
    let Value::Map(fields) = map else { return failed("no dict") };
    let view = |name, items| Value::seq(items, SeqKind::View(name), budget);
    if name == "get" {
        let args = args.bind(name, &["key", "default"])?;
        let found = fields.get(args.need(0)?, budget)?;
        return Ok(found.or_else(|| args.get(1).cloned()).unwrap_or(Value::None));
    }
    args.bind(name, &[])?;
    match name {
        "keys" => view("dict_keys", fields.entries().iter().map(|(key, _)| key.clone()).collect()),
        "values" => view("dict_values", fields.entries().iter().map(|(_, value)| value.clone()).collect()),
        "items" => view("dict_items", pairs(fields.entries(), budget)?),
        _ => Ok(map.clone()),
    }
}

/// Returns the entries of a mapping as tuples.
///
/// # Errors
/// If the budget is used up.
pub(super) fn pairs(entries: &[(Value, Value)], budget: &Budget) -> Outcome<Vec<Value>> {
    let pair =
        |(key, value): &(Value, Value)| Value::seq(vec![key.clone(), value.clone()], SeqKind::Tuple, budget);
    entries.iter().map(pair).collect()
}

fn of_sequence(items: &[Value], kind: SeqKind, name: &str, args: Args, budget: &Budget) -> Outcome<Value> {
    if name == "copy" {
        args.bind(name, &[])?;
        return Value::seq(items.to_vec(), kind, budget);
    }
    let args = args.bind(name, &["value"])?;
    let wanted = args.need(0)?;
    let mut count = 0;
    for (at, item) in items.iter().enumerate() {
        if item.equals(wanted, budget)? {
            if name == "index" {
                return Ok(Value::Int(at as i128));
            }
            count += 1;
        }
    }
    if name == "index" { failed("the value is not in the list") } else { Ok(Value::Int(count)) }
}
