//! Filters of lists.

use std::cmp::Ordering;
use std::rc::Rc;

use super::super::args::{Args, Bound};
use super::super::budget::{Budget, Outcome, Stop, failed};
use super::super::text::Text;
use super::super::value::{SeqKind, Value};
use super::super::{ops, predicates, write};
use super::apply as apply_filter;

/// Applies a filter of lists.
///
/// # Errors
/// If the value or the arguments do not go with it, or the budget is used up.
pub(super) fn apply(name: &str, value: &Value, args: Args, budget: &Budget) -> Outcome<Value> {
    match name {
        "map" => map(value, args, budget),
        "select" | "reject" => select(value, None, args, name == "select", budget),
        "selectattr" | "rejectattr" => {
            let mut args = args;
            if args.pos.is_empty() {
                return failed("Missing parameter for attribute name");
            }
            let attribute = args.pos.remove(0);
            select(value, Some(attribute), args, name == "selectattr", budget)
        }
        "first" | "last" => {
            args.bind(name, &[])?;
            let items = value.items(budget)?;
            let found = if name == "first" { items.items.first() } else { items.items.last() };
            Ok(found
                .cloned()
                .unwrap_or_else(|| Value::Undefined(format!("No {name} item, sequence was empty.").into())))
        }
        "list" => {
            args.bind(name, &[])?;
            Value::list(value.items(budget)?.items.clone(), budget)
        }
        "reverse" => {
            args.bind(name, &[])?;
            reversed(value, budget)
        }
        "join" => join(value, &args.bind(name, &["d", "attribute"])?, budget),
        "sort" => {
            let args = args.bind(name, &["reverse", "case_sensitive", "attribute"])?;
            let keyed = keyed(value, args.get(2), args.truth(1, false), budget)?;
            Value::list(sorted(keyed, args.truth(0, false), budget)?, budget)
        }
        "unique" => unique(value, &args.bind(name, &["case_sensitive", "attribute"])?, budget),
        "min" | "max" => {
            let args = args.bind(name, &["case_sensitive", "attribute"])?;
            let mut sorted =
                sorted(keyed(value, args.get(1), args.truth(0, false), budget)?, name == "max", budget)?;
            if sorted.is_empty() {
                return Ok(Value::Undefined("No aggregated item, sequence was empty.".into()));
            }
            Ok(sorted.swap_remove(0))
        }
        "sum" => {
            let args = args.bind(name, &["attribute", "start"])?;
            let mut sum = args.get(1).cloned().unwrap_or(Value::Int(0));
            for item in &value.items(budget)?.items {
                let item =
                    attribute_of(item, args.get(0).filter(|name| !matches!(name, Value::None)), budget)?;
                sum = ops::binary(minijinja::machinery::ast::BinOpKind::Add, &sum, &item, budget)?;
            }
            Ok(sum)
        }
        "dictsort" => dictsort(value, &args.bind(name, &["case_sensitive", "by", "reverse"])?, budget),
        "groupby" => groupby(value, &args.bind(name, &["attribute", "default", "case_sensitive"])?, budget),
        _ => chunks(name, value, &args.bind(name, &["count", "fill_with"])?, budget),
    }
}

fn reversed(value: &Value, budget: &Budget) -> Outcome<Value> {
    if let Value::Text(text) = value {
        budget.charge(text.len())?;
        let mut chars = Vec::new();
        text.each_char(|_, same, origin| chars.push((same.to_owned(), origin)));
        let mut out = Text::default();
        chars.iter().rev().for_each(|(same, origin)| out.push(same, *origin));
        return Ok(Value::made(out));
    }
    Value::seq(value.items(budget)?.items.iter().rev().cloned().collect(), SeqKind::Generator, budget)
}

