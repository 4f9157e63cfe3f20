//! Frames as Noise records, in both directions of a channel.
//!
//! On the wire a record is two bytes of length and one encrypted message. A frame is sent as full records,
//! followed by one that is not full and ends the frame. So a frame whose size is a multiple of the record
//! size ends with an empty record. The n-th record of a direction is encrypted with nonce n: a record that
//! is repeated, left out or moved cannot be decrypted.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use snow::StatelessTransportState;

use super::deadline::{Deadline, channel_error, read_some, write_all};
use super::instances::Presence;
use super::{ChannelError, FRAME_BYTES_MAX, hang_up};

const LENGTH: usize = 2;
const TAG: usize = 16;
const SEALED_MAX: usize = u16::MAX as usize;
/// Bytes of a frame in a full record.
pub(super) const RECORD_BYTES: usize = SEALED_MAX - TAG;
/// Most records under one key. Noise itself allows nonces up to 2^64 - 1.
pub(super) const RECORDS_MAX: u64 = 1 << 48;
/// Encrypted bytes that are passed to the system in one call.
const WRITE_BYTES: usize = 256 << 10;
const READ_BYTES: usize = 2 * (LENGTH + SEALED_MAX);

/// How slowly a frame may arrive after it has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct MinimumRate {
    /// Time that every frame has.
    pub(super) grace: Duration,
    /// Every frame has additional time for its bytes, at this rate.
    pub(super) bytes_per_s: f64,
}

/// Slower than any network on which a ring is useful.
const MINIMUM_RATE: MinimumRate = MinimumRate { grace: Duration::from_secs(10), bytes_per_s: 32_768.0 };

impl MinimumRate {
    /// Returns how long the reader may still wait for a frame of which `bytes` have arrived in `elapsed`,
    /// or `None` if its time is over.
    pub(super) fn left(self, elapsed: Duration, bytes: usize) -> Option<Duration> {
        let allowed = self.grace + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        allowed.checked_sub(elapsed).filter(|left| !left.is_zero())
    }
}

/// Returns both directions of a connection.
pub(super) fn halves(
    stream: TcpStream,
    transport: StatelessTransportState,
) -> Result<(Sender, Receiver), ChannelError> {
    let transport = Arc::new(transport);
    let sender = Sender {
        stream: stream.try_clone().map_err(channel_error)?,
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
        minimum_rate: MINIMUM_RATE,
        cut: false,
        _presence: None,
    };
    Ok((sender, receiver))
}

/// Encrypts records in order.
pub(super) struct Sealer {
    transport: Arc<StatelessTransportState>,
    pub(super) nonce: u64,
}

impl Sealer {
    /// Appends an encrypted piece of a frame to the first `at` bytes of `out`, and returns where it ends.
    pub(super) fn seal(&mut self, piece: &[u8], out: &mut Vec<u8>, at: usize) -> Result<usize, ChannelError> {
        if self.nonce >= RECORDS_MAX {
            return Err(ChannelError::Exhausted(RECORDS_MAX));
        }
        let sealed = piece.len() + TAG;
        let end = at + LENGTH + sealed;
        // Bytes are set to 0 only if the buffer grows, not for every frame.
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

/// Decrypts records in order.
pub(super) struct Opener {
    transport: Arc<StatelessTransportState>,
    pub(super) nonce: u64,
}

impl Opener {
    /// Appends the content of a record to the frame, and returns whether the frame is complete.
    pub(super) fn open(&mut self, sealed: &[u8], frame: &mut Vec<u8>) -> Result<bool, ChannelError> {
        if self.nonce >= RECORDS_MAX {
            return Err(ChannelError::Exhausted(RECORDS_MAX));
        }
        let piece = sealed.len().checked_sub(TAG).ok_or(ChannelError::Forged)?;
        let begun = frame.len();
        if begun + piece > FRAME_BYTES_MAX {
            return Err(ChannelError::TooLarge { bytes: begun + piece, max: FRAME_BYTES_MAX });
        }
        // Decrypted in place, with room for the tag.
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

/// Returns the encrypted bytes of the first whole record in `raw`, if there is one.
pub(super) fn first_record(raw: &[u8]) -> Option<&[u8]> {
    let (length, rest) = raw.split_first_chunk::<LENGTH>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

/// The sending direction.
pub struct Sender {
    stream: TcpStream,
    sealer: Sealer,
    out: Vec<u8>,
    cut: bool,
    /// Keeps the peer's entry in the list of open channels as long as this half lives.
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
    /// Sends a frame; up to 256 KiB are passed to the system in one call.
    ///
    /// # Errors
    /// After [`ChannelError::TooLarge`] the channel is as before. All other errors end the channel, because
    /// part of the frame may have been sent: [`ChannelError::TimedOut`] if the other side takes too little
    /// within `timeout`, [`ChannelError::Closed`], [`ChannelError::Exhausted`], [`ChannelError::Io`].
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

    /// Ends the channel in both directions. A thread that waits in [`Receiver::receive`] wakes up with
    /// [`ChannelError::Closed`].
    pub fn close(&mut self) {
        self.cut = true;
        hang_up(&self.stream);
    }
}

/// The receiving direction.
pub struct Receiver {
    stream: TcpStream,
    opener: Opener,
    raw: Box<[u8]>,
    /// From here to `to`, `raw` holds bytes that have arrived and are not decrypted yet.
    from: usize,
    to: usize,
    /// The frame so far.
    frame: Vec<u8>,
    /// When its first bytes arrived, and how many have arrived since.
    begun: Option<(Instant, usize)>,
    pub(super) minimum_rate: MinimumRate,
    cut: bool,
    /// Keeps the peer's entry in the list of open channels as long as this half lives.
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
    /// Returns the next frame.
    ///
    /// # Errors
    /// [`ChannelError::TimedOut`] if the frame is not complete within `timeout`. Nothing is lost then: a
    /// later call continues with it. But if the frame arrives too slowly (below 32 KiB/s after 10 s), the
    /// channel is ended. Any other error ends the channel: [`ChannelError::Closed`],
    /// [`ChannelError::Forged`], [`ChannelError::TooLarge`], [`ChannelError::Exhausted`],
    /// [`ChannelError::Io`].
    pub fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, ChannelError> {
        let mut frame = Vec::new();
        self.receive_into(&mut frame, timeout)?;
        Ok(frame)
    }

    /// Puts the next frame into `frame`, in place of its content; its memory is used again.
    ///
    /// # Errors
    /// The errors of [`Receiver::receive`]; `frame` is then unchanged.
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
                let slow = self
                    .begun
                    .is_some_and(|(at, bytes)| self.minimum_rate.left(at.elapsed(), bytes).is_none());
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

    /// Waits for more bytes and appends them to `raw`; a whole record always fits.
    fn read_more(&mut self, deadline: &Deadline) -> Result<(), ChannelError> {
        if self.from > 0 {
            self.raw.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let mut wait = deadline.left()?;
        if let Some((at, bytes)) = self.begun {
            wait = wait.min(self.minimum_rate.left(at.elapsed(), bytes).ok_or(ChannelError::TimedOut)?);
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
