//! Authentication: finds the key of a request, and checks that it allows the route.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use baton_protocol::ErrorCode;

use super::App;
use super::error::{ApiError, Dialect};
use crate::access::{AccessBook, Caller, Denied, Scope};
use crate::gate::{Permit, QuotaError};
use crate::service::ServiceError;
use crate::store::now_ms;

/// What a group of routes requires of a key, and the dialect of its errors.
#[derive(Debug, Clone)]
pub(super) struct Guarded {
    pub(super) book: AccessBook,
    /// The scope that the key must have, or `None` if any valid key will do.
    pub(super) scope: Option<Scope>,
    pub(super) dialect: Dialect,
}

/// Passes a request on if its key allows it, and adds the caller to the request's extensions.
pub(super) async fn guard(
    State(Guarded { book, scope, dialect }): State<Guarded>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = book.authenticate(bearer(request.headers()), now_ms());
    let allowed =
        caller.and_then(|caller| scope.map_or(Ok(()), |scope| caller.check(scope)).map(|()| caller));
    match allowed {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(denied) => ApiError::from(denied).told_in(dialect).into_response(),
    }
}

/// Counts one request that needs the model against its tenant's quotas. Fails if a quota is used up.
pub(super) fn admit(app: &App, caller: &Caller) -> Result<Permit, ApiError> {
    Ok(app.access.gate.admit(&caller.tenant)?)
}

/// Returns the bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let sent = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = sent.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> ApiError {
        let code = match denied {
            Denied::Key => ErrorCode::Unauthorized,
            Denied::TenantDisabled | Denied::Scope(_) => ErrorCode::Forbidden,
        };
        ApiError::new(code, denied.to_string())
    }
}

impl From<QuotaError> for ApiError {
    fn from(err: QuotaError) -> ApiError {
        ApiError::from(ServiceError::from(err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn the_token_is_what_follows_bearer() {
        let check = |value: &str, want: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            assert_eq!(bearer(&headers), want, "{value}");
        };
        check("Bearer secret", Some("secret"));
        check("bearer  secret ", Some("secret"));
        check("Bearer ", Some(""));
        check("Basic secret", None);
        check("secret", None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
