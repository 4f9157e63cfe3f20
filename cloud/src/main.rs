//! The `baton-cloud` program: parses the command line and runs the command.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match baton_cloud::cli::run(std::env::args_os().collect()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    }
}
