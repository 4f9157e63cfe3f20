//! The console of a running service: beside `/v1`, or on a listener of its own.

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
use crate::admin::office::Office;
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
    /// Reads the quality curves and takes the console's own address, where there are such.
    pub(super) async fn open(
        config: &Config,
        service: &CloudService,
        store: &Store,
    ) -> anyhow::Result<Console> {
        let Config { admin: config, edge, .. } = config;
        let model = service.model();
        let curves = config.quality_curves.as_deref().map(|path| read_curves(path, model)).transpose()?;
        let office = Office::new(store.clone(), curves.flatten().map(Arc::new));
        let own = match config.listen {
            None => None,
            Some(at) => Some(TcpListener::bind(at).await.with_context(|| format!("listen on {at}"))?),
        };
        let secure = edge.tls.is_some() || config.behind_tls;
        let admin = Admin::new(service.clone(), office, secure).behind(edge.proxies.clone());
        Ok(Console { admin, own })
    }

    /// Where its own listener is; none where it is beside `/v1`.
    pub(super) fn url(&self, scheme: &str) -> anyhow::Result<Option<String>> {
        let address = self.own.as_ref().map(TcpListener::local_addr).transpose();
        let address = address.context("read the console's address")?;
        Ok(address.map(|address| format!("{scheme}://{address}")))
    }

    /// Begins to serve; the routes of the service's own listener come back, with those of the console where it is there.
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
    /// Waits until its own listener has ended, and ends the rest.
    pub(super) async fn end(self) {
        if let Some(serving) = self.serving {
            let _ = serving.await;
        }
        self.looking.abort();
        let _ = self.looking.await;
    }
}

/// The curves of an evaluation; none, with a warning, where another cloud model was evaluated.
fn read_curves(path: &Path, model: &Model) -> anyhow::Result<Option<QualityCurves>> {
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
