//! Tests experiments in the admin API and in the console: by forms alone, by roles, and with their figures.

use baton_cloud::access::Actor;
use baton_cloud::experiment::assign::Unit;
use baton_cloud::experiment::metric::Metric;
use baton_cloud::experiment::plan::StoppedArm;
use baton_cloud::experiment::sums::BucketSums;
use baton_cloud::store::{BucketRow, Expected};
use serde_json::{Value, json};

use super::pages::{check_page, revision};
use super::{Answer, World};

fn plan() -> Value {
    json!({
        "scene": "doc-qa", "goal": "ttft_ms",
        "arms": [
            { "name": "control", "weight": 1 },
            { "name": "short", "weight": 1, "overrides": { "assist_tokens": 8 } },
        ],
        "guards": [{ "metric": "failures", "worst": 0.02 }],
    })
}

/// Plants answers of 600 devices of an arm.
async fn plant(world: &World, arm: &str, ttft_ms: f64) {
    let mut rows = Vec::new();
    for at in 0..600_u32 {
        let cell = Unit::device(0, &format!("{arm} {at}")).cell("shorter");
        let mut sums = BucketSums::default();
        sums.mark(cell);
        sums.add(Metric::TtftMs, ttft_ms * (0.8 + f64::from(at % 41) / 100.0));
        rows.push(BucketRow { experiment: "shorter".into(), arm: arm.into(), bucket: cell.bucket, sums });
    }
    world.store.add_experiment_sums(&rows).await.unwrap();
}

#[track_caller]
fn tag(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("etag").to_owned()
}

#[tokio::test]
async fn an_experiment_runs_by_the_api() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    let path = "/experiments/shorter";
    let answer = world.call(&edna, "PUT", path, None, &plan()).await;
    assert_eq!(answer.status, 428, "{answer:?}");
    let mut wrong = plan();
    wrong["arms"][1]["overrides"]["ratio"] = json!(0.1);
    let answer = world.call(&edna, "PUT", path, Some("*"), &wrong).await;
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("arms")), "{answer:?}");
    let first = tag(&world.call(&edna, "PUT", path, Some("*"), &plan()).await);
    let second = tag(&world.call(&edna, "POST", &format!("{path}/start"), Some(&first), &Value::Null).await);
    let answer = world.call(&edna, "PUT", path, Some(&first), &plan()).await;
    assert_eq!(answer.status, 412, "{answer:?}");
    let answer = world.call(&edna, "PUT", path, Some(&second), &plan()).await;
    assert_eq!(answer.status, 409, "{answer:?}");

    plant(&world, "control", 200.0).await;
    plant(&world, "short", 140.0).await;
    let shown = world.get(&edna, &format!("{}{path}", super::API)).await;
    assert_eq!(tag(&shown), second);
    let shown = shown.json();
    assert_eq!((&shown["state"], &shown["report"]["winner"]), (&json!("running"), &json!("short")));
    let metric = &shown["report"]["arms"][1]["metrics"][0];
    assert_eq!((&metric["metric"], &metric["finding"]), (&json!("ttft_ms"), &json!("better")));
    assert!((metric["change"].as_f64().unwrap() + 0.3).abs() < 0.02, "{metric}");
    assert_eq!(shown["report"]["sample_ratio"]["result"], "fits");

    let body = json!({ "arm": "control" });
    let answer = world.call(&edna, "POST", &format!("{path}/promote"), Some(&second), &body).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    let body = json!({ "arm": "short", "note": "faster" });
    let answer = world.call(&edna, "POST", &format!("{path}/promote"), Some(&second), &body).await;
    assert_eq!((answer.status, &answer.json()["promoted"]), (200, &json!("short")), "{answer:?}");
    assert_eq!(world.store.scene("doc-qa").await.unwrap().settings.assist_tokens, Some(8));
    let list = world.get(&edna, &format!("{}/experiments", super::API)).await.json();
    assert_eq!(list["experiments"][0]["state"], "promoted");
}

