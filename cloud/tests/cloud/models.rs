//! Tests several models in one service, and adapters of scenes: each answer is the one of its own model and
//! adapter.

use std::sync::Arc;

use baton_cloud::scene::book::SceneBook;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::completion::CompletionRequest;
use baton_cloud::service::{CloudService, ModelSetup, ServiceError, SetupError};
use baton_engine::Engine;
use baton_engine::gguf::Gguf;
use baton_engine::{Adapter, Model};
use baton_generate::host::Host;
use baton_kernels_cpu::Format;
use baton_openai::ChatMessage;
use baton_protocol::{AssistEvent, AssistRequest, Role};
use baton_synthetic::{SyntheticAdapter, SyntheticModel};

use crate::world::{document, drain, greedy, model, options, prompt_ids, request, run_all, tokens};

/// Returns a model other than that of all tests: other weights and widths, the same bytes as tokens.
fn other_model() -> Arc<Model> {
    let other = SyntheticModel { d_ff: 64, ..SyntheticModel::small("qwen2", Format::F32, 8) };
    Model::from_gguf(Gguf::from_bytes(other.to_gguf().unwrap()).unwrap()).unwrap()
}

fn adapter(model: &Arc<Model>, seed: u64) -> Arc<Adapter> {
    let bytes = SyntheticAdapter::of_seed(seed).to_gguf(model.config()).unwrap();
    Adapter::from_gguf(Gguf::from_bytes(bytes).unwrap(), model).unwrap()
}

/// Returns scenes by model and adapter, named `ID-MODEL-ADAPTER`, with `-` if there is none.
fn scenes() -> SceneBook {
    let scene = |id: &str, model: Option<&str>, adapter: Option<&str>| Scene {
        id: id.into(),
        version: 1,
        settings: SceneSettings {
            ratio: Some(1.0),
            model: model.map(str::to_owned),
            adapter: adapter.map(str::to_owned),
            ..SceneSettings::with_system("You answer from the document.")
        },
    };
    SceneBook::new([
        scene("plain", None, None),
        scene("law", None, Some("law")),
        scene("med", None, Some("med")),
        scene("other", Some("other"), None),
        scene("other-law", Some("other"), Some("law")),
        scene("gone", Some("gone"), None),
        scene("unadapted", Some("other"), Some("med")),
    ])
}

struct World {
    service: CloudService,
    hosts: Vec<Host<Engine>>,
    tiny: Arc<Model>,
    other: Arc<Model>,
    law: Arc<Adapter>,
    med: Arc<Adapter>,
    other_law: Arc<Adapter>,
}

fn world() -> World {
    let (tiny, other) = (model(), other_model());
    let [law, med] = [1, 2].map(|seed| adapter(&tiny, seed));
    let other_law = adapter(&other, 3);
    let mut first = ModelSetup::named("tiny", tiny.clone());
    first.adapters.insert("law".into(), law.clone());
    first.adapters.insert("med".into(), med.clone());
    let mut second = ModelSetup::named("other", other.clone());
    second.adapters.insert("law".into(), other_law.clone());
    let (service, hosts) = CloudService::with_models(vec![first, second], scenes(), options()).unwrap();
    World { service, hosts, tiny, other, law, med, other_law }
}

impl World {
    /// Runs every model's passes until nothing is left to run.
    fn run(&mut self) {
        for host in &mut self.hosts {
            run_all(host);
        }
    }

    /// Returns the answers of requests that run at the same time.
    fn answers(&mut self, requests: &[AssistRequest]) -> Vec<Vec<AssistEvent>> {
        let mut streams: Vec<_> =
            requests.iter().map(|request| self.service.assist(request).unwrap()).collect();
        self.run();
        streams.iter_mut().map(drain).collect()
    }
}

#[test]
fn scenes_run_on_their_model_with_their_adapter_beside_each_other() {
    let mut world = world();
    let asked = ["plain", "law", "other-law", "med", "other", "law"];
    let requests = asked.map(|scene| request(scene, &document(12), 8));
    let answers = world.answers(&requests);
    let of = |scene: &str| match scene {
        "plain" => (&world.tiny, None, "tiny", None),
        "law" => (&world.tiny, Some(&world.law), "tiny", Some("law")),
        "med" => (&world.tiny, Some(&world.med), "tiny", Some("med")),
        "other" => (&world.other, None, "other", None),
        _ => (&world.other, Some(&world.other_law), "other", Some("law")),
    };
    let mut texts = Vec::new();
    for (scene, (request, events)) in asked.iter().zip(requests.iter().zip(&answers)) {
        let (model, adapter, name, adapter_name) = of(scene);
        let have: Vec<u32> = tokens(events).into_iter().map(|(id, _)| id).collect();
        assert_eq!(have, greedy(model, adapter, prompt_ids(model, request), 8), "{scene}");
        let first = events.iter().find_map(|event| match event {
            AssistEvent::First(first) => Some(first),
            _ => None,
        });
        let first = first.unwrap();
        assert_eq!((first.model.as_deref(), first.adapter.as_deref()), (Some(name), adapter_name), "{scene}");
        let info = world.service.scene(scene).unwrap();
        let told = (info.settings.model.as_deref(), info.settings.adapter.as_deref());
        assert_eq!(told, (Some(name), adapter_name));
        assert_eq!(info.tokenizer_sha256.as_deref(), Some(model.tokenizer().digest_hex()));
        texts.push(have);
    }
    texts.truncate(5);
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 5, "five different models, as far as their answers say");
    // Each model has its own queue; the figures are of both.
    let stats = world.service.stats();
    assert_eq!((stats.closed_total, stats.slots), (6, 2 * options().slots));
}

