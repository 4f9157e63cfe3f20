//! An engine whose prefixes are kept on the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::engine::KvFormat;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    Adapter, AdapterId, BLOCK_TOKENS, Engine, KvRows, KvWidth, PrefixScope, RowsError, SeqId, SeqOutput,
    SequenceError, Sequences, StepControl, StepSeq,
};
use baton_terminal::chain;
use tracing::{debug, warn};

use super::writer::Writer;
use super::{Kept, Name, Store, names};

/// How long after an answer its blocks are handed over, and how often more of them.
const IDLE_EVERY: Duration = Duration::from_millis(20);
/// Bytes that are copied at a time, so that the next answer need not wait.
const IDLE_BYTES: usize = 32 << 20;
/// The longest time that the end of a program waits for blocks to be handed over.
const DROP_MAX: Duration = Duration::from_secs(2);
/// The most blocks that are read at a time, of each thread.
const READ_BLOCKS: usize = 8;

/// What is known of a live sequence.
#[derive(Debug, Clone, Default)]
struct Known {
    adapter: Option<AdapterId>,
    /// The most leading tokens that come from the disk; `None` for all.
    known_max: Option<usize>,
    /// Names of its first whole blocks.
    names: Vec<Name>,
    /// How many of these are on the disk, or were handed over.
    kept: usize,
    /// A name that was looked for and not found.
    missed: Option<Name>,
    /// Whether engines of two kinds have computed it, as a GPU was lost: it has no names.
    is_mixed: bool,
}

impl Known {
    fn cut(&mut self, tokens: usize) {
        self.names.truncate(tokens / BLOCK_TOKENS);
        self.kept = self.kept.min(self.names.len());
    }
}

/// An engine whose prefixes outlive it.
#[derive(Debug)]
pub struct Remembering {
    engine: Engine,
    store: Arc<Store>,
    writer: Writer,
    /// The model's fingerprint, and those of the adapters by number.
    model: [u8; 32],
    adapters: HashMap<AdapterId, [u8; 32]>,
    /// The engine's kind of blocks when it was last asked.
    kind: Option<String>,
    seqs: HashMap<SeqId, Known>,
    /// Who is told where the prefixes are.
    told: Arc<Kept>,
}

impl Remembering {
    /// Keeps the prefixes of this engine, and says to `told` where they are.
    ///
    /// # Errors
    /// The system's, if it starts no thread.
    pub fn new(engine: Engine, store: Arc<Store>, told: Arc<Kept>) -> std::io::Result<Self> {
        let (writer, model) = (Writer::start(Arc::clone(&store))?, engine.model().fingerprint());
        let kind = engine.block_kind().ok();
        let (adapters, seqs) = (HashMap::new(), HashMap::new());
        let made = Self { engine, store, writer, model, adapters, kind, seqs, told };
        made.tell();
        Ok(made)
    }

    /// Says where the prefixes are.
    fn tell(&self) {
        let adapters = self.adapters.keys().copied().map(Some).chain([None]);
        let roots = adapters.filter_map(|adapter| Some((adapter, self.root(adapter)?)));
        self.told.say(&self.store, roots.collect());
    }

    fn track(&mut self, seq: SeqId, known: Known) -> SeqId {
        self.seqs.insert(seq, known);
        seq
    }

    /// Returns the name before the first block of sequences with this adapter; `None` if blocks of the engine
    /// cannot be kept.
    fn root(&self, adapter: Option<AdapterId>) -> Option<Name> {
        let kind = self.kind.as_ref()?;
        let adapter = match adapter {
            Some(adapter) => Some(self.adapters.get(&adapter)?),
            None => None,
        };
        Some(Name::root(self.store.secret(), kind, &self.model, adapter))
    }

    /// Notices that the engine computes in another way since it has lost a GPU. What is live then is neither
    /// kept nor found, since its blocks are of two kinds.
    fn follow_kind(&mut self) {
        let kind = self.engine.block_kind().ok();
        if self.kind == kind {
            return;
        }
        self.kind = kind;
        self.tell();
        for known in self.seqs.values_mut() {
            *known = Known { adapter: known.adapter, is_mixed: true, ..Known::default() };
        }
    }

