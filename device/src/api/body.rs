//! Reads request bodies within bounds: of bytes for one and for all together, and of time.
//!
//! Always: a sender that is slow holds no place for answers, and what it has sent so far is bounded. A body that was read
//! counts until it is dropped, so that those that are being parsed are bounded too.

use super::error::ApiError;
use axum::body::{Body, Bytes};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of one body.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// Kibibytes of all bodies that are being read and parsed.
const BODIES_KIB_MAX: usize = 64 << 10;
/// For a whole body.
const WITHIN: Duration = Duration::from_secs(30);

/// What bodies that are being read and parsed may take.
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

/// A body that was read, with its share of what all may take.
#[derive(Debug)]
pub(super) struct Held {
    bytes: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// The whole body.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bodies {
    /// The same with another limit of time for each.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// The whole body.
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
            let chunk: Bytes = chunk.map_err(|_| ApiError::BadRequest {
                message: "the body broke off before its end".into(),
                param: None,
            })?;
            if bytes.len() + chunk.len() > BODY_BYTES_MAX {
                return Err(ApiError::TooLarge { max: BODY_BYTES_MAX });
            }
            self.hold(&mut held, chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        Ok(Held { bytes, _share: held })
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
