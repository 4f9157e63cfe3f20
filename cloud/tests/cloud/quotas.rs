//! Tests daily tokens: reserved before anything is computed, settled when the work ends, charged once for one
//! request.

use std::sync::Arc;

use baton_cloud::Clock;
use baton_cloud::access::book::KeyPolicy;
use baton_cloud::access::{AccessBook, Tenant, TenantSettings};
use baton_cloud::api::{Access, ApiLimits};
use baton_cloud::gate::{Gate, QuotaError};
use baton_cloud::service::{ServiceError, Terms};
use baton_cloud::store::now_ms;
use baton_edge::HttpLimits;
use baton_protocol::{AssistEvent, AssistRequest};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Reply, Server};
use crate::world::{by_hand, document, drain, end, options, request, run_all, tokens};

pub(crate) fn gate() -> Gate {
    Gate::new(Clock::monotonic(), now_ms)
}

pub(crate) fn tenant(tokens_per_day: Option<u64>) -> Arc<Tenant> {
    let settings = TenantSettings { tokens_per_day, ..TenantSettings::default() };
    let updated_by = String::new();
    let id = baton_cloud::access::DEFAULT_TENANT.to_owned();
    Arc::new(Tenant { id, revision: 1, settings, created_ms: 0, updated_ms: 0, updated_by })
}

/// Starts a server without keys; its callers are the default tenant.
async fn server(tokens_per_day: Option<u64>) -> (Server, Gate) {
    let book = AccessBook::new(KeyPolicy::OnceThereIsOne, None);
    book.replace(vec![Tenant::clone(&tenant(tokens_per_day))], Vec::new());
    let gate = gate();
    let access = Access { book, gate: gate.clone() };
    (Server::with_access(options(), access, HttpLimits::default(), ApiLimits::default()).await, gate)
}

fn numbered(id: u128, assist_tokens: u32) -> AssistRequest {
    AssistRequest { request_id: Uuid::from_u128(id), ..request("doc-qa", &document(3), assist_tokens) }
}

async fn ask(server: &Server, request: &AssistRequest) -> Reply {
    server.post("/v1/assist", &serde_json::to_value(request).unwrap()).await
}

/// Returns the number of tokens that were charged.
fn charged(gate: &Gate) -> u64 {
    gate.deltas().iter().map(|delta| delta.tokens).sum()
}

#[tokio::test]
async fn forty_requests_at_once_do_not_pass_the_day_together() {
    const LIMIT: u64 = 500;
    let (server, gate) = server(Some(LIMIT)).await;
    let all: Vec<AssistRequest> = (0..40).map(|at| numbered(100 + at, 8)).collect();
    let replies = futures_util::future::join_all(all.iter().map(|request| ask(&server, request))).await;
    let served = replies.iter().filter(|reply| reply.status == 200).count();
    assert!(served > 0, "some are served");
    assert!(replies.iter().all(|reply| [200, 429].contains(&reply.status)), "{replies:?}");
    assert!(charged(&gate) <= LIMIT, "{served} answers used {} tokens", charged(&gate));
    assert_eq!(gate.deltas()[0].reserved, 0, "nothing stays set aside");
}

