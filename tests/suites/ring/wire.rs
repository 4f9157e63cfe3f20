//! The wire to a device, in a test's hand: a TCP proxy that passes bytes, cuts connections, or swallows what comes.
//!
//! Reads nothing of what passes (it is encrypted), and changes no byte.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use baton_e2e::home::Home;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What is kept of what callers send, for a test to send again.
const KEPT_BYTES_MAX: usize = 1 << 16;

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// They pass.
    Open,
    /// Every connection is cut, and new ones are cut as they come.
    Cut,
    /// Nothing passes in either direction, and nothing ends.
    Silent,
}

/// Everything that connections look at.
struct Shared {
    way: watch::Sender<Way>,
    /// Counts calls of [`Wire::cut_newest`], each with the number of the connection it meant.
    newest: watch::Sender<Option<usize>>,
    opened: Mutex<usize>,
    sent: Mutex<Vec<Vec<u8>>>,
}

/// A proxy before one device; it ends when dropped.
pub struct Wire {
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
    /// Puts a proxy before a worker: from now on head and other workers reach it there.
    pub async fn before(home: &Home, worker: usize) -> anyhow::Result<Self> {
        let worker = &home.workers[worker];
        let wire = Self::to(worker.address).await?;
        home.lead_through(worker, wire.address)?;
        Ok(wire)
    }

    /// A proxy on a free port before `target`.
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

    /// From now on.
    pub fn set(&self, way: Way) {
        self.shared.way.send_replace(way);
    }

    /// Cuts the connection that was opened last, and no other.
    pub fn cut_newest(&self) {
        let newest = *self.shared.opened.lock().expect("no holder of this lock panics");
        self.shared.newest.send_replace(newest.checked_sub(1));
    }

    /// The beginnings of what callers have sent, by connection.
    pub fn sent(&self) -> Vec<Vec<u8>> {
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
                // A device that is not there ends the connection, as without a proxy.
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

/// Passes bytes on while the way is open; `keep` names the connection whose beginning is kept.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, keep: Option<usize>) {
    let mut way = shared.way.subscribe();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if *way.borrow_and_update() == Way::Silent {
            // What was read is gone: even where the way opens again, this connection is broken.
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

/// Sends these bytes to a device as a stranger; whatever it answers until it ends the connection.
pub async fn shout(at: SocketAddr, bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at).await.context("connect as a stranger")?;
    let mut heard = Vec::new();
    let talk = async {
        // A device may end the connection before all is said.
        let _cut = stream.write_all(bytes).await;
        let _ended = stream.read_to_end(&mut heard).await;
    };
    tokio::time::timeout(Duration::from_secs(60), talk).await.context("the stranger was never cut off")?;
    Ok(heard)
}