fn unique(value: &Value, args: &Bound, budget: &Budget) -> Outcome<Value> {
    let mut kept: Vec<(Value, Value)> = Vec::new();
    for (key, item) in keyed(value, args.get(1), args.truth(0, false), budget)? {
        let mut is_new = true;
        for (known, _) in &kept {
            is_new = is_new && !known.equals(&key, budget)?;
        }
        if is_new {
            kept.push((key, item));
        }
    }
    Value::seq(kept.into_iter().map(|(_, item)| item).collect(), SeqKind::Generator, budget)
}

/// Returns an item's attribute, such as `function.name`, or the item itself.
fn attribute_of(item: &Value, path: Option<&Value>, budget: &Budget) -> Outcome<Value> {
    let Some(path) = path else { return Ok(item.clone()) };
    let Some(path) = path.as_str() else { return ops::item(item, path, budget) };
    let mut value = item.clone();
    for name in path.split('.') {
        budget.step()?;
        let key = name.parse().map_or_else(|_| Value::text(name), Value::Int);
        value = ops::item(&value, &key, budget)?;
    }
    Ok(value)
}

fn map(value: &Value, mut args: Args, budget: &Budget) -> Outcome<Value> {
    if !value.is_true() {
        return Value::seq(Vec::new(), SeqKind::Generator, budget);
    }
    let mut made = Vec::new();
    let items = value.items(budget)?;
    if args.pos.is_empty() {
        let args = args.bind("map", &["attribute", "default"])?;
        let path = args.need(0)?;
        for item in &items.items {
            let found = attribute_of(item, Some(path), budget)?;
            made.push(match args.get(1) {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            });
        }
    } else {
        let name = args.pos.remove(0);
        let Some(name) = name.as_str() else { return failed("map requires a filter argument") };
        for item in &items.items {
            budget.step()?;
            made.push(apply_filter(name, item, args.clone(), budget)?);
        }
    }
    Value::seq(made, SeqKind::Generator, budget)
}

fn select(
    value: &Value,
    attribute: Option<Value>,
    mut args: Args,
    is_kept: bool,
    budget: &Budget,
) -> Outcome<Value> {
    if !value.is_true() {
        return Value::seq(Vec::new(), SeqKind::Generator, budget);
    }
    let test = if args.pos.is_empty() { None } else { Some(args.pos.remove(0)) };
    let mut kept = Vec::new();
    for item in &value.items(budget)?.items {
        budget.step()?;
        let tested = attribute_of(item, attribute.as_ref(), budget)?;
        let is_true = match &test {
            None => tested.is_true(),
            Some(test) => match test.as_str() {
                Some(name) => predicates::apply(name, &tested, args.clone(), budget)?,
                None => return failed("a test is named by a string"),
            },
        };
        if is_true == is_kept {
            kept.push(item.clone());
        }
    }
    Value::seq(kept, SeqKind::Generator, budget)
}

fn join(value: &Value, args: &Bound, budget: &Budget) -> Outcome<Value> {
    let between = match args.get(0) {
        Some(between) => write::string(between, budget)?,
        None => Text::default(),
    };
    let mut out = Text::default();
    for (at, item) in value.items(budget)?.items.iter().enumerate() {
        budget.charge(between.len())?;
        if at > 0 {
            out.append(&between);
        }
        let item = attribute_of(item, args.get(1).filter(|name| !matches!(name, Value::None)), budget)?;
        write::write(&item, &mut out, budget)?;
    }
    Ok(Value::made(out))
}

/// Returns the items with what they are compared by.
fn keyed(
    value: &Value,
    attribute: Option<&Value>,
    case_sensitive: bool,
    budget: &Budget,
) -> Outcome<Vec<(Value, Value)>> {
    let attribute = attribute.filter(|name| !matches!(name, Value::None));
    let mut keyed = Vec::new();
    for item in &value.items(budget)?.items {
        let key = attribute_of(item, attribute, budget)?;
        keyed.push((folded(key, case_sensitive, budget)?, item.clone()));
    }
    Ok(keyed)
}

fn folded(key: Value, case_sensitive: bool, budget: &Budget) -> Outcome<Value> {
    match key {
        Value::Text(text) if !case_sensitive => {
            budget.charge(text.len())?;
            Ok(Value::Text(Rc::new(text.map(str::to_lowercase))))
        }
        other => Ok(other),
    }
}

