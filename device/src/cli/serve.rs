//! `baton serve`: serves the APIs of OpenAI, Anthropic and Ollama on this machine.

use super::CommonArgs;
use super::interrupts::{Interrupts, Watch};
use super::managed;
use super::open::{Use, open, opened, scene_of};
use super::values::{KeepAlive, address, keep_alive, share, whole};
use crate::api::{
    ANSWERS_MAX, ApiState, Bodies, ModelStore, ServedModel, check_address, listening_host, router,
    served_host,
};
use crate::fleet::{Load, PairFiles, PairLease};
use crate::machine::power::Power;
use crate::models::Store;
use crate::settings::Settings;
use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::Request;
use baton_edge::{HttpLimits, Phase, Server};
use baton_pacing::PaceMode;
use baton_terminal::{errln, outln};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;
use tracing::{debug, info};

/// Limits of connections. All clients on this machine have the same address.
const LIMITS: HttpLimits = HttpLimits {
    connections_max: 2048,
    connections_per_ip: 2048,
    requests_per_connection: 1_000_000,
    header_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(75),
    handshake_timeout: Duration::from_secs(10),
    write_timeout: Duration::from_secs(30),
    // How long running answers may continue after Ctrl-C.
    drain_timeout: Duration::from_secs(5),
};

/// The shortest and the longest time between two looks whether the model may be unloaded.
const LOOK: Duration = Duration::from_millis(500);
const SHORT_LOOK: Duration = Duration::from_secs(10);
/// If memory is short, the model is unloaded when nothing was asked for this long.
const SHORT_AFTER: Duration = Duration::from_secs(10);
/// A turn is audited when nothing was asked for this long.
const AUDIT_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8017", value_name = "HOST:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Key that clients must send; required to listen on other than loopback addresses. Without a key every
    /// user of this machine may ask. Other users can see command lines, but not the environment
    #[arg(long, env = "BATON_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,
    /// Key of programs that must stay on this device: the cloud is never asked for their requests (may be
    /// given several times)
    #[arg(long, env = "BATON_DEVICE_KEY", value_name = "KEY", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new(), hide_env_values = true)]
    device_key: Vec<String>,
    /// Another host name to accept, besides localhost and the listening address: a name or IP address without
    /// a port (may be given several times)
    #[arg(long, value_name = "HOST", value_parser = served_host)]
    host: Vec<String>,
    /// Scene of all questions
    #[arg(long, default_value = "chat")]
    scene: String,
    /// Send text at an even pace for readers, not as soon as it comes
    #[arg(long)]
    pace: bool,
    /// Answers that this device computes at the same time, 1 to 16; more wait. They share the memory of
    /// --kv-tokens
    #[arg(long, env = "BATON_ANSWERS", allow_negative_numbers = true, default_value_t = 4, value_name = "N", value_parser = whole::<usize>(1, ANSWERS_MAX as u64))]
    answers: usize,
    /// How long the model stays in memory after the last answer: a time like 90s, 10m or 2h, or always
    ///
    /// The next question loads it again, and what it had read comes back from the disk (see --prefix-memory).
    #[arg(long, env = "BATON_KEEP_ALIVE", default_value = "10m", value_name = "TIME", value_parser = keep_alive)]
    keep_alive: KeepAlive,
    /// Leave ids and times in system prompts as clients send them
    ///
    /// Otherwise ids get a fixed value, and times are rounded down to the hour, so that what follows them
    /// need not be read again for each request. The reply's header x-baton-steadied-lines says how many
    /// lines changed.
    #[arg(long)]
    system_as_sent: bool,
    /// Do not read conversations behind answers of the relay
    ///
    /// Otherwise this device reads them while nothing is asked, so that their next turns need no cloud. It
    /// rests on a battery.
    #[arg(long)]
    no_read_ahead: bool,
    /// Share of the turns, 0 to 1, whose route is audited
    ///
    /// While nothing is asked, such a turn is answered again by the routes that were not chosen, and the
    /// times are compared; nobody sees these answers. `baton trace` shows them. An audit asks the cloud up to
    /// twice more, also for a turn that this device answered alone.
    #[arg(long, env = "BATON_AUDIT", default_value_t = 0.0, value_name = "SHARE", allow_negative_numbers = true, value_parser = share, hide_short_help = true)]
    audit: f64,
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) async fn run(args: ServeArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    check_address(args.listen, args.key.as_deref())
        .map_err(|err| anyhow!("{err}; pass --key or set BATON_KEY"))?;
    let used = Use {
        answers: args.answers,
        relays: false,
        reads_ahead: !args.no_read_ahead,
        asked_by: Some("baton serve"),
        audits: args.audit,
        replaces: true,
    };
    let opened = open(&args.common, &used, interrupts).await?;
    let (scene, note) = scene_of(&opened, &args.scene).await?;
    if let Some(note) = note {
        errln!("note: {note}");
    }
    let listener = baton_edge::listen(args.listen).with_context(|| format!("listen on {}", args.listen))?;
    let address = listener.local_addr().context("read the bound address")?;
    let mut hosts = args.host;
    hosts.extend(listening_host(address));
    let state = ApiState {
        agent: opened.agent,
        scene,
        mode: opened.mode,
        pace: if args.pace { PaceMode::Paced } else { PaceMode::Instant },
        steadies: !args.system_as_sent,
        model_name: "baton".to_owned(),
        key: args.key.filter(|key| !key.is_empty()),
        device_keys: args.device_key,
        ring: opened.ring,
        hosts,
        places: Arc::new(Semaphore::new(ANSWERS_MAX)),
        bodies: Bodies::default(),
        served: ServedModel::default(),
        models: ModelStore::new(Store::open(args.common.models_dir.clone()).ok()),
    };
    let audits = args.audit > 0.0 && state.ring.is_none();
    if args.audit > 0.0 && !audits {
        errln!(
            "note: routes are not audited, because a ring cannot forget what it has read for another route"
        );
    }
    let current = Current::new(state);
    outln!("listening on http://{address}")?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let places = current.state().places.clone();
    let stopping = tokio::spawn(stop_on_signal(interrupts.watch(), phase, places));
    let unloading = tokio::spawn(unload_when_idle(current.clone(), args.keep_alive));
    let auditing = audits.then(|| tokio::spawn(audit_when_idle(current.clone())));
    let app = current.app();
    let last = current.clone();
    let replacing = opened.managed.map(|managed| {
        let lease = managed.lease();
        let replace = Replace { common: args.common, used, settings: opened.settings, lease, current };
        tokio::spawn(managed.run(replace))
    });
    let server = Server::plain(listener, app, LIMITS.within_open_files());
    baton_edge::serve(server, phases, || ()).await;
    for task in [Some(stopping), Some(unloading), auditing, replacing].into_iter().flatten() {
        task.abort();
    }
    // Agents that were replaced share its client.
    last.state().agent.flush().await;
    Ok(())
}

