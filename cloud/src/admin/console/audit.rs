//! The page of the audit log, with the result of a check. The page checks rows that are new or shown;
//! `/audit/verify` checks all rows again.

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde_json::Value;

use super::{Frame, PageQuery, PageResult, page, problem_page, setting_text, time, utc, value_text};
use crate::admin::Admin;
use crate::admin::operations::AUDIT_PAGE;
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

pub(super) async fn show(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    let Ok(before) = asked.before.as_deref().map(str::parse::<u64>).transpose() else {
        let problem = Problem::malformed(Some("before".to_owned()), "`before` must be the number of a row");
        return Ok(problem_page(Some(&session), &problem));
    };
    let (page_of, state) = admin.operations.audit_and_state(before, AUDIT_PAGE).await?;
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

/// The most characters of a row's detail that a page shows; the API returns all.
const DETAIL_CHARS_MAX: usize = 400;

/// Formats a JSON object as lines `name: value`. Any other text stays as it is.
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

/// Returns fields in the order of their names, whatever order the map has.
fn by_name(fields: &serde_json::Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by_key(|(name, _)| *name);
    fields.into_iter()
}

/// Adds the lines of one value. Leaves out empty values, and those that the row shows elsewhere (who and
/// when).
fn describe(name: &str, value: &Value, lines: &mut Vec<String>) {
    let last = name.rsplit(' ').next().unwrap_or(name);
    let said_elsewhere =
        matches!(last, "id" | "revision" | "created_ms" | "created_by" | "updated_ms" | "updated_by");
    match value {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        _ if said_elsewhere => {}
        Value::Object(fields) if is_change(name, fields) => {
            let field = name.strip_prefix("changes ").unwrap_or(name);
            let text = |side: &str| fields.get(side).map(|value| text_of(field, value));
            lines.push(match (text("from"), text("to")) {
                (Some(from), Some(to)) => format!("{field}: {from} → {to}"),
                (None, Some(to)) => format!("{field}: {to}"),
                (from, None) => format!("{field}: {} → removed", from.unwrap_or_default()),
            });
        }
        Value::Object(fields) => {
            by_name(fields).for_each(|(field, value)| describe(&format!("{name} {field}"), value, lines));
        }
        value if is_moment(last) => {
            let name = name.strip_suffix("_ms").unwrap_or(name);
            lines.push(format!("{name}: {}", text_of(last, value)));
        }
        value => lines.push(format!("{name}: {}", text_of(last, value))),
    }
}

/// Returns whether an object is a change: it has a value before, a value after, or both.
fn is_change(name: &str, fields: &serde_json::Map<String, Value>) -> bool {
    let is_value = |side: &str| fields.get(side).is_some_and(|value| !value.is_object());
    is_value("to") || (name.starts_with("changes ") && is_value("from"))
}

/// Returns whether a field is a point in time; other fields in milliseconds are durations.
fn is_moment(field: &str) -> bool {
    matches!(field, "expires_ms" | "old_expires_ms" | "revoked_ms" | "last_used_ms")
}

/// Returns lines for values that a change removes, for example a limit.
fn taken_away(fields: &serde_json::Map<String, Value>) -> Vec<String> {
    let (Some(Value::Object(from)), Some(Value::Object(to))) = (fields.get("from"), fields.get("to")) else {
        return Vec::new();
    };
    let gone = by_name(to)
        .filter(|(name, value)| value.is_null() && from.get(*name).is_some_and(|was| !was.is_null()));
    gone.map(|(name, value)| format!("to {name}: {}", text_of(name, value))).collect()
}

/// Formats a value of a field for people.
fn text_of(field: &str, value: &Value) -> String {
    match (field, value) {
        ("requests_per_minute" | "concurrency_max" | "tokens_per_day", Value::Null) => "no limit".to_owned(),
        ("cost" | "prefill_ms_per_token" | "prefill_ms_per_token2" | "decode_ms", Value::Null) => {
            "as devices report".to_owned()
        }
        (field, Value::Null) if is_moment(field) => "never".to_owned(),
        (_, Value::Array(values)) => {
            let texts: Vec<String> = values.iter().map(value_text).collect();
            texts.join(", ")
        }
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
        let detail = r#"{"changes":{"weight":{"from":10,"to":30},"tokens_per_day":{"from":9,"to":null}}}"#;
        assert_eq!(readable(detail), "tokens_per_day: 9 → no limit\nweight: 10 → 30");
        let detail = r#"{"changes":{"decode_ms":{"from":40.5},"label":{"from":"Phone"}}}"#;
        assert_eq!(readable(detail), "decode_ms: 40.5 → removed\nlabel: Phone → removed");
        let detail = r#"{"changes":{"expires_ms":{"to":null},"scopes":{"to":["assist","chat"]}}}"#;
        assert_eq!(readable(detail), "expires_ms: never\nscopes: assist, chat");
        assert_eq!(readable("not JSON"), "not JSON");
        assert_eq!(readable(&format!("\"{}\"", "ü".repeat(500))).chars().count(), DETAIL_CHARS_MAX + 1);
    }
}
