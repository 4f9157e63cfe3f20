//! Reads a request body, plain or gzip, with limits on bytes, time and rate.
//!
//! Always: the memory of all bodies together is bounded too ([`BodyPool`]). Bytes count when they arrive, not
//! when they are announced, so that nobody takes memory without sending anything. A small body always has
//! room, whatever others send. One tenant holds at most half of the memory, except with a single request, so
//! that no tenant shuts the others out.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
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
use crate::access::Caller;

/// Bytes that are inflated in one step.
const INFLATE_STEP: usize = 64 << 10;
/// The most bytes that a body's buffer reserves ahead of the bytes received.
const GROW_STEP_MAX: usize = 1 << 20;
/// Inflated bytes that any gzip body may have, whatever its ratio.
const RATIO_FREE_BYTES: usize = 64 << 10;
/// Bytes of each body that do not count in the pool; the number of connections bounds them.
const FREE_BYTES: usize = 64 << 10;
/// Bytes of memory for each byte of a body, until its request is accepted or refused. First these are the
/// body and its text; then that text, the joined prompt, and the mask's copy of the texts.
pub(crate) const HELD_PER_BYTE: usize = 3;
/// Bytes of a body for names, numbers and JSON syntax. The text may take twice the bytes of the longest
/// prompt, because JSON may escape each character.
const BESIDE_TEXT: usize = 1 << 20;
/// If there was no room for a body, the time after which a client may send it again, in milliseconds.
const RETRY_BODY_MS: u64 = 1000;

/// Bounds the memory of all bodies, and of the texts made from them, until their requests are accepted or
/// refused.
#[derive(Debug, Clone)]
pub(super) struct BodyPool {
    room: Arc<Semaphore>,
    bytes_max: usize,
    /// Bytes that each tenant's requests hold. Tenants that hold nothing are absent.
    tenants: Arc<Mutex<HashMap<String, usize>>>,
}

/// One request's share of a [`BodyPool`]. Dropping it returns the share.
#[derive(Debug)]
pub(super) struct Held {
    pool: BodyPool,
    tenant: String,
    bytes: usize,
    /// Bytes of the share for the body as sent, while that is being inflated.
    packed: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyPool {
    pub(super) fn new(bytes_max: usize) -> BodyPool {
        let room = Arc::new(Semaphore::new(bytes_max.min(Semaphore::MAX_PERMITS)));
        BodyPool { room, bytes_max, tenants: Arc::default() }
    }

    /// Returns the share of a new request, which holds nothing yet.
    fn nothing(&self, tenant: &str) -> Held {
        Held { pool: self.clone(), tenant: tenant.to_owned(), bytes: 0, packed: 0, permit: None }
    }

    /// Returns the bytes that one tenant may hold with several requests.
    fn tenant_max(&self) -> usize {
        self.bytes_max / 2
    }

    /// Takes `bytes` more for a request that holds `own` bytes already. Fails if its tenant or the pool has
    /// no room.
    fn take(&self, tenant: &str, own: usize, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let refused = |who: &str, max: usize| {
            let message = format!("requests {who} may hold {max} bytes together");
            ApiError::new(ErrorCode::Overloaded, message).with_retry_after_ms(RETRY_BODY_MS)
        };
        let mut tenants = self.tenants.lock().expect(POISONED);
        let all = tenants.get(tenant).copied().unwrap_or(0);
        // A tenant's only request may exceed the half, so that the longest body can be read.
        if all > own && all.saturating_add(bytes) > self.tenant_max() {
            return Err(refused("of one tenant that are being read", self.tenant_max()));
        }
        let permits = u32::try_from(bytes).ok();
        let taken = permits.and_then(|permits| self.room.clone().try_acquire_many_owned(permits).ok());
        let Some(taken) = taken else {
            return Err(refused("that are being read", self.bytes_max));
        };
        *tenants.entry(tenant.to_owned()).or_default() += bytes;
        Ok(taken)
    }

    /// Notes that a tenant holds this many bytes less.
    fn forget(&self, tenant: &str, bytes: usize) {
        let mut tenants = self.tenants.lock().expect(POISONED);
        let Some(all) = tenants.get_mut(tenant) else { return };
        *all = all.saturating_sub(bytes);
        if *all == 0 {
            tenants.remove(tenant);
        }
    }
}

/// Nothing panics while the lock is held.
const POISONED: &str = "no holder of this lock panics";

impl Held {
    /// Takes room for a body that has this many bytes now, in addition to the packed body that it is inflated
    /// from.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let body = bytes.saturating_sub(FREE_BYTES).saturating_mul(HELD_PER_BYTE);
        let more = body.saturating_add(self.packed).saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let taken = self.pool.take(&self.tenant, self.bytes, more)?;
        self.bytes += more;
        match &mut self.permit {
            Some(permit) => permit.merge(taken),
            None => self.permit = Some(taken),
        }
        Ok(())
    }

