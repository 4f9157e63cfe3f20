//! Panic messages on standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::TryLockError;

use crate::console::Console;
use crate::{CONSOLE, clean};

/// Installs a panic hook that sends the message through the filter, since it may hold text from outside.
///
/// `RUST_BACKTRACE` still adds a backtrace, and the panic still unwinds. Call it first in `main`. The hook
/// never panics and never waits for another thread that writes through the filter.
pub fn filter_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let said = message(thread.name(), info, &Backtrace::capture());
        let terminal = io::stderr().is_terminal();
        // The thread that panics may hold the console. Then only the filter is used.
        let shown = match CONSOLE.try_lock() {
            Ok(mut console) => shown(Some(&mut *console), terminal, &said),
            Err(TryLockError::Poisoned(err)) => shown(Some(&mut *err.into_inner()), terminal, &said),
            Err(TryLockError::WouldBlock) => shown(None, terminal, &said),
        };
        // There is nowhere left to report this error.
        let _untold = io::stderr().write_all(&shown);
    }));
}

/// Returns the message in the form that Rust gives it.
fn message(thread: Option<&str>, info: &dyn fmt::Display, backtrace: &Backtrace) -> String {
    let thread = thread.unwrap_or("<unnamed>");
    let place = match backtrace.status() {
        BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}"),
        _ => "note: run with `RUST_BACKTRACE=1` to see where it happened".to_owned(),
    };
    format!("thread '{thread}' {info}\n{place}\n")
}

/// Returns the bytes to write on standard error. The console, if free, knows where lines begin; else the
/// message gets a fresh line.
fn shown(console: Option<&mut Console>, terminal: bool, said: &str) -> Vec<u8> {
    match console {
        Some(console) => console.err(said.as_bytes()),
        None if terminal => format!("\n{}", clean(said)).into_bytes(),
        None => said.as_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_panic_does_not_steer_a_terminal() {
        let info = "panicked at src/lib.rs:1:1:\nbad reply: \x1b]0;owned\x07 \u{202e}x";
        let said = message(Some("main"), &info, &Backtrace::disabled());
        assert!(said.starts_with("thread 'main' panicked at src/lib.rs:1:1:\nbad reply: "), "{said:?}");
        assert!(said.contains("RUST_BACKTRACE=1"), "{said:?}");
        let mut console = Console::new(true, true);
        console.out(b"half of a line");
        for bytes in [shown(Some(&mut console), true, &said), shown(None, true, &said)] {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.starts_with("\nthread 'main'"), "on a line of its own: {text:?}");
            assert!(text.contains("␛]0;owned␇ \u{fffd}x"), "{text:?}");
            assert!(!text.contains(['\x1b', '\x07', '\u{202e}']), "{text:?}");
        }
        // Files and pipes get it unchanged.
        assert_eq!(shown(None, false, &said), said.as_bytes());
        assert_eq!(shown(Some(&mut Console::new(false, false)), false, &said), said.as_bytes());
    }

    #[test]
    fn a_captured_backtrace_is_shown() {
        let said = message(None, &"panicked", &Backtrace::force_capture());
        assert!(said.starts_with("thread '<unnamed>' panicked\nstack backtrace:\n"), "{said:?}");
    }
}
