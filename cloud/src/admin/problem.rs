//! The error of the console and its API, shown as `application/problem+json` or as a page.
//!
//! Never: shows details of an internal failure (the log has the whole chain). Always: names the field if one
//! is wrong, and has a fitting HTTP status.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::scene::SceneError;

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request cannot be read.
    Malformed,
    /// A field is out of its bounds.
    Invalid,
    /// Nobody is logged in, or name or password is wrong.
    NotLoggedIn,
    /// The role is not enough, or the request does not come from the console.
    Forbidden,
    /// The path or the record does not exist.
    NotFound,
    /// The record's state does not allow the change.
    Conflict,
    /// Somebody else changed the record meanwhile.
    Stale,
    /// The change does not name the revision that it is based on.
    PreconditionRequired,
    /// Too many attempts.
    TooMany,
    /// The body is over its limit.
    TooLarge,
    /// The database is away, or there is no administrator yet.
    Unavailable,
    /// A bug, or unexpected behaviour of the database.
    Internal,
}

impl Kind {
    /// Returns its HTTP status.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Kind::Malformed => StatusCode::BAD_REQUEST,
            Kind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::NotLoggedIn => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::Stale => StatusCode::PRECONDITION_FAILED,
            Kind::PreconditionRequired => StatusCode::PRECONDITION_REQUIRED,
            Kind::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns its word in `type`, and its title.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Kind::Malformed => ("malformed", "The request cannot be read"),
            Kind::Invalid => ("invalid", "A field is not valid"),
            Kind::NotLoggedIn => ("not-logged-in", "Log in first"),
            Kind::Forbidden => ("forbidden", "This is not allowed"),
            Kind::NotFound => ("not-found", "Not found"),
            Kind::Conflict => ("conflict", "The present state does not allow this"),
            Kind::Stale => ("stale", "Somebody else was faster"),
            Kind::PreconditionRequired => {
                ("precondition-required", "Name the revision that the change is based on")
            }
            Kind::TooMany => ("too-many", "Too many tries"),
            Kind::TooLarge => ("too-large", "The request is too large"),
            Kind::Unavailable => ("unavailable", "Not available now"),
            Kind::Internal => ("internal", "Internal error"),
        }
    }
}

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// Its kind.
    pub kind: Kind,
    /// What happened, with limit and value.
    pub detail: String,
    field: Option<String>,
    retry_after_s: Option<u64>,
}

/// A problem as JSON (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ProblemBody {
    /// The kind, `urn:baton:problem:...`.
    #[serde(rename = "type")]
    #[schema(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// The field that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl Problem {
    /// Makes a problem of this kind.
    #[must_use]
    pub fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        Problem { kind, detail: detail.into(), field: None, retry_after_s: None }
    }

    /// Makes the problem of a field that is out of its bounds.
    #[must_use]
    pub fn field(field: &str, why: &dyn std::fmt::Display) -> Problem {
        Problem { field: Some(field.to_owned()), ..Problem::new(Kind::Invalid, why.to_string()) }
    }

    /// Makes the problem of a body that cannot be read, with the field at which the reader stopped.
    #[must_use]
    pub fn malformed(field: Option<String>, why: impl Into<String>) -> Problem {
        Problem { field, ..Problem::new(Kind::Malformed, why) }
    }

    /// Makes the problem of a scene that is not valid.
    #[must_use]
    pub fn of_scene(err: &SceneError) -> Problem {
        Problem::field(err.field(), err)
    }

    /// Adds when to try again, in seconds.
    #[must_use]
    pub fn retry_after_s(self, seconds: u64) -> Problem {
        Problem { retry_after_s: Some(seconds), ..self }
    }

    /// Returns the field that is wrong.
    #[must_use]
    pub fn field_name(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// Returns the problem as JSON.
    #[must_use]
    pub fn body(&self) -> ProblemBody {
        let (word, title) = self.kind.words();
        ProblemBody {
            kind: format!("urn:baton:problem:{word}"),
            title: title.to_owned(),
            status: self.kind.status().as_u16(),
            detail: self.detail.clone(),
            field: self.field.clone(),
        }
    }

    /// Sets `Retry-After` if the problem says when to try again.
    pub(super) fn retry_header(&self, response: &mut Response) {
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.body()).expect("texts and numbers are JSON");
        let mut response = (self.kind.status(), body).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        self.retry_header(&mut response);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_its_field() {
        let body = Problem::field("xi", &"field `xi` is 0, must be 0.01 to 1").body();
        let json = serde_json::to_value(&body).unwrap();
        assert_eq!(json["type"], "urn:baton:problem:invalid");
        assert_eq!((json["status"].as_u64(), json["field"].as_str()), (Some(422), Some("xi")));
        let without = serde_json::to_value(Problem::new(Kind::Stale, "x").body()).unwrap();
        assert!(without.get("field").is_none(), "{without}");
    }

    #[test]
    fn a_wait_is_told_in_the_header() {
        let response = Problem::new(Kind::TooMany, "x").retry_after_s(30).into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "30");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}
