//! The console of a running service: on the same listener as `/v1`, or on its own.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use axum::Router;
use baton_edge::tls::Tls;
use baton_edge::{HttpLimits, Phase};
use baton_engine::Model;
use baton_refine::QualityCurves;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::admin::Admin;
use crate::admin::operations::AdminService;
use crate::config::Config;
use crate::service::CloudService;
use crate::store::Store;

/// The console, not yet served.
pub(super) struct Console {
    admin: Admin,
    own: Option<TcpListener>,
}

/// The console's tasks.
pub(super) struct Running {
    looking: JoinHandle<()>,
    serving: Option<JoinHandle<()>>,
}

impl Console {
    /// Binds the console's own address, if one is configured. `curves` are shown beside predictions.
    pub(super) async fn open(
        config: &Config,
        service: &CloudService,
        store: &Store,
        curves: Option<QualityCurves>,
    ) -> anyhow::Result<Console> {
        let Config { admin: config, edge, .. } = config;
        let operations = AdminService::new(store.clone(), curves.map(Arc::new));
        let own = match config.listen {
            None => None,
            Some(at) => Some(TcpListener::bind(at).await.with_context(|| format!("listen on {at}"))?),
        };
        let secure = edge.tls.is_some() || config.behind_tls;
        let admin = Admin::new(service.clone(), operations, secure).behind(edge.proxies.clone());
        Ok(Console { admin, own })
    }

    /// Returns the URL of its own listener; `None` if it shares that of `/v1`.
    pub(super) fn url(&self, scheme: &str) -> anyhow::Result<Option<String>> {
        let address = self.own.as_ref().map(TcpListener::local_addr).transpose();
        let address = address.context("read the console's address")?;
        Ok(address.map(|address| format!("{scheme}://{address}")))
    }

    /// Begins to serve. Returns the routes of the service's own listener; they include the console's if it
    /// has no listener.
    pub(super) fn serve(
        self,
        app: Router,
        own: &dyn Fn(Router) -> Router,
        limits: &Arc<ArcSwap<HttpLimits>>,
        tls: Option<&Arc<Tls>>,
        phases: &watch::Receiver<Phase>,
    ) -> (Router, Running) {
        let looking = tokio::spawn(self.admin.clone().watch());
        let routes = self.admin.router();
        let Some(listener) = self.own else {
            return (app.merge(routes), Running { looking, serving: None });
        };
        let server =
            baton_edge::Server { listener, app: own(routes), limits: limits.clone(), tls: tls.cloned() };
        let serving = tokio::spawn(baton_edge::serve(server, phases.clone(), || ()));
        (app, Running { looking, serving: Some(serving) })
    }
}

impl Running {
    /// Waits until its own listener has ended, and stops the rest.
    pub(super) async fn end(self) {
        if let Some(serving) = self.serving {
            let _ = serving.await;
        }
        self.looking.abort();
        let _ = self.looking.await;
    }
}

/// Reads the curves of an evaluation; returns `None`, with a warning, if another cloud model was evaluated.
pub(super) fn read_curves(path: &Path, model: &Model) -> anyhow::Result<Option<QualityCurves>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("read quality curves `{}`", path.display()))?;
    let curves = QualityCurves::from_json(&text)
        .with_context(|| format!("read quality curves `{}`", path.display()))?;
    if curves.cloud_model.sha256 != model.file_sha256() {
        let evaluated = &curves.cloud_model.name;
        warn!(path = %path.display(), evaluated, "the quality curves are of another model file and are not shown");
        return Ok(None);
    }
    Ok(Some(curves))
}
