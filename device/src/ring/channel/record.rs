//! Frames as records of Noise, in both directions of a channel.
//!
//! On the wire a record is two bytes of length and one encrypted message. A frame is as many full records as it fills
//! and one that is not full, which ends it; so a frame of a multiple of a record's size ends with an empty one. The
//! n-th record of a direction is sealed with nonce n: one that is repeated, left out or moved does not open.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use snow::StatelessTransportState;

use super::deadline::{Deadline, read_some, sort, write_all};
use super::instances::Presence;
use super::{ChannelError, FRAME_BYTES_MAX, hang_up};

const LENGTH: usize = 2;
const TAG: usize = 16;
const SEALED_MAX: usize = u16::MAX as usize;
/// Bytes of a frame in a full record.
pub(super) const RECORD_BYTES: usize = SEALED_MAX - TAG;
/// Records under one key: no more are sealed or opened. Noise's own end of nonces is at 2^64 - 1.
pub(super) const RECORDS_MAX: u64 = 1 << 48;
/// Sealed bytes that are handed to the system at once.
const WRITE_BYTES: usize = 256 << 10;
const READ_BYTES: usize = 2 * (LENGTH + SEALED_MAX);

/// How slowly a frame that has begun may arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Time that every frame has.
    pub(super) grace: Duration,
    /// Time beyond it: its bytes at this rate.
    pub(super) bytes_per_s: f64,
}

/// Slower than any network that a ring is of use on.
const PACE: Pace = Pace { grace: Duration::from_secs(10), bytes_per_s: 32_768.0 };

impl Pace {
    /// How long a frame of which so many bytes have come in this time may still keep its reader; none where it is over.
    pub(super) fn left(self, elapsed: Duration, bytes: usize) -> Option<Duration> {
        let allowed = self.grace + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        allowed.checked_sub(elapsed).filter(|left| !left.is_zero())
    }
}

/// Both directions of a connection.
pub(super) fn halves(
    stream: TcpStream,
    transport: StatelessTransportState,
) -> Result<(Sender, Receiver), ChannelError> {
    let transport = Arc::new(transport);
    let sender = Sender {
        stream: stream.try_clone().map_err(sort)?,
        sealer: Sealer { transport: Arc::clone(&transport), nonce: 0 },
        out: Vec::new(),
        cut: false,
        _presence: None,
    };
    let receiver = Receiver {
        stream,
        opener: Opener { transport, nonce: 0 },
        raw: vec![0; READ_BYTES].into_boxed_slice(),
        from: 0,
        to: 0,
        frame: Vec::new(),
        begun: None,
        pace: PACE,
        cut: false,
        _presence: None,
    };
    Ok((sender, receiver))
}

/// Seals records, in order.
pub(super) struct Sealer {
    transport: Arc<StatelessTransportState>,
    pub(super) nonce: u64,
}

impl Sealer {
    /// Appends a sealed piece of a frame to `out` behind its first `at` bytes; returns where it ends.
    pub(super) fn seal(&mut self, piece: &[u8], out: &mut Vec<u8>, at: usize) -> Result<usize, ChannelError> {
        if self.nonce >= RECORDS_MAX {
            return Err(ChannelError::Exhausted(RECORDS_MAX));
        }
        let sealed = piece.len() + TAG;
        let end = at + LENGTH + sealed;
        // Bytes are set to 0 only where the buffer grows, not once for every frame.
        if out.len() < end {
            out.resize(end, 0);
        }
        let length = u16::try_from(sealed).expect("a piece is at most a record's bytes");
        out[at..at + LENGTH].copy_from_slice(&length.to_be_bytes());
        let wrote = self.transport.write_message(self.nonce, piece, &mut out[at + LENGTH..end]);
        assert_eq!(wrote.ok(), Some(sealed), "the buffer has a record's size");
        self.nonce += 1;
        Ok(end)
    }
}

/// Opens records, in order.
pub(super) struct Opener {
    transport: Arc<StatelessTransportState>,
    pub(super) nonce: u64,
}

impl Opener {
    /// Appends what a record holds to the frame; says whether the frame is whole.
    pub(super) fn open(&mut self, sealed: &[u8], frame: &mut Vec<u8>) -> Result<bool, ChannelError> {
        if self.nonce >= RECORDS_MAX {
            return Err(ChannelError::Exhausted(RECORDS_MAX));
        }
        let piece = sealed.len().checked_sub(TAG).ok_or(ChannelError::Forged)?;
        let begun = frame.len();
        if begun + piece > FRAME_BYTES_MAX {
            return Err(ChannelError::TooLarge { bytes: begun + piece, max: FRAME_BYTES_MAX });
        }
        // Opened in place, with room for the tag.
        frame.resize(begun + sealed.len(), 0);
        let opened = self.transport.read_message(self.nonce, sealed, &mut frame[begun..]);
        match opened {
            Ok(bytes) if bytes == piece => {
                frame.truncate(begun + piece);
                self.nonce += 1;
                Ok(piece < RECORD_BYTES)
            }
            Ok(_) | Err(_) => {
                frame.truncate(begun);
                Err(ChannelError::Forged)
            }
        }
    }
}

/// The first whole record of what has arrived: its sealed bytes.
pub(super) fn first_record(raw: &[u8]) -> Option<&[u8]> {
    let (length, rest) = raw.split_first_chunk::<LENGTH>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

/// The direction out of this device.
pub struct Sender {
    stream: TcpStream,
    sealer: Sealer,
    out: Vec<u8>,
    cut: bool,
    /// Kept for as long as this half is there.
    pub(super) _presence: Option<Arc<Presence>>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("records", &self.sealer.nonce)
            .field("cut", &self.cut)
            .finish_non_exhaustive()
    }
}

