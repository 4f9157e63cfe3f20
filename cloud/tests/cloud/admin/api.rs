//! Tests the admin API: revisions, refusals, and the effects of changes.

use baton_cloud::access::Actor;
use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{Database, Expected, testing};
use serde_json::{Value, json};

use super::{API, World};
use crate::world::{by_hand, options};

fn settings(change: impl FnOnce(&mut Value)) -> Value {
    let mut settings = json!({
        "system": "You answer from the document.", "question_prefix": "\n\nQuestion: ", "ratio": 0.25, "xi": 0.25,
        "assist_tokens": null, "assist_floor": 4, "assist_max": 4096, "tau_ms": 100, "corrector": "cloud", "refine": true,
        "mode": "attention", "tolerance": 0.02,
    });
    change(&mut settings);
    settings
}

#[tokio::test]
async fn a_list_of_scenes_reads_no_version_that_it_does_not_show() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::File(folder.path().join("cloud.db"));
    let (service, host) = by_hand(options());
    let world = World::on(&database, service, Some(host), false).await.with_users().await;
    let edna = world.log_in("edna").await;
    let old = world.store.scene("chat").await.unwrap().settings;
    let mut new = old.clone();
    for xi in [0.5, 0.6] {
        new = SceneSettings { xi, ..new };
        world.store.set_scene("chat", &new, "", Expected::Any, &Actor::cli()).await.unwrap();
    }
    let draft = SceneSettings { xi: 0.7, ..new };
    world.store.save_draft("chat", &draft, "", Expected::Any, &Actor::cli()).await.unwrap();
    // Whoever reads the first two versions fails.
    let spoil = "DROP TRIGGER scene_versions_are_immutable; \
         UPDATE scene_versions SET settings = '7' WHERE id = 'chat' AND version < 3";
    testing::execute(&database, spoil).await.unwrap();
    let list = world.get(&edna, &format!("{API}/scenes")).await;
    assert_eq!(list.status, 200, "{list:?}");
    let list = list.json();
    let scenes = list["scenes"].as_array().unwrap();
    let ids: Vec<&str> = scenes.iter().map(|scene| scene["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["chat", "doc-qa", "doc-qa-full"]);
    assert_eq!((&scenes[0]["published"]["xi"], &scenes[0]["draft"]["xi"]), (&json!(0.6), &json!(0.7)));
    let one = world.get(&edna, &format!("{API}/scenes/chat")).await;
    assert_eq!((one.status, &one.json()), (200, &scenes[0]));
    let page = world.get(&edna, "/admin/scenes").await;
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(world.get(&edna, &format!("{API}/scenes/")).await.status, 404);
    assert_eq!(world.get(&edna, &format!("{API}/scenes/chat/versions")).await.status, 500, "they are read");
}

#[tokio::test]
async fn a_scene_goes_from_draft_to_force_and_back() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    let scene = world.get(&edna, &format!("{API}/scenes/doc-qa")).await;
    let tag = scene.header("etag").to_owned();
    let published = scene.json()["published_version"].as_u64().unwrap();
    let draft = json!({ "settings": settings(|s| s["ratio"] = json!(0.5)), "note": "more of it" });

    let answer = world.call(&edna, "PUT", "/scenes/doc-qa/draft", Some(&tag), &draft).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let (tag, waiting) = (answer.header("etag").to_owned(), answer.json());
    assert_eq!(waiting["published_version"], published);
    assert_eq!((&waiting["draft"]["ratio"], &waiting["published"]["ratio"]), (&json!(0.5), &json!(0.25)));
    let diff = world.get(&edna, &format!("{API}/scenes/doc-qa/diff")).await.json();
    assert_eq!(diff["changes"], json!([{ "field": "ratio", "from": 0.25, "to": 0.5 }]));

    let answer =
        world.call(&edna, "POST", "/scenes/doc-qa/publish", Some(&tag), &json!({ "note": "n" })).await;
    let (tag, now) = (answer.header("etag").to_owned(), answer.json());
    assert_eq!(
        (now["published_version"].as_u64(), &now["draft_version"]),
        (Some(published + 1), &Value::Null)
    );
    assert_eq!(world.store.scene("doc-qa").await.unwrap().settings.ratio, Some(0.5));

    let back = json!({ "version": published });
    let answer = world.call(&edna, "POST", "/scenes/doc-qa/rollback", Some(&tag), &back).await;
    assert_eq!(answer.json()["published"]["ratio"], 0.25, "{answer:?}");
    assert_eq!(answer.json()["published_version"], published + 2);
    let versions = world.get(&edna, &format!("{API}/scenes/doc-qa/versions")).await.json();
    let states: Vec<&str> =
        versions["versions"].as_array().unwrap().iter().map(|v| v["state"].as_str().unwrap()).collect();
    assert_eq!(states[..2], ["published", "superseded"]);

    let audit = world.get(&edna, &format!("{API}/audit?limit=3")).await.json();
    let rows: Vec<(&str, &str)> = audit["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["actor"].as_str().unwrap(), row["action"].as_str().unwrap()))
        .collect();
    assert_eq!(
        rows,
        [("user:edna", "scene.rollback"), ("user:edna", "scene.publish"), ("user:edna", "scene.draft")]
    );
    let verified = world.get(&edna, &format!("{API}/audit/verify")).await.json();
    assert_eq!(verified["whole"], true);
}

#[tokio::test]
async fn every_change_says_what_it_is_based_on() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let made =
        world.call(&ada, "POST", "/keys", None, &json!({ "tenant": "default", "scopes": ["assist"] })).await;
    let key = made.json()["key"]["id"].as_str().unwrap().to_owned();
    let draft = json!({ "settings": settings(|_| ()) });
    let tenant = json!({ "weight": 5 });
    let class = json!({ "label": "x" });
    let none = json!({});
    let changes = [
        ("PUT", "/scenes/doc-qa/draft".to_owned(), &draft),
        ("DELETE", "/scenes/doc-qa/draft".to_owned(), &none),
        ("POST", "/scenes/doc-qa/publish".to_owned(), &none),
        ("POST", "/scenes/doc-qa/rollback".to_owned(), &json!({ "version": 1 })),
        ("PUT", "/tenants/default".to_owned(), &tenant),
        ("PUT", "/device-classes/phone".to_owned(), &class),
        ("DELETE", format!("/keys/{key}"), &none),
        ("POST", format!("/keys/{key}/rotate"), &none),
        ("PATCH", "/users/vera".to_owned(), &none),
    ];
    world.call(&ada, "PUT", "/device-classes/phone", Some("*"), &class).await;
    for (method, path, body) in &changes {
        let (missing, stale) = (
            world.call(&ada, method, path, None, body).await,
            world.call(&ada, method, path, Some("\"999\""), body).await,
        );
        assert_eq!((missing.status, stale.status), (428, 412), "{method} {path}: {missing:?} {stale:?}");
        assert_eq!(missing.header("content-type"), "application/problem+json");
        assert_eq!(stale.json()["type"], "urn:baton:problem:stale");
    }
    let again = world.call(&ada, "PUT", "/tenants/default", Some("*"), &tenant).await;
    assert_eq!(again.status, 412, "it is there already");
}

