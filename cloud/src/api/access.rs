//! Who asks: the key of a request, and whether it allows what is asked for.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use baton_protocol::ErrorCode;

use super::App;
use super::error::{ApiError, Dialect};
use crate::access::{AccessBook, Caller, Denied, Permit, QuotaError, Scope};
use crate::service::ServiceError;
use crate::store::now_ms;

/// What some routes ask of a key, and in whose words they refuse one.
#[derive(Debug, Clone)]
pub(super) struct Guarded {
    pub(super) book: AccessBook,
    /// None: any good key.
    pub(super) scope: Option<Scope>,
    pub(super) dialect: Dialect,
}

/// Lets a request through whose key allows it, and tells the handler whose it is.
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

/// Lets one request of a tenant in that will be answered by the model.
pub(super) fn admit(app: &App, caller: &Caller) -> Result<Permit, ApiError> {
    Ok(app.access.gate.admit(&caller.tenant)?)
}

/// The bearer token of a request.
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
