//! Stop strings: end an answer when one of several strings appears, without ever showing it.
//!
//! Works on streamed text: text that may be the beginning of a stop string is held back. The result does not
//! depend on how the text was cut into pieces. The stop string that is complete first counts; of those that
//! end together, the longest.

/// The most stop strings of a request.
pub const STOPS_MAX: usize = 16;
/// The most bytes of a stop string.
pub const STOP_BYTES_MAX: usize = 1_024;

/// Why stop strings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// There are too many of them.
    #[error("{count} stop strings, at most {max} are allowed")]
    TooMany {
        /// How many were given.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// One is empty or too long.
    #[error("stop string {index} has {len} bytes, want 1 to {max}")]
    BadLength {
        /// Its index in the list.
        index: usize,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
}

/// The text that may be shown after a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopPush {
    /// Text that is certainly before any stop string.
    pub text: String,
    /// Whether a stop string has appeared. The answer ends here; nothing more is shown.
    pub stopped: bool,
}

/// Searches the text of one answer for stop strings.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// Searches for any of `stops`, which may be empty.
    ///
    /// # Errors
    /// If there are more than [`STOPS_MAX`] strings, or one is empty or longer than [`STOP_BYTES_MAX`].
    pub fn new(stops: &[String]) -> Result<StopStrings, StopError> {
        if stops.len() > STOPS_MAX {
            return Err(StopError::TooMany { count: stops.len(), max: STOPS_MAX });
        }
        let bad = stops.iter().enumerate().find(|(_, s)| s.is_empty() || s.len() > STOP_BYTES_MAX);
        if let Some((index, stop)) = bad {
            return Err(StopError::BadLength { index, len: stop.len(), max: STOP_BYTES_MAX });
        }
        Ok(StopStrings { stops: stops.to_vec(), held: String::new(), stopped: false })
    }

    /// Adds texts that end a turn in the model's template.
    #[must_use]
    pub fn with_turn_ends(mut self, texts: impl IntoIterator<Item = String>) -> StopStrings {
        self.stops.extend(texts.into_iter().filter(|text| !text.is_empty()));
        self
    }

    /// Adds the next piece of the answer's text.
    pub fn push(&mut self, text: &str) -> StopPush {
        if self.stopped {
            return StopPush { text: String::new(), stopped: true };
        }
        self.held.push_str(text);
        if let Some(start) = self.first_stop() {
            self.stopped = true;
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return StopPush { text, stopped: true };
        }
        let safe = self.held.len() - self.possible_beginning();
        let held = self.held.split_off(safe);
        StopPush { text: std::mem::replace(&mut self.held, held), stopped: false }
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the start of the stop string that is complete first; of those that end together, of the
    /// longest.
    fn first_stop(&self) -> Option<usize> {
        let found = self.stops.iter().filter_map(|s| self.held.find(s).map(|start| (start + s.len(), start)));
        found.min().map(|(_, start)| start)
    }

    /// Returns the length of the longest end of the held text that begins a stop string.
    fn possible_beginning(&self) -> usize {
        let longest = |stop: &String| {
            let most = self.held.len().min(stop.len() - 1);
            (1..=most).rev().find(|&n| self.held.as_bytes().ends_with(&stop.as_bytes()[..n]))
        };
        let longest = self.stops.iter().filter_map(longest).max().unwrap_or(0);
        // A stop string may begin inside a character; the held text then begins before that character.
        (longest..=self.held.len()).find(|&n| self.held.is_char_boundary(self.held.len() - n)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(list: &[&str]) -> StopStrings {
        StopStrings::new(&list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    /// Returns what a whole stream shows, and whether it was stopped.
    fn run(list: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut watcher = stops(list);
        let mut shown = String::new();
        let mut stopped = false;
        for piece in pieces {
            let out = watcher.push(piece);
            shown.push_str(&out.text);
            stopped = out.stopped;
        }
        (shown + &watcher.finish(), stopped)
    }

    #[track_caller]
    fn check(list: &[&str], pieces: &[&str], shown: &str, stopped: bool) {
        assert_eq!(run(list, pieces), (shown.to_owned(), stopped), "{list:?} {pieces:?}");
    }

    #[test]
    fn answers_end_before_the_stop_string() {
        check(&["\n\n"], &["one\n", "\ntwo"], "one", true);
        check(&["\n\n"], &["one\n", "two\n"], "one\ntwo\n", false);
        check(&["STOP"], &["a S", "T", "O", "P b", "c"], "a ", true);
        check(&["STOP"], &["a ST", "x"], "a STx", false);
        check(&["abc", "b"], &["abc"], "a", true);
        check(&["bc", "abc"], &["xabc"], "x", true);
        check(&["aab"], &["aaa", "ab"], "aa", true);
        check(&["é"], &["cafe", "é!"], "cafe", true);
        check(&[], &["any", "thing"], "anything", false);
        check(&["x"], &["x", "y"], "", true);
    }

    #[test]
    fn text_is_held_only_while_it_may_stop() {
        let mut watcher = stops(&["</end>"]);
        assert_eq!(watcher.push("a<"), StopPush { text: "a".into(), stopped: false });
        assert_eq!(watcher.push("/e"), StopPush { text: "".into(), stopped: false });
        assert_eq!(watcher.push("x"), StopPush { text: "</ex".into(), stopped: false });
        let mut watcher = stops(&["日本"]);
        assert_eq!(watcher.push("毎日"), StopPush { text: "毎".into(), stopped: false });
        assert_eq!(watcher.push("曜"), StopPush { text: "日曜".into(), stopped: false });
    }

    #[test]
    fn bad_lists_are_refused() {
        let refused = |list: Vec<String>| StopStrings::new(&list).unwrap_err().to_string();
        assert_eq!(refused(vec!["a".into(); 17]), "17 stop strings, at most 16 are allowed");
        assert_eq!(refused(vec!["a".into(), "".into()]), "stop string 1 has 0 bytes, want 1 to 1024");
        assert_eq!(refused(vec!["a".repeat(1025)]), "stop string 0 has 1025 bytes, want 1 to 1024");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn cutting_the_text_changes_nothing(
            text in "[abé]{0,30}",
            list in prop::collection::vec("[abé]{1,4}", 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            let whole = run(&list, &[&text]);
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let mut places: Vec<usize> = cuts.iter().map(|i| i.index(chars.len() + 1)).collect();
            places.sort();
            let mut pieces = Vec::new();
            let mut at = 0;
            for place in places.into_iter().chain([chars.len()]) {
                pieces.push(chars[at..place].concat());
                at = place;
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(&run(&list, &pieces), &whole);
            prop_assert_eq!(whole.1, list.iter().any(|s| text.contains(s)));
            prop_assert!(list.iter().all(|s| !whole.0.contains(s)));
        }
    }
}
