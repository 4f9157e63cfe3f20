//! Results of futures that never wait.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Returns the result of a future that never waits: on native interfaces wgpu answers at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
