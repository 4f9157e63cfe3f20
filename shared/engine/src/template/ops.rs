//! Operators, attributes, items and slices.

use std::rc::Rc;

use minijinja::machinery::ast::{BinOpKind, CompareOpKind};

use super::budget::{Budget, Outcome, Stop, failed};
use super::format::percent;
use super::methods;
use super::strings;
use super::text::Text;
use super::value::{SeqKind, Value};
use super::write;

/// The most a power may be of.
const EXPONENT_MAX: u32 = 10_000;

/// Returns the result of an operator whose both sides are computed.
///
/// # Errors
/// If the values do not go with the operator, or the budget is used up.
pub(super) fn binary(op: BinOpKind, left: &Value, right: &Value, budget: &Budget) -> Outcome<Value> {
    match op {
        BinOpKind::Add => add(left, right, budget),
        BinOpKind::Mul => multiply(left, right, budget),
        BinOpKind::Concat => concat(left, right, budget),
        BinOpKind::Rem if left.as_text().is_some() => percent(left, right, budget),
        BinOpKind::Sub | BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem | BinOpKind::Pow => {
            arithmetic(op, left, right)
        }
        BinOpKind::Eq => compare(CompareOpKind::Eq, left, right, budget).map(Value::Bool),
        BinOpKind::Ne => compare(CompareOpKind::Ne, left, right, budget).map(Value::Bool),
        BinOpKind::Lt => compare(CompareOpKind::Lt, left, right, budget).map(Value::Bool),
        BinOpKind::Lte => compare(CompareOpKind::Lte, left, right, budget).map(Value::Bool),
        BinOpKind::Gt => compare(CompareOpKind::Gt, left, right, budget).map(Value::Bool),
        BinOpKind::Gte => compare(CompareOpKind::Gte, left, right, budget).map(Value::Bool),
        BinOpKind::In => contains(right, left, budget).map(Value::Bool),
        BinOpKind::ScAnd | BinOpKind::ScOr => unreachable!("their sides are computed one by one"),
    }
}

/// Returns the result of a comparison.
///
/// # Errors
/// If the values have no order, or the budget is used up.
pub(super) fn compare(op: CompareOpKind, left: &Value, right: &Value, budget: &Budget) -> Outcome<bool> {
    Ok(match op {
        CompareOpKind::Eq => left.equals(right, budget)?,
        CompareOpKind::Ne => !left.equals(right, budget)?,
        CompareOpKind::Lt => left.order(right, budget)?.is_some_and(|order| order.is_lt()),
        CompareOpKind::Lte => left.order(right, budget)?.is_some_and(|order| order.is_le()),
        CompareOpKind::Gt => left.order(right, budget)?.is_some_and(|order| order.is_gt()),
        CompareOpKind::Gte => left.order(right, budget)?.is_some_and(|order| order.is_ge()),
        CompareOpKind::In => contains(right, left, budget)?,
        CompareOpKind::NotIn => !contains(right, left, budget)?,
    })
}

/// Returns `-value`.
///
/// # Errors
/// If it is no number.
pub(super) fn negated(value: &Value) -> Outcome<Value> {
    match (value, value.as_int()) {
        (Value::Float(number), _) => Ok(Value::Float(-number)),
        (_, Some(number)) => {
            number.checked_neg().map_or_else(|| overflow("-"), |number| Ok(Value::Int(number)))
        }
        _ => failed(format!("bad operand type for unary -: {}", value.type_name())),
    }
}

fn mismatch<T>(sign: &str, left: &Value, right: &Value) -> Outcome<T> {
    if let Value::Undefined(name) = left {
        return failed(&**name);
    }
    if let Value::Undefined(name) = right {
        return failed(&**name);
    }
    failed(format!("unsupported operand types for {sign}: {} and {}", left.type_name(), right.type_name()))
}

