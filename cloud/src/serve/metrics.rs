//! The listener for Prometheus. It is separate from the API because it needs no key and should not be public.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use baton_edge::{HttpLimits, Phase};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::service::CloudService;

/// How often recorded values are merged while nobody reads the metrics.
const UPKEEP_PERIOD: Duration = Duration::from_secs(5);

/// Serves `/metrics` at `address`, if there is one, on a task that runs until it is aborted. Metrics are
/// needed while the service drains, too.
///
/// # Errors
/// The system's error if it cannot listen there.
pub async fn listen(
    address: Option<SocketAddr>,
    service: &CloudService,
) -> io::Result<Option<(SocketAddr, JoinHandle<()>)>> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok(Some((bound, tokio::spawn(serve(listener, service.clone())))))
}

async fn serve(listener: TcpListener, service: CloudService) {
    let app = Router::new().route("/metrics", get(metrics)).with_state(service.clone());
    // There are few readers.
    let limits = HttpLimits { connections_max: 16, ..HttpLimits::default() };
    let (_serving, phases) = watch::channel(Phase::Serving);
    let upkeep = async {
        loop {
            tokio::time::sleep(UPKEEP_PERIOD).await;
            service.metrics().upkeep();
        }
    };
    tokio::select! {
        () = baton_edge::serve(baton_edge::Server::plain(listener, app, limits), phases, || ()) => (),
        () = upkeep => (),
    }
}

async fn metrics(State(service): State<CloudService>) -> Response {
    let mut response = service.render_metrics().into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
