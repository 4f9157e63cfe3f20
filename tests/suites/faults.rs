//! The connection to the cloud breaks at every index. The answer still ends, without a repeat or a gap, and
//! goes on as the device's own continuation of the accepted text (invariant I9). Then the device fails for
//! good at every step: the cloud goes on as its own model does after the accepted text.

#[path = "faults/failing.rs"]
mod failing;

use std::sync::Arc;

use baton_corpus::{Document, QuestionKind, document};
use baton_device::{
    local::{Accepted, EngineCommand},
    relay::{Ending, Source},
};
use baton_e2e::{
    pair::{Pair, Question, demo_model},
    simulation::{Line, LineFault, Told},
};
use baton_engine::{
    Detokenizer, Engine, EngineOptions, Model, Sampler, SamplingParams, StepSeq, Wanted,
    prompt::{PromptSegment, assemble},
};
use baton_protocol::{Corrector, Segment};

const TOKENS_MAX: usize = 64;
const ASSIST_TOKENS: u32 = 20;

fn line(fault: LineFault) -> Line {
    Line { latency_ms: 15.0, upload_ms: 0.0, fault }
}

fn ask(seed: u64, words: usize) -> (Document, Question) {
    let document = document(seed, words);
    let asked = document.question(QuestionKind::Long).expect("a document has a long question").text.clone();
    let question =
        Question { assist_tokens: Some(ASSIST_TOKENS), ..Question::about(&document, &asked, TOKENS_MAX) };
    (document, question)
}

/// Checks what must hold for every answer, whatever broke.
#[track_caller]
fn check_shown(told: &Told, what: &str) {
    assert!(
        matches!(told.outcome.ending, Ending::Stop | Ending::Length),
        "{:?}, {what}",
        told.outcome.ending
    );
    let indices: Vec<usize> =
        told.shown.iter().map(|&(index, _)| index).filter(|&index| index != usize::MAX).collect();
    assert!(indices.iter().copied().eq(0..indices.len()), "shown {indices:?}, {what}");
    let joined: String = told.shown.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(joined, told.outcome.answer, "{what}");
}

/// Returns the prompt that the device used in the end, and the cloud's tokens that it accepted, from the
/// commands to its engine.
fn taken_over(told: &Told, whole: &[Segment]) -> (Vec<Segment>, Vec<u32>) {
    let mut segments = whole.to_vec();
    let mut accepted = Vec::new();
    for command in &told.commands {
        match command {
            EngineCommand::Prefill { segments: refined, .. } => segments = refined.to_vec(),
            EngineCommand::Verify { accepted: Accepted::Ids(ids), .. } => accepted.clone_from(ids),
            EngineCommand::Verify { accepted: Accepted::Text(text), .. } => {
                panic!("tokenizers are equal, got `{text}`")
            }
            EngineCommand::Open { .. }
            | EngineCommand::Decode { .. }
            | EngineCommand::Draft { .. }
            | EngineCommand::Take { .. }
            | EngineCommand::Stop => {}
        }
    }
    (segments, accepted)
}

/// Returns the device's own continuation.
fn continuation(pair: &Pair, segments: &[Segment], accepted: &[u32]) -> String {
    continuation_by(pair.device.model(), segments, accepted)
}

/// Returns the continuation by the simplest use of the engine: the prompt in one step, then one token after
/// another.
fn continuation_by(model: &Arc<Model>, segments: &[Segment], accepted: &[u32]) -> String {
    let parts: Vec<PromptSegment<'_>> = segments
        .iter()
        .map(|segment| PromptSegment { role: segment.role.as_str(), text: &segment.text })
        .collect();
    let prompt = assemble(model.tokenizer(), model.template(), &parts).expect("the prompt fits the template");
    let options = EngineOptions { kv_tokens: 4096, ..EngineOptions::default() };
    let mut engine = Engine::new(model.clone(), options).expect("an engine for the reference");
    let seq = engine.create();
    let sampler = Sampler::new(SamplingParams::default()).expect("greedy sampling is valid");
    let mut detokenizer = Detokenizer::new(model.tokenizer().clone());
    let mut text: String = accepted.iter().map(|&id| detokenizer.push(id)).collect();
    let mut answer = accepted.to_vec();
    let mut next: Vec<u32> = prompt.ids.iter().chain(accepted).copied().collect();
    while answer.len() < TOKENS_MAX {
        let step = StepSeq { seq, ids: &next, logits: Wanted::Last, capture: None };
        let out = engine.step(&[step], &mut ()).expect("the reference computes");
        let id = sampler.sample(&out[0].logits, answer.len() as u64, &answer);
        if model.tokenizer().is_end(id) {
            break;
        }
        text.push_str(&detokenizer.push(id));
        answer.push(id);
        next = vec![id];
    }
    text + &detokenizer.finish()
}

