//! The values of a template: Python's, as far as templates meet them. All but namespaces never change.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::budget::{Budget, Outcome, Stop, failed};
use super::text::Text;

/// The most nested containers: values are walked through and dropped recursively.
const DEPTH_MAX: usize = 500;
/// Bytes that an item of a container takes, about.
const ITEM_BYTES: usize = 48;

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Nothing was found; with what an error says of it.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Rc<Text>),
    Seq(Rc<Seq>),
    Map(Rc<Map>),
    Namespace(Rc<Namespace>),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    /// Number of a macro.
    Macro(usize),
    /// Name of a function of the language.
    Function(&'static str),
    /// A method and its receiver.
    Method(Rc<(Value, &'static str)>),
}

/// The kinds of sequences that differ in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    Range,
    /// Keys, values or items of a mapping; with Python's name for them.
    View(&'static str),
    /// The result of `map`, `select` and the like: always true, and without a length.
    Generator,
}

/// A sequence.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) items: Vec<Value>,
    pub(super) kind: SeqKind,
    nested: Nested,
}

/// What a container holds: how deep, and whether a value that may change is in it.
#[derive(Debug, Clone, Copy, Default)]
struct Nested {
    depth: usize,
    changes: bool,
}

/// A mapping in the order of its insertions.
#[derive(Debug, Default)]
pub(super) struct Map {
    entries: Vec<(Value, Value)>,
    numbers: HashMap<Key, usize>,
    nested: Nested,
}

/// A key as Python hashes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    None,
    Int(i128),
    Float(u64),
    Text(String),
    Tuple(Vec<Key>),
}

/// What `namespace()` returns.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    pub(super) fields: RefCell<Vec<(String, Value)>>,
}

/// The variable `loop` of one iteration.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Rc<Seq>,
    pub(super) index: usize,
    /// Levels of recursion above this one.
    pub(super) depth: usize,
    /// Number of the loop's statement, if it is recursive.
    pub(super) recursive: Option<usize>,
    /// What `changed` was last called with in this loop.
    pub(super) last: Rc<RefCell<Option<Vec<Value>>>>,
}

/// What `cycler()` returns.
#[derive(Debug)]
pub(super) struct Cycler {
    pub(super) items: Vec<Value>,
    pub(super) at: Cell<usize>,
}

/// What `joiner()` returns.
#[derive(Debug)]
pub(super) struct Joiner {
    pub(super) between: Value,
    pub(super) is_used: Cell<bool>,
}

impl Nested {
    fn of<'v>(items: impl Iterator<Item = &'v Value>) -> Outcome<Nested> {
        let mut nested = Nested::default();
        for item in items {
            let inner = item.nested();
            nested.depth = nested.depth.max(inner.depth + 1);
            nested.changes |= inner.changes;
        }
        if nested.depth > DEPTH_MAX { Err(Stop::Bytes) } else { Ok(nested) }
    }
}

impl Value {
    /// Returns a text of the template.
    pub(super) fn text(text: impl Into<String>) -> Value {
        Value::Text(Rc::new(Text::plain(text)))
    }

    /// Returns a text that was charged before.
    pub(super) fn made(text: Text) -> Value {
        Value::Text(Rc::new(text))
    }

    /// Returns the value of a name that is not there.
    pub(super) fn undefined(name: &str) -> Value {
        Value::Undefined(format!("'{name}' is undefined").into())
    }

    /// Returns a sequence.
    ///
    /// # Errors
    /// If it nests too deep or the budget is used up.
    pub(super) fn seq(items: Vec<Value>, kind: SeqKind, budget: &Budget) -> Outcome<Value> {
        budget.charge(items.len() * ITEM_BYTES + ITEM_BYTES)?;
        let nested = Nested::of(items.iter())?;
        Ok(Value::Seq(Rc::new(Seq { items, kind, nested })))
    }

