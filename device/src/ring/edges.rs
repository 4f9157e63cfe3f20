//! The network paths between the devices of a home: measures latency and bandwidth, stores them, and gives
//! them to the planner.
//!
//! A path is measured by echoes over an open link ([`measure`]). A few empty echoes give the latency; then
//! larger and larger ones go in each direction, until one takes long enough to judge. Bytes and time are
//! bounded, so that measuring a slow path costs a fraction of a second. Results are stored beside the
//! pinned keys, and measured again if the latency has drifted. A path that was never measured counts as the
//! slowest one that was.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use baton_plan::{Edge, Network};
use serde::{Deserialize, Serialize};

use super::frame::{ECHO_BYTES_MAX, EchoData, Frame, LinkSpeed};
use super::identity::PublicKey;
use super::link::{FrameReceiver, FrameSender, Key, LinkError};
use super::state::{StateError, StateFolder};

/// How long measuring one path may take.
pub const MEASURE: Duration = Duration::from_secs(3);
/// Number of empty echoes; the fastest one counts.
const PINGS: u32 = 5;
/// Bytes of the first echo in each direction; each further echo has four times as many.
const FIRST_BYTES: u32 = 64 << 10;
/// An echo that takes this much longer than the latency is long enough to judge.
const LONG: Duration = Duration::from_millis(20);
/// Bytes per second between two devices as long as nothing is known: a good wireless network.
const BYTES_PER_S: f64 = 5e7;
/// Seconds of latency as long as nothing is known.
const LATENCY_S: f64 = 2e-3;
/// A latency that differs by more than this factor, and by more than [`LATENCY_SLACK_S`], has drifted.
const DRIFT: f64 = 2.0;
const LATENCY_SLACK_S: f64 = 1e-3;
const FILE: &str = "edges.json";
/// Version of the file format.
const FORM: u32 = 1;

/// Returns the answer to an echo.
pub fn answer(echo: &EchoData) -> Frame {
    // Decoding has checked that the number is within its bound.
    let bytes = vec![0; echo.reply.min(ECHO_BYTES_MAX) as usize];
    Frame::Echoed(EchoData { number: echo.number, reply: 0, bytes })
}

/// Sends echoes over one link.
struct Echoes<'a> {
    sender: &'a mut dyn FrameSender,
    receiver: &'a mut dyn FrameReceiver,
    end: Instant,
    number: u32,
}

impl Echoes<'_> {
    /// Returns the time until `there` bytes have arrived there and `back` bytes have come back.
    fn time(&mut self, there: u32, back: u32) -> Result<Duration, LinkError> {
        let begun = Instant::now();
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        self.number += 1;
        let echo = EchoData { number: self.number, reply: back, bytes: vec![0; there as usize] };
        self.sender.send(&Frame::Echo(echo).encode(), left(self.end))?;
        loop {
            let bytes = self.receiver.receive(left(self.end))?;
            match Frame::decode(&bytes) {
                Ok(Frame::Echoed(echo))
                    if echo.number == self.number && echo.bytes.len() == back as usize =>
                {
                    return Ok(begun.elapsed());
                }
                // A worker goes on sending heartbeats.
                Ok(Frame::Heartbeat(_)) if Instant::now() < self.end => {}
                Ok(_) => return Err(LinkError::Refused),
                Err(err) => return Err(LinkError::Network(Box::new(err))),
            }
        }
    }

    /// Returns the bytes per second in one direction.
    fn rate(&mut self, latency: Duration, there: bool) -> Result<f64, LinkError> {
        let mut bytes = FIRST_BYTES;
        loop {
            let took = if there { self.time(bytes, 0)? } else { self.time(0, bytes)? };
            let moving = took.saturating_sub(latency * 2);
            if moving >= LONG || bytes >= ECHO_BYTES_MAX {
                return Ok(f64::from(bytes) / moving.as_secs_f64().max(1e-6));
            }
            bytes = (bytes * 4).min(ECHO_BYTES_MAX);
        }
    }
}

