//! Which attention the passes of an answer capture: that of a prompt's window, and the answer's evidence.
//!
//! Pure. Always: evidence of a token is that of the row that it was chosen from.

use std::ops::Range;

use baton_engine::{AttentionScores, Capture, MeanOver};

use super::{Answer, Window};
use crate::evidence::Evidence;
use crate::scheduler::{PrefillEnd, StepRow};

impl Answer {
    /// Returns what a pass over these tokens of the prompt captures.
    pub(super) fn capture_of_prompt(&self, tokens: &Range<usize>, end: PrefillEnd) -> Option<Capture> {
        let last = || self.evidence.as_ref()?.capture(self.behind().len(), tokens.len() - 1..tokens.len());
        match end {
            PrefillEnd::More => None,
            PrefillEnd::Held => self.capture(tokens),
            PrefillEnd::Sampled => self.capture(tokens).or_else(last),
        }
    }

    /// Returns what a pass over these tokens, up to the accepted part's, captures.
    pub(super) fn capture_of_accepted(&self, tokens: &Range<usize>) -> Option<Capture> {
        let choosing = self.first_row().saturating_sub(tokens.start).min(tokens.len());
        let first = self.behind().len() + tokens.start.saturating_sub(self.first_row());
        self.evidence.as_ref()?.capture(first, choosing..tokens.len())
    }

    /// Returns what a pass over so many own tokens captures.
    pub(super) fn capture_of_own(&self, tokens: usize) -> Option<Capture> {
        self.evidence.as_ref()?.capture(self.behind().len(), 0..tokens)
    }

    /// Returns the row that the first token of the accepted part is chosen from.
    fn first_row(&self) -> usize {
        self.verification.as_ref().map_or(0, |verification| verification.first_row)
    }

    /// Takes the captured weights of a row as evidence, before [`Self::took_output`] of that row. Gives them
    /// back if they are those of a window.
    pub fn attended(&mut self, row: &StepRow, scores: AttentionScores) -> Option<AttentionScores> {
        let of_window = matches!(row, StepRow::Prefill { tokens, .. } if self.capture(tokens).is_some());
        let accepted = match row {
            StepRow::Verify { tokens, .. } => tokens.start.saturating_sub(self.first_row()),
            StepRow::Prefill { .. } | StepRow::Decode { .. } => 0,
        };
        let first = self.behind().len() + accepted;
        match &mut self.evidence {
            Some(evidence) if !of_window => {
                evidence.take(first, &scores);
                None
            }
            _ => Some(scores),
        }
    }

    /// Returns the evidence of the tokens so far, and records no more.
    pub fn take_evidence(&mut self) -> Option<Evidence> {
        let tokens = self.behind().len();
        let mut evidence = self.evidence.take()?;
        evidence.cut(tokens);
        Some(evidence)
    }

    /// Returns the scores that the last prompt pass, of these tokens, captures.
    fn capture(&self, tokens: &Range<usize>) -> Option<Capture> {
        let Window { tokens: window, heads } = self.window.as_ref().filter(|_| self.behind().is_empty())?;
        let inside = tokens.start <= window.start && window.end <= tokens.end;
        inside.then(|| Capture {
            window: window.start - tokens.start..window.end - tokens.start,
            heads: heads.clone(),
            over: MeanOver::Queries,
        })
    }
}