    /// Marks the share so far as that of the packed body, which is inflated from now on.
    fn begin_inflating(&mut self) {
        self.packed = self.bytes;
    }

    /// Returns the share of the packed body, which is not needed any more.
    fn end_inflating(&mut self) {
        let packed = std::mem::take(&mut self.packed);
        // Dropping the part returns its permits.
        drop(self.permit.as_mut().and_then(|permit| permit.split(packed)));
        self.bytes -= packed;
        self.pool.forget(&self.tenant, packed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.forget(&self.tenant, self.bytes);
    }
}

/// A whole body, counted until it is dropped.
#[derive(Debug)]
pub(super) struct WholeBody {
    bytes: Vec<u8>,
    held: Held,
}

impl WholeBody {
    /// Parses the body and drops its bytes. The share of the memory is returned with the result, and is held
    /// until it is dropped.
    pub(super) fn parse<T, E>(self, parse: impl FnOnce(&[u8]) -> Result<T, E>) -> Result<(T, Held), E> {
        parse(&self.bytes).map(|read| (read, self.held))
    }
}

impl Deref for WholeBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the whole body, and inflates it if it was compressed. Its memory counts for the caller's tenant.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    app: &App,
    caller: &Caller,
) -> Result<WholeBody, ApiError> {
    let limits = app.limits;
    check_json(headers)?;
    let gzip = is_gzip(headers)?;
    let (sent_max, _) = limits.sent_max();
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > sent_max as u64) {
        return Err(too_large(limits.sent_max()));
    }
    let whole = collect(body, &limits, app.bodies.nothing(&caller.tenant.id)).await?;
    if !gzip {
        return Ok(whole);
    }
    let inflated = tokio::task::spawn_blocking(move || inflate(whole, &limits)).await;
    inflated.unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "the body could not be read")))
}

