//! The `baton` program: parses the command line, sets up logging, runs the command.

use baton_device::cli::{Cli, Stopped};
use baton_device::documents::confined;
use baton_terminal::{CLOSED_STATUS, chain, errln, is_closed};
use std::io::Write as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    if let Some(status) = confined::run_if_asked(std::env::args_os()) {
        return status;
    }
    baton_terminal::filter_panics();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(status) => return status.into(),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // No colours, because the terminal filter would show the log's own escape sequences as text.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(baton_terminal::stderr);
    log.with_ansi(false).with_target(false).init();
    let ended = match tokio::runtime::Runtime::new() {
        Ok(runtime) => cli.run(&runtime),
        Err(err) => Err(anyhow::Error::new(err).context("start the runtime's threads")),
    };
    let Err(err) = ended.and_then(|()| Ok(baton_terminal::stdout().flush()?)) else {
        return ExitCode::SUCCESS;
    };
    if let Some(Stopped(signal)) = err.downcast_ref::<Stopped>() {
        return signal.status().into();
    }
    if is_closed(err.as_ref()) {
        return CLOSED_STATUS.into();
    }
    errln!("error: {}", chain(err.as_ref()));
    ExitCode::FAILURE
}
