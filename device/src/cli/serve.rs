//! `baton serve`: the OpenAI chat API on this machine.

use super::CommonArgs;
use super::interrupts::Interrupts;
use super::open::{open, scene_of};
use crate::api::{ANSWERS_MAX, ApiState, check_address, router};
use anyhow::Context;
use baton_pacing::PaceMode;
use baton_terminal::{errln, outln};
use clap::Args;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// How long running answers may go on after Ctrl-C.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8017", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Key that clients must send; needed to listen off loopback
    #[arg(long, env = "BATON_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,
    /// Further host name that is served (may be given several times)
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Scene of every question
    #[arg(long, default_value = "chat")]
    scene: String,
    /// Even pace, for people, instead of text as it comes
    #[arg(long)]
    pace: bool,
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) async fn run(args: ServeArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    check_address(args.listen, args.key.as_deref())?;
    let opened = open(&args.common).await?;
    let (scene, note) = scene_of(&opened, &args.scene).await?;
    if let Some(note) = note {
        errln!("note: {note}");
    }
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("listen on {}", args.listen))?;
    let address = listener.local_addr().context("read the bound address")?;
    let mut hosts = args.host.clone();
    if !address.ip().is_loopback() {
        hosts.push(address.ip().to_string());
    }
    let state = Arc::new(ApiState {
        agent: opened.agent,
        scene,
        mode: opened.mode,
        pace: if args.pace { PaceMode::Paced } else { PaceMode::Instant },
        model_name: "baton".to_owned(),
        key: args.key.filter(|key| !key.is_empty()),
        ring: opened.ring,
        hosts,
        places: Arc::new(Semaphore::new(ANSWERS_MAX)),
    });
    outln!("listening on http://{address}")?;
    let mut watch = interrupts.watch();
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, router(state)).with_graceful_shutdown(async move {
        watch.signal().await;
        // The other side is gone only when the server has ended already.
        let _ended = stopping.send(());
    });
    let drained = async {
        if stopped.await.is_ok() {
            tokio::time::sleep(DRAIN).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        served = async { server.await } => served.context("serve"),
        () = drained => Ok(()),
    }
}
