//! Tests that tenants learn nothing about each other's prompts, neither from figures nor from saved work.

use baton_cloud::Clock;
use baton_cloud::access::book::KeyPolicy;
use baton_cloud::access::{AccessBook, KeySecret, Scopes, TenantSettings};
use baton_cloud::api::{Access, ApiLimits};
use baton_cloud::gate::Gate;
use baton_cloud::scene::book::SceneBook;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::completion::CompletionRequest;
use baton_cloud::service::stream::AssistStream;
use baton_cloud::service::{CloudService, ServiceOptions, Terms};
use baton_cloud::store::now_ms;
use baton_edge::HttpLimits;
use baton_engine::BLOCK_TOKENS;
use baton_engine::Engine;
use baton_generate::host::Host;
use baton_openai::ChatMessage;
use baton_protocol::{AssistEvent, AssistRequest, Role, Segment};
use serde_json::{Value, json};

use crate::client::{Reply, Server};
use crate::world::{document, drain, end, key, model, options, request, setup, tenant};

/// The scene's own text: some whole blocks, and part of one.
const SYSTEM: &str =
    "You answer from the document, in one sentence, and say so if the document does not have it.";

fn service() -> (CloudService, Host<Engine>) {
    let settings = SceneSettings { ratio: Some(1.0), ..SceneSettings::with_system(SYSTEM) };
    let older = SceneSettings { system: "You answer.".into(), ..settings.clone() };
    let scene = |version, settings| Scene { id: "letters".into(), version, settings };
    let book = SceneBook::new([scene(1, older), scene(2, settings)]);
    CloudService::new(setup(), book, ServiceOptions { slots: 2, ..options() }).unwrap()
}

fn of(owner: u128) -> Terms {
    Terms { owner, ..Terms::default() }
}

/// Returns the cached tokens reported to a caller, and the prompt tokens that were computed for it.
fn ask(
    host: &mut Host<Engine>,
    stream: Result<AssistStream, baton_cloud::service::ServiceError>,
) -> (u64, usize) {
    let mut stream = stream.unwrap_or_else(|err| panic!("{err}"));
    let mut computed = 0;
    while let Some(pass) = host.turn() {
        computed += pass.content().prefill_tokens;
        host.commit(pass);
    }
    (end(&drain(&mut stream)).usage.cached_prefix_tokens, computed)
}

fn letter(text: &str) -> AssistRequest {
    AssistRequest {
        segments: vec![
            Segment::fixed(Role::System, SYSTEM),
            Segment::fixed(Role::User, text),
            Segment::fixed(Role::User, "\n\nQuestion: What does item 7 cost?"),
        ],
        ..request("letters", "", 1)
    }
}

fn form(code: u32) -> AssistRequest {
    letter(&format!("The code of the safe is {code:05}. It was changed last week. {}", document(6)))
}

/// Makes 200 guesses at the code in another tenant's document, one of them right.
fn guesses(victim: Option<u32>, attacker: u128) -> Vec<(u64, usize)> {
    let (service, mut host) = service();
    // The scene was used before, so its own text is cached whether the victim was there or not.
    ask(&mut host, service.assist_on(&letter("Hello."), of(7)));
    if let Some(code) = victim {
        ask(&mut host, service.assist_on(&form(code), of(1)));
    }
    (0..200).map(|at| ask(&mut host, service.assist_on(&form(47_000 + at), of(attacker)))).collect()
}

#[test]
fn two_hundred_guesses_at_another_tenant_s_prompt_gain_nothing() {
    let without = guesses(None, 2);
    // Reported and computed tokens do not depend on what the other tenant has asked, or whether it has.
    for code in [47_003, 47_110, 99_999] {
        assert_eq!(guesses(Some(code), 2), without, "the other tenant's code is {code}");
    }
    assert!(
        without.iter().all(|(told, _)| told % BLOCK_TOKENS as u64 == 0),
        "told in whole blocks: {without:?}"
    );
    // The same guesses by the tenant itself show that there is a difference to see.
    let own = guesses(Some(47_003), 1);
    let right = |guesses: &[(u64, usize)]| {
        let least = guesses.iter().map(|&(_, computed)| computed).min();
        guesses.iter().position(|&(_, computed)| Some(computed) == least)
    };
    assert_eq!(right(&own), Some(3), "within a tenant a known prompt is not computed again");
}

