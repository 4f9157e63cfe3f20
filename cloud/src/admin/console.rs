//! Pages of the console, rendered on the server.
//!
//! Never: needs a script; the script only fetches the same pages again. Always: if a form fails, the page
//! shows what was typed and what is wrong with it.

mod access;
mod audit;
mod experiments;
mod form;
mod front;
mod history;
mod models;
mod playground;
mod requests;
mod rollouts;
mod scene;
mod scenes;
mod users;

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{any, get, post};
use baton_protocol::SettingChange;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::{Number, Value};
use tracing::error;

use super::guard::Fields;
use super::problem::{Kind, Problem};
use super::session::Session;
use super::{Admin, assets};
use crate::access::Role;
use crate::scene::SceneSettings;
use crate::store::Expected;

pub(super) fn routes() -> Router<Admin> {
    Router::new()
        .route("/admin/assets/{hash}/{name}", get(assets::show))
        .route("/admin/login", get(front::login_page).post(front::log_in))
        .route("/admin/logout", post(front::log_out))
        .route("/admin", get(front::overview))
        .route("/admin/requests", get(requests::list).post(requests::cancel))
        .route("/admin/playground", get(playground::show).post(playground::ask))
        .route("/admin/history", get(history::show))
        .route("/admin/scenes", get(scenes::list))
        .route("/admin/new-scene", get(scenes::new_page).post(scenes::create))
        .route("/admin/scenes/{id}", get(scene::show))
        .route("/admin/scenes/{id}/preview", post(scene::preview))
        .route("/admin/scenes/{id}/draft", post(scene::save))
        .route("/admin/scenes/{id}/discard", post(scenes::discard))
        .route("/admin/scenes/{id}/review", get(scenes::review))
        .route("/admin/scenes/{id}/publish", post(scenes::publish))
        .route("/admin/scenes/{id}/versions/{version}", get(scenes::version))
        .route("/admin/scenes/{id}/rollback", post(scenes::roll_back))
        .route("/admin/experiments", get(experiments::list).post(experiments::save))
        .route("/admin/experiments/{id}", get(experiments::show))
        .route("/admin/experiments/{id}/start", post(experiments::start))
        .route("/admin/experiments/{id}/stop", post(experiments::stop))
        .route("/admin/experiments/{id}/promote", post(experiments::promote))
        .route("/admin/device-classes", get(access::classes).post(access::set_class))
        .route("/admin/rollouts", get(rollouts::list).post(rollouts::change))
        .route("/admin/tenants", get(access::tenants).post(access::set_tenant))
        .route("/admin/keys", get(access::keys).post(access::create_key))
        .route("/admin/keys/{id}/revoke", post(access::revoke_key))
        .route("/admin/keys/{id}/rotate", post(access::rotate_key))
        .route("/admin/models", get(models::list).post(models::order))
        .route("/admin/users", get(users::list).post(users::add))
        .route("/admin/users/{name}", post(users::change))
        .route("/admin/audit", get(audit::show))
        // The guard refuses these, since no rule allows them.
        .route("/admin/", any(StatusCode::NOT_FOUND))
        .route("/admin/{*rest}", any(StatusCode::NOT_FOUND))
}

/// The parts that every page has.
#[derive(Debug, Clone)]
struct Frame {
    title: String,
    class: &'static str,
    active: &'static str,
    user: Option<String>,
    role: &'static str,
    edits: bool,
    administers: bool,
    csrf: String,
    notice: Option<&'static str>,
    css: String,
    script: String,
    icon: String,
}

/// A link in the header.
struct NavLink {
    url: &'static str,
    text: &'static str,
    here: bool,
}

impl Frame {
    /// Makes the frame of a page without a session.
    fn bare(title: impl Into<String>) -> Frame {
        Frame {
            title: title.into(),
            class: "center",
            active: "",
            user: None,
            role: "",
            edits: false,
            administers: false,
            csrf: String::new(),
            notice: None,
            css: assets::url("console.css"),
            script: assets::url("console.js"),
            icon: assets::url("icon.svg"),
        }
    }

