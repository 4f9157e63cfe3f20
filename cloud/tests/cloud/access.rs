//! Tests keys, scopes and quotas as a caller sees them.

use baton_cloud::Clock;
use baton_cloud::access::book::KeyPolicy;
use baton_cloud::access::{AccessBook, ApiKey, KeySecret, Scopes, TenantSettings};
use baton_cloud::api::{Access, ApiLimits};
use baton_cloud::gate::Gate;
use baton_cloud::store::now_ms;
use baton_edge::HttpLimits;
use baton_protocol::AssistRequest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Reply, Server};
use crate::world::{document, key, options, request, tenant};

/// Starts a server on which every request needs a key of the tenant `acme`; returns keys with these scopes.
async fn server<const N: usize>(
    settings: TenantSettings,
    scopes: [Scopes; N],
) -> (Server, AccessBook, [KeySecret; N]) {
    let secrets = scopes.map(|_| KeySecret::generate());
    let book = AccessBook::new(KeyPolicy::Required, None);
    let keys = secrets.iter().zip(scopes).map(|(secret, scopes)| key(secret, "acme", scopes));
    book.replace(vec![tenant("acme", settings)], keys.collect());
    let access = Access { book: book.clone(), gate: Gate::new(Clock::monotonic(), now_ms) };
    let server = Server::with_access(options(), access, HttpLimits::default(), ApiLimits::default()).await;
    (server, book, secrets)
}

async fn send(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if method == "GET" { String::new() } else { body.to_string() };
    server.send(method, path, &headers, body.as_bytes()).await
}

fn assist(tokens: u32) -> Value {
    let request = AssistRequest { request_id: Uuid::new_v4(), ..request("doc-qa", &document(3), tokens) };
    serde_json::to_value(request).unwrap()
}

fn chat() -> Value {
    json!({ "model": "default", "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 2 })
}

/// Returns the error codes for a wrong key and for an insufficient one, as the clients of a route know them.
fn denials(path: &str) -> [&'static str; 2] {
    if path.starts_with("/v1/chat") || path.starts_with("/v1/models") {
        ["invalid_api_key", "insufficient_permissions"]
    } else {
        ["unauthorized", "forbidden"]
    }
}

#[track_caller]
fn refused(reply: &Reply, status: u16, code: &str, message: &str) {
    let body = reply.json();
    assert_eq!((reply.status, body["error"]["code"].as_str()), (status, Some(code)), "{reply:?}");
    assert!(body["error"]["message"].as_str().unwrap().contains(message), "{body}");
}

#[tokio::test]
async fn each_route_needs_its_scope() {
    let scopes = ["assist", "chat", "scenes:read", "stats", "all"].map(|scopes| scopes.parse().unwrap());
    let (server, _, keys) = server(TenantSettings::default(), scopes).await;
    let routes = [
        ("POST", "/v1/assist", Some(0)),
        ("GET", "/v1/assist/3b241101-e2bb-4255-8caf-4136c566a962", Some(0)),
        ("POST", "/v1/chat/completions", Some(1)),
        ("GET", "/v1/scenes", Some(2)),
        ("GET", "/v1/scenes/doc-qa", Some(2)),
        ("GET", "/v1/stats", Some(3)),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/default", None),
    ];
    for (method, path, needs) in routes {
        let body = if path.contains("chat") { chat() } else { assist(1) };
        let [unauthorized, forbidden] = denials(path);
        for (at, key) in keys.iter().enumerate() {
            let reply = send(&server, key.reveal(), method, path, &body).await;
            let may = needs.is_none_or(|needs| needs == at || at == 4);
            if may {
                assert!(reply.status == 200 || reply.status == 410, "{path} by {at}: {reply:?}");
            } else {
                refused(&reply, 403, forbidden, "this API key lacks the scope");
            }
        }
        let reply = send(&server, "btk_000000000000_x", method, path, &body).await;
        refused(&reply, 401, unauthorized, "the API key is missing or wrong");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        if unauthorized == "invalid_api_key" {
            let error = &reply.json()["error"];
            assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &Value::Null));
        }
        refused(&server.send(method, path, &[], b"").await, 401, unauthorized, "missing or wrong");
    }
    assert_eq!(server.get("/healthz").await.status, 200, "health asks for no key");
}