#[test]
fn only_what_a_scene_fixes_is_shared_among_tenants() {
    let (service, mut host) = service();
    let fixed = SYSTEM.len() + 2;
    let shared = (fixed - fixed % BLOCK_TOKENS) as u64;
    assert!(shared >= 64, "two control tokens, then a token for each byte");
    let mut cached = |request: &AssistRequest, owner| ask(&mut host, service.assist_on(request, of(owner))).0;
    let document = document(20);
    assert_eq!(cached(&letter(&document), 1), 0);
    assert_eq!(cached(&letter(&document), 2), shared, "another tenant, the same words");
    let again = cached(&letter(&document), 1);
    assert!(again > 300 && again.is_multiple_of(BLOCK_TOKENS as u64), "the same tenant: {again}");
    // Text that a tenant adds to the scene's is its own.
    let mut longer = letter(&document);
    longer.segments[0].text = format!("{SYSTEM} The customer is called {}.", "Quill ".repeat(20));
    assert_eq!((cached(&longer, 1), cached(&longer, 2)), (shared, shared));
    assert!(cached(&longer, 2) > shared);
    // A text of another version, or of no scene, is shared with no other tenant.
    let other = AssistRequest { scene_version: Some(1), ..letter(&document) };
    assert_eq!((cached(&other, 3), cached(&other, 4)), (0, 0));
    let mut moved = letter(&document);
    moved.segments.rotate_left(1);
    assert_eq!((cached(&moved, 3), cached(&moved, 4)), (0, 0), "a tenant's text before the scene's");
}

#[test]
fn a_chat_finds_its_own_turns_and_nobody_else_s() {
    let (service, mut host) = service();
    let message = |role, text: &str| ChatMessage::new(role, text);
    let first = vec![message(Role::System, SYSTEM), message(Role::User, &document(10))];
    let mut second = first.clone();
    second.extend([message(Role::Assistant, "It does."), message(Role::User, "Why?")]);
    let mut cached = |messages: &[ChatMessage], owner| {
        let asked =
            CompletionRequest { max_tokens: Some(1), ..CompletionRequest::new("default", messages.to_vec()) };
        ask(&mut host, service.complete_on(&asked, of(owner))).0
    };
    assert_eq!((cached(&first, 1), cached(&first, 2), cached(&second, 3)), (0, 0, 0));
    let again = cached(&second, 1);
    assert!(again > 200 && again.is_multiple_of(BLOCK_TOKENS as u64), "{again}");
}

#[test]
fn tenants_that_ask_the_same_at_the_same_time_get_the_same_answer_by_their_own_work() {
    let (service, mut host) = service();
    let ids = |stream: &mut AssistStream| crate::world::tokens(&drain(stream));
    let asked = AssistRequest { assist_tokens: Some(6), ..form(1) };
    let streams = [1, 2].map(|owner| service.assist_on(&asked, of(owner)).unwrap());
    let mut computed = 0;
    while let Some(pass) = host.turn() {
        computed += pass.content().prefill_tokens;
        host.commit(pass);
    }
    let tokens = crate::world::prompt_ids(&model(), &asked).len();
    assert!(computed > 2 * tokens - SYSTEM.len() - 2, "{computed} computed for two prompts of {tokens}");
    let [mut one, mut two] = streams;
    let (one, two) = (ids(&mut one), ids(&mut two));
    assert!(one.len() == 6 && one == two);
}

