//! Puts the cloud's tokens in order: drops duplicates, restores the order, never skips a missing token.
//!
//! Memory is bounded. Only a contiguous prefix of the tokens is ever returned.

use baton_generate::planted::{self, Bug};
use baton_protocol::TokenEvent;
use std::collections::BTreeMap;

/// Most tokens that may wait for a missing one.
const WAITING_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Wire index of the stream's first token; not 0 if the stream continues an answer.
    base: u32,
    next: usize,
    waiting: BTreeMap<usize, TokenEvent>,
    /// Index of the first token that was a duplicate, out of order or past the cap.
    pub(super) disorder_at: Option<usize>,
}

impl Inbox {
    pub(super) fn starting_at(base: u32) -> Self {
        Self { base, ..Self::default() }
    }

    /// Takes a token; returns the tokens that are now contiguous, in order. `cap` is the agreed number of
    /// tokens.
    pub(super) fn push(&mut self, token: TokenEvent, cap: usize) -> Vec<TokenEvent> {
        let index = token.index.checked_sub(self.base).map_or(usize::MAX, |i| i as usize);
        if planted::is(Bug::DoubleTaken) && index.checked_add(1) == Some(self.next) {
            return vec![token];
        }
        if index != self.next || index >= cap {
            self.disorder_at.get_or_insert(index);
            if index > self.next && index < cap && self.waiting.len() < WAITING_MAX {
                self.waiting.entry(index).or_insert(token);
            }
            return Vec::new();
        }
        let mut ready = vec![token];
        self.next += 1;
        while let Some(token) = self.waiting.remove(&self.next) {
            ready.push(token);
            self.next += 1;
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(index: u32) -> TokenEvent {
        TokenEvent { index, id: index, text: format!("t{index}") }
    }

    #[track_caller]
    fn check(order: &[u32], cap: usize, want: &[u32], disorder: Option<usize>) {
        let mut inbox = Inbox::default();
        let got: Vec<u32> = order.iter().flat_map(|&i| inbox.push(token(i), cap)).map(|t| t.index).collect();
        assert_eq!(got, want, "order {order:?}");
        assert_eq!(inbox.disorder_at, disorder, "order {order:?}");
    }

    #[test]
    fn contiguous_prefix_only() {
        check(&[0, 1, 2], 3, &[0, 1, 2], None);
        check(&[0, 0, 1, 1, 2], 3, &[0, 1, 2], Some(0));
        check(&[0, 2, 1, 3], 4, &[0, 1, 2, 3], Some(2));
        check(&[0, 2, 3], 4, &[0], Some(2));
        check(&[1, 2], 4, &[], Some(1));
        check(&[0, 1, 2, 3], 2, &[0, 1], Some(2));
        check(&[u32::MAX, 0], 2, &[0], Some(u32::MAX as usize));
    }
}
