//! Sequences that wait for their next tokens without a claim to their blocks.
//!
//! An unpinned sequence holds only its last block, if that is a partial one. Its full blocks are kept like
//! those of a sequence that was released: evicted in the order of release, before or after anybody else's.
//! Always: a sequence that is pinned again holds every block of its tokens, though it may be shorter.

use super::{BLOCK_TOKENS, KvError, KvTable, SeqId};

impl KvTable {
    /// Gives up the claim of a sequence to its full blocks. Until [`Self::pin`], only its ids may be read,
    /// and it may be released. A sequence of which keys and values were evicted stays as it is: its blocks
    /// are not in the tree.
    pub(crate) fn unpin(&mut self, seq: SeqId) {
        let Self { pool, seqs, .. } = self;
        let Some(sequence) = seqs.get_mut(&seq) else { return };
        if sequence.open || sequence.evicted_at > 0 || sequence.unpinned {
            return;
        }
        let partial = sequence.blocks.get(sequence.ids.len() / BLOCK_TOKENS).copied();
        let partial = partial.filter(|block| !pool.is_node(*block));
        let blocks = std::mem::take(&mut sequence.blocks);
        // Last block first, so that a prefix outlives what follows it.
        for block in blocks.into_iter().rev().filter(|block| Some(*block) != partial) {
            pool.release(block);
        }
        sequence.blocks = partial.into_iter().collect();
        sequence.unpinned = true;
    }

    /// Takes the blocks of an unpinned sequence again, and cuts it before the first one that is gone. Returns
    /// how many tokens it has then.
    pub(crate) fn pin(&mut self, seq: SeqId) -> Result<usize, KvError> {
        let Self { pool, seqs, states, .. } = self;
        let sequence = seqs.get_mut(&seq).ok_or(KvError::UnknownSequence(seq))?;
        let len = sequence.ids.len();
        if !std::mem::take(&mut sequence.unpinned) {
            return Ok(len);
        }
        let partial = std::mem::take(&mut sequence.blocks).pop();
        let full = len / BLOCK_TOKENS;
        for (at, ids) in sequence.ids.chunks_exact(BLOCK_TOKENS).enumerate() {
            let (place, owner) = sequence.place(at);
            let Some(block) = pool.find(place, owner, ids) else { break };
            pool.retain(block);
            sequence.blocks.push(block);
        }
        let mut known = sequence.blocks.len() * BLOCK_TOKENS;
        match partial {
            Some(block) if sequence.blocks.len() == full => {
                sequence.blocks.push(block);
                known = len;
            }
            Some(block) => pool.release(block),
            None => {
                let (place, owner) = sequence.place(sequence.blocks.len());
                let rest = &sequence.ids[known..len.min(known + BLOCK_TOKENS)];
                if let Some((block, n)) = pool.find_part(place, owner, rest) {
                    pool.retain(block);
                    sequence.blocks.push(block);
                    known += n;
                }
            }
        }
        if let Some(states) = states {
            states.cut(pool, sequence, known);
        }
        sequence.ids.truncate(known);
        Ok(known)
    }
}
