//! Which pieces other devices have, and whom to ask for the next ones.

use std::ops::Range;

use crate::core::worker::giving::BATCH;
use crate::core::{LinkId, Node};

/// A device that was asked which pieces it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) node: Node,
    pub(super) link: LinkId,
    /// One bit per piece, the lowest bit of a byte first.
    pub(super) which: Vec<u8>,
}

impl Peer {
    fn has(&self, piece: u32) -> bool {
        self.which.get(piece as usize / 8).is_some_and(|byte| byte >> (piece % 8) & 1 == 1)
    }

    /// Returns how many of these pieces it has, from the first one without a gap.
    fn run(&self, pieces: &Range<u32>) -> u32 {
        pieces.clone().take_while(|piece| self.has(*piece)).count() as u32
    }
}

/// Returns the first neighbours of these pieces, at most as many as are asked for at once.
pub(super) fn neighbours(missing: impl IntoIterator<Item = u32>) -> Range<u32> {
    let mut missing = missing.into_iter();
    let Some(first) = missing.next() else { return 0..0 };
    let (mut end, most) = (first.saturating_add(1), first.saturating_add(BATCH));
    while end < most && missing.next() == Some(end) {
        end += 1;
    }
    first..end
}

/// Returns the device to ask for the next of these pieces, or `None` for the head, and the end of the
/// pieces that it is asked for.
pub(super) fn whom_to_ask(peers: &[Peer], pieces: &Range<u32>) -> (Option<usize>, u32) {
    let mut best = (None, 0);
    for (at, peer) in peers.iter().enumerate() {
        let run = peer.run(pieces);
        if run > best.1 {
            best = (Some(at), run);
        }
    }
    match best {
        (Some(at), run) => (Some(at), pieces.start + run),
        (None, _) => {
            let has = |piece: &u32| peers.iter().any(|peer| peer.has(*piece));
            (None, pieces.clone().find(has).unwrap_or(pieces.end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::DeviceId;

    fn peer(which: &[u32]) -> Peer {
        let mut bits = vec![0; 4];
        which.iter().for_each(|piece| bits[*piece as usize / 8] |= 1 << (piece % 8));
        let node = Node { device: DeviceId([1; 32]), address: String::new() };
        Peer { node, link: LinkId(0), which: bits }
    }

    #[test]
    fn the_device_with_the_longest_run_is_asked_and_the_head_for_what_nobody_has() {
        let peers = [peer(&[0, 1, 4]), peer(&[1, 2, 3]), peer(&[1, 2, 3])];
        assert_eq!(whom_to_ask(&peers, &(0..6)), (Some(0), 2));
        assert_eq!(whom_to_ask(&peers, &(1..6)), (Some(1), 4), "the first of two");
        assert_eq!(whom_to_ask(&peers, &(5..9)), (None, 9));
        assert_eq!(whom_to_ask(&peers[1..], &(0..6)), (None, 1), "up to the first piece that somebody has");
        assert_eq!(whom_to_ask(&[], &(3..7)), (None, 7));
        assert_eq!(whom_to_ask(&peers, &(100..101)), (None, 101), "beyond what it told");
    }

    #[test]
    fn neighbours_are_asked_for_at_once_and_not_too_many() {
        assert_eq!(neighbours([]), 0..0);
        assert_eq!(neighbours([3, 4, 5, 7, 8]), 3..6);
        assert_eq!(neighbours(0..100), 0..BATCH);
        assert_eq!(neighbours([u32::MAX]), u32::MAX..u32::MAX);
    }
}