    /// Makes the frame of a page with a session, under the link `active`.
    fn of(session: &Session, active: &'static str, title: impl Into<String>) -> Frame {
        Frame {
            class: "",
            active,
            user: Some(session.user.clone()),
            role: session.role.as_str(),
            edits: session.edits(),
            administers: session.administers(),
            csrf: session.csrf.clone(),
            ..Frame::bare(title)
        }
    }

    fn with_notice(self, query: &PageQuery) -> Frame {
        Frame { notice: query.done.as_deref().and_then(notice), ..self }
    }

    fn narrow(self) -> Frame {
        Frame { class: "narrow", ..self }
    }

    fn links(&self) -> Vec<NavLink> {
        let all = [
            ("/admin", "Overview", Role::Viewer),
            ("/admin/requests", "Requests", Role::Viewer),
            ("/admin/history", "History", Role::Viewer),
            ("/admin/playground", "Playground", Role::Editor),
            ("/admin/scenes", "Scenes", Role::Viewer),
            ("/admin/experiments", "Experiments", Role::Viewer),
            ("/admin/device-classes", "Device classes", Role::Viewer),
            ("/admin/models", "Models", Role::Viewer),
            ("/admin/rollouts", "Rollouts", Role::Viewer),
            ("/admin/keys", "Keys", Role::Viewer),
            ("/admin/tenants", "Tenants", Role::Viewer),
            ("/admin/users", "Users", Role::Admin),
            ("/admin/audit", "Audit", Role::Viewer),
        ];
        let may = |least: Role| match least {
            Role::Viewer => true,
            Role::Editor => self.edits,
            Role::Admin => self.administers,
        };
        let shown = all.into_iter().filter(|&(_, _, least)| may(least));
        shown.map(|(url, text, _)| NavLink { url, text, here: url == self.active }).collect()
    }
}

/// The query of a page.
#[derive(Debug, Default, Deserialize)]
struct PageQuery {
    /// What was just done: one of the words of [`notice`].
    done: Option<String>,
    /// The page to go to after the log-in.
    next: Option<String>,
    /// Show rows of the audit log before this one, as it was typed.
    before: Option<String>,
}

/// Returns what a page says about the change before it; `None` for an unknown word.
fn notice(word: &str) -> Option<&'static str> {
    Some(match word {
        "published" => "Published. Every replica uses it within five seconds.",
        "rolled-back" => "Rolled back. Every replica uses it within five seconds.",
        "discarded" => "The draft is discarded.",
        "started" => "Started. Every replica uses it within five seconds.",
        "stopped" => "Stopped. Every replica uses it within five seconds.",
        "saved" => "Saved.",
        "cancelled" => "The answer ends with its next token at the latest.",
        "ordered" => "Ordered. Requests under way end first.",
        "revoked" => "The key is revoked. Every replica refuses it within five seconds.",
        "logged-out" => "You are logged out.",
        _ => return None,
    })
}

/// The problem of a request, shown as a page.
#[derive(Debug)]
struct PageError(Problem);

impl<P: Into<Problem>> From<P> for PageError {
    fn from(problem: P) -> PageError {
        PageError(problem.into())
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        problem_page(None, &self.0)
    }
}

type PageResult = Result<Response, PageError>;

/// Renders a page.
fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(err) => {
            error!(err = &err as &dyn std::error::Error, "a page of the console cannot be rendered");
            (StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be rendered").into_response()
        }
    }
}

/// Redirects to a page that says what was done.
fn to(path: &str, done: &str) -> Response {
    Redirect::to(&format!("{path}?done={done}")).into_response()
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage<'a> {
    frame: Frame,
    tone: &'static str,
    detail: &'a str,
    back: &'static str,
    back_text: &'static str,
}