async fn collect(mut body: Body, limits: &ApiLimits, mut held: Held) -> Result<WholeBody, ApiError> {
    let (begun, mut bytes) = (Instant::now(), Vec::new());
    let (sent_max, _) = limits.sent_max();
    loop {
        let frame = match timeout_at(begun + limits.body_within(bytes.len()), body.frame()).await {
            Err(_) => return Err(too_slow(limits, begun.elapsed())),
            Ok(None) => return Ok(WholeBody { bytes, held }),
            Ok(Some(Err(_))) => {
                return Err(ApiError::new(ErrorCode::InvalidRequest, "the body ends early"));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > sent_max {
            return Err(too_large(limits.sent_max()));
        }
        held.grow(bytes.len() + data.len())?;
        make_room(&mut bytes, data.len());
        bytes.extend_from_slice(data);
    }
}

/// Reserves room for more bytes. Doubles a short buffer and adds a bounded step to a long one, so that the
/// memory in use stays close to the bytes counted.
fn make_room(bytes: &mut Vec<u8>, more: usize) {
    if bytes.capacity() - bytes.len() < more {
        bytes.reserve_exact(more.max(bytes.len().min(GROW_STEP_MAX)));
    }
}

/// Which limit bounds a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// An option of the service.
    Option,
    /// The longest prompt of the models.
    Prompt,
}

impl ApiLimits {
    /// Returns the most bytes of a body as sent.
    fn sent_max(&self) -> (usize, Bound) {
        self.within_prompt(self.body_bytes_max)
    }

    /// Returns the most bytes of a gzip body after it is inflated.
    fn inflated_max(&self) -> (usize, Bound) {
        self.within_prompt(self.inflated_bytes_max)
    }

    fn within_prompt(&self, option: usize) -> (usize, Bound) {
        let prompt = self.prompt_bytes_max.saturating_mul(2).saturating_add(BESIDE_TEXT);
        if prompt < option { (prompt, Bound::Prompt) } else { (option, Bound::Option) }
    }

    /// Returns the time, from the beginning of a body, within which its next byte must arrive after
    /// `received` bytes.
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

/// Refuses what a browser sends for another site's page without a preflight request: forms, plain text, and
/// bodies without a type. Programs other than browsers may leave the type out.
fn check_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let sent = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let json = match sent {
        Some(sent) => {
            let kind = sent.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
        }
        None => !headers.contains_key(header::ORIGIN) && !headers.contains_key("sec-fetch-site"),
    };
    if json {
        return Ok(());
    }
    let message = "content-type must be `application/json`";
    Err(ApiError::new(ErrorCode::InvalidRequest, message).with_status(415))
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

/// Inflates step by step, so that at most one step beyond a limit is ever in memory.
fn inflate(packed: WholeBody, limits: &ApiLimits) -> Result<WholeBody, ApiError> {
    let WholeBody { bytes: packed, mut held } = packed;
    held.begin_inflating();
    let by_ratio =
        RATIO_FREE_BYTES.saturating_add(packed.len().saturating_mul(limits.inflate_ratio_max.max(1)));
    let mut bytes = Vec::new();
    let (inflated_max, _) = limits.inflated_max();
    let mut decoder = MultiGzDecoder::new(packed.as_slice());
    loop {
        make_room(&mut bytes, INFLATE_STEP);
        let step = (&mut decoder).take(INFLATE_STEP as u64).read_to_end(&mut bytes);
        let Ok(step) = step else {
            return Err(ApiError::new(ErrorCode::InvalidRequest, "the body is not valid gzip"));
        };
        if bytes.len() > inflated_max {
            return Err(too_large(limits.inflated_max()));
        }
        if bytes.len() > by_ratio {
            let message = format!("the body inflates to over {} times its size", limits.inflate_ratio_max);
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).with_status(413));
        }
        held.grow(bytes.len())?;
        if step < INFLATE_STEP {
            held.end_inflating();
            return Ok(WholeBody { bytes, held });
        }
    }
}

