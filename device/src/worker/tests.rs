//! Tests the engine's thread: a whole answer, and interruption.

use super::*;
use crate::local::tests::model;
use crate::local::{Accepted, AnswerSpec, Keep, PromptId, Scope};
use baton_engine::EngineOptions;
use baton_engine::sampling::SamplingParams;
use baton_protocol::{Role, Segment};

const P: PromptId = PromptId(1);

fn worker(emulate: PassCost) -> EngineWorker {
    let options =
        EngineOptions { threads: std::num::NonZeroUsize::new(1), kv_tokens: 512, ..EngineOptions::default() };
    EngineWorker::start(LocalEngine::new(model(), options).unwrap(), emulate).unwrap()
}

fn open(words: usize) -> EngineCommand {
    let segments = vec![Segment::fixed(Role::User, "word ".repeat(words))];
    let spec = AnswerSpec {
        segments: segments.into(),
        adapter: None,
        sampling: SamplingParams::default(),
        tokens_max: 4,
        shorten: false,
    };
    EngineCommand::Open { prompt: P, spec, scope: Scope::Whole }
}

#[tokio::test]
async fn an_answer_goes_from_open_to_its_end() {
    let worker = worker(PassCost::default());
    let mut reports = worker.attach().await.unwrap();
    worker.command(open(20)).await.unwrap();
    worker.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(Vec::new()) }).await.unwrap();
    let mut tokens = 0;
    loop {
        match reports.recv().await.expect("the engine ends the answer") {
            EngineReport::Verified { .. } => {
                worker.command(EngineCommand::Decode { prompt: P, keep: Keep::All, index: 0 }).await.unwrap();
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
async fn emulated_time_is_interrupted_by_a_newer_answer() {
    // A pass of 8 tokens would take 800 s, so the second answer begins only if the first is interrupted.
    let slow = worker(PassCost { prefill_ms_per_token: 100_000.0, ..PassCost::default() });
    let mut reports = slow.attach().await.unwrap();
    slow.command(open(40)).await.unwrap();
    let begun = Instant::now();
    slow.command(open(2)).await.unwrap();
    let mut opened = 0;
    while opened < 2 {
        let report =
            tokio::time::timeout(Duration::from_secs(120), reports.recv()).await.expect("interrupted");
        opened += usize::from(matches!(report, Some(EngineReport::Opened { .. })));
    }
    assert!(begun.elapsed() < Duration::from_secs(120));
}
