//! The one entry to console and API: checks session, role, origin and CSRF token before any handler runs.
//!
//! Never: trusts a form of another site. Always: a request that changes something comes from the console's
//! own pages (by its `Origin`, or `Sec-Fetch-Site` if there is none). It carries the session's CSRF token, in
//! the header `x-csrf-token` or the field `csrf`. Every reply has the headers that keep out scripts and
//! frames of other sites.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Form, FromRequest, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum_extra::extract::cookie::CookieJar;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use subtle::ConstantTimeEq;

use super::Admin;
use super::console::{login_url, problem_page};
use super::problem::{Kind, Problem};
use super::rules::{self, Requirement};
use super::session::{COOKIE, Session};

/// The most bytes of a body: two texts of 64 KiB with every byte escaped, and the other fields.
const BODY_BYTES_MAX: usize = 512 * 1024;
/// The most bytes of a body without a session: name and password.
const STRANGER_BYTES_MAX: usize = 16 * 1024;
/// The most fields of a form.
const FIELDS_MAX: usize = 4096;
/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const CSRF_HEADER: HeaderName = HeaderName::from_static("x-csrf-token");
/// The field of a form that carries the token.
pub(super) const CSRF_FIELD: &str = "csrf";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Allows only this server's own files: no inline script or style, no frame, no form to another server.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                   form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The body of a request that may change something.
#[derive(Debug, Clone, Default)]
pub(super) struct RawBody(pub(super) Bytes);

/// The fields of a form, in the order sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(pub(super) Vec<(String, String)>);

impl Fields {
    /// Returns the first field of this name. Line ends are one character again; browsers send two.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.replace("\r\n", "\n"))
    }

    /// Returns a field without blanks around it; empty if it is missing.
    pub(super) fn text(&self, name: &str) -> String {
        self.get(name).map(|value| value.trim().to_owned()).unwrap_or_default()
    }

    /// Returns every field of this name.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }

    /// Parses a number; `None` if the field is empty.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        let wrong =
            |_| Problem::field(name, &format!("field `{name}` is `{}`, must be a number", cut(&text)));
        text.parse().map(Some).map_err(wrong)
    }

    /// Parses a number that must be there.
    pub(super) fn needed<T: std::str::FromStr>(&self, name: &str) -> Result<T, Problem> {
        self.number(name)?
            .ok_or_else(|| Problem::field(name, &format!("field `{name}` is empty, must be a number")))
    }
}

fn cut(text: &str) -> String {
    text.chars().take(32).collect()
}

/// Passes a request to its handler, or answers with the reason for refusal.
pub(super) async fn guard(
    State(admin): State<Admin>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let is_api = request.uri().path().starts_with("/admin/api/");
    let asked = match rules::is_unsafe(request.method()) {
        // After the log-in, go back to the page of the form; its content is lost.
        true => page_before(request.headers()).filter(|page| {
            // A confirmation page has the path of the form's target, which cannot be fetched with GET.
            page != request.uri().path() || rules::find(&Method::GET, path.as_str()).is_some()
        }),
        false => request.uri().path_and_query().map(|path| path.as_str().to_owned()),
    };
    let mut response = match admit(&admin, path.as_str(), request).await {
        Ok(request) => next.run(request).await,
        Err(problem) if is_api => problem.into_response(),
        Err(problem) if problem.kind == Kind::NotLoggedIn => {
            Redirect::to(&login_url(asked.as_deref())).into_response()
        }
        Err(problem) => problem_page(None, &problem),
    };
    secure(response.headers_mut());
    response
}

/// Returns the path of the page that sent a form, by the `Referer` header.
fn page_before(headers: &HeaderMap) -> Option<String> {
    let (_, behind) = headers.get(header::REFERER)?.to_str().ok()?.split_once("://")?;
    behind.find('/').map(|at| behind[at..].to_owned())
}

