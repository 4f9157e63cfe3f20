//! Access checks: the right `Host`, no page of another origin, only JSON bodies from browsers, and the key if
//! one is set.

use super::ApiState;
use super::error::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Header that says whether a browser's request comes from a page of this origin. Pages cannot set or remove
/// it.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// Where Anthropic's clients send the key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Returns the host of an authority, without its port. If the text after `:` is not a port, it is kept, and
/// the host is not one that is served.
fn host_name(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Returns this address as clients write it in `Host`; `None` if it stands for all addresses of this machine.
pub(crate) fn listening_host(address: SocketAddr) -> Option<String> {
    match address.ip() {
        ip if ip.is_unspecified() => None,
        IpAddr::V4(ip) => Some(ip.to_string()),
        IpAddr::V6(ip) => Some(format!("[{ip}]")),
    }
}

/// Converts a host that a person wrote to the form of `Host` without a port. An IPv6 address gets its
/// brackets.
pub(crate) fn served_host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<Ipv6Addr>() {
        return Ok(format!("[{ip}]"));
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    match !text.is_empty() && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => {
            Err("want a host name or an IP address alone, without a scheme, a port or a path".to_owned())
        }
    }
}

fn known(host: &str, further: &[String]) -> bool {
    ["localhost", "127.0.0.1", "[::1]"]
        .into_iter()
        .chain(further.iter().map(String::as_str))
        .any(|known| host.eq_ignore_ascii_case(known))
}

fn value<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    match (first.map(|v| v.to_str()), second) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) => Ok(Some(text)),
        _ => Err(ApiError::Forbidden(format!("an unreadable `{name}`"))),
    }
}

/// Refuses a foreign `Host` (DNS rebinding), a page of another origin, and a body that a form could have
/// sent.
pub(super) async fn origin(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let mut response = match allowed(&state, &request) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    let headers = response.headers_mut();
    // No page of another origin may read a reply as a script, a picture or a frame.
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn allowed(state: &ApiState, request: &Request) -> Result<(), ApiError> {
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => value(request.headers(), &header::HOST)?.unwrap_or_default(),
    };
    if !known(host_name(host), &state.hosts) {
        return Err(ApiError::Forbidden(format!("host `{}`", short(host))));
    }
    own_origin(request.method(), request.headers(), host)?;
    let is_post = request.method() == Method::POST;
    if is_post && is_of_browser(request.headers()) {
        let content_type = value(request.headers(), &header::CONTENT_TYPE)?;
        if !is_json(content_type) {
            return Err(ApiError::NotJson);
        }
    }
    Ok(())
}

/// Returns whether a browser may have sent a request: it has a header that browsers send and that pages
/// cannot take away. Other programs, such as curl, may declare a body as they like.
fn is_of_browser(headers: &HeaderMap) -> bool {
    let sent_by_browsers = [header::ORIGIN, header::REFERER, header::COOKIE, FETCH_SITE];
    let agent = headers.get(header::USER_AGENT).map(|agent| agent.as_bytes().starts_with(b"Mozilla/"));
    agent == Some(true) || sent_by_browsers.iter().any(|name| headers.contains_key(name))
}

/// Refuses requests from pages of another origin. A person who follows a link to a page of this origin may
/// see it.
fn own_origin(method: &Method, headers: &HeaderMap, host: &str) -> Result<(), ApiError> {
    if let Some(origin) = value(headers, &header::ORIGIN)? {
        let authority = origin.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
        if !authority.is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host)) {
            return Err(ApiError::Forbidden(format!("origin `{}`", short(origin))));
        }
    }
    let visit = method == Method::GET && value(headers, &FETCH_DEST)? == Some("document");
    match value(headers, &FETCH_SITE)? {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if visit => Ok(()),
        Some(site) => Err(ApiError::Forbidden(format!("a page of another origin (`{}`)", short(site)))),
    }
}

/// Returns whether a body is declared as JSON. A page of another origin cannot do that without a preflight
/// request.
fn is_json(content_type: Option<&str>) -> bool {
    let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Compares in constant time, so that the time does not reveal how many bytes are right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// Marks a request that must stay on this device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stays;

/// Refuses a missing or wrong key, if one is set. Marks requests with a key of a program that must stay on
/// this device.
pub(super) async fn key(
    State(state): State<Arc<ApiState>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let bearer = value(request.headers(), &header::AUTHORIZATION)?.and_then(|v| v.strip_prefix("Bearer "));
    let given = [bearer, value(request.headers(), &X_API_KEY)?];
    let is_given =
        |key: &str| given.into_iter().flatten().any(|given| same(given.as_bytes(), key.as_bytes()));
    // All keys are compared, so that the time does not reveal which one is right.
    let stays = state.device_keys.iter().filter(|key| is_given(key)).count() > 0;
    let may_ask = state.key.as_deref().is_none_or(is_given);
    if stays {
        request.extensions_mut().insert(Stays);
    } else if !may_ask {
        return Err(ApiError::Unauthorized);
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_browsers_must_declare_json() {
        let has = |name: &'static str, text: &'static str| {
            is_of_browser(&HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_static(text),
            )]))
        };
        for (name, text) in [
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("referer", "https://evil.example/"),
            ("cookie", "a=b"),
        ] {
            assert!(has(name, text), "{name}: {text}");
        }
        for (name, text) in
            [("user-agent", "curl/8.5.0"), ("content-type", "application/x-www-form-urlencoded")]
        {
            assert!(!has(name, text), "{name}: {text}");
        }
    }

    #[test]
    fn ports_are_cut() {
        for (authority, want) in [
            ("localhost:80", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:8", "[::1]"),
            ("[::1]", "[::1]"),
            ("localhost:80@evil.example", "localhost:80@evil.example"),
            ("localhost:", "localhost"),
        ] {
            assert_eq!(host_name(authority), want);
        }
    }

    #[test]
    fn the_address_that_is_listened_on_is_served() {
        for listen in ["127.0.0.2:8017", "192.168.1.2:80", "[2001:db8::5]:8017", "[fd00::1]:1", "[::1]:8017"]
        {
            let further: Vec<String> = listening_host(listen.parse().unwrap()).into_iter().collect();
            assert!(known(host_name(listen), &further), "{listen}: {further:?}");
            assert!(!known("192.168.1.3", &further) && !known("[2001:db8::6]", &further), "{listen}");
        }
        for all in ["0.0.0.0:80", "[::]:80"] {
            assert_eq!(listening_host(all.parse().unwrap()), None, "{all}");
        }
    }

    #[test]
    fn a_further_host_is_a_name_alone() {
        for (given, want) in [
            ("nas.example", "nas.example"),
            ("my_box", "my_box"),
            ("10.0.0.7", "10.0.0.7"),
            ("2001:db8::5", "[2001:db8::5]"),
            ("[2001:DB8::5]", "[2001:db8::5]"),
        ] {
            let host = served_host(given);
            assert_eq!(host.as_deref(), Ok(want));
            assert!(known(&want.to_ascii_uppercase(), &[want.to_owned()]), "{want}");
        }
        for bad in ["", "nas:8017", "http://nas", "nas/", "10.0.0.7:80", "[2001:db8::5]:80", "a b", "*"] {
            let said = served_host(bad).unwrap_err();
            assert!(said.contains("without a scheme, a port"), "{bad}: {said}");
        }
    }
}