    /// Returns a list.
    ///
    /// # Errors
    /// As [`Value::seq`].
    pub(super) fn list(items: Vec<Value>, budget: &Budget) -> Outcome<Value> {
        Value::seq(items, SeqKind::List, budget)
    }

    /// Returns a mapping; later entries of a key replace earlier ones.
    ///
    /// # Errors
    /// If a key cannot be one, it nests too deep, or the budget is used up.
    pub(super) fn map(entries: Vec<(Value, Value)>, budget: &Budget) -> Outcome<Value> {
        budget.charge(entries.len() * 3 * ITEM_BYTES + ITEM_BYTES)?;
        let mut map = Map::default();
        for (key, value) in entries {
            let hashed = Key::of(&key, budget)?;
            match map.numbers.get(&hashed) {
                Some(&at) => map.entries[at].1 = value,
                None => {
                    map.numbers.insert(hashed, map.entries.len());
                    map.entries.push((key, value));
                }
            }
        }
        map.nested = Nested::of(map.entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Map(Rc::new(map)))
    }

    fn nested(&self) -> Nested {
        match self {
            Value::Seq(seq) => seq.nested,
            Value::Map(map) => map.nested,
            Value::Namespace(_) | Value::Loop(_) | Value::Cycler(_) => Nested { depth: 0, changes: true },
            Value::Method(bound) => bound.0.nested(),
            Value::Joiner(joiner) => joiner.between.nested(),
            _ => Nested::default(),
        }
    }

    /// Whether a namespace may hold this value: none that may hold the namespace itself.
    pub(super) fn changes(&self) -> bool {
        self.nested().changes
    }

