//! Compares these schemas with the protocol's types.

use std::collections::BTreeSet;

use baton_pacing::BoundBy;
use baton_protocol::{
    AnswerFormat, ArmEvent, AssistEvent, AssistRequest, Corrector, DeviceInfo, EndEvent, EndReason,
    FirstEvent, KvEncoding, KvTicket, Markup, MaskEvent, PROTOCOL_VERSION, PastCall, ProgressEvent,
    ProgressStage, RefineOptions, Role, Sampling, SceneInfo, SceneSettings, Segment, SentenceMap, SlotTiming,
    StreamChecksum, Timing, TokenEvent, Tool, ToolChoice, ToolUse, Usage, VerifyOffer, VerifyReply,
    VerifyRequest, VerifyTiming,
};
use serde_json::{Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::*;

/// Checks that the schema's properties are exactly the fields of `sample`, which must have all of them set.
#[track_caller]
fn same_fields<S: ToSchema + PartialSchema>(sample: &impl Serialize) {
    let schema = serde_json::to_value(S::schema()).unwrap();
    let names = |value: &Value| -> BTreeSet<String> { value.as_object().unwrap().keys().cloned().collect() };
    let sample = serde_json::to_value(sample).unwrap();
    assert_eq!(names(&schema["properties"]), names(&sample), "{}", S::name());
}

/// Checks the fields of an event as it is sent, with its checksum.
#[track_caller]
fn same_fields_of<S: ToSchema + PartialSchema>(event: AssistEvent) {
    let mut data = event.data();
    StreamChecksum::new(b"").seal(event.name(), &mut data);
    same_fields::<S>(&serde_json::from_str::<Value>(&data).unwrap());
}

fn api_page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md")).unwrap()
}

/// Returns the words in backticks of a text, without those in parentheses.
fn quoted(text: &str) -> BTreeSet<String> {
    let outside: String = text.split('(').map(|part| part.rsplit(')').next().unwrap_or_default()).collect();
    outside.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_page_names_the_fields_of_the_first_token() {
    let page = api_page();
    let row = page.lines().find_map(|line| line.strip_prefix("| `first` |")).unwrap();
    let schema = serde_json::to_value(FirstBody::schema()).unwrap();
    let mut fields: BTreeSet<String> = schema["properties"].as_object().unwrap().keys().cloned().collect();
    // Every event has it; the page says so elsewhere.
    fields.remove("crc");
    assert_eq!(quoted(row), fields);
}

#[test]
fn the_page_names_what_decides_l() {
    let page = api_page();
    let line = page.lines().find(|line| line.starts_with("`assist_bound_by` says what decided L")).unwrap();
    // A plan without a relay is made only to compare with; quotas are no part of plans.
    let sent = [
        BoundBy::Tau,
        BoundBy::CloudOccupancy,
        BoundBy::CloudDecode,
        BoundBy::Floor,
        BoundBy::Load,
        BoundBy::Fixed,
        BoundBy::AnswerLength,
        BoundBy::DeviceTooSlow,
    ];
    let words = sent.map(BoundBy::as_str).into_iter().chain(["quota", "assist_bound_by"]);
    assert_eq!(quoted(line), words.map(str::to_owned).collect());
}

#[test]
fn requests_are_written_down_whole() {
    let device = DeviceInfo {
        class: "phone".into(),
        model: "m".into(),
        pair: Some("m@1+law@2".parse().unwrap()),
        kv: Some("a".repeat(64)),
        prefill_ms_per_token: Some(1.0),
        prefill_ms_per_token2: 0.0,
        decode_ms: Some(1.0),
        network: Some("wifi".into()),
        network_ms: Some(1.0),
    };
    same_fields::<Device>(&device);
    let call = PastCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    same_fields::<CallBody>(&call);
    let segment = Segment { calls: vec![call], call_id: Some("c".into()), ..Segment::fixed(Role::Tool, "x") };
    same_fields::<SegmentBody>(&segment);
    let tool = Tool { name: "f".into(), description: Some("d".into()), parameters: json!({}), strict: false };
    same_fields::<ToolBody>(&tool);
    let tools = ToolUse { tools: vec![tool], choice: ToolChoice::Auto, parallel: false };
    same_fields::<ToolsBody>(&tools);
    same_fields::<SamplingBody>(&Sampling::default());
    same_fields::<RefineBody>(&RefineOptions::default());
    same_fields::<AssistBody>(&AssistRequest {
        protocol: PROTOCOL_VERSION,
        request_id: Uuid::nil(),
        scene: "s".into(),
        scene_version: None,
        model: "m".into(),
        tokenizer_sha256: None,
        segments: Vec::new(),
        tools: Some(tools),
        format: AnswerFormat::JsonObject,
        continue_from: None,
        device: Some(device),
        sampling: Sampling::default(),
        refine: RefineOptions::default(),
        assist_tokens: None,
        resume: false,
        verify: true,
    });
    let draft = VerifyRequest { from: 1, digest: String::new(), draft: vec![1], at_least: 1 };
    same_fields::<VerifyBody>(&draft);
    same_fields::<VerifyReplyBody>(&VerifyReply {
        from: 1,
        accepted: 1,
        next: vec![2],
        ended: false,
        digest: String::new(),
        timing: VerifyTiming::default(),
    });
}

#[test]
fn replies_are_written_down_whole() {
    let map = SentenceMap::new(&[Segment::refinable(Role::User, "One. Two.")]);
    let mask = MaskEvent::new(&map, &vec![true; map.len()], 1.0, 1.0);
    same_fields_of::<MaskBody>(AssistEvent::Mask(mask));
    let progress = ProgressEvent { stage: ProgressStage::Queue, computed: 0, total: 1, eta_ms: Some(1.0) };
    same_fields_of::<ProgressBody>(AssistEvent::Progress(progress));
    same_fields_of::<TokenBody>(AssistEvent::Token(TokenEvent { index: 0, id: 0, text: String::new() }));
    let timing = Some(SlotTiming::default());
    let end = EndEvent { reason: EndReason::Stop, usage: Usage::default(), timing };
    same_fields_of::<EndBody>(AssistEvent::End(end));
    let first = FirstEvent {
        protocol: 1,
        scene_version: 1,
        index: 0,
        id: 0,
        text: String::new(),
        assist_tokens: 1,
        assist_bound_by: String::new(),
        tau_ms: 1.0,
        corrector: Corrector::Cloud,
        model: Some("m".into()),
        adapter: Some("a".into()),
        tokenizer_sha256: None,
        timing: Timing::default(),
        experiment: Some(ArmEvent { id: "e".into(), arm: "a".into(), feedback: None }),
        verify: Some(VerifyOffer { draft_max: 8, kept_ms: 1, pass_ms: 1.0, row_ms: 1.0 }),
        kv: Some(KvTicket {
            bytes: 1,
            format: KvEncoding::F16,
            tokens: 1,
            prompt_sha256: String::new(),
            model: String::new(),
        }),
    };
    same_fields::<TicketBody>(&first.kv);
    same_fields_of::<FirstBody>(AssistEvent::First(Box::new(first)));
    same_fields::<SceneBody>(&SceneInfo {
        id: "s".into(),
        version: 1,
        settings: SceneSettings::default(),
        tokenizer_sha256: None,
        prompt_tokens_max: None,
        call_markup: Some(Markup::Tagged),
    });
}
