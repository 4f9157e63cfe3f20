//! The network of a simulated home: links that carry frames in order, with latency, rate and jitter.
//!
//! It only says when something arrives; the world delivers it. Always holds: what is sent over one link in
//! one direction arrives in the order in which it was sent, and nothing arrives after the end of the link.

use std::collections::VecDeque;
use std::time::Duration;

use baton_random::mix;

use crate::core::{LinkId, Purpose};
use crate::wire::frame::Frame;

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// The device.
    pub(super) device: usize,
    /// Which life of the device: it grows with each restart.
    pub(super) life: u32,
    /// Its number of the link.
    pub(super) link: LinkId,
}

/// Something on its way.
#[derive(Debug)]
pub(super) enum Item {
    /// A frame.
    Frame(Box<Frame>),
    /// The end of the link.
    End(String),
}

/// One direction of a link.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// On the way, oldest first.
    pub(super) queue: VecDeque<Item>,
    /// Whether the receiver reads nothing.
    pub(super) held: bool,
    /// Items that have arrived at a receiver that reads nothing.
    pub(super) arrived: usize,
    /// When the last one arrives.
    last: Duration,
    count: u64,
}

/// One link; side 0 opened it.
#[derive(Debug)]
pub(super) struct Link {
    /// Both ends; the other one is `None` until it knows the link, and nobody is at a link's end that a
    /// test forged.
    pub(super) ends: [Option<End>; 2],
    /// What it is for.
    pub(super) purpose: Purpose,
    /// Whether an end has closed it.
    pub(super) closed: bool,
    /// Towards each side.
    pub(super) ways: [Way; 2],
    latency: Duration,
    jitter: Duration,
    byte_ns: u64,
    salt: u64,
}

impl Link {
    /// When something of so many bytes arrives that is sent to a side now.
    pub(super) fn arrives(&mut self, side: usize, now: Duration, bytes: usize, slower: u32) -> Duration {
        let way = &mut self.ways[side];
        way.count += 1;
        let by_chance = mix(self.salt ^ side as u64, way.count) % (self.jitter.as_nanos() as u64 + 1);
        let took = (self.latency + Duration::from_nanos(by_chance + self.byte_ns * bytes as u64)) * slower;
        way.last = way.last.max(now + took);
        way.last
    }
}

/// All links that there ever were.
#[derive(Debug)]
pub(super) struct Network {
    links: Vec<Link>,
    seed: u64,
    latency: Duration,
    jitter: Duration,
    byte_ns: u64,
    /// For each device, how much slower its links are.
    pub(super) slower: Vec<u32>,
}

impl Network {
    /// A network without links.
    pub(super) fn new(seed: u64, devices: usize, latency: Duration, jitter: Duration, byte_ns: u64) -> Self {
        Self { links: Vec::new(), seed, latency, jitter, byte_ns, slower: vec![1; devices] }
    }

    /// The path between two devices: its latency, a factor of the home's.
    fn latency(&self, a: usize, b: usize) -> Duration {
        let (a, b) = (a.min(b) as u64, a.max(b) as u64);
        self.latency / 2 + self.latency * (mix(self.seed, a * 64 + b) % 4) as u32 / 2
    }

    /// A new link that this end opens to a device.
    pub(super) fn open(&mut self, end: End, to: usize, purpose: Purpose) -> usize {
        let salt = mix(self.seed, 1 << 20 | self.links.len() as u64);
        self.links.push(Link {
            ends: [Some(end), None],
            purpose,
            closed: false,
            ways: [Way::default(), Way::default()],
            latency: self.latency(end.device, to),
            jitter: self.jitter,
            byte_ns: self.byte_ns,
            salt,
        });
        self.links.len() - 1
    }

    /// A link.
    pub(super) fn link(&mut self, at: usize) -> &mut Link {
        &mut self.links[at]
    }

    /// All links.
    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    /// How much slower a link is than it was made.
    pub(super) fn factor(&self, at: usize) -> u32 {
        let of = |end: &Option<End>| end.map_or(1, |end| self.slower[end.device]);
        self.links[at].ends.iter().map(of).max().unwrap_or(1)
    }

    /// When something of so many bytes arrives that is sent over a link to a side now.
    pub(super) fn arrives(&mut self, at: usize, side: usize, now: Duration, bytes: usize) -> Duration {
        let slower = self.factor(at);
        self.links[at].arrives(side, now, bytes, slower)
    }
}