/// Renders the page of a problem.
pub(super) fn problem_page(session: Option<&Session>, problem: &Problem) -> Response {
    let (_, title) = problem.kind.words();
    let frame = match session {
        Some(session) => Frame::of(session, "", title).narrow(),
        None => Frame { class: "narrow", ..Frame::bare(title) },
    };
    let tone = if matches!(problem.kind, Kind::Stale | Kind::Unavailable) { "warn" } else { "bad" };
    let (back, back_text) = match problem.kind {
        Kind::Unavailable => ("/admin", "Try again"),
        _ => ("/admin", "To the overview"),
    };
    let shown = ProblemPage { frame, tone, detail: &problem.detail, back, back_text };
    let mut response = page(problem.kind.status(), &shown);
    problem.retry_header(&mut response);
    response
}

/// Returns the path of the log-in page, with the page to continue with.
pub(super) fn login_url(next: Option<&str>) -> String {
    match next.filter(|next| *next != "/admin" && is_own(next)) {
        Some(next) => format!("/admin/login?next={}", encoded(next)),
        None => "/admin/login".to_owned(),
    }
}

/// Returns whether a path leads to this console and to no other server.
fn is_own(path: &str) -> bool {
    let inside = path == "/admin" || path.starts_with("/admin/") || path.starts_with("/admin?");
    inside && !path.contains("//") && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

/// Percent-encodes every byte that is not a letter, a digit or one of `-._~/`.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Reads the revision that a form's change is based on.
fn revision(fields: &Fields) -> Result<Expected, Problem> {
    match fields.needed("revision") {
        Ok(0) => Ok(Expected::Absent),
        Ok(revision) => Ok(Expected::Revision(revision)),
        Err(_) => Err(Problem::new(
            Kind::PreconditionRequired,
            "the form does not name the revision that it changes",
        )),
    }
}

#[derive(Template)]
#[template(path = "confirm.html")]
struct ConfirmPage<'a> {
    frame: Frame,
    text: &'a str,
    action: &'a str,
    fields: Vec<(String, String)>,
    button: &'a str,
    back: &'a str,
}

/// A question before a change that cannot be undone.
struct Question<'a> {
    title: &'a str,
    text: &'a str,
    action: &'a str,
    button: &'a str,
    back: &'a str,
}

impl Question<'_> {
    /// Renders the question; `None` if the form says that it was confirmed.
    fn unless_confirmed(&self, session: &Session, fields: &Fields) -> Option<Response> {
        if fields.text("confirmed") == "yes" {
            return None;
        }
        let frame = Frame::of(session, "", self.title).narrow();
        let Question { text, action, button, back, .. } = *self;
        Some(page(
            StatusCode::OK,
            &ConfirmPage { frame, text, action, fields: fields.0.clone(), button, back },
        ))
    }
}

/// One value of a selection.
struct Choice {
    value: String,
    here: bool,
}

fn choices<T: ToString>(values: impl IntoIterator<Item = T>, chosen: &str) -> Vec<Choice> {
    let choice = |value: T| {
        let value = value.to_string();
        Choice { here: value == chosen, value }
    };
    values.into_iter().map(choice).collect()
}

/// Formats a time in UTC as a `<time>` element, which is safe HTML.
fn time(ms: i64) -> String {
    utc(ms).map_or("?".to_owned(), |shown| {
        format!("<time datetime=\"{}Z\">{shown}</time>", shown.replace(' ', "T"))
    })
}

/// Formats a time in UTC; `None` if it is outside the calendar's range.
fn utc(ms: i64) -> Option<String> {
    let civil = Timestamp::from_millisecond(ms).ok()?.to_zoned(TimeZone::UTC).datetime();
    Some(format!(
        "{}-{:02}-{:02} {:02}:{:02}:{:02}",
        civil.year(),
        civil.month(),
        civil.day(),
        civil.hour(),
        civil.minute(),
        civil.second()
    ))
}

