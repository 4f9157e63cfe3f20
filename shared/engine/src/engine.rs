//! The engine: sequences over one model, one step at a time.
//!
//! Synchronous; owns its threads and its KV cache; reads no clock and no network. A step runs the new tokens
//! of any number of sequences through the model (prefill chunks and decode rows alike). It reports progress
//! after each layer and can be cancelled there.
//!
//! What always holds: a token's logits do not depend on the batch (or the adapters of its other sequences),
//! the chunks its sequence came in, or the number of threads. They do not depend on whether its prefix was
//! forked or found in the cache, or cut to a length without a recurrent state. A step that fails or is
//! cancelled leaves every sequence with the length it had.

mod blocks;
mod error;
mod gpu;
mod pieces;
mod recurrent;
mod rows;
mod segments;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

use baton_kernels_cpu::Pool;

use crate::adapter::{Adapter, AdapterError};
use crate::backend::cpu::CpuBackend;
use crate::backend::{Backend, SeqSpan};
use crate::config::SlidingWindow;
use crate::eviction::{EvictError, Kept};
use crate::forward::{Adapted, last_row};
use crate::gguf::GgufError;
use crate::kv::pool::Root;
use crate::kv::states::StateMoves;
use crate::kv::{BLOCK_TOKENS, BlockCopy, KvError, KvTable, PrefixScope, PrefixStats, SeqId};
use crate::model::Model;
use crate::sampling::Best;
use crate::scores::{AttentionScores, Capture};
use crate::tokenizer::TokenId;

pub use crate::backend::cpu_kv::KvFormat;
pub use blocks::BlockError;
pub use error::{EngineError, StepError};
pub use gpu::{GpuLayers, GpuLoss, GpuUse, StepSize};
pub use pieces::{Hidden, OpenStep};

use gpu::{GpuLane, Limits, Making};
use segments::{End, Lane, Lanes, StepInput};

/// The settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Threads that compute, including the one that calls [`Engine::step`]; `None` means as many as the
    /// machine has.
    pub threads: Option<NonZeroUsize>,
    /// Tokens of the KV cache, over all sequences; rounded up to whole blocks.
    pub kv_tokens: usize,
    /// The number format of keys and values.
    pub kv_format: KvFormat,
    /// Sliding-window attention in every layer, replacing the model's own.
    pub window: Option<SlidingWindow>,
    /// Percent of the cache's blocks that may keep prefixes of no live sequence, 0 to 100. Their room is
    /// taken whenever a sequence needs it; a smaller share limits the memory that is ever used.
    pub prefix_cache_percent: u8,
    /// The layers that this engine computes, ascending; `None` means all. With fewer than all, steps use
    /// [`Engine::open_step`] and [`Engine::run_layers`], the cache holds only these layers, and nothing can
    /// be evicted.
    pub layers: Option<Vec<usize>>,
    /// A GPU that computes some of the layers.
    pub gpu: Option<GpuUse>,
    /// The largest step that memory of the GPU is set aside for.
    pub largest_step: StepSize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            threads: None,
            kv_tokens: 8192,
            kv_format: KvFormat::default(),
            window: None,
            prefix_cache_percent: 100,
            layers: None,
            gpu: None,
            largest_step: StepSize::default(),
        }
    }
}

/// The new tokens of a sequence whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    None,
    /// The last token.
    Last,
    /// The last token, of which only the most probable next token is needed: [`SeqOutput::best`] in place of
    /// logits, if the engine can tell it without them.
    Best,
    /// Every token of the step.
    All,
}

/// The new tokens of one sequence in a step; their positions follow the sequence's current length.
#[derive(Debug, Clone, Copy)]
pub struct StepSeq<'a> {
    /// The sequence, at most once in a batch.
    pub seq: SeqId,
    /// Its new tokens, at least one.
    pub ids: &'a [TokenId],
    /// Which logits to return.
    pub logits: Wanted,
    /// Which attention scores to return.
    pub capture: Option<&'a Capture>,
}

/// The result of a step for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SeqOutput {
    /// `[wanted, v]`; empty if `best` is there.
    pub logits: Vec<f32>,
    /// What was asked for by [`Wanted::Best`], if the engine can tell it without logits.
    pub best: Option<Best>,
    /// Attention scores, if they were requested.
    pub scores: Option<AttentionScores>,
}

