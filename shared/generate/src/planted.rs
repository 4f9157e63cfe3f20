//! Bugs that the simulation plants in the packages that write answers, to see that it finds them.
//!
//! They are there with the feature `planted` only. In a program [`is`] is false for every bug, so the
//! compiler removes what it guards.

/// A bug that can be planted, named by what it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A token is written and never told.
    TokenLost,
    /// An answer that was preempted tells its last token again.
    TokenRepeated,
    /// The sequence of a cancelled answer is not released.
    SlotLeaked,
    /// A cancelled answer that waits keeps its place.
    CancelIgnored,
    /// An answer that waits for its reader waits for ever.
    ParkedForEver,
    /// An answer whose L was lowered has one token too many.
    CapPassed,
    /// A new prompt keeps tokens of the old one in the cache.
    OldPromptKept,
    /// The device goes on with the wrong index.
    WrongIndex,
    /// A row of the verification is not looked at.
    VerifySkipped,
    /// Prompts of one pass get each other's scores.
    ScoresSwapped,
    /// A sequence that is used again is not cut.
    IdleUncut,
    /// A request that is sent again is charged again.
    ChargedTwice,
    /// Quota that was set aside and not used is not given back.
    QuotaKept,
    /// What is used while the database is told is forgotten.
    UsageForgotten,
    /// A token that comes twice is taken twice.
    DoubleTaken,
    /// Tokens that are missing in the middle are not noticed at the end.
    HoleIgnored,
    /// Private values of the question are sent.
    ValueSent,
    /// The cloud accepts a drafted token that it would not have written.
    DraftAccepted,
    /// The device shows a drafted token that the cloud has rejected.
    RejectedShown,
    /// Keys and values of a token leave twice, and those of the next one not.
    RowsTwice,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 20] = [
        Bug::TokenLost,
        Bug::TokenRepeated,
        Bug::SlotLeaked,
        Bug::CancelIgnored,
        Bug::ParkedForEver,
        Bug::CapPassed,
        Bug::OldPromptKept,
        Bug::WrongIndex,
        Bug::VerifySkipped,
        Bug::ScoresSwapped,
        Bug::IdleUncut,
        Bug::ChargedTwice,
        Bug::QuotaKept,
        Bug::UsageForgotten,
        Bug::DoubleTaken,
        Bug::HoleIgnored,
        Bug::ValueSent,
        Bug::DraftAccepted,
        Bug::RejectedShown,
        Bug::RowsTwice,
    ];
}

/// Returns false: a program has no planted bugs.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use self::present::{is, with};

#[cfg(feature = "planted")]
mod present {
    use std::cell::Cell;

    use super::Bug;

    std::thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Returns whether this bug is planted on this thread.
    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Runs something with a bug planted on this thread, or with none.
    pub fn with<T>(bug: Option<Bug>, run: impl FnOnce() -> T) -> T {
        struct Before(Option<Bug>);
        impl Drop for Before {
            fn drop(&mut self) {
                PLANTED.set(self.0);
            }
        }
        let _before = Before(PLANTED.replace(bug));
        run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_is_listed_once_and_none_is_planted() {
        for (at, bug) in Bug::ALL.into_iter().enumerate() {
            assert_eq!(Bug::ALL.iter().position(|other| *other == bug), Some(at));
            assert!(!is(bug));
        }
    }
}