#[tokio::test]
async fn the_field_at_fault_is_named() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let tag = world.get(&ada, &format!("{API}/scenes/doc-qa")).await.header("etag").to_owned();
    let draft = async |settings: Value| {
        let answer = world
            .call(&ada, "PUT", "/scenes/doc-qa/draft", Some(&tag), &json!({ "settings": settings }))
            .await;
        (answer.status, answer.json()["field"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(draft(settings(|s| s["xi"] = json!(0))).await, (422, "xi".into()));
    assert_eq!(draft(settings(|s| s["ratio"] = json!(0.1))).await, (422, "ratio".into()));
    assert_eq!(draft(settings(|s| s["tau_ms"] = json!("soon"))).await, (400, "settings.tau_ms".into()));
    assert_eq!(draft(settings(|s| s["colour"] = json!(1))).await, (400, "settings.colour".into()));
    assert_eq!(draft(settings(|s| s["mode"] = json!("perplexity"))).await, (422, "mode".into()));
    let user = json!({ "name": "new", "role": "viewer", "password": "short" });
    let answer = world.call(&ada, "POST", "/users", None, &user).await;
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("password")));
    let key = json!({ "tenant": "default", "scopes": ["all"] });
    let answer = world.call(&ada, "POST", "/keys", None, &key).await;
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("scopes")));
}

#[tokio::test]
async fn a_secret_is_shown_once() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let key =
        json!({ "tenant": "default", "label": "phones", "scopes": ["assist", "scenes:read"], "days": 30 });
    let made = world.call(&ada, "POST", "/keys", None, &key).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (id, secret) = (
        made.json()["key"]["id"].as_str().unwrap().to_owned(),
        made.json()["secret"].as_str().unwrap().to_owned(),
    );
    assert!(secret.starts_with(&format!("btk_{id}_")) && secret.len() > 50);
    let rotated = world.call(&ada, "POST", &format!("/keys/{id}/rotate"), Some("\"1\""), &json!({})).await;
    assert_eq!(rotated.status, 201, "{rotated:?}");
    let second = rotated.json()["secret"].as_str().unwrap().to_owned();
    assert_ne!(secret, second);
    for path in ["keys", "audit", "overview", &format!("keys/{id}")] {
        let body = world.get(&ada, &format!("{API}/{path}")).await.body;
        // The secret part begins after `btk_`, the id and `_`.
        assert!(!body.contains(&secret[17..]) && !body.contains(&second[17..]), "{path}");
    }
    let tag = world.get(&ada, &format!("{API}/keys/{id}")).await.header("etag").to_owned();
    let revoked = world.call(&ada, "DELETE", &format!("/keys/{id}"), Some(&tag), &json!({})).await;
    assert!(revoked.json()["revoked_ms"].is_i64(), "{revoked:?}");
}