#[tokio::test]
async fn a_revoked_key_and_a_disabled_tenant_are_refused_at_once() {
    let (server, book, [secret]) = server(TenantSettings::default(), [Scopes::ALL]).await;
    let ask = async || send(&server, secret.reveal(), "GET", "/v1/models", &Value::Null).await;
    assert_eq!(ask().await.status, 200);
    let disabled = TenantSettings { disabled: true, ..TenantSettings::default() };
    let same = |revoked_ms| ApiKey { revision: 2, revoked_ms, ..key(&secret, "acme", Scopes::ALL) };
    book.replace(vec![tenant("acme", disabled)], vec![same(None)]);
    refused(&ask().await, 403, "insufficient_permissions", "the tenant of this API key is disabled");
    book.replace(vec![tenant("acme", TenantSettings::default())], vec![same(Some(1))]);
    refused(&ask().await, 401, "invalid_api_key", "missing or wrong");
}

#[tokio::test]
async fn a_tenant_over_its_quota_is_told_when_to_come_back() {
    let settings = TenantSettings { requests_per_minute: Some(2), ..TenantSettings::default() };
    let (server, _, [key]) = server(settings, [Scopes::ALL]).await;
    for path in ["/v1/assist", "/v1/chat/completions"] {
        let body = if path.contains("chat") { chat() } else { assist(1) };
        assert_eq!(send(&server, key.reveal(), "POST", path, &body).await.status, 200);
    }
    let reply = send(&server, key.reveal(), "POST", "/v1/assist", &assist(1)).await;
    refused(&reply, 429, "overloaded", "the tenant may send 2 requests in a minute");
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    let reply = send(&server, key.reveal(), "GET", "/v1/scenes", &Value::Null).await;
    assert_eq!(reply.status, 200, "only answers are counted");
}

#[tokio::test]
async fn running_requests_and_tokens_are_counted() {
    let settings =
        TenantSettings { concurrency_max: Some(1), tokens_per_day: Some(1000), ..TenantSettings::default() };
    let (server, _, [key]) = server(settings, [Scopes::ALL]).await;
    let bearer = format!("Bearer {}", key.reveal());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let long = assist(1200).to_string();
    let mut running = server.open("POST", "/v1/assist", &headers, long.as_bytes()).await;
    running.until("event: first").await;
    let reply = send(&server, key.reveal(), "POST", "/v1/chat/completions", &chat()).await;
    // The chat API uses OpenAI's codes.
    let message = "the tenant may have 1 requests running at the same time";
    refused(&reply, 429, "rate_limit_exceeded", message);
    let whole = running.read_all().await;
    assert!(whole.body().contains("event: end"), "{whole:?}");
    // About 300 tokens of prompt and answer each: the daily tokens are soon used up.
    let mut replies = 0;
    let over = loop {
        let reply = send(&server, key.reveal(), "POST", "/v1/assist", &assist(100)).await;
        if reply.status != 200 {
            break reply;
        }
        replies += 1;
        assert!(replies < 20, "tokens are counted");
    };
    refused(&over, 429, "overloaded", "the tenant may use 1000 tokens in a day (UTC)");
    // OpenAI's clients ignore a Retry-After of more than a minute, and would retry at once.
    let mut longer = chat();
    longer["messages"][0]["content"] = "Hello ".repeat(200).into();
    let over = send(&server, key.reveal(), "POST", "/v1/chat/completions", &longer).await;
    refused(&over, 429, "rate_limit_exceeded", "1000 tokens in a day");
    let wait: u64 = over.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(over.header("x-should-retry"), (wait > 60).then_some("false"), "{wait} s");
}
