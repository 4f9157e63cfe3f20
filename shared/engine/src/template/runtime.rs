//! Runs a rewritten template: the environment it sees, and the budget that counts what it makes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, escape_formatter};

use super::{ChatTemplate, Message, TemplateError, ToolChat, counted, methods};

/// Steps allowed for a conversation without messages.
const FUEL_BASE: u64 = 100_000;
/// Further steps for each message; real templates need about a hundred.
const FUEL_PER_MESSAGE: u64 = 2_000;
/// The most steps, for any number of messages.
const FUEL_MAX: u64 = 1_000_000;
/// The most nested macro calls and loops.
const RECURSION_MAX: usize = 100;
/// Budget of a conversation without text, in bytes.
const BUDGET_BASE: u64 = 64 << 20;
/// Further budget for each byte of the messages: templates may trim and split a text several times.
const BUDGET_PER_INPUT_BYTE: u64 = 1_024;
/// Cost of a filter, method or slice per byte of its input. The result, in the worst case a list of
/// one-letter strings, takes about as much at most.
const INPUT_COST: u64 = 64;
/// Cost of each byte of output, including output stored in a variable.
const OUTPUT_COST: u64 = 4;
/// The most nested containers: values are walked through and dropped recursively.
const DEPTH_MAX: u64 = 500;
/// Filters that templates do not need and whose results are not limited by their inputs.
const FILTERS_LEFT_OUT: &[&str] =
    &["batch", "slice", "indent", "pprint", "format", "urlencode", "chain", "zip", "groupby", "lines", "sum"];

/// Counts the bytes that a template makes, and fails when they exceed the limit.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicU64,
    max: u64,
    exceeded: AtomicBool,
}

impl Budget {
    fn new(max: u64) -> Budget {
        Budget { left: AtomicU64::new(max), max, exceeded: AtomicBool::new(false) }
    }

    /// Takes `bytes` of the budget.
    pub(super) fn charge(&self, bytes: u64) -> Result<(), Error> {
        let take = |left: u64| left.checked_sub(bytes);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.exceeded.store(true, Ordering::Relaxed);
                Err(Error::new(ErrorKind::InvalidOperation, "template budget exceeded"))
            }
        }
    }

    /// Charges the cost of working on a value.
    pub(super) fn charge_input(&self, value: &Value) -> Result<(), Error> {
        self.charge_times(value, INPUT_COST)
    }

    /// Charges the cost of walking through a value: to compare it, to look it up, or to store it in another
    /// one.
    pub(super) fn charge_read(&self, value: &Value) -> Result<(), Error> {
        self.charge_times(value, 1)
    }

    /// Charges the cost of walking through a value `times` times.
    pub(super) fn charge_times(&self, value: &Value, times: u64) -> Result<(), Error> {
        let most = self.left.load(Ordering::Relaxed);
        self.charge(weight(value, 0, most).saturating_mul(times))
    }
}

/// Returns about the bytes of a value when written, nested values included; stops counting above `most`.
///
/// Deeper values weigh more, since writing them indented takes more. Values deeper than [`DEPTH_MAX`] weigh
/// more than any budget. So do values that hold a namespace or a loop, which may become as deep later.
fn weight(value: &Value, depth: u64, most: u64) -> u64 {
    if depth > DEPTH_MAX || (depth > 0 && counted::changes(value)) {
        return u64::MAX;
    }
    let own = 8 + 4 * depth;
    if let Some(text) = value.as_str() {
        return own + text.len() as u64;
    }
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return own + 24;
    }
    let Ok(items) = value.try_iter() else { return own };
    let mut sum = own;
    for item in items {
        sum = sum.saturating_add(weight(&item, depth + 1, most));
        if is_map && let Ok(inner) = value.get_item(&item) {
            sum = sum.saturating_add(weight(&inner, depth + 1, most));
        }
        if sum > most {
            break;
        }
    }
    sum
}

/// Refuses a rewritten source that does not compile.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    let env = Environment::new();
    let compiled = env.template_from_str(source).map(drop);
    compiled.map_err(|err| TemplateError::Parse(Box::new(err)))
}