#[test]
fn prefixes_are_found_again_for_the_same_adapter_only() {
    let mut world = world();
    let cached = |world: &mut World, scene: &str| {
        let events = world.answers(&[request(scene, &document(30), 2)]).remove(0);
        crate::world::end(&events).usage.cached_prefix_tokens
    };
    assert_eq!(cached(&mut world, "plain"), 0);
    assert_eq!(cached(&mut world, "law"), 0, "not what the model alone has computed");
    assert_eq!(cached(&mut world, "med"), 0, "nor another adapter");
    assert!(cached(&mut world, "law") > 200 && cached(&mut world, "plain") > 200);
    assert_eq!(cached(&mut world, "other"), 0, "each model has a cache of its own");
}

#[track_caller]
fn refused(request: &AssistRequest, want: &str) {
    let err = world().service.assist(request).unwrap_err();
    assert_eq!(err.to_string(), want);
    let body = err.to_body();
    assert_eq!(body.error.code.as_str(), "unknown_model");
}

#[test]
fn what_this_replica_lacks_is_named() {
    let scene = |id: &str| request(id, &document(3), 2);
    refused(
        &scene("gone"),
        "scene `gone` needs model `gone`, which is not served here; these are: tiny, other",
    );
    refused(
        &scene("unadapted"),
        "scene `unadapted` needs adapter `med` of model `other`, which is not served here; these are: law",
    );
    let named = |id: &str, model: &str| AssistRequest { model: model.into(), ..scene(id) };
    refused(
        &named("other", "tiny"),
        "scene `other` is answered by model `other`, the request asks for `tiny`",
    );
    refused(&named("plain", "big"), "model `big` is not served here; these are: tiny, other");
    let service = world().service;
    let settings = |id: &str| service.scene_book().get(id, None).unwrap().settings.clone();
    assert!(matches!(service.unserved("x", &settings("gone")), Some(ServiceError::SceneModel { .. })));
    assert!(matches!(service.unserved("x", &settings("unadapted")), Some(ServiceError::SceneAdapter { .. })));
    assert!(service.unserved("x", &settings("other-law")).is_none());
    // The scene's settings are shown anyway.
    let info = service.scene("gone").unwrap();
    assert_eq!((info.settings.model.as_deref(), info.tokenizer_sha256), (Some("gone"), None));
}

#[test]
fn chats_choose_a_model_by_name() {
    let mut world = world();
    let ask = |world: &mut World, name: &str| {
        let message = ChatMessage::new(Role::User, "What does item 7 cost?");
        let asked = CompletionRequest { max_tokens: Some(6), ..CompletionRequest::new(name, vec![message]) };
        let mut stream = world.service.complete(&asked)?;
        world.run();
        Ok::<_, ServiceError>((stream.model().to_owned(), tokens(&drain(&mut stream))))
    };
    let (tiny, other) = (ask(&mut world, "tiny").unwrap(), ask(&mut world, "other").unwrap());
    assert_eq!((tiny.0.as_str(), other.0.as_str()), ("tiny", "other"));
    assert_ne!(tiny.1, other.1);
    assert_eq!(ask(&mut world, "default").unwrap(), tiny);
    let err = ask(&mut world, "law").unwrap_err();
    assert!(
        matches!(&err, ServiceError::UnknownModel { asked, .. } if asked == "law"),
        "an adapter is no model"
    );
    let names: Vec<_> =
        world.service.models().map(|view| (view.name.to_owned(), view.adapters.to_vec())).collect();
    assert_eq!(
        names,
        [("tiny".into(), vec!["law".into(), "med".into()]), ("other".into(), vec!["law".into()])]
    );
}

#[test]
fn figures_are_told_by_model() {
    let mut world = world();
    world.answers(&[request("plain", &document(5), 2), request("other", &document(5), 3)]);
    let text = world.service.render_metrics();
    for line in [
        "baton_requests_total{scene=\"plain\",model=\"tiny\",outcome=\"cap\"} 1",
        "baton_requests_total{scene=\"other\",model=\"other\",outcome=\"cap\"} 1",
        "baton_requests_running{model=\"other\"} 0",
        "baton_generation_tokens_total{scene=\"other\",model=\"other\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn a_service_that_cannot_be_told_apart_is_refused() {
    let setup = |name: &str| ModelSetup::named(name, model());
    let made = |setups| CloudService::with_models(setups, scenes(), options()).map(drop);
    assert!(matches!(made(Vec::new()), Err(SetupError::NoModel)));
    assert!(
        matches!(made(vec![setup("a"), setup("a")]), Err(SetupError::DuplicateModel(name)) if name == "a")
    );
    let mut wrong = setup("a");
    wrong.adapters.insert("law".into(), adapter(&other_model(), 1));
    assert!(matches!(made(vec![wrong]), Err(SetupError::Adapter { .. })));
}
