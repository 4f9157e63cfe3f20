//! Tests of experiments: their states, sums that replicas add up, and feedback that counts once.

use baton_cloud::experiment::assign::Unit;
use baton_cloud::experiment::metric::Metric;
use baton_cloud::experiment::plan::{Arm, Experiment, Guard, Plan, State, StoppedArm};
use baton_cloud::experiment::sums::BucketSums;
use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{AuditCheck, AuditQuery, BucketRow, Expected, FeedbackName, Store};
use serde_json::{Value, json};

use crate::world::{ann, on_each};

fn plan(scene: &str, overrides: &Value) -> Plan {
    let arm = |name: &str, weight, overrides: &Value| Arm {
        name: name.to_owned(),
        weight,
        overrides: overrides.as_object().cloned().unwrap(),
    };
    Plan {
        scene: scene.to_owned(),
        goal: Metric::SlotMs,
        arms: vec![arm("control", 3, &json!({})), arm("short", 1, overrides)],
        guards: vec![Guard { metric: Metric::Failures, worst: 0.02 }],
    }
}

/// Adds a scene and a running experiment `e` of it.
async fn running(store: &Store) -> Experiment {
    store.set_scene("s", &SceneSettings::with_system("s"), "", Expected::Any, &ann()).await.unwrap();
    let plan = plan("s", &json!({ "assist_tokens": 8 }));
    store.save_experiment("e", &plan, Expected::Absent, &ann()).await.unwrap();
    store.start_experiment("e", Expected::Revision(1), &ann()).await.unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(done: Result<T, baton_cloud::store::StoreError>, want: &str) {
    let err = done.unwrap_err().to_string();
    assert!(err.contains(want), "{err}");
}

#[test]
fn an_experiment_goes_from_draft_to_its_end() {
    on_each(|db| async move {
        let store = db.open().await;
        store.set_scene("s", &SceneSettings::with_system("s"), "", Expected::Any, &ann()).await.unwrap();
        let wrong = plan("s", &json!({ "assist_tokens": 2 }));
        let saved = store.save_experiment("e", &wrong, Expected::Absent, &ann()).await;
        refused(saved, "arm `short`: assist tokens 2 must be at least the floor 4");
        let nowhere = plan("nowhere", &json!({ "assist_tokens": 8 }));
        refused(
            store.save_experiment("e", &nowhere, Expected::Absent, &ann()).await,
            "`nowhere` does not exist",
        );

        let started = running(&store).await;
        assert_eq!((started.state, started.revision), (State::Running, 2));
        assert_eq!(store.snapshot().await.unwrap().experiments, std::slice::from_ref(&started));
        refused(
            store.save_experiment("e", &started.plan, Expected::Revision(2), &ann()).await,
            "its plan cannot change",
        );
        store.save_experiment("f", &started.plan, Expected::Absent, &ann()).await.unwrap();
        refused(store.start_experiment("f", Expected::Any, &ann()).await, "another experiment of its scene");
        refused(store.stop_experiment("f", "", Expected::Any, &ann()).await, "is not running");
        refused(store.stop_experiment("e", "", Expected::Revision(1), &ann()).await, "is at version 2");

        let stopped = store.stop_experiment("e", "enough", Expected::Revision(2), &ann()).await.unwrap();
        assert_eq!((stopped.state, stopped.revision), (State::Stopped, 3));
        assert_eq!(store.experiment("e").await.unwrap(), stopped);
        assert!(store.snapshot().await.unwrap().experiments.is_empty());
        store.start_experiment("f", Expected::Any, &ann()).await.unwrap();
        assert_eq!(store.experiments().await.unwrap().len(), 2);
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditCheck::Whole(_)));
    });
}

#[test]
fn promoting_publishes_the_settings_of_the_arm() {
    on_each(|db| async move {
        let store = db.open().await;
        running(&store).await;
        // The scene changed meanwhile: only what the arm overrides comes from the arm.
        let newer = SceneSettings::with_system("newer");
        store.set_scene("s", &newer, "", Expected::Any, &ann()).await.unwrap();
        refused(
            store.promote_experiment("e", "control", "", Expected::Any, &ann()).await,
            "no arm of this name that could be promoted",
        );
        let done = store.promote_experiment("e", "short", "faster", Expected::Any, &ann()).await.unwrap();
        assert_eq!((done.state, done.promoted.as_deref()), (State::Promoted, Some("short")));
        assert_eq!(store.experiment("e").await.unwrap(), done);
        let scene = store.scene("s").await.unwrap();
        assert_eq!(scene.version, 3);
        assert_eq!(scene.settings, SceneSettings { assist_tokens: Some(8), ..newer });
        let history = store.scene_history("s").await.unwrap();
        assert_eq!(history.publications.last().unwrap().note, "experiment e, arm short");
        let rows = store.audit(&AuditQuery { limit: 2, ..AuditQuery::default() }).await.unwrap();
        let actions: Vec<&str> = rows.iter().map(|row| row.action.as_str()).collect();
        assert_eq!(actions, ["scene.promote", "experiment.promote"]);
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditCheck::Whole(_)));
    });
}

