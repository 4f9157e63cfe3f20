//! Server-sent events whose name is their type.

use serde_json::Value;

/// Appends an event; its name is the value's `type`.
pub(crate) fn put_named(value: &Value, out: &mut String) {
    let name = value["type"].as_str().unwrap_or_default();
    out.push_str("event: ");
    out.push_str(name);
    out.push_str("\ndata: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}
