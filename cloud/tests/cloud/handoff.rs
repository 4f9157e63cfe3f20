//! Keys and values for devices, over real sockets: what is offered to whom, and that it is what the model
//! computes.

use std::sync::Arc;

use baton_cloud::api::{Access, ApiLimits};
use baton_cloud::service::{CloudService, ModelSetup, start};
use baton_edge::HttpLimits;
use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::rows::{ids_sha256, kv_identity};
use baton_engine::{Engine, EngineOptions, Model, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_protocol::{
    AssistEvent, AssistRequest, DeviceInfo, KvEncoding, KvFrames, KvLayer, KvLayout, KvTicket, SentenceMap,
};
use baton_synthetic::{ExtraValue, SyntheticModel};
use uuid::Uuid;

use crate::client::Server;
use crate::world::{document, model, options, prompt_ids, request, scenes, tokens};

/// Returns a request of a device with this model.
fn asked(id: u128, scene: &str, kv: Option<String>) -> AssistRequest {
    let device = DeviceInfo {
        class: "laptop".into(),
        model: "tiny".into(),
        pair: None,
        kv,
        prefill_ms_per_token: None,
        prefill_ms_per_token2: 0.0,
        decode_ms: None,
        network: None,
        network_ms: None,
    };
    let request = request(scene, &document(30), 4);
    AssistRequest { request_id: Uuid::from_u128(id), device: Some(device), ..request }
}

/// Returns the ticket of an answer, and how many tokens its mask keeps at most.
async fn ticket(server: &Server, request: &AssistRequest) -> Option<KvTicket> {
    let body = serde_json::to_vec(request).unwrap();
    let events = server.send("POST", "/v1/assist", &[], &body).await.events();
    assert_eq!(tokens(&events).len(), 4);
    let first = events.iter().find_map(|event| match event {
        AssistEvent::First(first) => Some(first.kv.clone()),
        _ => None,
    });
    first.unwrap()
}

/// Fetches from this byte on.
async fn fetch(server: &Server, request: &AssistRequest, from: Option<u64>) -> (u16, Vec<u8>) {
    let path = format!("/v1/assist/{}/kv", request.request_id);
    let range = from.map(|from| format!("bytes={from}-"));
    let headers: Vec<(&str, &str)> = range.iter().map(|range| ("range", range.as_str())).collect();
    server.open("GET", &path, &headers, b"").await.read_bytes().await
}

/// Returns the rows of each layer.
fn rows(model: &Arc<Model>, request: &AssistRequest, ticket: &KvTicket, bytes: &[u8]) -> Vec<Vec<u8>> {
    let engine = Engine::new(Arc::clone(model), EngineOptions::default()).unwrap();
    let layers: Vec<KvLayer> = engine
        .kv_widths()
        .unwrap()
        .iter()
        .map(|width| KvLayer { heads: width.heads, token_bytes: width.token_bytes(KvFormat::F16) })
        .collect();
    let (mut rows, of) =
        (vec![Vec::new(); layers.len()], (request.request_id, ticket.prompt_sha256.as_str()));
    let layout = KvLayout::new(KvEncoding::F16, ticket.tokens as usize, layers, of);
    layout.check(ticket).unwrap();
    let mut frames = KvFrames::new(layout);
    frames.push(bytes, |place, bytes| rows[place.layer].extend_from_slice(bytes)).unwrap();
    assert!(frames.is_complete());
    rows
}

/// Checks what a device of this model gets; returns the positions of its rows, and how many there are in all.
async fn check_rows(server: &Server, model: &Arc<Model>) -> (Vec<usize>, usize) {
    let identity = kv_identity(model);
    let request = asked(1, "doc-qa", Some(identity.clone()));
    let ticket = ticket(server, &request).await.unwrap();
    let ids = prompt_ids(model, &request);
    assert_eq!((&ticket.model, &ticket.prompt_sha256), (&identity, &ids_sha256(&ids)));
    assert_eq!(ticket.format, KvEncoding::F16);
    let content = SentenceMap::new(&request.segments).len();
    assert!((ticket.tokens as usize) < ids.len() / 2 && content > 20, "{} of {}", ticket.tokens, ids.len());
    let (status, bytes) = fetch(server, &request, None).await;
    assert_eq!((status, bytes.len() as u64), (200, ticket.bytes));
    let rows = rows(model, &request, &ticket, &bytes);
    // Another engine computes the whole prompt; every row is one of its rows, in the order of positions.
    let mut engine = Engine::new(Arc::clone(model), EngineOptions::default()).unwrap();
    let seq = engine.create();
    let known = &ids[..ids.len() - 1];
    engine.step(&[StepSeq { seq, ids: known, logits: Wanted::None, capture: None }], &mut ()).unwrap();
    let all: Vec<usize> = (0..known.len()).collect();
    let mut positions = Vec::new();
    for (layer, rows) in rows.iter().enumerate() {
        let mut whole = Vec::new();
        engine.export_rows(seq, layer, &all, KvFormat::F16, &mut whole).unwrap();
        let each = whole.len() / all.len();
        let mut computed = whole.chunks_exact(each).enumerate();
        let found = rows.chunks_exact(each).map(|row| computed.find(|(_, computed)| *computed == row));
        positions = found.map(|found| found.unwrap_or_else(|| panic!("layer {layer}")).0).collect();
    }
    assert_eq!(positions.len(), ticket.tokens as usize);
    let (status, _) = fetch(server, &request, None).await;
    assert_eq!(status, 410, "it was read");
    (positions, known.len())
}

#[tokio::test]
async fn a_device_of_the_same_model_gets_what_the_model_computes() {
    check_rows(&Server::start().await, &model()).await;
}

#[tokio::test]
async fn what_a_sliding_window_sees_comes_with_the_kept_sentences() {
    let window = 64;
    let extra = vec![
        ("attention.sliding_window", ExtraValue::U32(window)),
        ("attention.sliding_window_pattern", ExtraValue::U32(2)),
    ];
    let tiny = SyntheticModel {
        n_layers: 4,
        d_model: 64,
        d_head: 16,
        d_ff: 96,
        context_len: 2048,
        endless: true,
        extra,
        ..SyntheticModel::small("gemma3", Format::F32, 7)
    };
    let model = Model::from_gguf(Gguf::from_bytes(tiny.to_gguf().unwrap()).unwrap()).unwrap();
    let setup = ModelSetup::named("tiny", Arc::clone(&model));
    let (service, worker) = CloudService::new(setup, scenes(), options()).unwrap();
    start(worker).unwrap();
    let access = Access::with_static_key(None);
    let server = Server::over(service, access, HttpLimits::default(), ApiLimits::default()).await;
    let (positions, cached) = check_rows(&server, &model).await;
    let seen: Vec<usize> = (cached + 1 - window as usize..cached).collect();
    let before = positions.len() - seen.len();
    assert!(before > 0, "sentences were kept");
    assert_eq!(positions[before..], seen);
}

#[tokio::test]
async fn a_fetch_goes_on_from_any_byte_and_others_find_nothing() {
    let server = Server::start().await;
    let request = asked(2, "doc-qa", Some(kv_identity(&model())));
    let ticket = ticket(&server, &request).await.unwrap();
    assert_eq!(fetch(&server, &request, Some(ticket.bytes)).await.0, 416);
    let path = format!("/v1/assist/{}/kv", request.request_id);
    let wrong = server.send("GET", &path, &[("range", "bytes=1-2")], b"").await;
    assert_eq!(wrong.status, 400);
    // The owner is who has the same credentials.
    let other = server.send("GET", &path, &[("authorization", "Bearer other")], b"").await;
    assert_eq!(other.status, 410);
    assert_eq!(server.get("/v1/assist/nobody/kv").await.status, 400);
    let (status, tail) = fetch(&server, &request, Some(ticket.bytes - 100)).await;
    assert_eq!((status, tail.len()), (206, 100));
}

#[tokio::test]
async fn nothing_is_offered_that_nobody_wants_or_can_take() {
    let server = Server::start().await;
    let own = || Some(kv_identity(&model()));
    let cases = [(3, "doc-qa", None), (4, "doc-qa", Some("0".repeat(64))), (5, "doc-qa-full", own())];
    for (id, scene, kv) in cases {
        let request = asked(id, scene, kv);
        assert_eq!(ticket(&server, &request).await, None, "{scene}");
        assert_eq!(fetch(&server, &request, None).await.0, 410);
    }
    let next = asked(6, "doc-qa", own());
    let body = serde_json::to_vec(&next).unwrap();
    let service = server.service.assist(&AssistRequest::parse(&body).unwrap());
    drop(service.unwrap());
    assert_eq!(fetch(&server, &next, None).await.0, 410, "a caller without credentials is offered nothing");
}
