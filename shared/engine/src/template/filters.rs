//! The filters of the language, and `tojson` as Hugging Face writes it.

mod lists;
mod texts;

use super::args::{Args, Bound};
use super::budget::{Budget, Outcome, failed};
use super::format::percent;
use super::methods;
use super::value::{SeqKind, Value};
use super::write::{self, Json};

/// All filters.
const FILTERS: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
];
/// Filters of Jinja2 that this language lacks.
const MISSING: &[&str] = &["filesizeformat", "pprint", "random", "urlize", "wordwrap", "xmlattr"];

/// Whether there is a filter of this name.
pub(super) fn is_known(name: &str) -> bool {
    FILTERS.contains(&name)
}

/// Whether Jinja2 has this filter and this language does not.
pub(super) fn is_missing(name: &str) -> bool {
    MISSING.contains(&name)
}

/// Applies a filter.
///
/// # Errors
/// If there is no such filter, the value does not go with it, or the budget is used up.
pub(super) fn apply(name: &str, value: &Value, args: Args, budget: &Budget) -> Outcome<Value> {
    budget.charge(16)?;
    match name {
        "batch" | "dictsort" | "first" | "groupby" | "join" | "last" | "list" | "map" | "max" | "min"
        | "reject" | "rejectattr" | "reverse" | "select" | "selectattr" | "slice" | "sort" | "sum"
        | "unique" => lists::apply(name, value, args, budget),
        "abs" => {
            args.bind(name, &[])?;
            absolute(value)
        }
        "int" => integer(value, &args.bind(name, &["default", "base"])?, budget),
        "float" => float(value, &args.bind(name, &["default"])?),
        "round" => rounded(value, &args.bind(name, &["precision", "method"])?),
        "default" | "d" => {
            let args = args.bind(name, &["default_value", "boolean"])?;
            let is_missing = value.is_undefined() || (args.truth(1, false) && !value.is_true());
            Ok(if is_missing {
                args.get(0).cloned().unwrap_or_else(|| Value::text(""))
            } else {
                value.clone()
            })
        }
        "length" | "count" => {
            args.bind(name, &[])?;
            if let Value::Text(text) = value {
                budget.charge(text.len())?;
            }
            Ok(Value::Int(value.length()? as i128))
        }
        "items" => {
            args.bind(name, &[])?;
            match value {
                Value::Undefined(_) => Value::seq(Vec::new(), SeqKind::Generator, budget),
                Value::Map(map) => {
                    Value::seq(methods::pairs(map.entries(), budget)?, SeqKind::Generator, budget)
                }
                _ => failed("Can only get item pairs from a mapping."),
            }
        }
        "attr" => {
            let args = args.bind(name, &["name"])?;
            let name = args.text(0)?;
            match value {
                Value::Map(_) => Ok(methods::find(value, name.as_str()).map_or_else(
                    || Value::undefined(name.as_str()),
                    |method| Value::Method(std::rc::Rc::new((value.clone(), method))),
                )),
                other => super::ops::attribute(other, name.as_str(), budget),
            }
        }
        "format" => {
            let text = Value::made(write::string(value, budget)?);
            if args.named.is_empty() {
                return percent(&text, &Value::seq(args.pos, SeqKind::Tuple, budget)?, budget);
            }
            let named = args.named.into_iter().map(|(name, value)| (Value::text(name), value)).collect();
            percent(&text, &Value::map(named, budget)?, budget)
        }
        "tojson" => to_json(value, args, budget),
        _ => texts::apply(name, value, args, budget),
    }
}

fn to_json(value: &Value, args: Args, budget: &Budget) -> Outcome<Value> {
    let args = args.bind("tojson", &["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match args.get(1) {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) => Some(text.as_str().to_owned()),
        Some(_) => Some(" ".repeat(usize::try_from(args.int(1, 0)?.clamp(0, 1_000)).unwrap_or_default())),
    };
    let mut json = Json::new(indent)?;
    json.ensure_ascii = args.truth(0, false);
    json.sort_keys = args.truth(3, false);
    if let Some(given) = args.get(2).filter(|given| !matches!(given, Value::None)) {
        json.separators = match given.items(budget)?.items.as_slice() {
            [Value::Text(item), Value::Text(key)] => (item.as_str().to_owned(), key.as_str().to_owned()),
            _ => return failed("separators are two strings"),
        };
    }
    json.dumps(value, budget).map(Value::made)
}

fn absolute(value: &Value) -> Outcome<Value> {
    match (value, value.as_int()) {
        (Value::Float(number), _) => Ok(Value::Float(number.abs())),
        (_, Some(number)) => Ok(Value::Int(number.saturating_abs())),
        _ => failed(format!("bad operand type for abs(): {}", value.type_name())),
    }
}

fn integer(value: &Value, args: &Bound, budget: &Budget) -> Outcome<Value> {
    let base = u32::try_from(args.int(1, 10)?).ok().filter(|base| (2..=36).contains(base));
    let Some(base) = base else { return failed("int() base must be >= 2 and <= 36") };
    let parsed = match value {
        Value::Float(number) if number.is_finite() => Some(*number as i128),
        Value::Undefined(name) => return failed(&**name),
        Value::Text(text) => {
            budget.charge(text.len())?;
            let digits = text.as_str().trim().replace('_', "");
            let digits = match base {
                16 => digits.trim_start_matches("0x"),
                8 => digits.trim_start_matches("0o"),
                2 => digits.trim_start_matches("0b"),
                _ => &digits,
            };
            let whole = i128::from_str_radix(digits, base).ok();
            whole.or_else(|| decimal(digits).map(|number| number as i128))
        }
        other => other.as_int(),
    };
    Ok(parsed.map_or_else(|| args.get(0).cloned().unwrap_or(Value::Int(0)), Value::Int))
}

fn float(value: &Value, args: &Bound) -> Outcome<Value> {
    let parsed = match value {
        Value::Undefined(name) => return failed(&**name),
        Value::Text(text) => decimal(text.as_str().trim()),
        other => other.as_float(),
    };
    Ok(parsed.map_or_else(|| args.get(0).cloned().unwrap_or(Value::Float(0.0)), Value::Float))
}

fn rounded(value: &Value, args: &Bound) -> Outcome<Value> {
    let Some(number) = value.as_float() else {
        return failed(format!("{} cannot be rounded", value.type_name()));
    };
    let precision = args.int(0, 0)?.clamp(-300, 300) as i32;
    let method = args.optional_text(1)?.map_or("common", |method| method.as_str());
    let scale = 10f64.powi(precision);
    let rounded = match method {
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        // Rust and Python both round the exact decimal value, halves to even.
        "common" if precision >= 0 => {
            let places = precision as usize;
            format!("{number:.places$}").parse().unwrap_or(number)
        }
        "common" => (number * scale).round_ties_even() / scale,
        _ => return failed("method must be common, ceil or floor"),
    };
    Ok(match value.as_int() {
        Some(_) if method == "common" => Value::Int(rounded as i128),
        _ => Value::Float(rounded),
    })
}

/// Returns a decimal number as Python's `float` reads it.
fn decimal(text: &str) -> Option<f64> {
    text.parse().ok()
}
