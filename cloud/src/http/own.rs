//! Protects a service that needs no key from pages of other sites.
//!
//! Such a service listens on loopback only, but a browser on the same machine reaches it too. A page of any
//! site may send requests to it. By DNS rebinding (a name of that site that suddenly resolves to 127.0.0.1),
//! the page may even read the replies. So the request's host must be this machine or an allowed name, and a
//! page that sent it must be of this host. Never: checks a service that requires keys, unless names are
//! given. Always: health is open to everyone, because probes send any host.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, middleware};
use serde_json::json;

use crate::access::AccessBook;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Routes that are open to everyone.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// The host names of this service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    /// Allows `localhost`, any IP address, and these names. Addresses need no list: DNS rebinding needs a
    /// name, so it never makes a request whose host is an address.
    #[must_use]
    pub fn new(names: Vec<String>) -> Hosts {
        Hosts(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Returns whether `host`, with or without a port, is one of them.
    #[must_use]
    pub fn has(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let plain = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
        name == "localhost" || plain.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }

    fn are_given(&self) -> bool {
        !self.0.is_empty()
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

/// Returns the routes, limited to requests from programs and from pages of this host.
pub fn only_own(routes: Router, hosts: Hosts, book: AccessBook) -> Router {
    routes.layer(middleware::from_fn_with_state((hosts, book), check))
}

async fn check(State((hosts, book)): State<(Hosts, AccessBook)>, request: Request, next: Next) -> Response {
    let open = book.is_open();
    let counts = (open || hosts.are_given()) && !HEALTH.contains(&request.uri().path());
    let refused = counts.then(|| refusal(&hosts, open, &request)).flatten();
    match refused {
        Some(message) => {
            let error = json!({ "error": { "code": "forbidden", "message": message } });
            (StatusCode::FORBIDDEN, Json(error)).into_response()
        }
        None => next.run(request).await,
    }
}

/// Returns why a request is refused, or `None` if it is allowed.
fn refusal(hosts: &Hosts, open: bool, request: &Request) -> Option<String> {
    let headers = request.headers();
    let named = [text(headers, &header::HOST), request.uri().authority().map(|authority| authority.as_str())];
    for host in named.into_iter().flatten() {
        if !hosts.has(host) {
            let host: String = host.chars().take(100).collect();
            return Some(format!(
                "host `{host}` is not this service's: start it with --allow-host, or use its address"
            ));
        }
    }
    // If keys are needed, a page that has one may send requests; its key limits them.
    if !open {
        return None;
    }
    let host = text(headers, &header::HOST).unwrap_or_default();
    match (text(headers, &header::ORIGIN), text(headers, &SEC_FETCH_SITE)) {
        (Some(origin), _) => {
            let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            (own != Some(host)).then(|| {
                let origin: String = origin.chars().take(100).collect();
                format!("a page of `{origin}` may not use this service, which asks nobody for a key")
            })
        }
        // A page of another site may contain a link that somebody follows: that only reads.
        (None, Some("cross-site" | "same-site")) if !request.method().is_safe() => {
            Some("a page of another site may not use this service, which asks nobody for a key".to_owned())
        }
        (None, _) => None,
    }
}

/// Returns a header. One that is not text matches no host and no origin.
fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("(not text)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn a_host_is_this_machine_or_a_name_that_was_given() {
        let hosts = Hosts::new(vec!["Baton.example".to_owned()]);
        for own in
            ["localhost", "LOCALHOST:8300", "127.0.0.1", "127.0.0.1:1", "[::1]:8300", "[::1]", "10.1.2.3:80"]
        {
            assert!(hosts.has(own) && Hosts::default().has(own), "{own}");
        }
        assert!(hosts.has("baton.example:443") && !Hosts::default().has("baton.example"));
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "x",
            "baton.example.evil",
        ] {
            assert!(!hosts.has(other), "{other}");
        }
    }

    #[track_caller]
    fn check(open: bool, method: &str, headers: &[(&str, &str)], want: bool) {
        let mut request = Request::builder().method(method).uri("/v1/chat/completions");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let refused = refusal(&Hosts::new(vec!["baton.example".to_owned()]), open, &request);
        assert_eq!(refused.is_none(), want, "{method} {headers:?}: {refused:?}");
    }

    #[test]
    fn pages_of_others_are_refused() {
        let own = ("host", "127.0.0.1:8300");
        check(true, "POST", &[own], true);
        check(true, "POST", &[own, ("origin", "http://127.0.0.1:8300")], true);
        check(true, "POST", &[("host", "baton.example"), ("origin", "https://baton.example")], true);
        for origin in
            ["http://127.0.0.1:9000", "http://localhost:8300", "https://evil.example", "null", "", "file://"]
        {
            check(true, "POST", &[own, ("origin", origin)], false);
            check(true, "GET", &[own, ("origin", origin)], false);
            check(false, "POST", &[own, ("origin", origin)], true);
        }
        check(true, "POST", &[own, ("sec-fetch-site", "cross-site")], false);
        check(true, "POST", &[own, ("sec-fetch-site", "same-origin")], true);
        check(true, "GET", &[own, ("sec-fetch-site", "cross-site")], true);
        // DNS rebinding: host and origin agree.
        check(true, "GET", &[("host", "evil.example:8300"), ("origin", "http://evil.example:8300")], false);
        check(false, "GET", &[("host", "evil.example:8300")], false);
    }
}