/// Receives a step's progress, and may cancel it.
pub trait StepControl {
    /// Called after each layer; `Break` cancels the step.
    fn after_layer(&mut self, done: usize, total: usize) -> ControlFlow<()>;
}

/// Never cancels.
impl StepControl for () {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// An adapter that was given to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdapterId(u32);

/// Sequences over one model.
#[derive(Debug)]
pub struct Engine {
    model: Arc<Model>,
    /// By index; adapter `n` belongs to sequences of root `n + 1`.
    adapters: Vec<Arc<Adapter>>,
    host: Lane<CpuBackend>,
    /// Computes some of the layers, until it fails.
    gpu: Option<GpuLane>,
    /// The GPU as it was given; `None` if there is none, or it has failed.
    gpu_use: Option<GpuUse>,
    gpu_limits: Limits,
    largest_step: StepSize,
    /// By block: whether its keys and values went with a GPU that failed. Empty if none did.
    lost: Vec<bool>,
    /// Replaces the model's own.
    window: Option<SlidingWindow>,
    table: KvTable,
    /// The layers that it computes, ascending.
    layers: Vec<usize>,
}

/// The most tokens whose blocks can be numbered.
const KV_TOKENS_MAX: usize = (u32::MAX as usize) * BLOCK_TOKENS;

/// The most adapters of one engine.
const ADAPTERS_MAX: usize = 1024;

impl Engine {
    /// Creates an engine without sequences. Cache memory is allocated block by block as sequences grow.
    ///
    /// # Errors
    /// [`EngineError`] if an option is out of range, threads cannot be started, or the GPU cannot compute any
    /// layer of this model.
    pub fn new(model: Arc<Model>, options: EngineOptions) -> Result<Self, EngineError> {
        let tokens = options.kv_tokens;
        if !(1..=KV_TOKENS_MAX).contains(&tokens) {
            return Err(EngineError::KvTokens { tokens, max: KV_TOKENS_MAX });
        }
        if options.window.is_some_and(|window| window.tokens == 0) {
            return Err(EngineError::EmptyWindow);
        }
        let percent = options.prefix_cache_percent;
        if percent > 100 {
            return Err(EngineError::PrefixShare { percent });
        }
        let threads = options.threads.or_else(|| std::thread::available_parallelism().ok());
        let pool = Pool::new(threads.unwrap_or(NonZeroUsize::MIN)).map_err(EngineError::Threads)?;
        let config = model.config();
        let n_blocks = u32::try_from(tokens.div_ceil(BLOCK_TOKENS)).expect("KV_TOKENS_MAX bounds the blocks");
        let layers = pieces::own_layers(options.layers, config)?;
        let table = KvTable::new(n_blocks, n_blocks as usize * usize::from(percent) / 100);
        let (table, mut kv) = recurrent::caches(config, &layers, options.kv_format, table);
        let mut gpu_limits = Limits::default();
        let gpu = match &options.gpu {
            Some(gpu) => {
                let making = Making {
                    model: &model,
                    gpu,
                    layers: &layers,
                    format: options.kv_format,
                    kv: kv.of_model(),
                    window: options.window,
                    n_blocks: n_blocks as usize,
                    step: options.largest_step,
                    adapters: &[],
                };
                making.lane(&mut gpu_limits)?
            }
            None => None,
        };
        if let Some(gpu) = &gpu {
            let of_host: Vec<usize> = layers.iter().copied().filter(|layer| !gpu.holds(*layer)).collect();
            kv = kv.emptied(&of_host);
        }
        Ok(Self {
            host: Lane { backend: CpuBackend::new(pool), kv },
            gpu,
            gpu_use: options.gpu,
            gpu_limits,
            largest_step: options.largest_step,
            lost: Vec::new(),
            window: options.window,
            table,
            layers,
            adapters: Vec::new(),
            model,
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Adds an adapter, so that sequences can be created with it; adding it again returns the same id.
    ///
    /// # Errors
    /// [`AdapterError::OtherModel`], [`AdapterError::TooMany`].
    pub fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, AdapterError> {
        if !Arc::ptr_eq(adapter.model(), &self.model) {
            return Err(AdapterError::OtherModel { name: adapter.name().to_owned() });
        }
        if let Some(at) = self.adapters.iter().position(|known| Arc::ptr_eq(known, &adapter)) {
            return Ok(AdapterId(at as u32));
        }
        if self.adapters.len() == ADAPTERS_MAX {
            return Err(AdapterError::TooMany { max: ADAPTERS_MAX });
        }
        self.adapters.push(Arc::clone(&adapter));
        self.make_room_for(&adapter);
        Ok(AdapterId(self.adapters.len() as u32 - 1))
    }

    /// Creates an empty sequence of the model alone.
    pub fn create(&mut self) -> SeqId {
        self.table.create(Root::default(), PrefixScope::default())
    }

    /// Creates an empty sequence, computed with this adapter if one is given; its forks use the same. It
    /// shares prefixes only with sequences of the same adapter. Without an adapter it does the same as
    /// [`Self::create`].
    ///
    /// # Errors
    /// [`KvError::UnknownAdapter`] if the adapter was given to another engine.
    pub fn create_with(&mut self, adapter: Option<AdapterId>) -> Result<SeqId, KvError> {
        self.create_in(PrefixScope::default(), adapter)
    }

    /// As [`Self::create_with`], for an engine with several owners: prefixes are shared as `scope` allows.
    ///
    /// # Errors
    /// [`KvError::UnknownAdapter`] if the adapter was given to another engine.
    pub fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, KvError> {
        let root = self.root(adapter)?;
        Ok(self.table.create(root, scope))
    }

    /// Creates a sequence with the first `n_tokens` of `seq`; it shares their blocks.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`], [`KvError::PastEnd`].
    pub fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, KvError> {
        self.table.fork(seq, n_tokens)
    }

    /// Shortens the sequence to its first `n_tokens`.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`], [`KvError::PastEnd`].
    pub fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), KvError> {
        self.table.truncate(seq, n_tokens)
    }

    /// Creates a sequence that continues where `seq` ends but keeps only these of its keys and values; `seq`
    /// does not change. Cost: a copy of what is kept. The new sequence shares no prefix with others, and
    /// cannot be cut to fewer tokens than it begins with.
    ///
    /// # Errors
    /// [`EvictError`]; nothing has changed then.
    pub fn evict(&mut self, seq: SeqId, kept: &Kept) -> Result<SeqId, EvictError> {
        let config = self.model.config();
        if config.recurrent.is_some() {
            return Err(EvictError::Recurrent { family: config.family.name });
        }
        if self.layers.len() < config.n_layers {
            return Err(EvictError::SomeLayers { held: self.layers.len(), n_layers: config.n_layers });
        }
        let cached = self.table.len(seq)? - self.table.evicted(seq)?;
        let heads = self.own_layers().map(|layer| self.width(layer).heads).sum();
        kept.check(heads, self.window.or_else(|| config.largest_window()), cached)?;
        if self.first_lost(seq)?.is_some() {
            return Err(EvictError::Lost);
        }
        let from = self.table.blocks(seq)?.to_vec();
        let child = self.table.evict(seq, kept.tokens())?;
        let to = self.table.blocks(child)?.to_vec();
        to.iter().for_each(|block| self.found(*block));
        self.host.backend.keep(&mut self.host.kv, kept, &from, &to);
        if let Some(GpuLane { lane, .. }) = &mut self.gpu {
            lane.backend.keep(&mut lane.kv, kept, &from, &to);
        }
        Ok(child)
    }

    /// Releases the sequence. [`Self::reuse_prefix`] can still find its full blocks until their room is
    /// needed.
    pub fn release(&mut self, seq: SeqId) {
        self.table.release(seq);
    }

    /// Gives up the claim of a sequence that waits to its full blocks: they are evicted in their turn, as if
    /// it had been released. Until [`Self::pin`], only its ids may be read, and it may be released.
    pub fn unpin(&mut self, seq: SeqId) {
        self.table.unpin(seq);
    }

    /// Takes the blocks of an unpinned sequence again; returns its tokens, fewer if some blocks are gone.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    pub fn pin(&mut self, seq: SeqId) -> Result<usize, KvError> {
        self.table.pin(seq)
    }

    /// Returns the number of tokens of the sequence.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    pub fn len(&self, seq: SeqId) -> Result<usize, KvError> {
        self.table.len(seq)
    }

