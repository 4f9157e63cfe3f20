//! Tests models that are loaded when they are needed, under a budget: answers stay the same, held models stay
//! in memory, and every waiting request ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use baton_cloud::api::{Access, ApiLimits};
use baton_cloud::service::completion::CompletionRequest;
use baton_cloud::service::{
    CloudService, Lease, LoadError, ModelFacts, ModelLoader, ModelSetup, ModelState, ServiceError,
    ServiceOptions, SetupError,
};
use baton_edge::HttpLimits;
use baton_engine::gguf::Gguf;
use baton_engine::{Engine, EngineError, EngineOptions, Model};
use baton_kernels_cpu::Format;
use baton_openai::ChatMessage;
use baton_protocol::{ErrorCode, Role};
use baton_synthetic::SyntheticModel;
use serde_json::json;

use crate::client::{HANG, Server};
use crate::world::{HandClock, options, scenes, tokens};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn models() -> [Arc<Model>; 3] {
    static MODELS: LazyLock<[Arc<Model>; 3]> = LazyLock::new(|| {
        [1, 2, 3].map(|seed| {
            let tiny = SyntheticModel { d_ff: 256, ..SyntheticModel::small("llama", Format::F32, seed) };
            Model::from_gguf(Gguf::from_bytes(tiny.to_gguf().unwrap()).unwrap()).unwrap()
        })
    });
    MODELS.clone()
}

/// What the loader of a test has done, and whether it fails.
#[derive(Debug, Default)]
struct Record {
    opened: [AtomicUsize; 3],
    is_broken: AtomicBool,
}

struct Loader(Arc<Record>);

impl ModelLoader for Loader {
    fn open(&self, at: usize) -> Result<ModelSetup, LoadError> {
        self.0.opened[at].fetch_add(1, Ordering::Relaxed);
        if self.0.is_broken.load(Ordering::Relaxed) {
            return Err("the disk is gone".into());
        }
        Ok(ModelSetup::named(NAMES[at], models()[at].clone()))
    }

    fn engine(&self, _: usize, model: Arc<Model>, options: EngineOptions) -> Result<Engine, EngineError> {
        Engine::new(model, options)
    }
}

fn facts(options: &ServiceOptions) -> Vec<ModelFacts> {
    let setups = NAMES.into_iter().zip(models()).map(|(name, model)| ModelSetup::named(name, model));
    setups.map(|setup| ModelFacts::of(&setup, options, 1 << 20)).collect()
}

pub(crate) struct World {
    pub(crate) service: CloudService,
    record: Arc<Record>,
    clock: HandClock,
    /// Memory of one model.
    each: u64,
}

/// Returns a service with room for so many models, named `a`, `b` and `c`.
pub(crate) fn world(models: u64) -> World {
    let (record, clock) = (Arc::<Record>::default(), HandClock::default());
    let options = ServiceOptions { clock: clock.clock(), ..options() };
    let facts = facts(&options);
    let each = facts[0].memory_bytes();
    let loader = Box::new(Loader(record.clone()));
    let service = CloudService::managed(facts, scenes(), options, Some(models * each), loader).unwrap();
    World { service, record, clock, each }
}

impl World {
    /// Returns the answer of a model, loaded if it must be, and what holds it.
    async fn answer(&self, model: &str) -> (Vec<(u32, String)>, Lease) {
        let lease = self.held(model).await.unwrap();
        let asked = CompletionRequest {
            max_tokens: Some(6),
            ..CompletionRequest::new(model, vec![ChatMessage::new(Role::User, "Say something.")])
        };
        let mut stream = self.service.complete(&asked).unwrap();
        let mut events = Vec::new();
        while let Some(event) = stream.next().await {
            events.push(event);
        }
        let (_, used) = self.service.models_memory();
        assert!(Some(used) <= self.service.models_memory().0);
        (tokens(&events), lease)
    }

    async fn held(&self, model: &str) -> Result<Lease, ServiceError> {
        tokio::time::timeout(HANG, self.service.hold(model, None)).await.expect("every request ends")
    }

