//! Short ways to read what cargo writes in JSON. A value that is not there, or of another type, is empty.

use serde_json::Value;

/// Reads texts and lists.
pub(crate) trait Json {
    /// The string; empty if this is none.
    fn text(&self) -> &str;
    /// The elements; none if this is no array.
    fn list(&self) -> &[Value];
    /// The strings among the elements.
    fn texts(&self) -> Vec<String>;
}

impl Json for Value {
    fn text(&self) -> &str {
        self.as_str().unwrap_or_default()
    }

    fn list(&self) -> &[Value] {
        self.as_array().map_or(&[], Vec::as_slice)
    }

    fn texts(&self) -> Vec<String> {
        self.list().iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }
}
