//! Tests requests of a replica at the console and its API: who sees what, what is found, and who cancels.

use baton_cloud::service::Terms;
use baton_cloud::service::completion::CompletionRequest;
use baton_engine::Engine;
use baton_generate::host::Host;
use baton_openai::ChatMessage;
use baton_protocol::{AssistEvent, EndReason, Role};
use serde_json::{Value, json};

use super::pages::check_page;
use super::{API, Caller, World};
use crate::world::{by_hand, document, drain, end, options, request, run_all};

fn terms(request: &str, tenant: &str) -> Terms {
    Terms { request: request.into(), tenant: tenant.into(), ..Terms::default() }
}

/// Runs one pass.
fn pass(host: &mut Host<Engine>) {
    let pass = host.turn().expect("there is something to run");
    host.commit(pass);
}

async fn list(world: &World, caller: &Caller, query: &str) -> Value {
    let answer = world.get(caller, &format!("{API}/requests?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    answer.json()
}

async fn ids(world: &World, caller: &Caller, query: &str) -> Vec<String> {
    let found = list(world, caller, query).await;
    let requests = found["requests"].as_array().unwrap().iter();
    requests.map(|request| request["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_request_is_listed_while_it_runs_and_found_when_it_has_ended() {
    let (service, mut host) = by_hand(options());
    let world = World::over(service.clone(), None, false).await.with_users().await;
    let vera = world.log_in("vera").await;
    assert_eq!(list(&world, &vera, "").await["requests"], json!([]));
    let mut stream = service.assist_on(&request("doc-qa", &document(8), 6), terms("one-1", "acme")).unwrap();
    let waiting = list(&world, &vera, "").await;
    let seen = &waiting["requests"][0];
    assert_eq!((&waiting["running"], &waiting["ended_max"]), (&json!(1), &json!(2000)));
    assert_eq!(
        (&seen["state"], &seen["outcome"], &seen["queue_ms"]),
        (&json!("waiting"), &Value::Null, &Value::Null)
    );
    assert_eq!(
        (&seen["tenant"], &seen["scene"], &seen["model"]),
        (&json!("acme"), &json!("doc-qa"), &json!("tiny"))
    );
    assert_eq!((&seen["prompt_tokens"], &seen["max_tokens"]), (&json!(stream.prompt_tokens()), &json!(6)));
    pass(&mut host);
    let seen = world.get(&vera, &format!("{API}/requests/one-1")).await.json();
    assert_eq!((&seen["state"], seen["queue_ms"].is_number()), (&json!("prefill"), true), "{seen}");
    while !drain(&mut stream).iter().any(|event| matches!(event, AssistEvent::First(_))) {
        pass(&mut host);
    }
    let seen = world.get(&vera, &format!("{API}/requests/one-1")).await.json();
    assert_eq!((&seen["state"], seen["prefill_ms"].is_number()), (&json!("writing"), true), "{seen}");
    assert_eq!((seen["tokens"].as_u64(), &seen["decode_ms"]), (Some(1), &Value::Null));
    run_all(&mut host);
    let outcome = match end(&drain(&mut stream)).reason {
        EndReason::Cap => "cap",
        EndReason::Stop => "stop",
        EndReason::Cancelled => panic!("nobody cancelled it"),
    };
    let ended = list(&world, &vera, "id=one-1").await;
    assert_eq!((&ended["running"], &ended["ended"]), (&json!(0), &json!(1)));
    let seen = &ended["requests"][0];
    assert_eq!((&seen["state"], &seen["outcome"]), (&json!("ended"), &json!(outcome)));
    assert!(seen["decode_ms"].is_number() && seen["tokens"].as_u64() >= Some(1), "{seen}");
    let unknown = world.get(&vera, &format!("{API}/requests/one")).await;
    assert_eq!(unknown.status, 404, "only a whole id names a request: {unknown:?}");
}

#[tokio::test]
async fn requests_are_found_by_prefix_state_tenant_scene_and_model() {
    let (service, mut host) = by_hand(options());
    let world = World::over(service.clone(), None, false).await.with_users().await;
    let vera = world.log_in("vera").await;
    let ask = |scene: &str, id: &str, tenant: &str| {
        service.assist_on(&request(scene, &document(8), 2), terms(id, tenant)).unwrap()
    };
    let mut kept = vec![ask("doc-qa", "ab-1", "acme"), ask("doc-qa-full", "ab-2", "other")];
    run_all(&mut host);
    kept.push(ask("doc-qa", "ab-3", "acme"));
    let messages = vec![ChatMessage::new(Role::User, "What is a plover?")];
    let chat = CompletionRequest { max_tokens: Some(2), ..CompletionRequest::new("default", messages) };
    kept.push(service.complete_on(&chat, terms("chat-1", "other")).unwrap());
    for (query, want) in [
        ("", vec!["chat-1", "ab-3", "ab-2", "ab-1"]),
        ("id=ab", vec!["ab-3", "ab-2", "ab-1"]),
        ("id=ab-2&state=ended", vec!["ab-2"]),
        ("state=running", vec!["chat-1", "ab-3"]),
        ("tenant=acme", vec!["ab-3", "ab-1"]),
        ("scene=doc-qa-full", vec!["ab-2"]),
        ("scene=&tenant=&id=&limit=2", vec!["chat-1", "ab-3"]),
        ("model=tiny&tenant=other", vec!["chat-1", "ab-2"]),
        ("model=large", vec![]),
    ] {
        let mut found = ids(&world, &vera, query).await;
        // Those that ran in the same passes may end in any order.
        found[..].sort();
        let mut want = want;
        want.sort_unstable();
        assert_eq!(found, want, "{query}");
    }
    assert_eq!(list(&world, &vera, "limit=2").await["has_more"], true);
    assert_eq!(list(&world, &vera, "id=chat").await["requests"][0]["scene"], Value::Null);
    for (query, status, field) in [
        ("state=odd", 422, "state"),
        ("limit=0", 422, "limit"),
        ("limit=501", 422, "limit"),
        ("limit=x", 400, "limit"),
    ] {
        let answer = world.get(&vera, &format!("{API}/requests?{query}")).await;
        assert_eq!((answer.status, &answer.json()["field"]), (status, &json!(field)), "{query}: {answer:?}");
    }
    // Not a word of a prompt, and nothing that this program asked itself.
    let mut warm = service.complete(&chat).unwrap();
    assert_eq!(ids(&world, &vera, "").await.len(), 4);
    for path in ["/admin/requests", &format!("{API}/requests"), &format!("{API}/requests/ab-3")] {
        let body = world.get(&vera, path).await.body;
        for word in ["coins", "report", "plover", "answer from the document"] {
            assert!(!body.contains(word), "{path} tells `{word}`: {body}");
        }
    }
    run_all(&mut host);
    drain(&mut warm);
}

#[tokio::test]
async fn an_admin_cancels_a_running_request_and_others_may_not() {
    let (service, mut host) = by_hand(options());
    let world = World::over(service.clone(), None, false).await.with_users().await;
    let (ada, edna, vera) =
        (world.log_in("ada").await, world.log_in("edna").await, world.log_in("vera").await);
    let mut stream =
        service.assist_on(&request("doc-qa", &document(8), 60), terms("long-1", "acme")).unwrap();
    pass(&mut host);
    let cancel = "/requests/long-1/cancel";
    for caller in [&edna, &vera] {
        assert_eq!(world.call(caller, "POST", cancel, None, &Value::Null).await.status, 403);
    }
    let answer = world.call(&ada, "POST", cancel, None, &Value::Null).await;
    assert_eq!((answer.status, answer.json()), (202, json!({ "cancelled": 1 })));
    run_all(&mut host);
    assert_eq!(end(&drain(&mut stream)).reason, EndReason::Cancelled);
    let seen = world.get(&vera, &format!("{API}/requests/long-1")).await.json();
    assert_eq!((&seen["state"], &seen["outcome"]), (&json!("ended"), &json!("cancelled")));
    assert_eq!(world.call(&ada, "POST", cancel, None, &Value::Null).await.status, 409);
    let unknown = world.call(&ada, "POST", "/requests/none/cancel", None, &Value::Null).await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    let audit = world.get(&vera, &format!("{API}/audit?limit=1")).await.json();
    let row = &audit["rows"][0];
    assert_eq!((&row["actor"], &row["action"]), (&json!("user:ada"), &json!("request.cancel")));
    assert_eq!(row["target"], "request/long-1");
    let metrics = service.render_metrics();
    assert!(!metrics.contains("baton_client_disconnects_total 1"), "its reader did not go away: {metrics}");
}

#[tokio::test]
async fn the_page_searches_and_cancels_as_plain_forms() {
    let (service, mut host) = by_hand(options());
    let world = World::over(service.clone(), None, false).await.with_users().await;
    let (ada, vera) = (world.log_in("ada").await, world.log_in("vera").await);
    let mut first = service.assist_on(&request("doc-qa", &document(8), 2), terms("first-1", "acme")).unwrap();
    run_all(&mut host);
    drain(&mut first);
    let mut second =
        service.assist_on(&request("doc-qa", &document(8), 40), terms("second-1", "acme")).unwrap();
    pass(&mut host);
    let page = world.get(&ada, "/admin/requests").await;
    check_page("/admin/requests", &page);
    assert!(page.body.contains("and of no other one: 1 running, 1 that ended"), "{}", page.body);
    assert!(page.body.contains("first-1") && page.body.contains("aria-label=\"End second-1\""));
    assert!(!page.body.contains("aria-label=\"End first-1\""), "what has ended is not ended again");
    let page = world.get(&vera, "/admin/requests?id=fir&tenant=acme").await;
    check_page("/admin/requests", &page);
    assert!(page.body.contains("first-1") && !page.body.contains("second-1"), "{}", page.body);
    assert!(!world.get(&vera, "/admin/requests").await.body.contains("End second-1"), "a viewer only looks");
    let fields = [("id", "second-1")];
    assert_eq!(world.form(&vera, "/admin/requests", &fields).await.status, 403);
    let asked = world.form(&ada, "/admin/requests", &fields).await;
    assert!(asked.status == 200 && asked.body.contains("End the answer?"), "{asked:?}");
    check_page("a question", &asked);
    let done = world.form(&ada, "/admin/requests", &[("id", "second-1"), ("confirmed", "yes")]).await;
    assert_eq!((done.status, done.header("location")), (303, "/admin/requests?done=cancelled"));
    run_all(&mut host);
    assert_eq!(end(&drain(&mut second)).reason, EndReason::Cancelled);
    let late = world.form(&ada, "/admin/requests", &[("id", "second-1"), ("confirmed", "yes")]).await;
    assert_eq!(late.status, 409, "{late:?}");
}
