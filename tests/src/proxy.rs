//! A TCP proxy between the device and the cloud: counts bytes, and cuts the connection at the point that a
//! test names.
//!
//! Reads only the names of SSE events and of requests; changes no byte unless a test says so.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

/// Most bytes of the device's data that are kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// At which point the proxy cuts a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Never.
    Never,
    /// Before the bytes of the event with this index (0 is `first`, 1.. are `token` events) reach the device.
    BeforeEvent(usize),
    /// The same, but only on the first connection that gets this far; later ones pass.
    OnceBeforeEvent(usize),
    /// Each connection that asks for keys and values, after so many bytes to the device from then on.
    InKv(u64),
    /// Never; but a bit of this byte of the keys and values is flipped.
    FlipInKv(u64),
    /// As soon as a connection is accepted.
    AtConnect,
}

/// Counts of the bytes that passed in both directions, headers included.
#[derive(Debug, Default)]
pub struct WireCount {
    up: AtomicU64,
    down: AtomicU64,
    cuts: AtomicU64,
    sent: Mutex<Vec<u8>>,
}

impl WireCount {
    /// Returns the bytes from the device to the cloud.
    #[must_use]
    pub fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    /// Returns how many connections were cut at an event.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Returns what the device sent, as it was on the wire; at most the first mebibyte.
    #[must_use]
    pub fn sent(&self) -> Vec<u8> {
        self.sent.lock().expect("no holder of this lock panics").clone()
    }

    fn add_up(&self, bytes: &[u8]) {
        self.up.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut sent = self.sent.lock().expect("no holder of this lock panics");
        let room = KEPT_BYTES_MAX.saturating_sub(sent.len());
        sent.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Returns the bytes from the cloud to the device.
    #[must_use]
    pub fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }
}

/// A listening proxy; it closes when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    count: Arc<WireCount>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Listens on a free loopback port and forwards every connection to `target` (`host:port`).
    ///
    /// # Errors
    /// Fails if no port could be bound.
    pub async fn start(target: &str, cut: Cut) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("bind the proxy")?;
        let address = listener.local_addr().context("read the proxy's address")?;
        let count = Arc::new(WireCount::default());
        let task = tokio::spawn(accept(listener, target.to_owned(), cut, Arc::clone(&count)));
        Ok(Self { address, count, task })
    }

    /// Returns the URL of the cloud through this proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn count(&self) -> &WireCount {
        &self.count
    }
}

async fn accept(listener: TcpListener, target: String, cut: Cut, count: Arc<WireCount>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((device, _)) = listener.accept().await {
        if cut == Cut::AtConnect {
            continue;
        }
        let (target, count) = (target.clone(), Arc::clone(&count));
        connections.spawn(async move {
            if let Ok(cloud) = TcpStream::connect(&target).await {
                forward(device, cloud, cut, &count).await;
            }
        });
    }
}

async fn forward(device: TcpStream, cloud: TcpStream, cut: Cut, count: &WireCount) {
    // Tokens are small packets and must not wait for each other.
    let _ = device.set_nodelay(true);
    let _ = cloud.set_nodelay(true);
    let (device_read, device_write) = device.into_split();
    let (cloud_read, cloud_write) = cloud.into_split();
    let asks_kv = AtomicBool::new(false);
    tokio::select! {
        () = copy_up(device_read, cloud_write, (count, &asks_kv)) => {}
        () = copy_down(cloud_read, device_write, cut, (count, &asks_kv)) => {}
    }
}

/// Whether a request begins here that asks for keys and values. Small requests come in one piece.
fn asks_for_kv(sent: &[u8]) -> bool {
    let line = sent.split(|byte| *byte == b'\r').next().unwrap_or_default();
    line.starts_with(b"GET /v1/assist/") && line.ends_with(b"/kv HTTP/1.1")
}

async fn copy_up(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, (count, kv): (&WireCount, &AtomicBool)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        count.add_up(&buffer[..n]);
        kv.fetch_or(asks_for_kv(&buffer[..n]), Ordering::Relaxed);
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

async fn copy_down(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    cut: Cut,
    (count, asks_kv): (&WireCount, &AtomicBool),
) {
    let mut events = EventCounter::default();
    let (mut buffer, mut of_kv) = (vec![0; 64 << 10], 0);
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let before = of_kv;
        of_kv += if asks_kv.load(Ordering::Relaxed) { n as u64 } else { 0 };
        // Where the byte is in this piece, if it is here.
        let here = |byte: u64| (before..of_kv).contains(&byte).then(|| (byte - before) as usize);
        if let Cut::FlipInKv(byte) = cut
            && let Some(at) = here(byte)
        {
            buffer[at] ^= 1;
        }
        let limit = match cut {
            Cut::InKv(byte) => here(byte),
            Cut::FlipInKv(_) => None,
            Cut::BeforeEvent(index) => events.scan(&buffer[..n], index),
            Cut::OnceBeforeEvent(index) if count.cuts() == 0 => events.scan(&buffer[..n], index),
            Cut::OnceBeforeEvent(_) | Cut::Never | Cut::AtConnect => None,
        };
        let passed = limit.unwrap_or(n);
        count.down.fetch_add(passed as u64, Ordering::Relaxed);
        count.cuts.fetch_add(u64::from(limit.is_some()), Ordering::Relaxed);
        if to.write_all(&buffer[..passed]).await.is_err() || limit.is_some() {
            return;
        }
    }
}

/// Counts `first` and `token` events in a byte stream, however it is split into packets.
#[derive(Debug, Default)]
struct EventCounter {
    line: Vec<u8>,
    events: usize,
}

impl EventCounter {
    /// Returns the offset in `bytes` after the line that names event `index`. A cut there leaves the event
    /// without its data.
    fn scan(&mut self, bytes: &[u8], index: usize) -> Option<usize> {
        for (offset, &byte) in bytes.iter().enumerate() {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let named = matches!(self.line.trim_ascii(), b"event: first" | b"event: token");
            self.line.clear();
            if named {
                if self.events == index {
                    return Some(offset + 1);
                }
                self.events += 1;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(packets: &[&str], index: usize, want: Option<(usize, usize)>) {
        let mut counter = EventCounter::default();
        let mut got = None;
        for (packet_idx, packet) in packets.iter().enumerate() {
            if let Some(offset) = counter.scan(packet.as_bytes(), index) {
                got = Some((packet_idx, offset));
                break;
            }
        }
        assert_eq!(got, want, "{packets:?} at {index}");
    }

    #[test]
    fn events_are_found_across_packets() {
        check(&["event: first\ndata: {}\n\n"], 0, Some((0, 13)));
        check(&["event: fi", "rst\ndata: {}\n\nevent: token\n"], 1, Some((1, 27)));
        check(&["event: mask\n\nevent: end\n\n"], 0, None);
        check(&["data: event: first\n\n"], 0, None);
    }
}
