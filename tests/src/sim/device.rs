//! A simulated device: the real host and local answers, over an engine that computes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_device::local::{EngineCommand, EngineReport, LocalAnswer, LocalModel, LocalOptions, Reports};
use baton_engine::pace_emulation::PassContent;
use baton_engine::{Model, Sequences as _};
use baton_generate::clock::Clock;
use baton_generate::host::{Host, Pass};

use super::engine::{SimEngine, Trouble, model, other_model};
use super::scenario::DeviceShape;

/// The program on a device.
pub(super) struct Device {
    host: Host<SimEngine>,
    local: LocalModel,
    answers: BTreeMap<usize, (LocalAnswer, Reports)>,
    pass: Option<Pass>,
    pub(super) trouble: Trouble,
    idle: usize,
}

impl Device {
    pub(super) fn new(shape: &DeviceShape, clock: &Arc<AtomicU64>) -> Device {
        let engine = SimEngine::new(Device::model(shape), shape.kv_tokens, shape.voice);
        let trouble = engine.trouble();
        let now = Arc::clone(clock);
        let options = LocalOptions {
            answers: shape.answers,
            idle_sequences: shape.answers,
            clock: Clock::from_fn(move || Duration::from_nanos(now.load(Ordering::Relaxed))),
            ..LocalOptions::new(shape.kv_tokens)
        };
        let (host, local) = LocalModel::host(engine, options);
        Device { host, local, answers: BTreeMap::new(), pass: None, trouble, idle: shape.answers }
    }

    /// Returns the model of a device.
    pub(super) fn model(shape: &DeviceShape) -> &'static Arc<Model> {
        if shape.other_tokenizer { other_model() } else { model() }
    }

    /// Begins an answer.
    pub(super) fn attach(&mut self, question: usize) {
        self.answers.insert(question, LocalAnswer::new(&self.local));
    }

    /// Ends an answer.
    pub(super) fn detach(&mut self, question: usize) {
        self.answers.remove(&question);
    }

    pub(super) fn command(&mut self, question: usize, command: EngineCommand) {
        if let Some((answer, _)) = self.answers.get_mut(&question) {
            answer.command(command);
        }
    }

    /// Returns the next report of an answer.
    pub(super) fn report(&mut self, question: usize) -> Option<EngineReport> {
        self.answers.get_mut(&question)?.1.try_recv()
    }

    /// Computes a pass, if none is under way and there is something to do; returns what it computes.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn turn(&mut self) -> Result<Option<PassContent>, String> {
        if self.pass.is_some() {
            return Ok(None);
        }
        self.pass = self.host.turn();
        let stats = self.local.handle().stats();
        let held = stats.running + stats.waiting + stats.parked;
        if held > self.answers.len() {
            return Err(format!("I8: a device holds {held} answers, {} are wanted", self.answers.len()));
        }
        Ok(self.pass.as_ref().map(Pass::content))
    }

    /// Ends the pass under way.
    pub(super) fn commit(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.host.commit(pass);
        }
    }

    /// Returns the questions that have an answer here.
    pub(super) fn questions(&self) -> Vec<usize> {
        self.answers.keys().copied().collect()
    }

    /// Whether nothing is under way.
    pub(super) fn rests(&self) -> bool {
        self.pass.is_none()
    }

    /// Checks that nothing is left once every answer has ended.
    ///
    /// # Errors
    /// A check that does not hold.
    pub(super) fn check_rest(&self) -> Result<(), String> {
        let stats = self.local.handle().stats();
        let engine = self.host.engine();
        if stats.running + stats.waiting + stats.parked + self.answers.len() > 0 {
            return Err(format!("I8: a device keeps answers at the end: {stats:?}"));
        }
        if engine.sequences() > self.idle {
            let (sequences, free) = (engine.sequences(), engine.free_tokens());
            return Err(format!("I8: a device keeps {sequences} sequences, {free} tokens are free"));
        }
        Ok(())
    }
}
