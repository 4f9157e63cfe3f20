//! An engine that computes nothing: its logits are a hash of all ids before them.
//!
//! Blocks, prefixes, lengths and refusals are those of the real engine, which keeps the sequences here and
//! has no layers. Equal ids before a token give equal logits, and a lost, doubled or changed id gives
//! others. Never: reads a clock. Always: a step that fails or is cancelled leaves every sequence as it was.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::rows::RowsError;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterId, AttentionScores, Capture, Engine, EngineOptions, KvRows, KvWidth, Model, PrefixScope,
    SeqId, SeqOutput, SequenceError, Sequences, StepControl, StepError, StepSeq, Wanted,
};
use baton_random::mix;
use baton_synthetic::{Quant, SyntheticModel};

/// Layers that a step seems to have: it can be cancelled after each.
const LAYERS: usize = 2;
/// Keys and values of a token in a layer.
const ROW: KvWidth = KvWidth { heads: 1, d: 8 };
/// Logit of the tokens that are never written.
const NEVER: f32 = -40.0;
/// How many tokens may follow a text.
const CANDIDATES: usize = 4;

/// The model that most engines here have.
static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| tiny(288, false, 2048));
/// A model with another tokenizer.
static OTHER: LazyLock<Arc<Model>> = LazyLock::new(|| tiny(320, true, 2048));
/// A model for long prompts.
static LONG: LazyLock<Arc<Model>> = LazyLock::new(|| tiny(288, false, 65_536));

/// Returns the model that most engines here have.
#[must_use]
pub fn model() -> &'static Arc<Model> {
    &MODEL
}

/// Returns a model with another tokenizer.
#[must_use]
pub fn other_model() -> &'static Arc<Model> {
    &OTHER
}

/// Returns a model that takes prompts of up to 65,536 tokens, which are bytes.
#[must_use]
pub fn long_model() -> &'static Arc<Model> {
    &LONG
}

fn tiny(vocab_len: u32, endless: bool, context_len: u32) -> Arc<Model> {
    let shape = SyntheticModel {
        n_layers: LAYERS as u32,
        n_heads: 2,
        n_kv_heads: 1,
        d_model: 32,
        d_head: 16,
        d_ff: 32,
        vocab_len,
        context_len,
        endless,
        ..SyntheticModel::small("llama", Quant::from(baton_kernels_cpu::Format::F32), 1)
    };
    let bytes = shape.to_gguf().expect("the shape is a valid one");
    Model::from_gguf(Gguf::from_bytes(bytes).expect("it was just written")).expect("it was just written")
}

/// What an engine writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voice {
    /// Decides all tokens.
    pub seed: u64,
    /// Of 16 tokens, how many are those of the voice with variant 0.
    pub alike: u64,
    /// 0, or what it writes at the other tokens.
    pub variant: u64,
    /// One of so many tokens ends an answer.
    pub ends: u64,
}

impl Voice {
    /// Returns the logits behind these ids.
    #[must_use]
    pub fn logits(&self, ids: &[TokenId], vocab_len: usize) -> Vec<f32> {
        let mut logits = Vec::new();
        self.append(self.state(ids), ids.last().copied().unwrap_or(0), vocab_len, &mut logits);
        logits
    }

    /// Returns the hash of these ids.
    pub(super) fn state(&self, ids: &[TokenId]) -> u64 {
        ids.iter().fold(self.seed, |state, id| mix(state, u64::from(*id)))
    }

    /// Appends the logits behind a text with this hash and last token.
    fn append(&self, state: u64, last: TokenId, vocab_len: usize, out: &mut Vec<f32>) {
        let begin = out.len();
        out.resize(begin + vocab_len, NEVER);
        let own = &mut out[begin..];
        let mut random = mix(state, 1);
        if random % 16 >= self.alike {
            random = mix(random, self.variant);
        }
        if last == u32::from(LEAD) {
            own[usize::from(FOLLOW)] = 6.0;
            return;
        }
        for rank in 0..CANDIDATES {
            random = mix(random, 2);
            own[token(random)] = 4.0 - rank as f32;
        }
        if mix(random, 3).is_multiple_of(self.ends) {
            own[END] = 8.0;
        }
    }
}

