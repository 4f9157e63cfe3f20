//! The head of a ring, as a program uses it: the sequences of one engine, computed by several devices.
//!
//! Every method asks the core for one thing. On the caller's own thread it does what the core wants of
//! engine and planner, until the core says that the request is done.
//!
//! Always holds:
//!
//! - The results of a step are those of one engine, bit for bit (with f32 activations).
//! - Whatever device is lost, and whenever, a step returns these results, later, or a typed error.
//! - If the plan has no other device, a step is just [`Engine::step`].

mod core;
mod handle;
mod options;

pub use handle::{RingHandle, WeakRingHandle};
pub use options::{Drafter, Names, Pacer, Planner, Reviser, RingError, RingOptions};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterId, BLOCK_TOKENS, Engine, EngineError, EngineOptions, KvError, Model, PrefixScope,
    PrefixStats, SeqId, SeqOutput, SequenceError, Sequences, StepControl, StepError, StepSeq,
};

use self::core::Task;
use super::compute::{HeadEngine, Left, Request};
use super::give::FileGiver;
use super::{Around, By, MEMORY_LOOK, Monitor, OnFrame, Wakes, spawn};
use crate::core::head::{
    Batch, BatchSeq, CacheSetup, Event, HeadCore, HeadSetup, Outputs, Own, Planned, RingFault, SeqAsk,
};
use crate::core::ways::Ways;
use crate::core::{Node, SeqNo};
use crate::home::ways;
use crate::wire::frame::Frame;
use crate::wire::link::Network;

/// Wait between two looks whether the caller still wants its step.
const SLICE: Duration = Duration::from_millis(20);
/// How often a head looks at what has happened while no answer runs.
const IDLE: Duration = Duration::from_secs(1);

/// A sequence of the caller.
#[derive(Debug)]
struct Live {
    seq: SeqNo,
    /// A copy of the core's tokens, so that callers can borrow them.
    ids: Vec<TokenId>,
}

/// The head of a ring.
pub struct RingHead {
    monitor: Arc<Monitor<HeadCore>>,
    handle: RingHandle,
    engine: HeadEngine,
    options: RingOptions,
    live: BTreeMap<SeqId, Live>,
    planner: Planner,
    drafter: Option<Drafter>,
    reviser: Option<Reviser>,
    pacer: Option<Pacer>,
    memory: Option<(Instant, Option<f64>)>,
}

/// How a request has failed.
enum Failed {
    Fault(RingFault),
    /// The engine refused it, or the caller cancelled it.
    Step(StepError),
    Ring(RingError),
    Sequence(SequenceError),
}

impl From<Failed> for SequenceError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Fault(fault) => RingError::Fault(fault).into(),
            Failed::Step(err) => err.into(),
            Failed::Ring(err) => err.into(),
            Failed::Sequence(err) => err,
        }
    }
}

impl From<Failed> for RingError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Fault(fault) => Self::Fault(fault),
            Failed::Step(err) => Self::Rebuild(err),
            Failed::Ring(err) => err,
            Failed::Sequence(_) => Self::Fault(RingFault::Refused),
        }
    }
}

impl RingHead {
    /// Connects to the workers and forms a ring with those that answer; the planner decides who computes
    /// what. Workers that cannot be reached are left out, with a warning.
    ///
    /// # Errors
    /// [`RingError`] if two devices have the same name, if the model's file cannot be served, or if one
    /// engine must compute all layers of the model. Also if no ring can be formed, not even with the head
    /// alone.
    pub fn connect(
        network: Arc<dyn Network>,
        members: &[Node],
        model: Arc<Model>,
        planner: Planner,
        options: RingOptions,
    ) -> Result<Self, RingError> {
        if let Some(err) = EngineError::undivided(model.config()) {
            return Err(err.into());
        }
        let engine = Engine::new(model, EngineOptions { layers: None, ..options.engine.clone() })?;
        let file = FileGiver::default();
        let monitor = monitor_of(network, &engine, &options, file.clone());
        let timed = Arc::clone(&monitor);
        spawn("ring-time", move || timed.keep_time()).map_err(RingError::Threads)?;
        let handle = RingHandle::new(&monitor);
        let engine = HeadEngine::new(engine, options.engine.clone(), options.activations, file);
        let mut head = Self {
            monitor,
            handle,
            engine,
            options,
            live: BTreeMap::new(),
            planner,
            drafter: None,
            reviser: None,
            pacer: None,
            memory: None,
        };
        if !members.is_empty() {
            head.handle.accept()?;
        }
        head.ask(Event::Connect(members.to_vec()), Given::default(), &mut ())?;
        Ok(head)
    }

