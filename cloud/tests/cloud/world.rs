//! A tiny model of random weights, a service over it, and a clock that tests move by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use baton_cloud::Clock;
use baton_cloud::access::{ApiKey, KeySecret, Scopes, Tenant, TenantSettings};
use baton_cloud::scene::book::SceneBook;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::stream::AssistStream;
use baton_cloud::service::{CloudService, ModelSetup, ServiceOptions};
use baton_engine::gguf::Gguf;
use baton_engine::prompt::{PromptSegment, assemble};
use baton_engine::tokenizer::TokenId;
use baton_engine::{Adapter, Engine, EngineOptions, Model, StepSeq, Wanted};
use baton_generate::host::Host;
use baton_generate::scheduler::{MixedTokens, StepBudget};
use baton_generate::speculation::Speculation;
use baton_kernels_cpu::Format;
use baton_protocol::{AssistEvent, AssistRequest, EndEvent, KvEncoding, PROTOCOL_VERSION, Role, Segment};
use baton_synthetic::SyntheticModel;

/// Returns the model of all tests: bytes as tokens, a context of 2,048.
pub(crate) fn model() -> Arc<Model> {
    static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
        let tiny = SyntheticModel {
            n_layers: 3,
            d_model: 64,
            d_head: 16,
            d_ff: 96,
            context_len: 2048,
            ..SyntheticModel::small("llama", Format::F32, 7)
        };
        Model::from_gguf(Gguf::from_bytes(tiny.to_gguf().unwrap()).unwrap()).unwrap()
    });
    MODEL.clone()
}

/// Returns that model, with the name that all tests use.
pub(crate) fn setup() -> ModelSetup {
    ModelSetup::named("tiny", model())
}

/// Returns the seeded scenes, without a database.
pub(crate) fn scenes() -> SceneBook {
    let doc_qa = SceneSettings {
        ratio: Some(0.25),
        question_prefix: "\n\nQuestion: ".into(),
        kv: Some(KvEncoding::F16),
        ..SceneSettings::with_system("You answer from the document.")
    };
    let full = SceneSettings { ratio: Some(1.0), xi: 1.0, refine: false, kv: None, ..doc_qa.clone() };
    let chat = SceneSettings::with_system("You help.");
    let scene = |id: &str, settings| Scene { id: id.into(), version: 1, settings };
    SceneBook::new([scene("doc-qa", doc_qa), scene("doc-qa-full", full), scene("chat", chat)])
}

/// Returns a key with this secret, which is valid for ever.
pub(crate) fn key(secret: &KeySecret, tenant: &str, scopes: Scopes) -> ApiKey {
    ApiKey {
        id: secret.id().into(),
        revision: 1,
        tenant: tenant.into(),
        label: String::new(),
        hash: secret.hash(),
        scopes,
        created_ms: 0,
        created_by: String::new(),
        expires_ms: None,
        revoked_ms: None,
        last_used_ms: None,
        rotated_from: None,
    }
}

/// Returns a tenant with these settings.
pub(crate) fn tenant(id: &str, settings: TenantSettings) -> Tenant {
    Tenant { id: id.into(), revision: 1, settings, created_ms: 0, updated_ms: 0, updated_by: String::new() }
}

/// A clock that shows the same time until a test moves it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandClock(Arc<AtomicU64>);

