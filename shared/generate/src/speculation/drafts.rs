//! Proposals from a smaller model with the same tokenizer.
//!
//! It samples with the same sampler at the same token index as the model that checks it. So equal
//! distributions give equal tokens, even if the answer is sampled. It follows each answer in a sequence of
//! its own cache, a bounded number of tokens at a time, so that no pass waits for a whole prompt. What it
//! computes for several answers is one pass. Always: a failure of the draft model only means that nothing is
//! proposed.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_engine::engine::EngineError;
use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, EngineOptions, KvError, Model, SeqId, StepControl, StepError, StepSeq, Wanted};

use super::{Proposer, Want};
use crate::scheduler::JobId;

/// Tokens by which it catches up with each answer in one pass.
const CATCH_UP_TOKENS: usize = 128;

/// Why a model cannot be the draft model of another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// Its tokenizer is different.
    #[error("the draft model's tokenizer is {draft}, the model's is {target}: they must be the same")]
    Tokenizer {
        /// SHA-256 of the draft's tokenizer.
        draft: String,
        /// SHA-256 of the model's tokenizer.
        target: String,
    },
    /// The engine cannot be created.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A draft model with its own engine: one sequence for each answer.
#[derive(Debug)]
pub struct Drafts {
    engine: Engine,
    of: BTreeMap<JobId, Followed>,
    capacity: usize,
    /// Number of ids that the checked model has rows for.
    vocab_len: usize,
    /// Passes so far.
    passes: u64,
}

/// A sequence that follows an answer.
#[derive(Debug, Clone, Copy)]
struct Followed {
    seq: SeqId,
    /// The last pass that used it.
    used: u64,
}

/// One answer in a pass.
#[derive(Debug)]
struct Row {
    /// Its place in the wants.
    at: usize,
    id: JobId,
    seq: SeqId,
    /// Tokens to compute next.
    feed: Vec<TokenId>,
    /// Whether the last of them is the answer's last token, or a proposed one.
    caught_up: bool,
    /// Answer and proposed tokens.
    so_far: Vec<TokenId>,
}

impl Drafts {
    /// Creates a draft model that proposes for `target`.
    ///
    /// # Errors
    /// [`DraftError::Tokenizer`] if the tokenizers differ; [`DraftError::Engine`].
    pub fn new(target: &Model, draft: Arc<Model>, options: EngineOptions) -> Result<Self, DraftError> {
        let digest = |model: &Model| model.tokenizer().digest_hex().to_owned();
        let (own, other) = (digest(&draft), digest(target));
        if own != other {
            return Err(DraftError::Tokenizer { draft: own, target: other });
        }
        let capacity = options.kv_tokens.min(draft.config().context_len);
        let vocab_len = target.config().vocab_len;
        let engine = Engine::new(draft, options)?;
        Ok(Self { engine, of: BTreeMap::new(), capacity, vocab_len, passes: 0 })
    }

    /// Brings the sequence of an answer to its last tokens. Returns `None` if it does not fit.
    fn follow(&mut self, at: usize, want: &Want<'_>) -> Result<Option<Row>, StepError> {
        let (prompt, own) = (want.writing.prompt, want.writing.own);
        let len = prompt.len() + own.len();
        if want.k == 0 || len == 0 || len + want.k > self.capacity {
            return Ok(None);
        }
        let (engine, passes) = (&mut self.engine, self.passes);
        let followed = self.of.entry(want.id).or_insert_with(|| Followed { seq: engine.create(), used: 0 });
        followed.used = passes;
        let seq = followed.seq;
        let whole = || prompt.iter().chain(own);
        let known = self.engine.ids(seq)?.iter().zip(whole()).take_while(|(a, b)| a == b).count();
        let known = known.min(len - 1);
        self.engine.truncate(seq, known)?;
        let feed: Vec<TokenId> = whole().skip(known).take(CATCH_UP_TOKENS).copied().collect();
        let caught_up = known + feed.len() == len;
        Ok(Some(Row { at, id: want.id, seq, feed, caught_up, so_far: want.writing.answer.to_vec() }))
    }

    /// Proposes; an error other than a cancellation means nothing to propose.
    fn write(
        &mut self,
        wants: &[Want<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<Vec<TokenId>>, StepError> {
        let mut proposed = vec![Vec::new(); wants.len()];
        let mut rows = Vec::new();
        for (at, want) in wants.iter().enumerate() {
            rows.extend(self.follow(at, want)?);
        }
        while !rows.is_empty() {
            let logits = self.step(&mut rows, control)?;
            let mut going = Vec::new();
            for (mut row, logits) in rows.into_iter().zip(logits) {
                let (want, own) = (&wants[row.at], &mut proposed[row.at]);
                if !row.caught_up {
                    continue;
                }
                let id = want.writing.sampler.sample(&logits, row.so_far.len() as u64, &row.so_far);
                if id as usize >= self.vocab_len {
                    continue;
                }
                own.push(id);
                if own.len() < want.k && !self.engine.model().tokenizer().is_end(id) {
                    row.so_far.push(id);
                    row.feed = vec![id];
                    going.push(row);
                }
            }
            rows = going;
        }
        Ok(proposed)
    }

    /// Computes one token or chunk of each row; returns the logits of those that have caught up. While the
    /// cache is full, the sequence that was not used for longest gives way, and its row leaves.
    fn step(
        &mut self,
        rows: &mut Vec<Row>,
        control: &mut dyn StepControl,
    ) -> Result<Vec<Vec<f32>>, StepError> {
        while !rows.is_empty() {
            let wanted = |row: &Row| if row.caught_up { Wanted::Last } else { Wanted::None };
            let batch: Vec<StepSeq<'_>> = rows
                .iter()
                .map(|row| StepSeq { seq: row.seq, ids: &row.feed, logits: wanted(row), capture: None })
                .collect();
            match self.engine.step(&batch, control) {
                Ok(outputs) => return Ok(outputs.into_iter().map(|output| output.logits).collect()),
                Err(StepError::Kv(KvError::KvFull { .. })) => {
                    let oldest = self.of.iter().min_by_key(|(id, followed)| (followed.used, **id));
                    let Some((&id, _)) = oldest else { return Ok(Vec::new()) };
                    self.forget(id);
                    rows.retain(|row| row.id != id);
                }
                Err(err) => return Err(err),
            }
        }
        Ok(Vec::new())
    }
}

impl Proposer for Drafts {
    fn propose(
        &mut self,
        wants: &[Want<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<Vec<TokenId>>, StepError> {
        self.passes += 1;
        match self.write(wants, control) {
            Err(err @ StepError::Cancelled { .. }) => Err(err),
            // A failure of the draft model must not make an answer fail.
            Err(_) => Ok(vec![Vec::new(); wants.len()]),
            Ok(proposed) => Ok(proposed),
        }
    }

    fn forget(&mut self, id: JobId) {
        if let Some(followed) = self.of.remove(&id) {
            self.engine.release(followed.seq);
        }
    }
}
