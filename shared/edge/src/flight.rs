//! Requests in flight: from their head to the last byte of their reply.
//!
//! Always: a request counts exactly once, until the body of its reply is dropped, however it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::watch;

/// Counts the requests of all connections.
#[derive(Debug, Clone)]
pub(super) struct Flight(Arc<watch::Sender<usize>>);

impl Default for Flight {
    fn default() -> Flight {
        Flight(Arc::new(watch::Sender::new(0)))
    }
}

impl Flight {
    /// Returns the number of requests in flight.
    pub(super) fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Completes when no request is in flight.
    pub(super) async fn empty(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Counts one more request, on the connection with this traffic.
    pub(super) fn enter(&self, traffic: &Arc<Traffic>) -> Passage {
        self.0.send_modify(|count| *count += 1);
        traffic.under_way.fetch_add(1, Ordering::AcqRel);
        traffic.requests.fetch_add(1, Ordering::Relaxed);
        Passage { flight: self.clone(), traffic: traffic.clone() }
    }
}

/// Counters of one connection.
#[derive(Debug)]
pub(super) struct Traffic {
    begun_at: Instant,
    /// When the last request ended, in milliseconds since `begun_at`.
    ended_ms: AtomicU64,
    under_way: AtomicUsize,
    requests: AtomicU64,
    conflict: AtomicBool,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic {
            begun_at: Instant::now(),
            ended_ms: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            conflict: AtomicBool::new(false),
        }
    }
}

impl Traffic {
    /// Whether a request is in flight. If so, the bytes being read are its body.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Whether no request has been in flight for at least this long.
    pub(super) fn has_rested(&self, least: Duration) -> bool {
        let ended = Duration::from_millis(self.ended_ms.load(Ordering::Acquire));
        !self.is_busy() && self.begun_at.elapsed().saturating_sub(ended) >= least
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Records that the head just read gives two lengths for its body.
    pub(super) fn note_conflict(&self) {
        self.conflict.store(true, Ordering::Release);
    }

    /// Returns whether [`Self::note_conflict`] was called, and resets it; called once per request.
    pub(super) fn take_conflict(&self) -> bool {
        self.conflict.swap(false, Ordering::AcqRel)
    }
}

/// One request in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Passage {
    flight: Flight,
    traffic: Arc<Traffic>,
}

impl Passage {
    /// Wraps the reply's body, so that the request counts until the body is dropped.
    pub(super) fn carry(self, body: Body) -> Body {
        Body::new(Carried { body, _passage: self })
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let now_ms = u64::try_from(self.traffic.begun_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.traffic.ended_ms.store(now_ms, Ordering::Release);
        self.traffic.under_way.fetch_sub(1, Ordering::AcqRel);
        self.flight.0.send_modify(|count| *count -= 1);
    }
}

struct Carried {
    body: Body,
    _passage: Passage,
}

impl HttpBody for Carried {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_counts_until_its_body_is_gone() {
        let (flight, traffic) = (Flight::default(), Arc::new(Traffic::default()));
        let body = flight.enter(&traffic).carry(Body::from("x"));
        assert_eq!((flight.count(), traffic.requests()), (1, 1));
        assert!(traffic.is_busy());
        drop(body);
        flight.empty().await;
        assert!(!traffic.is_busy());
        assert_eq!((flight.count(), traffic.requests()), (0, 1));
    }
}
