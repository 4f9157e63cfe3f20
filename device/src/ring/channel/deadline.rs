//! Reads and writes of a blocking socket that end at a moment, however slowly bytes come.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::ChannelError;

/// Systems count a socket's time in milliseconds, and read 0 as for ever.
const LEAST: Duration = Duration::from_millis(1);
/// Waits of more than this are meant as for ever.
const MOST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A moment of monotonic time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout.min(MOST))
    }

    /// Time that is left, never 0.
    pub(super) fn left(&self) -> Result<Duration, ChannelError> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ChannelError::TimedOut) } else { Ok(left.max(LEAST)) }
    }
}

/// What an error of a socket means for a channel.
pub(super) fn sort(err: io::Error) -> ChannelError {
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

/// Reads what is there, at least one byte.
pub(super) fn read_some(
    mut stream: &TcpStream,
    buffer: &mut [u8],
    wait: Duration,
) -> Result<usize, ChannelError> {
    stream.set_read_timeout(Some(wait.max(LEAST))).map_err(sort)?;
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(ChannelError::Closed),
            Ok(bytes) => return Ok(bytes),
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(sort(err)),
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

/// Writes all of it.
pub(super) fn write_all(
    mut stream: &TcpStream,
    mut bytes: &[u8],
    deadline: &Deadline,
) -> Result<(), ChannelError> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(deadline.left()?)).map_err(sort)?;
        match stream.write(bytes) {
            Ok(0) => return Err(ChannelError::Closed),
            Ok(written) => bytes = &bytes[written..],
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(sort(err)),
        }
    }
    Ok(())
}
