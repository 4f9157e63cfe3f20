//! A stream with deadlines: for a client that does not read, a head that does not end, and an idle
//! connection.
//!
//! hyper's own timer starts at the end of the last reply. One limit would have to serve both a head (seconds)
//! and a connection that is kept alive (a minute). A route cannot see a connection on which no request ever
//! began. Never: changes a byte. Always: while a request is in flight, reads have no limit here, because the
//! API limits the time for its body.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::flight::Traffic;
use super::head::HeadScan;

/// The limits of one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    /// For a head, from its first byte; on a new connection, from the start.
    pub(super) head: Duration,
    /// Between the last reply and the first byte of the next head.
    pub(super) idle: Duration,
    /// For a write that stays pending.
    pub(super) write: Duration,
}

/// Passes all bytes through; fails with `TimedOut` if a deadline passes.
#[derive(Debug)]
pub(super) struct Guarded<S> {
    stream: S,
    deadlines: Deadlines,
    traffic: Arc<Traffic>,
    scan: HeadScan,
    reading: Reading,
    read_timer: Pin<Box<Sleep>>,
    writing: bool,
    write_timer: Pin<Box<Sleep>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Between two requests.
    Idle,
    /// A head is being read.
    Head,
    /// A request is in flight.
    Busy,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, deadlines: Deadlines, traffic: Arc<Traffic>) -> Guarded<S> {
        Guarded {
            stream,
            deadlines,
            traffic,
            scan: HeadScan::default(),
            reading: Reading::Head,
            read_timer: Box::pin(tokio::time::sleep(deadlines.head)),
            writing: false,
            write_timer: Box::pin(tokio::time::sleep(deadlines.write)),
        }
    }

    fn read_within(&mut self, reading: Reading, limit: Duration) {
        self.reading = reading;
        self.read_timer.as_mut().reset(Instant::now() + limit);
    }

    /// Applies the write deadline to the result of a write.
    fn guard<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.writing = false;
            return result;
        }
        if !self.writing {
            self.writing = true;
            self.write_timer.as_mut().reset(Instant::now() + self.deadlines.write);
        }
        ready!(self.write_timer.as_mut().poll(cx));
        Poll::Ready(Err(timed_out("the other side does not read")))
    }
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buf);
        if this.traffic.is_busy() {
            this.reading = Reading::Busy;
            return result;
        }
        if this.reading == Reading::Busy {
            this.scan.restart();
            this.read_within(Reading::Idle, this.deadlines.idle);
        }
        if matches!(result, Poll::Ready(Ok(()))) && buf.filled().len() > before {
            if this.reading == Reading::Idle {
                this.read_within(Reading::Head, this.deadlines.head);
            }
            if this.scan.conflicts(&buf.filled()[before..]) {
                this.traffic.note_conflict();
            }
        }
        // A head that comes in small pieces is always ready, so the deadline is checked here too.
        if this.read_timer.as_mut().poll(cx).is_ready() {
            let what = if this.reading == Reading::Idle { "no request came" } else { "the head did not end" };
            return Poll::Ready(Err(timed_out(what)));
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.guard(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.guard(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.guard(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.guard(cx, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::Flight;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(1);

    fn guarded(
        bytes: usize,
        deadlines: Deadlines,
    ) -> (Guarded<tokio::io::DuplexStream>, tokio::io::DuplexStream, Arc<Traffic>) {
        let (ours, theirs) = tokio::io::duplex(bytes);
        let traffic = Arc::new(Traffic::default());
        (Guarded::new(ours, deadlines, traffic.clone()), theirs, traffic)
    }

    #[tokio::test]
    async fn a_reader_that_never_reads_is_given_up() {
        let (mut ours, mut theirs, _) = guarded(16, Deadlines { head: LONG, idle: LONG, write: SHORT });
        ours.write_all(&[1; 16]).await.unwrap();
        let err = ours.write_all(&[2; 16]).await.unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::TimedOut);
        let mut read = [0; 16];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [1; 16]);
    }

    #[tokio::test]
    async fn a_reader_in_small_steps_is_kept() {
        let (mut ours, mut theirs, _) = guarded(4, Deadlines { head: LONG, idle: LONG, write: LONG });
        let reader = tokio::spawn(async move {
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).await.map(|_| read)
        });
        ours.write_all(&[7; 4000]).await.unwrap();
        ours.shutdown().await.unwrap();
        drop(ours);
        assert_eq!(reader.await.unwrap().unwrap(), [7; 4000]);
    }

    #[tokio::test]
    async fn a_head_ends_within_its_limit_and_an_idle_connection_within_its_own() {
        // No first byte arrives.
        let (mut ours, _theirs, _) = guarded(64, Deadlines { head: SHORT, idle: LONG, write: LONG });
        let err = ours.read_u8().await.unwrap_err();
        assert_eq!((err.kind(), err.to_string().as_str()), (io::ErrorKind::TimedOut, "the head did not end"));
        // A request, then silence.
        let (mut ours, mut theirs, traffic) = guarded(64, Deadlines { head: LONG, idle: SHORT, write: LONG });
        theirs.write_all(b"GET").await.unwrap();
        let mut read = [0; 3];
        ours.read_exact(&mut read).await.unwrap();
        let passage = Flight::default().enter(&traffic);
        theirs.write_all(b"bod").await.unwrap();
        ours.read_exact(&mut read).await.unwrap();
        drop(passage);
        let err = ours.read_u8().await.unwrap_err();
        assert_eq!(err.to_string(), "no request came");
    }

    #[tokio::test]
    async fn two_lengths_are_noted() {
        let (mut ours, mut theirs, traffic) = guarded(256, Deadlines { head: LONG, idle: LONG, write: LONG });
        let head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n";
        theirs.write_all(head).await.unwrap();
        let mut read = vec![0; head.len()];
        ours.read_exact(&mut read).await.unwrap();
        assert!(traffic.take_conflict());
        assert!(!traffic.take_conflict());
    }
}
