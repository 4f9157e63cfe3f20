//! A simulated device: the real host and local answers, over an engine that computes nothing. The engine is
//! that of the device alone, or the head of a simulated ring.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_device::local::{
    EngineCommand, EngineReport, KvSide, LocalAnswer, LocalModel, LocalOptions, Reports,
};
use baton_engine::pace_emulation::{PassContent, PassCost};
use baton_engine::{Model, Sequences};
use baton_generate::clock::Clock;
use baton_generate::host::{Host, Pass};
use baton_random::mix;
use baton_ring::sim::{Bug as RingBug, Outside, RingOver};

use super::engine::{Live, SimEngine, Trouble, model, other_model};
use super::scenario::DeviceShape;

/// The program on a device.
pub(super) struct Device {
    host: Host<Box<dyn Sequences>>,
    local: LocalModel,
    answers: BTreeMap<usize, (LocalAnswer, Reports)>,
    pass: Option<Pass>,
    pub(super) trouble: Trouble,
    live: Live,
    idle: usize,
    cost: PassCost,
    clock: Arc<AtomicU64>,
    ring: Option<Arc<Mutex<Outside>>>,
}

/// A pass that has begun.
pub(super) struct Begun {
    pub(super) content: PassContent,
    /// How long it takes.
    pub(super) ns: u64,
}

fn time(clock: &AtomicU64) -> Duration {
    Duration::from_nanos(clock.load(Ordering::Relaxed))
}

fn locked(ring: &Mutex<Outside>) -> MutexGuard<'_, Outside> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Starts the program for the `life`th time.
    pub(super) fn new(
        shape: &DeviceShape,
        clock: &Arc<AtomicU64>,
        life: u32,
        bug: Option<RingBug>,
    ) -> Device {
        let engine = SimEngine::new(Device::model(shape), shape.kv_tokens, shape.voice);
        let (trouble, live) = (engine.trouble(), engine.live());
        let ring = shape
            .ring
            .map(|seed| Arc::new(Mutex::new(Outside::new(mix(seed, u64::from(life)), bug, time(clock)))));
        let now = Arc::clone(clock);
        let now = move || time(&now);
        let engine: Box<dyn Sequences> = match &ring {
            Some(ring) => Box::new(RingOver::new(engine, Arc::clone(ring), now.clone())),
            None => Box::new(engine),
        };
        let options = LocalOptions {
            answers: shape.answers,
            idle_sequences: shape.answers,
            clock: Clock::from_fn(now),
            ..LocalOptions::new(shape.kv_tokens)
        };
        let (host, local) = LocalModel::host(engine, options);
        Device {
            host,
            local,
            answers: BTreeMap::new(),
            pass: None,
            trouble,
            live,
            idle: shape.answers,
            cost: shape.cost,
            clock: Arc::clone(clock),
            ring,
        }
    }

    /// Returns the model of a device.
    pub(super) fn model(shape: &DeviceShape) -> &'static Arc<Model> {
        if shape.other_tokenizer { other_model() } else { model() }
    }

    /// Returns what keys and values it can take.
    pub(super) fn kv(&self) -> Option<KvSide> {
        self.local.kv().ok()
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
    pub(super) fn turn(&mut self) -> Result<Option<Begun>, String> {
        if self.pass.is_some() {
            return Ok(None);
        }
        self.pass = self.host.turn();
        let stats = self.local.handle().stats();
        let held = stats.running + stats.waiting + stats.parked;
        if held > self.answers.len() {
            return Err(format!("I8: a device holds {held} answers, {} are wanted", self.answers.len()));
        }
        let took = match &self.ring {
            Some(ring) => {
                let ring = locked(ring);
                if let Some(words) = ring.broken() {
                    return Err(format!("ring: {words}"));
                }
                Some(ring.now().saturating_sub(time(&self.clock)))
            }
            None => None,
        };
        Ok(self.pass.as_ref().map(|pass| {
            let content = pass.content();
            let took = took.unwrap_or_else(|| self.cost.modelled(content));
            Begun { content, ns: took.as_nanos() as u64 }
        }))
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
        let sequences = self.live.count();
        if sequences > self.idle {
            let free = engine.free_tokens();
            return Err(format!("I8: a device keeps {sequences} sequences, {free} tokens are free"));
        }
        let Some(ring) = &self.ring else { return Ok(()) };
        let mut ring = locked(ring);
        ring.end();
        ring.broken().map_or(Ok(()), |words| Err(format!("ring: {words}")))
    }
}