#[tokio::test]
async fn an_arm_that_was_stopped_is_not_promoted() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    let path = "/experiments/shorter";
    let first = tag(&world.call(&edna, "PUT", path, Some("*"), &plan()).await);
    tag(&world.call(&edna, "POST", &format!("{path}/start"), Some(&first), &Value::Null).await);
    let arm = StoppedArm { name: "short".into(), reason: "guard rail: failures".into() };
    world.store.stop_arm("shorter", arm, Expected::Any, &Actor::service()).await.unwrap();
    let shown = world.get(&edna, &format!("{}{path}", super::API)).await;
    assert_eq!(shown.json()["report"]["arms"][1]["stopped"], "guard rail: failures");
    let tag = shown.header("etag").to_owned();
    let body = json!({ "arm": "short" });
    let answer = world.call(&edna, "POST", &format!("{path}/promote"), Some(&tag), &body).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.body.contains("was stopped"), "{answer:?}");
    let page = world.get(&edna, "/admin/experiments/shorter").await;
    assert!(page.body.contains("guard rail: failures") && !page.body.contains("Promote short"));
    let answer =
        world.call(&edna, "POST", &format!("{path}/stop"), Some(&tag), &json!({ "note": "n" })).await;
    assert_eq!((answer.status, &answer.json()["state"]), (200, &json!("stopped")), "{answer:?}");
}

#[tokio::test]
async fn an_experiment_runs_by_forms_alone() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    check_page("/admin/experiments", &world.get(&edna, "/admin/experiments").await);
    let fields = |arms| {
        vec![
            ("id", "shorter"),
            ("revision", "0"),
            ("scene", "doc-qa"),
            ("goal", "ttft_ms"),
            ("arms", arms),
            ("guards", "failures 0.02\r\n\r\n"),
        ]
    };
    let refused = world.form(&edna, "/admin/experiments", &fields("control 1\r\nshort 1 colour=red")).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    check_page("a refused plan", &refused);
    assert!(refused.body.contains("overrides `colour`") && refused.body.contains("short 1 colour=red"));
    let saved =
        world.form(&edna, "/admin/experiments", &fields("control 1\r\nshort 1 assist_tokens=8\r\n")).await;
    assert_eq!(saved.header("location"), "/admin/experiments/shorter?done=saved", "{saved:?}");
    let page = world.get(&edna, "/admin/experiments/shorter").await;
    check_page("a draft", &page);
    let mut stale = fields("control 1\r\nlong 1 assist_tokens=64");
    stale[1] = ("revision", "7");
    let told = world.form(&edna, "/admin/experiments", &stale).await;
    assert_eq!((told.status, revision(&told, "/admin/experiments").as_str()), (412, "1"), "{told:?}");
    check_page("a stale plan", &told);
    assert!(told.body.contains("Experiment shorter") && told.body.contains("long 1 assist_tokens=64"));
    let tag = revision(&page, "/admin/experiments/shorter/start");
    let started = world.form(&edna, "/admin/experiments/shorter/start", &[("revision", &tag)]).await;
    assert_eq!(started.header("location"), "/admin/experiments/shorter?done=started", "{started:?}");

    plant(&world, "control", 200.0).await;
    plant(&world, "short", 140.0).await;
    let page = world.get(&edna, "/admin/experiments/shorter?done=started").await;
    check_page("a running experiment", &page);
    assert!(page.body.contains("`short` is better than the control by ttft_ms"), "{}", page.body);
    assert!(page.body.contains("-30.0 %") && page.body.contains("Started."), "{}", page.body);
    let vera = world.log_in("vera").await;
    let seen = world.get(&vera, "/admin/experiments/shorter").await;
    assert!(!seen.body.contains("Promote short") && !seen.body.contains("Stop the experiment"));
    let tag = revision(&page, "/admin/experiments/shorter/promote");
    let promote = [("revision", tag.as_str()), ("arm", "short")];
    let asked = world.form(&edna, "/admin/experiments/shorter/promote", &promote).await;
    check_page("a question", &asked);
    assert!(asked.body.contains("name=\"confirmed\" value=\"yes\""), "{asked:?}");
    let sure = [promote.as_slice(), &[("confirmed", "yes")]].concat();
    let refused = world.form(&vera, "/admin/experiments/shorter/promote", &sure).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let done = world.form(&edna, "/admin/experiments/shorter/promote", &sure).await;
    assert_eq!(done.header("location"), "/admin/scenes/doc-qa?done=published", "{done:?}");
    assert_eq!(world.store.scene("doc-qa").await.unwrap().settings.assist_tokens, Some(8));
    let page = world.get(&edna, "/admin/experiments/shorter").await;
    check_page("a promoted experiment", &page);
    assert!(page.body.contains("Arm short was promoted."), "{}", page.body);
}
