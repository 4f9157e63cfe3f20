//! Sizes, limits and layers of chunks.

use std::ops::Range;
use std::time::Duration;

use crate::core::head::Pace;
use crate::core::layout::Layout;

/// Each further row of a chunk takes at most this fraction (one part in so many) of a token's predicted time.
const ROW_SHARE: u32 = 4;

/// Returns how many chunks may be under way at once.
pub(in crate::core) fn flying_max(places: usize) -> usize {
    2 * places + 1
}

/// Returns the rows of a chunk: enough chunks to keep every device busy, but none too small to be efficient.
pub(super) fn chunk_rows(rows: usize, places: usize, (least, most): (usize, usize)) -> usize {
    rows.div_ceil(4 * places).clamp(least.max(1), most.max(least.max(1)))
}

/// Returns how long nothing may move after so many rows were sent. The first step of an epoch has additional
/// time for reading weights. `floor` is time beside computing, `token` the least time that a token counts as.
pub(super) fn stall_limit(
    (floor, token): (Duration, Duration),
    pace: Pace,
    rows: usize,
    first: bool,
) -> Duration {
    let more_rows = u32::try_from(rows).unwrap_or(u32::MAX) / ROW_SHARE;
    let step = token.max(pace.token).saturating_mul(4).saturating_mul(1 + more_rows);
    let reads = if first { pace.first } else { Duration::ZERO };
    floor.saturating_add(step).saturating_add(reads)
}

/// Returns the layers of the head's windows that begin after so many layers; windows that follow each other
/// are one range.
pub(super) fn own_layers(layout: &Layout, done: usize) -> Range<usize> {
    let mut end = done;
    while let Some(window) = layout.from(end).filter(|window| window.place == 0 && window.end > end) {
        end = window.end;
    }
    done..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rows: usize, places: usize, want: usize) {
        assert_eq!(chunk_rows(rows, places, (16, 128)), want, "{rows} rows on {places} devices");
    }

    #[test]
    fn chunks_keep_devices_busy_and_stay_worth_their_while() {
        check(1, 2, 16);
        check(512, 2, 64);
        check(512, 4, 32);
        check(4096, 2, 128);
        assert_eq!(chunk_rows(5, 1, (0, 0)), 1);
    }

    #[test]
    fn a_ring_is_waited_for_as_long_as_its_plan_predicts() {
        let seconds = Duration::from_secs;
        let usual = (seconds(5), Duration::from_millis(500));
        assert_eq!(stall_limit(usual, Pace::default(), 1, true), seconds(5 + 2), "the usual times");
        let slow = Pace { token: seconds(8), first: seconds(90) };
        assert_eq!(stall_limit(usual, slow, 1, false), seconds(5 + 32));
        assert_eq!(stall_limit(usual, slow, 1, true), seconds(5 + 32 + 90));
        assert_eq!(stall_limit(usual, slow, 4, false), seconds(5 + 64));
        let fast = Pace { token: Duration::from_millis(3), first: Duration::ZERO };
        assert_eq!(stall_limit(usual, fast, 1, false), seconds(5 + 2));
    }
}