#[test]
fn an_arm_that_does_not_fit_any_more_is_not_promoted() {
    on_each(|db| async move {
        let store = db.open().await;
        running(&store).await;
        let newer = SceneSettings { assist_floor: 16, ..SceneSettings::with_system("newer") };
        store.set_scene("s", &newer, "", Expected::Any, &ann()).await.unwrap();
        refused(
            store.promote_experiment("e", "short", "", Expected::Any, &ann()).await,
            "at least the floor 16",
        );
        assert_eq!(store.experiment("e").await.unwrap().state, State::Running);
        assert_eq!(store.scene("s").await.unwrap().version, 2);
    });
}

#[test]
fn an_arm_is_stopped_once() {
    on_each(|db| async move {
        let store = db.open().await;
        running(&store).await;
        let arm = |name: &str| StoppedArm { name: name.into(), reason: "guard rail: slow".into() };
        let service = baton_cloud::access::Actor::service();
        let stopped = store.stop_arm("e", arm("short"), Expected::Any, &service).await.unwrap();
        assert!(stopped.is_stopped("short") && stopped.state == State::Running);
        let again = store.stop_arm("e", arm("short"), Expected::Any, &service).await.unwrap();
        assert_eq!(again, stopped);
        refused(store.stop_arm("e", arm("control"), Expected::Any, &service).await, "could be stopped");
        let rows = store.audit(&AuditQuery { limit: 1, ..AuditQuery::default() }).await.unwrap();
        assert_eq!((rows[0].action.as_str(), rows[0].actor.as_str()), ("experiment.stop_arm", "service"));
        assert_eq!(rows[0].to_json()["detail"]["reason"], "guard rail: slow");
    });
}

fn row(device: &str, ttft_ms: f64) -> BucketRow {
    let cell = Unit::device(1, device).cell("e");
    let mut sums = BucketSums::default();
    sums.mark(cell);
    sums.add(Metric::TtftMs, ttft_ms);
    sums.add(Metric::Failures, 0.0);
    BucketRow { experiment: "e".into(), arm: "short".into(), bucket: cell.bucket, sums }
}

#[test]
fn replicas_add_up_their_sums() {
    on_each(|db| async move {
        let (one, two) = (db.open().await, db.open().await);
        let devices: Vec<String> = (0..40).map(|at| format!("device {at}")).collect();
        let rows: Vec<BucketRow> = devices.iter().map(|device| row(device, 100.0)).collect();
        let back: Vec<BucketRow> = devices.iter().rev().map(|device| row(device, 300.0)).collect();
        // At the same time, in different orders.
        let (first, second) = tokio::join!(one.add_experiment_sums(&rows), two.add_experiment_sums(&back));
        first.and(second).unwrap();
        let sums = one.experiment_sums("e").await.unwrap();
        let mean = sums["short"].mean(Metric::TtftMs).unwrap();
        assert_eq!((mean.count, mean.mean), (80, 200.0));
        let units = sums["short"].units().unwrap().units;
        assert!((units - 40.0).abs() < 1.5, "{units}");
        assert_eq!(sums["short"].mean(Metric::Rating), None);
        assert!(one.experiment_sums("other").await.unwrap().is_empty());
    });
}

#[test]
fn feedback_counts_once_on_all_replicas() {
    on_each(|db| async move {
        let (one, two) = (db.open().await, db.open().await);
        let rating = |device: &str| {
            let mut row = row(device, 1.0);
            row.sums = BucketSums::default();
            row.sums.add(Metric::Rating, 1.0);
            row
        };
        let name = |name| FeedbackName { name, expires_ms: 1_000 };
        let x = rating("x");
        let (a, b) = tokio::join!(one.add_feedback(name("f1.a"), &x), two.add_feedback(name("f1.a"), &x));
        assert_ne!(a.unwrap(), b.unwrap(), "one of them counts");
        assert!(two.add_feedback(name("f1.b"), &rating("y")).await.unwrap());
        let mean = one.experiment_sums("e").await.unwrap()["short"].mean(Metric::Rating).unwrap();
        assert_eq!((mean.count, mean.mean), (2, 1.0));
        // A name is forgotten when it is too old to be used.
        one.compact(999).await.unwrap();
        assert!(!one.add_feedback(name("f1.a"), &rating("x")).await.unwrap());
        one.compact(1_000).await.unwrap();
        assert!(one.add_feedback(name("f1.a"), &rating("x")).await.unwrap());
    });
}

#[test]
fn replicas_share_one_key() {
    on_each(|db| async move {
        let (one, two) = (db.open().await, db.open().await);
        let (a, b) = tokio::join!(one.feedback_key(), two.feedback_key());
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a, b);
        assert_ne!(a, [0; 32]);
        assert_eq!(db.open().await.feedback_key().await.unwrap(), a);
    });
}