/// Returns half of the time of the fastest of a few empty echoes: the seconds until a first byte arrives.
///
/// # Errors
/// [`LinkError`] if they do not come back within `timeout`.
pub fn latency(
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
    timeout: Duration,
) -> Result<f64, LinkError> {
    let mut echoes = Echoes { sender, receiver, end: Instant::now() + timeout, number: 0 };
    let mut best = Duration::MAX;
    for _ in 0..PINGS {
        best = best.min(echoes.time(0, 0)?);
    }
    Ok(best.as_secs_f64() / 2.0)
}

/// Measures a path over a link to a device that answers echoes. Moves at most 7 MB in each direction.
///
/// # Errors
/// [`LinkError`] if the echoes do not come back within `timeout` in all.
pub fn measure(
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
    timeout: Duration,
) -> Result<LinkSpeed, LinkError> {
    let end = Instant::now() + timeout;
    let latency_s = latency(sender, receiver, timeout)?;
    let latency = Duration::from_secs_f64(latency_s);
    let mut echoes = Echoes { sender, receiver, end, number: PINGS };
    let there_bytes_per_s = echoes.rate(latency, true)?;
    let back_bytes_per_s = echoes.rate(latency, false)?;
    Ok(LinkSpeed { latency_s, there_bytes_per_s, back_bytes_per_s })
}

/// One direction between two devices.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    latency_s: f64,
    bytes_per_s: f64,
}

#[derive(Debug, Default)]
struct Table {
    measured: BTreeMap<(Key, Key), Measured>,
    folder: Option<StateFolder>,
    /// What is known between the devices of the ring, by their names.
    named: Vec<Edge>,
}

/// One direction of a path, as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredEdge {
    from: PublicKey,
    to: PublicKey,
    latency_s: f64,
    bytes_per_s: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    form: u32,
    ways: Vec<StoredEdge>,
}

/// All that is known of the paths between devices; clones share one table.
#[derive(Debug, Clone, Default)]
pub struct EdgeTable(Arc<Mutex<Table>>);