fn too_large((limit, bound): (usize, Bound)) -> ApiError {
    let (code, why) = match bound {
        Bound::Option => (ErrorCode::InvalidRequest, ""),
        Bound::Prompt => (ErrorCode::PromptTooLong, "; no prompt of the models here is as long"),
    };
    ApiError::new(code, format!("the body is over {limit} bytes{why}")).with_status(413)
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
        let packed = WholeBody { bytes: packed.to_vec(), held: pool.nothing("acme") };
        let have = inflate(packed, &limits);
        match (have, want) {
            (Ok(have), Ok(want)) => assert_eq!(&*have, want),
            (Err(have), Err(want)) => assert!(format!("{have:?}").contains(want), "{have:?}"),
            (have, want) => panic!("{have:?}, want {want:?}"),
        }
        assert_eq!(pool.room.available_permits(), pool.bytes_max, "all is given back");
        assert!(pool.tenants.lock().unwrap().is_empty());
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
        check(&bomb, 100 << 20, 2000, 64 << 20, Ok(&vec![0; 10 << 20]));
        check(&gzip(b"small"), 100, 200, 0, Ok(b"small"));
        // Exactly one step long: the next step finds the end.
        check(
            &gzip(&vec![7; INFLATE_STEP]),
            INFLATE_STEP,
            2000,
            12 * INFLATE_STEP,
            Ok(&vec![7; INFLATE_STEP]),
        );
    }

    #[test]
    fn a_body_is_no_longer_than_any_prompt() {
        let limits = |prompt_bytes_max| ApiLimits { prompt_bytes_max, ..ApiLimits::default() };
        assert_eq!(limits(usize::MAX).sent_max(), (24 << 20, Bound::Option));
        assert_eq!(limits(100 << 10).sent_max(), ((200 << 10) + BESIDE_TEXT, Bound::Prompt));
        let bomb = gzip(&vec![b' '; 2 << 20]);
        let bomb = WholeBody { bytes: bomb, held: BodyPool::new(1 << 30).nothing("acme") };
        let refused = inflate(bomb, &ApiLimits { inflate_ratio_max: 2000, ..limits(1000) });
        let said = format!("{:?}", refused.unwrap_err());
        assert!(said.contains("PromptTooLong") && said.contains("over 1050576 bytes"), "{said}");
    }

    #[test]
    fn only_json_is_read() {
        let check = |pairs: &[(&'static str, &'static str)], want: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, axum::http::HeaderValue::from_static(value));
            }
            assert_eq!(check_json(&headers).is_ok(), want, "{pairs:?}");
        };
        check(&[], true);
        check(&[("content-type", "application/json")], true);
        check(&[("content-type", "Application/JSON; charset=utf-8")], true);
        check(&[("content-type", "application/vnd.api+json")], true);
        for other in
            ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "", "json"]
        {
            check(&[("content-type", other)], false);
        }
        check(&[("origin", "http://127.0.0.1:8300")], false);
        check(&[("sec-fetch-site", "cross-site")], false);
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
        let pool = BodyPool::new(HELD_PER_BYTE * (LONG + LONG / 2));
        let senders = std::cell::Cell::new(0);
        let send = async |bytes: usize| {
            // A new tenant for each request, because one tenant may hold only half.
            senders.set(senders.get() + 1);
            let tenant = senders.get().to_string();
            collect(Body::from(vec![1; bytes]), &limits, pool.nothing(&tenant)).await
        };
        let first = send(LONG).await.unwrap();
        let refused = send(LONG).await.unwrap_err();
        assert!(format!("{refused:?}").contains("Overloaded"), "{refused:?}");
        assert_eq!(send(1000).await.unwrap().len(), 1000, "a small one has its place");
        let (len, held) = first.parse(|bytes| Ok::<_, ()>(bytes.len())).unwrap();
        assert_eq!(len, LONG);
        assert!(send(LONG).await.is_err(), "what was read of it is still there");
        drop(held);
        assert_eq!(send(LONG).await.unwrap().len(), LONG);
        assert!(send(LONG + 1).await.is_err());
    }

    #[tokio::test]
    async fn one_tenant_does_not_shut_the_others_out() {
        const LONG: usize = 10 * FREE_BYTES;
        const HALF: usize = 5 * FREE_BYTES;
        let limits = ApiLimits { body_bytes_max: LONG, ..ApiLimits::default() };
        let pool = BodyPool::new(HELD_PER_BYTE * LONG);
        let send = async |tenant: &str, bytes: usize| {
            collect(Body::from(vec![1; bytes]), &limits, pool.nothing(tenant)).await
        };
        let mut held = Vec::new();
        let refused = loop {
            match send("acme", 2 * FREE_BYTES).await {
                Ok(body) => held.push(body),
                Err(err) => break err,
            }
            assert!(held.len() < 10, "one tenant has the whole pool");
        };
        let said = format!("{refused:?}");
        assert!(said.contains("Overloaded") && said.contains("one tenant"), "{said}");
        assert_eq!(held.len(), 5, "half of ten");
        assert_eq!(send("acme", 1000).await.unwrap().len(), 1000, "a small one has its place");
        assert_eq!(send("other", HALF).await.unwrap().len(), HALF);
        drop(held);
        // A single long request may exceed the half.
        let long = send("acme", LONG).await.unwrap();
        assert!(send("acme", 2 * FREE_BYTES).await.is_err());
        assert_eq!(send("other", FREE_BYTES + 1000).await.unwrap().len(), FREE_BYTES + 1000);
        drop(long);
        assert!(pool.tenants.lock().unwrap().is_empty(), "nothing is kept of those that hold nothing");
        assert_eq!(pool.room.available_permits(), pool.bytes_max);
    }

    #[test]
    fn a_long_body_takes_little_room_in_advance() {
        let mut bytes = Vec::new();
        for _ in 0..500 {
            make_room(&mut bytes, 16 << 10);
            bytes.extend_from_slice(&[1; 16 << 10]);
            assert!(bytes.capacity() <= bytes.len() + GROW_STEP_MAX, "{} {}", bytes.capacity(), bytes.len());
        }
    }
}
