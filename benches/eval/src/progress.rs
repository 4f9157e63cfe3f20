//! Shows the progress of a run on one line of the terminal.

use std::time::{Duration, Instant};

/// Width of the bar in characters.
const WIDTH: usize = 24;
/// Maximum length of the last case's name, so that the line fits a terminal of 80 columns.
const WHAT_CHARS: usize = 24;
/// Minimum time between two drawings.
const EVERY: Duration = Duration::from_millis(200);

/// A progress bar on standard error; it shows nothing if standard error is not a terminal.
#[derive(Debug)]
pub struct Bar {
    begun: Instant,
    drawn: Option<Instant>,
    shown: bool,
}

impl Bar {
    /// Makes a bar that starts now.
    pub fn new() -> Self {
        Self { begun: Instant::now(), drawn: None, shown: baton_terminal::stderr_is_terminal() }
    }

    /// Draws `done` of `total`; `what` names the last case.
    pub fn draw(&mut self, done: usize, total: usize, what: &str) {
        let now = Instant::now();
        let due = self.drawn.is_none_or(|drawn| now - drawn >= EVERY) || done == total;
        if !self.shown || !due {
            return;
        }
        self.drawn = Some(now);
        baton_terminal::status(&line(done, total, self.begun.elapsed(), what));
    }

    /// Removes the bar from the terminal.
    pub fn clear(&mut self) {
        if self.shown && self.drawn.take().is_some() {
            baton_terminal::clear_status();
        }
    }
}

impl Default for Bar {
    fn default() -> Self {
        Self::new()
    }
}

/// Formats the line: bar, counts, time left (if the other cases take the same time on average), `what`.
fn line(done: usize, total: usize, elapsed: Duration, what: &str) -> String {
    let share = if total == 0 { 1.0 } else { done as f64 / total as f64 };
    let full = (share * WIDTH as f64) as usize;
    let left = if done == 0 { 0.0 } else { elapsed.as_secs_f64() * (total - done) as f64 / done as f64 };
    let left = left as u64;
    let what: String = what.chars().take(WHAT_CHARS).collect();
    format!(
        "[{}{}] {done}/{total}  {}:{:02} left  {what}",
        "#".repeat(full),
        ".".repeat(WIDTH - full),
        left / 60,
        left % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_and_how_long() {
        let seconds = Duration::from_secs;
        assert_eq!(
            line(1, 4, seconds(30), "facts/short"),
            "[######..................] 1/4  1:30 left  facts/short"
        );
        assert_eq!(line(0, 4, seconds(9), ""), "[........................] 0/4  0:00 left  ");
        assert_eq!(line(0, 0, seconds(9), "x"), "[########################] 0/0  0:00 left  x");
    }
}
