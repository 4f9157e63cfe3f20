//! Reading a request body: bounded in bytes, time and rate, gzip or plain.
//!
//! Always: what all bodies together hold in memory is bounded too ([`BodyPool`]), counted as it is taken and not as it is
//! announced, so that nobody takes room without sending anything; and a small body has its place whatever others send.

use std::io::Read;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use baton_protocol::ErrorCode;
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::error::ApiError;
use super::{ApiLimits, App};

/// Bytes that are inflated at a time.
const INFLATE_STEP: usize = 64 << 10;
/// Inflated bytes that any gzip body may have, whatever its ratio.
const RATIO_FREE_BYTES: usize = 64 << 10;
/// What each body may hold beside the pool: the number of connections bounds it.
const FREE_BYTES: usize = 64 << 10;
/// When to send a body again for which there was no room.
const RETRY_BODY_MS: u64 = 1000;

/// The memory of all bodies together.
#[derive(Debug, Clone)]
pub(super) struct BodyPool {
    room: Arc<Semaphore>,
    bytes_max: usize,
}

/// One body's share of it, given back when dropped.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyPool {
    pub(super) fn new(bytes_max: usize) -> BodyPool {
        BodyPool { room: Arc::new(Semaphore::new(bytes_max.min(Semaphore::MAX_PERMITS))), bytes_max }
    }

    /// Counts a body that has grown to hold so many bytes.
    fn grow(&self, held: &mut Held, bytes: usize) -> Result<(), ApiError> {
        let bytes = bytes.saturating_sub(FREE_BYTES).saturating_sub(held.bytes);
        if bytes == 0 {
            return Ok(());
        }
        let Some(more) =
            u32::try_from(bytes).ok().and_then(|bytes| self.room.clone().try_acquire_many_owned(bytes).ok())
        else {
            let message = format!("bodies that are being read hold {} bytes already", self.bytes_max);
            return Err(ApiError::new(ErrorCode::Overloaded, message).with_retry_after_ms(RETRY_BODY_MS));
        };
        held.bytes += bytes;
        match &mut held.permit {
            Some(permit) => permit.merge(more),
            None => held.permit = Some(more),
        }
        Ok(())
    }
}

/// A whole body, counted until it is dropped.
#[derive(Debug)]
pub(super) struct WholeBody {
    bytes: Vec<u8>,
    _held: Held,
}

impl Deref for WholeBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The whole body, inflated where it was compressed.
pub(super) async fn read(headers: &HeaderMap, body: Body, app: &App) -> Result<WholeBody, ApiError> {
    let (limits, pool) = (app.limits, app.bodies.clone());
    let gzip = is_gzip(headers)?;
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > limits.body_bytes_max as u64) {
        return Err(too_large(limits.body_bytes_max));
    }
    let whole = collect(body, &limits, &pool).await?;
    if !gzip {
        return Ok(whole);
    }
    let inflated = tokio::task::spawn_blocking(move || inflate(&whole, &limits, &pool)).await;
    inflated.unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "the body could not be read")))
}

async fn collect(mut body: Body, limits: &ApiLimits, pool: &BodyPool) -> Result<WholeBody, ApiError> {
    let (begun, mut bytes, mut held) = (Instant::now(), Vec::new(), Held::default());
    loop {
        let frame = match timeout_at(begun + limits.body_within(bytes.len()), body.frame()).await {
            Err(_) => return Err(too_slow(limits, begun.elapsed())),
            Ok(None) => return Ok(WholeBody { bytes, _held: held }),
            Ok(Some(Err(_))) => {
                return Err(ApiError::new(ErrorCode::InvalidRequest, "the body ends early"));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > limits.body_bytes_max {
            return Err(too_large(limits.body_bytes_max));
        }
        bytes.extend_from_slice(data);
        pool.grow(&mut held, bytes.capacity())?;
    }
}

impl ApiLimits {
    /// How long after its beginning the next byte of a body must be there, when so many are.
    fn body_within(&self, received: usize) -> Duration {
        let at_rate = received as f64 / self.body_rate_min.max(1) as f64;
        (self.body_grace + Duration::from_secs_f64(at_rate)).min(self.body_timeout)
    }
}

fn too_slow(limits: &ApiLimits, elapsed: Duration) -> ApiError {
    let message = if elapsed >= limits.body_timeout {
        format!("the body did not arrive within {} s", limits.body_timeout.as_secs_f64())
    } else {
        format!("the body arrives at less than {} bytes/s", limits.body_rate_min)
    };
    ApiError::new(ErrorCode::Timeout, message)
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, ApiError> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(false) };
    match encoding.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "identity" => Ok(false),
        "gzip" | "x-gzip" => Ok(true),
        _ => {
            let message = "content-encoding must be `gzip` or `identity`";
            Err(ApiError::new(ErrorCode::InvalidRequest, message).with_status(415))
        }
    }
}

