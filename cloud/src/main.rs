//! `baton-cloud`: see `baton-cloud --help`.

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    baton_cloud::cli::run(baton_cloud::cli::Cli::parse()).await
}
