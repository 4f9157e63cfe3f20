//! `serve`: opens models and database, listens, and runs until it is told to stop.

pub mod metrics;
pub mod pages;
pub mod upkeep;

mod console;
mod gpu;
mod models;
mod registry;
mod reload;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use baton_edge::Phase;
use baton_edge::tls::Tls;
use baton_openai::ChatMessage;
use baton_protocol::Role;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use self::console::Console;
use crate::access::AccessBook;
use crate::api::{self, Access};
use crate::config::Config;
use crate::gate::Gate;
use crate::http::own::only_own;
use crate::learn::coefficients::Coefficients;
use crate::observe::trace::Traces;
use crate::scene::book::SceneBook;
use crate::serve::reload::Reload;
use crate::serve::upkeep::Upkeep;
use crate::service::completion::CompletionRequest;
use crate::service::{CloudService, ServiceOptions};
use crate::store::{Snapshot, Store, now_ms};
use baton_generate::clock::Clock;

/// Time to send the last spans at the end.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or Ctrl-C. Prints the bound address as its one line on standard output.
///
/// The first signal begins to drain ([`baton_edge::Phase`]); a second one stops at once. `again` reads the
/// settings again, for SIGHUP and for a file that has changed.
///
/// # Errors
/// Fails if anything keeps it from listening: model, calibration, database, address.
pub async fn serve(
    config: Config,
    json: bool,
    again: impl Fn() -> anyhow::Result<Config> + Send + 'static,
) -> anyhow::Result<()> {
    let tls = config.edge.tls.clone().map(Tls::open).transpose().context("set TLS up")?.map(Arc::new);
    let mut opened = models::open(&config)?;
    if let Some(they_could) = config.database.exposure() {
        warn!(they_could, "who is on the way to the database is not kept out: pass sslmode=verify-full");
    }
    let store = Store::open(&config.database).await?;
    let settings = store.snapshot().await.context("read settings")?;
    let generation = settings.generation;
    let coefficients = store.coefficients().await.context("read coefficients")?;
    if let Some(cost) = &config.emulation {
        warn!(?cost, "EMULATION: every pass is stretched to the time another machine would need");
    }
    let (traces, spans) = Traces::start_where(config.otlp_endpoint.as_deref()).context("set tracing up")?;
    let options = options(&config, coefficients, traces);
    let curves = opened.curves.take();
    let (facts, loader) = opened.facts(&config, &options)?;
    let budget = config.models_memory;
    let made = CloudService::managed(facts, SceneBook::default(), options, budget, Box::new(loader));
    let service = made.context("set the models up")?;
    let access = access(&config, &service);
    let upkeep = upkeep(&store, &service, &access, settings).await?;
    models::load_first(&config, &service).await.context("set the engine up")?;
    let listener =
        baton_edge::listen(config.listen).with_context(|| format!("listen on {}", config.listen))?;
    let address = listener.local_addr().context("read the bound address")?;
    let (metrics_address, scrapes) = metrics::listen(config.metrics_listen, &service)
        .await
        .context("listen for Prometheus")?
        .map_or((None, None), |(address, task)| (Some(address), Some(task)));
    let console = Console::open(&config, &service, &store, curves).await?;
    let signals = Signals::listen()?;
    let hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let fleet = registry::watch(config.registry.as_ref(), service.fleet().clone(), store.clone()).await?;
    warm_up(&service).await;
    let constraints = service.clone();
    let constraints = tokio::task::spawn_blocking(move || constraints.prepare_constraints());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let told = Told { url: format!("{scheme}://{address}"), metrics_address, console: console.url(scheme)? };
    announce(&told, &service.model_names(), json).context("print the address")?;

    let upkeep = upkeep.start(generation);
    let book = access.book.clone();
    let app = api::router(service.clone(), access, Some(store.clone()), config.edge.api);
    let app = app.merge(pages::routes(&api::description(), config.admin.listen.is_none()));
    let limits = Arc::new(ArcSwap::from_pointee(config.edge.http.within_open_files()));
    let (phase, phases) = watch::channel(Phase::Serving);
    let own = |app| only_own(app, config.edge.hosts.clone(), book.clone());
    let (app, console) = console.serve(app, &own, &limits, tls.as_ref(), &phases);
    let server = baton_edge::Server { listener, app: own(app), limits: limits.clone(), tls: tls.clone() };
    let reload = Reload { config, again, service: service.clone(), limits, tls };
    let reload = tokio::spawn(reload.run(hangup));
    let signals = tokio::spawn(signals.steer(phase, service.clone()));
    baton_edge::serve(server, phases, || service.stop()).await;

    let _ = constraints.await;
    console.end().await;
    for task in [reload, signals, fleet].into_iter().chain(scrapes) {
        task.abort();
        let _ = task.await;
    }
    upkeep.stop().await;
    store.close().await;
    join(service).await?;
    if let Some(spans) = spans {
        // The last spans are being sent.
        let _ = tokio::time::timeout(TRACES_TIMEOUT, spans).await;
    }
    info!("stopped");
    Ok(())
}

