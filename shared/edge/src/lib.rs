//! The HTTP server of both programs: accepts connections, bounds them, ends them in time.
//!
//! An accept loop of its own, because the timers of a connection must be set on it: a limit for the head of each
//! request, for an idle connection, for a TLS handshake, for a reader that does not read, and for the drain at the end.
//! Never: knows a route. Always: at most `connections_max` connections, and every task it starts is joined.
//!
//! The end has two steps ([`Phase`]). While it drains, connections are still accepted, so that a load balancer that has
//! not noticed yet gets an honest 503 from the routes and not a refused connection; running replies end by themselves.
//! Then what is left is ended: the service writes its last events, and connections are closed.

mod connection;
mod flight;
mod guarded;
mod handles;
mod head;
mod places;
pub mod tls;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

pub use self::connection::ConflictingLengths;
use self::connection::{Connection, Told};
use self::flight::Flight;
use self::places::Places;
use self::tls::Tls;

/// After an accept error that concerns the whole process (no file handles left), how long to wait.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Connections that the system may hold before they are accepted.
const NEW_CONNECTIONS_MAX: u32 = 4096;
/// Bytes of replies that the system holds for a client that does not read them; it may double them. An event of a stream
/// has some hundred.
const SEND_BUFFER_BYTES: u32 = 64 << 10;
/// How long connections may take to close once everything is ended.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// What counts as one address: with IPv6 a network of 2^64, which one customer has.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// What one connection, and all of them together, may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HttpLimits {
    /// Connections at the same time; for a further one, the oldest that asks for nothing is closed, and if there is none
    /// it waits. Read at the start only.
    pub connections_max: usize,
    /// Connections of one address (of one /64 network with IPv6) at the same time; for a further one, the oldest of them
    /// that asks for nothing is closed, and if there is none the new one is.
    pub connections_per_ip: usize,
    /// Requests on one connection; the last one's reply says that it closes.
    pub requests_per_connection: u64,
    /// For the head of each request, from its first byte, and for the first byte of a new connection.
    pub header_timeout: Duration,
    /// For the next request on a connection that is kept alive.
    pub idle_timeout: Duration,
    /// For a TLS handshake.
    pub handshake_timeout: Duration,
    /// How long the other side may refuse to read a single byte.
    pub write_timeout: Duration,
    /// How long running answers may go on after a stop was asked for.
    pub drain_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections_max: 2048,
            connections_per_ip: 1024,
            requests_per_connection: 1000,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            handshake_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(20),
        }
    }
}

/// How far the server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Everything is served.
    Serving,
    /// Routes refuse what is new; replies under way end by themselves within the drain time.
    Draining,
    /// Everything ends now.
    Ending,
}

/// What is served, and where.
#[derive(Debug)]
pub struct Server {
    /// Where connections come in.
    pub listener: TcpListener,
    /// What answers them.
    pub app: Router,
    /// What they may take; new connections take what stands here.
    pub limits: Arc<ArcSwap<HttpLimits>>,
    /// With TLS, the certificate; new connections take the newest.
    pub tls: Option<Arc<Tls>>,
}

impl Server {
    /// A server without TLS whose limits stay.
    pub fn plain(listener: TcpListener, app: Router, limits: HttpLimits) -> Server {
        Server { listener, app, limits: Arc::new(ArcSwap::from_pointee(limits)), tls: None }
    }
}

/// Listens with a queue of new connections that a burst of clients does not fill, as far as the system allows.
///
/// # Errors
/// The system's, for example if the address is in use. Must be called within a runtime.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A program that is started again must not wait for connections of the one before.
    socket.set_reuseaddr(true)?;
    // Connections inherit it. Left to itself it grows to megabytes for a client that asks and never reads.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(NEW_CONNECTIONS_MAX)
}

/// Serves until `phase` says otherwise; `end` is called once, when replies that are still under way must end.
///
/// Returns when every connection is closed.
pub async fn serve(server: Server, mut phase: watch::Receiver<Phase>, end: impl FnOnce()) {
    let (tell, told) = watch::channel(Phase::Serving);
    let mut edge = Edge {
        places: Places::new(server.limits.load().connections_max),
        flight: Flight::default(),
        connections: JoinSet::new(),
        pending: None,
        told,
        server,
    };
    edge.accept_until(reached(&mut phase, Phase::Draining)).await;
    info!(requests = edge.flight.count(), connections = edge.connections.len(), "draining");
    tell.send_replace(Phase::Draining);
    let limit = edge.server.limits.load().drain_timeout;
    let flight = edge.flight.clone();
    let ended = async {
        tokio::select! {
            () = flight.empty() => (),
            () = reached(&mut phase, Phase::Ending) => (),
            () = tokio::time::sleep(limit) => (),
        }
    };
    edge.accept_until(ended).await;
    match edge.flight.count() {
        0 => info!("every reply has ended"),
        requests => warn!(requests, "replies did not end in time and are ended"),
    }
    end();
    tell.send_replace(Phase::Ending);
    edge.close().await;
}

/// Ready when the phase is reached, or when nobody is left who could say so.
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

/// The server at work.
struct Edge {
    server: Server,
    places: Places,
    flight: Flight,
    connections: JoinSet<()>,
    /// One that was accepted and waits for a place.
    pending: Option<(TcpStream, SocketAddr)>,
    told: watch::Receiver<Phase>,
}

impl Edge {
    async fn accept_until(&mut self, until: impl Future<Output = ()>) {
        tokio::pin!(until);
        loop {
            let (stream, peer, permit) = tokio::select! {
                () = &mut until => return,
                Some(joined) = self.connections.join_next() => {
                    joined_or_warn(joined);
                    continue;
                }
                accepted = accept(&self.server.listener, &self.places, &mut self.pending) => accepted,
            };
            let limits = **self.server.limits.load();
            let Some(place) = self.places.claim(permit, peer.ip(), limits.connections_per_ip) else {
                debug!(limit = limits.connections_per_ip, "an address has too many connections");
                continue;
            };
            let connection = Connection {
                peer,
                limits,
                tls: self.server.tls.as_ref().map(|tls| tls.current()),
                app: self.server.app.clone(),
                flight: self.flight.clone(),
                told: Told(self.told.clone()),
            };
            self.connections.spawn(async move {
                connection.run(stream, &place).await;
                drop(place);
            });
        }
    }

    /// Closes the listener, then every connection.
    async fn close(self) {
        let Edge { server, mut connections, .. } = self;
        drop(server);
        let closed = async {
            while let Some(joined) = connections.join_next().await {
                joined_or_warn(joined);
            }
        };
        if tokio::time::timeout(CLOSE_GRACE, closed).await.is_err() {
            debug!(connections = connections.len(), "connections are cut off");
            connections.shutdown().await;
        }
    }
}

/// The next connection, once there is a place for it. What was accepted stays in `pending` if this future is dropped.
async fn accept(
    listener: &TcpListener,
    places: &Places,
    pending: &mut Option<(TcpStream, SocketAddr)>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    if pending.is_none() {
        *pending = Some(accept_one(listener).await);
    }
    let permit = places.wait().await;
    let (stream, peer) = pending.take().expect("it was accepted above");
    (stream, peer, permit)
}

async fn accept_one(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(err) = stream.set_nodelay(true) {
                    debug!(%err, "tokens of this connection may be delayed");
                }
                return (stream, peer);
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
