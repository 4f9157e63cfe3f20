//! The clock of a host, which tests can move by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time since some fixed moment, monotonic. It is a parameter, so that tests can control time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Makes a clock that shows the machine's monotonic time.
    pub fn monotonic() -> Clock {
        let start = Instant::now();
        Clock(Arc::new(move || start.elapsed()))
    }

    /// Makes a clock that shows what `now` returns, which must never go back.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// Returns the current time.
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