fn add(left: &Value, right: &Value, budget: &Budget) -> Outcome<Value> {
    match (left, right) {
        (Value::Text(a), Value::Text(b)) if a.is_markup() || b.is_markup() => {
            let mut out = Text::default();
            for side in [a, b] {
                out.append(&if side.is_markup() {
                    Text::clone(side)
                } else {
                    strings::escaped(side, budget)?
                });
            }
            Ok(Value::made(out.into_markup()))
        }
        (Value::Text(_), Value::Text(_)) => concat(left, right, budget),
        (Value::Seq(a), Value::Seq(b)) if a.kind == b.kind => {
            if !matches!(a.kind, SeqKind::List | SeqKind::Tuple) {
                return mismatch("+", left, right);
            }
            Value::seq(a.items.iter().chain(&b.items).cloned().collect(), a.kind, budget)
        }
        _ => match (left.as_int(), right.as_int(), left.as_float(), right.as_float()) {
            (Some(a), Some(b), ..) => {
                a.checked_add(b).map_or_else(|| overflow("+"), |sum| Ok(Value::Int(sum)))
            }
            (_, _, Some(a), Some(b)) => Ok(Value::Float(a + b)),
            _ => mismatch("+", left, right),
        },
    }
}

fn overflow<T>(sign: &str) -> Outcome<T> {
    failed(format!("the result of {sign} has too many digits"))
}

fn multiply(left: &Value, right: &Value, budget: &Budget) -> Outcome<Value> {
    let times = |number: &Value| number.as_int().map(|n| usize::try_from(n.max(0)).unwrap_or(usize::MAX));
    match (left, right) {
        (Value::Text(text), number) | (number, Value::Text(text)) if times(number).is_some() => {
            let times = times(number).unwrap_or_default();
            budget.charge(text.len().saturating_mul(times))?;
            let times = if text.len() == 0 { 0 } else { times };
            let mut out = Text::default();
            (0..times).for_each(|_| out.append(text));
            Ok(Value::made(out))
        }
        (Value::Seq(seq), number) | (number, Value::Seq(seq))
            if times(number).is_some() && matches!(seq.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            let times = times(number).unwrap_or_default();
            budget.charge(seq.items.len().saturating_mul(times))?;
            let times = if seq.items.is_empty() { 0 } else { times };
            Value::seq((0..times).flat_map(|_| seq.items.iter().cloned()).collect(), seq.kind, budget)
        }
        _ => match (left.as_int(), right.as_int(), left.as_float(), right.as_float()) {
            (Some(a), Some(b), ..) => {
                a.checked_mul(b).map_or_else(|| overflow("*"), |product| Ok(Value::Int(product)))
            }
            (_, _, Some(a), Some(b)) => Ok(Value::Float(a * b)),
            _ => mismatch("*", left, right),
        },
    }
}

fn arithmetic(op: BinOpKind, left: &Value, right: &Value) -> Outcome<Value> {
    let sign = match op {
        BinOpKind::Sub => "-",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        _ => "**",
    };
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else { return mismatch(sign, left, right) };
    if matches!(op, BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem) && b == 0.0 {
        return failed("division by zero");
    }
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        let whole = match op {
            BinOpKind::Sub => a.checked_sub(b),
            BinOpKind::FloorDiv => floor_division(a, b),
            BinOpKind::Rem => floor_division(a, b).and_then(|q| a.checked_sub(q.checked_mul(b)?)),
            BinOpKind::Pow if b >= 0 => {
                u32::try_from(b).ok().filter(|b| *b <= EXPONENT_MAX).and_then(|b| a.checked_pow(b))
            }
            _ => return Ok(Value::Float(fraction(op, a as f64, b as f64))),
        };
        return whole.map_or_else(|| overflow(sign), |number| Ok(Value::Int(number)));
    }
    Ok(Value::Float(fraction(op, a, b)))
}

