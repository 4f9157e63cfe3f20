//! The shapes that are written down here, held to those of the protocol.

use std::collections::BTreeSet;

use baton_protocol::{
    AssistRequest, Corrector, DeviceInfo, EndEvent, EndReason, FirstEvent, MaskEvent, PROTOCOL_VERSION,
    RefineOptions, Role, Sampling, SceneInfo, Segment, SentenceMap, SlotTiming, Timing, TokenEvent, Usage,
};
use serde_json::{Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::*;

/// Every field of `sample`, which must have them all, is a property of the schema, and the other way round.
#[track_caller]
fn same_fields<S: ToSchema + PartialSchema>(sample: &impl Serialize) {
    let schema = serde_json::to_value(S::schema()).unwrap();
    let names = |value: &Value| -> BTreeSet<String> { value.as_object().unwrap().keys().cloned().collect() };
    let sample = serde_json::to_value(sample).unwrap();
    assert_eq!(names(&schema["properties"]), names(&sample), "{}", S::name());
}

#[test]
fn requests_are_written_down_whole() {
    let device = DeviceInfo {
        class: "phone".into(),
        model: "m".into(),
        prefill_ms_per_token: Some(1.0),
        prefill_ms_per_token2: 0.0,
        decode_ms: Some(1.0),
        network: Some("wifi".into()),
        network_ms: Some(1.0),
    };
    same_fields::<Device>(&device);
    same_fields::<SegmentBody>(&Segment::fixed(Role::User, "x"));
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
        continue_from: None,
        device: Some(device),
        sampling: Sampling::default(),
        refine: RefineOptions::default(),
        assist_tokens: None,
        resume: false,
    });
}

#[test]
fn replies_are_written_down_whole() {
    let map = SentenceMap::new(&[Segment::refinable(Role::User, "One. Two.")]);
    same_fields::<MaskBody>(&MaskEvent::new(&map, &vec![true; map.len()], 1.0, 1.0));
    same_fields::<TokenBody>(&TokenEvent { index: 0, id: 0, text: String::new() });
    let timing = Some(SlotTiming::default());
    same_fields::<EndBody>(&EndEvent { reason: EndReason::Stop, usage: Usage::default(), timing });
    same_fields::<FirstBody>(&FirstEvent {
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
        guide: Some(json!({})),
    });
    same_fields::<SceneBody>(&SceneInfo {
        id: "s".into(),
        version: 1,
        system: String::new(),
        question_prefix: String::new(),
        ratio: None,
        xi: 1.0,
        assist_tokens: None,
        assist_floor: 1,
        assist_max: 1,
        tau_ms: 1.0,
        corrector: Corrector::Cloud,
        refine: true,
        model: "m".into(),
        adapter: None,
        tokenizer_sha256: None,
    });
}
