//! The `baton-cloud` program: parses the command line and runs the command.

use std::process::ExitCode;

use baton_cloud::cli::is_usage;
use baton_terminal::{CLOSED_STATUS, chain, errln, is_closed};

/// Niceness of the threads that serve HTTP, above that of the engine's threads. A flood of requests must not
/// take the CPUs from prompts that are being computed.
#[cfg(target_os = "linux")]
const HTTP_NICENESS: i32 = 5;

/// Exit status if the command line is wrong, the same as the parser's.
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

/// Lowers the priority of this thread. The main thread starts the engine's threads and keeps its own
/// priority. On systems other than Linux, it would be the priority of the whole process.
fn step_back() {
    #[cfg(target_os = "linux")]
    {
        // A system may refuse this; the service works without it.
        let _ = rustix::process::nice(HTTP_NICENESS);
    }
}
