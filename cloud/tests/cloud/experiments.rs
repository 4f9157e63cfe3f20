//! Tests experiments from outside: settings of arms, what is counted, feedback, and guard rails.

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use baton_cloud::access::Actor;
use baton_cloud::api::{self, Access, ApiLimits};
use baton_cloud::experiment::metric::Metric;
use baton_cloud::experiment::plan::{Arm, Experiment, Guard, Plan, State};
use baton_cloud::experiment::sums::BucketSums;
use baton_cloud::observe::metrics::Usage;
use baton_cloud::scene::SceneSettings;
use baton_cloud::serve::upkeep::Upkeep;
use baton_cloud::service::CloudService;
use baton_cloud::store::{AuditQuery, BucketRow, Database, Expected, Store};
use baton_protocol::{AssistEvent, AssistRequest, FirstEvent};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::world::{document, options, request, scenes, setup};

/// A service with a database, and its public API without sockets.
struct World {
    store: Store,
    upkeep: Upkeep,
    app: Router,
}

/// What the API answered.
struct Reply {
    status: u16,
    body: String,
}

impl Reply {
    #[track_caller]
    fn param(&self) -> Value {
        let body: Value =
            serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body));
        body["error"]["param"].clone()
    }
}

impl World {
    /// Makes a service whose scene `doc-qa` has L = 6, and an arm with L = 9.
    async fn new(guards: Vec<Guard>) -> World {
        let store = Store::open(&Database::Memory).await.unwrap();
        let (service, host) = CloudService::new(setup(), scenes(), options()).unwrap();
        baton_cloud::service::start(host).unwrap();
        let access = Access::with_static_key(None);
        let (book, gate) = (access.book.clone(), access.gate.clone());
        let upkeep = Upkeep { store: store.clone(), service: service.clone(), book, gate };
        let app = api::router(service, access, Some(store.clone()), ApiLimits::default());
        let world = World { store, upkeep, app };
        let scene = SceneSettings { ratio: Some(0.25), assist_tokens: Some(6), ..SceneSettings::default() };
        world.store.set_scene("doc-qa", &scene, "", Expected::Any, &Actor::cli()).await.unwrap();
        let arm = |name: &str, overrides: Value| Arm {
            name: name.to_owned(),
            weight: 1,
            overrides: overrides.as_object().cloned().unwrap(),
        };
        let arms = vec![arm("control", json!({})), arm("longer", json!({ "assist_tokens": 9 }))];
        let plan = Plan { scene: "doc-qa".into(), goal: Metric::TtftMs, arms, guards };
        world.store.save_experiment("e", &plan, Expected::Absent, &Actor::cli()).await.unwrap();
        world.store.start_experiment("e", Expected::Any, &Actor::cli()).await.unwrap();
        world.apply().await;
        world
    }

    /// Does what a replica does when settings change.
    async fn apply(&self) {
        self.upkeep.apply(self.store.snapshot().await.unwrap());
        self.upkeep.keep_experiments().await.unwrap();
    }

    async fn send(&self, method: &str, path: &str, device: Option<&str>, body: &Value) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header("host", "cloud");
        if let Some(device) = device {
            request = request.header("x-device-id", device);
        }
        let request = request.body(Body::from(body.to_string())).unwrap();
        let reply = self.app.clone().oneshot(request).await.unwrap();
        let status = reply.status().as_u16();
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        Reply { status, body: String::from_utf8_lossy(&body).into_owned() }
    }

    /// Sends a request of a device and reads the whole answer; returns its first event.
    async fn ask(&self, device: Option<&str>, request: &AssistRequest) -> FirstEvent {
        let reply = self.send("POST", "/v1/assist", device, &json!(request)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let data = reply.body.lines().skip_while(|line| *line != "event: first");
        let data = data.filter_map(|line| line.strip_prefix("data: ")).next();
        match AssistEvent::parse("first", data.unwrap_or_else(|| panic!("{}", reply.body))) {
            Ok(AssistEvent::First(first)) => *first,
            other => panic!("{other:?}"),
        }
    }

    async fn feedback(&self, body: Value) -> Reply {
        self.send("POST", "/v1/feedback", None, &body).await
    }

    async fn experiment(&self) -> Experiment {
        self.store.experiment("e").await.unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.upkeep.service.stop();
    }
}

