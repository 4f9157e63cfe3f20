//! The arguments of a call, bound to the names of the parameters as Python binds them.

use std::rc::Rc;

use super::budget::{Outcome, failed};
use super::text::Text;
use super::value::Value;

/// The arguments of a call.
#[derive(Debug, Default, Clone)]
pub(super) struct Args {
    pub(super) pos: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

/// Arguments in the order of the parameters.
#[derive(Debug)]
pub(super) struct Bound(Vec<Option<Value>>);

impl Args {
    /// Binds the arguments to parameters.
    ///
    /// # Errors
    /// If there are too many, or one has an unknown name or is given twice.
    pub(super) fn bind(self, of: &str, names: &[&str]) -> Outcome<Bound> {
        if self.pos.len() > names.len() {
            return failed(format!(
                "{of} takes at most {} arguments, {} were given",
                names.len(),
                self.pos.len()
            ));
        }
        let mut bound: Vec<Option<Value>> = self.pos.into_iter().map(Some).collect();
        bound.resize(names.len(), None);
        for (name, value) in self.named {
            match names.iter().position(|known| *known == name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                Some(_) => return failed(format!("{of} got several values for argument '{name}'")),
                None => return failed(format!("{of} got an unexpected keyword argument '{name}'")),
            }
        }
        Ok(Bound(bound))
    }
}

impl Bound {
    /// Returns an argument, if it was given.
    pub(super) fn get(&self, at: usize) -> Option<&Value> {
        self.0.get(at).and_then(Option::as_ref)
    }

    /// Returns an argument that has no default.
    ///
    /// # Errors
    /// If it is missing.
    pub(super) fn need(&self, at: usize) -> Outcome<&Value> {
        self.get(at).map_or_else(|| failed(format!("argument {} is missing", at + 1)), Ok)
    }

    /// Returns an argument that is a text.
    ///
    /// # Errors
    /// If it is missing or no text.
    pub(super) fn text(&self, at: usize) -> Outcome<&Rc<Text>> {
        let value = self.need(at)?;
        value.as_text().map_or_else(|| failed(format!("expected str, got {}", value.type_name())), Ok)
    }

    /// Returns an argument that is a text, or `None` if it is missing or none.
    ///
    /// # Errors
    /// If it is something else.
    pub(super) fn optional_text(&self, at: usize) -> Outcome<Option<&Rc<Text>>> {
        match self.get(at) {
            None | Some(Value::None) => Ok(None),
            Some(_) => self.text(at).map(Some),
        }
    }

    /// Returns an argument that is an integer, or `default` if it is missing or none.
    ///
    /// # Errors
    /// If it is something else.
    pub(super) fn int(&self, at: usize, default: i128) -> Outcome<i128> {
        match self.get(at) {
            None | Some(Value::None) => Ok(default),
            Some(value) => {
                value.as_int().map_or_else(|| failed(format!("expected int, got {}", value.type_name())), Ok)
            }
        }
    }

    /// Returns the truth of an argument, or `default` if it is missing.
    pub(super) fn truth(&self, at: usize, default: bool) -> bool {
        self.get(at).map_or(default, Value::is_true)
    }
}
