//! The engine: sequences over one model, one step at a time.
//!
//! Synchronous; owns its threads and its KV cache; reads no clock and no network. A step runs the new tokens of
//! any number of sequences through the model (prefill chunks and decode rows alike), reports progress after
//! each layer and can be cancelled there.
//!
//! What always holds: a token's logits do not depend on the batch (whatever adapters its other sequences have), the
//! chunks its sequence came in, the number of threads, or whether its prefix was forked or found in the cache; a step that fails or is cancelled leaves
//! every sequence with the length it had.

mod pieces;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

use baton_kernels_cpu::Pool;

use crate::adapter::{Adapter, AdapterError};
use crate::backend::cpu::CpuBackend;
use crate::backend::cpu_kv::{CpuKv, KvShape};
use crate::backend::{Backend, SeqSpan};
use crate::config::SlidingWindow;
use crate::eviction::{EvictError, Kept};
use crate::forward::{Adapted, Pass, PassInput, last_row};
use crate::gguf::GgufError;
use crate::kv::pool::Root;
use crate::kv::{BLOCK_TOKENS, KvError, KvTable, PrefixScope, PrefixStats, SeqId};
use crate::model::Model;
use crate::scores::{AttentionScores, Capture, CaptureError};
use crate::tokenizer::TokenId;
use crate::weights::WeightError;

pub use crate::backend::cpu_kv::KvFormat;
pub use pieces::{Hidden, OpenStep};

/// How an engine is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Threads that compute, the one that calls [`Engine::step`] included; as many as the machine has where `None`.
    pub threads: Option<NonZeroUsize>,
    /// Tokens of the KV cache, over all sequences; rounded up to whole blocks.
    pub kv_tokens: usize,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// Sliding-window attention in every layer, in place of the model's own.
    pub window: Option<SlidingWindow>,
    /// Percent of the cache's blocks that may keep prefixes of no present sequence, 0 to 100. Their room is taken
    /// whenever a sequence needs it; a smaller share bounds the memory that is ever touched.
    pub prefix_cache_percent: u8,
    /// The layers that this engine computes, ascending; all where `None`. With fewer than all of them, steps go by
    /// [`Engine::open_step`] and [`Engine::run_layers`], the cache holds these layers only, and nothing can be evicted.
    pub layers: Option<Vec<usize>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            threads: None,
            kv_tokens: 8192,
            kv_format: KvFormat::F32,
            window: None,
            prefix_cache_percent: 100,
            layers: None,
        }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A cache without room, or too large to number.
    #[error("kv cache of {tokens} tokens, must be 1 to {max}")]
    KvTokens {
        /// Tokens asked for.
        tokens: usize,
        /// The most.
        max: usize,
    },
    /// A share of more than everything.
    #[error("prefix cache of {percent} percent of the kv cache, must be 0 to 100")]
    PrefixShare {
        /// The share asked for.
        percent: u8,
    },
    /// Layers that the model does not have, or not in order.
    #[error("layers {layers:?}, must ascend and be below {n_layers}")]
    Layers {
        /// The layers asked for.
        layers: Vec<usize>,
        /// The model's.
        n_layers: usize,
    },
    /// A sliding window that sees no token.
    #[error("sliding window of 0 tokens, must be at least 1")]
    EmptyWindow,
    /// The operating system gives no threads.
    #[error("start compute threads")]
    Threads(#[source] std::io::Error),
}

/// Why a step did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The cache refuses: an unknown sequence, or too little room.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// One sequence twice in a batch.
    #[error("{0:?} is in the batch twice")]
    DuplicateSequence(SeqId),
    /// A sequence without tokens in the batch.
    #[error("no tokens for {0:?}")]
    NoTokens(SeqId),
    /// A token that the model does not have.
    #[error("token {id}, the model has {vocab_len}")]
    NoSuchToken {
        /// The token.
        id: TokenId,
        /// The rows of the model's embedding table.
        vocab_len: usize,
    },
    /// More tokens than the model was made for.
    #[error("sequence would have {tokens} tokens, the model's context has {context_len}")]
    ContextFull {
        /// Tokens after the step.
        tokens: usize,
        /// The model's limit.
        context_len: usize,
    },
    /// Scores that cannot be captured.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A weight source failed.
    #[error("acquire weights")]
    Weights(#[from] WeightError),
    /// The model's file changed while the step read it.
    #[error("read the model's file")]
    ModelFile(#[from] GgufError),
    /// A layer that this engine does not compute.
    #[error("layer {layer} is not one of this engine's")]
    NotHeld {
        /// The layer.
        layer: usize,
    },
    /// Hidden states, or rows of a step, that do not fit it.
    #[error("hidden states of {found:?} (rows, width), must be {want:?}")]
    Hidden {
        /// What was given.
        found: (usize, usize),
        /// What the step needs there.
        want: (usize, usize),
    },
    /// Rows that an open step does not have.
    #[error("rows {rows:?} of a step of {total}")]
    Rows {
        /// The rows asked for.
        rows: std::ops::Range<usize>,
        /// The step's.
        total: usize,
    },
    /// Scores of a step that is computed in pieces.
    #[error("attention scores are not captured in steps by pieces")]
    CaptureInPieces,
    /// [`StepControl::after_layer`] asked to stop.
    #[error("cancelled after layer {done} of {total}")]
    Cancelled {
        /// Layers done.
        done: usize,
        /// Layers in all.
        total: usize,
    },
}

/// Where the logits of a sequence's new tokens are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Nowhere.
    None,
    /// Of the last token.
    Last,
    /// Of every token of the step.
    All,
}