#[tokio::test]
async fn the_last_tokens_of_a_day_bound_the_answer() {
    let (unbounded, gate) = server(None).await;
    let usage = end(&ask(&unbounded, &numbered(1, 8)).await.events()).usage;
    let (prompt, written) = (usage.prompt_tokens, usage.completion_tokens);
    assert!(written > 1, "{usage:?}");
    assert_eq!(charged(&gate), prompt + written);
    let (bounded, gate) = server(Some(prompt + written - 1)).await;
    let reply = ask(&bounded, &numbered(2, 8)).await;
    let promised = format!(r#""assist_tokens":{},"assist_bound_by":"quota""#, written - 1);
    assert!(reply.body().contains(&promised), "{reply:?}");
    assert_eq!(charged(&gate), prompt + written - 1);
    assert_eq!(ask(&bounded, &numbered(3, 8)).await.status, 429);
    // If not even the prompt fits, the request is refused at once.
    let (less, gate) = server(Some(prompt)).await;
    let reply = ask(&less, &numbered(4, 8)).await;
    assert_eq!(reply.status, 429, "{reply:?}");
    assert!(reply.body().contains(&format!("tokens in a day (UTC), {prompt} are left")), "{reply:?}");
    assert_eq!(charged(&gate), 0);
}

#[test]
fn a_prompt_whose_answer_nobody_waits_for_is_charged_as_far_as_it_was_computed() {
    let (service, mut host) = by_hand(options());
    let (gate, tenant) = (gate(), tenant(None));
    let ask = || {
        let permit = gate.admit(&tenant).unwrap();
        let asked = numbered(1, 8);
        let answer = service.assist_for(&asked, Terms::default(), Some(permit.payer())).unwrap();
        (permit, answer)
    };
    // Cancelled in the queue: nothing was computed.
    drop(ask());
    run_all(&mut host);
    assert_eq!(charged(&gate), 0);
    // Cancelled after the first pass, of 64 tokens: these are charged, even if the pass was not finished yet.
    let answer = ask();
    let pass = host.turn().expect("a pass");
    drop(answer);
    host.commit(pass);
    run_all(&mut host);
    assert_eq!(charged(&gate), 64);
    let (_permit, mut answer) = ask();
    run_all(&mut host);
    let events = drain(&mut answer);
    let usage = end(&events).usage;
    // The same request again: it pays for the new tokens.
    assert_eq!(charged(&gate), usage.prompt_tokens + usage.completion_tokens);
    assert_eq!(usage.completion_tokens, tokens(&events).len() as u64);
}

#[tokio::test]
async fn a_request_that_its_client_ends_is_charged_for_what_was_computed() {
    let (server, gate) = server(Some(1_000_000)).await;
    let asked = AssistRequest { resume: true, ..numbered(1, 1500) };
    let body = serde_json::to_vec(&asked).unwrap();
    let mut open = server.open("POST", "/v1/assist", &[], &body).await;
    open.until("event: token").await;
    assert!(gate.deltas()[0].reserved > 0);
    assert_eq!(
        server.send("DELETE", &format!("/v1/assist/{}", asked.request_id), &[], b"").await.status,
        204
    );
    let usage = end(&open.read_all().await.events()).usage;
    assert!(usage.completion_tokens > 0, "{usage:?}");
    assert_eq!(charged(&gate), usage.prompt_tokens + usage.completion_tokens);
    assert_eq!((gate.deltas()[0].reserved, gate.deltas()[0].running), (0, 0), "nothing stays set aside");
}

#[tokio::test]
async fn one_request_is_charged_once() {
    for resume in [false, true] {
        let (server, gate) = server(None).await;
        let request = AssistRequest { resume, ..numbered(7, 8) };
        let first = ask(&server, &request).await;
        let once = charged(&gate);
        assert!(once > 8, "{first:?}");
        for _ in 0..2 {
            assert_eq!(tokens(&ask(&server, &request).await.events()), tokens(&first.events()));
            assert_eq!(charged(&gate), once, "resume: {resume}");
        }
        // The same id with another question is another request.
        let mut other = request.clone();
        other.segments[2].text.push_str(" And item 2?");
        if !resume {
            ask(&server, &other).await;
            assert!(charged(&gate) > once, "free tokens for whoever keeps an id");
        }
    }
}

#[test]
fn a_request_is_not_answered_for_nothing_again_and_again() {
    let (service, mut host) = by_hand(options());
    let (gate, tenant) = (gate(), tenant(None));
    let permit = gate.admit(&tenant).unwrap();
    for _ in 0..4 {
        let mut answer = service.assist_for(&numbered(1, 2), Terms::default(), Some(permit.payer())).unwrap();
        run_all(&mut host);
        assert!(matches!(drain(&mut answer).last(), Some(AssistEvent::End(_))));
    }
    let err = service.assist_for(&numbered(1, 2), Terms::default(), Some(permit.payer())).unwrap_err();
    assert!(matches!(err, ServiceError::Quota(QuotaError::Repeated)), "{err:?}");
    assert_eq!(err.to_body().error.param.as_deref(), Some("request_id"));
}

#[tokio::test]
async fn a_schema_that_cannot_be_followed_is_the_requests_fault_and_its_prompt_is_paid_for() {
    let (server, gate) = server(None).await;
    let property = |at: usize| (format!("p{at}"), json!({ "type": "string" }));
    let properties: serde_json::Map<String, Value> = (0..2_000).map(property).collect();
    let reply = server
        .post(
            "/v1/chat/completions",
            &json!({
                "model": "default", "messages": [{ "role": "user", "content": "Why?" }], "max_tokens": 9,
                "response_format": { "type": "json_schema", "json_schema": {
                    "name": "wide", "schema": { "type": "object", "properties": properties },
                } },
            }),
        )
        .await;
    assert_eq!(reply.status, 400, "{reply:?}");
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("the answer cannot go on as its schema demands"), "{message}");
    assert!(charged(&gate) > 4, "a schema made to fail would be a prompt for nothing");
}
