//! Tests rollouts of device models at the console and its API: who may change them, what is refused, and what
//! an editor does as a plain form.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_cloud::fleet::catalog::CatalogEntry;
use baton_registry::digest::Digest;
use baton_registry::manifest::{Kind, Manifest, SCHEMA};
use serde_json::{Value, json};

use super::{API, World};

/// Makes a console whose registry has small@1, small@2, law@1 (of small@2) and the scorer eye@1.
async fn world() -> World {
    let world = World::new().await;
    let entry = |text: &str, kind: Kind, base: Option<&str>| {
        let manifest = Manifest {
            schema: SCHEMA,
            model: text.parse().unwrap(),
            kind,
            family: "llama".to_owned(),
            tokenizer_sha256: None,
            licence: "MIT".to_owned(),
            base: base.map(|base| base.parse().unwrap()),
            files: Vec::new(),
        };
        let envelope = Digest::of(text.as_bytes());
        (manifest.model.clone(), Arc::new(CatalogEntry { manifest, envelope }))
    };
    let entries = BTreeMap::from([
        entry("small@1", Kind::Base, None),
        entry("small@2", Kind::Base, None),
        entry("law@1", Kind::Adapter, Some("small@2")),
        entry("eye@1", Kind::Scorer, None),
    ]);
    world.service().fleet().catalog.replace(entries);
    world
}

#[tokio::test]
async fn editors_roll_out_what_the_registry_has() {
    let world = world().await;
    let (edna, vera) = (world.log_in("edna").await, world.log_in("vera").await);
    let phone = "/rollouts/*/phone";
    let models = world.get(&vera, &format!("{API}/registry")).await.json();
    assert_eq!(models["models"].as_array().unwrap().len(), 4);
    let set = async |pair: &str| world.call(&edna, "PUT", phone, Some("*"), &json!({ "pair": pair })).await;
    let body = json!({ "pair": "small@1" });
    assert_eq!(world.call(&vera, "PUT", phone, Some("*"), &body).await.status, 403);
    for (pair, want) in [
        ("small@9", "the registry has no small@9"),
        ("eye@1", "eye@1 is no base, it is a scorer"),
        ("small@1+law@1", "adapter law@1 is of small@2, not of small@1"),
        ("small", "want NAME@VERSION"),
    ] {
        let refused = set(pair).await;
        assert!(refused.status == 422 && refused.body.contains(want), "{pair}: {refused:?}");
    }
    let answer = set("small@1").await;
    assert_eq!((answer.status, &answer.json()["stable"]), (200, &json!("small@1")), "{answer:?}");
    assert_eq!(set("small@2").await.status, 412, "another pair gets in by a rollout");

    let change = async |tag: &str, body: Value| world.call(&edna, "POST", phone, Some(tag), &body).await;
    let start = json!({ "action": "start", "pair": "small@2+law@1", "percent": 12.5 });
    let answer = change("\"1\"", start.clone()).await;
    let view = answer.json();
    assert_eq!((&view["candidate"], &view["percent"]), (&json!("small@2+law@1"), &json!(12.5)), "{answer:?}");
    assert_eq!(change("\"1\"", json!({ "action": "pause" })).await.status, 412);
    for (body, status, want) in [
        (json!({ "action": "share" }), 422, "percent"),
        (json!({ "action": "share", "percent": 0 }), 422, "percent"),
        (json!({ "action": "revoke" }), 422, "pair"),
        (json!({ "action": "finish" }), 409, "100"),
        (start, 409, "small@2+law@1"),
    ] {
        let refused = change("\"2\"", body.clone()).await;
        assert!(refused.status == status && refused.body.contains(want), "{body}: {refused:?}");
    }
    let back = change("\"2\"", json!({ "action": "roll_back" })).await.json();
    assert_eq!((&back["candidate"], &back["given_up"][0]["pair"]), (&Value::Null, &json!("small@2+law@1")));
    assert_eq!(world.call(&edna, "DELETE", phone, Some("\"3\""), &Value::Null).await.status, 204);
    assert_eq!(world.get(&vera, &format!("{API}{phone}")).await.status, 404);
}

#[tokio::test]
async fn the_page_rolls_out_as_a_plain_form() {
    let world = world().await;
    let (edna, vera) = (world.log_in("edna").await, world.log_in("vera").await);
    let of = [("scene", "*"), ("class", "phone")];
    let set = world.form(&edna, "/admin/rollouts", &[&of[..], &[("pair", "small@1")]].concat()).await;
    assert_eq!(set.status, 303, "{set:?}");
    let act = async |revision: &str, more: &[(&str, &str)]| {
        world.form(&edna, "/admin/rollouts", &[&of[..], &[("revision", revision)], more].concat()).await
    };
    let refused = act("1", &[("action", "start"), ("pair", "small@9"), ("percent", "5")]).await;
    assert!(refused.status == 422 && refused.body.contains("the registry has no small@9"), "{refused:?}");
    let started = act("1", &[("action", "start"), ("pair", "small@2"), ("percent", "5")]).await;
    assert_eq!(started.status, 303, "{started:?}");
    let seen = world.get(&vera, "/admin/rollouts").await;
    assert!(seen.body.contains("small@2") && !seen.body.contains("name=\"action\""), "{seen:?}");
    let asked = act("2", &[("action", "roll_back")]).await;
    assert!(asked.status == 200 && asked.body.contains("confirmed"), "{asked:?}");
    assert_eq!(act("2", &[("action", "roll_back"), ("confirmed", "yes")]).await.status, 303);
    let target = world.store.model_target("*", "phone").await.unwrap();
    assert!(target.target.rollout.is_none() && target.revision == 3, "{target:?}");
}