/// The new tokens of one sequence in a step; their positions follow the sequence's present length.
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

/// What a step gives for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SeqOutput {
    /// `[wanted, v]`.
    pub logits: Vec<f32>,
    /// Where they were asked for.
    pub scores: Option<AttentionScores>,
}

/// Hears of a step's progress, and may end it.
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
    /// The n-th computes the sequences of root n + 1.
    adapters: Vec<Arc<Adapter>>,
    backend: CpuBackend,
    /// In place of the model's own.
    window: Option<SlidingWindow>,
    table: KvTable,
    kv: CpuKv,
    /// Those that it computes, ascending.
    layers: Vec<usize>,
}

/// Token counts above this have no block number.
const KV_TOKENS_MAX: usize = (u32::MAX as usize) * BLOCK_TOKENS;

/// Most adapters of one engine.
const ADAPTERS_MAX: usize = 1024;

impl Engine {
    /// An engine without sequences. Cache memory is taken block by block as sequences grow.
    ///
    /// # Errors
    /// [`EngineError`] for options out of range, or where threads cannot be started.
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
        let layers = pieces::own_layers(options.layers, config.n_layers)?;
        let kv_shape = KvShape {
            n_layers: layers.len(),
            n_kv_heads: config.n_kv_heads,
            d_head: config.d_head,
            format: options.kv_format,
        };
        Ok(Self {
            backend: CpuBackend::new(pool),
            window: options.window,
            table: KvTable::new(n_blocks, n_blocks as usize * usize::from(percent) / 100),
            kv: CpuKv::new(kv_shape, layers.iter().copied()),
            layers,
            adapters: Vec::new(),
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Takes an adapter in, for sequences to be created with; giving it once more gives the same id.
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
        self.adapters.push(adapter);
        Ok(AdapterId(self.adapters.len() as u32 - 1))
    }

    /// A new, empty sequence of the model alone.
    pub fn create(&mut self) -> SeqId {
        self.table.create(Root::default(), PrefixScope::default())
    }

    /// A new, empty sequence, computed with this adapter, as are its forks; it shares prefixes only with sequences of
    /// the same adapter. Without one: [`Self::create`].
    ///
    /// # Errors
    /// [`KvError::UnknownAdapter`] where the adapter was given to another engine.
    pub fn create_with(&mut self, adapter: Option<AdapterId>) -> Result<SeqId, KvError> {
        self.create_in(PrefixScope::default(), adapter)
    }

    /// The same, for an engine that several owners use: it shares prefixes as `scope` says.
    ///
    /// # Errors
    /// [`KvError::UnknownAdapter`] where the adapter was given to another engine.
    pub fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, KvError> {
        let root = self.root(adapter)?;
        Ok(self.table.create(root, scope))
    }

    /// A new sequence with the first `n_tokens` of `seq`; shares their blocks.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`], [`KvError::PastEnd`].
    pub fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, KvError> {
        self.table.fork(seq, n_tokens)
    }

    /// Cuts the sequence to its first `n_tokens`.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`], [`KvError::PastEnd`].
    pub fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), KvError> {
        self.table.truncate(seq, n_tokens)
    }

    /// A new sequence that goes on where `seq` ends, but keeps only these of its keys and values; `seq` stays as it
    /// is. Cost: a copy of what is kept. The new sequence shares no prefix with others, and cannot be cut to fewer
    /// tokens than it begins with.
    ///
    /// # Errors
    /// [`EvictError`]; nothing has changed then.
    pub fn evict(&mut self, seq: SeqId, kept: &Kept) -> Result<SeqId, EvictError> {
        let config = self.model.config();
        let windowed =
            self.window.is_some() || (0..config.n_layers).any(|layer| config.window_at(layer).is_some());
        if windowed {
            return Err(EvictError::SlidingWindow);
        }
        if self.layers.len() < config.n_layers {
            return Err(EvictError::SomeLayers { held: self.layers.len(), n_layers: config.n_layers });
        }
        let cached = self.table.len(seq)? - self.table.evicted(seq)?;
        kept.check(config.n_layers * config.n_kv_heads, cached)?;
        let from = self.table.blocks(seq)?.to_vec();
        let child = self.table.evict(seq, kept.tokens())?;
        self.backend.keep(&mut self.kv, kept, &from, self.table.blocks(child)?);
        Ok(child)
    }

    /// Forgets the sequence. Its full blocks can still be found by [`Self::reuse_prefix`] until their room is
    /// needed.
    pub fn release(&mut self, seq: SeqId) {
        self.table.release(seq);
    }

