//! The HTTP server: accepts connections, bounds them, ends them in time.
//!
//! An accept loop of its own, because the timers of a connection must be set on it: a limit for the header of each
//! request, for a reader that does not read, and for the drain at the end.
//! Never: knows a route. Always: at most `connections_max` connections, and every task it starts is joined.

mod deadline;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use self::deadline::WriteDeadline;

/// After an accept error that concerns the whole process (no file handles left), how long to wait.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Bytes of one request head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What one connection, and all of them together, may take.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Connections at the same time; further ones wait in the listener's backlog.
    pub connections_max: usize,
    /// For the head of each request, and for an idle kept-alive connection.
    pub header_timeout: Duration,
    /// How long the other side may refuse to read a single byte.
    pub write_timeout: Duration,
    /// How long running answers may go on after a stop was asked for.
    pub drain_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections_max: 1024,
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(20),
        }
    }
}

/// Serves `app` until `stop` is ready, then lets running answers end within the drain time.
///
/// Returns when every connection is closed.
pub async fn serve(listener: TcpListener, app: Router, limits: HttpLimits, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            Some(joined) = connections.join_next() => {
                joined_or_warn(joined);
                continue;
            }
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = accepted;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(
                TokioIo::new(WriteDeadline::new(stream, limits.write_timeout)),
                TowerToHyperService::new(app.clone()),
            );
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            if let Err(err) = connection.await {
                debug!(%err, "a connection ended early");
            }
            drop(place);
        });
    }
    drop(listener);
    info!(connections = connections.len(), "stopping; running answers may end");
    if tokio::time::timeout(limits.drain_timeout, graceful.shutdown()).await.is_err() {
        warn!(connections = connections.len(), "answers did not end in time and are cut off");
        connections.abort_all();
    }
    while let Some(joined) = connections.join_next().await {
        joined_or_warn(joined);
    }
}

/// The next connection that has a place.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(err) = stream.set_nodelay(true) {
                    debug!(%err, "tokens of this connection may be delayed");
                }
                return (stream, place);
            }
            Err(err) => {
                debug!(%err, "accept failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn joined_or_warn(joined: Result<(), tokio::task::JoinError>) {
    if let Err(err) = joined
        && err.is_panic()
    {
        warn!(%err, "a connection's task panicked");
    }
}
