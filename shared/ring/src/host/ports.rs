//! One link: the frames that wait to be sent, who may send them, and the gate in front of its reader.
//!
//! Frames leave in the order in which they were put in. One thread writes at a time. A thread of the runtime
//! that has a small frame may write it itself. Large frames are left to the port's own thread, so that a
//! device computes the next chunk meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use baton_terminal::chain;

use crate::core::{DeviceId, Give, LinkId, Purpose};
use crate::locked;
use crate::wire::frame::Frame;
use crate::wire::link::FrameSender;

/// Frames of at most this size are sent by the thread that has them.
const DIRECT_BYTES: usize = 64 << 10;
/// Frames that may wait on a link that is not of the ring. On links of the ring the core bounds them.
const QUEUE: usize = 64;
/// Answers that may wait until those before them were given.
const GIVES: usize = 64;
/// Bytes of a frame beside its large content, at most.
const BESIDE_BYTES: usize = 1 << 10;

/// The frames that wait.
#[derive(Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    /// A thread sends a frame now.
    writing: bool,
    /// That frame is a step.
    writes_step: bool,
    /// Nothing is read.
    held: bool,
    /// Nothing more is put in or read; what waits is still sent.
    closed: bool,
    /// The port has its own writing thread.
    has_thread: bool,
    /// Frames that were sent, or dropped.
    gone: u64,
    /// Frames that were put in.
    put: u64,
}

/// What the host gives over the link by itself. Answers leave in the order of the questions.
#[derive(Default)]
struct Gives {
    waiting: VecDeque<Give>,
    /// A thread gives.
    giving: bool,
}

/// What follows when something is to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WillGive {
    /// The caller starts the thread that gives.
    Starts,
    /// A thread gives; it goes on with this.
    Waits,
    /// Too much waits already.
    Refused,
}

/// The sending side.
struct Out {
    sender: Option<Box<dyn FrameSender>>,
    /// Bytes of the frame that is sent, used again and again.
    bytes: Vec<u8>,
}

/// What a port has transferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) send_us: u64,
    /// Steps that wait, or are being sent.
    pub(super) unsent: u64,
}

/// How far a call has sent what waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Nothing waits, or another thread sends it.
    Done,
    /// A large frame waits.
    Left,
    /// The link does not work; a message for people.
    Failed(String),
}

/// One link.
pub(super) struct Port {
    pub(super) id: LinkId,
    pub(super) peer: DeviceId,
    pub(super) purpose: Purpose,
    /// How long one frame may take, in microseconds.
    limit_us: AtomicU64,
    waiting: Mutex<Waiting>,
    /// Something in `waiting` has changed.
    changed: Condvar,
    out: Mutex<Out>,
    gives: Mutex<Gives>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    send_us: AtomicU64,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("id", &self.id).field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl Port {
    /// Makes the port of a link; a link of the ring that is only read has no sender.
    pub(super) fn new(
        id: LinkId,
        peer: DeviceId,
        purpose: Purpose,
        sender: Option<Box<dyn FrameSender>>,
        limit: Duration,
    ) -> Self {
        Self {
            id,
            peer,
            purpose,
            limit_us: AtomicU64::new(limit.as_micros() as u64),
            waiting: Mutex::default(),
            changed: Condvar::new(),
            out: Mutex::new(Out { sender, bytes: Vec::new() }),
            gives: Mutex::default(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            send_us: AtomicU64::new(0),
        }
    }

    fn wait<'a>(&self, waiting: MutexGuard<'a, Waiting>) -> MutexGuard<'a, Waiting> {
        self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame in. Returns false if too many wait. A heartbeat takes the place of one that waits.
    pub(super) fn put(&self, frame: Frame) -> bool {
        let mut waiting = locked(&self.waiting);
        if waiting.closed {
            return true;
        }
        if let Frame::Heartbeat(_) = &frame
            && let Some(older) = waiting.frames.iter_mut().find(|other| matches!(other, Frame::Heartbeat(_)))
        {
            *older = frame;
            return true;
        }
        if self.purpose != Purpose::Ring && waiting.frames.len() >= QUEUE {
            return false;
        }
        waiting.frames.push_back(frame);
        waiting.put += 1;
        true
    }

    /// Puts a frame in and waits until it was sent, by this thread if nobody else sends. Returns false if the
    /// link has ended.
    pub(super) fn send_and_wait(&self, frame: Frame) -> Result<bool, String> {
        let mut waiting = locked(&self.waiting);
        if waiting.closed {
            return Ok(false);
        }
        waiting.frames.push_back(frame);
        waiting.put += 1;
        let own = waiting.put;
        drop(waiting);
        if let Flushed::Failed(words) = self.flush(false) {
            return Err(words);
        }
        let mut waiting = locked(&self.waiting);
        while waiting.gone < own && !waiting.closed {
            waiting = self.wait(waiting);
        }
        Ok(waiting.gone >= own)
    }

    /// Sends what waits; with `small_only`, up to the first large frame.
    pub(super) fn flush(&self, small_only: bool) -> Flushed {
        loop {
            let frame = {
                let mut waiting = locked(&self.waiting);
                if waiting.writing {
                    return Flushed::Done;
                }
                match waiting.frames.front() {
                    None => {
                        let closed = waiting.closed;
                        drop(waiting);
                        if closed {
                            locked(&self.out).sender = None;
                        }
                        return Flushed::Done;
                    }
                    Some(frame) if small_only && bytes_of(frame) > DIRECT_BYTES => return Flushed::Left,
                    Some(_) => {}
                }
                waiting.writing = true;
                let frame = waiting.frames.pop_front();
                waiting.writes_step = matches!(frame, Some(Frame::Step(_)));
                frame
            };
            let Some(frame) = frame else { return Flushed::Done };
            let sent = self.write(frame);
            let mut waiting = locked(&self.waiting);
            (waiting.writing, waiting.writes_step) = (false, false);
            waiting.gone += 1;
            self.changed.notify_all();
            drop(waiting);
            if let Err(words) = sent {
                return Flushed::Failed(words);
            }
        }
    }

    fn write(&self, frame: Frame) -> Result<(), String> {
        let mut out = locked(&self.out);
        let Out { sender, bytes } = &mut *out;
        let Some(sender) = sender else { return Ok(()) };
        bytes.clear();
        frame.encode_into(bytes);
        drop(frame);
        let begun = Instant::now();
        let limit = Duration::from_micros(self.limit_us.load(Ordering::Acquire));
        sender.send(bytes, limit).map_err(|err| chain(&err))?;
        self.send_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::AcqRel);
        self.bytes_out.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        if bytes.capacity() > DIRECT_BYTES && self.purpose != Purpose::Ring {
            *bytes = Vec::new();
        }
        Ok(())
    }

