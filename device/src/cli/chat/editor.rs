//! Lines that a person types on a terminal, edited by rustyline: arrows, earlier lines, and pasted text as
//! one message of any length.
//!
//! A thread reads, so that the program never waits for keys. Every control character of a line is shown as a
//! symbol, also of a pasted one.

use std::borrow::Cow;
use std::io::IsTerminal as _;

use anyhow::Context as _;
use baton_terminal::{KeyInput, clean};
use rustyline::completion::Completer;
use rustyline::config::BellStyle;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, ColorMode, Config, Helper};
use tokio::sync::mpsc;

const PROMPT: &str = "> ";
/// Terminals that cannot move a cursor.
const PLAIN_TERMINALS: [&str; 3] = ["dumb", "cons25", "emacs"];

/// What is shown of a line.
struct Filter;

impl Highlighter for Filter {
    fn highlight<'l>(&self, line: &'l str, _pos: usize) -> Cow<'l, str> {
        clean(line)
    }
}

impl Completer for Filter {
    type Candidate = String;
}

impl Hinter for Filter {
    type Hint = String;
}

impl Validator for Filter {}

impl Helper for Filter {}

/// Lines of a terminal.
#[derive(Debug)]
pub(super) struct Editor {
    wanted: std::sync::mpsc::Sender<()>,
    typed: mpsc::Receiver<Result<String, ReadlineError>>,
    _keys: KeyInput,
}

impl Editor {
    /// Whether a person can edit lines here: standard input is a terminal that can move its cursor.
    pub(super) fn is_possible() -> bool {
        let plain = |term: &str| PLAIN_TERMINALS.iter().any(|plain| plain.eq_ignore_ascii_case(term));
        std::io::stdin().is_terminal() && !std::env::var("TERM").is_ok_and(|term| plain(&term))
    }

    /// Starts. `earlier` are the lines that the arrow up brings back, the oldest first.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub(super) fn start<'a>(earlier: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        // The prompt is not part of a file that the answers are written to.
        let behavior = if std::io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder()
            .behavior(behavior)
            .bell_style(BellStyle::None)
            // The filter is a highlighter, which is used only with colours.
            .color_mode(ColorMode::Forced)
            // Asked for by `KeyInput`, also while an answer is written.
            .bracketed_paste(false)
            .auto_add_history(true)
            .build();
        let history = MemHistory::with_config(&config);
        let mut editor = rustyline::Editor::<Filter, MemHistory>::with_history(config, history)
            .context("use the terminal")?;
        editor.set_helper(Some(Filter));
        for line in earlier {
            editor.add_history_entry(line)?;
        }
        let keys = KeyInput::begin().context("use the terminal")?;
        let (wanted, wants) = std::sync::mpsc::channel();
        let (sender, typed) = mpsc::channel(1);
        std::thread::Builder::new().name("editor".into()).spawn(move || {
            for () in wants {
                if sender.blocking_send(editor.readline(PROMPT)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { wanted, typed, _keys: keys })
    }

    /// Shows the prompt and returns the line that is typed. Its errors say also that Ctrl-C or Ctrl-D was
    /// pressed. `None` if the thread has ended. If the future is dropped, the line is lost.
    pub(super) async fn next(&mut self) -> Option<Result<String, ReadlineError>> {
        self.wanted.send(()).ok()?;
        self.typed.recv().await
    }
}