/// Inflates step by step, so that what goes over a limit is never there.
fn inflate(packed: &[u8], limits: &ApiLimits, pool: &BodyPool) -> Result<WholeBody, ApiError> {
    let by_ratio =
        RATIO_FREE_BYTES.saturating_add(packed.len().saturating_mul(limits.inflate_ratio_max.max(1)));
    let (mut bytes, mut held) = (Vec::new(), Held::default());
    let mut decoder = MultiGzDecoder::new(packed);
    loop {
        let step = (&mut decoder).take(INFLATE_STEP as u64).read_to_end(&mut bytes);
        let Ok(step) = step else {
            return Err(ApiError::new(ErrorCode::InvalidRequest, "the body is not valid gzip"));
        };
        if bytes.len() > limits.inflated_bytes_max {
            return Err(too_large(limits.inflated_bytes_max));
        }
        if bytes.len() > by_ratio {
            let message = format!("the body inflates to over {} times its size", limits.inflate_ratio_max);
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).with_status(413));
        }
        pool.grow(&mut held, bytes.capacity())?;
        if step < INFLATE_STEP {
            return Ok(WholeBody { bytes, _held: held });
        }
    }
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("the body is over {limit} bytes")).with_status(413)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[track_caller]
    fn check(packed: &[u8], inflated_bytes_max: usize, ratio: usize, pool: usize, want: Result<&[u8], &str>) {
        let limits = ApiLimits { inflated_bytes_max, inflate_ratio_max: ratio, ..ApiLimits::default() };
        let pool = BodyPool::new(pool);
        let have = inflate(packed, &limits, &pool);
        match (have, want) {
            (Ok(have), Ok(want)) => assert_eq!(&*have, want),
            (Err(have), Err(want)) => assert!(format!("{have:?}").contains(want), "{have:?}"),
            (have, want) => panic!("{have:?}, want {want:?}"),
        }
        assert_eq!(pool.room.available_permits(), pool.bytes_max, "all is given back");
    }

    #[test]
    fn inflated_bodies_are_bounded() {
        check(&gzip(b"hello"), 5, 1, 100, Ok(b"hello"));
        check(&gzip(b"hello!"), 5, 100, 100, Err("over 5 bytes"));
        check(b"not gzip", 100, 100, 100, Err("not valid gzip"));
        check(&gzip(b"hello")[..10], 100, 100, 100, Err("not valid gzip"));
        let bomb = gzip(&vec![0; 10 << 20]);
        assert!(bomb.len() < 20_000);
        check(&bomb, 1 << 20, 2000, 1 << 30, Err("over 1048576 bytes"));
        check(&bomb, 100 << 20, 200, 1 << 30, Err("over 200 times"));
        check(&bomb, 100 << 20, 2000, 1 << 20, Err("hold 1048576 bytes"));
        check(&bomb, 100 << 20, 2000, 40 << 20, Ok(&vec![0; 10 << 20]));
        check(&gzip(b"small"), 100, 200, 0, Ok(b"small"));
        // Exactly one step: the end is found by the next one.
        check(
            &gzip(&vec![7; INFLATE_STEP]),
            INFLATE_STEP,
            2000,
            4 * INFLATE_STEP,
            Ok(&vec![7; INFLATE_STEP]),
        );
    }

    #[test]
    fn a_body_must_keep_its_rate() {
        let limits = ApiLimits {
            body_timeout: Duration::from_secs(20),
            body_grace: Duration::from_secs(2),
            body_rate_min: 1000,
            ..ApiLimits::default()
        };
        for (received, want) in [(0, 2.0), (500, 2.5), (10_000, 12.0), (1 << 30, 20.0)] {
            assert_eq!(limits.body_within(received).as_secs_f64(), want, "{received}");
        }
    }

    #[tokio::test]
    async fn bodies_share_their_memory() {
        const LONG: usize = 10 * FREE_BYTES;
        let limits = ApiLimits { body_bytes_max: LONG, ..ApiLimits::default() };
        let pool = BodyPool::new(LONG + LONG / 2);
        let send = async |bytes: usize| collect(Body::from(vec![1; bytes]), &limits, &pool).await;
        let first = send(LONG).await.unwrap();
        let refused = send(LONG).await.unwrap_err();
        assert!(format!("{refused:?}").contains("Overloaded"), "{refused:?}");
        assert_eq!(send(1000).await.unwrap().len(), 1000, "a small one has its place");
        drop(first);
        assert_eq!(send(LONG).await.unwrap().len(), LONG);
        assert!(send(LONG + 1).await.is_err());
    }
}
