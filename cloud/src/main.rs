//! The `baton-cloud` program: parses the command line and runs the command.

use std::process::ExitCode;

use baton_cloud::cli::is_usage;
use baton_terminal::{CLOSED_STATUS, chain, errln, is_closed};

/// How much nicer than the engine's threads those are that serve HTTP: a flood of requests must not take the CPUs from
/// prompts that are being computed.
#[cfg(target_os = "linux")]
const HTTP_NICENESS: i32 = 5;

/// Exit status if the command line is wrong: that of its parser.
const USAGE_STATUS: u8 = 2;

fn main() -> ExitCode {
    baton_terminal::filter_panics();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().on_thread_start(step_back);
    let ended = match runtime.build() {
        Ok(runtime) => baton_cloud::cli::run(&runtime, std::env::args_os().collect()),
        Err(err) => Err(anyhow::Error::new(err).context("start the runtime's threads")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) if is_closed(err.as_ref()) => ExitCode::from(CLOSED_STATUS),
        Err(err) => {
            errln!("error: {}", chain(err.as_ref()));
            if is_usage(&err) { ExitCode::from(USAGE_STATUS) } else { ExitCode::FAILURE }
        }
    }
}

/// Lowers the priority of this thread; the engine's are started by the main thread, which keeps its own. Elsewhere than
/// on Linux it would be that of the whole process.
fn step_back() {
    #[cfg(target_os = "linux")]
    {
        // One more thing that a system may refuse; the service works without.
        let _ = rustix::process::nice(HTTP_NICENESS);
    }
}
