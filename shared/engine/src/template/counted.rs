//! Counted forms of operations that walk through values in one step: comparisons, and storing values in
//! values.
//!
//! A value may hold another one twice, so a few steps can make a value with more nodes than could ever be
//! visited. So making a value, and walking through one, is charged for all that it holds. Namespaces and
//! loops change after they were counted, so no value may hold one.

use std::sync::Arc;

use minijinja::value::{Kwargs, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, functions, tests};

use super::runtime::Budget;

/// The number of times a filter may use an argument, once per item; the budget allows few more items.
const EACH_COST: u64 = 1_024;
/// The cost of looking up a key, in addition to the key's.
const LOOKUP_COST: u64 = 8;

type Comparison = fn(&Value, &Value) -> bool;

/// The tests that compare values, also as used by filters such as `select`.
const COMPARISONS: &[(&[&str], Comparison)] = &[
    (&["eq", "equalto", "=="], |left, right| left == right),
    (&["ne", "!="], |left, right| left != right),
    (&["lt", "lessthan", "<"], |left, right| left < right),
    (&["le", "<="], |left, right| left <= right),
    (&["gt", "greaterthan", ">"], |left, right| left > right),
    (&["ge", ">="], |left, right| left >= right),
    (&["in"], contains),
    (&["sameas"], tests::is_sameas),
    (&["startingwith"], |left, right| left.to_string().starts_with(&right.to_string())),
    (&["endingwith"], |left, right| left.to_string().ends_with(&right.to_string())),
];

/// Whether a value may later hold other values than now.
pub(super) fn changes(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        let name = object.type_name();
        name.ends_with("::Namespace") || name.ends_with("::Loop")
    })
}

/// Adds the counting filters, tests and functions to a template's environment.
pub(super) fn add(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    add_filters(env, budget);
    add_tests(env, budget);
    let counts = budget.clone();
    env.add_function("namespace", move |given: Option<ValueOrKwargs>| -> Result<Value, Error> {
        if let Some(given) = &given {
            counts.charge_read(given)?;
        }
        functions::namespace(given)
    });
    let counts = budget.clone();
    env.add_function("dict", move |given: Option<Value>, more: Kwargs| -> Result<Value, Error> {
        let made = functions::dict(given, more)?;
        counts.charge_read(&made)?;
        Ok(made)
    });
}

fn add_filters(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let counts = budget.clone();
    env.add_filter("counted_input", move |value: Value| -> Result<Value, Error> {
        counts.charge_input(&value)?;
        listed(value)
    });
    let counts = budget.clone();
    env.add_filter("counted_made", move |value: Value| -> Result<Value, Error> {
        counts.charge_read(&value)?;
        listed(value)
    });
    let counts = budget.clone();
    env.add_filter("counted_read", move |value: Value| counts.charge_read(&value).map(|()| value));
    let counts = budget.clone();
    env.add_filter("counted_each", move |value: Value| {
        counts.charge_times(&value, EACH_COST).map(|()| value)
    });
    let counts = budget.clone();
    env.add_filter("counted_in", move |value: Value| -> Result<Value, Error> {
        match value.kind() {
            ValueKind::Map => counts.charge(LOOKUP_COST)?,
            _ => counts.charge_read(&value)?,
        }
        Ok(value)
    });
    env.add_filter("counted_kept", |value: Value| -> Result<Value, Error> {
        if changes(&value) {
            let text = "a namespace cannot hold a namespace or a loop";
            return Err(Error::new(ErrorKind::InvalidOperation, text));
        }
        Ok(value)
    });
}

fn add_tests(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    for &(names, compare) in COMPARISONS {
        for &name in names {
            let counts = budget.clone();
            env.add_test(name, move |left: Value, right: Value| -> Result<bool, Error> {
                counts.charge_read(&left)?;
                counts.charge_read(&right)?;
                Ok(compare(&left, &right))
            });
        }
    }
    type Case = fn(&Value) -> bool;
    for (name, is_case) in [("lower", tests::is_lower as Case), ("upper", tests::is_upper)] {
        let counts = budget.clone();
        env.add_test(name, move |value: Value| -> Result<bool, Error> {
            counts.charge_read(&value)?;
            Ok(is_case(&value))
        });
    }
}

/// Returns a slice or another view of a value as a list of its own: views of views would nest without limit.
fn listed(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    Ok(value.try_iter()?.collect())
}

/// Returns the result of the operator `in`.
fn contains(value: &Value, whole: &Value) -> bool {
    if let Some(text) = whole.as_str() {
        return match value.as_str() {
            Some(part) => text.contains(part),
            None => text.contains(&value.to_string()),
        };
    }
    match whole.kind() {
        ValueKind::Map => whole.as_object().is_some_and(|map| map.get_value(value).is_some()),
        ValueKind::Seq | ValueKind::Iterable => {
            whole.try_iter().is_ok_and(|mut items| items.any(|item| item == *value))
        }
        _ => false,
    }
}
