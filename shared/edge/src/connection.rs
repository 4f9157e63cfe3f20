//! One connection: TLS if it is on, requests one after another, and an orderly end.
//!
//! Always: the reply to the last request that a connection may make announces the close. So does the reply to
//! a request with a chunked body. Two readers may disagree about the end of such a body, and the bytes behind
//! it must never be taken for a request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tracing::debug;

use super::flight::{Flight, Traffic};
use super::guarded::{Deadlines, Guarded};
use super::places::Place;
use super::{HttpLimits, Phase};

/// Bytes of one request head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Added to a request's extensions if its head gives two lengths for the body. Such a request must be
/// refused.
#[derive(Debug, Clone, Copy)]
pub struct ConflictingLengths;

/// The server's phase, as connections see it.
#[derive(Debug, Clone)]
pub(super) struct PhaseWatch(pub(super) watch::Receiver<Phase>);

impl PhaseWatch {
    fn is_draining(&self) -> bool {
        *self.0.borrow() >= Phase::Draining
    }

    async fn reached(&mut self, wanted: Phase) {
        let _ = self.0.wait_for(|phase| *phase >= wanted).await;
    }
}

/// A connection that has been given a place.
pub(super) struct Connection {
    pub(super) peer: SocketAddr,
    pub(super) limits: HttpLimits,
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) app: Router,
    pub(super) flight: Flight,
    pub(super) phase: PhaseWatch,
}

impl Connection {
    /// Serves the connection until it ends, or until another connection needs its place while it is idle.
    pub(super) async fn run(self, stream: TcpStream, place: &Place) {
        let (peer, traffic) = (self.peer, place.traffic.clone());
        let speaking = self.speak(stream, traffic.clone());
        tokio::pin!(speaking);
        tokio::select! {
            () = &mut speaking => return,
            () = place.must_leave() => (),
        }
        if traffic.is_busy() {
            // A request arrived at the same moment; it is answered.
            return speaking.await;
        }
        debug!(%peer, "closed an idle connection to make room");
    }

    async fn speak(self, stream: TcpStream, traffic: Arc<Traffic>) {
        let Some(tls) = self.tls.clone() else { return self.serve(stream, traffic).await };
        let handshake = TlsAcceptor::from(tls).accept(stream);
        match tokio::time::timeout(self.limits.handshake_timeout, handshake).await {
            Ok(Ok(stream)) => self.serve(stream, traffic).await,
            Ok(Err(err)) => debug!(%err, "a TLS handshake failed"),
            Err(_) => debug!(limit = ?self.limits.handshake_timeout, "a TLS handshake timed out"),
        }
    }

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        traffic: Arc<Traffic>,
    ) {
        let Connection { peer, limits, app, flight, mut phase, .. } = self;
        let HttpLimits { header_timeout, idle_timeout, write_timeout, .. } = limits;
        let deadlines = Deadlines { head: header_timeout, idle: idle_timeout, write: write_timeout };
        let stream = Guarded::new(stream, deadlines, traffic.clone());
        let routes = Routes {
            app,
            peer,
            flight,
            traffic: traffic.clone(),
            phase: phase.clone(),
            requests_max: limits.requests_per_connection,
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // A second limit behind the stream's own deadlines.
            .header_read_timeout(header_timeout.max(idle_timeout))
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(!phase.is_draining())
            .serve_connection(TokioIo::new(stream), routes);
        tokio::pin!(connection);
        // A connection without a request so far may have one on its way. It is answered, and then the
        // connection closes; hyper would close without reading it.
        let polite = async {
            phase.reached(Phase::Draining).await;
            if traffic.requests() == 0 {
                phase.reached(Phase::Ending).await;
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = polite => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(err) = ended {
            debug!(%err, "a connection ended early");
        }
    }
}

/// Returns the bytes of a request's head as sent: the request line, and each field with colon, space and line
/// end.
fn head_bytes(uri: &Uri, headers: &HeaderMap) -> usize {
    let fields: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let path = uri.path_and_query().map_or(1, |path| path.as_str().len());
    fields + path + b"POST  HTTP/1.1\r\n\r\n".len()
}

/// The routes as one connection uses them.
struct Routes {
    app: Router,
    peer: SocketAddr,
    flight: Flight,
    traffic: Arc<Traffic>,
    phase: PhaseWatch,
    requests_max: u64,
}

impl hyper::service::Service<Request<Incoming>> for Routes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let passage = self.flight.enter(&self.traffic);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(self.peer));
        let conflict = self.traffic.take_conflict();
        if conflict {
            request.extensions_mut().insert(ConflictingLengths);
        }
        let last = conflict
            || self.traffic.requests() >= self.requests_max
            || request.headers().contains_key(header::TRANSFER_ENCODING);
        // hyper checks its limit only between two reads, so a head of nearly twice the limit may pass it.
        let too_large = head_bytes(request.uri(), request.headers()) > HEAD_BYTES_MAX;
        let last = last || too_large;
        let (app, phase) = (self.app.clone(), self.phase.clone());
        Box::pin(async move {
            let mut response = if too_large {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response()
            } else {
                app.oneshot(request).await?
            };
            if last || phase.is_draining() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| passage.carry(body)))
        })
    }
}
