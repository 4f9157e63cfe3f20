//! All writing of the programs to standard output and standard error.
//!
//! Text from a model, from the network or from a file name must not control a terminal. If the stream is a
//! terminal, every control character except newline and tab is shown as a symbol ([`clean()`]). Files and
//! pipes get the text unchanged. Panic messages go through the same filter ([`filter_panics()`]).
//!
//! If the reader has closed standard output, writing returns an error that [`is_closed`] recognizes, and
//! never panics. `main` then ends silently with [`CLOSED_STATUS`]. Nothing else in the programs writes to
//! these streams.

mod chain;
mod clean;
mod console;
mod keys;
mod panics;
mod size;

pub use chain::chain;
pub use clean::clean;
pub use keys::KeyInput;
pub use panics::filter_panics;
pub use size::size;

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use console::Console;

/// Exit status of a program whose reader has closed the pipe: what a shell reports for one ended by SIGPIPE.
pub const CLOSED_STATUS: u8 = 141;

static CONSOLE: LazyLock<Mutex<Console>> = LazyLock::new(|| {
    // A console of Windows obeys the sequence that erases the progress line only after this call.
    #[cfg(windows)]
    let _refused = anstyle_query::windows::enable_ansi_colors();
    Mutex::new(Console::new(io::stdout().is_terminal(), io::stderr().is_terminal()))
});

fn console() -> MutexGuard<'static, Console> {
    CONSOLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reader of standard output has closed it.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of standard output has gone")
    }
}

impl Error for Closed {}

/// Whether `err` was caused by a closed standard output, for example by the end of `| head`.
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

/// Standard output through the filter. A closed pipe is an error that [`is_closed`] recognizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdout;

/// Standard error through the filter. Callers may ignore its errors: there is nowhere left to report them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stderr;

/// Returns standard output.
pub fn stdout() -> Stdout {
    Stdout
}

/// Returns standard error.
pub fn stderr() -> Stderr {
    Stderr
}

/// Marks the error of a closed pipe, to tell it from errors of sockets and files.
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

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    console().err_is_terminal()
}

/// Shows `text` as the progress line, replacing the previous one. It is removed before anything else is
/// written. Does nothing if standard error is not a terminal or standard output is inside a line there.
pub fn status(text: &str) {
    let shown = console().status(text, columns());
    // A failure to show progress must not stop the program.
    let _unseen = io::stderr().write_all(&shown);
}

/// Returns the width of the terminal of standard error; 80 if it is not known.
fn columns() -> usize {
    #[cfg(unix)]
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col));
    #[cfg(not(unix))]
    let size = None;
    size.filter(|&columns| columns > 0).unwrap_or(80)
}

/// Removes the progress line.
pub fn clear_status() {
    let shown = console().clear_status();
    let _unseen = io::stderr().write_all(&shown);
}

/// Moves a terminal to a fresh line before the program ends at once, and gives its keys back as they were.
/// Does not wait for locks: a reader that does not read may block the thread that holds them.
pub fn leave() {
    keys::restore();
    if let Ok(mut console) = CONSOLE.try_lock() {
        let shown = console.err_is_terminal().then(|| [console.clear_status().as_slice(), b"\n"].concat());
        let _unseen = io::stderr().write_all(&shown.unwrap_or_default());
    }
}

/// Writes text on standard output, as [`out!`](crate::out) does.
///
/// # Errors
/// An error of standard output; [`is_closed`] says whether its reader has closed it.
pub fn write_out(text: fmt::Arguments<'_>) -> io::Result<()> {
    stdout().write_all(text.to_string().as_bytes())
}

/// Writes text on standard error, as [`err!`](crate::err) does.
pub fn write_err(text: fmt::Arguments<'_>) {
    // There is nowhere left to report this error.
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
        // A broken socket is an ordinary error.
        assert!(!is_closed(&Above(pipe())));
        assert!(!is_closed(&marked(io::Error::from(io::ErrorKind::StorageFull))));
    }
}