/// Sorts items by their keys; equal ones keep their order.
fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool, budget: &Budget) -> Outcome<Vec<Value>> {
    let mut stopped: Option<Stop> = None;
    keyed.sort_by(|a, b| {
        if stopped.is_some() {
            return Ordering::Equal;
        }
        match a.0.order(&b.0, budget) {
            Ok(order) if reverse => order.unwrap_or(Ordering::Equal).reverse(),
            Ok(order) => order.unwrap_or(Ordering::Equal),
            Err(stop) => {
                stopped = Some(stop);
                Ordering::Equal
            }
        }
    });
    match stopped {
        Some(stop) => Err(stop),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}

fn dictsort(value: &Value, args: &Bound, budget: &Budget) -> Outcome<Value> {
    let Value::Map(map) = value else { return failed("dictsort sorts a mapping") };
    let by = args.optional_text(1)?.map_or("key", |by| by.as_str());
    let mut keyed = Vec::new();
    for (key, value) in map.entries() {
        let sorted_by = if by == "value" { value } else { key };
        let pair = Value::seq(vec![key.clone(), value.clone()], SeqKind::Tuple, budget)?;
        keyed.push((folded(sorted_by.clone(), args.truth(0, false), budget)?, pair));
    }
    Value::list(sorted(keyed, args.truth(2, false), budget)?, budget)
}

fn groupby(value: &Value, args: &Bound, budget: &Budget) -> Outcome<Value> {
    let path = args.need(0)?;
    let mut keyed = Vec::new();
    for item in &value.items(budget)?.items {
        let found = attribute_of(item, Some(path), budget)?;
        let found = if found.is_undefined() { args.get(1).cloned().unwrap_or(found) } else { found };
        let pair = Value::seq(vec![found.clone(), item.clone()], SeqKind::Tuple, budget)?;
        keyed.push((folded(found, args.truth(2, false), budget)?, pair));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for pair in sorted(keyed, false, budget)? {
        let pair = pair.items(budget)?;
        let name = &pair.items[0];
        let key = folded(name.clone(), args.truth(2, false), budget)?;
        match groups.last_mut() {
            Some((last, _, items)) if last.equals(&key, budget)? => items.push(pair.items[1].clone()),
            _ => groups.push((key, name.clone(), vec![pair.items[1].clone()])),
        }
    }
    let mut made = Vec::new();
    for (_, name, items) in groups {
        made.push(Value::seq(vec![name, Value::list(items, budget)?], SeqKind::Tuple, budget)?);
    }
    Value::list(made, budget)
}

/// `batch` and `slice`.
fn chunks(name: &str, value: &Value, args: &Bound, budget: &Budget) -> Outcome<Value> {
    let items = value.items(budget)?;
    let count = usize::try_from(args.int(0, 0)?).ok().filter(|count| *count > 0);
    let Some(count) = count else { return failed(format!("{name} needs a count above zero")) };
    let fill = args.get(1).filter(|fill| !matches!(fill, Value::None));
    let mut lists = Vec::new();
    if name == "batch" {
        for chunk in items.items.chunks(count) {
            let mut list = chunk.to_vec();
            if let Some(fill) = fill {
                budget.charge((count - list.len()).saturating_mul(48))?;
                list.resize(count, fill.clone());
            }
            lists.push(Value::list(list, budget)?);
        }
        return Value::seq(lists, SeqKind::Generator, budget);
    }
    budget.charge(count.saturating_mul(48))?;
    let each = items.items.len() / count;
    let longer = items.items.len() % count;
    let mut start = 0;
    for number in 0..count {
        let end = start + each + usize::from(number < longer);
        let mut list = items.items[start..end].to_vec();
        list.extend(fill.filter(|_| longer > 0 && number >= longer).cloned());
        lists.push(Value::list(list, budget)?);
        start = end;
    }
    Value::seq(lists, SeqKind::Generator, budget)
}
