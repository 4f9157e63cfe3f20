//! A simulated ring for a caller in another simulation, such as the host of a device's answers.
//!
//! The home's time follows a clock outside. A request is computed at once, so the home may be ahead of that
//! clock; the difference is what the request takes. Between requests the head looks around as its program
//! does. Never: computes logits. Those come from an engine that is told the same, and the home's own checks
//! hold its outputs to a ring-less reference.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterId, PrefixScope, SeqId, SeqOutput, SequenceError, Sequences, StepControl, StepError,
    StepSeq, Wanted,
};

use crate::core::SeqNo;
use crate::core::head::{Batch, BatchSeq, Event, Outputs, RingFault, SeqAsk};
use crate::host::RingError;
use crate::locked;

use super::faults::{Bad, Fault, What};
use super::scenario::Scenario;
use super::world::World;
use super::{Bug, Options};

/// How often the head looks around while nothing is asked.
const IDLE: Duration = Duration::from_secs(1);

/// A simulated ring whose caller is outside.
#[derive(Debug)]
pub struct Outside {
    world: World,
    /// The time outside when the home began.
    begun: Duration,
    /// When the head last looked around, in the home's time.
    looked: Duration,
}

impl Outside {
    /// Makes the home of a seed at this time outside, and forms the ring. No device computes wrong: what such
    /// a device has spoiled before it is found cannot be held to a reference.
    #[must_use]
    pub fn new(seed: u64, bug: Option<Bug>, now: Duration) -> Outside {
        let mut scenario = Scenario::of(seed);
        scenario.script.clear();
        let wrong = |fault: &Fault| {
            matches!(fault.what, What::Bad(Bad::WrongLayers) | What::Always(Bad::WrongLayers))
        };
        scenario.faults.retain(|(_, fault)| !wrong(fault));
        (scenario.home.capacity, scenario.home.needs) = (1 << 20, 0);
        let mut world = World::new(scenario, Options { bug, tells: false });
        world.serve_outside();
        // A fault may keep the ring from being formed now.
        let _formed = world.answer();
        Outside { looked: world.now, world, begun: now }
    }

    /// Returns when the home has done all that it was asked, in the time outside.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.begun + self.world.now
    }

    /// Returns the check that does not hold.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.world.checks.broken.as_deref()
    }

    /// Lets the home's time pass until this time outside.
    pub fn pass_until(&mut self, now: Duration) {
        let until = now.saturating_sub(self.begun);
        while self.looked + IDLE <= until && self.broken().is_none() {
            self.world.pass_until(self.looked + IDLE);
            self.world.join_missing();
            let own = self.world.own();
            // A failure here is the ring's affair: the next step tells it.
            let _looked = self.world.asked(Event::Idle(own));
            self.looked = self.world.now;
        }
        self.world.pass_until(until);
    }

    fn ask(&mut self, event: Event) -> Result<Outputs, RingFault> {
        let done = self.world.asked(event);
        self.looked = self.world.now;
        done
    }

    /// Ends the ring; nothing may be left of it.
    pub fn end(&mut self) {
        self.world.end_head();
    }
}

/// An engine whose steps are computed by a simulated ring too: they take as long, and fail, as the ring's do.
#[derive(Debug)]
pub struct RingOver<S, C> {
    engine: S,
    ring: Arc<Mutex<Outside>>,
    /// Tells the time outside.
    clock: C,
    live: BTreeMap<SeqId, SeqNo>,
}

impl<S: Sequences, C: Fn() -> Duration + Send> RingOver<S, C> {
    /// Puts a ring over an engine without sequences.
    pub fn new(engine: S, ring: Arc<Mutex<Outside>>, clock: C) -> Self {
        RingOver { engine, ring, clock, live: BTreeMap::new() }
    }

    fn ask(&self, event: Event) -> Result<Outputs, RingFault> {
        let mut ring = locked(&self.ring);
        ring.pass_until((self.clock)());
        ring.ask(event)
    }

    fn change(&self, ask: SeqAsk) -> Result<Outputs, SequenceError> {
        self.ask(Event::Sequence(ask)).map_err(|fault| RingError::Fault(fault).into())
    }