    /// Waits until a model has this state.
    pub(crate) async fn until(&self, at: usize, state: ModelState) {
        let there = async {
            while self.service.residency()[at].state != state {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HANG, there).await.expect("the state comes");
    }

    fn opened(&self) -> [usize; 3] {
        [0, 1, 2].map(|at| self.record.opened[at].load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn models_take_turns_in_memory_and_their_answers_stay_the_same() {
    let world = world(2);
    assert_eq!(world.service.models_memory(), (Some(2 * world.each), 0));
    let mut first = Vec::new();
    for name in NAMES {
        first.push(world.answer(name).await.0);
        world.clock.advance(Duration::from_secs(1));
    }
    assert!(first[0] != first[1] && first[1] != first[2]);
    assert_eq!(world.opened(), [1, 1, 1]);
    let states: Vec<_> = world.service.residency().iter().map(|model| model.state).collect();
    assert_eq!(states, [ModelState::Unloaded, ModelState::Loaded, ModelState::Loaded], "a was used first");
    for (at, name) in NAMES.into_iter().enumerate() {
        assert_eq!(world.answer(name).await.0, first[at], "{name}");
        world.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(world.opened(), [2, 2, 2], "each time the one that was not used for longest had left");
    let text = world.service.render_metrics();
    for line in
        ["baton_model_loaded{model=\"a\"} 0", "baton_model_loads_total{model=\"a\",outcome=\"loaded\"} 2"]
    {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    world.service.drain();
    assert!(world.service.join());
}

#[tokio::test]
async fn a_held_model_is_never_unloaded() {
    let world = world(1);
    let (_, lease) = world.answer("a").await;
    let late = world.service.hold("b", Some(Duration::from_millis(30))).await.unwrap_err();
    assert!(matches!(&late, ServiceError::ModelLate { model } if model == "b"), "{late}");
    assert_eq!(late.to_body().error.code, ErrorCode::Overloaded);
    assert_eq!((world.opened(), world.service.residency()[1].waiting), ([1, 0, 0], 0));
    let waits = world.held("b");
    tokio::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_millis(10), &mut waits).await.is_err(), "a is held");
    assert_eq!(world.service.residency()[1].state, ModelState::Waiting);
    drop(lease);
    let lease = waits.await.unwrap();
    assert_eq!(world.service.residency()[0].state, ModelState::Unloaded);
    assert_eq!(world.service.residency()[1].holding, 1);
    drop(lease);
    assert_eq!(world.service.residency()[1].holding, 0);
}

#[tokio::test]
async fn a_failed_load_is_an_error_and_is_tried_again_later() {
    let world = world(1);
    world.record.is_broken.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let err = world.held("a").await.unwrap_err();
        assert!(matches!(&err, ServiceError::ModelFailed { retry_after_ms: 1000, .. }), "{err}");
        assert_eq!(err.to_body().error.code, ErrorCode::Unavailable);
        assert!(!err.to_string().contains("disk"), "clients are not told about files");
    }
    assert_eq!(world.opened(), [1, 0, 0], "it rests");
    let known = &world.service.residency()[0];
    assert_eq!((known.state, known.problem.as_deref()), (ModelState::Failed, Some("the disk is gone")));
    world.record.is_broken.store(false, Ordering::Relaxed);
    world.clock.advance(Duration::from_secs(1));
    drop(world.held("a").await.unwrap());
    assert_eq!(world.service.residency()[0].problem, None);
}

#[tokio::test]
async fn operators_unload_drain_and_load() {
    let world = world(2);
    let (_, lease) = world.answer("a").await;
    world.service.unload_model("a", false).unwrap();
    assert_eq!(world.service.residency()[0].state, ModelState::Retiring);
    drop(lease);
    world.until(0, ModelState::Unloaded).await;
    drop(world.held("a").await.unwrap());
    world.service.unload_model("a", true).unwrap();
    let err = world.held("a").await.unwrap_err();
    assert!(matches!(err, ServiceError::ModelDrained { .. }), "{err}");
    assert!(world.service.residency()[0].is_drained);
    world.service.load_model("a").unwrap();
    world.until(0, ModelState::Loaded).await;
    drop(world.held("a").await.unwrap());
    assert!(matches!(world.service.load_model("x"), Err(ServiceError::UnknownModel { .. })));
}

#[tokio::test]
async fn a_stop_ends_waiting_requests() {
    let world = world(1);
    let (_, _lease) = world.answer("a").await;
    let waits = world.held("b");
    tokio::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_millis(10), &mut waits).await.is_err());
    world.service.drain();
    assert!(matches!(waits.await, Err(ServiceError::Stopping)));
    assert!(!world.service.is_open());
    assert!(world.service.join());
}

#[test]
fn a_model_larger_than_the_budget_is_refused_by_name() {
    let options = options();
    let facts = facts(&options);
    let budget = facts[0].memory_bytes() - 1;
    let loader = Box::new(Loader(Arc::default()));
    let err = CloudService::managed(facts, scenes(), options, Some(budget), loader).unwrap_err();
    assert!(matches!(&err, SetupError::OverBudget { model, .. } if model == "a"), "{err}");
    assert!(err.to_string().contains("model `a` needs"), "{err}");
}

#[tokio::test]
async fn models_are_named_before_they_are_loaded_and_requests_load_them() {
    let world = world(1);
    let access = Access::with_static_key(None);
    let server =
        Server::over(world.service.clone(), access, HttpLimits::default(), ApiLimits::default()).await;
    let card = server.get("/v1/models/b").await.json();
    assert_eq!((&card["id"], &card["context_length"]), (&json!("b"), &json!(1024)));
    assert_eq!(world.opened(), [0, 0, 0]);
    for name in ["b", "a", "default"] {
        let messages = json!([{ "role": "user", "content": "Hello." }]);
        let asked = json!({ "model": name, "messages": messages, "max_tokens": 4, "temperature": 0 });
        let reply = server.post("/v1/chat/completions", &asked).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.body());
    }
    let counted = server.post("/tokenize", &json!({ "model": "c", "prompt": "Hello." })).await;
    assert_eq!(counted.json()["count"], 6, "{}", counted.body());
    assert_eq!(world.opened(), [1, 1, 1]);
    assert_eq!(server.get("/readyz").await.status, 200);
    server.stop().await;
    assert!(world.service.join());
}