impl Sender {
    /// Sends a frame; up to 256 KiB go to the system in one call.
    ///
    /// # Errors
    /// [`ChannelError::TooLarge`], after which the channel is as before; else the channel is cut, since part of the
    /// frame may have gone: [`ChannelError::TimedOut`] where the other side takes too little in this time,
    /// [`ChannelError::Closed`], [`ChannelError::Exhausted`], [`ChannelError::Io`].
    pub fn send(&mut self, frame: &[u8], timeout: Duration) -> Result<(), ChannelError> {
        if self.cut {
            return Err(ChannelError::Closed);
        }
        if frame.len() > FRAME_BYTES_MAX {
            return Err(ChannelError::TooLarge { bytes: frame.len(), max: FRAME_BYTES_MAX });
        }
        let sent = self.send_records(frame, &Deadline::after(timeout));
        if sent.is_err() {
            self.close();
        }
        sent
    }

    fn send_records(&mut self, mut rest: &[u8], deadline: &Deadline) -> Result<(), ChannelError> {
        let mut filled = 0;
        loop {
            let (piece, behind) = rest.split_at(rest.len().min(RECORD_BYTES));
            filled = self.sealer.seal(piece, &mut self.out, filled)?;
            let last = piece.len() < RECORD_BYTES;
            if last || filled + LENGTH + SEALED_MAX > WRITE_BYTES {
                write_all(&self.stream, &self.out[..filled], deadline)?;
                filled = 0;
            }
            if last {
                return Ok(());
            }
            rest = behind;
        }
    }

    #[cfg(test)]
    pub(super) fn sealer_for_tests(&mut self) -> &mut Sealer {
        &mut self.sealer
    }

    #[cfg(test)]
    pub(super) fn stream_for_tests(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Ends the channel in both directions; a thread that waits in [`Receiver::receive`] wakes with
    /// [`ChannelError::Closed`].
    pub fn close(&mut self) {
        self.cut = true;
        hang_up(&self.stream);
    }
}

/// The direction into this device.
pub struct Receiver {
    stream: TcpStream,
    opener: Opener,
    raw: Box<[u8]>,
    /// What of `raw` has arrived and is not opened yet.
    from: usize,
    to: usize,
    /// The frame so far.
    frame: Vec<u8>,
    /// When its first bytes came, and how many have come since.
    begun: Option<(Instant, usize)>,
    pub(super) pace: Pace,
    cut: bool,
    /// Kept for as long as this half is there.
    pub(super) _presence: Option<Arc<Presence>>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("records", &self.opener.nonce)
            .field("cut", &self.cut)
            .finish_non_exhaustive()
    }
}

impl Receiver {
    /// The next frame.
    ///
    /// # Errors
    /// [`ChannelError::TimedOut`] where it is not whole in this time; nothing is lost then, and a later call goes on
    /// with it, unless the frame came so slowly (below 32 KiB/s after 10 s) that the channel was cut. Any other error
    /// ends the channel: [`ChannelError::Closed`], [`ChannelError::Forged`], [`ChannelError::TooLarge`],
    /// [`ChannelError::Exhausted`], [`ChannelError::Io`].
    pub fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, ChannelError> {
        let mut frame = Vec::new();
        self.receive_into(&mut frame, timeout)?;
        Ok(frame)
    }

    /// The next frame in place of what `frame` held; its memory is used again.
    ///
    /// # Errors
    /// As of [`Receiver::receive`]; `frame` is then as it was.
    pub fn receive_into(&mut self, frame: &mut Vec<u8>, timeout: Duration) -> Result<(), ChannelError> {
        if self.cut {
            return Err(ChannelError::Closed);
        }
        match self.receive_records(&Deadline::after(timeout)) {
            Ok(()) => {
                std::mem::swap(frame, &mut self.frame);
                self.frame.clear();
                self.begun = None;
                Ok(())
            }
            Err(err) => {
                let slow =
                    self.begun.is_some_and(|(at, bytes)| self.pace.left(at.elapsed(), bytes).is_none());
                if slow || !matches!(err, ChannelError::TimedOut) {
                    self.close();
                }
                Err(err)
            }
        }
    }

    fn receive_records(&mut self, deadline: &Deadline) -> Result<(), ChannelError> {
        loop {
            while let Some(sealed) = first_record(&self.raw[self.from..self.to]) {
                let whole = self.opener.open(sealed, &mut self.frame)?;
                self.from += LENGTH + sealed.len();
                if whole {
                    return Ok(());
                }
            }
            self.read_more(deadline)?;
        }
    }

    /// Waits for bytes behind those that are there; a whole record always fits.
    fn read_more(&mut self, deadline: &Deadline) -> Result<(), ChannelError> {
        if self.from > 0 {
            self.raw.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let mut wait = deadline.left()?;
        if let Some((at, bytes)) = self.begun {
            wait = wait.min(self.pace.left(at.elapsed(), bytes).ok_or(ChannelError::TimedOut)?);
        }
        let bytes = read_some(&self.stream, &mut self.raw[self.to..], wait)?;
        self.to += bytes;
        let (_, come) = self.begun.get_or_insert_with(|| (Instant::now(), 0));
        *come += bytes;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn opener_for_tests(&mut self) -> &mut Opener {
        &mut self.opener
    }

    /// Ends the channel in both directions.
    pub fn close(&mut self) {
        self.cut = true;
        hang_up(&self.stream);
    }
}