impl HandClock {
    pub(crate) fn clock(&self) -> Clock {
        let nanos = self.0.clone();
        Clock::from_fn(move || Duration::from_nanos(nanos.load(Ordering::Relaxed)))
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Returns a budget of at most this many prompt tokens in a pass, whatever else is in it.
pub(crate) fn chunks(tokens: usize) -> StepBudget {
    StepBudget { chunk_tokens: tokens, mixed: MixedTokens::Fixed(tokens) }
}

pub(crate) fn options() -> ServiceOptions {
    ServiceOptions {
        threads: std::num::NonZeroUsize::new(1),
        budget: chunks(64),
        // Many tests count one pass for each token.
        speculation: Speculation::Off,
        ..ServiceOptions::default()
    }
}

/// Makes a service whose host is driven by hand.
pub(crate) fn by_hand(options: ServiceOptions) -> (CloudService, Host<Engine>) {
    CloudService::new(setup(), scenes(), options).unwrap()
}

/// Runs passes until nothing is left to run; returns their number.
pub(crate) fn run_all(host: &mut Host<Engine>) -> usize {
    let mut passes = 0;
    while let Some(pass) = host.turn() {
        host.commit(pass);
        passes += 1;
    }
    passes
}

/// Returns a document of `sentences` different sentences under two headings.
pub(crate) fn document(sentences: usize) -> String {
    let mut text = "The report\n\n# First part\n\n".to_owned();
    for at in 0..sentences {
        if at == sentences / 2 {
            text.push_str("\n\n# Second part\n\n");
        }
        text.push_str(&format!("Item {at} costs {} coins. ", (at * 37) % 101));
    }
    text
}

pub(crate) const QUESTION: &str = "\n\nQuestion: What does item 7 cost, and why?";

/// Returns a question about a document in a scene.
pub(crate) fn request(scene: &str, document: &str, assist_tokens: u32) -> AssistRequest {
    AssistRequest {
        protocol: PROTOCOL_VERSION,
        request_id: uuid::Uuid::from_u128(7),
        scene: scene.into(),
        scene_version: None,
        model: "default".into(),
        tokenizer_sha256: None,
        segments: vec![
            Segment::fixed(Role::System, "You answer from the document."),
            Segment::refinable(Role::User, document),
            Segment::fixed(Role::User, QUESTION),
        ],
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        continue_from: None,
        device: None,
        sampling: baton_protocol::Sampling::default(),
        refine: baton_protocol::RefineOptions::default(),
        assist_tokens: Some(assist_tokens),
        resume: false,
        verify: false,
    }
}

/// Returns all events that a stream has now.
pub(crate) fn drain(stream: &mut AssistStream) -> Vec<AssistEvent> {
    std::iter::from_fn(|| stream.try_next()).collect()
}

/// Returns one whole answer, run alone.
pub(crate) fn answer(
    service: &CloudService,
    host: &mut Host<Engine>,
    request: &AssistRequest,
) -> Vec<AssistEvent> {
    let mut stream = service.assist(request).unwrap_or_else(|err| panic!("{err}"));
    run_all(host);
    drain(&mut stream)
}

/// Returns ids and texts of the tokens, in order of their indices, which must be consecutive.
#[track_caller]
pub(crate) fn tokens(events: &[AssistEvent]) -> Vec<(u32, String)> {
    let mut next = None;
    let mut tokens = Vec::new();
    for event in events {
        let (index, id, text) = match event {
            AssistEvent::First(first) => (first.index, first.id, &first.text),
            AssistEvent::Token(token) => (token.index, token.id, &token.text),
            _ => continue,
        };
        assert_eq!(index, next.unwrap_or(index), "one event for each index, in order");
        next = Some(index + 1);
        tokens.push((id, text.clone()));
    }
    tokens
}

/// Returns the one terminal event, which must be the last.
#[track_caller]
pub(crate) fn end(events: &[AssistEvent]) -> EndEvent {
    let terminal = |event: &AssistEvent| matches!(event, AssistEvent::End(_) | AssistEvent::Error(_));
    assert_eq!(events.iter().filter(|event| terminal(event)).count(), 1, "{events:?}");
    match events.last() {
        Some(AssistEvent::End(end)) => end.clone(),
        other => panic!("the last event is {other:?}"),
    }
}

/// Returns the token ids of the request's prompt, unrefined.
pub(crate) fn prompt_ids(model: &Model, request: &AssistRequest) -> Vec<TokenId> {
    let parts: Vec<_> = request
        .segments
        .iter()
        .map(|segment| PromptSegment { role: segment.role.as_str(), text: &segment.text })
        .collect();
    assemble(model.tokenizer(), model.template(), &parts).unwrap().ids
}

/// Returns the `n` tokens that the engine alone writes after these ids, or fewer if it ends earlier.
pub(crate) fn greedy(
    model: &Arc<Model>,
    adapter: Option<&Arc<Adapter>>,
    mut ids: Vec<TokenId>,
    n: usize,
) -> Vec<TokenId> {
    let mut engine = Engine::new(model.clone(), EngineOptions::default()).unwrap();
    let adapter = adapter.map(|adapter| engine.add_adapter(adapter.clone()).unwrap());
    let seq = engine.create_with(adapter).unwrap();
    let mut written = Vec::new();
    for _ in 0..n {
        let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
        let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        let best = best.unwrap() as TokenId;
        if model.tokenizer().is_end(best) {
            break;
        }
        written.push(best);
        ids = vec![best];
    }
    written
}