/// What requests are answered with now. It is replaced as a whole; requests under way end with what they
/// began with.
#[derive(Debug, Clone)]
struct Current(Arc<ArcSwap<(Arc<ApiState>, Router)>>);

impl Current {
    fn new(state: ApiState) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Self::routed(state))))
    }

    fn routed(state: ApiState) -> (Arc<ApiState>, Router) {
        let state = Arc::new(state);
        (Arc::clone(&state), router(state))
    }

    fn state(&self) -> Arc<ApiState> {
        Arc::clone(&self.0.load().0)
    }

    fn replace(&self, state: ApiState) {
        self.0.store(Arc::new(Self::routed(state)));
    }

    /// Returns the routes, which answer with what is current when a request comes.
    fn app(&self) -> Router {
        let current = self.clone();
        Router::new().fallback_service(tower::service_fn(move |request: Request| {
            let router = current.0.load().1.clone();
            async move { router.oneshot(request).await }
        }))
    }
}

/// Answers with newer models once they load.
struct Replace {
    common: CommonArgs,
    used: Use,
    settings: Settings,
    lease: PairLease,
    current: Current,
}

impl Load for Replace {
    async fn load(&mut self, files: PairFiles) -> anyhow::Result<()> {
        let before = self.current.state();
        let cloud = before.agent.cloud().cloned();
        let (settings, lease) = (self.settings.clone(), Some(self.lease.clone()));
        let new = opened(&self.common, &self.used, (settings, cloud), managed::files(files), lease).await?;
        self.current.replace(ApiState {
            agent: new.agent,
            scene: before.scene.clone(),
            mode: new.mode,
            pace: before.pace,
            steadies: before.steadies,
            model_name: before.model_name.clone(),
            key: before.key.clone(),
            device_keys: before.device_keys.clone(),
            ring: new.ring,
            hosts: before.hosts.clone(),
            places: before.places.clone(),
            bodies: before.bodies.clone(),
            served: ServedModel::default(),
            models: before.models.clone(),
        });
        Ok(())
    }
}

/// Frees the model's memory whenever nothing was asked for a while; sooner if programs wait for memory.
async fn unload_when_idle(current: Current, keep: KeepAlive) {
    let KeepAlive::For(keep) = keep else { return };
    loop {
        let state = current.state();
        let left = keep.saturating_sub(state.agent.idle_for());
        tokio::time::sleep(left.clamp(LOOK, SHORT_LOOK)).await;
        let idle = state.agent.idle_for();
        let is_short = || idle >= SHORT_AFTER && Power::read(Path::new("/")).memory_short == Some(true);
        if (idle >= keep || is_short()) && state.agent.unload().await {
            let why = if idle >= keep { "nothing was asked" } else { "memory is short, nothing was asked" };
            info!("the model was unloaded: {why} for {} s", idle.as_secs());
        }
    }
}

/// Audits turns while nothing is asked.
async fn audit_when_idle(current: Current) {
    loop {
        tokio::time::sleep(LOOK).await;
        let agent = &current.state().agent;
        if agent.idle_for() < AUDIT_AFTER {
            continue;
        }
        if let Some(audit) = agent.audit().await {
            debug!(tokens = audit.tokens, regret = audit.regret, "audited the route of a turn");
        }
    }
}

/// Waits for the first signal, then lets running answers finish; a second one ends the program.
async fn stop_on_signal(mut signals: Watch, phase: watch::Sender<Phase>, places: Arc<Semaphore>) {
    signals.signal().await;
    // From here on, new answers are refused.
    places.close();
    phase.send_replace(Phase::Draining);
    // The sender must live until the program ends: if it were dropped, the server would take it for the last
    // phase.
    std::future::pending::<()>().await;
}