    /// Returns the token ids of the sequence.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    pub fn ids(&self, seq: SeqId) -> Result<&[TokenId], KvError> {
        self.table.ids(seq)
    }

    /// Returns how much shared prefixes have saved, and how much is kept of them.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.table.prefix_stats()
    }

    /// Returns how many tokens of `ids`, from the first on, are in blocks of live sequences with this scope
    /// and adapter. [`Self::reuse_prefix`] needs no room for them. Returns 0 for an adapter of another
    /// engine.
    pub fn held_prefix(&self, scope: PrefixScope, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize {
        self.root(adapter).map_or(0, |root| self.table.held_prefix(root, scope, ids))
    }

    /// Returns how many tokens the cache has room for, in whole blocks: free ones, and kept prefixes of no
    /// live sequence.
    pub fn free_tokens(&self) -> usize {
        self.table.free_tokens()
    }

    /// Returns the tokens of the whole cache, in whole blocks.
    pub fn kv_tokens(&self) -> usize {
        self.table.kv_tokens()
    }

    /// Appends the longest known prefix of `ids` to the sequence: whole blocks, then a part of one. Returns
    /// how many tokens the sequence gained, which is 0 if it ends inside a block. May be called again between
    /// steps, as other sequences compute what this one needs.
    ///
    /// Never takes all of `ids`, so that a token is left to compute logits from. Leave out of `ids` what must
    /// be computed for another reason, such as the queries of a [`Capture`].
    pub fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        let room = self.model.config().context_len.saturating_sub(self.table.len(seq).unwrap_or(0));
        self.table.reuse_prefix(seq, &ids[..ids.len().min(room)])
    }

    /// Runs the new tokens of every sequence through the model and appends them; returns one output per
    /// sequence.
    ///
    /// # Errors
    /// [`StepError`]; every sequence then keeps the length it had before.
    pub fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, StepError> {
        self.check(batch)?;
        self.holds(0..self.model.config().n_layers)?;
        loop {
            match self.step_once(batch, control) {
                // With less on the GPU each time, or without it.
                Err(err) if self.leave_gpu(&err) => {}
                result => return result,
            }
        }
    }

    fn step_once(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, StepError> {
        self.restore(batch, control)?;
        self.catch_up(batch, control)?;
        let wants: Vec<_> = batch.iter().map(|entry| (entry.seq, entry.ids.len())).collect();
        let copies = self.table.reserve(&wants)?;
        let moves = self.table.open_states(&wants);
        let result = self.spans(batch).map_err(StepError::from).and_then(|spans| {
            self.prepare(&copies, &spans);
            self.host.backend.prepare_states(&mut self.host.kv, &moves);
            self.run(batch, &spans, &moves, control)
        });
        for entry in batch {
            match &result {
                Ok(_) => self.table.commit(entry.seq, entry.ids)?,
                Err(_) => self.table.cancel(entry.seq),
            }
        }
        result
    }

    /// Makes the copies that a step needs, and room for its new blocks.
    fn prepare(&mut self, copies: &[BlockCopy], spans: &[SeqSpan]) {
        self.host.prepare(copies, spans);
        if let Some(gpu) = &mut self.gpu {
            gpu.lane.prepare(copies, spans);
        }
        copies.iter().for_each(|copy| self.found(copy.to));
        for span in spans {
            let first_new = (span.start + span.cached).div_ceil(BLOCK_TOKENS);
            span.blocks.iter().skip(first_new).for_each(|block| self.found(*block));
        }
    }

    /// Fails if the engine does not compute one of these layers.
    fn holds(&self, layers: std::ops::Range<usize>) -> Result<(), StepError> {
        match layers.into_iter().find(|layer| self.layers.binary_search(layer).is_err()) {
            Some(layer) => Err(StepError::NotHeld { layer }),
            None => Ok(()),
        }
    }

    fn root(&self, adapter: Option<AdapterId>) -> Result<Root, KvError> {
        match adapter {
            None => Ok(Root::default()),
            Some(AdapterId(at)) if (at as usize) < self.adapters.len() => Ok(Root(at + 1)),
            Some(AdapterId(at)) => Err(KvError::UnknownAdapter(at)),
        }
    }

    fn check(&self, batch: &[StepSeq<'_>]) -> Result<(), StepError> {
        let config = self.model.config();
        let mut seqs: Vec<SeqId> = batch.iter().map(|entry| entry.seq).collect();
        seqs.sort_unstable();
        if let Some(pair) = seqs.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StepError::DuplicateSequence(pair[0]));
        }
        for entry in batch {
            let tokens = self.table.len(entry.seq)? + entry.ids.len();
            if entry.ids.is_empty() {
                return Err(StepError::NoTokens(entry.seq));
            }
            if tokens > config.context_len {
                return Err(StepError::ContextFull { tokens, context_len: config.context_len });
            }
            let vocab_len = config.vocab_len;
            if let Some(&id) = entry.ids.iter().find(|id| **id as usize >= vocab_len) {
                return Err(StepError::NoSuchToken { id, vocab_len });
            }
            if let Some(capture) = entry.capture {
                capture.check(entry.ids.len(), config)?;
            }
        }
        Ok(())
    }

    fn spans(&self, batch: &[StepSeq<'_>]) -> Result<Vec<SeqSpan>, KvError> {
        let mut first_row = 0;
        let mut spans = Vec::with_capacity(batch.len());
        for entry in batch {
            let cached = self.table.behind(entry.seq)?;
            let rows = first_row..first_row + cached + entry.ids.len();
            first_row = rows.end;
            let blocks = self.table.blocks(entry.seq)?.to_vec();
            let evicted = self.table.evicted(entry.seq)?;
            let start = self.table.len(entry.seq)? - evicted - cached;
            spans.push(SeqSpan { rows, start, evicted, cached, blocks });
        }
        Ok(spans)
    }

    fn run(
        &mut self,
        batch: &[StepSeq<'_>],
        spans: &[SeqSpan],
        moves: &[StateMoves],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, StepError> {
        let Self { model, host, gpu, window, table, adapters, .. } = self;
        let mut ids: Vec<TokenId> = Vec::new();
        for (entry, span) in batch.iter().zip(spans) {
            let known = table.ids(entry.seq)?;
            ids.extend(&known[known.len() - span.cached..]);
            ids.extend(entry.ids);
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let captures: Vec<_> = batch.iter().map(|entry| entry.capture).collect();
        let wanted: Vec<_> =
            batch.iter().zip(spans).map(|(entry, span)| wanted(entry.logits, span)).collect();
        let config = model.config();
        let end = match batch.iter().all(|entry| matches!(entry.logits, Wanted::None | Wanted::Best)) {
            true => End::Best,
            false => End::Logits,
        };
        let input =
            StepInput { window: *window, spans, moves, ids: &ids, captures: &captures, wanted: &wanted };
        let rows = || batch.iter().zip(spans).map(|(entry, span)| (entry.seq, span.rows.clone()));
        let own = || adapted(table, adapters, rows());
        let layers = (0..config.n_layers, end);
        let computed = Lanes { model, host, gpu: gpu.as_mut() }.run(&input, &own, None, layers, control)?;
        files_are_intact(model, adapters)?;
        let (mut logits, mut best) = (computed.values.as_slice(), computed.best.into_iter());
        let outputs = wanted.iter().zip(computed.scores).map(|(rows, scores)| {
            let best = if rows.is_empty() { None } else { best.next() };
            if best.is_some() {
                return SeqOutput { logits: Vec::new(), best, scores };
            }
            let (own, rest) = logits.split_at(rows.len() * config.vocab_len);
            logits = rest;
            SeqOutput { logits: own.to_vec(), best, scores }
        });
        Ok(outputs.collect())
    }
}

/// Checks that the files were complete while a step read them.
fn files_are_intact(model: &Model, adapters: &[Arc<Adapter>]) -> Result<(), GgufError> {
    model.intact()?;
    adapters.iter().try_for_each(|adapter| adapter.intact())
}

/// Returns the adapters of a pass, given its sequences and the rows of each.
fn adapted<'a>(
    table: &KvTable,
    adapters: &'a [Arc<Adapter>],
    seqs: impl Iterator<Item = (SeqId, std::ops::Range<usize>)>,
) -> Result<Adapted<'a>, KvError> {
    let mut rows: BTreeMap<Root, Vec<usize>> = BTreeMap::new();
    for (seq, own) in seqs {
        let root = table.root(seq)?;
        if root != Root::default() {
            rows.entry(root).or_default().extend(own);
        }
    }
    let mut adapted = Adapted::default();
    for (Root(number), rows) in rows {
        adapted.push(&adapters[number as usize - 1], rows);
    }
    Ok(adapted)
}

fn wanted(wanted: Wanted, span: &SeqSpan) -> std::ops::Range<usize> {
    match wanted {
        Wanted::None => span.rows.end..span.rows.end,
        Wanted::Last | Wanted::Best => last_row(span),
        Wanted::All => span.new_rows(),
    }
}
