//! What the programs write on standard output and standard error.
//!
//! Text that a model wrote, that came from the network or that names a file must not steer a terminal. If the stream is
//! a terminal, every control character but newline and tab is shown as a symbol ([`clean()`]); files and pipes get text as
//! it is. What a panic says goes the same way ([`filter_panics()`]). A reader that has gone is an error that [`is_closed`]
//! knows, never a panic: `main` then ends without a word, with [`CLOSED_STATUS`]. Nothing else in the programs writes on
//! these streams.

mod chain;
mod clean;
mod console;
mod panics;

pub use chain::chain;
pub use clean::clean;
pub use panics::filter_panics;

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use console::Console;

/// Exit status of a program whose reader has gone: what a shell shows of one that SIGPIPE ended.
pub const CLOSED_STATUS: u8 = 141;

static CONSOLE: LazyLock<Mutex<Console>> =
    LazyLock::new(|| Mutex::new(Console::new(io::stdout().is_terminal(), io::stderr().is_terminal())));

fn console() -> MutexGuard<'static, Console> {
    CONSOLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever read standard output has gone.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of standard output has gone")
    }
}

impl Error for Closed {}

/// Whether `err` comes of a reader of standard output that has gone, as the end of a pipe like `| head` does.
pub fn is_closed(err: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(err);
    while let Some(err) = cause {
        let inner = err.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if inner.is_some_and(|inner| inner.is::<Closed>()) {
            return true;
        }
        cause = err.source();
    }
    false
}

/// Standard output, through the filter. A closed pipe is an error that [`is_closed`] knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdout;

/// Standard error, through the filter. To report that it takes nothing, there would be nobody: callers may ignore errors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stderr;

/// Standard output.
pub fn stdout() -> Stdout {
    Stdout
}

/// Standard error.
pub fn stderr() -> Stderr {
    Stderr
}

/// Marks a closed pipe, so that it is told from those of sockets and files.
fn marked(err: io::Error) -> io::Error {
    if err.kind() == io::ErrorKind::BrokenPipe { io::Error::new(err.kind(), Closed) } else { err }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut console = console();
        let shown = console.out(bytes);
        let mut out = io::stdout().lock();
        out.write_all(&shown).map_err(marked)?;
        if console.out_is_terminal() {
            out.flush().map_err(marked)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(marked)
    }
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let shown = console().err(bytes);
        io::stderr().write_all(&shown)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Whether a person reads standard error on a terminal.
pub fn stderr_is_terminal() -> bool {
    console().err_is_terminal()
}

/// Shows `text` as the line of progress, in place of the one before; it is gone before anything else is written.
/// Does nothing if standard error is no terminal, or if a line of standard output is under way there.
pub fn status(text: &str) {
    let shown = console().status(text);
    // Progress that cannot be shown is no reason to stop.
    let _unseen = io::stderr().write_all(&shown);
}

/// Takes the line of progress away.
pub fn clear_status() {
    let shown = console().clear_status();
    let _unseen = io::stderr().write_all(&shown);
}

/// Leaves a terminal on a fresh line before the program ends at once. Waits for nobody: a reader that stands still may
/// hold the streams.
pub fn leave() {
    if let Ok(mut console) = CONSOLE.try_lock() {
        let shown = console.err_is_terminal().then(|| [console.clear_status().as_slice(), b"\n"].concat());
        let _unseen = io::stderr().write_all(&shown.unwrap_or_default());
    }
}

/// Writes text on standard output, as [`out!`](crate::out) does.
///
/// # Errors
/// Standard output takes nothing: [`is_closed`] says whether its reader has gone.
pub fn write_out(text: fmt::Arguments<'_>) -> io::Result<()> {
    stdout().write_all(text.to_string().as_bytes())
}

/// Writes text on standard error, as [`err!`](crate::err) does.
pub fn write_err(text: fmt::Arguments<'_>) {
    // Who cannot be told anything cannot be told that either.
    let _untold = stderr().write_all(text.to_string().as_bytes());
}

/// `print!` through the filter; returns an [`io::Result`] in place of a panic.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::write_out(::std::format_args!($($text)*)) };
}

/// `println!` through the filter; returns an [`io::Result`] in place of a panic.
#[macro_export]
macro_rules! outln {
    () => { $crate::write_out(::std::format_args!("\n")) };
    ($($text:tt)*) => { $crate::write_out(::std::format_args!("{}\n", ::std::format_args!($($text)*))) };
}

/// `eprint!` through the filter; never fails.
#[macro_export]
macro_rules! err {
    ($($text:tt)*) => { $crate::write_err(::std::format_args!($($text)*)) };
}

/// `eprintln!` through the filter; never fails.
#[macro_export]
macro_rules! errln {
    () => { $crate::write_err(::std::format_args!("\n")) };
    ($($text:tt)*) => { $crate::write_err(::std::format_args!("{}\n", ::std::format_args!($($text)*))) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Above(io::Error);

    impl fmt::Display for Above {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("write the answer")
        }
    }

    impl Error for Above {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn only_a_closed_standard_output_is_known_as_one() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed(&marked(pipe())));
        assert!(is_closed(&Above(marked(pipe()))));
        // A socket that breaks is an error like any other.
        assert!(!is_closed(&Above(pipe())));
        assert!(!is_closed(&marked(io::Error::from(io::ErrorKind::StorageFull))));
    }
}
