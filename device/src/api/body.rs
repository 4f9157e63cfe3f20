//! Reads request bodies, with limits on the bytes of one and of all together, and on time.
//!
//! Always: a slow sender takes no place for answers, and what it has sent so far is bounded. A body that was
//! read counts until it is dropped, so that bodies that are being parsed are bounded too.

use super::error::ApiError;
use axum::body::{Body, Bytes};
use baton_openai::FieldError;
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of one body.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// The most kibibytes of all bodies that are being read and parsed.
const BODIES_KIB_MAX: usize = 64 << 10;
/// Time for a whole body.
const WITHIN: Duration = Duration::from_secs(30);

/// Limits of bodies that are being read and parsed.
#[derive(Debug, Clone)]
pub struct Bodies {
    kib: Arc<Semaphore>,
    within: Duration,
}

impl Default for Bodies {
    fn default() -> Self {
        Self { kib: Arc::new(Semaphore::new(BODIES_KIB_MAX)), within: WITHIN }
    }
}

/// A body that was read, with its share of the memory for all bodies.
#[derive(Debug)]
pub(super) struct Held {
    bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// Returns the whole body.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Drops the body, and returns its share of the memory for what was made of it.
    pub(super) fn into_share(self) -> Option<OwnedSemaphorePermit> {
        self.share
    }
}

impl Bodies {
    /// Sets the time limit of each body.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Reads the whole body.
    pub(super) async fn read(&self, body: Body) -> Result<Held, ApiError> {
        match tokio::time::timeout(self.within, self.gather(body)).await {
            Ok(read) => read,
            Err(_) => Err(ApiError::SlowBody { seconds: self.within.as_secs_f64() }),
        }
    }

    async fn gather(&self, body: Body) -> Result<Held, ApiError> {
        let mut chunks = body.into_data_stream();
        let (mut bytes, mut held) = (Vec::new(), None);
        while let Some(chunk) = chunks.next().await {
            let chunk: Bytes = chunk.map_err(|_| FieldError::whole("the body ends early"))?;
            if bytes.len() + chunk.len() > BODY_BYTES_MAX {
                return Err(ApiError::TooLarge { max: BODY_BYTES_MAX });
            }
            self.hold(&mut held, chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        Ok(Held { bytes, share: held })
    }

    fn hold(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), ApiError> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let more = self.kib.clone().try_acquire_many_owned(kib).map_err(|_| ApiError::Bodies)?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_counts_until_it_is_dropped() {
        let bodies = Bodies::default();
        let held = bodies.read(Body::from(vec![b' '; 3 << 10])).await.unwrap();
        assert_eq!((held.bytes().len(), bodies.kib.available_permits()), (3 << 10, BODIES_KIB_MAX - 3));
        drop(held);
        assert_eq!(bodies.kib.available_permits(), BODIES_KIB_MAX);
    }
}