    /// The name of the type, as Jinja2's errors say it.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "None",
            Value::Bool(_) => "bool object",
            Value::Int(_) => "int object",
            Value::Float(_) => "float object",
            Value::Text(_) => "str object",
            Value::Seq(seq) => match seq.kind {
                SeqKind::List => "list object",
                SeqKind::Tuple => "tuple object",
                SeqKind::Range => "range object",
                SeqKind::View(name) => name,
                SeqKind::Generator => "generator object",
            },
            Value::Map(_) => "dict object",
            Value::Namespace(_) => "namespace object",
            Value::Loop(_) => "loop",
            Value::Cycler(_) => "cycler",
            Value::Joiner(_) => "joiner",
            Value::Macro(_) => "macro",
            Value::Function(_) | Value::Method(_) => "function",
        }
    }

    /// The text, if it is one.
    pub(super) fn as_text(&self) -> Option<&Rc<Text>> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The characters of the text, if it is one.
    pub(super) fn as_str(&self) -> Option<&str> {
        self.as_text().map(|text| text.as_str())
    }

    /// The integer; true is 1.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Bool(truth) => Some(i128::from(*truth)),
            _ => None,
        }
    }

    /// The number.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            other => other.as_int().map(|number| number as f64),
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's truth.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(truth) => *truth,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Text(text) => text.len() > 0,
            Value::Seq(seq) => seq.kind == SeqKind::Generator || !seq.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Loop(_) | Value::Namespace(_) | Value::Cycler(_) | Value::Joiner(_) => true,
            Value::Macro(_) | Value::Function(_) | Value::Method(_) => true,
        }
    }

    /// Number of items or characters.
    ///
    /// # Errors
    /// If values of this type have none.
    pub(super) fn length(&self) -> Outcome<usize> {
        match self {
            Value::Undefined(_) => Ok(0),
            Value::Text(text) => Ok(text.as_str().chars().count()),
            Value::Seq(seq) if seq.kind != SeqKind::Generator => Ok(seq.items.len()),
            Value::Map(map) => Ok(map.entries.len()),
            Value::Loop(of) => Ok(of.items.items.len()),
            other => failed(format!("{} has no len()", other.type_name())),
        }
    }

    /// The items that a loop over the value visits.
    ///
    /// # Errors
    /// If it has none, or the budget is used up.
    pub(super) fn items(&self, budget: &Budget) -> Outcome<Rc<Seq>> {
        let list = |items| match Value::list(items, budget)? {
            Value::Seq(seq) => Ok(seq),
            _ => unreachable!("a list is a sequence"),
        };
        match self {
            Value::Seq(seq) => Ok(seq.clone()),
            Value::Undefined(_) => list(Vec::new()),
            Value::Map(map) => list(map.entries.iter().map(|(key, _)| key.clone()).collect()),
            Value::Text(text) => {
                budget.charge(text.len() * ITEM_BYTES)?;
                let mut items = Vec::new();
                text.each_char(|_, c, origin| {
                    let mut one = Text::default();
                    one.push(c, origin);
                    items.push(Value::made(one));
                });
                list(items)
            }
            other => failed(format!("{} is not iterable", other.type_name())),
        }
    }

    /// The value of a key of a mapping that is text.
    pub(super) fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Map(map) => map.numbers.get(&Key::Text(name.to_owned())).map(|&at| &map.entries[at].1),
            _ => None,
        }
    }

    /// Python's `==`.
    ///
    /// # Errors
    /// If the budget is used up.
    pub(super) fn equals(&self, other: &Value, budget: &Budget) -> Outcome<bool> {
        budget.step()?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => {
                budget.charge(a.len().min(b.len()))?;
                a.as_str() == b.as_str()
            }
            (Value::Seq(a), Value::Seq(b)) => {
                if a.kind != b.kind || a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(key, budget)? {
                        Some(other) if value.equals(&other, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            (Value::Macro(a), Value::Macro(b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            (a, b) => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => matches!((a.as_float(), b.as_float()), (Some(a), Some(b)) if a == b),
            },
        })
    }

    /// Python's order.
    ///
    /// # Errors
    /// If the values have none, or the budget is used up.
    pub(super) fn order(&self, other: &Value, budget: &Budget) -> Outcome<Option<std::cmp::Ordering>> {
        budget.step()?;
        match (self, other) {
            (Value::Text(a), Value::Text(b)) => {
                budget.charge(a.len().min(b.len()))?;
                return Ok(Some(a.as_str().cmp(b.as_str())));
            }
            (Value::Seq(a), Value::Seq(b)) if a.kind == b.kind => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return a.order(b, budget);
                    }
                }
                return Ok(Some(a.items.len().cmp(&b.items.len())));
            }
            _ => {}
        }
        match (self.as_int(), other.as_int(), self.as_float(), other.as_float()) {
            (Some(a), Some(b), ..) => Ok(Some(a.cmp(&b))),
            (_, _, Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => failed(format!("{} and {} have no order", self.type_name(), other.type_name())),
        }
    }
}

impl Map {
    /// The entries in their order.
    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    /// The value of a key.
    ///
    /// # Errors
    /// If the key cannot be one.
    pub(super) fn get(&self, key: &Value, budget: &Budget) -> Outcome<Option<Value>> {
        let key = Key::of(key, budget)?;
        Ok(self.numbers.get(&key).map(|&at| self.entries[at].1.clone()))
    }
}

impl Key {
    fn of(value: &Value, budget: &Budget) -> Outcome<Key> {
        Ok(match value {
            Value::None => Key::None,
            Value::Text(text) => {
                budget.charge(text.len())?;
                Key::Text(text.as_str().to_owned())
            }
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e18 => Key::Int(*number as i128),
            Value::Float(number) => Key::Float(number.to_bits()),
            Value::Seq(seq) if seq.kind == SeqKind::Tuple => {
                budget.charge((seq.items.len() + 1) * ITEM_BYTES)?;
                Key::Tuple(seq.items.iter().map(|item| Key::of(item, budget)).collect::<Outcome<_>>()?)
            }
            other => match other.as_int() {
                Some(number) => Key::Int(number),
                None => return failed(format!("unhashable type: {}", other.type_name())),
            },
        })
    }
}