/// Renders a conversation.
pub(super) fn render(
    template: &ChatTemplate,
    messages: &[Message<'_>],
    add_generation_prompt: bool,
) -> Result<String, TemplateError> {
    let bytes = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
    let pair = |m: &Message<'_>| Value::from_pairs([("role", m.role), ("content", m.content)]);
    let size = InputSize { items: messages.len(), bytes };
    let values = messages.iter().map(pair).collect::<Value>();
    run(template, size, values, Value::from(()), add_generation_prompt)
}

/// Renders a conversation with tools.
pub(super) fn render_with_tools(
    template: &ChatTemplate,
    chat: ToolChat<'_>,
    add_generation_prompt: bool,
) -> Result<String, TemplateError> {
    let bytes = chat.messages.iter().chain(chat.tools).map(|value| value.to_string().len()).sum();
    let size = InputSize { items: chat.messages.len() + chat.tools.len(), bytes };
    let values = |list: &[serde_json::Value]| list.iter().map(from_json).collect::<Value>();
    let tools = if chat.tools.is_empty() { Value::from(()) } else { values(chat.tools) };
    run(template, size, values(chat.messages), tools, add_generation_prompt)
}

/// Converts a JSON value, with its fields in their order.
fn from_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;

    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(from_json).collect(),
        Json::Object(fields) => {
            let pairs = fields.iter().map(|(name, value)| (name.as_str(), from_json(value)));
            Value::from_pairs(pairs.collect::<Vec<_>>())
        }
    }
}

/// The size of a template's input, for its limits.
#[derive(Debug, Clone, Copy)]
struct InputSize {
    /// Number of messages and tools.
    items: usize,
    bytes: usize,
}

fn run(
    template: &ChatTemplate,
    size: InputSize,
    messages: Value,
    tools: Value,
    add_generation_prompt: bool,
) -> Result<String, TemplateError> {
    let budget = BUDGET_BASE.saturating_add((size.bytes as u64).saturating_mul(BUDGET_PER_INPUT_BYTE));
    let budget = Arc::new(Budget::new(budget));
    let raised = Arc::new(Mutex::new(None));
    let fuel = (size.items as u64).saturating_mul(FUEL_PER_MESSAGE).saturating_add(FUEL_BASE).min(FUEL_MAX);
    let env = environment(&budget, &raised, fuel);
    let context = Value::from_pairs([
        ("messages", messages),
        ("add_generation_prompt", Value::from(add_generation_prompt)),
        ("bos_token", Value::from(template.bos.as_str())),
        ("eos_token", Value::from(template.eos.as_str())),
        ("tools", tools),
        ("documents", Value::from(())),
        // Some templates close the model's thoughts themselves unless this is set.
        ("enable_thinking", Value::from(true)),
    ]);
    let rendered = env.template_from_str(&template.source).and_then(|t| t.render(context));
    rendered.map_err(|err| {
        if let Some(message) = raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return TemplateError::Raised { message };
        }
        if budget.exceeded.load(Ordering::Relaxed) {
            return TemplateError::TooLarge { max: budget.max };
        }
        if is_out_of_fuel(&err) {
            TemplateError::OutOfFuel { max: fuel }
        } else {
            TemplateError::Render(Box::new(err))
        }
    })
}

fn is_out_of_fuel(err: &Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(err);
    while let Some(err) = next {
        if err.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return true;
        }
        next = err.source();
    }
    false
}

type Raised = Arc<Mutex<Option<String>>>;

fn environment<'s>(budget: &Arc<Budget>, raised: &Raised, fuel: u64) -> Environment<'s> {
    let mut env = Environment::new();
    env.set_fuel(Some(fuel));
    env.set_recursion_limit(RECURSION_MAX);
    env.remove_global("debug");
    FILTERS_LEFT_OUT.iter().for_each(|name| env.remove_filter(name));
    let counts = budget.clone();
    env.set_formatter(move |out, state, value| {
        let most = counts.left.load(Ordering::Relaxed);
        counts.charge(weight(value, 0, most).saturating_mul(OUTPUT_COST))?;
        escape_formatter(out, state, value)
    });
    let counts = budget.clone();
    env.set_unknown_method_callback(move |_, value, name, args| methods::call(&counts, value, name, args));
    add_operators(&mut env, budget);
    counted::add(&mut env, budget);
    let message = raised.clone();
    env.add_function("raise_exception", move |text: Value| -> Result<Value, Error> {
        let text: String = text.to_string().chars().take(500).collect();
        *message.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        Err(Error::new(ErrorKind::InvalidOperation, "raised by the template"))
    });
    env.add_function("strftime_now", |format: &str| fixed_day(format));
    env
}

