//! One connection: TLS where it is on, requests one after another, a polite end.
//!
//! Always: a reply to the last request that a connection may make says that it closes; so does one to a request whose
//! body came in chunks, so that bytes behind a body that two readers may measure differently are never taken for a
//! request.

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

/// Stands among a request's extensions where its head names two lengths for its body: it must be refused.
#[derive(Debug, Clone, Copy)]
pub struct ConflictingLengths;

/// What connections are told of the server's end.
#[derive(Debug, Clone)]
pub(super) struct Told(pub(super) watch::Receiver<Phase>);

impl Told {
    fn is_draining(&self) -> bool {
        *self.0.borrow() >= Phase::Draining
    }

    async fn reached(&mut self, wanted: Phase) {
        let _ = self.0.wait_for(|phase| *phase >= wanted).await;
    }
}

/// A connection that has a place.
pub(super) struct Connection {
    pub(super) peer: SocketAddr,
    pub(super) limits: HttpLimits,
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) app: Router,
    pub(super) flight: Flight,
    pub(super) told: Told,
}

impl Connection {
    /// Serves it to its end, or until its place is needed for one that asks for something.
    pub(super) async fn run(self, stream: TcpStream, place: &Place) {
        let (peer, traffic) = (self.peer, place.traffic.clone());
        let speaking = self.speak(stream, traffic.clone());
        tokio::pin!(speaking);
        tokio::select! {
            () = &mut speaking => return,
            () = place.must_leave() => (),
        }
        if traffic.is_busy() {
            // Its request came just then: it is answered.
            return speaking.await;
        }
        debug!(%peer, "a connection without a request gave way");
    }

    async fn speak(self, stream: TcpStream, traffic: Arc<Traffic>) {
        let Some(tls) = self.tls.clone() else { return self.serve(stream, traffic).await };
        let handshake = TlsAcceptor::from(tls).accept(stream);
        match tokio::time::timeout(self.limits.handshake_timeout, handshake).await {
            Ok(Ok(stream)) => self.serve(stream, traffic).await,
            Ok(Err(err)) => debug!(%err, "a TLS handshake failed"),
            Err(_) => debug!(limit = ?self.limits.handshake_timeout, "a TLS handshake did not end"),
        }
    }

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        traffic: Arc<Traffic>,
    ) {
        let Connection { peer, limits, app, flight, mut told, .. } = self;
        let HttpLimits { header_timeout, idle_timeout, write_timeout, .. } = limits;
        let deadlines = Deadlines { head: header_timeout, idle: idle_timeout, write: write_timeout };
        let stream = Guarded::new(stream, deadlines, traffic.clone());
        let routes = Routes {
            app,
            peer,
            flight,
            traffic: traffic.clone(),
            told: told.clone(),
            requests_max: limits.requests_per_connection,
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // The second line of defence behind the stream's own deadlines.
            .header_read_timeout(header_timeout.max(idle_timeout))
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(!told.is_draining())
            .serve_connection(TokioIo::new(stream), routes);
        tokio::pin!(connection);
        // One that has made no request yet may have one on its way: it is answered, and closes then. hyper would close
        // it unread.
        let polite = async {
            told.reached(Phase::Draining).await;
            if traffic.requests() == 0 {
                told.reached(Phase::Ending).await;
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

/// Bytes of a request's head as it is written: the line of the request, and each field with its colon, blank and line end.
fn head_bytes(uri: &Uri, headers: &HeaderMap) -> usize {
    let fields: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let path = uri.path_and_query().map_or(1, |path| path.as_str().len());
    fields + path + b"POST  HTTP/1.1\r\n\r\n".len()
}

/// The routes as one connection reaches them.
struct Routes {
    app: Router,
    peer: SocketAddr,
    flight: Flight,
    traffic: Arc<Traffic>,
    told: Told,
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
        // hyper looks at its limit only between two reads, so that a head of nearly twice as much may pass it.
        let too_large = head_bytes(request.uri(), request.headers()) > HEAD_BYTES_MAX;
        let last = last || too_large;
        let (app, told) = (self.app.clone(), self.told.clone());
        Box::pin(async move {
            let mut response = if too_large {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response()
            } else {
                app.oneshot(request).await?
            };
            if last || told.is_draining() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| passage.carry(body)))
        })
    }
}