/// Returns the title of a setting.
fn label(name: &str) -> &str {
    if let Some(field) = SceneSettings::field(name) {
        return field.title;
    }
    match name {
        "scene" => "Scene",
        "document" => "Document",
        "question" => "Question",
        "device_class" => "Device class",
        "label" => "Label",
        "prefill_ms_per_token" => "k_d (ms/token)",
        "prefill_ms_per_token2" => "q_d (ms/token²)",
        "decode_ms" => "TPOT_d (ms)",
        "weight" => "Weight",
        "requests_per_minute" => "Requests a minute",
        "concurrency_max" => "At the same time",
        "tokens_per_day" => "Tokens a day",
        "arms" => "Arms",
        "guards" => "Guard rails",
        "days" => "Days until it ends",
        other => other,
    }
}

/// Returns what is wrong with a form, with the title of the field in place of its name.
fn said_of(problem: &Problem) -> String {
    match problem.field_name() {
        Some(field) => problem.detail.replace(&format!("field `{field}`"), &format!("`{}`", label(field))),
        None => problem.detail.clone(),
    }
}

/// Formats the value of a setting for people.
fn setting_text(name: &str, value: &Value) -> String {
    match SceneSettings::field(name).and_then(|field| field.absent) {
        Some(absent) if value.is_null() => absent.meaning.to_owned(),
        _ => value_text(value),
    }
}

/// Formats a value for people.
fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if text.is_empty() => "(empty)".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number_text(number),
        other => other.to_string(),
    }
}

/// Formats a number without a trailing `.0`.
fn number_text(number: &Number) -> String {
    let text = number.to_string();
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// One changed setting, as texts.
struct Changed {
    label: &'static str,
    from: String,
    to: String,
}

fn changed(changes: &[SettingChange]) -> Vec<Changed> {
    let one = |change: &SettingChange| Changed {
        label: change.field.title,
        from: setting_text(change.field.name, &change.from),
        to: setting_text(change.field.name, &change.to),
    };
    changes.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_log_in_leads_only_into_the_console() {
        for own in ["/admin", "/admin/scenes/a?done=saved", "/admin?x=1"] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "",
            "/",
            "/v1/scenes",
            "//evil.example",
            "/admin//evil",
            "https://evil.example/admin",
            "/admin/\\e",
            "/administer",
            "/admin/\r\nx: y",
        ] {
            assert!(!is_own(other), "{other:?}");
        }
        assert_eq!(login_url(Some("/admin/scenes?a=b&c")), "/admin/login?next=/admin/scenes%3Fa%3Db%26c");
        assert_eq!(login_url(Some("//evil.example")), "/admin/login");
        assert_eq!(login_url(Some("/admin")), "/admin/login");
    }

    #[test]
    fn problems_name_fields_as_the_page_does() {
        let empty = Problem::field("decode_ms", &"field `decode_ms` is empty, must be a number");
        assert_eq!(said_of(&empty), "`TPOT_d (ms)` is empty, must be a number");
        assert_eq!(said_of(&Problem::new(Kind::Stale, "field `decode_ms`")), "field `decode_ms`");
    }

    #[test]
    fn moments_are_shown_in_utc() {
        assert_eq!(time(0), "<time datetime=\"1970-01-01T00:00:00Z\">1970-01-01 00:00:00</time>");
        assert_eq!(time(i64::MAX), "?");
    }

    #[test]
    fn values_are_shown_as_people_write_them() {
        let check = |name: &str, value: Value, want: &str| assert_eq!(setting_text(name, &value), want);
        check("ratio", json!(null), "automatic");
        check("model", json!(null), "the service's default");
        check("adapter", json!(null), "none");
        check("tau_ms", json!(100.0), "100");
        check("xi", json!(0.25), "0.25");
        check("refine", json!(false), "no");
        check("system", json!(""), "(empty)");
        check("expires_ms", json!(null), "none");
    }
}
