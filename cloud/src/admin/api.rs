//! `/admin/api/v1`: the operations of the console as a REST API, with an OpenAPI document.
//!
//! Always: whatever can change has an `ETag` with its revision. A change needs `If-Match` (`If-None-Match: *`
//! for something new): without it the answer is 428, if it is out of date 412. Every error is
//! `application/problem+json`.

mod access;
mod body;
mod experiments;
mod history;
mod models;
mod playground;
mod requests;
mod rollouts;
mod scenes;
mod session;
mod status;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Admin;
use super::problem::{Kind, Problem, ProblemBody};
use super::session::COOKIE;
use crate::store::Expected;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Baton admin API",
        description = "Requests, playground, history, scenes, experiments, device classes, models of devices, tenants, keys, users and audit of a \
                       Baton cloud service. Log in with `POST /admin/api/v1/session`; send the cookie it sets and, with every request that is not a \
                       GET, its `csrf_token` as `x-csrf-token`."
    ),
    components(schemas(ProblemBody)),
    modifiers(&Cookie),
    security(("session" = []))
)]
struct Document;

/// Adds the session's cookie to the OpenAPI document.
struct Cookie;

impl Modify for Cookie {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let cookie = SecurityScheme::ApiKey(ApiKey::Cookie(ApiKeyValue::new(COOKIE)));
        components.add_security_scheme("session", cookie);
    }
}

/// Returns every route with its OpenAPI description.
pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status::document))
        .routes(routes!(session::log_in, session::show, session::log_out))
        .routes(routes!(status::overview))
        .routes(routes!(requests::list))
        .routes(routes!(requests::show))
        .routes(routes!(requests::cancel))
        .routes(routes!(playground::ask))
        .routes(routes!(history::history))
        .routes(routes!(history::usage))
        .routes(routes!(models::list))
        .routes(routes!(models::load))
        .routes(routes!(models::unload))
        .routes(routes!(models::drain))
        .routes(routes!(scenes::list))
        .routes(routes!(scenes::show))
        .routes(routes!(scenes::versions))
        .routes(routes!(scenes::version))
        .routes(routes!(scenes::diff))
        .routes(routes!(scenes::predict))
        .routes(routes!(scenes::save_draft, scenes::discard_draft))
        .routes(routes!(scenes::publish))
        .routes(routes!(scenes::roll_back))
        .routes(routes!(experiments::list))
        .routes(routes!(experiments::show, experiments::save))
        .routes(routes!(experiments::start))
        .routes(routes!(experiments::stop))
        .routes(routes!(experiments::promote))
        .routes(routes!(access::classes))
        .routes(routes!(access::class, access::set_class, access::remove_class))
        .routes(routes!(rollouts::registry))
        .routes(routes!(rollouts::list))
        .routes(routes!(rollouts::show, rollouts::set, rollouts::change, rollouts::remove))
        .routes(routes!(access::tenants))
        .routes(routes!(access::tenant, access::set_tenant))
        .routes(routes!(access::keys, access::create_key))
        .routes(routes!(access::key, access::revoke_key))
        .routes(routes!(access::rotate_key))
        .routes(routes!(access::users, access::add_user))
        .routes(routes!(access::user, access::change_user))
        .routes(routes!(status::audit))
        .routes(routes!(status::verify_audit))
}

/// Returns the OpenAPI document.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().split_for_parts().1
}

/// Returns a value with its revision as `ETag`, or 304 if the client has it.
fn tagged(headers: &HeaderMap, revision: u64, value: &impl Serialize) -> Response {
    let tag = format!("\"{revision}\"");
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let same = known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag);
    let mut response =
        if same { StatusCode::NOT_MODIFIED.into_response() } else { Json(value).into_response() };
    let tag = HeaderValue::from_str(&tag).expect("quoted digits are a header value");
    response.headers_mut().insert(header::ETAG, tag);
    response
}

/// Returns a value that was changed, with its new revision.
fn changed(revision: u64, value: &impl Serialize) -> Response {
    tagged(&HeaderMap::new(), revision, value)
}

/// Reads the revision that a change is based on.
fn expected(headers: &HeaderMap) -> Result<Expected, Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    if let Some(tag) = text(header::IF_MATCH) {
        let revision =
            tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).and_then(|tag| tag.parse().ok());
        return match revision {
            Some(0) => Ok(Expected::Absent),
            Some(revision) => Ok(Expected::Revision(revision)),
            // `*` and weak tags do not name a revision, so they cannot match the current one.
            None => Err(Problem::new(
                Kind::Stale,
                "`If-Match` must be the ETag that was read, one revision in quotes",
            )),
        };
    }
    if text(header::IF_NONE_MATCH) == Some("*") {
        return Ok(Expected::Absent);
    }
    let detail = "send the ETag that was read as `If-Match`, or `If-None-Match: *` for something new";
    Err(Problem::new(Kind::PreconditionRequired, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::rules;

    #[test]
    fn a_change_says_what_it_is_based_on() {
        let check = |name: header::HeaderName, value: &str, want: Result<Expected, Kind>| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())]);
            assert_eq!(expected(&headers).map_err(|problem| problem.kind), want, "{value}");
        };
        check(header::IF_MATCH, "\"7\"", Ok(Expected::Revision(7)));
        check(header::IF_MATCH, "\"0\"", Ok(Expected::Absent));
        check(header::IF_NONE_MATCH, "*", Ok(Expected::Absent));
        for wrong in ["*", "7", "W/\"7\"", "\"7\", \"8\"", "\"x\"", ""] {
            check(header::IF_MATCH, wrong, Err(Kind::Stale));
        }
        check(header::IF_NONE_MATCH, "\"7\"", Err(Kind::PreconditionRequired));
        assert_eq!(expected(&HeaderMap::new()).unwrap_err().kind, Kind::PreconditionRequired);
    }

    #[test]
    fn what_is_described_is_what_is_guarded() {
        let document = serde_json::to_value(openapi()).unwrap();
        let mut described = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                described.push((method.to_uppercase(), path.clone()));
            }
        }
        described.sort();
        let api = rules::RULES.iter().filter(|rule| rule.path.starts_with("/admin/api/"));
        let mut guarded: Vec<(String, String)> =
            api.map(|rule| (rule.method.to_owned(), rule.path.to_owned())).collect();
        guarded.sort();
        assert_eq!(described, guarded);
    }
}