impl EdgeTable {
    /// Loads the table of this folder and stores later measurements there. A damaged file counts as empty:
    /// everything is measured again.
    pub fn of(folder: StateFolder) -> Self {
        let stored = folder.read::<Stored>(FILE).unwrap_or_else(|err| {
            tracing::warn!(%err, "what was measured between devices is measured again");
            None
        });
        let good = |edge: &StoredEdge| {
            edge.latency_s.is_finite()
                && edge.latency_s >= 0.0
                && edge.bytes_per_s.is_finite()
                && edge.bytes_per_s > 0.0
        };
        let ways = stored.filter(|stored| stored.form == FORM).map_or_else(Vec::new, |stored| stored.ways);
        let measured = ways.into_iter().filter(good).map(|edge| {
            let measured = Measured { latency_s: edge.latency_s, bytes_per_s: edge.bytes_per_s };
            ((edge.from.0, edge.to.0), measured)
        });
        let table = Table { measured: measured.collect(), folder: Some(folder), named: Vec::new() };
        Self(Arc::new(Mutex::new(table)))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the path between two devices is known.
    pub fn knows(&self, from: Key, to: Key) -> bool {
        self.table().measured.contains_key(&(from, to))
    }

    /// Returns whether the path is known and its latency has not drifted from `latency_s`.
    pub fn holds(&self, from: Key, to: Key, latency_s: f64) -> bool {
        let Some(known) = self.table().measured.get(&(from, to)).copied() else { return false };
        let (least, most) = (known.latency_s.min(latency_s), known.latency_s.max(latency_s));
        most <= least * DRIFT || most - least <= LATENCY_SLACK_S
    }

    /// Stores a measurement.
    pub fn put(&self, from: Key, to: Key, speed: LinkSpeed) {
        let mut table = self.table();
        let LinkSpeed { latency_s, there_bytes_per_s, back_bytes_per_s } = speed;
        table.measured.insert((from, to), Measured { latency_s, bytes_per_s: there_bytes_per_s });
        table.measured.insert((to, from), Measured { latency_s, bytes_per_s: back_bytes_per_s });
        if let Err(err) = table.save() {
            tracing::warn!(%err, "what was measured between devices is not kept");
        }
    }

    /// Sets the devices that are in the ring now, by key and name; [`Self::network`] returns their paths.
    pub fn set_devices(&self, devices: &[(Key, String)]) {
        let mut table = self.table();
        let name = |key: &Key| devices.iter().find(|(known, _)| known == key).map(|(_, name)| name.clone());
        let edge = |((from, to), speed): (&(Key, Key), &Measured)| {
            Some(Edge {
                from: name(from)?,
                to: name(to)?,
                latency_s: Some(speed.latency_s),
                bytes_per_s: Some(speed.bytes_per_s),
            })
        };
        table.named = table.measured.iter().filter_map(edge).collect();
    }

    /// Returns the network of the ring's devices. A path that is not known counts as the slowest one that
    /// is.
    pub fn network(&self) -> Network {
        let edges = self.table().named.clone();
        let latency_s = edges
            .iter()
            .filter_map(|edge| edge.latency_s)
            .fold(None::<f64>, |most, s| Some(most.map_or(s, |most| most.max(s))));
        let rates = edges.iter().filter_map(|edge| edge.bytes_per_s);
        let bytes_per_s =
            rates.fold(None::<f64>, |least, rate| Some(least.map_or(rate, |least| least.min(rate))));
        Network {
            latency_s: latency_s.unwrap_or(LATENCY_S),
            bytes_per_s: bytes_per_s.unwrap_or(BYTES_PER_S),
            edges,
        }
    }
}

impl Table {
    fn save(&self) -> Result<(), StateError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let stored = |((from, to), speed): (&(Key, Key), &Measured)| StoredEdge {
            from: PublicKey(*from),
            to: PublicKey(*to),
            latency_s: speed.latency_s,
            bytes_per_s: speed.bytes_per_s,
        };
        folder.write(FILE, &Stored { form: FORM, ways: self.measured.iter().map(stored).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A link to a device that answers echoes, with a delay and at most so many bytes per second there and
    /// back.
    struct Slow {
        sent: mpsc::Sender<EchoData>,
        bytes_per_s: f64,
    }

    struct Back {
        echoes: mpsc::Receiver<EchoData>,
        delay: Duration,
        bytes_per_s: f64,
        beats: bool,
    }

    fn take(bytes: usize, bytes_per_s: f64) {
        std::thread::sleep(Duration::from_secs_f64(bytes as f64 / bytes_per_s));
    }

    impl FrameSender for Slow {
        fn send(&mut self, frame: &[u8], _timeout: Duration) -> Result<(), LinkError> {
            take(frame.len(), self.bytes_per_s);
            let Ok(Frame::Echo(echo)) = Frame::decode(frame) else { panic!("only echoes are sent") };
            self.sent.send(echo).map_err(|_| LinkError::Closed)
        }
    }

    impl FrameReceiver for Back {
        fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError> {
            if std::mem::take(&mut self.beats) {
                return Ok(Frame::Heartbeat(super::super::frame::Heartbeat::default()).encode());
            }
            let echo = self.echoes.recv_timeout(timeout).map_err(|_| LinkError::TimedOut)?;
            std::thread::sleep(self.delay);
            take(echo.reply as usize, self.bytes_per_s);
            Ok(answer(&echo).encode())
        }
    }

    fn link(there: f64, back: f64, delay_ms: u64) -> (Slow, Back) {
        let (sent, echoes) = mpsc::channel();
        let delay = Duration::from_millis(delay_ms);
        (Slow { sent, bytes_per_s: there }, Back { echoes, delay, bytes_per_s: back, beats: true })
    }

    #[test]
    fn both_directions_are_measured_and_never_overrated() {
        // On a busy machine a measurement may find a link slower than it is, and some more than others;
        // none finds it faster.
        let told_apart = (0..8).any(|_| {
            let (mut sender, mut receiver) = link(2e6, 8e6, 6);
            let speed = measure(&mut sender, &mut receiver, Duration::from_secs(60)).unwrap();
            assert!(speed.latency_s >= 0.003, "{speed:?}");
            assert!(speed.there_bytes_per_s <= 2.1e6 && speed.back_bytes_per_s <= 8.4e6, "{speed:?}");
            speed.there_bytes_per_s < speed.back_bytes_per_s
        });
        assert!(told_apart, "no measurement of eight finds the way there slower than the way back");
    }

    #[test]
    fn a_device_that_does_not_answer_ends_the_measuring() {
        let (mut sender, mut receiver) = link(1e9, 1e9, 0);
        receiver.echoes = mpsc::channel().1;
        let none = measure(&mut sender, &mut receiver, Duration::from_millis(50));
        assert!(matches!(none, Err(LinkError::TimedOut | LinkError::Closed)), "{none:?}");
    }

    fn speed(latency_s: f64, there: f64, back: f64) -> LinkSpeed {
        LinkSpeed { latency_s, there_bytes_per_s: there, back_bytes_per_s: back }
    }

    #[test]
    fn what_is_known_is_given_by_name_and_the_rest_counts_as_the_slowest() {
        let edges = EdgeTable::default();
        let network = edges.network();
        assert_eq!(
            (network.latency_s, network.bytes_per_s, network.edges.len()),
            (LATENCY_S, BYTES_PER_S, 0)
        );
        edges.put([0; 32], [1; 32], speed(0.004, 3e7, 2e7));
        edges.put([0; 32], [2; 32], speed(0.001, 9e7, 9e7));
        let named = |number: u8, name: &str| ([number; 32], name.to_owned());
        edges.set_devices(&[named(0, "head"), named(1, "desk")]);
        let network = edges.network();
        assert_eq!((network.latency_s, network.bytes_per_s), (0.004, 2e7));
        let edge = |from: &str, to: &str, rate| Edge {
            from: from.to_owned(),
            to: to.to_owned(),
            latency_s: Some(0.004),
            bytes_per_s: Some(rate),
        };
        assert_eq!(network.edges, [edge("head", "desk", 3e7), edge("desk", "head", 2e7)]);
        edges.set_devices(&[named(0, "head"), named(1, "desk"), named(2, "phone")]);
        assert_eq!(edges.network().edges.len(), 4, "nothing is known between desk and phone");
    }

    #[test]
    fn a_latency_that_has_drifted_is_measured_again() {
        let edges = EdgeTable::default();
        let (a, b) = ([1; 32], [2; 32]);
        assert!(!edges.holds(a, b, 0.004) && !edges.knows(a, b));
        edges.put(a, b, speed(0.004, 1e7, 1e7));
        assert!(edges.knows(b, a));
        for (latency_s, holds) in
            [(0.004, true), (0.0079, true), (0.0081, false), (0.0031, true), (0.0005, false)]
        {
            assert_eq!(edges.holds(a, b, latency_s), holds, "{latency_s}");
        }
        edges.put(a, b, speed(0.0001, 1e7, 1e7));
        assert!(edges.holds(a, b, 0.0009), "below a millisecond factors say nothing");
    }

    #[test]
    fn what_was_measured_is_kept_and_what_is_damaged_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(Some(dir.path().to_owned())).unwrap();
        let edges = EdgeTable::of(folder.clone());
        edges.put([1; 32], [2; 32], speed(0.004, 1e7, 2e7));
        let again = EdgeTable::of(folder.clone());
        assert!(again.holds([2; 32], [1; 32], 0.004));
        assert_eq!(again.table().measured, edges.table().measured);
        let path = folder.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("20000000.0", "-1.0")).unwrap();
        let rest = EdgeTable::of(folder.clone());
        assert!(rest.knows([1; 32], [2; 32]) && !rest.knows([2; 32], [1; 32]), "a rate that is none");
        std::fs::write(&path, "{").unwrap();
        assert!(!EdgeTable::of(folder).knows([1; 32], [2; 32]));
    }
}