    /// Sets the drafter, which drafts plans that are not run yet. Without it the planner is asked, which may
    /// record the draft as the present plan.
    #[must_use]
    pub fn with_drafter(mut self, drafter: Drafter) -> Self {
        self.drafter = Some(drafter);
        self
    }

    /// Sets the reviser, which decides from the devices' reports whether to plan anew.
    #[must_use]
    pub fn with_reviser(mut self, reviser: Reviser) -> Self {
        self.reviser = Some(reviser);
        self
    }

    /// Sets the pacer. The head waits for frames as long as it predicts, if that is longer than the options
    /// say.
    #[must_use]
    pub fn with_pacer(mut self, pacer: Pacer) -> Self {
        self.pacer = Some(pacer);
        self
    }

    /// Returns access to the ring for other threads.
    pub fn handle(&self) -> RingHandle {
        self.handle.clone()
    }

    /// Asks the core, and does what it wants until it is done.
    fn ask(
        &mut self,
        event: Event,
        given: Given<'_>,
        control: &mut dyn StepControl,
    ) -> Result<(Outputs, Left), Failed> {
        let total = self.engine.engine().model().config().n_layers;
        let Given { batch, adapter, brings } = given;
        let mut request = Request { batch, control, adapter, brings };
        self.monitor.step(By::Engine, event);
        loop {
            let task = self.monitor.wait_for(Wakes::Engine, Some(SLICE), |desk| desk.tasks.pop_front());
            match task {
                Some(Task::Compute(work, task)) => {
                    let (done, took) = self.engine.run(task, &mut request);
                    self.monitor.step(By::Engine, Event::Computed { work, done, took });
                }
                Some(Task::Plan(of)) => {
                    let planned = (self.planner)(&of);
                    let pace = self.pacer.as_ref().and_then(|pacer| pacer()).unwrap_or_default();
                    let planned = planned.map(|plan| Planned { plan, pace });
                    self.monitor.step(By::Engine, Event::Planned(planned));
                }
                Some(Task::Draft(of)) => {
                    let drafted = match &self.drafter {
                        Some(drafter) => drafter(&of),
                        None => (self.planner)(&of),
                    };
                    self.monitor.step(By::Engine, Event::Drafted(drafted));
                }
                Some(Task::Judge(shown)) => {
                    let anew = self.reviser.as_mut().is_some_and(|reviser| reviser(&shown));
                    self.monitor.step(By::Engine, Event::Judged(anew));
                }
                Some(Task::Done(done)) => {
                    let left = self.engine.take_left();
                    return match done {
                        Ok(outputs) => Ok((outputs, left)),
                        Err(fault) => Err(failed(fault, left, total)),
                    };
                }
                None if self.monitor.has_ended() => return Err(Failed::Fault(RingFault::Cancelled)),
                None => {
                    if request.control.after_layer(0, total).is_break() {
                        self.monitor.step(By::Engine, Event::Cancel);
                    }
                }
            }
        }
    }

    /// Asks for a change of sequences.
    fn change(&mut self, ask: SeqAsk, adapter: Option<AdapterId>) -> Result<Outputs, Failed> {
        let given = Given { adapter, ..Given::default() };
        self.ask(Event::Sequence(ask), given, &mut ()).map(|(outputs, _)| outputs)
    }

    fn known(&self, seq: SeqId) -> Result<&Live, SequenceError> {
        self.live.get(&seq).ok_or_else(|| KvError::UnknownSequence(seq).into())
    }

    /// Adds a sequence that the core has created.
    fn add(&mut self, outputs: Outputs, ids: Vec<TokenId>) -> Result<SeqId, SequenceError> {
        let Outputs::Seq(seq) = outputs else { return Err(RingError::Fault(RingFault::Refused).into()) };
        let refused = || SequenceError::from(RingError::Fault(RingFault::Refused));
        let id = self.engine.id_of(seq).ok_or_else(refused)?;
        self.live.insert(id, Live { seq, ids });
        Ok(id)
    }

