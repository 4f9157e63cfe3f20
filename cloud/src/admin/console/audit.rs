//! The audit log, with whether it is whole, as far as rows are new or shown; `/audit/verify` reads all of it again.

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde_json::Value;

use super::{Asked, Frame, Shown, page, time, value_text};
use crate::admin::Admin;
use crate::admin::office::AUDIT_PAGE;
use crate::admin::session::Session;
use crate::admin::view::{AuditRow, AuditState};

struct Row {
    seq: u64,
    when: String,
    actor: String,
    action: String,
    target: String,
    detail: String,
    hash: String,
    short: String,
    broken: bool,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditLogPage {
    frame: Frame,
    state: AuditState,
    rows: Vec<Row>,
    next_before: Option<u64>,
}

pub(super) async fn show(State(admin): State<Admin>, session: Session, Query(asked): Query<Asked>) -> Shown {
    let (page_of, state) = admin.office.audit_and_state(asked.before, AUDIT_PAGE).await?;
    let row = |row: AuditRow| Row {
        seq: row.seq,
        when: time(row.at_ms),
        actor: row.actor,
        action: row.action,
        target: row.target,
        detail: readable(&row.detail),
        short: row.hash.chars().take(12).collect(),
        hash: row.hash,
        broken: state.broken_at == Some(row.seq),
    };
    let rows = page_of.rows.into_iter().map(row).collect();
    let frame = Frame::of(&session, "/admin/audit", "Audit log");
    Ok(page(StatusCode::OK, &AuditLogPage { frame, state, rows, next_before: page_of.next_before }))
}

/// The longest detail of a row that a page shows; the API gives all of it.
const DETAIL_CHARS_MAX: usize = 400;

/// JSON as `name: value` lines; what is none stays as it is.
fn readable(detail: &str) -> String {
    let text = match serde_json::from_str(detail) {
        Ok(Value::Object(fields)) => {
            let mut lines = Vec::new();
            by_name(&fields).for_each(|(name, value)| describe(name, value, &mut lines));
            lines.join("\n")
        }
        _ => detail.to_owned(),
    };
    match text.char_indices().nth(DETAIL_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Fields in the order of their names, whatever order the map keeps.
fn by_name(fields: &serde_json::Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by_key(|(name, _)| *name);
    fields.into_iter()
}

/// Lines of one value. What says nothing, and what the row says besides (who and when), is left out.
fn describe(name: &str, value: &Value, lines: &mut Vec<String>) {
    let last = name.rsplit(' ').next().unwrap_or(name);
    let said_elsewhere =
        matches!(last, "id" | "revision" | "created_ms" | "created_by" | "updated_ms" | "updated_by");
    match value {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        _ if said_elsewhere => {}
        Value::Object(fields) if fields.contains_key("to") && !fields["to"].is_object() => {
            let field = name.strip_prefix("changes ").unwrap_or(name);
            let to = value_text(&fields["to"]);
            lines.push(match fields.get("from") {
                Some(from) => format!("{field}: {} → {to}", value_text(from)),
                None => format!("{field}: {to}"),
            });
        }
        Value::Object(fields) => {
            by_name(fields).for_each(|(field, value)| describe(&format!("{name} {field}"), value, lines));
        }
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(value_text).collect();
            lines.push(format!("{name}: {}", texts.join(", ")));
        }
        value => lines.push(format!("{name}: {}", value_text(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_readable() {
        let detail = r#"{"version":4,"note":"","changes":{"ratio":{"from":null,"to":0.5}}}"#;
        assert_eq!(readable(detail), "ratio: automatic → 0.5\nversion: 4");
        let detail =
            r#"{"from":null,"to":{"label":"Acme","weight":20,"tokens_per_day":null},"scopes":["a","b"]}"#;
        assert_eq!(readable(detail), "scopes: a, b\nto label: Acme\nto weight: 20");
        assert_eq!(readable("not JSON"), "not JSON");
        assert_eq!(readable(&format!("\"{}\"", "ü".repeat(500))).chars().count(), DETAIL_CHARS_MAX + 1);
    }
}