/// Sets the security headers of a reply.
pub(crate) fn secure(headers: &mut HeaderMap) {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, CSP),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer`, browsers would send `Origin: null` with forms.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

async fn admit(admin: &Admin, path: &str, request: Request) -> Result<Request, Problem> {
    let Some(rule) = rules::find(request.method(), path) else {
        let detail = if rules::RULES.iter().any(|rule| rule.path == path) {
            format!("this path does not take {}", request.method())
        } else {
            "there is nothing at this address".to_owned()
        };
        return Err(Problem::new(Kind::NotFound, detail));
    };
    if rule.need == Requirement::Nothing {
        return Ok(request);
    }
    if !admin.operations.has_admin().await? {
        let detail =
            "there is no administrator yet: run `baton-cloud bootstrap` with this service's database";
        return Err(Problem::new(Kind::Unavailable, detail));
    }
    let is_unsafe = rules::is_unsafe(request.method());
    if is_unsafe {
        check_origin(request.headers())?;
    }
    let token =
        CookieJar::from_headers(request.headers()).get(COOKIE).map(|cookie| cookie.value().to_owned());
    let session = match &token {
        Some(token) => admin.operations.session(token).await?,
        None => None,
    };
    if !rules::allows(rule.need, session.as_ref().map(|session| session.role)) {
        return Err(match (&session, rule.need) {
            (Some(session), Requirement::Role(least)) => Problem::new(
                Kind::Forbidden,
                format!("this needs the role `{least}`, `{}` is `{}`", session.user, session.role),
            ),
            _ => Problem::new(Kind::NotLoggedIn, "log in first: there is no session, or it has ended"),
        });
    }
    let (mut parts, body) = request.into_parts();
    let mut body = Some(body);
    if is_unsafe {
        let bytes_max = if session.is_some() { BODY_BYTES_MAX } else { STRANGER_BYTES_MAX };
        let bytes = read(body.take().unwrap_or_default(), bytes_max).await?;
        let fields = fields(&parts.headers, &bytes).await?;
        if let (Some(session), Requirement::Role(_)) = (&session, rule.need) {
            check_csrf(&parts.headers, &fields, session)?;
        }
        parts.extensions.insert(RawBody(bytes));
        parts.extensions.insert(fields);
    }
    if let Some(session) = session {
        parts.extensions.insert(session);
    }
    Ok(Request::from_parts(parts, body.unwrap_or_default()))
}

async fn read(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, bytes_max).collect());
    match collected.await {
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            Err(Problem::malformed(None, detail))
        }
        Ok(Err(err)) if err.is::<LengthLimitError>() => {
            Err(Problem::new(Kind::TooLarge, format!("the body is over {bytes_max} bytes")))
        }
        Ok(Err(_)) => Err(Problem::malformed(None, "the body ends early")),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

/// Parses the fields of a form; empty if the body is something else.
async fn fields(headers: &HeaderMap, bytes: &Bytes) -> Result<Fields, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.trim_start().to_ascii_lowercase().starts_with("application/x-www-form-urlencoded") {
        return Ok(Fields::default());
    }
    // Each field of one byte takes about fifty bytes in memory.
    if bytes.iter().filter(|&&byte| byte == b'&').count() >= FIELDS_MAX {
        return Err(Problem::new(Kind::TooLarge, format!("the form has over {FIELDS_MAX} fields")));
    }
    let request = Request::post("/").header(header::CONTENT_TYPE, kind).body(Body::from(bytes.clone()));
    let request = request.map_err(|_| Problem::malformed(None, "the content type is not text"))?;
    let form = Form::<Vec<(String, String)>>::from_request(request, &()).await;
    form.map(|Form(fields)| Fields(fields)).map_err(|err| Problem::malformed(None, err.body_text()))
}

/// Checks that a page of this server made the request, or no page at all.
fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let foreign =
        |of: &str| Err(Problem::new(Kind::Forbidden, format!("a request from `{}` is refused", cut(of))));
    if let Some(origin) = text(&header::ORIGIN) {
        let host = text(&header::HOST).unwrap_or_default();
        let own = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        return if own.is_some_and(|own| !own.is_empty() && own == host) { Ok(()) } else { foreign(origin) };
    }
    // Browsers send the origin with every request that can change something. A request without it comes from
    // a program, which no other site controls. A browser that hides the origin still sends `Sec-Fetch-Site`.
    match text(&SEC_FETCH_SITE) {
        None | Some("same-origin" | "none") => Ok(()),
        Some(site) => foreign(site),
    }
}

fn check_csrf(headers: &HeaderMap, fields: &Fields, session: &Session) -> Result<(), Problem> {
    let header = headers.get(&CSRF_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let sent = header.or_else(|| fields.get(CSRF_FIELD)).unwrap_or_default();
    if bool::from(sent.as_bytes().ct_eq(session.csrf.as_bytes())) {
        return Ok(());
    }
    let detail = "the CSRF token is missing or wrong: send it as `x-csrf-token`, or load the page again";
    Err(Problem::new(Kind::Forbidden, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn only_own_pages_may_change_something() {
        let check = |pairs: &[(HeaderName, &str)], want: bool| {
            assert_eq!(check_origin(&headers(pairs)).is_ok(), want, "{pairs:?}");
        };
        let host = (header::HOST, "cloud.example:8300");
        check(std::slice::from_ref(&host), true);
        check(&[host.clone(), (header::ORIGIN, "http://cloud.example:8300")], true);
        check(&[host.clone(), (header::ORIGIN, "https://cloud.example:8300")], true);
        check(&[host.clone(), (header::ORIGIN, "https://cloud.example")], false);
        check(&[host.clone(), (header::ORIGIN, "https://evil.example:8300")], false);
        check(&[host.clone(), (header::ORIGIN, "null")], false);
        check(&[host.clone(), (header::ORIGIN, "")], false);
        check(&[(header::ORIGIN, "http://")], false);
        check(&[host.clone(), (SEC_FETCH_SITE, "same-origin")], true);
        check(&[host.clone(), (SEC_FETCH_SITE, "cross-site")], false);
        check(&[host, (SEC_FETCH_SITE, "same-site")], false);
    }

    #[tokio::test]
    async fn forms_are_read_with_plain_line_ends() {
        let form = headers(&[(header::CONTENT_TYPE, "application/x-www-form-urlencoded; charset=UTF-8")]);
        let body = Bytes::from_static(b"a=1&t=%0D%0A%0D%0AQuestion%3A+&a=2&n=x&e=");
        let read = fields(&form, &body).await.unwrap();
        assert_eq!(read.get("t").as_deref(), Some("\n\nQuestion: "));
        assert_eq!((read.all("a"), read.text("a")), (vec!["1".to_owned(), "2".to_owned()], "1".to_owned()));
        assert_eq!(read.number::<u32>("a").unwrap(), Some(1));
        assert_eq!(read.number::<u32>("e").unwrap(), None);
        assert_eq!(read.number::<u32>("n").unwrap_err().field_name(), Some("n"));
        assert!(read.needed::<u32>("e").is_err());
        let json = headers(&[(header::CONTENT_TYPE, "application/json")]);
        assert!(fields(&json, &body).await.unwrap().0.is_empty());
    }
}