/// Returns a request that leaves L to the scene.
fn asked(id: u128) -> AssistRequest {
    let request = request("doc-qa", &document(12), 1);
    AssistRequest { request_id: uuid::Uuid::from_u128(id), assist_tokens: None, ..request }
}

/// Returns L as the arm of an answer has it.
fn tokens_of(first: &FirstEvent) -> u32 {
    match first.experiment.as_ref().map(|arm| arm.arm.as_str()) {
        Some("control") => 6,
        Some("longer") => 9,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_device_gets_the_settings_of_its_arm() {
    let world = World::new(Vec::new()).await;
    let mut arms = Vec::new();
    for at in 0..12 {
        let device = format!("device-{at}");
        let first = world.ask(Some(&device), &asked(at)).await;
        assert_eq!(first.assist_tokens, tokens_of(&first), "{first:?}");
        let again = world.ask(Some(&device), &asked(100 + at)).await;
        assert_eq!(again.assist_tokens, first.assist_tokens);
        let scene = world.send("GET", "/v1/scenes/doc-qa", Some(&device), &Value::Null).await;
        let scene: Value = serde_json::from_str(&scene.body).unwrap();
        assert_eq!(scene["assist_tokens"], first.assist_tokens);
        arms.push(first.assist_tokens);
    }
    assert!(arms.contains(&6) && arms.contains(&9), "{arms:?}");
    // Without a device each request is assigned for itself.
    let mut alone = Vec::new();
    for at in 200..212 {
        alone.push(tokens_of(&world.ask(None, &asked(at)).await));
    }
    assert!(alone.contains(&6) && alone.contains(&9), "{alone:?}");
    let refused = world.send("POST", "/v1/assist", Some("short"), &json!(asked(300))).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_counted_for_their_arms() {
    let world = World::new(Vec::new()).await;
    let mut want = std::collections::BTreeMap::<String, u64>::new();
    for at in 0..10 {
        let first = world.ask(Some(&format!("device-{at}")), &asked(at)).await;
        *want.entry(first.experiment.unwrap().arm).or_default() += 1;
    }
    // These decide L themselves, or ask in another scene, or continue an answer.
    let own = AssistRequest { assist_tokens: Some(5), ..asked(20) };
    let first = world.ask(Some("device-1"), &own).await;
    assert_eq!((first.assist_tokens, first.experiment), (5, None));
    let elsewhere = AssistRequest { scene: "chat".into(), ..asked(21) };
    assert_eq!(world.ask(Some("device-1"), &elsewhere).await.experiment, None);
    let rest = AssistRequest { continue_from: Some("It costs".into()), ..asked(22) };
    let first = world.ask(Some("device-1"), &rest).await;
    assert_eq!(first.assist_tokens, tokens_of(&first));
    assert_eq!(first.experiment.unwrap().feedback, None);

    world.upkeep.keep_experiments().await.unwrap();
    let sums = world.store.experiment_sums("e").await.unwrap();
    for (arm, answers) in want {
        for metric in [Metric::TtftMs, Metric::SlotMs, Metric::Failures] {
            let mean = sums[&arm].mean(metric).unwrap();
            assert_eq!(mean.count, answers, "{arm} {metric:?}");
        }
        assert_eq!(sums[&arm].mean(Metric::Failures).unwrap().mean, 0.0);
    }
    let text = world.upkeep.service.metrics().render(&Usage::default());
    assert!(text.contains("baton_experiment_answers_total{experiment=\"e\",arm=\"longer\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn feedback_counts_once_and_only_for_its_answer() {
    let world = World::new(Vec::new()).await;
    let first = world.ask(Some("device-1"), &asked(1)).await.experiment.unwrap();
    let (token, arm) = (first.feedback.unwrap(), first.arm);
    let body = |token: &str, id: u128| {
        let id = uuid::Uuid::from_u128(id);
        json!({ "request_id": id, "token": token, "rating": "up", "ttft_ms": 320.5, "agreement": 0.75 })
    };
    let other = world.feedback(body(&token, 2)).await;
    assert_eq!((other.status, other.param()), (400, json!("request_id")));
    let forged = world.feedback(body(&token.replace("f1.", "f1.0"), 1)).await;
    assert_eq!((forged.status, forged.param()), (400, json!("token")));
    assert_eq!(world.feedback(json!({ "rating": "up" })).await.status, 400);
    assert_eq!(world.feedback(body(&token, 1)).await.status, 204);
    assert_eq!(world.feedback(body(&token, 1)).await.status, 409);

    world.upkeep.keep_experiments().await.unwrap();
    let sums = world.store.experiment_sums("e").await.unwrap();
    let counted: u64 = Metric::ALL.iter().map(|&metric| count(&sums[&arm], metric)).sum();
    // Three figures of the cloud, three of the feedback.
    assert_eq!(counted, 6);

    let late = world.ask(Some("device-1"), &asked(3)).await.experiment.unwrap().feedback.unwrap();
    world.store.stop_experiment("e", "", Expected::Any, &Actor::cli()).await.unwrap();
    world.apply().await;
    assert_eq!(world.feedback(body(&late, 3)).await.status, 410);
}

/// Counts the answers of one device; one bucket has no mean with a variance.
fn count(sums: &baton_cloud::experiment::sums::ArmSums, metric: Metric) -> u64 {
    let mut sums = sums.clone();
    (0..=u8::MAX).map(|bucket| sums.bucket(bucket).metrics[metric as usize].count).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_harmful_arm_is_stopped_by_the_program() {
    let world = World::new(vec![Guard { metric: Metric::Failures, worst: 0.05 }]).await;
    let rows = |arm: &str, failures: usize| -> Vec<BucketRow> {
        let row = |bucket: u8| {
            let mut sums = BucketSums::default();
            for at in 0..4 {
                let failed = usize::from(bucket) * 4 + at < failures;
                sums.add(Metric::Failures, if failed { 1.0 } else { 0.0 });
            }
            BucketRow { experiment: "e".into(), arm: arm.into(), bucket, sums }
        };
        (0..=u8::MAX).map(row).collect()
    };
    world.store.add_experiment_sums(&rows("control", 10)).await.unwrap();
    world.upkeep.watch_guards().await.unwrap();
    assert!(world.experiment().await.stopped_arms.is_empty(), "there is nothing to compare with");
    world.store.add_experiment_sums(&rows("longer", 300)).await.unwrap();
    world.upkeep.watch_guards().await.unwrap();
    let experiment = world.experiment().await;
    assert!(experiment.is_stopped("longer") && experiment.state == State::Running);
    world.upkeep.watch_guards().await.unwrap();
    assert_eq!(world.experiment().await, experiment);
    let rows = world.store.audit(&AuditQuery { limit: 1, ..AuditQuery::default() }).await.unwrap();
    assert_eq!((rows[0].actor.as_str(), rows[0].action.as_str()), ("service", "experiment.stop_arm"));
    assert!(rows[0].detail.contains("guard rail: failures"), "{}", rows[0].detail);

    // Its devices get the scene's own settings and are not counted.
    world.apply().await;
    for at in 0..12 {
        let first = world.ask(Some(&format!("device-{at}")), &asked(at)).await;
        assert_eq!(first.assist_tokens, 6);
        assert!(first.experiment.is_none_or(|arm| arm.arm == "control"));
    }
}