    fn add(&mut self, seq: SeqId, outputs: Outputs) -> Result<SeqId, SequenceError> {
        let Outputs::Seq(number) = outputs else { return Err(RingError::Fault(RingFault::Refused).into()) };
        self.live.insert(seq, number);
        Ok(seq)
    }

    fn number(&self, seq: SeqId) -> Result<SeqNo, SequenceError> {
        self.live.get(&seq).copied().ok_or_else(|| RingError::Fault(RingFault::Refused).into())
    }

    fn computed(&self, batch: Vec<BatchSeq>) -> Result<(), SequenceError> {
        match self.ask(Event::Step(Batch { seqs: batch })) {
            Ok(_) => Ok(()),
            Err(fault) => Err(RingError::Fault(fault).into()),
        }
    }

    /// Lets a sequence of so many tokens have those too that the engine found: the ring takes what it knows
    /// and computes the others.
    fn follow(&self, seq: SeqNo, before: usize, ids: &[TokenId], gained: usize) -> Result<(), SequenceError> {
        let known = match self.change(SeqAsk::Reuse { seq, ids: ids.to_vec() })? {
            Outputs::Gained(known) => known,
            _ => 0,
        };
        if known > gained {
            return self.change(SeqAsk::Truncate { seq, tokens: before + gained }).map(|_| ());
        }
        let rest = ids[known..gained].to_vec();
        match rest.is_empty() {
            true => Ok(()),
            false => self.computed(vec![BatchSeq { seq, ids: rest, wanted: Wanted::None }]),
        }
    }
}

impl<S: Sequences, C: Fn() -> Duration + Send> Sequences for RingOver<S, C> {
    baton_engine::ask_engine!();

    fn captures(&self) -> bool {
        false
    }

    fn add_adapter(&mut self, _adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        Err(RingError::Fault(RingFault::Adapters).into())
    }

    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        if scope != PrefixScope::default() {
            return Err(RingError::Owners.into());
        }
        let seq = self.engine.create_in(scope, adapter)?;
        let outputs = self.change(SeqAsk::Create { adapter: adapter.is_some() })?;
        self.add(seq, outputs)
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        let from = self.number(seq)?;
        let child = self.engine.fork(seq, n_tokens)?;
        let outputs = self.change(SeqAsk::Fork { from, tokens: n_tokens })?;
        self.add(child, outputs)
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        let number = self.number(seq)?;
        self.engine.truncate(seq, n_tokens)?;
        self.change(SeqAsk::Truncate { seq: number, tokens: n_tokens }).map(|_| ())
    }

    fn release(&mut self, seq: SeqId) {
        self.engine.release(seq);
        if let Some(number) = self.live.remove(&seq) {
            let _gone = self.change(SeqAsk::Release(number));
        }
    }

    /// The engine may keep other prefixes than the ring. The ring then computes what it lacks.
    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        let (Ok(number), Ok(before)) = (self.number(seq), self.engine.len(seq)) else { return 0 };
        let gained = self.engine.reuse_prefix(seq, ids);
        if self.follow(number, before, ids, gained).is_ok() {
            return gained;
        }
        let _engine = self.engine.truncate(seq, before);
        let _ring = self.change(SeqAsk::Truncate { seq: number, tokens: before });
        0
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        let total = self.model().config().n_layers;
        if control.after_layer(0, total).is_break() {
            return Err(StepError::Cancelled { done: 0, total }.into());
        }
        let (mut seqs, mut before) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for entry in batch {
            let seq = self.number(entry.seq)?;
            seqs.push(BatchSeq { seq, ids: entry.ids.to_vec(), wanted: entry.logits });
            before.push((entry.seq, self.engine.len(entry.seq)?));
        }
        let outputs = self.engine.step(batch, control)?;
        if let Err(err) = self.computed(seqs) {
            for (seq, tokens) in before {
                self.engine.truncate(seq, tokens)?;
            }
            return Err(err);
        }
        Ok(outputs)
    }

    fn pass_tokens_min(&self) -> usize {
        locked(&self.ring).world.head.pass_tokens_min()
    }

    fn between_answers(&mut self) {
        let own = locked(&self.ring).world.own();
        let _looked = self.ask(Event::Between(own));
    }

    fn wants_pause(&self) -> bool {
        locked(&self.ring).world.head.wants_pause()
    }
}
