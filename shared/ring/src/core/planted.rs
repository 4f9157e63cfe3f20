//! Bugs that tests plant in the cores, to see that the simulation finds them.
//!
//! In a program [`Planted`] has no size, and [`Planted::is`] returns false: the compiler removes what it
//! guards.

/// A bug that can be planted, named by what it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A cancelled step is not told to the other devices.
    CancelNotTold,
    /// A chunk of a cancelled step counts for the present one.
    OldStepCounts,
    /// Frames may come back in any order.
    AnyOrder,
    /// Values that are no numbers are used.
    NotFiniteUsed,
    /// Chunks are sent without a limit.
    NoSendLimit,
    /// The log of the old epoch goes to the new one.
    OldLogKept,
    /// The next try to form a ring has the same epoch.
    SameEpoch,
    /// A ring link of an older epoch is taken.
    OldLinkTaken,
    /// The ring is formed before all devices are ready.
    FormedEarly,
    /// A device may fetch weights for ever.
    FedForEver,
    /// The last token is not replayed.
    LastTokenLost,
    /// Sequences without tokens are not created anew.
    EmptyNotCreated,
    /// A cancelled replay counts as done.
    CancelledReplayDone,
    /// Tokens are in the ledger before their step is committed.
    TokensEarly,
    /// A broken link is blamed at once.
    BlamedAtOnce,
    /// Strikes against a device are never forgotten.
    StrikesKept,
    /// Lateness of this device counts as silence of others.
    OwnLatenessCounts,
    /// A worker takes spans that begin elsewhere.
    SpanElsewhere,
    /// Frames of the older part are computed in the newer.
    OldFramesComputed,
    /// A peer that gave a forged piece is asked again.
    ForgerAskedAgain,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::CancelNotTold,
        Self::OldStepCounts,
        Self::AnyOrder,
        Self::NotFiniteUsed,
        Self::NoSendLimit,
        Self::OldLogKept,
        Self::SameEpoch,
        Self::OldLinkTaken,
        Self::FormedEarly,
        Self::FedForEver,
        Self::LastTokenLost,
        Self::EmptyNotCreated,
        Self::CancelledReplayDone,
        Self::TokensEarly,
        Self::BlamedAtOnce,
        Self::StrikesKept,
        Self::OwnLatenessCounts,
        Self::SpanElsewhere,
        Self::OldFramesComputed,
        Self::ForgerAskedAgain,
    ];
}

/// The bug that is planted, if any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(any(test, feature = "sim"))]
    bug: Option<Bug>,
}

impl Planted {
    /// Plants a bug.
    #[cfg(any(test, feature = "sim"))]
    pub const fn bug(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Returns whether this bug is planted.
    #[cfg(any(test, feature = "sim"))]
    pub fn is(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns false: a program has no planted bugs.
    #[cfg(not(any(test, feature = "sim")))]
    #[inline(always)]
    pub const fn is(self, _bug: Bug) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_is_listed_once_and_planted_alone() {
        for (at, bug) in Bug::ALL.into_iter().enumerate() {
            assert_eq!(Bug::ALL.iter().position(|other| *other == bug), Some(at));
            let planted = Planted::bug(bug);
            assert_eq!(Bug::ALL.into_iter().filter(|other| planted.is(*other)).count(), 1);
        }
        assert!(!Bug::ALL.into_iter().any(|bug| Planted::default().is(bug)));
    }
}
