//! If both sides have the same model and r = 1, the relay's answer equals the cloud's own answer, token for
//! token.
//!
//! Both engines really compute; only time is virtual. The test depends on two rules at once: a token's logits
//! do not depend on batch or chunking, and sampling depends only on (seed, token index).

#[path = "relay/verify.rs"]
mod verify;

use baton_corpus::{QuestionKind, document};
use baton_e2e::{
    pair::{Pair, Question, demo_model},
    simulation::{Line, LineFault},
};
use baton_protocol::{AssistEvent, Corrector, EndReason, Sampling};

const DOCUMENTS: u64 = 200;
const TOKENS_MAX: usize = 72;
const LINE: Line = Line { latency_ms: 15.0, upload_ms: 0.0, fault: LineFault::None };

fn sampled(seed: u64) -> Sampling {
    Sampling { temperature: 0.9, top_p: Some(0.95), seed, ..Sampling::default() }
}

/// Returns the ids and the text of the cloud's own whole answer.
fn cloud_alone(pair: &mut Pair, question: &Question) -> (Vec<u32>, String, EndReason) {
    let whole = Question { assist_tokens: Some(TOKENS_MAX as u32), ..question.clone() };
    let request = pair.request(&whole);
    let events = pair.cloud.answer(&request).expect("the cloud answers alone");
    let (mut ids, mut text, mut reason) = (Vec::new(), String::new(), None);
    for event in events {
        match event {
            AssistEvent::First(first) => {
                ids.push(first.id);
                text.push_str(&first.text);
            }
            AssistEvent::Token(token) => {
                ids.push(token.id);
                text.push_str(&token.text);
            }
            AssistEvent::End(end) => reason = Some(end.reason),
            AssistEvent::Progress(_) => {}
            AssistEvent::Mask(_) => panic!("a scene with r = 1 sends no mask"),
            AssistEvent::Error(err) => panic!("the cloud fails: {err:?}"),
        }
    }
    (ids, text, reason.expect("an answer ends"))
}

/// Answers once by the relay and once by the cloud; returns how many tokens the device wrote.
fn check(pair: &mut Pair, seed: u64, sampling: Sampling) -> usize {
    let document = document(seed, 100 + 20 * (seed as usize % 12));
    let asked = document.question(QuestionKind::Long).expect("a document has a long question");
    let question = Question { sampling, ..Question::about(&document, &asked.text, TOKENS_MAX) };
    let (ids, text, _) = cloud_alone(pair, &question);
    let told = pair.relay(&question, LINE).expect("the relay answers");
    let what = format!("seed {seed}, {:?}", question.sampling);
    assert_eq!(told.outcome.answer, text, "{what}");
    let joined: String = told.shown.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(joined, text, "shown text, {what}");
    let shown = told.shown.iter().filter(|(index, _)| *index != usize::MAX).count();
    assert_eq!(shown, ids.len(), "one token shown for each written, {what}");
    for &(index, id) in &told.device_tokens {
        assert_eq!(ids.get(index), Some(&id), "token {index}, {what}");
    }
    assert!(told.notes.is_empty(), "{:?}, {what}", told.notes);
    told.device_tokens.len()
}

#[test]
fn the_relay_is_the_cloud_token_for_token() {
    let model = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let mut pair = Pair::new(model.clone(), model, 1.0, Corrector::Cloud).expect("set up both sides");
    let mut by_device = 0;
    let mut taken_over = 0;
    // All greedy ones first, then the sampled ones. If a document came twice in a row, the device would have
    // the prompt in its cache and need no cloud.
    let greedy = (0..DOCUMENTS).map(|seed| (seed, Sampling::default()));
    for (seed, sampling) in greedy.chain((0..DOCUMENTS).map(|seed| (seed, sampled(seed)))) {
        let tokens = check(&mut pair, seed, sampling);
        by_device += tokens;
        taken_over += usize::from(tokens > 0);
    }
    // Equality would mean nothing if the cloud had written everything.
    assert!(
        taken_over >= DOCUMENTS as usize,
        "the device took over in {taken_over} of {} answers",
        2 * DOCUMENTS
    );
    println!(
        "{DOCUMENTS} documents, greedy and sampled: {by_device} tokens by the device, all as the cloud writes them"
    );
}

#[test]
fn the_same_run_twice_is_the_same() {
    let model = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    let document = document(7, 200);
    let asked = document.question(QuestionKind::Long).expect("a document has a long question");
    let question = Question { sampling: sampled(3), ..Question::about(&document, &asked.text, TOKENS_MAX) };
    let run = || {
        let mut pair =
            Pair::new(model.clone(), model.clone(), 0.25, Corrector::Device).expect("set up both sides");
        let told = pair.relay(&question, LINE).expect("the relay answers");
        (told.outcome.answer, told.shown, told.outcome.timeline.shown)
    };
    assert_eq!(run(), run());
}
