//! The relay with a GPU on the device's side: the answer is the cloud's own.

use baton_corpus::{QuestionKind, document};
use baton_e2e::pair::{Pair, Question, demo_model};
use baton_e2e::simulation::{Line, LineFault};
use baton_engine::GpuLayers;
use baton_protocol::Corrector;

use crate::{cpu, device, engine, on};

const LINE: Line = Line { latency_ms: 15.0, upload_ms: 0.0, fault: LineFault::None };

#[test]
fn a_device_with_a_gpu_relays_the_answer_of_one_without() {
    let Some(device) = device() else { return };
    let model = demo_model("demo-cloud.gguf").expect("the demo model is in the checkout");
    for (seed, ratio) in [(1, 1.0), (2, 0.4), (3, 1.0)] {
        let document = document(seed, 120);
        let asked = document.question(QuestionKind::Long).expect("a document has a long question");
        let question = Question { assist_tokens: Some(5), ..Question::about(&document, &asked.text, 40) };
        let [with, without] = [on(&device, GpuLayers::Fit, 4096), cpu(4096)].map(|options| {
            let own = Box::new(engine(&model, options));
            let mut pair =
                Pair::over(model.clone(), own, ratio, Corrector::Cloud).expect("set up both sides");
            pair.relay(&question, LINE).expect("the relay answers")
        });
        assert!(!without.device_tokens.is_empty(), "seed {seed}: the device wrote nothing");
        assert_eq!(with.outcome.answer, without.outcome.answer, "seed {seed}");
        assert_eq!(with.device_tokens, without.device_tokens, "seed {seed}");
    }
}
