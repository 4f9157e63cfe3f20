//! Proposals from a smaller model with the same tokenizer.
//!
//! It samples with the same sampler at the same token index as the model that checks it. So equal
//! distributions give equal tokens, even if the answer is sampled. It follows the sequence in its own KV
//! cache, a bounded number of tokens at a time, so that no step of the answer waits for a whole prompt.

use std::sync::Arc;

use super::Writing;
use crate::engine::{Engine, EngineError, EngineOptions, StepControl, StepError, StepSeq, Wanted};
use crate::kv::SeqId;
use crate::model::Model;
use crate::tokenizer::TokenId;

/// Tokens by which it catches up in one step of the answer.
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

/// A draft model with its own engine.
#[derive(Debug)]
pub struct Draft {
    engine: Engine,
    seq: SeqId,
    capacity: usize,
    /// Number of ids that the checked model has rows for.
    vocab_len: usize,
}

impl Draft {
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
        let mut engine = Engine::new(draft, options)?;
        let seq = engine.create();
        Ok(Self { engine, seq, capacity, vocab_len: target.config().vocab_len })
    }

    /// Returns up to `k` tokens that this model would write next; empty while it catches up, or if the
    /// sequence does not fit.
    ///
    /// # Errors
    /// [`StepError::Cancelled`] if `control` cancels it.
    pub fn propose(
        &mut self,
        writing: Writing<'_>,
        k: usize,
        control: &mut dyn StepControl,
    ) -> Result<Vec<TokenId>, StepError> {
        match self.write(writing, k, control) {
            Err(err @ StepError::Cancelled { .. }) => Err(err),
            // A failure of the draft model must not make the answer fail.
            Err(_) => Ok(Vec::new()),
            Ok(proposed) => Ok(proposed),
        }
    }

    fn write(
        &mut self,
        writing: Writing<'_>,
        k: usize,
        control: &mut dyn StepControl,
    ) -> Result<Vec<TokenId>, StepError> {
        let Writing { prompt, answer, sampler } = writing;
        let len = prompt.len() + answer.len();
        if len == 0 || len + k > self.capacity {
            return Ok(Vec::new());
        }
        let whole = || prompt.iter().chain(answer);
        let known = self.engine.ids(self.seq)?.iter().zip(whole()).take_while(|(a, b)| a == b).count();
        let known = known.min(len - 1);
        self.engine.truncate(self.seq, known)?;
        let mut feed: Vec<TokenId> = whole().skip(known).take(CATCH_UP_TOKENS).copied().collect();
        if known + feed.len() < len {
            self.step(&feed, Wanted::None, control)?;
            return Ok(Vec::new());
        }
        let mut so_far = answer.to_vec();
        while so_far.len() < answer.len() + k {
            let logits = self.step(&feed, Wanted::Last, control)?;
            let id = sampler.sample(&logits, so_far.len() as u64, &so_far);
            if id as usize >= self.vocab_len {
                break;
            }
            so_far.push(id);
            if self.engine.model().tokenizer().is_end(id) {
                break;
            }
            feed = vec![id];
        }
        Ok(so_far.split_off(answer.len()))
    }

    fn step(
        &mut self,
        ids: &[TokenId],
        logits: Wanted,
        control: &mut dyn StepControl,
    ) -> Result<Vec<f32>, StepError> {
        let step = StepSeq { seq: self.seq, ids, logits, capture: None };
        let mut outputs = self.engine.step(&[step], control)?;
        Ok(outputs.pop().map(|output| output.logits).unwrap_or_default())
    }
}
