//! Shows progress to a person who waits for an answer: one line on the terminal, removed when text comes.

use std::time::{Duration, Instant};

use baton_protocol::ProgressStage;

use crate::relay::{Progress, Source, time_text};

/// Shorter waits are not shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// The progress line of one answer.
#[derive(Debug)]
pub(super) struct ProgressLine {
    asked: Instant,
}

impl ProgressLine {
    /// Starts when the question is asked.
    pub(super) fn begin() -> Self {
        Self { asked: Instant::now() }
    }

    /// Shows the progress, if the wait is long.
    pub(super) fn show(&self, progress: &Progress) {
        if is_long(self.asked.elapsed(), progress.eta_ms) {
            baton_terminal::status(&words(progress));
        }
    }
}

/// Returns whether the whole wait is long. The estimate comes from the cloud and may be any number.
fn is_long(waited: Duration, eta_ms: Option<f64>) -> bool {
    let left = eta_ms
        .map_or(Duration::ZERO, |ms| Duration::try_from_secs_f64(ms.max(0.0) / 1e3).unwrap_or(Duration::MAX));
    waited.saturating_add(left) >= PATIENCE
}

fn words(progress: &Progress) -> String {
    let Progress { source, stage, computed, total, eta_ms } = *progress;
    let what = match (stage, source) {
        (ProgressStage::Queue, _) => "waiting for a turn in the cloud".to_owned(),
        (ProgressStage::Prefill, source) => {
            let who = if source == Source::Cloud { "the cloud" } else { "this device" };
            let percent = (computed.saturating_mul(100) / total.max(1)).min(100);
            format!("{who} reads the prompt: {computed} of {total} tokens ({percent} %)")
        }
    };
    match eta_ms.and_then(time_text) {
        Some(time) => format!("{what}, about {time} left"),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: Source, stage: ProgressStage, computed: u64, eta_ms: Option<f64>, want: &str) {
        assert_eq!(words(&Progress { source, stage, computed, total: 4_000, eta_ms }), want);
    }

    #[test]
    fn any_estimate_is_taken() {
        let waited = Duration::from_millis(10);
        for (eta_ms, long) in [
            (None, false),
            (Some(900.0), false),
            (Some(995.0), true),
            (Some(f64::NAN), false),
            (Some(-1e300), false),
            (Some(1e300), true),
            (Some(f64::INFINITY), true),
        ] {
            assert_eq!(is_long(waited, eta_ms), long, "{eta_ms:?}");
        }
        assert!(is_long(PATIENCE, None) && is_long(Duration::MAX, Some(5.0)));
    }

    #[test]
    fn who_is_waited_for_and_how_long() {
        use ProgressStage::{Prefill, Queue};
        check(
            Source::Device,
            Prefill,
            1_000,
            Some(12_300.0),
            "this device reads the prompt: 1000 of 4000 tokens (25 %), about 12 s left",
        );
        check(Source::Cloud, Queue, 0, Some(170_000.0), "waiting for a turn in the cloud, about 3 min left");
        check(Source::Cloud, Queue, 0, None, "waiting for a turn in the cloud");
        let cloud = "the cloud reads the prompt: 4000 of 4000 tokens (100 %)";
        check(Source::Cloud, Prefill, 4_000, Some(20.0), &format!("{cloud}, about 1 s left"));
        for odd in [f64::NAN, f64::INFINITY, -5.0] {
            check(Source::Cloud, Prefill, 4_000, Some(odd), cloud);
        }
        // A prompt without tokens must not cause a panic.
        let empty = Progress { source: Source::Cloud, stage: Prefill, computed: 0, total: 0, eta_ms: None };
        assert_eq!(words(&empty), "the cloud reads the prompt: 0 of 0 tokens (0 %)");
    }
}