/// Makes the access rules from the configuration; keys and tenants come with the settings.
fn access(config: &Config, service: &CloudService) -> Access {
    let book = AccessBook::new(config.keys, config.api_key.as_deref());
    Access { book, gate: Gate::new(service.clock(), now_ms) }
}

/// Applies the settings, and reads what tenants have used so far, so that a restart does not reset a daily
/// quota.
async fn upkeep(
    store: &Store,
    service: &CloudService,
    access: &Access,
    settings: Snapshot,
) -> anyhow::Result<Upkeep> {
    let upkeep = Upkeep {
        store: store.clone(),
        service: service.clone(),
        book: access.book.clone(),
        gate: access.gate.clone(),
    };
    upkeep.apply(settings);
    upkeep.learn_usage().await.context("read usage")?;
    if let Err(err) = upkeep.keep_experiments().await {
        warn!(err = &err as &dyn std::error::Error, "answers get no feedback yet");
    }
    Ok(upkeep)
}

fn options(config: &Config, coefficients: Coefficients, traces: Option<Traces>) -> ServiceOptions {
    ServiceOptions {
        threads: config.threads,
        kv_tokens: config.kv_tokens,
        kv: config.kv,
        slots: config.slots,
        queue: config.queue,
        backlog: config.backlog,
        deadline: config.deadline,
        budget: config.budget,
        prefix_cache_percent: config.prefix_cache_percent,
        emulation: config.emulation,
        speculation: config.speculation.clone(),
        coefficients,
        clock: Clock::monotonic(),
        metrics: Arc::default(),
        traces,
        upstream: config.upstream.clone(),
        fleet: registry::fleet(config.registry.as_ref()),
    }
}

/// The signals that end the program.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }

    /// The first signal begins to drain, the second one stops.
    async fn steer(mut self, phase: watch::Sender<Phase>, service: CloudService) {
        self.next().await;
        // The service refuses new requests before the server begins to wait for running replies.
        service.drain();
        phase.send_replace(Phase::Draining);
        self.next().await;
        phase.send_replace(Phase::Ending);
        // The sender must live until the program ends: dropping it would mean the last phase.
        std::future::pending::<()>().await;
    }
}

/// Waits until the engines' threads have ended.
async fn join(service: CloudService) -> anyhow::Result<()> {
    let joined = tokio::task::spawn_blocking(move || service.join()).await;
    if !matches!(joined, Ok(true)) {
        anyhow::bail!("an engine's thread panicked");
    }
    Ok(())
}

/// Runs a short prompt once through each model in memory, so that weights are in memory and the optimizer has
/// measurements of this machine.
async fn warm_up(service: &CloudService) {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(6);
    for view in service.models().filter(|view| view.model.is_some()) {
        let model = view.name;
        info!(model, "warming up");
        let request = CompletionRequest {
            max_tokens: Some(4),
            ..CompletionRequest::new(model, vec![ChatMessage::new(Role::User, text.as_str())])
        };
        match service.complete_here(&request) {
            Ok(mut answer) => while answer.next().await.is_some() {},
            Err(err) => {
                warn!(
                    model,
                    err = &err as &dyn std::error::Error,
                    "the model does not answer a short prompt"
                );
            }
        }
    }
    let measured = service.measured();
    info!(measured.prefill_ms_per_token, measured.decode_ms, "warm");
}

/// Addresses of the service.
struct Told {
    url: String,
    metrics_address: Option<SocketAddr>,
    /// URL of the console's own listener, if it has one.
    console: Option<String>,
}

fn announce(told: &Told, models: &[&str], json: bool) -> std::io::Result<()> {
    let mut out = baton_terminal::stdout();
    let Told { url, metrics_address, console } = told;
    if json {
        let console = format!("{}/admin", console.as_ref().unwrap_or(url));
        let mut line = serde_json::json!({ "listening": url, "console": console, "model": models[0] });
        if models.len() > 1 {
            line["models"] = models.into();
        }
        if let Some(metrics) = metrics_address {
            line["metrics"] = format!("http://{metrics}/metrics").into();
        }
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "listening on {url}")?;
        if let Some(metrics) = metrics_address {
            writeln!(out, "metrics on http://{metrics}/metrics")?;
        }
        if let Some(console) = console {
            writeln!(out, "console on {console}/admin")?;
        }
    }
    out.flush()
}
