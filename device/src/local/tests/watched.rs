//! An engine whose every step a test sees; the test may change the output.

use super::*;
use baton_engine::SeqOutput;
use baton_synthetic::Stepped;

/// Makes an engine with room for 1,024 tokens. The function gets each step and its output.
pub(crate) fn watched(
    model: Arc<Model>,
    mut after_step: impl FnMut(&StepSeq<'_>, &mut SeqOutput) + Send + 'static,
) -> impl Sequences {
    let engine = Engine::new(model, options(1024)).unwrap();
    Stepped::new(engine, move |engine: &mut Engine, batch: &[StepSeq<'_>], control: &mut dyn StepControl| {
        let mut outputs = Sequences::step(engine, batch, control)?;
        for (step, output) in batch.iter().zip(&mut outputs) {
            after_step(step, output);
        }
        Ok(outputs)
    })
}
