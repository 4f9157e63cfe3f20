//! Tests the engine's thread: a whole answer, emulated time, several answers.

use super::*;
use crate::local::tests::{model, spec};
use crate::local::{Accepted, AnswerSpec, EngineCommand, EngineReport, Keep, PromptId, Scope};
use baton_engine::sampling::SamplingParams;
use baton_engine::{Engine, EngineOptions};
use baton_protocol::{Role, Segment};
use std::time::Duration;

const P: PromptId = PromptId(1);

fn worker(emulation: PassCost, answers: usize) -> EngineWorker {
    let options =
        EngineOptions { threads: std::num::NonZeroUsize::new(1), kv_tokens: 512, ..EngineOptions::default() };
    let local = LocalOptions { emulation, answers, ..LocalOptions::new(512) };
    EngineWorker::start(Engine::new(model(), options).unwrap(), local).unwrap()
}

fn open(words: usize) -> EngineCommand {
    let segments = vec![Segment::fixed(Role::User, "word ".repeat(words))];
    let spec = AnswerSpec::plain(segments.into(), SamplingParams::default(), 4);
    EngineCommand::Open { prompt: P, spec, scope: Scope::Whole }
}

/// Waits for the next report; a lost engine and a hang fail the test.
async fn next(reports: &mut Reports) -> EngineReport {
    let report = tokio::time::timeout(Duration::from_secs(120), reports.recv()).await;
    report.expect("no hang").expect("the engine lives")
}

#[tokio::test]
async fn an_answer_goes_from_open_to_its_end() {
    let worker = worker(PassCost::default(), 1);
    let (mut answer, mut reports) = worker.answer().unwrap();
    answer.command(open(20));
    answer.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(Vec::new()) });
    let mut tokens = 0;
    loop {
        match next(&mut reports).await {
            EngineReport::Verified { .. } => {
                answer.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: 0 });
            }
            EngineReport::Token { index, .. } => {
                assert_eq!(index, tokens);
                tokens += 1;
            }
            EngineReport::Ended { .. } => break,
            EngineReport::Failed { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    }
    assert!(tokens <= 4);
    let cost = worker.cost();
    assert!(cost.prefill_ms_per_token > 0.0 && cost.decode_ms > 0.0, "{cost:?}");
}

#[tokio::test]
async fn a_cancelled_answer_ends_its_emulated_wait() {
    // A pass of 8 tokens would take 800 s, so the second answer begins only if the first wait ends early.
    let slow = worker(PassCost { prefill_ms_per_token: 100_000.0, ..PassCost::default() }, 1);
    let (mut first, mut reports) = slow.answer().unwrap();
    first.command(open(40));
    while !matches!(next(&mut reports).await, EngineReport::Prompt { .. }) {}
    drop(first);
    let (mut second, mut reports) = slow.answer().unwrap();
    second.command(open(2));
    while !matches!(next(&mut reports).await, EngineReport::Prompt { .. }) {}
}

#[tokio::test]
async fn a_second_answer_begins_while_the_first_is_held() {
    let worker = worker(PassCost::default(), 2);
    let (mut first, mut first_reports) = worker.answer().unwrap();
    first.command(open(20));
    while !matches!(next(&mut first_reports).await, EngineReport::Ready { .. }) {}
    let (mut second, mut reports) = worker.answer().unwrap();
    let spec = spec("Item 3 is red.", 4, false);
    second.command(EngineCommand::Open { prompt: PromptId(2), spec, scope: Scope::Whole });
    while !matches!(next(&mut reports).await, EngineReport::Ready { prompt: PromptId(2) }) {}
    // The first one goes on with what it holds.
    first.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(Vec::new()) });
    while !matches!(next(&mut first_reports).await, EngineReport::Verified { .. }) {}
    assert_eq!(worker.answers(), 2);
}

#[test]
fn costs_are_learned_from_passes_of_one_kind() {
    let mut costs = DeviceCosts::default();
    let unknown = costs.learned().cost;
    costs.begin(DeviceCost { decode_ms: 10.0, prefill_ms_per_token: 1.0, ..unknown });
    let elapsed = Duration::from_millis(20);
    // Four answers get a token each: each waits 20 ms for its own.
    costs.pass(&PassSample { decode_rows: 4, written: 4, elapsed, ..PassSample::default() });
    assert!((costs.learned().cost.decode_ms - 12.0).abs() < 1e-9);
    // Two tokens for one answer: 10 ms each.
    costs.pass(&PassSample { decode_rows: 1, proposed: 1, written: 2, elapsed, ..PassSample::default() });
    assert!((costs.learned().cost.decode_ms - 11.6).abs() < 1e-9);
    let before = costs.learned().prefills.len();
    let prompt = PassSample { prompts: 1, prefill_tokens: 64, elapsed, ..PassSample::default() };
    costs.pass(&PassSample { decode_rows: 1, written: 1, ..prompt });
    costs.pass(&PassSample { prompts: 2, ..prompt });
    costs.pass(&PassSample { prefill_tokens: PROBE_TOKENS / 4 - 1, ..prompt });
    assert_eq!(costs.learned().prefills.len(), before, "mixed and small passes say nothing of a prompt");
    costs.pass(&prompt);
    assert_eq!(costs.learned().prefills.len(), before + 1);
}
