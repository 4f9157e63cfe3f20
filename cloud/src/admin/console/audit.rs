//! The audit log, with whether it is whole, as far as rows are new or shown; `/audit/verify` reads all of it again.

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde_json::Value;

use super::{Asked, Frame, Shown, page, problem_page, setting_text, time, utc};
use crate::admin::Admin;
use crate::admin::office::AUDIT_PAGE;
use crate::admin::problem::Problem;
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
    let Ok(before) = asked.before.as_deref().map(str::parse::<u64>).transpose() else {
        let problem = Problem::malformed(Some("before".to_owned()), "`before` must be the number of a row");
        return Ok(problem_page(Some(&session), &problem));
    };
    let (page_of, state) = admin.office.audit_and_state(before, AUDIT_PAGE).await?;
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
            lines.extend(taken_away(&fields));
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
            let to = text_of(field, &fields["to"]);
            lines.push(match fields.get("from") {
                Some(from) => format!("{field}: {} → {to}", text_of(field, from)),
                None => format!("{field}: {to}"),
            });
        }
        Value::Object(fields) => {
            by_name(fields).for_each(|(field, value)| describe(&format!("{name} {field}"), value, lines));
        }
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(|value| text_of(last, value)).collect();
            lines.push(format!("{name}: {}", texts.join(", ")));
        }
        value if is_moment(last) => {
            let name = name.strip_suffix("_ms").unwrap_or(name);
            lines.push(format!("{name}: {}", text_of(last, value)));
        }
        value => lines.push(format!("{name}: {}", text_of(last, value))),
    }
}

/// Whether a field says when; other times in milliseconds say how long.
fn is_moment(field: &str) -> bool {
    matches!(field, "expires_ms" | "old_expires_ms" | "revoked_ms" | "last_used_ms")
}

/// Lines of what a change takes away: a limit, for example.
fn taken_away(fields: &serde_json::Map<String, Value>) -> Vec<String> {
    let (Some(Value::Object(from)), Some(Value::Object(to))) = (fields.get("from"), fields.get("to")) else {
        return Vec::new();
    };
    let gone = by_name(to)
        .filter(|(name, value)| value.is_null() && from.get(*name).is_some_and(|was| !was.is_null()));
    gone.map(|(name, value)| format!("to {name}: {}", text_of(name, value))).collect()
}

/// A value, for people.
fn text_of(field: &str, value: &Value) -> String {
    match (field, value) {
        ("requests_per_minute" | "concurrency_max" | "tokens_per_day", Value::Null) => "no limit".to_owned(),
        ("cost", Value::Null) => "as devices report".to_owned(),
        (field, Value::Number(ms)) if is_moment(field) => {
            ms.as_i64().and_then(utc).map_or_else(|| ms.to_string(), |text| format!("{text} UTC"))
        }
        _ => setting_text(field, value),
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
        let detail = r#"{"changes":{"adapter":{"from":null,"to":"mine"},"model":{"from":"m","to":null}}}"#;
        assert_eq!(readable(detail), "adapter: none → mine\nmodel: m → the service's default");
        let detail = r#"{"from":{"tokens_per_day":9,"concurrency_max":null},"to":{"tokens_per_day":null,"concurrency_max":null}}"#;
        assert_eq!(readable(detail), "from tokens_per_day: 9\nto tokens_per_day: no limit");
        let detail = r#"{"expires_ms":0,"revoked_ms":null,"tau_ms":80.0}"#;
        assert_eq!(readable(detail), "expires: 1970-01-01 00:00:00 UTC\ntau_ms: 80");
        assert_eq!(readable("not JSON"), "not JSON");
        assert_eq!(readable(&format!("\"{}\"", "ü".repeat(500))).chars().count(), DETAIL_CHARS_MAX + 1);
    }
}