    /// Whether the caller must start the port's writing thread; if there is one, it is woken.
    pub(super) fn wake_writer(&self) -> bool {
        let mut waiting = locked(&self.waiting);
        let starts = !waiting.has_thread;
        waiting.has_thread = true;
        self.changed.notify_all();
        starts
    }

    /// Sends what is put in, until the link is closed. Returns the message of a link that does not work.
    pub(super) fn write_all(&self) -> Option<String> {
        loop {
            if let Flushed::Failed(words) = self.flush(false) {
                return Some(words);
            }
            let mut waiting = locked(&self.waiting);
            while waiting.writing || waiting.frames.is_empty() {
                if waiting.closed && waiting.frames.is_empty() && !waiting.writing {
                    return None;
                }
                waiting = self.wait(waiting);
            }
        }
    }

    /// Puts in what is to be given.
    pub(super) fn will_give(&self, give: Give) -> WillGive {
        let mut gives = locked(&self.gives);
        if gives.waiting.len() >= GIVES {
            return WillGive::Refused;
        }
        gives.waiting.push_back(give);
        match std::mem::replace(&mut gives.giving, true) {
            true => WillGive::Waits,
            false => WillGive::Starts,
        }
    }

    /// Returns what is to be given next; if nothing is, the thread that gives has ended.
    pub(super) fn next_give(&self) -> Option<Give> {
        let mut gives = locked(&self.gives);
        let next = gives.waiting.pop_front();
        gives.giving = next.is_some();
        next
    }

    /// Sets whether the link is read.
    pub(super) fn hold(&self, held: bool) {
        locked(&self.waiting).held = held;
        self.changed.notify_all();
    }

    /// Waits until the link may be read. Returns false if it is closed.
    pub(super) fn may_read(&self) -> bool {
        let mut waiting = locked(&self.waiting);
        while waiting.held && !waiting.closed {
            waiting = self.wait(waiting);
        }
        !waiting.closed
    }

    /// Ends the port. What waits is still sent, except on a link of the ring, where nobody wants it any more.
    pub(super) fn close(&self) {
        let mut waiting = locked(&self.waiting);
        waiting.closed = true;
        if self.purpose == Purpose::Ring {
            waiting.gone += waiting.frames.len() as u64;
            waiting.frames.clear();
        }
        self.changed.notify_all();
    }

    /// Ends the port of a link that has ended: nothing more is sent.
    pub(super) fn abandon(&self) {
        let mut waiting = locked(&self.waiting);
        waiting.closed = true;
        waiting.gone += waiting.frames.len() as u64;
        waiting.frames.clear();
        self.changed.notify_all();
        let idle = !waiting.writing;
        drop(waiting);
        if idle {
            locked(&self.out).sender = None;
        }
    }

    /// Hangs up if the port is closed and nothing waits any more. Returns whether it did.
    pub(super) fn hang_up_if_done(&self) -> bool {
        let waiting = locked(&self.waiting);
        let done = waiting.closed && waiting.frames.is_empty() && !waiting.writing;
        drop(waiting);
        if done {
            locked(&self.out).sender = None;
        }
        done
    }

    /// Sets how long one frame may take from now on.
    pub(super) fn set_limit(&self, limit: Duration) {
        self.limit_us.store(limit.as_micros() as u64, Ordering::Release);
    }

    /// Counts received bytes.
    pub(super) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Returns what it has transferred.
    pub(super) fn moved(&self) -> Moved {
        let waiting = locked(&self.waiting);
        let steps = waiting.frames.iter().filter(|frame| matches!(frame, Frame::Step(_))).count();
        Moved {
            unsent: steps as u64 + u64::from(waiting.writes_step),
            bytes_in: self.bytes_in.load(Ordering::Acquire),
            bytes_out: self.bytes_out.load(Ordering::Acquire),
            send_us: self.send_us.load(Ordering::Acquire),
        }
    }
}

/// Returns about how many bytes a frame has.
fn bytes_of(frame: &Frame) -> usize {
    match frame {
        Frame::Step(step) => BESIDE_BYTES + step.states.hidden().values.len() * size_of::<f32>(),
        Frame::Piece(piece) => BESIDE_BYTES + piece.bytes.len(),
        Frame::Manifest(bytes) | Frame::HasPieces(bytes) => BESIDE_BYTES + bytes.len(),
        Frame::Echo(echo) | Frame::Echoed(echo) => BESIDE_BYTES + echo.bytes.len(),
        _ => BESIDE_BYTES,
    }
}

#[cfg(test)]
mod tests;