fn floor_division(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn fraction(op: BinOpKind, a: f64, b: f64) -> f64 {
    match op {
        BinOpKind::Sub => a - b,
        BinOpKind::Div => a / b,
        BinOpKind::FloorDiv => (a / b).floor(),
        BinOpKind::Rem => a - b * (a / b).floor(),
        _ => a.powf(b),
    }
}

fn concat(left: &Value, right: &Value, budget: &Budget) -> Outcome<Value> {
    let mut out = Text::default();
    write::write(left, &mut out, budget)?;
    write::write(right, &mut out, budget)?;
    Ok(Value::made(out))
}

/// Python's `item in whole`.
///
/// # Errors
/// If the values do not go with `in`, or the budget is used up.
pub(super) fn contains(whole: &Value, item: &Value, budget: &Budget) -> Outcome<bool> {
    match (whole, item) {
        (Value::Undefined(_), _) => Ok(false),
        (Value::Text(whole), Value::Text(item)) => {
            budget.charge(whole.len())?;
            Ok(whole.as_str().contains(item.as_str()))
        }
        (Value::Text(_), other) => {
            failed(format!("'in <string>' requires string as left operand, not {}", other.type_name()))
        }
        (Value::Map(map), key) => Ok(map.get(key, budget)?.is_some()),
        (Value::Seq(seq), item) => {
            for one in &seq.items {
                if one.equals(item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (other, _) => failed(format!("argument of type {} is not iterable", other.type_name())),
    }
}

/// Returns `value.name`: an attribute or method, or else the item of that name.
///
/// # Errors
/// If the value is undefined.
pub(super) fn attribute(value: &Value, name: &str, budget: &Budget) -> Outcome<Value> {
    if let Some(found) = own_attribute(value, name)? {
        return Ok(found);
    }
    let found = value.field(name).cloned();
    budget.charge(name.len())?;
    Ok(found.unwrap_or_else(|| missing(value, name)))
}

/// Returns `value[key]`: an item, or else the attribute or method of that name.
///
/// # Errors
/// If the value is undefined, or the key cannot be one.
pub(super) fn item(value: &Value, key: &Value, budget: &Budget) -> Outcome<Value> {
    let found = match (value, key) {
        (Value::Undefined(name), _) => return failed(&**name),
        (Value::Map(map), key) => match map.get(key, budget) {
            // As in Jinja2, a value that cannot be a key is not there.
            Err(Stop::Failed(_)) => None,
            found => found?,
        },
        (Value::Seq(seq), key) if seq.kind != SeqKind::Generator => {
            key.as_int().and_then(|at| position(at, seq.items.len())).map(|at| seq.items[at].clone())
        }
        (Value::Text(text), key) => match key.as_int() {
            Some(at) => {
                budget.charge(text.len())?;
                let bounds = boundaries(text.as_str());
                position(at, bounds.len() - 1).map(|at| Value::made(text.slice(bounds[at]..bounds[at + 1])))
            }
            None => None,
        },
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) => Ok(own_attribute(value, name)?.unwrap_or_else(|| missing(value, name))),
        (None, None) => Ok(missing(value, write::string(key, budget)?.as_str())),
    }
}

fn missing(value: &Value, name: &str) -> Value {
    Value::Undefined(format!("'{}' has no attribute '{name}'", value.type_name()).into())
}

/// Returns an attribute that is not an item.
fn own_attribute(value: &Value, name: &str) -> Outcome<Option<Value>> {
    Ok(match value {
        Value::Undefined(message) => return failed(&**message),
        Value::Namespace(namespace) => {
            let fields = namespace.fields.borrow();
            fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone())
        }
        Value::Loop(of) => loop_attribute(of, name),
        Value::Cycler(of) if name == "current" => Some(of.items[of.at.get()].clone()),
        _ => None,
    }
    .or_else(|| methods::find(value, name).map(|name| Value::Method(Rc::new((value.clone(), name))))))
}

fn loop_attribute(of: &super::value::Loop, name: &str) -> Option<Value> {
    let count = of.items.items.len();
    let number = |number: usize| Some(Value::Int(number as i128));
    let beside = |at: Option<usize>| {
        let item = at.and_then(|at| of.items.items.get(at)).cloned();
        Some(item.unwrap_or_else(|| Value::Undefined(format!("there is no {name}").into())))
    };
    match name {
        "index" => number(of.index + 1),
        "index0" => number(of.index),
        "revindex" => number(count - of.index),
        "revindex0" => number(count - of.index - 1),
        "first" => Some(Value::Bool(of.index == 0)),
        "last" => Some(Value::Bool(of.index + 1 == count)),
        "length" => number(count),
        "depth" => number(of.depth + 1),
        "depth0" => number(of.depth),
        "previtem" => beside(of.index.checked_sub(1)),
        "nextitem" => beside(Some(of.index + 1)),
        _ => None,
    }
}

/// Returns the position of an index, which may count from the end.
fn position(at: i128, len: usize) -> Option<usize> {
    let at = if at < 0 { at + len as i128 } else { at };
    usize::try_from(at).ok().filter(|at| *at < len)
}

/// Returns where each character of a text begins, and its end.
fn boundaries(text: &str) -> Vec<usize> {
    text.char_indices().map(|(at, _)| at).chain([text.len()]).collect()
}

/// Python's slices.
///
/// # Errors
/// If the value has none, a bound is no integer, or the step is zero.
pub(super) fn slice(value: &Value, bounds: [Option<Value>; 3], budget: &Budget) -> Outcome<Value> {
    let [start, stop, step] = bounds.map(|bound| match bound {
        None | Some(Value::None) => Ok(None),
        Some(bound) => match bound.as_int() {
            Some(number) => Ok(Some(number)),
            None => failed(format!("slice indices must be integers, not {}", bound.type_name())),
        },
    });
    let step = step?.unwrap_or(1);
    if step == 0 {
        return failed("slice step cannot be zero");
    }
    match value {
        Value::Text(text) => {
            budget.charge(text.len().saturating_mul(2))?;
            let ends = boundaries(text.as_str());
            let len = ends.len() - 1;
            let first = first(start?, step, len);
            let last = last(stop?, step, len);
            if step == 1 {
                let range = ends[first as usize]..ends[last.max(first) as usize];
                return Ok(Value::made(text.slice(range)));
            }
            let mut out = Text::default();
            for at in steps(first, last, step) {
                out.append_slice(text, ends[at]..ends[at + 1]);
            }
            Ok(Value::made(out))
        }
        Value::Seq(seq) if seq.kind != SeqKind::Generator => {
            let len = seq.items.len();
            let first = first(start?, step, len);
            let last = last(stop?, step, len);
            let items = steps(first, last, step).map(|at| seq.items[at].clone()).collect();
            Value::seq(items, seq.kind, budget)
        }
        Value::Undefined(name) => failed(&**name),
        other => failed(format!("{} cannot be sliced", other.type_name())),
    }
}

/// The first position of a slice.
fn first(start: Option<i128>, step: i128, len: usize) -> i128 {
    let len = len as i128;
    match start {
        None if step > 0 => 0,
        None => len - 1,
        Some(start) => clamp(start, step, len),
    }
}

/// The position behind the last one of a slice.
fn last(stop: Option<i128>, step: i128, len: usize) -> i128 {
    let len = len as i128;
    match stop {
        None if step > 0 => len,
        None => -1,
        Some(stop) => clamp(stop, step, len),
    }
}

fn clamp(at: i128, step: i128, len: i128) -> i128 {
    let at = if at < 0 { at.saturating_add(len) } else { at };
    if step > 0 { at.clamp(0, len) } else { at.clamp(-1, len - 1) }
}

fn steps(first: i128, last: i128, step: i128) -> impl Iterator<Item = usize> {
    let next = move |at: &i128| at.checked_add(step);
    std::iter::successors(Some(first), next)
        .take_while(move |at| if step > 0 { *at < last } else { *at > last })
        .map(|at| at as usize)
}