/// The first byte of a character of two bytes, and its second.
const LEAD: u8 = 0xc3;
const FOLLOW: u8 = 0xa9;
/// The token that ends an answer.
const END: usize = 258;

/// Returns a token of a text: mostly letters, words of few different ones, now and then half a character.
fn token(random: u64) -> usize {
    const LETTERS: &[u8] = b"abcdefgi  ...,\n";
    match random % 32 {
        0 => usize::from(LEAD),
        1 => usize::from(b'h'),
        _ => usize::from(LETTERS[(random >> 8) as usize % LETTERS.len()]),
    }
}

/// What may go wrong in an engine, told from outside.
#[derive(Debug, Clone, Default)]
pub struct Trouble(Arc<AtomicUsize>);

impl Trouble {
    /// Makes so many steps fail.
    pub fn fail(&self, steps: usize) {
        self.0.store(steps, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }
}

/// How many sequences an engine has, told outside.
#[derive(Debug, Clone, Default)]
pub struct Live(Arc<AtomicUsize>);

impl Live {
    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The engine.
#[derive(Debug)]
pub struct SimEngine {
    engine: Engine,
    voice: Voice,
    trouble: Trouble,
    live: Live,
    computed: u64,
    /// Sequences that began with rows which are not those of their tokens.
    spoiled: BTreeSet<SeqId>,
}

impl SimEngine {
    /// Makes an engine with room for so many tokens.
    ///
    /// # Panics
    /// If there is no room at all.
    #[must_use]
    pub fn new(model: &Arc<Model>, kv_tokens: usize, voice: Voice) -> SimEngine {
        let options = EngineOptions {
            threads: std::num::NonZeroUsize::new(1),
            kv_tokens,
            layers: Some(Vec::new()),
            ..EngineOptions::default()
        };
        SimEngine {
            engine: Engine::new(Arc::clone(model), options).expect("there is room"),
            voice,
            trouble: Trouble::default(),
            live: Live::default(),
            computed: 0,
            spoiled: BTreeSet::new(),
        }
    }

    /// Returns what makes it fail.
    #[must_use]
    pub fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }

    /// Returns what counts its sequences.
    #[must_use]
    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// Returns how many tokens went through it.
    #[must_use]
    pub fn computed(&self) -> u64 {
        self.computed
    }

    /// Returns whether rows are those of some of these ids, each at most once and in their order.
    fn are_of(&self, ids: &[TokenId], rows: &KvRows) -> bool {
        let mut state = self.voice.seed;
        let mut at = 0;
        let mut own = [Vec::new(), Vec::new()];
        for id in ids {
            state = mix(state, u64::from(*id));
            for (layer, own) in own.iter_mut().enumerate() {
                own.clear();
                row(state, layer, own);
            }
            let is_next = own.iter().enumerate().all(|(layer, own)| {
                rows.layer(layer).get(at * own.len()..(at + 1) * own.len()) == Some(&own[..])
            });
            at += usize::from(is_next);
        }
        at == rows.tokens()
    }