/// Cuts the connection before token `cut` and compares with the device's own continuation.
fn check_cut(pair: &mut Pair, question: &Question, cut: usize) {
    let told = pair.relay(question, line(LineFault::CutAt(cut))).expect("the answer ends");
    let what = format!("cut at {cut}");
    check_shown(&told, &what);
    // A break after the last agreed token loses nothing.
    assert_eq!(told.notes.is_empty(), cut == ASSIST_TOKENS as usize, "{:?}, {what}", told.notes);
    let from_cloud = told.outcome.timeline.tokens_from(Source::Cloud);
    assert!(from_cloud <= cut, "{from_cloud} tokens from the cloud, {what}");
    let (segments, accepted) = taken_over(&told, &question.segments);
    assert_eq!(accepted.len(), cut, "the device goes on at the token that is missing, {what}");
    assert_eq!(told.outcome.answer, continuation(pair, &segments, &accepted), "{what}");
}

#[test]
fn a_cut_at_any_index_goes_on_as_the_device_would() {
    let cloud = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let device = demo_model("demo-device.gguf").expect("the demo model is in the checkout");
    let mut pair = Pair::new(cloud, device, 0.25, Corrector::Cloud).expect("set up both sides");
    let (_, question) = ask(11, 400);
    for cut in 0..=ASSIST_TOKENS as usize {
        check_cut(&mut pair, &question, cut);
    }
}

#[test]
fn a_cut_with_the_same_model_is_not_seen_in_the_text() {
    let model = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let mut pair = Pair::new(model.clone(), model, 1.0, Corrector::Cloud).expect("set up both sides");
    let (_, question) = ask(12, 120);
    let whole = pair.relay(&question, line(LineFault::None)).expect("the answer ends");
    for cut in 0..=ASSIST_TOKENS as usize {
        let told = pair.relay(&question, line(LineFault::CutAt(cut))).expect("the answer ends");
        check_shown(&told, &format!("cut at {cut}"));
        assert_eq!(told.outcome.answer, whole.outcome.answer, "cut at {cut}");
    }
}

#[test]
fn an_unreachable_cloud_leaves_the_device_alone() {
    let model = demo_model("demo-device.gguf").expect("the demo model is in the checkout");
    let mut pair = Pair::new(model.clone(), model, 0.25, Corrector::Cloud).expect("set up both sides");
    let (_, question) = ask(13, 120);
    let told = pair.relay(&question, line(LineFault::Unreachable)).expect("the answer ends");
    check_shown(&told, "unreachable");
    assert_eq!(told.outcome.timeline.tokens_from(Source::Cloud), 0);
    assert!(!told.notes.is_empty(), "an unreachable cloud is noted");
    assert_eq!(told.outcome.answer, continuation(&pair, &question.segments, &[]));
}

#[test]
fn another_tokenizer_takes_over_by_text() {
    let cloud = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let device = demo_model("demo-device-b.gguf").expect("the demo model is in the checkout");
    let mut pair = Pair::new(cloud, device, 0.25, Corrector::Cloud).expect("set up both sides");
    let (_, question) = ask(14, 400);
    for cut in [1, 2, 5, 11, ASSIST_TOKENS as usize] {
        let told = pair.relay(&question, line(LineFault::CutAt(cut))).expect("the answer ends");
        check_shown(&told, &format!("cut at {cut}, other tokenizer"));
        assert_eq!(told.outcome.timeline.tokens_from(Source::Cloud), cut);
    }
    let told = pair.relay(&question, line(LineFault::None)).expect("the answer ends");
    check_shown(&told, "other tokenizer");
    let by_cloud: String = told
        .shown
        .iter()
        .filter(|(index, _)| *index < ASSIST_TOKENS as usize)
        .map(|(_, text)| text.as_str())
        .collect();
    assert!(!by_cloud.contains('\u{fffd}'), "no broken characters in `{by_cloud}`");
}
