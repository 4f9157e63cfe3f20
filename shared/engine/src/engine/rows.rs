//! Keys and values of chosen tokens that leave a sequence, and sequences that begin with such rows.
//!
//! Only engines take part that compute all layers on the CPU. Always: a sequence that begins with rows of
//! another engine of the same kind computes the logits that an evicted sequence there would compute.

use super::{AdapterId, Engine, KvFormat};
use crate::backend::SeqSpan;
use crate::kv::{BLOCK_TOKENS, PrefixScope, SeqId};
use crate::rows::{KvRows, KvWidth, RowCodec, RowsError};
use crate::tokenizer::TokenId;

impl Engine {
    /// Returns the widths of the layers that have keys and values of their own, in order.
    ///
    /// # Errors
    /// [`RowsError::Kind`] if this engine can neither give nor take rows.
    pub fn kv_widths(&self) -> Result<Vec<KvWidth>, RowsError> {
        let config = self.model.config();
        let reasons = [
            (config.recurrent.is_some(), "the model has recurrent layers, whose states stand for all tokens"),
            (self.window.is_some(), "the engine has a sliding window that the model has not"),
            (self.layers.len() < config.n_layers, "the engine computes only some of the layers"),
            (self.gpu.is_some(), "a GPU computes some of the layers"),
        ];
        match reasons.into_iter().find(|(holds, _)| *holds) {
            Some((_, reason)) => Err(RowsError::Kind { reason }),
            None => Ok(self.own_layers().map(|layer| self.width(layer)).collect()),
        }
    }

    /// Returns the layers that have keys and values of their own.
    pub(super) fn own_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let of_model = self.host.kv.of_model().iter().enumerate();
        of_model.filter(|(layer, kv)| kv.source == *layer).map(|(layer, _)| layer)
    }

    pub(super) fn width(&self, layer: usize) -> KvWidth {
        let kv = self.host.kv.of_model()[layer];
        KvWidth { heads: kv.n_kv_heads, d: kv.d_head }
    }

    /// Appends the keys and values of these positions to `out`: `[positions, heads]` pairs of a key and a
    /// value. `layer` counts the layers of [`Self::kv_widths`].
    ///
    /// # Errors
    /// [`RowsError`]; `out` may have got a part then.
    pub fn export_rows(
        &self,
        seq: SeqId,
        layer: usize,
        positions: &[usize],
        format: KvFormat,
        out: &mut Vec<u8>,
    ) -> Result<(), RowsError> {
        let layers = self.kv_widths()?.len();
        let of_model = self.own_layers().nth(layer).ok_or(RowsError::Layer { layer, layers })?;
        let cached = if self.table.is_evicted(seq)? { 0 } else { self.table.len(seq)? };
        if let Some(&position) = positions.iter().find(|position| **position >= cached) {
            return Err(RowsError::Position { position, cached });
        }
        let blocks = self.table.blocks(seq)?;
        let width = self.width(of_model);
        let (mut k, mut v) = (vec![0.0; width.d], vec![0.0; width.d]);
        let mut codec = RowCodec::new(format, width.d);
        for position in positions {
            let place = (blocks[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
            for head in 0..width.heads {
                self.host.kv.read((of_model, head), place, &mut k, &mut v);
                for row in [&k, &v] {
                    codec.encode(row, out).map_err(|_| RowsError::Value { layer })?;
                }
            }
        }
        Ok(())
    }

    /// Creates a sequence of `ids` of which only these rows are in the cache, as [`Self::evict`] makes one.
    /// Cost: every row is read twice, once to check it. The last rows are taken for those that a sliding
    /// window sees ([`crate::SlidingWindow::with_seen`]).
    ///
    /// # Errors
    /// [`RowsError`]; nothing has changed then.
    pub fn import_rows(
        &mut self,
        scope: PrefixScope,
        adapter: Option<AdapterId>,
        ids: &[TokenId],
        rows: &KvRows,
    ) -> Result<SeqId, RowsError> {
        let widths = self.kv_widths()?;
        let (kept, tokens) = (rows.tokens(), ids.len());
        let vocab_len = self.model.config().vocab_len;
        if !(1..=tokens).contains(&kept) || ids.iter().any(|id| *id as usize >= vocab_len) {
            return Err(RowsError::Tokens { kept, tokens });
        }
        rows.check(&widths)?;
        let (first, last) = self.model.config().largest_window().map_or((0, tokens), |w| w.behind(tokens));
        let seen = first + tokens - last;
        if kept < seen {
            return Err(RowsError::Window { kept, seen });
        }
        let root = self.root(adapter)?;
        let seq = self.table.create_thin((root, scope), ids.to_vec(), kept)?;
        let blocks = self.table.blocks(seq)?.to_vec();
        for block in &blocks {
            self.found(*block);
            self.host.kv.ensure(*block);
        }
        let span = SeqSpan { rows: 0..kept, start: 0, evicted: tokens - kept, cached: 0, blocks };
        let own: Vec<usize> = self.own_layers().collect();
        for ((layer, of_model), width) in own.into_iter().enumerate().zip(widths) {
            let (k, v) = floats(rows.layer(layer), rows.format(), width);
            self.host.kv.append(self.host.backend.pool(), of_model, &k, &v, &span);
        }
        Ok(seq)
    }
}

/// Returns the keys and the values of checked rows, `[tokens, heads d]` each.
fn floats(bytes: &[u8], format: KvFormat, width: KvWidth) -> (Vec<f32>, Vec<f32>) {
    let values = bytes.len() / width.token_bytes(format) * width.heads * width.d;
    let (mut k, mut v) = (vec![0.0; values], vec![0.0; values]);
    let mut codec = RowCodec::new(format, width.d);
    let each = width.token_bytes(format) / (2 * width.heads);
    let pairs =
        bytes.chunks_exact(2 * each).zip(k.chunks_exact_mut(width.d).zip(v.chunks_exact_mut(width.d)));
    for (pair, (k, v)) in pairs {
        codec.decode(&pair[..each], k);
        codec.decode(&pair[each..], v);
    }
    (k, v)
}