    fn output(&self, entry: &StepSeq<'_>) -> Result<SeqOutput, SequenceError> {
        let before = Sequences::ids(self, entry.seq)?;
        let vocab_len = self.engine.model().config().vocab_len;
        let mut state = self.voice.state(before);
        if self.spoiled.contains(&entry.seq) {
            state = mix(state, 5);
        }
        let first = match entry.logits {
            Wanted::None => entry.ids.len(),
            Wanted::Last | Wanted::Best => entry.ids.len() - 1,
            Wanted::All => 0,
        };
        let mut logits = Vec::with_capacity((entry.ids.len() - first) * vocab_len);
        for (at, id) in entry.ids.iter().enumerate() {
            state = mix(state, u64::from(*id));
            if at >= first {
                self.voice.append(state, *id, vocab_len, &mut logits);
            }
        }
        let scores = entry.capture.map(|capture| scores(capture, state, before.len() + entry.ids.len()));
        Ok(SeqOutput { logits, best: None, scores })
    }
}

/// Appends the keys and values of a token in a layer: 16 numbers from 1 to 2, as binary16.
fn row(state: u64, layer: usize, out: &mut Vec<u8>) {
    for at in 0..2 * ROW.d {
        let bits = mix(state, (1_000 * (layer + 1) + at) as u64) as u16;
        out.extend_from_slice(&(0x3c00 | bits & 0x03ff).to_le_bytes());
    }
}

fn only_f16(format: KvFormat) -> Result<(), RowsError> {
    let reason = "the simulated engine has one format";
    if format == KvFormat::F16 { Ok(()) } else { Err(RowsError::Kind { reason }) }
}

/// Returns the position that the scores of a prompt point at, which depends on all its ids.
pub(super) fn peak(state: u64, keys: usize) -> usize {
    (mix(state, 7) % keys.max(1) as u64) as usize
}

/// Returns scores that fall off steeply on both sides of their peak.
fn scores(capture: &Capture, state: u64, keys: usize) -> AttentionScores {
    let peak = peak(state, keys);
    let one = (0..keys).map(|at| (-3.0 * at.abs_diff(peak) as f32).exp());
    AttentionScores {
        heads: capture.heads.clone(),
        keys,
        mean: one.cycle().take(capture.heads.len() * keys).collect(),
    }
}

impl Sequences for SimEngine {
    baton_engine::ask_engine!();

    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        Sequences::add_adapter(&mut self.engine, adapter)
    }

    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        let seq = Sequences::create_in(&mut self.engine, scope, adapter)?;
        self.live.add();
        Ok(seq)
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        let child = Sequences::fork(&mut self.engine, seq, n_tokens)?;
        self.live.add();
        Ok(child)
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        Sequences::truncate(&mut self.engine, seq, n_tokens)
    }

    fn release(&mut self, seq: SeqId) {
        if Sequences::len(&self.engine, seq).is_ok() {
            self.live.remove();
        }
        self.spoiled.remove(&seq);
        self.engine.release(seq);
    }

    fn unpin(&mut self, seq: SeqId) {
        Sequences::unpin(&mut self.engine, seq);
    }

    fn pin(&mut self, seq: SeqId) -> Result<usize, SequenceError> {
        Sequences::pin(&mut self.engine, seq)
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        self.engine.reuse_prefix(seq, ids)
    }

    fn kv_widths(&self) -> Result<Vec<KvWidth>, RowsError> {
        Ok(vec![ROW; LAYERS])
    }

    fn export_rows(
        &self,
        seq: SeqId,
        layer: usize,
        positions: &[usize],
        format: KvFormat,
        out: &mut Vec<u8>,
    ) -> Result<(), RowsError> {
        only_f16(format)?;
        let Ok(ids) = Sequences::ids(self, seq) else {
            return Err(RowsError::Position { position: 0, cached: 0 });
        };
        for position in positions {
            let Some(before) = ids.get(..=*position) else {
                return Err(RowsError::Position { position: *position, cached: ids.len() });
            };
            row(self.voice.state(before), layer, out);
        }
        Ok(())
    }

    fn import_rows(
        &mut self,
        scope: PrefixScope,
        adapter: Option<AdapterId>,
        ids: &[TokenId],
        rows: &KvRows,
    ) -> Result<SeqId, RowsError> {
        only_f16(rows.format())?;
        rows.check(&[ROW; LAYERS])?;
        let no_room = |_: SequenceError| RowsError::Kind { reason: "there is no room" };
        let seq = self.create_in(scope, adapter).map_err(no_room)?;
        let all = StepSeq { seq, ids, logits: Wanted::None, capture: None };
        match self.engine.open_step(&[all]) {
            Ok(open) => self.engine.commit_step(open),
            Err(err) => {
                self.release(seq);
                return Err(no_room(err.into()));
            }
        }
        if !self.are_of(ids, rows) {
            self.spoiled.insert(seq);
        }
        Ok(seq)
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        if self.trouble.take() {
            return Err(SequenceError::Ring("the simulated machine fails".into()));
        }
        let bare: Vec<StepSeq<'_>> = batch.iter().map(|entry| StepSeq { capture: None, ..*entry }).collect();
        let open = self.engine.open_step(&bare)?;
        for done in 1..=LAYERS {
            if control.after_layer(done, LAYERS).is_break() {
                self.engine.cancel_step(open);
                return Err(StepError::Cancelled { done, total: LAYERS }.into());
            }
        }
        let outputs = batch.iter().map(|entry| self.output(entry)).collect::<Result<Vec<_>, _>>();
        self.computed += open.rows() as u64;
        self.engine.commit_step(open);
        outputs
    }
}
