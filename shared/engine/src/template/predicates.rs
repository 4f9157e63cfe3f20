//! The tests of the language: what may follow `is`.

use minijinja::machinery::ast::CompareOpKind;

use super::args::Args;
use super::budget::{Budget, Outcome, failed};
use super::value::{SeqKind, Value};
use super::{filters, ops, write};

/// All tests.
const TESTS: &[&str] = &[
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Whether there is a test of this name.
pub(super) fn is_known(name: &str) -> bool {
    TESTS.contains(&name)
}

/// Applies a test.
///
/// # Errors
/// If there is no such test, the value does not go with it, or the budget is used up.
pub(super) fn apply(name: &str, value: &Value, args: Args, budget: &Budget) -> Outcome<bool> {
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(CompareOpKind::Eq),
        "ne" | "!=" => Some(CompareOpKind::Ne),
        "lt" | "lessthan" | "<" => Some(CompareOpKind::Lt),
        "le" | "<=" => Some(CompareOpKind::Lte),
        "gt" | "greaterthan" | ">" => Some(CompareOpKind::Gt),
        "ge" | ">=" => Some(CompareOpKind::Gte),
        "in" => Some(CompareOpKind::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        return ops::compare(comparison, value, args.bind(name, &["other"])?.need(0)?, budget);
    }
    if matches!(name, "divisibleby" | "sameas") {
        let args = args.bind(name, &["other"])?;
        let other = args.need(0)?;
        if name == "sameas" {
            return is_same(value, other, budget);
        }
        return match (value.as_int(), other.as_int()) {
            (Some(_), Some(0)) => failed("division by zero"),
            (Some(number), Some(by)) => Ok(number.checked_rem(by).is_none_or(|rest| rest == 0)),
            _ => failed("divisibleby tests integers"),
        };
    }
    args.bind(name, &[])?;
    simple(name, value, budget)
}

fn is_same(value: &Value, other: &Value, budget: &Budget) -> Outcome<bool> {
    match (value, other) {
        (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
        (Value::Bool(_), _) | (_, Value::Bool(_)) => Ok(false),
        (Value::Seq(a), Value::Seq(b)) => Ok(std::rc::Rc::ptr_eq(a, b)),
        (Value::Map(a), Value::Map(b)) => Ok(std::rc::Rc::ptr_eq(a, b)),
        _ => value.equals(other, budget),
    }
}

fn simple(name: &str, value: &Value, budget: &Budget) -> Outcome<bool> {
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => match value {
            Value::Seq(seq) => !matches!(seq.kind, SeqKind::Generator | SeqKind::View(_)),
            other => matches!(other, Value::Text(_) | Value::Map(_) | Value::Undefined(_)),
        },
        "iterable" => {
            matches!(
                value,
                Value::Seq(_) | Value::Text(_) | Value::Map(_) | Value::Undefined(_) | Value::Loop(_)
            )
        }
        "callable" => matches!(
            value,
            Value::Macro(_) | Value::Function(_) | Value::Method(_) | Value::Undefined(_) | Value::Joiner(_)
        ),
        "escaped" => value.as_text().is_some_and(|text| text.is_markup()),
        "odd" | "even" => match value.as_float() {
            Some(number) => number.rem_euclid(2.0) == f64::from(u8::from(name == "odd")),
            None => return failed(format!("{name} tests numbers")),
        },
        "lower" | "upper" => {
            let text = write::string(value, budget)?;
            let is_cased = |c: char| if name == "lower" { c.is_lowercase() } else { c.is_uppercase() };
            let is_other = |c: char| if name == "lower" { c.is_uppercase() } else { c.is_lowercase() };
            text.as_str().chars().any(is_cased) && !text.as_str().chars().any(is_other)
        }
        "filter" => value.as_str().is_some_and(filters::is_known),
        "test" => value.as_str().is_some_and(is_known),
        other => return failed(format!("No test named '{other}'.")),
    })
}