    /// Returns what this device has left, for the core.
    fn own(&mut self) -> Own {
        let memory_bytes = match self.memory {
            Some((looked, bytes)) if looked.elapsed() < MEMORY_LOOK => bytes,
            _ => {
                let bytes = self.options.machine.model_bytes().map(|bytes| bytes as f64);
                self.memory = Some((Instant::now(), bytes));
                bytes
            }
        };
        Own { free_tokens: self.engine.engine().free_tokens(), memory_bytes }
    }

    fn look_around(&mut self, event: impl FnOnce(Own) -> Event) {
        let own = self.own();
        if let Err(failed) = self.ask(event(own), Given::default(), &mut ()) {
            let err = RingError::from(failed);
            tracing::warn!(err = %baton_terminal::chain(&err), "the ring cannot be formed again");
        }
    }
}

/// What the caller gives with a request.
#[derive(Default)]
struct Given<'a> {
    batch: &'a [StepSeq<'a>],
    adapter: Option<AdapterId>,
    brings: Option<Arc<Adapter>>,
}

fn failed(fault: RingFault, left: Left, total: usize) -> Failed {
    let Left { refused, adapter, failed, .. } = left;
    match (fault, refused, failed) {
        (RingFault::Cancelled, Some(err @ StepError::Cancelled { .. }), _) => Failed::Step(err),
        (RingFault::Cancelled, ..) => Failed::Step(StepError::Cancelled { done: 0, total }),
        (RingFault::Refused, Some(err), _) => Failed::Step(err),
        (RingFault::Refused, None, _) => match adapter {
            Some(Err(err)) => Failed::Sequence(err.into()),
            _ => Failed::Fault(RingFault::Refused),
        },
        (RingFault::Replay, Some(err), _) => Failed::Ring(RingError::Rebuild(err)),
        (RingFault::Host, _, Some(err)) => Failed::Ring(err),
        (fault, ..) => Failed::Fault(fault),
    }
}

fn monitor_of(
    network: Arc<dyn Network>,
    engine: &Engine,
    options: &RingOptions,
    file: FileGiver,
) -> Arc<Monitor<HeadCore>> {
    let config = engine.model().config();
    let setup = HeadSetup {
        own: network.own(),
        name: options.name.clone(),
        n_layers: config.n_layers,
        width: config.d_model,
        vocab: config.vocab_len,
        engine: CacheSetup {
            kv_tokens: options.engine.kv_tokens,
            kv_format: options.engine.kv_format,
            prefix_percent: options.engine.prefix_cache_percent,
            window: options.engine.window,
        },
        activations: options.activations,
        reads_ahead: options.reads_ahead,
        chunk_rows: options.chunk_rows,
        heartbeat: options.heartbeat,
        hop: options.hop,
        floor: options.floor,
        token: options.token,
        patience: options.patience,
        health: options.health,
        ways: options.ways.clone(),
    };
    let (names, folder) = (options.names.clone(), options.ways_folder.clone());
    let on_frame: OnFrame = Box::new(move |device, frame| {
        if let Frame::Hello(hello) = frame
            && let Some(name) = names.of(device)
        {
            hello.name = name;
        }
    });
    let keep = move |known: Ways| {
        if let Some(folder) = &folder
            && let Err(err) = ways::keep(folder, &known)
        {
            tracing::warn!(%err, "what was measured between devices is not stored");
        }
    };
    let around = Around {
        network,
        giver: Box::new(file),
        on_frame,
        tell: Box::new(keep),
        memory: Box::new(|| 0),
        hop: options.hop,
        patience: options.patience,
    };
    Arc::new(Monitor::new(HeadCore::new(setup, Duration::ZERO), around))
}

impl Sequences for RingHead {
    fn model(&self) -> &Arc<Model> {
        self.engine.engine().model()
    }

