//! How a command ends, and what it prints.

use std::{
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
};

/// The exit status of a program that writes to a pipe that nobody reads: 128 and the number of SIGPIPE.
const NOBODY_READS: i32 = 141;

/// What a step gives, or why the command stops.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Why the command stops.
#[derive(Debug)]
pub(crate) struct Stop {
    status: u8,
    /// What is said; empty if that has been said already.
    why: String,
}

impl Stop {
    /// Something went wrong: status 1.
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self { status: 1, why: why.into() }
    }

    /// The command line cannot be understood: status 2.
    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self { status: 2, why: why.into() }
    }

    /// The reason has been printed already, for example by a program that ended with this status.
    pub(crate) fn silent(status: u8) -> Self {
        Self { status, why: String::new() }
    }

    /// Says why, if that was not said yet, and returns the exit status.
    pub(crate) fn exit_code(&self) -> ExitCode {
        self.explain();
        ExitCode::from(self.status)
    }

    /// Says why, if that was not said yet.
    pub(crate) fn explain(&self) {
        if !self.why.is_empty() {
            say(self.why.trim_end());
        }
    }
}

/// Prints a line on standard output. If nobody reads it any more, the program ends, as others do.
pub(crate) fn out(line: impl Display) {
    let mut stdout = io::stdout().lock();
    if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
        std::process::exit(NOBODY_READS);
    }
}

/// Prints a line on standard error.
pub(crate) fn say(line: impl Display) {
    // If standard error is closed, there is no place left to complain.
    let _ = writeln!(io::stderr(), "{line}");
}