/// Starts a server with one key for each entry of `tenants`; a tenant may be named more than once.
pub(crate) async fn server<const N: usize>(
    tenants: [&str; N],
    settings: TenantSettings,
) -> (Server, [KeySecret; N]) {
    let secrets = tenants.map(|_| KeySecret::generate());
    let keys = secrets.iter().zip(tenants).map(|(secret, tenant)| key(secret, tenant, Scopes::ALL));
    let tenants = tenants.iter().map(|id| tenant(id, settings.clone()));
    let book = AccessBook::new(KeyPolicy::Required, None);
    book.replace(tenants.collect(), keys.collect());
    let access = Access { book, gate: Gate::new(Clock::monotonic(), now_ms) };
    let server = Server::with_access(options(), access, HttpLimits::default(), ApiLimits::default()).await;
    (server, secrets)
}

async fn send(server: &Server, key: &KeySecret, method: &str, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {}", key.reveal());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    server.send(method, path, &headers, body.as_bytes()).await
}

#[tokio::test]
async fn keys_of_one_tenant_share_prefixes_and_others_do_not() {
    let (server, [one, other, same]) = server(["acme", "zeta", "acme"], TenantSettings::default()).await;
    let assist = serde_json::to_value(request("doc-qa", &document(20), 2)).unwrap();
    let chat = json!({ "model": "default", "messages": [{ "role": "user", "content": document(20) }], "max_tokens": 2 });
    for (path, body, at) in
        [("/v1/assist", assist, "cached_prefix_tokens"), ("/v1/chat/completions", chat, "cached_tokens")]
    {
        let mut cached = Vec::new();
        for key in [&one, &other, &same] {
            let reply = send(&server, key, "POST", path, &body).await;
            assert_eq!(reply.status, 200, "{reply:?}");
            let text = reply.body();
            let figure =
                text.split(&format!("\"{at}\":")).nth(1).and_then(|rest| rest.split([',', '}']).next());
            cached.push(figure.and_then(|figure| figure.parse::<usize>().ok()).unwrap());
        }
        assert_eq!(cached[..2], [0, 0], "{path}");
        assert!(cached[2] > 200 && cached[2].is_multiple_of(BLOCK_TOKENS), "{path}: {cached:?}");
    }
}

#[tokio::test]
async fn a_kept_stream_is_its_key_s_alone() {
    let (server, [one, other, same]) = server(["acme", "zeta", "acme"], TenantSettings::default()).await;
    let mut asked = request("doc-qa", &document(20), 4);
    asked.resume = true;
    let path = format!("/v1/assist/{}", asked.request_id);
    let whole = send(&server, &one, "POST", "/v1/assist", &serde_json::to_value(&asked).unwrap()).await;
    assert_eq!(whole.status, 200);
    for stranger in [&other, &same] {
        let reply = send(&server, stranger, "GET", &path, &Value::Null).await;
        assert_eq!(reply.status, 410, "{reply:?}");
    }
    assert_eq!(server.get(&path).await.status, 401);
    // With the same id, another tenant gets its own answer to its own question.
    let mut own = request("doc-qa", &document(3), 2);
    own.resume = true;
    let reply = send(&server, &other, "POST", "/v1/assist", &serde_json::to_value(&own).unwrap()).await;
    let written = |reply: &Reply| {
        let token = |event: &&AssistEvent| matches!(event, AssistEvent::First(_) | AssistEvent::Token(_));
        reply.events().iter().filter(token).count()
    };
    assert_eq!((written(&whole), written(&reply)), (4, 2));
    let again = send(&server, &one, "GET", &path, &Value::Null).await;
    assert_eq!(again.events(), whole.events(), "and the first one still has its own");
    // Another question with the same id is not answered with the kept stream.
    let reply = send(&server, &one, "POST", "/v1/assist", &serde_json::to_value(&own).unwrap()).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("request_id")), "{reply:?}");
}