    /// Works only if the head computes everything; from then on it stays alone.
    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        let given = Given { brings: Some(adapter), ..Given::default() };
        let (_, left) = self.ask(Event::Sequence(SeqAsk::AddAdapter), given, &mut ())?;
        match left.adapter {
            Some(added) => Ok(added?),
            None => Err(RingError::Fault(RingFault::Adapters).into()),
        }
    }

    /// Works only for one owner: the other devices learn of no scope.
    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        if scope != PrefixScope::default() {
            return Err(RingError::Owners.into());
        }
        let outputs = self.change(SeqAsk::Create { adapter: adapter.is_some() }, adapter)?;
        self.add(outputs, Vec::new())
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        let Live { seq: from, ids } = self.known(seq)?;
        let Some(ids) = ids.get(..n_tokens).map(<[TokenId]>::to_vec) else {
            return Err(KvError::PastEnd { wanted: n_tokens, len: ids.len() }.into());
        };
        let outputs = self.change(SeqAsk::Fork { from: *from, tokens: n_tokens }, None)?;
        self.add(outputs, ids)
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        let live = self.known(seq)?;
        if n_tokens > live.ids.len() {
            return Err(KvError::PastEnd { wanted: n_tokens, len: live.ids.len() }.into());
        }
        self.change(SeqAsk::Truncate { seq: live.seq, tokens: n_tokens }, None)?;
        if let Some(live) = self.live.get_mut(&seq) {
            live.ids.truncate(n_tokens);
        }
        Ok(())
    }

    fn release(&mut self, seq: SeqId) {
        let Some(live) = self.live.remove(&seq) else { return };
        // The sequence is gone, whatever comes of it on other devices.
        let _gone = self.change(SeqAsk::Release(live.seq), None);
    }

    fn len(&self, seq: SeqId) -> Result<usize, SequenceError> {
        Ok(self.ids(seq)?.len())
    }

    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError> {
        Ok(&self.known(seq)?.ids)
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        let Some(number) = self.live.get(&seq).map(|live| live.seq) else { return 0 };
        let Ok(Outputs::Gained(gained)) = self.change(SeqAsk::Reuse { seq: number, ids: ids.to_vec() }, None)
        else {
            return 0;
        };
        if let (Some(live), Some(found)) = (self.live.get_mut(&seq), ids.get(..gained)) {
            live.ids.extend_from_slice(found);
        }
        gained
    }

    fn held_prefix(&self, scope: PrefixScope, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize {
        self.engine.engine().held_prefix(scope, adapter, ids)
    }

    /// Tokens that must be computed again count as if they were in the cache.
    fn free_tokens(&self) -> usize {
        if self.monitor.look(HeadCore::is_cached) {
            return self.engine.engine().free_tokens();
        }
        let held = self.live.values().map(|live| live.ids.len().next_multiple_of(BLOCK_TOKENS));
        self.kv_tokens().saturating_sub(held.sum())
    }

    fn kv_tokens(&self) -> usize {
        self.engine.engine().kv_tokens()
    }

    fn prefix_stats(&self) -> PrefixStats {
        self.engine.engine().prefix_stats()
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        let mut seqs = Vec::with_capacity(batch.len());
        for entry in batch {
            let seq = self.known(entry.seq)?.seq;
            seqs.push(BatchSeq { seq, ids: entry.ids.to_vec(), wanted: entry.logits });
        }
        let given = Given { batch, ..Given::default() };
        let (_, left) = self.ask(Event::Step(Batch { seqs }), given, control)?;
        for entry in batch {
            if let Some(live) = self.live.get_mut(&entry.seq) {
                live.ids.extend_from_slice(entry.ids);
            }
        }
        Ok(left.outputs)
    }

    /// Enough for each device to have several chunks of one pass.
    fn captures(&self) -> bool {
        false
    }

    fn pass_tokens_min(&self) -> usize {
        self.monitor.look(HeadCore::pass_tokens_min)
    }

    fn between_answers(&mut self) {
        self.look_around(Event::Between);
    }

    /// Devices that come are asked only if no others fetch their weights; those that fetch join together.
    fn wants_pause(&self) -> bool {
        self.monitor.look(HeadCore::wants_pause)
    }

    fn idle_every(&self) -> Option<Duration> {
        Some(IDLE.min(self.options.health))
    }

    fn idle(&mut self) {
        self.look_around(Event::Idle);
    }
}

impl Drop for RingHead {
    fn drop(&mut self) {
        self.monitor.end(Event::End);
    }
}