/// Adds the filters that a rewritten template uses, with counted forms of those that make values grow.
fn add_operators(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let counts = budget.clone();
    env.add_filter("counted_add", move |left: Value, right: Value| add(&counts, &left, &right));
    let counts = budget.clone();
    env.add_filter("counted_mul", move |left: Value, right: Value| multiply(&counts, &left, &right));
    let counts = budget.clone();
    env.add_filter("counted_concat", move |left: Value, right: Value| concat(&counts, &left, &right));
    let counts = budget.clone();
    env.add_filter("join", move |list: Value, between: Option<String>| {
        methods::join(&counts, &list, between.as_deref().unwrap_or_default())
    });
    env.add_filter("tojson", |value: Value, options: Kwargs| {
        let indent: Option<usize> = options.get("indent")?;
        options.assert_all_used()?;
        methods::to_json(&value, indent)
    });
    let counts = budget.clone();
    env.add_filter("replace", move |text: Value, from: String, to: String| {
        methods::replace(&counts, &text.to_string(), &from, &to, None)
    });
}

fn mismatch(what: &str, left: &Value, right: &Value) -> Error {
    let text = format!("cannot {what} {} and {}", left.kind(), right.kind());
    Error::new(ErrorKind::InvalidOperation, text)
}

/// Returns two integers, or `None` if one is not an integer.
fn integers(left: &Value, right: &Value) -> Option<(i128, i128)> {
    let integer = |v: &Value| if v.is_integer() { i128::try_from(v.clone()).ok() } else { None };
    Some((integer(left)?, integer(right)?))
}

/// Returns two numbers, or `None` if one is not a number.
fn floats(left: &Value, right: &Value) -> Option<(f64, f64)> {
    let float = |v: &Value| if v.is_number() { f64::try_from(v.clone()).ok() } else { None };
    Some((float(left)?, float(right)?))
}

fn add(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some((a, b)) = integers(left, right) {
        return a.checked_add(b).map(Value::from).ok_or_else(|| mismatch("add", left, right));
    }
    if let Some((a, b)) = floats(left, right) {
        return Ok(Value::from(a + b));
    }
    if left.as_str().is_some() && right.as_str().is_some() {
        return concat(budget, left, right);
    }
    let is_list = |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable);
    if is_list(left) && is_list(right) {
        budget.charge_input(left)?;
        budget.charge_input(right)?;
        return Ok(left.try_iter()?.chain(right.try_iter()?).collect());
    }
    Err(mismatch("add", left, right))
}

fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some((a, b)) = integers(left, right) {
        return a.checked_mul(b).map(Value::from).ok_or_else(|| mismatch("multiply", left, right));
    }
    if let Some((a, b)) = floats(left, right) {
        return Ok(Value::from(a * b));
    }
    match (left.as_str(), right.as_usize()) {
        (Some(text), Some(n)) => {
            budget.charge((text.len() as u64).saturating_mul(n as u64).saturating_mul(INPUT_COST))?;
            Ok(Value::from(text.repeat(n)))
        }
        _ => Err(mismatch("multiply", left, right)),
    }
}

fn concat(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    budget.charge_input(left)?;
    budget.charge_input(right)?;
    Ok(Value::from(format!("{left}{right}")))
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
            Some('H' | 'I') => "12",
            Some('M' | 'S') => "00",
            Some('p') => "PM",
            Some('F') => "2024-07-26",
            Some('T') => "12:00:00",
            Some('%') => "%",
            _ => "",
        });
    }
    out
}
