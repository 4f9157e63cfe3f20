//! A stream whose writes give up when the other side reads nothing for too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Passes everything on; a write or flush that stays pending for `limit` fails with `TimedOut`.
#[derive(Debug)]
pub(super) struct WriteDeadline<S> {
    stream: S,
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    pending: bool,
}

impl<S> WriteDeadline<S> {
    pub(super) fn new(stream: S, limit: Duration) -> WriteDeadline<S> {
        WriteDeadline { stream, limit, timer: Box::pin(tokio::time::sleep(limit)), pending: false }
    }

    /// Turns a write's result into the guarded one.
    fn guard<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.pending = false;
            return result;
        }
        if !self.pending {
            self.pending = true;
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_reader_that_never_reads_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = WriteDeadline::new(ours, Duration::from_millis(1));
        ours.write_all(&[1; 16]).await.unwrap();
        let err = ours.write_all(&[2; 16]).await.unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::TimedOut);
        let mut read = [0; 16];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [1; 16]);
    }

    #[tokio::test]
    async fn a_reader_in_small_steps_is_kept() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let reader = tokio::spawn(async move {
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).await.map(|_| read)
        });
        let mut ours = WriteDeadline::new(ours, Duration::from_secs(600));
        ours.write_all(&[7; 4000]).await.unwrap();
        ours.shutdown().await.unwrap();
        drop(ours);
        assert_eq!(reader.await.unwrap().unwrap(), [7; 4000]);
    }
}