    /// Names all whole blocks of a live sequence, and returns how many there are.
    fn name_all(&mut self, seq: SeqId) -> Option<usize> {
        self.follow_kind();
        let known = self.seqs.get(&seq).filter(|known| !known.is_mixed)?;
        let ids = self.engine.ids(seq).ok()?;
        let before = known.names.last().copied().or_else(|| self.root(known.adapter))?;
        let new: Vec<Name> = names(before, ids, known.names.len()).collect();
        let known = self.seqs.get_mut(&seq)?;
        known.names.extend(new);
        Some(known.names.len())
    }

    /// Appends blocks from the disk to a sequence, which has the first tokens of `whole`. Never takes all of
    /// `whole`. Returns whether there were any.
    fn recall(&mut self, seq: SeqId, whole: &[TokenId]) -> Option<bool> {
        self.name_all(seq)?;
        let known = self.seqs.get(&seq)?;
        let held = known.names.len();
        let before = known.names.last().copied().or_else(|| self.root(known.adapter))?;
        let room = self.engine.model().config().context_len.min(whole.len().saturating_sub(1)) / BLOCK_TOKENS;
        let room = known.known_max.map_or(room, |most| room.min(most / BLOCK_TOKENS));
        let usable = &whole[..room * BLOCK_TOKENS];
        let mut wanted = names(before, usable, held);
        let first = wanted.next()?;
        if known.missed == Some(first) {
            return Some(false);
        }
        if !self.store.has(&first) {
            self.seqs.get_mut(&seq)?.missed = Some(first);
            return Some(false);
        }
        // The tokens of a partial block are among those that come.
        self.truncate(seq, held * BLOCK_TOKENS).ok()?;
        let mut wanted: Vec<Name> = std::iter::once(first).chain(wanted).collect();
        wanted.truncate((self.engine.free_tokens() / BLOCK_TOKENS).saturating_sub(1));
        let mut gained = 0;
        for some in wanted.chunks(READ_BLOCKS * threads()) {
            let blocks = self.read(some);
            let (n, at) = (blocks.len(), held + gained);
            let ids = &whole[at * BLOCK_TOKENS..(at + n) * BLOCK_TOKENS];
            if let Err(err) = self.engine.append_blocks(seq, ids, &blocks) {
                warn!(err = chain(&err), "kept keys and values cannot be used");
                break;
            }
            let known = self.seqs.get_mut(&seq)?;
            known.names.extend(&some[..n]);
            known.kept = known.names.len();
            gained += n;
            if n < some.len() {
                break;
            }
        }
        debug!(tokens = gained * BLOCK_TOKENS, "read keys and values from the disk");
        Some(gained > 0)
    }

