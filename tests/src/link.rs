//! A TCP link with the speed of a home network: every byte arrives a set time after it was sent, at most at a
//! set rate.
//!
//! Changes neither bytes nor their order, and forwards any number of connections. Uses threads, because the
//! timer of an async executor is coarser than the hops measured through a link. Closed when dropped.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Most bytes read at once; then the most pieces that may be on the way in one direction.
const READ_BYTES: usize = 64 << 10;
const PIECES_MAX: usize = 1024;
/// A system, in particular a virtual one, wakes a sleeping thread late by less than this. So the last part of
/// a wait does not sleep. Before a full piece it does: many bytes follow, and whoever sends and takes them
/// needs the core.
const AWAKE: Duration = Duration::from_millis(1);
/// Most time by which a busy system may read a piece late.
const LATE: Duration = Duration::from_millis(10);

/// The current speed of a link.
#[derive(Debug, Default)]
struct Slowness {
    delay_ns: AtomicU64,
    /// The rate; 0 means no limit.
    bytes_per_s: AtomicU64,
    ended: AtomicBool,
}

/// A listening link.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    slowness: Arc<Slowness>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.slowness.ended.store(true, Ordering::Release);
        // Wakes the thread that waits for connections; if this fails, the thread has ended.
        let _ = TcpStream::connect(self.address);
    }
}

impl Link {
    /// Listens on a free loopback port and forwards every connection to `target`, without delay at first.
    ///
    /// # Errors
    /// Fails if no port or no thread can be had.
    pub fn open(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind a link")?;
        let address = listener.local_addr().context("read the link's address")?;
        let slowness = Arc::new(Slowness::default());
        let own = Arc::clone(&slowness);
        std::thread::Builder::new()
            .name("link".into())
            .spawn(move || accept(&listener, target, &own))
            .context("start a link")?;
        Ok(Self { address, slowness })
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the delay of bytes in each direction, and their rate; `None` means no limit.
    pub fn set(&self, delay: Duration, bytes_per_s: Option<u64>) {
        self.slowness.delay_ns.store(delay.as_nanos() as u64, Ordering::Release);
        self.slowness.bytes_per_s.store(bytes_per_s.unwrap_or(0), Ordering::Release);
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, slowness: &Arc<Slowness>) {
    while let Ok((here, _)) = listener.accept() {
        if slowness.ended.load(Ordering::Acquire) {
            return;
        }
        // If nothing listens at the target, the caller's connection is closed.
        if let Ok(there) = TcpStream::connect(target) {
            let _ = forward(&here, &there, slowness).and_then(|()| forward(&there, &here, slowness));
        }
    }
}

/// Starts one direction of a connection.
fn forward(from: &TcpStream, to: &TcpStream, slowness: &Arc<Slowness>) -> std::io::Result<()> {
    // Frames are small and must not wait for each other.
    to.set_nodelay(true)?;
    let (mut from, read_side) = (from.try_clone()?, from.try_clone()?);
    let (to, slowness) = (to.try_clone()?, Arc::clone(slowness));
    let (pieces, due) = sync_channel(PIECES_MAX);
    std::thread::Builder::new().name("link-in".into()).spawn(move || read(&mut from, &pieces, &slowness))?;
    std::thread::Builder::new().name("link-out".into()).spawn(move || write(to, &read_side, &due))?;
    Ok(())
}

/// Reads pieces and sets when each must arrive.
fn read(from: &mut TcpStream, pieces: &SyncSender<(Instant, Vec<u8>)>, slowness: &Slowness) {
    let (mut line_free, mut was_full) = (Instant::now(), false);
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        // Behind a full piece, bytes were waiting: the line went on, even if this thread was late.
        let late = if was_full { LATE } else { Duration::ZERO };
        line_free = line_free.max(Instant::now().checked_sub(late).unwrap_or(line_free));
        was_full = n == READ_BYTES;
        let bytes_per_s = slowness.bytes_per_s.load(Ordering::Acquire);
        if bytes_per_s > 0 {
            line_free += Duration::from_secs_f64(n as f64 / bytes_per_s as f64);
        }
        let delay = Duration::from_nanos(slowness.delay_ns.load(Ordering::Acquire));
        if pieces.send((line_free + delay, buffer[..n].to_vec())).is_err() {
            return;
        }
    }
}

/// Writes each piece when it is due; a failed write ends this direction.
fn write(mut to: TcpStream, from: &TcpStream, due: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((when, bytes)) = due.recv() {
        wait_until(when, if bytes.len() == READ_BYTES { Duration::ZERO } else { AWAKE });
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // Either side may have closed already.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// Waits. Does not sleep in the last part, of length `awake`.
fn wait_until(when: Instant, awake: Duration) {
    let left = when.saturating_duration_since(Instant::now());
    if left > awake {
        std::thread::sleep(left - awake);
    }
    while Instant::now() < when {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a link with a connection through it; returns both ends.
    fn through() -> (Link, TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let link = Link::open(listener.local_addr().unwrap()).unwrap();
        let near = TcpStream::connect(link.address()).unwrap();
        let far = listener.accept().unwrap().0;
        (link, near, far)
    }

    #[test]
    fn bytes_arrive_late_whole_and_in_order() {
        let (link, mut near, mut far) = through();
        link.set(Duration::from_millis(20), None);
        let sent: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        let begun = Instant::now();
        let copy = sent.clone();
        let writer = std::thread::spawn(move || {
            near.write_all(&copy).unwrap();
            near
        });
        let mut first = [0];
        far.read_exact(&mut first).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20), "{:?}", begun.elapsed());
        let mut rest = vec![0; sent.len() - 1];
        far.read_exact(&mut rest).unwrap();
        assert!(first[0] == sent[0] && rest == sent[1..]);
        let mut near = writer.join().unwrap();
        let begun = Instant::now();
        far.write_all(b"back").unwrap();
        near.read_exact(&mut [0; 4]).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn no_more_bytes_a_second_than_the_line_carries() {
        let (link, mut near, mut far) = through();
        link.set(Duration::ZERO, Some(1_000_000));
        let begun = Instant::now();
        let writer = std::thread::spawn(move || near.write_all(&[7; 50_000]));
        far.read_exact(&mut vec![0; 50_000]).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(50), "{:?}", begun.elapsed());
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn the_end_of_one_side_reaches_the_other() {
        let (link, near, mut far) = through();
        drop(near);
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
        drop(link);
    }
}