    /// Tokens of the sequence.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    pub fn len(&self, seq: SeqId) -> Result<usize, KvError> {
        self.table.len(seq)
    }

    /// Token ids of the sequence.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    pub fn ids(&self, seq: SeqId) -> Result<&[TokenId], KvError> {
        self.table.ids(seq)
    }

    /// What shared prefixes have saved, and what is kept of them.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.table.prefix_stats()
    }

    /// Tokens of `ids`, from the first on, whose blocks live sequences of this scope and adapter hold:
    /// [`Self::reuse_prefix`] needs no room for them. None for an adapter of another engine.
    pub fn held_prefix(&self, scope: PrefixScope, adapter: Option<AdapterId>, ids: &[TokenId]) -> usize {
        self.root(adapter).map_or(0, |root| self.table.held_prefix(root, scope, ids))
    }

    /// Tokens that the cache has room for, in whole blocks: free ones, and kept prefixes of no present sequence.
    pub fn free_tokens(&self) -> usize {
        self.table.free_tokens()
    }

    /// Takes the longest known prefix of `ids` over (whole blocks, then a part of one), which are to follow the
    /// sequence's present tokens; returns how many tokens the sequence gained: none where it ends inside a block.
    /// May be called again between steps, as other sequences compute what this one needs. Never all of `ids`, so that there is a
    /// token left to compute logits from; leave out of `ids` what must be computed for another reason (the
    /// queries of a [`Capture`]).
    pub fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        let room = self.model.config().context_len.saturating_sub(self.table.len(seq).unwrap_or(0));
        self.table.reuse_prefix(seq, &ids[..ids.len().min(room)])
    }

    /// Runs the new tokens of every sequence through the model and appends them; one output for each.
    ///
    /// # Errors
    /// [`StepError`]; every sequence then has the length it had before.
    pub fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, StepError> {
        self.check(batch)?;
        self.holds(0..self.model.config().n_layers)?;
        let wants: Vec<_> = batch.iter().map(|entry| (entry.seq, entry.ids.len())).collect();
        let copies = self.table.reserve(&wants)?;
        let result = self.spans(batch).map_err(StepError::from).and_then(|spans| {
            let Self { backend, kv, .. } = self;
            backend.prepare(kv, &copies, &spans);
            self.run(batch, &spans, control)
        });
        for entry in batch {
            match &result {
                Ok(_) => self.table.commit(entry.seq, entry.ids)?,
                Err(_) => self.table.cancel(entry.seq),
            }
        }
        result
    }

    /// Whether the engine computes these layers.
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
                capture.check(entry.ids.len(), config.n_layers, config.n_heads)?;
            }
        }
        Ok(())
    }

    fn spans(&self, batch: &[StepSeq<'_>]) -> Result<Vec<SeqSpan>, KvError> {
        let mut first_row = 0;
        let mut spans = Vec::with_capacity(batch.len());
        for entry in batch {
            let rows = first_row..first_row + entry.ids.len();
            first_row = rows.end;
            let blocks = self.table.blocks(entry.seq)?.to_vec();
            let evicted = self.table.evicted(entry.seq)?;
            spans.push(SeqSpan { rows, start: self.table.len(entry.seq)? - evicted, evicted, blocks });
        }
        Ok(spans)
    }

    fn run(
        &mut self,
        batch: &[StepSeq<'_>],
        spans: &[SeqSpan],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, StepError> {
        let Self { model, backend, window, kv, table, adapters, .. } = self;
        let ids: Vec<TokenId> = batch.iter().flat_map(|entry| entry.ids).copied().collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let captures: Vec<_> = batch.iter().map(|entry| entry.capture).collect();
        let wanted: Vec<_> =
            batch.iter().zip(spans).map(|(entry, span)| wanted(entry.logits, span)).collect();
        let config = model.config();
        let input = PassInput {
            backend: &*backend,
            config,
            window: *window,
            source: model.weights(),
            spans,
            ids: &ids,
            captures: &captures,
            wanted: &wanted,
        };
        let rows = batch.iter().zip(spans).map(|(entry, span)| (entry.seq, span.rows.clone()));
        let mut pass = Pass::begin(input, adapted(table, adapters, rows)?)?;
        for layer in 0..config.n_layers {
            pass.layer(kv, layer)?;
            let (done, total) = (layer + 1, config.n_layers);
            if control.after_layer(done, total).is_break() {
                return Err(StepError::Cancelled { done, total });
            }
        }
        let (logits, scores) = pass.finish()?;
        files_are_intact(model, adapters)?;
        let mut logits = logits.as_slice();
        let outputs = wanted.iter().zip(scores).map(|(rows, scores)| {
            let (own, rest) = logits.split_at(rows.len() * config.vocab_len);
            logits = rest;
            SeqOutput { logits: own.to_vec(), scores }
        });
        Ok(outputs.collect())
    }
}

/// Whether what a step has read of the files was there.
fn files_are_intact(model: &Model, adapters: &[Arc<Adapter>]) -> Result<(), GgufError> {
    model.intact()?;
    adapters.iter().try_for_each(|adapter| adapter.intact())
}

/// The adapters of a pass, given its sequences and the rows of each.
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
        Wanted::Last => last_row(span),
        Wanted::All => span.rows.clone(),
    }
}