    /// Reads blocks until one is missing.
    fn read(&self, wanted: &[Name]) -> Vec<Vec<u8>> {
        let each = wanted.len().div_ceil(threads());
        let read = |some: &[Name]| -> Vec<Option<Vec<u8>>> {
            some.iter().map(|name| self.store.get(name)).collect()
        };
        let parts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                wanted.chunks(each.max(1)).map(|some| scope.spawn(move || read(some))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        parts.into_iter().flatten().map_while(|block| block).collect()
    }

    /// Hands over blocks of live sequences; returns whether there may be more.
    fn keep_some(&mut self) -> bool {
        let mut left = IDLE_BYTES / self.engine.block_bytes().max(1);
        let live: Vec<SeqId> = self.seqs.keys().copied().collect();
        live.into_iter().any(|seq| self.keep_of(seq, &mut left))
    }

    /// Hands over at most `left` blocks of a sequence; returns whether there are more.
    fn keep_of(&mut self, seq: SeqId, left: &mut usize) -> bool {
        let Some(whole) = self.name_all(seq) else { return false };
        while let Some(known) = self.seqs.get_mut(&seq).filter(|known| known.kept < whole) {
            let (index, name) = (known.kept, known.names[known.kept]);
            if !self.store.has(&name) {
                if *left == 0 || !self.writer.has_room() {
                    return true;
                }
                *left -= 1;
                match self.engine.block(seq, index) {
                    Ok(block) => self.writer.put(name, block),
                    // Its keys and values were lost with a GPU: they are computed again if they are needed.
                    Err(err) => debug!(err = chain(&err), "a block is not kept"),
                }
            }
            known.kept += 1;
        }
        false
    }
}

impl Drop for Remembering {
    /// Hands over what is left, for a moment: what is not written then is computed again.
    fn drop(&mut self) {
        let begun = Instant::now();
        while self.keep_some() && begun.elapsed() < DROP_MAX {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns how many threads read.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

impl Sequences for Remembering {
    baton_engine::ask_engine!();

    fn captures(&self) -> bool {
        self.engine.captures()
    }

    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        let fingerprint = adapter.fingerprint();
        let id = self.engine.add_adapter(adapter)?;
        self.adapters.insert(id, fingerprint);
        self.tell();
        Ok(id)
    }

    fn create_in(&mut self, scope: PrefixScope, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        self.follow_kind();
        let seq = self.engine.create_in(scope, adapter)?;
        let known_max = (scope.owner != 0).then_some(scope.shared_tokens);
        Ok(self.track(seq, Known { adapter, known_max, ..Known::default() }))
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        let child = self.engine.fork(seq, n_tokens)?;
        let mut known = self.seqs.get(&seq).cloned().unwrap_or_default();
        known.cut(n_tokens);
        Ok(self.track(child, known))
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        self.engine.truncate(seq, n_tokens)?;
        if let Some(known) = self.seqs.get_mut(&seq) {
            known.cut(n_tokens);
        }
        Ok(())
    }

    fn release(&mut self, seq: SeqId) {
        // What a busy device had no time for.
        self.keep_of(seq, &mut (IDLE_BYTES / self.engine.block_bytes().max(1)));
        self.seqs.remove(&seq);
        self.engine.release(seq);
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        let before = self.engine.len(seq).unwrap_or(0);
        let gained = self.engine.reuse_prefix(seq, ids);
        if !before.is_multiple_of(BLOCK_TOKENS) {
            return gained;
        }
        let held = self.engine.ids(seq).unwrap_or(&[]);
        let whole = [&held[..before.min(held.len())], ids].concat();
        if self.recall(seq, &whole) == Some(true) {
            let now = self.engine.len(seq).unwrap_or(0);
            self.engine.reuse_prefix(seq, &whole[now.min(whole.len())..]);
        }
        self.engine.len(seq).unwrap_or(0).saturating_sub(before)
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        Ok(self.engine.step(batch, control)?)
    }

    fn kv_widths(&self) -> Result<Vec<KvWidth>, RowsError> {
        self.engine.kv_widths()
    }

    fn export_rows(
        &self,
        seq: SeqId,
        layer: usize,
        positions: &[usize],
        format: KvFormat,
        out: &mut Vec<u8>,
    ) -> Result<(), RowsError> {
        self.engine.export_rows(seq, layer, positions, format, out)
    }

    fn import_rows(
        &mut self,
        scope: PrefixScope,
        adapter: Option<AdapterId>,
        ids: &[TokenId],
        rows: &KvRows,
    ) -> Result<SeqId, RowsError> {
        self.follow_kind();
        let seq = self.engine.import_rows(scope, adapter, ids, rows)?;
        // What somebody else has computed is never kept on the disk.
        Ok(self.track(seq, Known { adapter, is_mixed: true, ..Known::default() }))
    }

    fn idle_every(&self) -> Option<Duration> {
        if self.engine.block_kind().is_err() {
            return None;
        }
        let is_behind = |(seq, known): (&SeqId, &Known)| {
            !known.is_mixed && self.engine.len(*seq).is_ok_and(|tokens| tokens / BLOCK_TOKENS > known.kept)
        };
        self.seqs.iter().any(is_behind).then_some(IDLE_EVERY)
    }

    fn idle(&mut self) {
        self.keep_some();
    }
}
