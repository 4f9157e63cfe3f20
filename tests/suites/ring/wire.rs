//! A TCP proxy in front of a device that passes bytes, cuts connections, or swallows data.
//!
//! Does not interpret the data, which is encrypted, and changes no byte.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use baton_e2e::home::Home;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Most bytes of a caller's data that are kept, for a test to send again.
const KEPT_BYTES_MAX: usize = 1 << 16;

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// They pass.
    Open,
    /// Every connection is cut, and new ones are cut as they come.
    Cut,
    /// Nothing passes in either direction, and nothing ends.
    Silent,
}

/// The state that all connections share.
struct Shared {
    way: watch::Sender<Way>,
    /// The number of the connection to cut, set by [`Wire::cut_newest`].
    newest: watch::Sender<Option<usize>>,
    opened: Mutex<usize>,
    sent: Mutex<Vec<Vec<u8>>>,
}

/// A proxy in front of one device; it ends when dropped.
pub(crate) struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    /// Puts a proxy in front of a worker; from now on the head and other workers reach it there.
    pub(crate) async fn before(home: &Home, worker: usize) -> anyhow::Result<Self> {
        let worker = &home.workers[worker];
        let wire = Self::to(worker.address).await?;
        home.lead_through(worker, wire.address)?;
        Ok(wire)
    }

    /// Starts a proxy on a free port in front of `target`.
    async fn to(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("bind the proxy")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            way: watch::Sender::new(Way::Open),
            newest: watch::Sender::new(None),
            opened: Mutex::new(0),
            sent: Mutex::default(),
        });
        let task = tokio::spawn(accept(listener, target, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Sets what happens to bytes from now on.
    pub(crate) fn set(&self, way: Way) {
        self.shared.way.send_replace(way);
    }

    /// Cuts only the connection that was opened last.
    pub(crate) fn cut_newest(&self) {
        let newest = *self.shared.opened.lock().expect("no holder of this lock panics");
        self.shared.newest.send_replace(newest.checked_sub(1));
    }

    /// Returns the first bytes that callers sent, by connection.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        self.shared.sent.lock().expect("no holder of this lock panics").clone()
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((caller, _)) = listener.accept().await {
        let number = {
            let mut opened = shared.opened.lock().expect("no holder of this lock panics");
            *opened += 1;
            *opened - 1
        };
        shared.sent.lock().expect("no holder of this lock panics").push(Vec::new());
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let passed = async {
                let device = TcpStream::connect(target).await?;
                caller.set_nodelay(true)?;
                device.set_nodelay(true)?;
                let (up, down) = (caller.into_split(), device.into_split());
                tokio::select! {
                    () = pass(up.0, down.1, &shared, Some(number)) => {}
                    () = pass(down.0, up.1, &shared, None) => {}
                }
                anyhow::Ok(())
            };
            tokio::select! {
                // If the device does not exist, the connection ends, as without a proxy.
                _ended = passed => {}
                () = cut(&shared, number) => {}
            }
        });
    }
}

/// Waits until this connection is cut.
async fn cut(shared: &Shared, number: usize) {
    let (mut way, mut newest) = (shared.way.subscribe(), shared.newest.subscribe());
    tokio::select! {
        _cut = way.wait_for(|way| *way == Way::Cut) => {}
        _cut = newest.wait_for(|newest| *newest == Some(number)) => {}
    }
}

/// Forwards bytes while the way is open; `keep` is the number of the connection whose first bytes are kept.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, keep: Option<usize>) {
    let mut way = shared.way.subscribe();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if *way.borrow_and_update() == Way::Silent {
            // The bytes that were read are lost, so this connection is broken even if the way opens again.
            std::future::pending::<()>().await;
        }
        if let Some(number) = keep {
            let mut sent = shared.sent.lock().expect("no holder of this lock panics");
            let room = KEPT_BYTES_MAX.saturating_sub(sent[number].len());
            sent[number].extend_from_slice(&buffer[..n.min(room)]);
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

/// Sends these bytes to a device as a stranger; returns what it answers until it closes the connection.
pub(crate) async fn shout(at: SocketAddr, bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at).await.context("connect as a stranger")?;
    let mut heard = Vec::new();
    let talk = async {
        // A device may close the connection before everything is sent.
        let _cut = stream.write_all(bytes).await;
        let _ended = stream.read_to_end(&mut heard).await;
    };
    tokio::time::timeout(Duration::from_secs(60), talk).await.context("the stranger was never cut off")?;
    Ok(heard)
}
