//! The HTTP server of both programs: accepts connections, limits them, and ends them in time.
//!
//! It has its own accept loop, because each connection needs its own timers. They limit the head of each
//! request, an idle connection, a TLS handshake, a client that does not read, and the drain at the end.
//! Never: knows a route. Always: at most `connections_max` connections are served, and every task it starts
//! is joined.
//!
//! The server ends in two steps ([`Phase`]). While it drains, connections are still accepted: a load balancer
//! that has not noticed yet gets a 503 from the routes and not a refused connection. Running replies end by
//! themselves. Then the rest is ended: the service writes its last events, and connections are closed.

mod connection;
pub mod file;
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
use self::connection::{Connection, PhaseWatch};
use self::flight::Flight;
use self::places::Places;
use self::tls::Tls;

/// How long to wait after an accept error that concerns the whole process (no file handles left).
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Connections that the system may queue before they are accepted.
const NEW_CONNECTIONS_MAX: u32 = 4096;
/// Bytes of replies that the system buffers for a client that does not read them; the system may double them.
/// One event of a stream has a few hundred bytes.
const SEND_BUFFER_BYTES: u32 = 64 << 10;
/// How long connections may take to close after everything has ended.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Returns the address that connections are counted by. For IPv6 this is the /64 network, which one customer
/// has.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// Limits of one connection, and of all of them together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HttpLimits {
    /// Connections at the same time. For a further one the oldest idle connection is closed; if there is
    /// none, the new one waits. Read only at the start.
    pub connections_max: usize,
    /// Connections of one address (with IPv6, of one /64 network) at the same time. For a further one the
    /// oldest idle one of that address is closed; if there is none, the new one is closed.
    pub connections_per_ip: usize,
    /// Requests on one connection; the reply to the last one announces the close.
    pub requests_per_connection: u64,
    /// Time for the head of each request, from its first byte, and for the first byte of a new connection.
    pub header_timeout: Duration,
    /// Time until the next request on a connection that is kept alive.
    pub idle_timeout: Duration,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// How long the client may go without reading a single byte.
    pub write_timeout: Duration,
    /// How long running answers may go on after a stop was requested.
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

/// The phase of the server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Everything is served.
    Serving,
    /// Routes refuse new requests; running replies end by themselves within the drain time.
    Draining,
    /// All replies are ended now.
    Ending,
}

/// The parts of a server.
#[derive(Debug)]
pub struct Server {
    /// The socket that accepts connections.
    pub listener: TcpListener,
    /// The routes.
    pub app: Router,
    /// The limits; new connections use the current value.
    pub limits: Arc<ArcSwap<HttpLimits>>,
    /// The certificate, if TLS is on; new connections use the newest.
    pub tls: Option<Arc<Tls>>,
}

impl Server {
    /// Returns a server without TLS and with fixed limits.
    pub fn plain(listener: TcpListener, app: Router, limits: HttpLimits) -> Server {
        Server { listener, app, limits: Arc::new(ArcSwap::from_pointee(limits)), tls: None }
    }
}

/// Listens with a queue of new connections that a burst of clients does not fill, as far as the system
/// allows. Must be called within a runtime.
///
/// # Errors
/// The system's error, for example if the address is in use.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted program must not wait for connections of its predecessor.
    socket.set_reuseaddr(true)?;
    // Connections inherit this. Without it the buffer grows to megabytes for a client that never reads.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(NEW_CONNECTIONS_MAX)
}

/// Serves until `phase` ends; calls `end` once, when the replies still running must end.
///
/// Returns when every connection is closed.
pub async fn serve(server: Server, mut phase: watch::Receiver<Phase>, end: impl FnOnce()) {
    let (phase_sender, phase_receiver) = watch::channel(Phase::Serving);
    let mut edge = Edge {
        places: Places::new(server.limits.load().connections_max),
        flight: Flight::default(),
        connections: JoinSet::new(),
        pending: None,
        phase: phase_receiver,
        server,
    };
    edge.accept_until(reached(&mut phase, Phase::Draining)).await;
    info!(requests = edge.flight.count(), connections = edge.connections.len(), "draining");
    phase_sender.send_replace(Phase::Draining);
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
        requests => warn!(requests, "the drain time is over: ending the replies that still run"),
    }
    end();
    phase_sender.send_replace(Phase::Ending);
    edge.close().await;
}

/// Completes when the phase is reached, or when its sender is gone.
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

/// A running server.
struct Edge {
    server: Server,
    places: Places,
    flight: Flight,
    connections: JoinSet<()>,
    /// A connection that was accepted and waits for a place.
    pending: Option<(TcpStream, SocketAddr)>,
    phase: watch::Receiver<Phase>,
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
            if let Err(err) = bound_silence(&stream, limits.write_timeout) {
                debug!(%err, "a client that vanishes is noticed late");
            }
            let connection = Connection {
                peer,
                limits,
                tls: self.server.tls.as_ref().map(|tls| tls.current()),
                app: self.server.app.clone(),
                flight: self.flight.clone(),
                phase: PhaseWatch(self.phase.clone()),
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
            debug!(connections = connections.len(), "closing connections that did not end in time");
            connections.shutdown().await;
        }
    }
}

/// Returns the next connection once there is a place for it. If this future is dropped, an accepted
/// connection stays in `pending`.
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

/// Lets the system end the connection if the client's machine is silent for this long, as a laptop is that
/// leaves its network without a word. The system counts a reader that reads nothing the same way.
#[cfg(unix)]
fn bound_silence(stream: &TcpStream, limit: Duration) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    let second = Duration::from_secs(1);
    // Asks a client whether it is still there, if nothing is sent.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, (limit / 2).max(second))?;
    sockopt::set_tcp_keepintvl(stream, (limit / 4).max(second))?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    // Bounds how long sent bytes may wait for their receipt.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    sockopt::set_tcp_user_timeout(stream, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// There is no such option that is safe to set on this system.
#[cfg(not(unix))]
fn bound_silence(_: &TcpStream, _: Duration) -> std::io::Result<()> {
    Ok(())
}

fn joined_or_warn(joined: Result<(), tokio::task::JoinError>) {
    if let Err(err) = joined
        && err.is_panic()
    {
        warn!(%err, "a connection's task panicked");
    }
}
