//! Tests models of a replica at the console and its API: who sees them, who gives orders, and what is
//! audited.

use baton_cloud::service::ModelState;
use serde_json::{Value, json};

use super::{API, World};
use crate::residency;

#[tokio::test]
async fn admins_order_models_and_everybody_sees_them() {
    let models = residency::world(1);
    let world = World::over(models.service.clone(), None, false).await.with_users().await;
    let (ada, edna, vera) =
        (world.log_in("ada").await, world.log_in("edna").await, world.log_in("vera").await);
    let list = world.get(&vera, &format!("{API}/models")).await.json();
    let names: Vec<&Value> = list["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!(names, [&json!("a"), &json!("b"), &json!("c")]);
    assert_eq!((&list["used_bytes"], &list["models"][0]["state"]), (&json!(0), &json!("unloaded")));
    assert_eq!(list["budget_bytes"], list["models"][0]["memory_bytes"]);
    for order in ["load", "unload", "drain"] {
        let refused = world.call(&edna, "POST", &format!("/models/a/{order}"), None, &Value::Null).await;
        assert_eq!(refused.status, 403, "{order}: {refused:?}");
    }
    let answer = world.call(&ada, "POST", "/models/a/load", None, &Value::Null).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    models.until(0, ModelState::Loaded).await;
    let answer = world.call(&ada, "POST", "/models/a/drain", None, &Value::Null).await;
    assert_eq!(answer.json()["models"][0]["drained"], true);
    models.until(0, ModelState::Unloaded).await;
    assert_eq!(world.call(&ada, "POST", "/models/x/load", None, &Value::Null).await.status, 404);
    let audit = world.get(&vera, &format!("{API}/audit?limit=2")).await.json();
    let rows = audit["rows"].as_array().unwrap();
    let row = |at: usize| (&rows[at]["actor"], &rows[at]["action"], &rows[at]["target"]);
    assert_eq!(row(0), (&json!("user:ada"), &json!("model.drain"), &json!("model/a")));
    assert_eq!(row(1), (&json!("user:ada"), &json!("model.load"), &json!("model/a")));
}

#[tokio::test]
async fn the_page_gives_orders_as_a_plain_form() {
    let models = residency::world(2);
    let world = World::over(models.service.clone(), None, false).await.with_users().await;
    let (ada, vera) = (world.log_in("ada").await, world.log_in("vera").await);
    let seen = world.get(&vera, "/admin/models").await;
    assert!(seen.status == 200 && seen.body.contains("unloaded"), "{seen:?}");
    assert!(!seen.body.contains("name=\"order\""), "a viewer gives no orders");
    assert!(world.get(&ada, "/admin/models").await.body.contains("load b"));
    let order = |word: &'static str| [("model", "b"), ("order", word)];
    assert_eq!(world.form(&vera, "/admin/models", &order("load")).await.status, 403);
    let done = world.form(&ada, "/admin/models", &order("load")).await;
    assert_eq!((done.status, done.header("location")), (303, "/admin/models?done=ordered"));
    models.until(1, ModelState::Loaded).await;
    let asked = world.form(&ada, "/admin/models", &order("drain")).await;
    assert!(asked.status == 200 && asked.body.contains("Drain the model?"), "{asked:?}");
    let confirmed = [("model", "b"), ("order", "drain"), ("confirmed", "yes")];
    assert_eq!(world.form(&ada, "/admin/models", &confirmed).await.status, 303);
    models.until(1, ModelState::Unloaded).await;
    assert!(world.get(&ada, "/admin/models").await.body.contains("unloaded, drained"));
    assert_eq!(world.form(&ada, "/admin/models", &order("explode")).await.status, 422);
}
