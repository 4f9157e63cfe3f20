//! Reads and writes on a blocking socket that end at a deadline, even if bytes arrive slowly.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::ChannelError;

/// The shortest socket timeout: systems count it in milliseconds and read 0 as "no timeout".
const LEAST: Duration = Duration::from_millis(1);
/// A longer wait is meant as "for ever".
const MOST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A moment of monotonic time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout.min(MOST))
    }

    /// Returns the time left, never 0. Fails if the deadline has passed.
    pub(super) fn left(&self) -> Result<Duration, ChannelError> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ChannelError::TimedOut) } else { Ok(left.max(LEAST)) }
    }
}

/// Maps an error of a socket to an error of the channel.
pub(super) fn channel_error(err: io::Error) -> ChannelError {
    match err.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ChannelError::TimedOut,
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected
        | ErrorKind::UnexpectedEof => ChannelError::Closed,
        _ => ChannelError::Io(err),
    }
}

/// Reads the bytes that are available, at least one.
pub(super) fn read_some(
    mut stream: &TcpStream,
    buffer: &mut [u8],
    wait: Duration,
) -> Result<usize, ChannelError> {
    stream.set_read_timeout(Some(wait.max(LEAST))).map_err(channel_error)?;
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(ChannelError::Closed),
            Ok(bytes) => return Ok(bytes),
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(channel_error(err)),
        }
    }
}

/// Fills the buffer.
pub(super) fn read_all(
    stream: &TcpStream,
    mut buffer: &mut [u8],
    deadline: &Deadline,
) -> Result<(), ChannelError> {
    while !buffer.is_empty() {
        let bytes = read_some(stream, buffer, deadline.left()?)?;
        buffer = &mut buffer[bytes..];
    }
    Ok(())
}

/// Writes all bytes.
pub(super) fn write_all(
    mut stream: &TcpStream,
    mut bytes: &[u8],
    deadline: &Deadline,
) -> Result<(), ChannelError> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(deadline.left()?)).map_err(channel_error)?;
        match stream.write(bytes) {
            Ok(0) => return Err(ChannelError::Closed),
            Ok(written) => bytes = &bytes[written..],
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(channel_error(err)),
        }
    }
    Ok(())
}