#[tokio::test]
async fn predictions_follow_the_settings() {
    let world = World::new().await;
    let vera = world.log_in("vera").await;
    let predict = async |body: Value| world.call(&vera, "POST", "/scenes/doc-qa/predict", None, &body).await;
    let gap = async |ratio: f64| {
        let settings = settings(|s| (s["ratio"], s["assist_tokens"]) = (json!(ratio), json!(20)));
        let answer = predict(json!({ "settings": settings, "for": { "prompt_tokens": 4096 } })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["plan"]["predicted"]["gap_ms"].as_f64().unwrap()
    };
    assert!(gap(0.25).await < gap(0.75).await);
    assert_eq!(predict(json!({})).await.json()["plan"]["ratio"], 0.25, "those in force");
    let answer = predict(json!({ "for": { "device_class": "fridge" } })).await;
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("device_class")));
}

#[tokio::test]
async fn the_last_administrator_stays() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let answer = world.call(&ada, "PATCH", "/users/ada", Some("\"1\""), &json!({ "role": "viewer" })).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    let answer = world.call(&ada, "PATCH", "/users/edna", Some("\"1\""), &json!({ "disabled": true })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn an_unchanged_value_is_not_sent_again() {
    let world = World::new().await;
    let vera = world.log_in("vera").await;
    let tag = world.get(&vera, &format!("{API}/tenants/default")).await.header("etag").to_owned();
    let headers = [("cookie", vera.cookie.as_str()), ("if-none-match", tag.as_str())];
    let answer = world.send("GET", &format!("{API}/tenants/default"), &headers, "").await;
    assert_eq!((answer.status, answer.body.as_str()), (304, ""));
}

#[tokio::test]
async fn the_document_describes_itself() {
    let world = World::new().await;
    let answer = world.send("GET", &format!("{API}/openapi.json"), &[], "").await;
    let document = answer.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    assert!(
        document["paths"][format!("{API}/scenes/{{id}}/publish")]["post"]["responses"]["default"].is_object()
    );
    // Every reference has a target.
    for part in document.to_string().split("\"$ref\":\"#/").skip(1) {
        let path = format!("/{}", part.split('"').next().unwrap());
        assert!(document.pointer(&path).is_some(), "{path}");
    }
}

#[tokio::test]
async fn a_scene_that_this_replica_does_not_serve_is_published_with_a_warning() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    let scene = world.get(&edna, &format!("{API}/scenes/doc-qa")).await;
    assert_eq!(scene.json()["warnings"], json!([]));
    let tag = scene.header("etag").to_owned();
    let draft = json!({ "settings": settings(|s| s["adapter"] = json!("law")) });
    let answer = world.call(&edna, "PUT", "/scenes/doc-qa/draft", Some(&tag), &draft).await;
    let refused = "scene `doc-qa` needs adapter `law` of model `tiny`, which is not served here; it has none";
    assert_eq!(answer.json()["warnings"], json!([format!("the draft: {refused}")]));
    for page in ["/admin/scenes/doc-qa", "/admin/scenes/doc-qa/review"] {
        let page = world.get(&edna, page).await;
        assert!(page.body.contains("needs adapter"), "{page:?}");
    }
    let diff = world.get(&edna, &format!("{API}/scenes/doc-qa/diff")).await.json();
    assert_eq!(diff["changes"], json!([{ "field": "adapter", "from": null, "to": "law" }]));
    let tag = answer.header("etag").to_owned();
    let answer = world.call(&edna, "POST", "/scenes/doc-qa/publish", Some(&tag), &json!({})).await;
    assert_eq!((answer.status, &answer.json()["warnings"]), (200, &json!([format!("in force: {refused}")])));
    let tag = answer.header("etag").to_owned();
    let bad = json!({ "settings": settings(|s| s["model"] = json!("two words")) });
    let answer = world.call(&edna, "PUT", "/scenes/doc-qa/draft", Some(&tag), &bad).await;
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("model")));
}
